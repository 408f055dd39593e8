//! The host's counters, as the throttle tracker read them last.

use std::borrow::Cow;

use underspan_metrics::{Family, Kind, Sample, Value};
use underspan_trackers::throttle::{self, METRICS, Round, Source, Status, Unit};

/// So many things (interfaces, cgroups, CPUs) have series, for each counter.
const MOST: usize = 512;

#[derive(Debug, Default)]
pub(super) struct Host(Round);

impl Host {
    pub(super) fn read(&mut self, round: &Round) {
        self.0 = round.clone();
    }

    pub(super) fn families(&self) -> Vec<Family> {
        let mut families: Vec<_> = METRICS.iter().map(|metric| self.family(metric)).collect();
        families.push(self.sources());
        families
    }

    fn family(&self, metric: &'static throttle::Metric) -> Family {
        let kind = match metric.kind {
            throttle::Kind::Counter => Kind::Counter,
            throttle::Kind::Untyped => Kind::Untyped,
            throttle::Kind::Gauge => Kind::Gauge,
        };
        let mut family = Family::new(kind, metric.name, metric.help);
        let readings = self.0.readings.iter().filter(|reading| reading.metric == metric);
        for reading in readings.take(MOST) {
            let mut labels = Vec::new();
            if !metric.label.is_empty() {
                labels.push((metric.label, Cow::Owned(reading.subject.name.to_string())));
            }
            labels.extend(metric.constant.map(|(name, value)| (name, Cow::Borrowed(value))));
            if reading.subject.netns != 0 {
                labels.push(("netns", Cow::Owned(reading.subject.netns.to_string())));
            }
            let value = match metric.unit {
                Unit::Count => reading.value as f64,
                Unit::Nanoseconds => reading.value as f64 / 1e9,
            };
            family.samples.push(Sample { labels, value: Value::Number(value) });
        }
        family
    }

    /// Which counters there are at all: what is missing is not zero.
    fn sources(&self) -> Family {
        let mut family = Family::new(
            Kind::Gauge,
            "underspan_throttle_source_up",
            "1 if this source of counters was read; 0 if it does not exist here, or refused.",
        );
        if self.0.at == 0 {
            return family;
        }
        for source in Source::ALL {
            let read = self.0.readings.iter().any(|reading| reading.metric.source == source);
            let refused = |absent: &throttle::Absent| {
                absent.source == source && absent.status == Status::Refused
            };
            let status = match (read, self.0.absent.iter().any(refused)) {
                (true, _) => Status::Read,
                (false, true) => Status::Refused,
                (false, false) => Status::Unsupported,
            };
            let labels = [("source", source.name()), ("status", status.name())];
            family.push(labels, Value::Number(f64::from(u8::from(read))));
        }
        family
    }
}
