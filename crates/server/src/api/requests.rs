//! `/api/requests`: rows and explanations, read from the store.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::json;
use underspan_evidence::{
    Error, Filter, evidence_for, recent_requests, request_by_id, requests_of_trace,
};
use underspan_explain::{Explanation, explain};
use underspan_model::Request;
use underspan_store::Store;

/// Rows in one answer at most.
const MAX_LIMIT: u64 = 1000;

/// What needs the store.
pub(crate) fn router(store: Store) -> Router {
    Router::new()
        .route("/api/requests", get(list))
        .route("/api/requests/{id}/explain", get(explanation))
        .with_state(store)
}

/// Query parameters of `/api/requests`, all optional. Times in nanoseconds, as in the table.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Parameters {
    since: Option<u64>,
    until: Option<u64>,
    limit: Option<u64>,
    pid: Option<u32>,
    path: Option<String>,
    min_duration_ns: u64,
}

impl Parameters {
    fn filter(self) -> Filter {
        let default = Filter::default();
        Filter {
            since: self.since.unwrap_or(default.since),
            until: self.until.unwrap_or(default.until).min(default.until),
            limit: self.limit.unwrap_or(default.limit).min(MAX_LIMIT),
            pid: self.pid,
            path: self.path,
            min_duration_ns: self.min_duration_ns,
        }
    }
}

/// Requests, slowest first.
async fn list(
    State(store): State<Store>,
    parameters: Result<Query<Parameters>, QueryRejection>,
) -> Result<Json<Vec<Request>>, Failure> {
    let Query(parameters) = parameters.map_err(|error| Failure::BadQuery(error.body_text()))?;
    Ok(Json(recent_requests(&store, &parameters.filter()).await?))
}

/// Where one request's time went. The id is a request's, or a trace's: then its slowest request.
async fn explanation(
    State(store): State<Store>,
    Path(id): Path<String>,
) -> Result<Json<Explanation>, Failure> {
    let request = match request_by_id(&store, &id).await? {
        Some(request) => Some(request),
        None => requests_of_trace(&store, &id).await?.into_iter().next(),
    };
    let request = request.ok_or_else(|| Failure::UnknownId(id.clone()))?;
    let evidence = evidence_for(&store, request).await?;
    explain(&evidence).map(Json).ok_or(Failure::UnknownId(id))
}

/// An answer other than 200: `{"error": …}`.
enum Failure {
    BadQuery(String),
    UnknownId(String),
    Evidence(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Evidence(error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let (status, error) = match self {
            Failure::BadQuery(error) => (StatusCode::BAD_REQUEST, error),
            Failure::UnknownId(id) => (
                StatusCode::NOT_FOUND,
                format!("no request or trace has the id '{id}'; /api/requests lists what there is"),
            ),
            Failure::Evidence(Error::Store(error)) if error.is_retryable() => {
                (StatusCode::SERVICE_UNAVAILABLE, error.to_string())
            }
            Failure::Evidence(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        };
        (status, Json(json!({"error": error}))).into_response()
    }
}
