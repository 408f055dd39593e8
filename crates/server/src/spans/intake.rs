//! What both receivers do with a decoded request.

use std::sync::Arc;
use std::time::SystemTime;

use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};

use super::counters::{Counter, Counters};
use super::queue::{Queue, Refused};
use super::row::{self, Rows, Window};

/// The way in for spans. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Intake {
    pub(crate) queue: Arc<Queue>,
    pub(crate) counters: Arc<Counters>,
    /// How long the store keeps spans.
    pub(crate) ttl_days: u32,
}

impl Intake {
    /// Queues a request's spans. The response says which were rejected for good; an error says that
    /// none was taken and that the sender should come back.
    pub(crate) fn accept(
        &self,
        request: &ExportTraceServiceRequest,
        received: impl Fn(&Counters) -> &Counter,
    ) -> Result<ExportTraceServiceResponse, Refused> {
        let counters = &*self.counters;
        received(counters).add(row::count(request));
        let window = Window::around(SystemTime::now(), self.ttl_days);
        let Rows { batch, rejected } = row::rows(request, window, row::MAX_BYTES);
        let spans = batch.rows;
        if let Err(refused) = self.queue.push(batch) {
            let counter = match refused {
                Refused::Full { .. } => &counters.refused_queue_full,
                Refused::StoreDown { .. } => &counters.refused_store_down,
                Refused::ShuttingDown { .. } => &counters.refused_shutdown,
            };
            counter.add(spans + rejected.total());
            return Err(refused);
        }
        counters.rejected_bad_id.add(rejected.bad_id);
        counters.rejected_bad_time.add(rejected.bad_time);
        counters.rejected_too_large.add(rejected.too_large);
        let partial_success = (rejected.total() > 0).then(|| ExportTracePartialSuccess {
            rejected_spans: i64::try_from(rejected.total()).unwrap_or(i64::MAX),
            error_message: rejected.message(),
        });
        Ok(ExportTraceServiceResponse { partial_success })
    }
}
