//! OTLP receivers: gRPC and HTTP. Both turn what they get into [`Intake`](crate::spans::intake)
//! requests and differ only in how they answer.

pub(crate) mod grpc;
pub(crate) mod http;
pub(crate) mod json;

/// The largest request, decompressed. Larger ones are refused.
pub(crate) const MAX_REQUEST_BYTES: usize = 16 << 20;
