//! speedscope's own format: one profile of everything, then one per thread, in time order.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::Serialize;

use crate::label::Label;
use crate::sample::{Sample, Thread};
use crate::tree::Grouping;

/// The file's text.
///
/// # Errors
///
/// Those of the JSON writer.
pub fn speedscope(samples: &[Sample], title: &str) -> Result<Vec<u8>, serde_json::Error> {
    let mut frames = Frames::default();
    let mut in_order: Vec<_> = samples.iter().collect();
    in_order.sort_by_key(|sample| sample.start_time);
    let mut threads: BTreeMap<&Arc<Thread>, Vec<&Sample>> = BTreeMap::new();
    for sample in &in_order {
        threads.entry(&sample.thread).or_default().push(sample);
    }
    let mut profiles = vec![Profile::new(String::from("all threads"), &in_order, &mut frames)];
    if threads.len() > 1 {
        for (thread, samples) in threads {
            let Thread { name, pid, tid, .. } = &**thread;
            let name = match tid {
                0 => format!("{name} (process {pid})"),
                tid => format!("{name} (process {pid}, thread {tid})"),
            };
            profiles.push(Profile::new(name, &samples, &mut frames));
        }
    }
    serde_json::to_vec(&File {
        schema: "https://www.speedscope.app/file-format-schema.json",
        shared: Shared { frames: frames.list },
        profiles,
        name: title,
        active_profile_index: 0,
        exporter: concat!("underspan@", env!("CARGO_PKG_VERSION")),
    })
}

#[derive(Serialize)]
struct File<'a> {
    #[serde(rename = "$schema")]
    schema: &'static str,
    shared: Shared,
    profiles: Vec<Profile>,
    name: &'a str,
    #[serde(rename = "activeProfileIndex")]
    active_profile_index: usize,
    exporter: &'static str,
}

#[derive(Serialize)]
struct Shared {
    frames: Vec<Frame>,
}

#[derive(Serialize)]
struct Frame {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

#[derive(Serialize)]
struct Profile {
    #[serde(rename = "type")]
    kind: &'static str,
    name: String,
    unit: &'static str,
    #[serde(rename = "startValue")]
    start_value: u64,
    #[serde(rename = "endValue")]
    end_value: u64,
    samples: Vec<Vec<usize>>,
    weights: Vec<u64>,
}

impl Profile {
    fn new(name: String, samples: &[&Sample], frames: &mut Frames) -> Profile {
        let weights: Vec<_> = samples.iter().map(|sample| sample.weight_ns).collect();
        Profile {
            kind: "sampled",
            name,
            unit: "nanoseconds",
            start_value: 0,
            end_value: weights.iter().fold(0, |sum, ns| sum.saturating_add(*ns)),
            samples: samples.iter().map(|sample| frames.stack(sample)).collect(),
            weights,
        }
    }
}

#[derive(Default)]
struct Frames {
    list: Vec<Frame>,
    known: HashMap<(Label, u32), usize>,
}

impl Frames {
    /// The outermost first, as the format wants it.
    fn stack(&mut self, sample: &Sample) -> Vec<usize> {
        let grouping = Grouping { process: true, states: true, ..Grouping::default() };
        grouping.path(sample).into_iter().map(|at| self.index(at)).collect()
    }

    fn index(&mut self, at: (Label, u32)) -> usize {
        if let Some(index) = self.known.get(&at) {
            return *index;
        }
        let index = self.list.len();
        let function = at.0.function();
        let place = function.map(|f| if f.file.is_empty() { &f.module } else { &f.file });
        self.list.push(Frame {
            name: function.map_or_else(|| at.0.text(), |function| function.name.clone()),
            file: place.filter(|place| !place.is_empty()).cloned(),
            line: (at.1 > 0).then_some(at.1),
        });
        self.known.insert(at, index);
        index
    }
}
