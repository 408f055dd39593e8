//! Metrics for Prometheus: what is counted, and the formats it is told in.
//!
//! ```text
//!  Histogram, numbers ──▶ Vec<Family> ──▶ text 0.0.4          (classic histograms)
//!                         at a scrape └──▶ protobuf, delimited (classic and native histograms)
//! ```

mod family;
mod histogram;
mod negotiate;
mod protobuf;
mod serve;
mod text;

pub use family::{Family, Kind, Sample, Value};
pub use histogram::{Buckets, Histogram, Native, SCHEMA};
pub use negotiate::{Format, negotiate};
pub use protobuf::encode as encode_protobuf;
pub use serve::{Source, response, serve};
pub use text::encode as encode_text;
