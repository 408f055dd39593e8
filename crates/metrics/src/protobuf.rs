//! The protobuf format: messages `io.prometheus.client.MetricFamily`, each after its length. The only
//! format in which Prometheus takes native histograms.

use prost::Message;

use crate::family::{Family, Kind, Value};
use crate::histogram::{Buckets, Native};

/// Families as length-delimited messages. Those without values are left out.
pub fn encode(families: &[Family]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for family in families.iter().filter(|family| !family.samples.is_empty()) {
        let length_delimited = message(family).encode_length_delimited_to_vec();
        bytes.extend_from_slice(&length_delimited);
    }
    bytes
}

/// The messages of `metrics.proto`, as far as they are needed.
mod proto {
    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct LabelPair {
        #[prost(string, optional, tag = "1")]
        pub(super) name: Option<String>,
        #[prost(string, optional, tag = "2")]
        pub(super) value: Option<String>,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
    #[repr(i32)]
    pub(super) enum MetricType {
        Counter = 0,
        Gauge = 1,
        Summary = 2,
        Untyped = 3,
        Histogram = 4,
    }

    /// `Counter`, `Gauge` and `Untyped` are alike.
    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub(super) struct Number {
        #[prost(double, optional, tag = "1")]
        pub(super) value: Option<f64>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Histogram {
        #[prost(uint64, optional, tag = "1")]
        pub(super) sample_count: Option<u64>,
        #[prost(double, optional, tag = "2")]
        pub(super) sample_sum: Option<f64>,
        #[prost(message, repeated, tag = "3")]
        pub(super) bucket: Vec<Bucket>,
        #[prost(sint32, optional, tag = "5")]
        pub(super) schema: Option<i32>,
        #[prost(double, optional, tag = "6")]
        pub(super) zero_threshold: Option<f64>,
        #[prost(uint64, optional, tag = "7")]
        pub(super) zero_count: Option<u64>,
        #[prost(message, repeated, tag = "12")]
        pub(super) positive_span: Vec<BucketSpan>,
        #[prost(sint64, repeated, tag = "13")]
        pub(super) positive_delta: Vec<i64>,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub(super) struct Bucket {
        #[prost(uint64, optional, tag = "1")]
        pub(super) cumulative_count: Option<u64>,
        #[prost(double, optional, tag = "2")]
        pub(super) upper_bound: Option<f64>,
    }

    #[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
    pub(super) struct BucketSpan {
        #[prost(sint32, optional, tag = "1")]
        pub(super) offset: Option<i32>,
        #[prost(uint32, optional, tag = "2")]
        pub(super) length: Option<u32>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Metric {
        #[prost(message, repeated, tag = "1")]
        pub(super) label: Vec<LabelPair>,
        #[prost(message, optional, tag = "2")]
        pub(super) gauge: Option<Number>,
        #[prost(message, optional, tag = "3")]
        pub(super) counter: Option<Number>,
        #[prost(message, optional, tag = "5")]
        pub(super) untyped: Option<Number>,
        #[prost(message, optional, tag = "7")]
        pub(super) histogram: Option<Histogram>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct MetricFamily {
        #[prost(string, optional, tag = "1")]
        pub(super) name: Option<String>,
        #[prost(string, optional, tag = "2")]
        pub(super) help: Option<String>,
        #[prost(enumeration = "MetricType", optional, tag = "3")]
        pub(super) r#type: Option<i32>,
        #[prost(message, repeated, tag = "4")]
        pub(super) metric: Vec<Metric>,
    }
}

fn message(family: &Family) -> proto::MetricFamily {
    let kind = match family.kind {
        Kind::Counter => proto::MetricType::Counter,
        Kind::Gauge => proto::MetricType::Gauge,
        Kind::Untyped => proto::MetricType::Untyped,
        Kind::Histogram => proto::MetricType::Histogram,
    };
    let metric = family.samples.iter().map(|sample| {
        let label = sample.labels.iter().map(|(name, value)| proto::LabelPair {
            name: Some((*name).to_owned()),
            value: Some(value.clone().into_owned()),
        });
        let mut metric = proto::Metric { label: label.collect(), ..Default::default() };
        match &sample.value {
            Value::Histogram(buckets) => metric.histogram = Some(histogram(buckets)),
            Value::Number(value) => {
                let number = Some(proto::Number { value: Some(*value) });
                match family.kind {
                    Kind::Counter => metric.counter = number,
                    Kind::Gauge => metric.gauge = number,
                    Kind::Untyped | Kind::Histogram => metric.untyped = number,
                }
            }
        }
        metric
    });
    proto::MetricFamily {
        name: Some(family.name.to_owned()),
        help: Some(family.help.to_owned()),
        r#type: Some(kind.into()),
        metric: metric.collect(),
    }
}

fn histogram(buckets: &Buckets) -> proto::Histogram {
    let bucket = buckets.classic.iter().map(|(bound, count)| proto::Bucket {
        cumulative_count: Some(*count),
        upper_bound: Some(*bound),
    });
    let mut histogram = proto::Histogram {
        sample_count: Some(buckets.count),
        sample_sum: Some(buckets.sum),
        bucket: bucket.collect(),
        ..Default::default()
    };
    if let Some(native) = &buckets.native {
        histogram.schema = Some(native.schema);
        histogram.zero_threshold = Some(native.zero_threshold);
        histogram.zero_count = Some(native.zero_count);
        (histogram.positive_span, histogram.positive_delta) = spans(native);
    }
    histogram
}

/// Runs of buckets, each as its distance from the run before, and the counts as differences.
fn spans(native: &Native) -> (Vec<proto::BucketSpan>, Vec<i64>) {
    let (mut spans, mut deltas) = (Vec::<proto::BucketSpan>::new(), Vec::new());
    let (mut next, mut before) = (0, 0);
    for (index, count) in &native.buckets {
        match spans.last_mut() {
            Some(span) if *index == next => span.length = span.length.map(|length| length + 1),
            _ => spans.push(proto::BucketSpan { offset: Some(index - next), length: Some(1) }),
        }
        next = index + 1;
        let count = i64::try_from(*count).unwrap_or(i64::MAX);
        deltas.push(count - before);
        before = count;
    }
    (spans, deltas)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::Histogram;

    /// What a reader makes of spans and differences.
    fn read_back(histogram: &proto::Histogram) -> BTreeMap<i32, u64> {
        let (mut found, mut index, mut count) = (BTreeMap::new(), 0, 0);
        let mut deltas = histogram.positive_delta.iter();
        for span in &histogram.positive_span {
            index += span.offset.unwrap();
            for _ in 0..span.length.unwrap() {
                count += deltas.next().unwrap();
                found.insert(index, count as u64);
                index += 1;
            }
        }
        assert_eq!(deltas.next(), None);
        found
    }

    #[test]
    fn families_come_back_one_after_the_other() {
        let mut times = Family::new(Kind::Histogram, "t_seconds", "T.");
        let mut histogram = Histogram::default();
        [1_000_000, 2_000_000, 2_000_001].iter().for_each(|ns| histogram.observe_ns(*ns));
        times.push([("process", "p")], Value::Histogram(histogram.buckets()));
        let families = [
            Family::single(Kind::Counter, "a_total", "A.", 3.0),
            Family::new(Kind::Gauge, "nothing", "Nothing."),
            times,
            Family::single(Kind::Untyped, "u", "U.", 4.5),
        ];
        let bytes = encode(&families);
        let mut rest = bytes.as_slice();
        let mut read = Vec::new();
        while !rest.is_empty() {
            read.push(proto::MetricFamily::decode_length_delimited(&mut rest).unwrap());
        }
        let names: Vec<_> = read.iter().filter_map(|family| family.name.as_deref()).collect();
        assert_eq!(names, ["a_total", "t_seconds", "u"]);
        assert_eq!(read[0].metric[0].counter.unwrap().value, Some(3.0));
        assert_eq!(read[2].metric[0].untyped.unwrap().value, Some(4.5));
        let histogram = read[1].metric[0].histogram.as_ref().unwrap();
        assert_eq!((histogram.sample_count, histogram.sample_sum), (Some(3), Some(0.005_000_001)));
        assert_eq!(histogram.bucket.last().unwrap().cumulative_count, Some(3));
        assert_eq!(read_back(histogram).values().sum::<u64>(), 3);
    }

    proptest! {
        #[test]
        fn native_buckets_come_back(
            buckets in proptest::collection::btree_map(-300..300i32, 1u64..1 << 40, 0..40),
        ) {
            let native = Native { schema: 3, buckets: buckets.clone(), ..Native::default() };
            let (positive_span, positive_delta) = spans(&native);
            let histogram = proto::Histogram { positive_span, positive_delta, ..Default::default() };
            prop_assert_eq!(read_back(&histogram), buckets);
        }
    }
}
