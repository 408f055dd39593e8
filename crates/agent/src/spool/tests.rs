use std::collections::VecDeque;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

const MAX_BYTES: u64 = 16 << 10;

fn options() -> Options {
    Options { max_bytes: MAX_BYTES, max_age: None }
}

fn open(dir: &TempDir) -> Spool {
    Spool::open(dir.path(), options()).unwrap()
}

/// A batch that can be told from every other by its first bytes.
fn batch(id: u64, size: usize) -> Batch {
    let mut batch = Batch::new(if id.is_multiple_of(2) { "even" } else { "odd" }, &["id", "data"]);
    batch.row().u64(id).str(&"x".repeat(size));
    batch.rows = 1 + id % 3;
    batch
}

fn disk_bytes(dir: &TempDir) -> u64 {
    let segments = segment::list(dir.path()).unwrap();
    segments.iter().map(|(_, path)| fs::metadata(path).unwrap().len()).sum()
}

fn drain(spool: &mut Spool) -> Vec<Batch> {
    let mut drained = Vec::new();
    while let Some(batch) = spool.take().unwrap() {
        drained.push(batch);
        spool.remove().unwrap();
    }
    drained
}

#[test]
fn batches_come_back_in_order_across_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut spool = open(&dir);
    for id in 0..10 {
        spool.append(&batch(id, 200)).unwrap();
    }
    for id in 0..4 {
        assert_eq!(spool.take().unwrap(), Some(batch(id, 200)));
        spool.remove().unwrap();
    }
    // Taken and never removed: the agent died during the insert.
    spool.take().unwrap();
    drop(spool);

    let mut spool = open(&dir);
    spool.append(&batch(10, 200)).unwrap();
    let expected: Vec<_> = (4..=10).map(|id| batch(id, 200)).collect();
    assert_eq!(drain(&mut spool), expected);
    assert!(spool.take_losses().is_empty());
    assert_eq!((spool.bytes(), spool.rows(), disk_bytes(&dir)), (0, 0, 0));
}

#[test]
fn a_second_owner_is_told_who_the_first_is() {
    let dir = tempfile::tempdir().unwrap();
    let _spool = open(&dir);
    let error = Spool::open(dir.path(), options()).unwrap_err().to_string();
    assert!(error.contains(&format!("in use by another process (pid {}", std::process::id())));
    assert!(error.contains("stop that process"), "{error}");
}

#[test]
fn a_directory_that_cannot_be_one_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let error = Spool::open(&file.join("spool"), options()).unwrap_err().to_string();
    assert!(error.contains("file/spool"), "{error}");
}

#[test]
fn the_oldest_make_room_and_are_counted_per_table() {
    let dir = tempfile::tempdir().unwrap();
    let mut spool = open(&dir);
    let all: Vec<_> = (0..100).map(|id| batch(id, 400)).collect();
    for batch in &all {
        spool.append(batch).unwrap();
        assert!(disk_bytes(&dir) <= MAX_BYTES);
    }
    let losses = spool.take_losses();
    let kept = drain(&mut spool);
    let lost = &all[..all.len() - kept.len()];
    assert_eq!(kept, &all[lost.len()..], "what is left must be the newest");
    assert!(!lost.is_empty() && kept.len() > 20);
    for table in ["even", "odd"] {
        let rows: u64 =
            lost.iter().filter(|batch| batch.table == table).map(|batch| batch.rows).sum();
        let counted: u64 = losses.iter().filter(|l| l.table == table).map(|l| l.rows).sum();
        assert_eq!(counted, rows);
    }
    assert_eq!(losses.total(), losses.by_reason(Reason::SpoolFull));
}

#[test]
fn a_batch_being_inserted_while_its_segment_makes_room_is_lost_only_if_the_insert_fails() {
    for inserted in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let mut spool = open(&dir);
        for id in 0..20 {
            spool.append(&batch(id, 800)).unwrap();
        }
        spool.take_losses();
        let taken = spool.take().unwrap().unwrap();
        let before = spool.rows();
        let mut appended = 0;
        for id in 20..60 {
            spool.append(&batch(id, 800)).unwrap();
            appended += batch(id, 800).rows;
        }
        let next = if inserted {
            spool.remove().unwrap();
            taken.rows
        } else {
            spool.put_back();
            0
        };
        assert_eq!(spool.take_losses().total() + spool.rows() + next, before + appended);
    }
}

#[test]
fn old_batches_are_counted_as_expired_instead_of_inserted() {
    let dir = tempfile::tempdir().unwrap();
    let second = Duration::from_secs(1);
    let options = Options { max_age: Some(10 * second), ..options() };
    let mut spool = Spool::open(dir.path(), options).unwrap();
    let second = second.as_nanos() as u64;
    for id in 0..20 {
        spool.append_at(&batch(id, 10), id * second).unwrap();
    }
    assert_eq!(spool.take_at(25 * second).unwrap(), Some(batch(15, 10)));
    let expired: u64 = (0..15).map(|id| batch(id, 10).rows).sum();
    assert_eq!(spool.take_losses().by_reason(Reason::Expired), expired);
}

#[test]
fn a_batch_larger_than_the_spool_is_counted_and_pushes_nothing_out() {
    let dir = tempfile::tempdir().unwrap();
    let mut spool = open(&dir);
    spool.append(&batch(0, 10)).unwrap();
    spool.append(&batch(1, MAX_BYTES as usize)).unwrap();
    assert_eq!(spool.take_losses().by_reason(Reason::TooLarge), batch(1, 0).rows);
    assert_eq!(drain(&mut spool), [batch(0, 10)]);
}

#[test]
fn a_smaller_bound_holds_from_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let mut spool = open(&dir);
    for id in 0..30 {
        spool.append(&batch(id, 400)).unwrap();
    }
    let rows = spool.rows();
    drop(spool);
    let smaller = Options { max_bytes: MAX_BYTES / 4, max_age: None };
    let mut spool = Spool::open(dir.path(), smaller).unwrap();
    assert!(spool.bytes() <= MAX_BYTES / 4);
    assert_eq!(spool.take_losses().by_reason(Reason::SpoolFull) + spool.rows(), rows);
}

#[test]
fn foreign_files_and_empty_segments_do_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("notes.txt"), "hello").unwrap();
    fs::write(dir.path().join("00000000000000000003.segment"), "").unwrap();
    fs::write(dir.path().join("00000000000000000004.segment"), "no spool at all").unwrap();
    let mut spool = open(&dir);
    assert_eq!(spool.take().unwrap(), None);
    assert_eq!(spool.take_losses().by_reason(Reason::SpoolDamaged), 1);
    assert!(dir.path().join("notes.txt").exists());
    spool.append(&batch(1, 1)).unwrap();
    assert_eq!(drain(&mut spool), [batch(1, 1)]);
}

/// Runs `test` on a thread that has a file system of `bytes` to itself, at the path it is given.
fn on_a_small_disk(bytes: u64, test: impl FnOnce(&Path) + Send + 'static) {
    use nix::mount::{MsFlags, mount};
    use nix::sched::{CloneFlags, unshare};
    let on_it = move || {
        let dir = tempfile::tempdir().unwrap();
        unshare(CloneFlags::CLONE_NEWNS).expect("this test needs root");
        let none = None::<&str>;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        let size = format!("size={bytes}");
        let tmpfs = Some("tmpfs");
        mount(tmpfs, dir.path(), tmpfs, MsFlags::empty(), Some(size.as_str())).unwrap();
        test(&dir.path().join("spool"));
        nix::mount::umount2(dir.path(), nix::mount::MntFlags::MNT_DETACH).unwrap();
    };
    std::thread::spawn(on_it).join().unwrap();
}

#[test]
fn on_a_full_disk_the_oldest_make_room_too() {
    on_a_small_disk(256 << 10, |dir| {
        let options = Options { max_bytes: 1 << 20, max_age: None };
        let mut spool = Spool::open(dir, options).unwrap();
        let all: Vec<_> = (0..500).map(|id| batch(id, 4000)).collect();
        for batch in &all {
            spool.append(batch).unwrap();
        }
        let losses = spool.take_losses();
        let kept = drain(&mut spool);
        assert_eq!(kept, &all[all.len() - kept.len()..]);
        assert!(kept.len() > 25, "only {} kept", kept.len());
        let rows = |batches: &[Batch]| batches.iter().map(|batch| batch.rows).sum::<u64>();
        assert_eq!(losses.by_reason(Reason::SpoolFull), rows(&all) - rows(&kept));
    });
}

#[test]
fn when_the_disk_takes_nothing_the_rows_are_counted_and_the_error_names_the_spool() {
    on_a_small_disk(16 << 10, |dir| {
        let mut spool = Spool::open(dir, Options::default()).unwrap();
        let error = spool.append(&batch(1, 100_000)).unwrap_err().to_string();
        assert!(error.contains("spool") && error.contains("No space left"), "{error}");
        assert_eq!(spool.take_losses().by_reason(Reason::SpoolWrite), batch(1, 0).rows);
        spool.append(&batch(2, 10)).unwrap();
        assert_eq!(drain(&mut spool), [batch(2, 10)]);
    });
}

#[derive(Clone, Debug)]
enum Step {
    Append(usize),
    /// Take the oldest; insert it or fail to.
    Drain(bool),
    /// The agent dies; that many bytes at the end of the newest segment never reached the disk.
    Crash(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0usize..3000).prop_map(Step::Append),
        3 => any::<bool>().prop_map(Step::Drain),
        1 => (0u64..200).prop_map(Step::Crash),
    ];
    proptest::collection::vec(step, 1..120)
}

/// Cuts the newest segment, as a power cut would, but nothing that was drained already.
fn cut(dir: &TempDir, bytes: u64) {
    let Some((seq, path)) = segment::list(dir.path()).unwrap().pop() else { return };
    let cursor = Cursor::open(dir.path()).unwrap();
    let floor = if cursor.seq == seq { cursor.offset } else { 8 };
    let file = File::options().write(true).open(path).unwrap();
    let size = file.metadata().unwrap().len();
    file.set_len(size.saturating_sub(bytes).max(floor)).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever happens: the disk stays within the bound, order holds, and every batch is drained,
    /// still there, or counted.
    #[test]
    fn every_batch_is_drained_kept_or_counted(steps in steps()) {
        let dir = tempfile::tempdir().unwrap();
        let mut spool = open(&dir);
        // What the spool should hold; the front may have made room, the back may have been cut.
        let mut model: VecDeque<Batch> = VecDeque::new();
        let mut id = 0;
        for step in steps {
            match step {
                Step::Append(size) => {
                    id += 1;
                    spool.append(&batch(id, size)).unwrap();
                    model.push_back(batch(id, size));
                    let mut dropped = spool.take_losses().by_reason(Reason::SpoolFull);
                    while dropped > 0 {
                        dropped -= model.pop_front().unwrap().rows;
                    }
                }
                Step::Drain(inserted) => {
                    let taken = spool.take().unwrap();
                    prop_assert_eq!(taken.as_ref(), model.front());
                    if inserted {
                        spool.remove().unwrap();
                        model.pop_front();
                    } else {
                        spool.put_back();
                    }
                }
                Step::Crash(bytes) => {
                    drop(spool);
                    cut(&dir, bytes);
                    spool = open(&dir);
                    let damaged = spool.take_losses().by_reason(Reason::SpoolDamaged);
                    prop_assert!(damaged <= 1, "only the last record can be cut in the middle");
                    let rows: u64 = model.iter().map(|batch| batch.rows).sum();
                    let mut cut_rows = rows - spool.rows();
                    prop_assert!(bytes > 0 || cut_rows == 0);
                    while cut_rows > 0 {
                        cut_rows -= model.pop_back().unwrap().rows;
                    }
                }
            }
            prop_assert!(disk_bytes(&dir) <= MAX_BYTES);
            prop_assert_eq!(disk_bytes(&dir), spool.bytes());
            prop_assert_eq!(spool.rows(), model.iter().map(|batch| batch.rows).sum::<u64>());
        }
        prop_assert_eq!(drain(&mut spool), Vec::from(model));
    }
}
