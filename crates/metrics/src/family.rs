//! A metric family, as it is at one moment.

use std::borrow::Cow;

use crate::histogram::Buckets;

/// What a family's values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// They only grow, until the process ends.
    Counter,
    /// They go up and down.
    Gauge,
    /// Not said.
    Untyped,
    /// Distributions.
    Histogram,
}

/// Values of one name, told apart by labels.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    /// Its name, with its unit; a counter's ends in `_total`.
    pub name: &'static str,
    /// What it is, in a sentence.
    pub help: &'static str,
    /// What its values are.
    pub kind: Kind,
    /// The values.
    pub samples: Vec<Sample>,
}

/// A value and its labels.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Names and values of labels.
    pub labels: Vec<(&'static str, Cow<'static, str>)>,
    /// The value.
    pub value: Value,
}

/// A number or a distribution.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Of a counter, a gauge or an untyped metric.
    Number(f64),
    /// Of a histogram.
    Histogram(Buckets),
}

impl Family {
    /// A family without values yet.
    pub fn new(kind: Kind, name: &'static str, help: &'static str) -> Self {
        Family { name, help, kind, samples: Vec::new() }
    }

    /// A family of one number.
    pub fn single(kind: Kind, name: &'static str, help: &'static str, value: f64) -> Self {
        Self::new(kind, name, help).with([], value)
    }

    /// The same with one value more.
    #[must_use]
    pub fn with<const N: usize>(mut self, labels: [(&'static str, &str); N], value: f64) -> Self {
        self.push(labels, Value::Number(value));
        self
    }

    /// Adds a value.
    pub fn push<const N: usize>(&mut self, labels: [(&'static str, &str); N], value: Value) {
        let labels = labels.map(|(name, value)| (name, Cow::Owned(value.to_owned())));
        self.samples.push(Sample { labels: labels.into(), value });
    }
}
