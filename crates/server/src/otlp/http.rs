//! OTLP over HTTP: `POST /v1/traces`, protobuf or JSON, plain or gzip.

use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use prost::Message;
use serde_json::json;
use tonic::Code;
use tower_http::decompression::RequestDecompressionLayer;
use tower_http::timeout::TimeoutLayer;

use super::{MAX_REQUEST_BYTES, json};
use crate::spans::intake::Intake;
use crate::spans::queue::Refused;

/// A sender that has not delivered its request by then is cut off.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The HTTP receiver.
pub(crate) fn router(intake: Intake) -> Router {
    Router::new()
        .route("/v1/traces", post(export))
        .layer(RequestDecompressionLayer::new())
        .layer(TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, REQUEST_TIMEOUT))
        .with_state(intake)
}

/// An answer comes in the encoding of the request.
#[derive(Clone, Copy)]
enum Encoding {
    Protobuf,
    Json,
}

impl Encoding {
    fn of(headers: &HeaderMap) -> Option<Self> {
        let value = headers.get(CONTENT_TYPE)?.to_str().ok()?;
        match value.split(';').next()?.trim().to_ascii_lowercase().as_str() {
            "application/x-protobuf" => Some(Encoding::Protobuf),
            "application/json" => Some(Encoding::Json),
            _ => None,
        }
    }

    fn decode(self, body: &Bytes) -> Result<ExportTraceServiceRequest, String> {
        match self {
            Encoding::Protobuf => {
                ExportTraceServiceRequest::decode(body.clone()).map_err(|error| error.to_string())
            }
            Encoding::Json => json::decode(body).map_err(|error| error.to_string()),
        }
    }

    fn respond(self, status: StatusCode, protobuf: Vec<u8>, json: &serde_json::Value) -> Response {
        match self {
            Encoding::Protobuf => {
                (status, [(CONTENT_TYPE, "application/x-protobuf")], protobuf).into_response()
            }
            Encoding::Json => {
                (status, [(CONTENT_TYPE, "application/json")], json.to_string()).into_response()
            }
        }
    }

    fn success(self, response: &ExportTraceServiceResponse) -> Response {
        // int64 is a string in proto3 JSON.
        let json = response.partial_success.as_ref().map_or(json!({}), |partial| {
            json!({"partialSuccess": {
                "rejectedSpans": partial.rejected_spans.to_string(),
                "errorMessage": partial.error_message,
            }})
        });
        self.respond(StatusCode::OK, response.encode_to_vec(), &json)
    }

    /// A `google.rpc.Status`.
    fn failure(self, http: StatusCode, code: Code, message: String) -> Response {
        let json = json!({"code": code as i32, "message": message});
        let status = tonic_types::Status { code: code as i32, message, details: Vec::new() };
        self.respond(http, status.encode_to_vec(), &json)
    }
}

async fn export(State(intake): State<Intake>, headers: HeaderMap, body: Body) -> Response {
    let Some(encoding) = Encoding::of(&headers) else {
        return Encoding::Json.failure(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Code::InvalidArgument,
            "Content-Type must be application/x-protobuf or application/json".to_owned(),
        );
    };
    let body = match axum::body::to_bytes(body, MAX_REQUEST_BYTES).await {
        Ok(body) => body,
        Err(error) => return unreadable(&intake, encoding, &error),
    };
    let request = match encoding.decode(&body) {
        Ok(request) => request,
        Err(error) => return malformed(&intake, encoding, &error),
    };
    match intake.accept(&request, |counters| &counters.received_http) {
        Ok(response) => encoding.success(&response),
        Err(refused) => unavailable(encoding, &refused),
    }
}

fn unreadable(intake: &Intake, encoding: Encoding, error: &axum::Error) -> Response {
    let too_large = std::iter::successors(Some(error as &dyn std::error::Error), |e| e.source())
        .any(|error| error.is::<http_body_util::LengthLimitError>());
    if !too_large {
        return malformed(intake, encoding, &error.to_string());
    }
    intake.counters.malformed_requests.add(1);
    encoding.failure(
        StatusCode::PAYLOAD_TOO_LARGE,
        Code::InvalidArgument,
        format!(
            "the request is larger than {} MiB; send smaller batches \
             (OTEL_BSP_MAX_EXPORT_BATCH_SIZE)",
            MAX_REQUEST_BYTES >> 20
        ),
    )
}

fn malformed(intake: &Intake, encoding: Encoding, error: &str) -> Response {
    intake.counters.malformed_requests.add(1);
    encoding.failure(
        StatusCode::BAD_REQUEST,
        Code::InvalidArgument,
        format!("malformed or truncated OTLP: {error}"),
    )
}

fn unavailable(encoding: Encoding, refused: &Refused) -> Response {
    let code = match refused {
        Refused::Full { .. } => Code::ResourceExhausted,
        Refused::StoreDown { .. } | Refused::ShuttingDown { .. } => Code::Unavailable,
    };
    let mut response = encoding.failure(StatusCode::SERVICE_UNAVAILABLE, code, refused.to_string());
    let seconds = refused.retry_after().as_secs().max(1);
    response.headers_mut().insert(RETRY_AFTER, seconds.into());
    response
}
