//! pprof: what `go tool pprof` and the services built on it read. Gzipped protobuf.

pub mod proto;

use std::collections::HashMap;
use std::io::{self, Write as _};

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message as _;

use crate::diff::Diff;
use crate::kind::is_on_cpu;
use crate::label::Label;
use crate::sample::Sample;
use crate::tree::Grouping;

/// What a profile says of itself.
#[derive(Clone, Debug, Default)]
pub struct Header {
    /// What is profiled: viewers show it as the program.
    pub program: String,
    /// When its time range begins, in nanoseconds since the Unix epoch.
    pub start_time: u64,
    /// How long the range is.
    pub duration_ns: u64,
    /// Lines that `pprof -comments` shows.
    pub comments: Vec<String>,
}

/// Samples as two values: nanoseconds on and off the CPU. Labels: `process`, `pid`, `thread`,
/// `tid`, `state`, and `request_id` where it is known (`-tagroot=state` groups by one).
///
/// # Errors
///
/// Those of the compressor.
pub fn pprof(samples: &[Sample], header: &Header) -> io::Result<Vec<u8>> {
    let on_cpu: u128 = sum(samples.iter().filter(|sample| is_on_cpu(sample.state)));
    let off_cpu: u128 = sum(samples.iter().filter(|sample| !is_on_cpu(sample.state)));
    let mut writer = Writer::new(header, &["cpu", "off-cpu"], usize::from(off_cpu > on_cpu));
    for sample in samples {
        let path = Grouping::default().path(sample);
        let ns = signed(sample.weight_ns);
        let value = if is_on_cpu(sample.state) { vec![ns, 0] } else { vec![0, ns] };
        let mut label = vec![
            writer.text_label("process", &sample.thread.process),
            writer.number_label("pid", sample.thread.pid),
            writer.text_label("thread", &sample.thread.name),
            writer.number_label("tid", sample.thread.tid),
            writer.text_label("state", sample.state.name()),
        ];
        if let Some(request) = &sample.request {
            label.push(writer.text_label("request_id", request));
        }
        let location_id = path.iter().rev().map(|(at, line)| writer.location(at, *line)).collect();
        writer.profile.sample.push(proto::Sample { location_id, value, label });
    }
    writer.finish()
}

/// A difference: nanoseconds added; negative ones went away.
///
/// # Errors
///
/// Those of the compressor.
pub fn pprof_diff(diff: &Diff, header: &Header) -> io::Result<Vec<u8>> {
    let mut writer = Writer::new(header, &["change"], 0);
    for (at, node) in diff.nodes().iter().enumerate() {
        let change = (node.own_after - node.own_before).round();
        if change == 0.0 {
            continue;
        }
        let path = diff.path(at);
        let line = |label: &Label| label.function().map_or(0, |function| function.line);
        let location_id = path.iter().rev().map(|at| writer.location(at, line(at))).collect();
        let sample = proto::Sample { location_id, value: vec![change as i64], label: Vec::new() };
        writer.profile.sample.push(sample);
    }
    writer.finish()
}

fn sum<'a>(samples: impl Iterator<Item = &'a Sample>) -> u128 {
    samples.map(|sample| u128::from(sample.weight_ns)).sum()
}

fn signed(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}

struct Writer {
    profile: proto::Profile,
    strings: HashMap<String, i64>,
    functions: HashMap<(String, String), u64>,
    mappings: HashMap<String, u64>,
    locations: HashMap<(u64, u64, u32), u64>,
}

impl Writer {
    fn new(header: &Header, types: &[&str], first: usize) -> Writer {
        let mut writer = Writer {
            profile: proto::Profile::default(),
            strings: HashMap::new(),
            functions: HashMap::new(),
            mappings: HashMap::new(),
            locations: HashMap::new(),
        };
        writer.string("");
        for (index, name) in types.iter().enumerate() {
            let kind = writer.string(name);
            let unit = writer.string("nanoseconds");
            writer.profile.sample_type.push(proto::ValueType { r#type: kind, unit });
            if index == first {
                writer.profile.default_sample_type = kind;
            }
        }
        // The first mapping is taken for the program's own file.
        writer.mapping(&header.program);
        writer.profile.time_nanos = signed(header.start_time);
        writer.profile.duration_nanos = signed(header.duration_ns);
        writer.profile.comment = header.comments.iter().map(|line| writer.string(line)).collect();
        writer
    }

    fn string(&mut self, text: &str) -> i64 {
        if let Some(index) = self.strings.get(text) {
            return *index;
        }
        let index = self.profile.string_table.len() as i64;
        self.profile.string_table.push(text.to_owned());
        self.strings.insert(text.to_owned(), index);
        index
    }

    fn text_label(&mut self, key: &str, text: &str) -> proto::Label {
        proto::Label { key: self.string(key), str: self.string(text), num: 0 }
    }

    fn number_label(&mut self, key: &str, number: u32) -> proto::Label {
        proto::Label { key: self.string(key), str: 0, num: i64::from(number) }
    }

    fn location(&mut self, label: &Label, line: u32) -> u64 {
        let (name, file, module) = match label.function() {
            Some(function) => (&function.name, function.file.as_str(), function.module.as_str()),
            None => (&label.text(), "", ""),
        };
        let function_id = self.function(name, file);
        let mapping_id = self.mapping(module);
        let key = (function_id, mapping_id, line);
        if let Some(id) = self.locations.get(&key) {
            return *id;
        }
        let id = self.profile.location.len() as u64 + 1;
        let line = vec![proto::Line { function_id, line: i64::from(line) }];
        self.profile.location.push(proto::Location { id, mapping_id, line });
        self.locations.insert(key, id);
        id
    }

    fn function(&mut self, name: &str, file: &str) -> u64 {
        let key = (name.to_owned(), file.to_owned());
        if let Some(id) = self.functions.get(&key) {
            return *id;
        }
        let id = self.profile.function.len() as u64 + 1;
        let (name, filename) = (self.string(name), self.string(file));
        self.profile.function.push(proto::Function { id, name, system_name: name, filename });
        self.functions.insert(key, id);
        id
    }

    fn mapping(&mut self, module: &str) -> u64 {
        if module.is_empty() {
            return 0;
        }
        if let Some(id) = self.mappings.get(module) {
            return *id;
        }
        let id = self.profile.mapping.len() as u64 + 1;
        let filename = self.string(module);
        self.profile.mapping.push(proto::Mapping {
            id,
            filename,
            has_functions: true,
            has_filenames: true,
            has_line_numbers: true,
        });
        self.mappings.insert(module.to_owned(), id);
        id
    }

    fn finish(self) -> io::Result<Vec<u8>> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(&self.profile.encode_to_vec())?;
        encoder.finish()
    }
}
