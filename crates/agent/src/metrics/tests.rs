//! What rows are written of, and what is told of it.

use std::time::Duration;

use underspan_metrics::encode_text;
use underspan_model::Ledger;
use underspan_trackers::throttle::{METRICS, Reading, Round, Subject};

use super::*;

/// The value of a series, as text has it.
fn value(metrics: &Metrics, series: &str) -> Option<f64> {
    let text = encode_text(&metrics.families());
    text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

fn request(process: &str, status: u16, duration_ms: u64) -> Measure<'_> {
    let duration = duration_ms * 1_000_000;
    Measure::Request { process, status, duration, handoff: duration / 2 }
}

#[test]
fn requests_are_counted_by_process_and_class_of_status() {
    let metrics = Metrics::default();
    for (status, duration) in [(200, 10), (204, 20), (503, 400), (0, 1), (999, 1)] {
        metrics.measure(&request("web", status, duration));
    }
    let count = |code| {
        value(&metrics, &format!("underspan_requests_total{{process=\"web\",code=\"{code}\"}}"))
    };
    assert_eq!((count("2xx"), count("5xx"), count("none")), (Some(2.0), Some(1.0), Some(1.0)));
    assert_eq!((count("other"), count("4xx")), (Some(1.0), None));
    let duration = "underspan_request_duration_seconds";
    assert_eq!(value(&metrics, &format!("{duration}_count{{process=\"web\"}}")), Some(5.0));
    assert_eq!(value(&metrics, &format!("{duration}_sum{{process=\"web\"}}")), Some(0.432));
    let handoff = "underspan_request_handoff_seconds_bucket{process=\"web\",le=\"0.01\"}";
    assert_eq!(value(&metrics, handoff), Some(4.0));
}

#[test]
fn time_of_threads_is_counted_by_state_and_that_of_idle_processes_together() {
    let metrics = Metrics::default();
    let mut busy = Ledger::default();
    busy[State::Running] = 900_000_000;
    busy[State::GilWait] = 100_000_000;
    let mut idle = Ledger::default();
    idle[State::PollWait] = 1_000_000_000;
    for _ in 0..3 {
        metrics.measure(&Measure::ThreadTime { process: "web", ledger: &busy });
        metrics.measure(&Measure::ThreadTime { process: "cron", ledger: &idle });
    }
    let time = |process: &str, state: &str| {
        let labels = format!("{{process=\"{process}\",state=\"{state}\"}}");
        value(&metrics, &format!("underspan_thread_seconds_total{labels}"))
    };
    assert_eq!((time("web", "running"), time("web", "gil_wait")), (Some(2.7), Some(0.3)));
    assert_eq!((time("other", "poll_wait"), time("cron", "poll_wait")), (Some(3.0), None));
}

#[test]
fn however_many_processes_there_are_labels_are_bounded() {
    let metrics = Metrics::default();
    for index in 0..1_000 {
        metrics.measure(&request(&format!("p{index}"), 200, 1));
    }
    let text = encode_text(&metrics.families());
    let series = text.lines().filter(|line| line.starts_with("underspan_requests_total{"));
    assert_eq!(series.count(), processes::MOST + 1);
    let others = value(&metrics, "underspan_requests_total{process=\"other\",code=\"2xx\"}");
    assert_eq!(others, Some((1_000 - processes::MOST) as f64));
}

#[test]
fn a_name_that_gives_its_place_up_takes_its_series_along() {
    let mut counts = Counts::default();
    let now = Instant::now();
    for index in 0..processes::MOST {
        counts.measure(&request(&format!("p{index}"), 200, 1), now);
    }
    let later = now + Duration::from_secs(3_600);
    counts.measure(&request("late", 200, 1), later);
    let families = counts.families();
    let requests = families.iter().find(|f| f.name == "underspan_requests_total").unwrap();
    assert_eq!(requests.samples.len(), processes::MOST);
    assert!(requests.samples.iter().any(|sample| sample.labels[0].1 == "late"));
}

#[test]
fn the_hosts_counters_have_base_units_and_their_labels() {
    let metrics = Metrics::default();
    let metric = |name: &str| METRICS.iter().find(|metric| metric.name == name).unwrap();
    let reading = |name, subject: &str, netns, value| Reading {
        metric: metric(name),
        subject: Subject { name: subject.into(), netns },
        identity: 0,
        value,
    };
    let readings = vec![
        reading("node_cpu_seconds_total", "1", 0, 2_500_000_000),
        reading("node_network_receive_drop_total", "eth0", 7, 3),
        reading("node_pressure_io_waiting_seconds_total", "", 0, 500_000_000),
    ];
    metrics.measure(&Measure::Host(&Round { at: 1, readings, ..Round::default() }));
    assert_eq!(value(&metrics, "node_cpu_seconds_total{cpu=\"1\",mode=\"steal\"}"), Some(2.5));
    let drops = "node_network_receive_drop_total{device=\"eth0\",netns=\"7\"}";
    assert_eq!(value(&metrics, drops), Some(3.0));
    assert_eq!(value(&metrics, "node_pressure_io_waiting_seconds_total"), Some(0.5));
    let ena = "underspan_throttle_source_up{source=\"ena\",status=\"unsupported\"}";
    assert_eq!(value(&metrics, ena), Some(0.0));
    assert_eq!(value(&metrics, "node_ethtool_pps_allowance_exceeded"), None);
}

#[test]
fn names_are_unique_and_say_their_unit() {
    let metrics = Metrics::default();
    metrics.own(Own { bpf: Some((1, 1)), ..Own::default() });
    let families = metrics.families();
    let mut names: Vec<_> = families.iter().map(|family| family.name).collect();
    names.sort_unstable();
    let all = names.len();
    names.dedup();
    assert_eq!(names.len(), all);
    for family in families {
        assert_eq!(
            family.name.ends_with("_total"),
            family.kind == Kind::Counter,
            "{}",
            family.name
        );
        assert!(family.help.ends_with('.'), "{}", family.name);
        if family.kind == Kind::Histogram {
            assert!(family.name.ends_with("_seconds"), "{}", family.name);
        }
    }
}

#[test]
fn the_page_of_the_documentation_names_every_metric() {
    let page = include_str!("../../../../docs/metrics.md");
    let metrics = Metrics::default();
    metrics.own(Own { bpf: Some((1, 1)), ..Own::default() });
    for family in metrics.families() {
        let name = format!("`{}`", family.name);
        assert!(page.contains(&name), "{name} in docs/metrics.md");
    }
}
