//! The text format, version 0.0.4. It has classic histograms only.

use std::fmt::Write as _;

use crate::family::{Family, Kind, Value};
use crate::histogram::Buckets;

/// Families as text. Those without values are left out.
pub fn encode(families: &[Family]) -> String {
    let mut text = String::new();
    for family in families.iter().filter(|family| !family.samples.is_empty()) {
        let kind = match family.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Untyped => "untyped",
            Kind::Histogram => "histogram",
        };
        let name = family.name;
        let help = family.help.replace('\\', r"\\").replace('\n', r"\n");
        // Writing to a String cannot fail, here and below.
        let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        for sample in &family.samples {
            let labels: Vec<_> = sample.labels.iter().map(|(k, v)| (*k, v.as_ref())).collect();
            match &sample.value {
                Value::Number(value) => line(&mut text, name, "", &labels, *value),
                Value::Histogram(buckets) => histogram(&mut text, name, &labels, buckets),
            }
        }
    }
    text
}

fn histogram(text: &mut String, name: &str, labels: &[(&str, &str)], buckets: &Buckets) {
    let bounds = buckets.classic.iter().map(|(bound, count)| (bound.to_string(), *count));
    for (bound, count) in bounds.chain([("+Inf".to_owned(), buckets.count)]) {
        let labels = [labels, &[("le", &bound)]].concat();
        line(text, name, "_bucket", &labels, count as f64);
    }
    line(text, name, "_sum", labels, buckets.sum);
    line(text, name, "_count", labels, buckets.count as f64);
}

fn line(text: &mut String, name: &str, suffix: &str, labels: &[(&str, &str)], value: f64) {
    let _ = write!(text, "{name}{suffix}");
    for (index, (label, value)) in labels.iter().enumerate() {
        let value = value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
        let start = if index == 0 { '{' } else { ',' };
        let _ = write!(text, "{start}{label}=\"{value}\"");
    }
    let end = if labels.is_empty() { "" } else { "}" };
    let _ = writeln!(text, "{end} {value}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Histogram;

    #[test]
    fn numbers_and_labels() {
        let counter = Family::new(Kind::Counter, "a_total", "What\nit \\ is.")
            .with([("process", "q\"uo\\te\nd"), ("state", "x")], 12.0)
            .with([], 1e-7);
        let expected = "# HELP a_total What\\nit \\\\ is.\n# TYPE a_total counter\n\
                        a_total{process=\"q\\\"uo\\\\te\\nd\",state=\"x\"} 12\na_total 0.0000001\n";
        assert_eq!(encode(&[counter, Family::new(Kind::Gauge, "none", "None.")]), expected);
    }

    #[test]
    fn a_histogram_ends_with_all_its_values() {
        let mut histogram = Histogram::default();
        [60_000, 3_000_000_000, 20_000_000_000].iter().for_each(|ns| histogram.observe_ns(*ns));
        let mut family = Family::new(Kind::Histogram, "b_seconds", "B.");
        family.push([("process", "p")], Value::Histogram(histogram.buckets()));
        let text = encode(&[family]);
        for line in [
            "# TYPE b_seconds histogram",
            "b_seconds_bucket{process=\"p\",le=\"0.00005\"} 0",
            "b_seconds_bucket{process=\"p\",le=\"0.0001\"} 1",
            "b_seconds_bucket{process=\"p\",le=\"10\"} 2",
            "b_seconds_bucket{process=\"p\",le=\"+Inf\"} 3",
            "b_seconds_sum{process=\"p\"} 23.00006",
            "b_seconds_count{process=\"p\"} 3",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }
}
