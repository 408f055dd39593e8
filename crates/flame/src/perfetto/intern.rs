//! Stacks by number, as Perfetto refers to them.

use std::collections::HashMap;

use super::proto::{Callstack, Frame, InternedData, InternedString, Mapping};
use crate::label::Label;

/// What has a number already, and what has to be told before it is used.
#[derive(Default)]
pub(super) struct Interned {
    functions: HashMap<String, u64>,
    sources: HashMap<String, u64>,
    mappings: HashMap<String, u64>,
    frames: HashMap<(Label, u32), u64>,
    stacks: HashMap<Vec<u64>, u64>,
    new: InternedData,
}

impl Interned {
    /// The number of the stack with this path, the outermost first.
    pub(super) fn stack(&mut self, path: Vec<(Label, u32)>) -> u64 {
        let frame_ids: Vec<_> = path.into_iter().map(|at| self.frame(at)).collect();
        if let Some(iid) = self.stacks.get(&frame_ids) {
            return *iid;
        }
        let iid = self.stacks.len() as u64 + 1;
        self.new.callstacks.push(Callstack { iid, frame_ids: frame_ids.clone() });
        self.stacks.insert(frame_ids, iid);
        iid
    }

    /// What is new since the last time.
    pub(super) fn take_new(&mut self) -> Option<InternedData> {
        let new = std::mem::take(&mut self.new);
        (new != InternedData::default()).then_some(new)
    }

    fn frame(&mut self, at: (Label, u32)) -> u64 {
        if let Some(iid) = self.frames.get(&at) {
            return *iid;
        }
        let iid = self.frames.len() as u64 + 1;
        let (label, line) = &at;
        let function = label.function();
        let name = function.map_or_else(|| label.text(), |function| function.name.clone());
        let module = function.map_or("", |function| &function.module);
        let module = if module.is_empty() { label_module(label) } else { module };
        let file = function.map_or("", |function| &function.file);
        let function_name_id = intern(&mut self.functions, &name, &mut self.new.function_names);
        let source_path_iid =
            (!file.is_empty()).then(|| intern(&mut self.sources, file, &mut self.new.source_paths));
        let mapping_id = self.mapping(module);
        let line_number = (*line > 0).then_some(*line);
        self.new.frames.push(Frame {
            iid,
            function_name_id,
            mapping_id,
            source_path_iid,
            line_number,
        });
        self.frames.insert(at, iid);
        iid
    }

    /// A mapping has the number of its path: both begin at 1 and are made together.
    fn mapping(&mut self, path: &str) -> u64 {
        let known = self.mappings.len();
        let iid = intern(&mut self.mappings, path, &mut self.new.mapping_paths);
        if self.mappings.len() > known {
            self.new.mappings.push(Mapping { iid, path_string_ids: vec![iid] });
        }
        iid
    }
}

/// A frame must have a mapping.
fn label_module(label: &Label) -> &'static str {
    match label {
        Label::Function(function) => match function.kind {
            underspan_model::FrameKind::Python => "[python]",
            underspan_model::FrameKind::Native => "[native]",
            underspan_model::FrameKind::Kernel => "[kernel]",
        },
        _ => "[underspan]",
    }
}

fn intern(known: &mut HashMap<String, u64>, text: &str, new: &mut Vec<InternedString>) -> u64 {
    if let Some(iid) = known.get(text) {
        return *iid;
    }
    let iid = known.len() as u64 + 1;
    new.push(InternedString { iid, str: text.as_bytes().to_vec() });
    known.insert(text.to_owned(), iid);
    iid
}
