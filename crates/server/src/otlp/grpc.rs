//! OTLP over gRPC.

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use tonic::codec::CompressionEncoding;
use tonic::{Code, Request, Response, Status};
use tonic_types::{ErrorDetails, StatusExt};

use super::MAX_REQUEST_BYTES;
use crate::spans::intake::Intake;
use crate::spans::queue::Refused;

struct Receiver {
    intake: Intake,
}

/// The gRPC service.
pub(crate) fn service(intake: Intake) -> tonic::service::Routes {
    let service = TraceServiceServer::new(Receiver { intake })
        .accept_compressed(CompressionEncoding::Gzip)
        .max_decoding_message_size(MAX_REQUEST_BYTES);
    tonic::service::Routes::new(service)
}

#[tonic::async_trait]
impl TraceService for Receiver {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let answer = self.intake.accept(request.get_ref(), |counters| &counters.received_grpc);
        answer.map(Response::new).map_err(|refused| status(&refused))
    }
}

/// Exporters try again only if `RetryInfo` is there.
fn status(refused: &Refused) -> Status {
    let code = match refused {
        Refused::Full { .. } => Code::ResourceExhausted,
        Refused::StoreDown { .. } | Refused::ShuttingDown { .. } => Code::Unavailable,
    };
    let details = ErrorDetails::with_retry_info(Some(refused.retry_after()));
    Status::with_error_details(code, refused.to_string(), details)
}
