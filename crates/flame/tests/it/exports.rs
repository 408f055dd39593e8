//! What other programs read, read back.

use std::collections::BTreeMap;
use std::io::Read as _;

use flate2::read::GzDecoder;
use prost::Message as _;
use serde_json::Value;
use underspan_flame::pprof::{Header, proto};
use underspan_flame::{Grouping, Tree};
use underspan_flame::{firefox, folded, perfetto, pprof, speedscope};

use crate::story;

#[test]
fn folded_text_is_what_flame_graph_programs_read() {
    let tree = Tree::new(&story::samples(), Grouping { process: true, ..Grouping::default() });
    let text = folded::folded(&tree);
    insta::assert_snapshot!(text);
    let mut options = inferno::flamegraph::Options::default();
    let mut picture = Vec::new();
    inferno::flamegraph::from_lines(&mut options, text.lines(), &mut picture).unwrap();
    let picture = String::from_utf8(picture).unwrap();
    // It takes the ending of kernel functions for the mark that it is.
    assert!(picture.contains("<title>futex_wait (192,000,000 samples, 26.19%)"));
    assert!(picture.contains("<title>export (reports.py) (272,000,000 samples, 37.11%)"));
}

#[test]
fn a_pprof_profile_keeps_every_sample() {
    let samples = story::samples();
    let header = Header { program: String::from("gunicorn"), ..Header::default() };
    let mut bytes = Vec::new();
    GzDecoder::new(&pprof::pprof(&samples, &header).unwrap()[..]).read_to_end(&mut bytes).unwrap();
    let profile = proto::Profile::decode(&bytes[..]).unwrap();
    let text = |index: i64| profile.string_table[usize::try_from(index).unwrap()].as_str();
    let types: Vec<_> =
        profile.sample_type.iter().map(|kind| (text(kind.r#type), text(kind.unit))).collect();
    assert_eq!(types, [("cpu", "nanoseconds"), ("off-cpu", "nanoseconds")]);
    assert_eq!(text(profile.default_sample_type), "off-cpu");
    assert_eq!((text(0), profile.sample.len()), ("", samples.len()));

    let lock = &profile.sample[1];
    assert_eq!(lock.value, [0, 180_000_000]);
    let place = |id: &u64| {
        let location = profile.location.iter().find(|location| location.id == *id).unwrap();
        let line = location.line[0];
        let function = profile.function.iter().find(|f| f.id == line.function_id).unwrap();
        (text(function.name), text(function.filename), line.line)
    };
    let stack: Vec<_> = lock.location_id.iter().map(place).collect();
    assert_eq!(stack[0], ("futex_wait", "", 0));
    assert_eq!(stack[3], ("export", "/srv/shop/reports.py", 88));
    let labels: BTreeMap<_, _> =
        lock.label.iter().map(|label| (text(label.key), (text(label.str), label.num))).collect();
    assert_eq!(labels["thread"], ("worker_3", 0));
    assert_eq!(labels["tid"], ("", 4107));
    assert_eq!(labels["state"], ("lock_wait", 0));
    assert_eq!(labels["request_id"], ("00f1a2b3c4d5e6f7", 0));
}

#[test]
fn speedscope_profiles_point_at_their_frames() {
    let samples = story::samples();
    let file: Value =
        serde_json::from_slice(&speedscope::speedscope(&samples, "wall").unwrap()).unwrap();
    let frames = file["shared"]["frames"].as_array().unwrap();
    let profiles = file["profiles"].as_array().unwrap();
    assert_eq!(profiles.len(), 4);
    for profile in profiles {
        let weights: Vec<u64> = serde_json::from_value(profile["weights"].clone()).unwrap();
        assert_eq!(profile["endValue"], weights.iter().sum::<u64>());
        let stacks: Vec<Vec<usize>> = serde_json::from_value(profile["samples"].clone()).unwrap();
        assert_eq!(stacks.len(), weights.len());
        assert!(stacks.iter().flatten().all(|frame| *frame < frames.len()));
    }
    let all: u64 = samples.iter().map(|sample| sample.weight_ns).sum();
    assert_eq!(profiles[0]["endValue"], all);
    assert!(frames.iter().any(|f| f["name"] == "export" && f["line"] == 88));
}

#[test]
fn firefox_tables_have_no_loose_ends() {
    let timeline = story::timeline();
    let file: Value = serde_json::from_slice(&firefox::firefox(&timeline).unwrap()).unwrap();
    let categories = file["meta"]["categories"].as_array().unwrap();
    let threads = file["threads"].as_array().unwrap();
    assert_eq!(threads.len(), 3);
    assert_eq!(threads.iter().filter(|thread| thread["isMainThread"] == true).count(), 1);
    let mut weight = 0.0;
    for thread in threads {
        let length = |table: &str| thread[table]["length"].as_u64().unwrap();
        for (table, column, target) in [
            ("samples", "stack", "stackTable"),
            ("stackTable", "prefix", "stackTable"),
            ("stackTable", "frame", "frameTable"),
            ("frameTable", "func", "funcTable"),
        ] {
            let column = thread[table][column].as_array().unwrap();
            assert_eq!(column.len() as u64, length(table));
            assert!(column.iter().filter_map(Value::as_u64).all(|index| index < length(target)));
        }
        for (category, sub) in columns(&thread["frameTable"], "category", "subcategory") {
            assert!(sub < categories[category]["subcategories"].as_array().unwrap().len());
        }
        weight += thread["samples"]["weight"]
            .as_array()
            .unwrap()
            .iter()
            .map(|w| w.as_f64().unwrap())
            .sum::<f64>();
        let times = thread["samples"]["time"].as_array().unwrap();
        assert!(times.is_sorted_by(|a, b| a.as_f64() <= b.as_f64()));
    }
    assert!((weight - 733.0).abs() < 1e-6, "{weight}");
    let worker = threads.iter().find(|thread| thread["name"] == "worker_3").unwrap();
    assert_eq!(worker["markers"]["length"], 6);
}

fn columns<'a>(table: &'a Value, a: &str, b: &str) -> impl Iterator<Item = (usize, usize)> + 'a {
    let index = |value: &Value| usize::try_from(value.as_u64().unwrap()).unwrap();
    let (a, b) = (table[a].as_array().unwrap(), table[b].as_array().unwrap());
    a.iter().zip(b).map(move |(a, b)| (index(a), index(b)))
}

#[test]
fn perfetto_slices_nest_and_stacks_are_told_first() {
    let trace =
        perfetto::proto::Trace::decode(&perfetto::perfetto(&story::timeline())[..]).unwrap();
    let mut stacks = Vec::new();
    let mut open: BTreeMap<u64, u32> = BTreeMap::new();
    let (mut samples, mut slices) = (0, 0);
    for packet in &trace.packet {
        for stack in packet.interned_data.iter().flat_map(|data| &data.callstacks) {
            stacks.push(stack.iid);
        }
        let Some(event) = &packet.track_event else { continue };
        let depth = open.entry(event.track_uuid).or_default();
        match event.r#type {
            1 => {
                slices += 1;
                *depth += 1;
                assert_eq!(*depth, 1, "states and requests of a track follow each other");
            }
            2 => *depth = depth.checked_sub(1).unwrap(),
            _ => {
                samples += 1;
                assert!(stacks.contains(&event.callstack_iid.unwrap()));
            }
        }
    }
    assert!(open.values().all(|depth| *depth == 0));
    assert_eq!((samples, slices), (9, 6));
    // Two requests at once need two tracks.
    let names =
        trace.packet.iter().filter_map(|packet| packet.track_descriptor.as_ref()?.name.as_deref());
    assert_eq!(names.filter(|name| *name == "requests").count(), 2);
}
