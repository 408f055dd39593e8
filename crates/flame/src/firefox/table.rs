//! The tables of a thread in a processed profile: columns, and rows found by what they hold.

use std::collections::HashMap;

use serde::Serialize;
use underspan_model::{Class, FrameKind, State};

use crate::label::Label;
use crate::timeline::WaitSpan;

/// Text of a thread, by index.
#[derive(Default, Serialize)]
#[serde(transparent)]
pub(super) struct Strings {
    list: Vec<String>,
    #[serde(skip)]
    known: HashMap<String, usize>,
}

impl Strings {
    pub(super) fn index(&mut self, text: &str) -> usize {
        if let Some(index) = self.known.get(text) {
            return *index;
        }
        let index = self.list.len();
        self.list.push(text.to_owned());
        self.known.insert(text.to_owned(), index);
        index
    }
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Funcs {
    length: usize,
    name: Vec<usize>,
    #[serde(rename = "isJS")]
    is_js: Vec<bool>,
    #[serde(rename = "relevantForJS")]
    relevant_for_js: Vec<bool>,
    resource: Vec<i32>,
    file_name: Vec<Option<usize>>,
    line_number: Vec<Option<u32>>,
    column_number: Vec<Option<u32>>,
    #[serde(skip)]
    known: HashMap<Label, usize>,
}

impl Funcs {
    fn index(&mut self, label: &Label, strings: &mut Strings) -> usize {
        if let Some(index) = self.known.get(label) {
            return *index;
        }
        let index = self.length;
        self.length += 1;
        let function = label.function();
        let name = function.map_or_else(|| label.text(), |function| function.name.clone());
        let file = function.map(|f| if f.file.is_empty() { &f.module } else { &f.file });
        self.name.push(strings.index(&name));
        self.is_js.push(false);
        self.relevant_for_js.push(false);
        self.resource.push(-1);
        self.file_name.push(file.filter(|file| !file.is_empty()).map(|file| strings.index(file)));
        self.line_number.push(None);
        self.column_number.push(None);
        self.known.insert(label.clone(), index);
        index
    }
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Frames {
    length: usize,
    address: Vec<i32>,
    inline_depth: Vec<u32>,
    category: Vec<usize>,
    subcategory: Vec<usize>,
    func: Vec<usize>,
    native_symbol: Vec<Option<usize>>,
    #[serde(rename = "innerWindowID")]
    inner_window_id: Vec<u32>,
    line: Vec<Option<u32>>,
    column: Vec<Option<u32>>,
    #[serde(skip)]
    known: HashMap<(Label, u32), usize>,
}

impl Frames {
    fn index(&mut self, at: (Label, u32), funcs: &mut Funcs, strings: &mut Strings) -> usize {
        if let Some(index) = self.known.get(&at) {
            return *index;
        }
        let index = self.length;
        self.length += 1;
        let (category, subcategory) = category(&at.0);
        self.address.push(-1);
        self.inline_depth.push(0);
        self.category.push(category);
        self.subcategory.push(subcategory);
        self.func.push(funcs.index(&at.0, strings));
        self.native_symbol.push(None);
        self.inner_window_id.push(0);
        self.line.push((at.1 > 0).then_some(at.1));
        self.column.push(None);
        self.known.insert(at, index);
        index
    }
}

/// A stack is a frame on top of another stack.
#[derive(Default, Serialize)]
pub(super) struct Stacks {
    length: usize,
    prefix: Vec<Option<usize>>,
    frame: Vec<usize>,
    #[serde(skip)]
    known: HashMap<(Option<usize>, usize), usize>,
}

impl Stacks {
    /// The stack of this path, the outermost first; `None` for an empty one.
    pub(super) fn index(
        &mut self,
        path: Vec<(Label, u32)>,
        frames: &mut Frames,
        funcs: &mut Funcs,
        strings: &mut Strings,
    ) -> Option<usize> {
        path.into_iter().fold(None, |prefix, at| {
            let frame = frames.index(at, funcs, strings);
            let next = self.length;
            let stack = *self.known.entry((prefix, frame)).or_insert(next);
            if stack == next {
                self.length += 1;
                self.prefix.push(prefix);
                self.frame.push(frame);
            }
            Some(stack)
        })
    }
}

/// Times are milliseconds since the profile's start.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Samples {
    pub(super) length: usize,
    pub(super) weight_type: &'static str,
    pub(super) stack: Vec<Option<usize>>,
    pub(super) time: Vec<f64>,
    pub(super) weight: Vec<f64>,
    /// Microseconds on a CPU.
    #[serde(rename = "threadCPUDelta")]
    pub(super) thread_cpu_delta: Vec<u64>,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Markers {
    length: usize,
    category: Vec<usize>,
    data: Vec<serde_json::Value>,
    end_time: Vec<f64>,
    name: Vec<usize>,
    phase: Vec<u8>,
    start_time: Vec<f64>,
}

/// A marker with a start and an end.
const INTERVAL: u8 = 1;

impl Markers {
    pub(super) fn push(
        &mut self,
        name: usize,
        category: usize,
        from: f64,
        until: f64,
        data: serde_json::Value,
    ) {
        self.length += 1;
        self.category.push(category);
        self.data.push(data);
        self.start_time.push(from);
        self.end_time.push(until);
        self.name.push(name);
        self.phase.push(INTERVAL);
    }
}

#[derive(Serialize)]
pub(super) struct Category {
    name: &'static str,
    color: &'static str,
    subcategories: Vec<&'static str>,
}

const CLASSES: [(Class, &str, &str); 7] = [
    (Class::Cpu, "On CPU", "green"),
    (Class::CpuWait, "Wants a CPU", "orange"),
    (Class::Contention, "Contention", "purple"),
    (Class::Network, "Network", "blue"),
    (Class::Storage, "Storage", "brown"),
    (Class::Idle, "Waiting for something to do", "grey"),
    (Class::Unknown, "Cause unknown", "darkgrey"),
];
/// Categories before those of [`CLASSES`].
const KINDS: [(&str, &str); 4] =
    [("Other", "grey"), ("Python", "yellow"), ("Native", "lightblue"), ("Kernel", "red")];

/// All categories: what the viewer takes for granted, kinds of frames, classes of states.
pub(super) fn categories() -> Vec<Category> {
    let kinds = KINDS.map(|(name, color)| Category { name, color, subcategories: vec!["Other"] });
    let classes = CLASSES.map(|(class, name, color)| Category {
        name,
        color,
        subcategories: std::iter::once("Other").chain(of_class(class).map(State::name)).collect(),
    });
    kinds.into_iter().chain(classes).collect()
}

fn of_class(class: Class) -> impl Iterator<Item = State> {
    State::ALL.into_iter().filter(move |state| state.class() == class)
}

/// The numbers of a state's category and subcategory.
pub(super) fn state_category(state: State) -> (usize, usize) {
    let class = CLASSES.iter().position(|(class, _, _)| *class == state.class()).unwrap_or(0);
    let place = of_class(state.class()).position(|other| other == state).unwrap_or(0);
    (KINDS.len() + class, place + 1)
}

fn category(label: &Label) -> (usize, usize) {
    match label {
        Label::Function(function) => match function.kind {
            FrameKind::Python => (1, 0),
            FrameKind::Native => (2, 0),
            FrameKind::Kernel => (3, 0),
        },
        Label::State(state) | Label::Wait(state, _) | Label::NotSampled(state) => {
            state_category(*state)
        }
        _ => (0, 0),
    }
}

/// What a wait's marker says.
pub(super) fn wait_data(wait: &WaitSpan) -> serde_json::Value {
    serde_json::json!({
        "type": "Wait",
        "state": wait.state.label(),
        "waker": wait.waker,
        "holder": wait.holder,
        "peer": wait.peer,
    })
}
