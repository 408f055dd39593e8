//! The host's life: start, death, restart, end.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio::time::sleep;
use underspan_store::Store;
use underspan_store::embedded::{Embedded, EmbeddedError, Options};

use crate::support::{Running, options, text};

fn pid(embedded: &Embedded) -> Pid {
    Pid::from_raw(embedded.pid().expect("the host is up").try_into().unwrap())
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(15);
    while !holds().await {
        assert!(Instant::now() < deadline, "still not: {what}");
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn others_find_the_running_host() {
    let said = Mutex::new(Vec::new());
    let folder = TempDir::new().unwrap();
    let options = options(folder.path());
    let first =
        Embedded::attach_or_start(&options, |line| said.lock().unwrap().push(line.to_owned()))
            .await
            .unwrap();
    assert!(said.lock().unwrap().last().unwrap().contains("answers at http://127.0.0.1:"));
    assert_eq!(Embedded::attach(folder.path()).unwrap(), *first.endpoint());
    let second = Embedded::attach_or_start(&options, |_| {}).await.unwrap();
    assert_eq!(second.endpoint(), first.endpoint());
    assert_eq!(second.pid(), None, "it belongs to the first");
    let mode = |name| folder.path().join(name).metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("token"), mode("endpoint.json")), (0o600, 0o600));
    second.shutdown().await;
    Store::connect(first.endpoint().clone()).check().await.unwrap();
    first.shutdown().await;
    let error = Embedded::attach(folder.path()).unwrap_err();
    assert!(matches!(error, EmbeddedError::NotRunning(_)), "{error}");
}

#[tokio::test]
async fn two_that_start_at_once_share_one_host() {
    let folder = TempDir::new().unwrap();
    let options = options(folder.path());
    let (a, b) = tokio::join!(
        Embedded::attach_or_start(&options, |_| {}),
        Embedded::attach_or_start(&options, |_| {})
    );
    let (a, b) = (a.unwrap(), b.unwrap());
    assert_eq!(a.endpoint(), b.endpoint());
    a.shutdown().await;
    b.shutdown().await;
}

#[tokio::test]
async fn a_host_that_dies_comes_back_with_its_data() {
    let running = Running::start().await;
    let store = running.store();
    store
        .client()
        .query("CREATE TABLE t (a UInt8) ENGINE = MergeTree ORDER BY a")
        .execute()
        .await
        .unwrap();
    store.client().query("INSERT INTO t VALUES (1), (2)").execute().await.unwrap();
    let first = pid(&running.embedded);
    kill(first, Signal::SIGKILL).unwrap();
    until("a new host", async || {
        running.embedded.pid().is_some_and(|pid| pid as i32 != first.as_raw())
    })
    .await;
    assert_eq!(text(&store, "SELECT count() FROM t").await, "2", "same address, same data");
    running.stop().await;
}

/// A short command may have started the host that a long one then uses.
#[tokio::test]
async fn who_stays_takes_over() {
    let folder = TempDir::new().unwrap();
    let options = options(folder.path());
    let first = Embedded::attach_or_start(&options, |_| {}).await.unwrap();
    let second = Embedded::attach_or_start(&options, |_| {}).await.unwrap();
    let store = Store::connect(second.endpoint().clone());
    let sql = "CREATE TABLE t (a UInt8) ENGINE = MergeTree ORDER BY a";
    store.client().query(sql).execute().await.unwrap();
    first.shutdown().await;
    until("a host of its own", async || second.pid().is_some()).await;
    assert_eq!(text(&store, "EXISTS TABLE t").await, "1", "same address, same data");
    second.shutdown().await;
    assert!(store.check().await.is_err());
}

#[tokio::test]
async fn a_dropped_store_takes_its_host_along() {
    let running = Running::start().await;
    let host = pid(&running.embedded);
    let Running { embedded, folder } = running;
    drop(embedded);
    until("the host has ended", async || kill(host, None).is_err()).await;
    assert!(!folder.path().join("endpoint.json").exists(), "it ended in good order");
}

#[tokio::test]
async fn a_stale_endpoint_is_not_believed() {
    let folder = TempDir::new().unwrap();
    // A pid that lives, and a port where nobody listens.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let stale = format!("{{\"url\": \"http://{free}\", \"pid\": {}}}", std::process::id());
    std::fs::write(folder.path().join("endpoint.json"), stale).unwrap();
    std::fs::write(folder.path().join("token"), "old\n").unwrap();
    // A host that ended without having been asked to leaves its lock, which nobody holds.
    std::fs::write(folder.path().join("lock"), format!("{}\n", std::process::id())).unwrap();
    let embedded = Embedded::attach_or_start(&options(folder.path()), |_| {}).await.unwrap();
    Store::connect(embedded.endpoint().clone()).check().await.unwrap();
    embedded.shutdown().await;
}

/// A process that holds the lock and is no store: nothing will come of waiting for it.
#[tokio::test]
async fn a_folder_that_another_program_holds_is_told_at_once() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("lock");
    std::fs::write(&path, format!("{}\n", std::process::id())).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    let _held = Flock::lock(file, FlockArg::LockExclusive).unwrap();
    let said = Mutex::new(Vec::new());
    let options = options(folder.path());
    let start = Instant::now();
    let error =
        Embedded::attach_or_start(&options, |line| said.lock().unwrap().push(line.to_owned()))
            .await
            .unwrap_err();
    assert!(matches!(error, EmbeddedError::FolderInUse(_)), "{error}");
    assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
    // Python has started once.
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    assert!(said.lock().unwrap().iter().all(|line| !line.contains("waiting")));
}

#[tokio::test]
async fn a_host_that_is_stopped_is_told() {
    let folder = TempDir::new().unwrap();
    let options = options(folder.path());
    let first = Embedded::attach_or_start(&options, |_| {}).await.unwrap();
    kill(pid(&first), Signal::SIGSTOP).unwrap();
    let start = Instant::now();
    let error = Embedded::attach_or_start(&options, |_| {}).await.unwrap_err();
    kill(pid(&first), Signal::SIGCONT).unwrap();
    assert!(matches!(error, EmbeddedError::NoAnswer { .. }), "{error}");
    assert!(error.to_string().contains(&format!("process {}", pid(&first))), "{error}");
    assert!(start.elapsed() < Duration::from_secs(25), "{:?}", start.elapsed());
    first.shutdown().await;
}

/// One that is about to end says nothing any more, and holds the folder while it writes.
#[tokio::test]
async fn a_host_that_ends_gives_the_folder_back() {
    let folder = TempDir::new().unwrap();
    let options = options(folder.path());
    let first = Embedded::attach_or_start(&options, |_| {}).await.unwrap();
    let host = pid(&first);
    let advertised = folder.path().join("endpoint.json");
    let ending = tokio::spawn(first.shutdown());
    until("it says nothing", async || !advertised.exists()).await;
    // So that it is certain to hold the folder while the other one looks.
    let stopped = kill(host, Signal::SIGSTOP).is_ok();
    let said = Mutex::new(Vec::new());
    let say = |line: &str| said.lock().unwrap().push(line.to_owned());
    let goes_on = async {
        let waits = || said.lock().unwrap().iter().any(|line| line.contains("waiting"));
        until("it is waited for", async || waits()).await;
        kill(host, Signal::SIGCONT).unwrap();
    };
    assert!(stopped, "it ended too soon for this test");
    let (second, ()) = tokio::join!(Embedded::attach_or_start(&options, say), goes_on);
    let second = second.unwrap();
    assert_ne!(pid(&second), host);
    ending.await.unwrap();
    second.shutdown().await;
}

#[tokio::test]
async fn a_folder_or_port_in_use_is_told() {
    let running = Running::start().await;
    let again = options(running.folder.path());
    let error = Embedded::start(&again, |_| {}).await.unwrap_err();
    let owner = format!("in use by process {}", pid(&running.embedded));
    assert!(matches!(error, EmbeddedError::FolderInUse(_)), "{error}");
    assert!(error.to_string().contains(&owner), "{error}");
    running.stop().await;

    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let folder = TempDir::new().unwrap();
    let error =
        Embedded::start(&Options { port, ..options(folder.path()) }, |_| {}).await.unwrap_err();
    assert!(matches!(error, EmbeddedError::PortInUse(_)), "{error}");
    assert!(error.to_string().contains(&format!("port {port} is in use")), "{error}");
}

#[tokio::test]
async fn a_python_that_will_not_do_is_told() {
    let folder = TempDir::new().unwrap();
    for (python, reason) in
        [("/no/such/python3", "/no/such/python3: not found"), ("/bin/false", "/bin/false: ")]
    {
        let options = Options { python: Some(PathBuf::from(python)), ..options(folder.path()) };
        let error = Embedded::start(&options, |_| {}).await.unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
        assert!(error.contains("pip install 'underspan[store]'"), "{error}");
    }
}

#[tokio::test]
async fn a_folder_that_cannot_be_used_is_told() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("file"), "").unwrap();
    let options = options(&folder.path().join("file/store"));
    let error = Embedded::start(&options, |_| {}).await.unwrap_err().to_string();
    assert!(error.contains("cannot use data folder"), "{error}");
}
