use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tempfile::TempDir;
use underspan_store::Batch;
use underspan_store::embedded::Holds as _;

use super::*;
use crate::losses::Reason;
use crate::spool;

/// A store in memory that can be switched off, made slow, and that refuses one table.
#[derive(Default)]
struct Memory {
    down: AtomicBool,
    delay_ms: AtomicU64,
    calls: AtomicU64,
    rows: Mutex<Vec<(String, u64)>>,
}

impl Insert for Memory {
    async fn insert(&self, batch: &Batch) -> Result<(), InsertError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(self.delay_ms.load(Ordering::Relaxed))).await;
        if self.down.load(Ordering::Relaxed) {
            return Err(InsertError::Retryable("connection refused".into()));
        }
        if batch.table == "unknown" {
            return Err(InsertError::Permanent("no such table".into()));
        }
        let ids = batch.bytes.chunks(8).map(|id| u64::from_le_bytes(id.try_into().unwrap()));
        self.rows.lock().unwrap().extend(ids.map(|id| (batch.table.clone(), id)));
        Ok(())
    }
}

impl Memory {
    fn ids(&self, table: &str) -> Vec<u64> {
        let rows = self.rows.lock().unwrap();
        let mut ids: Vec<_> = rows.iter().filter(|row| row.0 == table).map(|row| row.1).collect();
        ids.sort_unstable();
        ids
    }
}

fn quick() -> Options {
    Options {
        flush_every: Duration::from_millis(5),
        backoff_min: Duration::from_millis(5),
        backoff_max: Duration::from_millis(20),
        ..Options::default()
    }
}

fn start(store: &Arc<Memory>, dir: &TempDir, options: Options) -> (Sink, Collector) {
    let spool = Spool::open(dir.path(), spool::Options::default()).unwrap();
    Sink::start(Arc::clone(store), spool, options)
}

fn write(collector: &mut Collector, table: &str, id: u64) {
    collector.batch(table, &["id"]).row().u64(id);
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..1000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("not within 5 s: {what}");
}

#[tokio::test]
async fn rows_arrive_once_they_are_old_enough_or_many_enough() {
    let (store, dir) = (Arc::new(Memory::default()), tempfile::tempdir().unwrap());
    let options = Options { batch_rows: 100, flush_every: Duration::from_millis(30), ..quick() };
    let (sink, mut collector) = start(&store, &dir, options);
    for id in 0..250 {
        write(&mut collector, "waits", id);
    }
    until("full batches", || store.ids("waits").len() == 200).await;
    collector.flush_due();
    assert_eq!(store.ids("waits").len(), 200, "the third batch is neither full nor old");
    tokio::time::sleep(options.flush_every).await;
    collector.flush_due();
    until("the old batch", || store.ids("waits").len() == 250).await;

    drop(collector);
    let stats = sink.shutdown(Duration::from_secs(5), std::future::pending()).await;
    assert_eq!(stats.inserted["waits"], 250);
    assert_eq!((stats.spooled, stats.losses.total(), stats.health), (0, 0, Health::Up));
}

#[tokio::test]
async fn an_outage_goes_through_the_spool_and_loses_nothing() {
    let (store, dir) = (Arc::new(Memory::default()), tempfile::tempdir().unwrap());
    let (sink, mut collector) = start(&store, &dir, quick());
    store.down.store(true, Ordering::Relaxed);
    for id in 0..50 {
        write(&mut collector, "waits", id);
        write(&mut collector, "requests", id);
        collector.flush();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    until("everything spooled", || sink.stats().spool_rows == 100).await;
    assert_eq!(sink.stats().health, Health::Down { error: "connection refused".into() });
    assert!(sink.stats().spool_bytes > 0);
    let probes = store.calls.load(Ordering::Relaxed);
    assert!(probes < 40, "{probes} inserts in some 100 ms of outage: probing does not back off");

    store.down.store(false, Ordering::Relaxed);
    write(&mut collector, "waits", 50);
    collector.flush();
    until("drained", || sink.stats().inserted_total() == 101).await;
    until("the spool empty", || sink.stats().spool_rows == 0).await;
    drop(collector);
    let stats = sink.shutdown(Duration::from_secs(5), std::future::pending()).await;
    assert_eq!(store.ids("waits"), (0..=50).collect::<Vec<_>>());
    assert_eq!(store.ids("requests"), (0..50).collect::<Vec<_>>());
    assert_eq!((stats.losses.total(), stats.spool_bytes, stats.health), (0, 0, Health::Up));
}

#[tokio::test]
async fn what_one_run_spools_the_next_one_inserts() {
    let (store, dir) = (Arc::new(Memory::default()), tempfile::tempdir().unwrap());
    store.down.store(true, Ordering::Relaxed);
    let (sink, mut collector) = start(&store, &dir, quick());
    for id in 0..10 {
        write(&mut collector, "waits", id);
    }
    drop(collector);
    let stats = sink.shutdown(Duration::from_secs(5), std::future::pending()).await;
    assert_eq!((stats.spooled, stats.spool_rows, stats.inserted_total()), (10, 10, 0));

    store.down.store(false, Ordering::Relaxed);
    let (sink, _collector) = start(&store, &dir, quick());
    until("the spool of the first run", || store.ids("waits").len() == 10).await;
    until("counted", || sink.stats().drained == 10).await;
}

#[tokio::test]
async fn a_refused_batch_is_kept_aside_and_blocks_nothing() {
    let (store, dir) = (Arc::new(Memory::default()), tempfile::tempdir().unwrap());
    let (sink, mut collector) = start(&store, &dir, quick());
    // The second time around the refused batch comes from the spool.
    for (outage, expected) in [(false, 3), (true, 6)] {
        store.down.store(outage, Ordering::Relaxed);
        for id in 0..3 {
            write(&mut collector, "unknown", id);
            write(&mut collector, "waits", id);
        }
        collector.flush();
        tokio::time::sleep(Duration::from_millis(30)).await;
        store.down.store(false, Ordering::Relaxed);
        until("the good table", || store.ids("waits").len() == expected).await;
        until("the bad table", || {
            sink.stats().losses.by_reason(Reason::Rejected) == expected as u64
        })
        .await;
    }
    let kept = std::fs::read_dir(dir.path().join("rejected")).unwrap();
    let notes: Vec<_> =
        kept.map(|file| file.unwrap().path()).filter(|p| p.extension().unwrap() == "txt").collect();
    assert_eq!(notes.len(), 2);
    assert!(std::fs::read_to_string(&notes[0]).unwrap().contains("no such table"));
    let losses = sink.take_losses();
    assert_eq!(losses.by_reason(Reason::Rejected), 6);
    assert!(sink.take_losses().is_empty(), "a loss is reported once");
    assert_eq!(sink.stats().losses.total(), 6);
}

#[tokio::test]
async fn shutdown_keeps_its_deadline_and_spools_what_a_slow_store_did_not_take() {
    let (store, dir) = (Arc::new(Memory::default()), tempfile::tempdir().unwrap());
    store.delay_ms.store(60_000, Ordering::Relaxed);
    let options = Options { insert_timeout: Duration::from_secs(120), ..quick() };
    let (sink, mut collector) = start(&store, &dir, options);
    for id in 0..5 {
        write(&mut collector, "waits", id);
        collector.flush();
    }
    drop(collector);
    let before = Instant::now();
    let stats = sink.shutdown(Duration::from_millis(50), std::future::pending()).await;
    assert!(before.elapsed() < Duration::from_secs(2));
    assert_eq!((stats.spool_rows, stats.losses.total()), (5, 0));
}

#[tokio::test]
async fn a_hurry_cuts_the_shutdown_short_and_spools_the_rest() {
    let (store, dir) = (Arc::new(Memory::default()), tempfile::tempdir().unwrap());
    store.delay_ms.store(60_000, Ordering::Relaxed);
    let options = Options { insert_timeout: Duration::from_secs(120), ..quick() };
    let (sink, mut collector) = start(&store, &dir, options);
    for id in 0..5 {
        write(&mut collector, "waits", id);
        collector.flush();
    }
    drop(collector);
    let before = Instant::now();
    let hurry = tokio::time::sleep(Duration::from_millis(50));
    let stats = sink.shutdown(Duration::from_secs(60), hurry).await;
    assert!(before.elapsed() < Duration::from_secs(2));
    assert_eq!((stats.spool_rows, stats.losses.total()), (5, 0));
}

#[tokio::test]
async fn a_store_that_hangs_counts_as_away() {
    let (store, dir) = (Arc::new(Memory::default()), tempfile::tempdir().unwrap());
    store.delay_ms.store(60_000, Ordering::Relaxed);
    let options = Options { insert_timeout: Duration::from_millis(20), ..quick() };
    let (sink, mut collector) = start(&store, &dir, options);
    write(&mut collector, "waits", 1);
    collector.flush();
    until("spooled", || sink.stats().spool_rows == 1).await;
    assert!(matches!(sink.stats().health, Health::Down { error } if error.contains("no answer")));
    store.delay_ms.store(0, Ordering::Relaxed);
    until("inserted", || store.ids("waits") == [1]).await;
}

#[tokio::test]
async fn a_slow_store_gets_fewer_and_larger_inserts() {
    let (store, dir) = (Arc::new(Memory::default()), tempfile::tempdir().unwrap());
    store.delay_ms.store(300, Ordering::Relaxed);
    let (sink, mut collector) = start(&store, &dir, quick());
    for id in 0..100 {
        write(&mut collector, if id % 2 == 0 { "waits" } else { "requests" }, id);
        collector.flush();
    }
    until("all rows arrive", || sink.stats().inserted_total() == 100).await;
    // One each for what came first; what came while that was under way went together.
    let calls = store.calls.load(Ordering::Relaxed);
    assert!((2..=4).contains(&calls), "{calls} inserts");
    assert_eq!(store.ids("waits"), (0..100).step_by(2).collect::<Vec<_>>());
    assert_eq!(store.ids("requests"), (1..100).step_by(2).collect::<Vec<_>>());
    drop(collector);
    sink.shutdown(Duration::from_secs(5), std::future::pending()).await;
}

#[tokio::test(start_paused = true)]
async fn how_long_rows_wait_for_a_slow_store_is_known() {
    let (store, dir) = (Arc::new(Memory::default()), tempfile::tempdir().unwrap());
    store.delay_ms.store(20_000, Ordering::Relaxed);
    let (sink, mut collector) = start(&store, &dir, quick());
    for id in 0..13 {
        write(&mut collector, "waits", id);
        collector.flush();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    // The first has been under way for all that time; the last came a second ago.
    assert_eq!(sink.stats().waits.as_secs(), 12);
    store.delay_ms.store(0, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!((sink.stats().inserted_total(), sink.stats().waits), (13, Duration::ZERO));
}

#[tokio::test]
async fn live_rows_are_not_starved_by_a_long_spool() {
    let (store, dir) = (Arc::new(Memory::default()), tempfile::tempdir().unwrap());
    store.down.store(true, Ordering::Relaxed);
    let options = Options { drain_bytes_per_s: 20_000, ..quick() };
    let (sink, mut collector) = start(&store, &dir, options);
    for id in 0..100 {
        (0..100).for_each(|_| write(&mut collector, "old", id));
        collector.flush();
        tokio::task::yield_now().await;
    }
    until("spooled", || sink.stats().spool_rows == 10_000).await;
    store.down.store(false, Ordering::Relaxed);
    until("back", || sink.stats().health == Health::Up).await;
    write(&mut collector, "live", 1);
    collector.flush();
    until("the live row", || store.ids("live") == [1]).await;
    assert!(sink.stats().spool_rows > 5_000, "800 bytes take 40 ms at this pace");
}

#[tokio::test]
async fn when_nobody_takes_rows_memory_stays_bounded_and_the_rest_is_counted() {
    let (store, dir) = (Arc::new(Memory::default()), tempfile::tempdir().unwrap());
    let options = Options { queue_bytes: 8_000, batch_rows: 100, ..quick() };
    let (sink, mut collector) = start(&store, &dir, options);
    // This test's runtime has one thread, and it does not yield: the task cannot run.
    for id in 0..10_000 {
        write(&mut collector, "waits", id);
    }
    let lost = sink.stats().losses.by_reason(Reason::QueueFull);
    assert!(lost >= 8_000, "{lost}");
    until("the queue drained", || store.ids("waits").len() == 1000).await;
    drop(collector);
    let stats = sink.shutdown(Duration::from_secs(5), std::future::pending()).await;
    assert_eq!(stats.inserted_total() + stats.losses.total(), 10_000);
}

#[tokio::test]
async fn at_the_end_rows_wait_for_room_in_the_queue() {
    let (store, dir) = (Arc::new(Memory::default()), tempfile::tempdir().unwrap());
    store.delay_ms.store(5, Ordering::Relaxed);
    let options = Options { queue_bytes: 8_000, ..quick() };
    let (sink, mut collector) = start(&store, &dir, options);
    // As the last drain of a full ring leaves them: each table's rows nearly fill the queue.
    let tables = ["waits", "requests", "gil_wait", "thread_states"];
    for table in tables {
        (0..900).for_each(|id| write(&mut collector, table, id));
    }
    let end = move || collector.flush_and_wait(Duration::from_secs(5));
    tokio::task::spawn_blocking(end).await.unwrap();
    let stats = sink.shutdown(Duration::from_secs(5), std::future::pending()).await;
    assert_eq!((stats.inserted_total(), stats.losses.total()), (3_600, 0));
}

/// Never old enough.
fn patient() -> Options {
    let age = Duration::from_secs(3600);
    Options { flush_every: age, flush_every_if_asked: age, ..quick() }
}

#[tokio::test]
async fn a_flush_returns_when_the_store_has_what_was_collected() {
    let (store, dir) = (Arc::new(Memory::default()), tempfile::tempdir().unwrap());
    store.delay_ms.store(30, Ordering::Relaxed);
    let (sink, mut collector) = start(&store, &dir, patient());
    for table in ["waits", "requests", "off_cpu"] {
        write(&mut collector, table, 1);
    }
    collector.flush_due();
    let mut flusher = sink.flusher();
    let flush = tokio::spawn(async move { flusher.flush().await });
    tokio::time::sleep(Duration::from_millis(60)).await;
    assert!(store.rows.lock().unwrap().is_empty() && !flush.is_finished(), "nobody collects yet");
    while !flush.is_finished() {
        assert!(store.rows.lock().unwrap().len() <= 3);
        collector.flush_due();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(store.rows.lock().unwrap().len(), 3, "all of them, before it returned");

    // Several at once, and with nothing to write.
    let ask = || {
        let mut flusher = sink.flusher();
        tokio::spawn(async move { flusher.flush().await })
    };
    let both = [ask(), ask()];
    until("they asked", || sink.flusher.asked_for() == 3).await;
    collector.flush_due();
    collector.flush_due();
    for flush in both {
        flush.await.unwrap();
    }
    write(&mut collector, "waits", 2);
    collector.flush_due();
    assert_eq!(store.ids("waits"), [1], "a question is answered once");
}

#[tokio::test]
async fn a_flush_does_not_wait_for_a_store_that_is_away() {
    let (store, dir) = (Arc::new(Memory::default()), tempfile::tempdir().unwrap());
    store.down.store(true, Ordering::Relaxed);
    let (sink, mut collector) = start(&store, &dir, patient());
    for id in 0..10 {
        write(&mut collector, "waits", id);
    }
    let mut flusher = sink.flusher();
    let flush = tokio::spawn(async move { flusher.flush().await });
    until("asked", || sink.flusher.asked_for() == 1).await;
    collector.flush_due();
    assert_eq!(
        sink.stats().spool_rows,
        0,
        "what happened before the question may not be collected yet"
    );
    collector.flush_due();
    tokio::time::timeout(Duration::from_secs(5), flush).await.unwrap().unwrap();
    assert_eq!(sink.stats().spool_rows, 10);

    drop(collector);
    let mut flusher = sink.flusher();
    store.down.store(false, Ordering::Relaxed);
    sink.shutdown(Duration::from_secs(5), std::future::pending()).await;
    // Nobody is left who would write.
    tokio::time::timeout(Duration::from_secs(5), flusher.flush()).await.unwrap();
}

#[tokio::test]
async fn rows_wait_longer_while_readers_have_them_asked_for() {
    let (store, dir) = (Arc::new(Memory::default()), tempfile::tempdir().unwrap());
    let options = Options { flush_every: Duration::ZERO, ..patient() };
    let (sink, mut collector) = start(&store, &dir, options);
    sink.flusher().will_be_asked(true);
    write(&mut collector, "waits", 1);
    collector.flush_due();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(store.ids("waits").is_empty());
    sink.flusher().will_be_asked(false);
    collector.flush_due();
    until("as before", || store.ids("waits") == [1]).await;
}
