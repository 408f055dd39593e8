//! The HTTP API: JSON with the field names of the tables, and `/metrics`.

mod metrics;
pub(crate) mod requests;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use serde_json::json;

use crate::spans::intake::Intake;

/// What needs no store: health and metrics.
pub(crate) fn router(intake: Intake) -> Router {
    Router::new().route("/health", get(health)).route("/metrics", get(metrics)).with_state(intake)
}

/// 200 while spans are taken, 503 with the cause while they are not.
async fn health(State(intake): State<Intake>) -> impl IntoResponse {
    match intake.queue.outage() {
        None => (StatusCode::OK, Json(json!({"status": "ok"}))),
        Some(cause) => {
            (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"status": "store_down", "cause": cause})))
        }
    }
}

async fn metrics(State(intake): State<Intake>, headers: HeaderMap) -> impl IntoResponse {
    let outage = intake.queue.outage().is_some();
    let families = metrics::families(&intake.counters, intake.queue.queued(), outage);
    underspan_metrics::response(&headers, &families)
}
