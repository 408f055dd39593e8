//! Screens, from fixed data.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use underspan_model::{Ledger, State};

use super::draw;
use crate::app::App;
use crate::spent::Spent;
use crate::stack::{Current, Sampled};
use crate::view::{Cost, Culprit, Fault, Process, Request, Thread, View};

const MS: u64 = 1_000_000;

fn ledger(parts: &[(State, u64)]) -> Ledger {
    let mut ledger = Ledger::default();
    for (state, ms) in parts {
        ledger[*state] = ms * MS;
    }
    ledger
}

fn thread(tid: u32, thread: &str, state: State, for_ms: u64, parts: &[(State, u64)]) -> Thread {
    Thread {
        tid,
        thread: thread.to_owned(),
        state,
        idle: false,
        state_for_ns: for_ms * MS,
        spent: Spent { ledger: ledger(parts), idle_ns: 0 },
    }
}

fn process(pid: u32, name: &str, python: &str, threads: Vec<Thread>) -> Process {
    let mut spent = Spent::default();
    threads.iter().for_each(|thread| spent += thread.spent);
    Process { pid, process: name.to_owned(), python: python.to_owned(), spent, threads }
}

fn request(tid: u32, age_ms: u64, path: &str, state: State) -> Request {
    Request {
        request_id: format!("{tid:016x}"),
        pid: 2000,
        tid,
        thread: format!("ThreadPoolExecutor-0_{}", tid - 2001),
        age_ns: age_ms * MS,
        method: "GET".to_owned(),
        path: path.to_owned(),
        peer: "127.0.0.1:50000".to_owned(),
        state: Some(state),
        state_for_ns: age_ms / 2 * MS,
    }
}

/// A worker whose threads wait for the GIL, which one of them holds, and nginx.
fn view() -> View {
    use State::{GilWait, NetRead, PollWait, Runnable, Running};
    let worker = vec![
        thread(2000, "MainThread", PollWait, 4_000, &[(PollWait, 1_000)]),
        thread(2001, "ThreadPoolExecutor-0_0", Running, 3, &[(Running, 950), (Runnable, 50)]),
        thread(2002, "ThreadPoolExecutor-0_1", GilWait, 640, &[(GilWait, 900), (Running, 100)]),
        thread(2003, "ThreadPoolExecutor-0_2", NetRead, 120, &[(NetRead, 750), (GilWait, 250)]),
    ];
    let nginx = vec![thread(900, "nginx", PollWait, 20, &[(PollWait, 996), (Running, 4)])];
    View {
        host: "web-1".to_owned(),
        time: 1_700_000_000_000_000_000,
        interval_ns: 1_000 * MS,
        processes: vec![
            process(900, "nginx", "", nginx),
            process(2000, "gunicorn", "3.11.7", worker),
        ],
        requests: vec![
            request(2002, 1_400, "/orders/17/export", GilWait),
            request(2003, 260, "/orders", NetRead),
        ],
        culprits: vec![Culprit {
            fault: Fault::Gil,
            pid: 2000,
            tid: 2001,
            thread: "ThreadPoolExecutor-0_0".to_owned(),
            process: "gunicorn".to_owned(),
            blocked_ns: 1_150 * MS,
            victims: 2,
        }],
        cost: Cost { cpu_ns: 8 * MS, bpf_ns: Some(2 * MS), rss_bytes: 48 << 20, lost: 0 },
    }
}

/// However narrow: what is lost is said before what may be cut off.
#[test]
fn what_was_lost_is_always_told() {
    let mut app = app();
    app.view.cost.lost = 612;
    let first = screen(&app, 80, 24).lines().next().unwrap().to_owned();
    assert!(first.contains("612 events lost") && first.contains("cost 1%"), "{first}");
    app.view.cost.lost = 1;
    let first = screen(&app, 80, 24).lines().next().unwrap().to_owned();
    assert!(first.contains("1 event lost, "), "{first}");
    let plain = crate::text(&app.view);
    assert!(plain.lines().next().unwrap().ends_with("; 1 event lost"), "{plain}");
    assert!(plain.contains(" of 2 others: "), "{plain}");
    app.view.culprits[0].victims = 1;
    assert!(crate::text(&app.view).contains(" of 1 other: "));
}

/// A worker that waits for its next request, and one that waits for a lock in one.
#[test]
fn idle_is_not_blocked() {
    let lock = |tid, name, idle| {
        let mut thread = thread(tid, name, State::LockWait, 900, &[(State::LockWait, 1_000)]);
        thread.idle = idle;
        thread.spent.idle_ns = if idle { 1_000 * MS } else { 0 };
        thread
    };
    let threads = vec![lock(2001, "free", true), lock(2002, "at work", false)];
    let mut app = App::default();
    let processes = vec![process(2000, "gunicorn", "3.11.7", threads)];
    app.update(View { interval_ns: 1_000 * MS, processes, ..View::default() });
    let shown = screen(&app, 140, 12);
    let line = |name: &str| shown.lines().find(|line| line.contains(name)).unwrap().to_owned();
    assert!(line("free").contains(" idle ") && !line("free").contains("lock_wait"), "{shown}");
    assert!(
        line("at work").contains(" lock_wait ") && !line("at work").contains("idle"),
        "{shown}"
    );
    let column = |name: &str, title: &str| {
        let end = line("NOW").find(title).unwrap() + title.len();
        line(name).chars().take(end).collect::<String>().ends_with("  100")
    };
    assert!(column("free", "IDL") && !column("free", "LCK"), "{shown}");
    assert!(column("at work", "LCK") && !column("at work", "IDL"), "{shown}");
    assert!(shown.contains("idle 50%") && shown.contains("lock_wait 50%"), "{shown}");
    press(&mut app, &[KeyCode::Char('/')]);
    press(&mut app, &"idle".chars().map(KeyCode::Char).collect::<Vec<_>>());
    assert!(!screen(&app, 140, 12).contains("at work"), "it is found by what it is shown as");
    let plain = crate::text(&app.view);
    assert!(plain.contains("free                     idle         900ms  idle 100%"), "{plain}");
}

fn app() -> App {
    let mut app = App::default();
    app.update(view());
    app
}

fn press(app: &mut App, keys: &[KeyCode]) {
    for key in keys {
        app.key(KeyEvent::new(*key, KeyModifiers::NONE));
    }
}

fn screen(app: &App, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, app)).unwrap();
    terminal.backend().to_string()
}

#[test]
fn the_smallest_usual_terminal() {
    insta::assert_snapshot!(screen(&app(), 80, 24));
}

#[test]
fn a_wide_terminal_has_more_columns() {
    insta::assert_snapshot!(screen(&app(), 140, 20));
}

#[test]
fn a_filter_leaves_the_threads_that_contain_it() {
    let mut app = app();
    press(&mut app, &[KeyCode::Char('/')]);
    press(&mut app, &"EXPORT".chars().map(KeyCode::Char).collect::<Vec<_>>());
    let shown = screen(&app, 80, 24);
    assert!(shown.contains("ThreadPoolEx") && shown.contains("/EXPORT_"), "{shown}");
    assert!(!shown.contains("MainThread") && !shown.contains("nginx"), "{shown}");
    press(&mut app, &[KeyCode::Esc]);
    assert!(screen(&app, 80, 24).contains("nginx"));
}

#[test]
fn any_column_sorts_both_ways() {
    let mut app = app();
    let first = |app: &App| {
        app.order
            .rows(&app.view)
            .iter()
            .position(|row| row.key() == crate::table::Key::Process(900))
    };
    assert_eq!(first(&app), Some(5), "by CPU");
    press(&mut app, &[KeyCode::Char('r')]);
    assert_eq!(first(&app), Some(0));
    for _ in 0..crate::table::Column::ALL.len() {
        press(&mut app, &[KeyCode::Char('>')]);
        assert_eq!(app.order.rows(&app.view).len(), 7);
        screen(&app, 80, 24);
    }
}

#[test]
fn looking_into_a_thread() {
    let mut app = app();
    press(&mut app, &[KeyCode::Tab, KeyCode::Enter]);
    let detail = app.detail.as_mut().unwrap();
    assert_eq!((detail.pid, detail.tid), (2000, 2002));
    detail.stack = Some(Current {
        kernel: Ok(vec!["futex_wait_queue".to_owned(), "do_futex".to_owned()]),
        python: Ok(vec![
            "export (/srv/app/reports.py:88)".to_owned(),
            "handle_request (/srv/venv/lib/python3.11/site-packages/gunicorn/workers/gthread.py:771)"
                .to_owned(),
        ]),
        sampled: Some(Sampled {
            age_ns: 30 * MS,
            on_cpu: false,
            frames: vec!["take_gil [libpython3.11.so]".to_owned()],
            truncated: "no_table".to_owned(),
        }),
    });
    insta::assert_snapshot!(screen(&app, 80, 24));
    press(&mut app, &[KeyCode::Esc]);
    assert!(app.detail.is_none() && !app.quit);
}

#[test]
fn a_stack_without_frames_is_told_so() {
    let mut app = app();
    press(&mut app, &[KeyCode::Tab, KeyCode::Enter]);
    let sampled =
        Sampled { age_ns: 30 * MS, on_cpu: false, frames: Vec::new(), truncated: String::new() };
    let (kernel, python) = (Ok(Vec::new()), Ok(Vec::new()));
    app.detail.as_mut().unwrap().stack = Some(Current { kernel, python, sampled: Some(sampled) });
    let screen = screen(&app, 80, 24);
    assert!(screen.contains("nothing of this stack is known"), "{screen}");
}

#[test]
fn a_thread_that_has_ended_is_told_so() {
    let mut app = app();
    press(&mut app, &[KeyCode::Tab, KeyCode::Enter]);
    app.update(View::default());
    assert!(screen(&app, 80, 24).contains("thread 2002 of process 2000 has ended"));
}

#[test]
fn the_selected_thread_stays_selected_wherever_it_moves() {
    let mut app = app();
    press(&mut app, &[KeyCode::Down, KeyCode::Down]);
    let selected = app.selected;
    press(&mut app, &[KeyCode::Char('r')]);
    assert_eq!(app.selected, selected);
    assert_eq!(Some(app.order.rows(&app.view)[app.cursor].key()), selected);
}

#[test]
fn nothing_watched_and_help_and_tiny() {
    let mut app = App::default();
    assert!(screen(&app, 80, 24).contains("nothing is watched"));
    press(&mut app, &[KeyCode::Char('?')]);
    insta::assert_snapshot!(screen(&app, 80, 24));
    press(&mut app, &[KeyCode::Char('x')]);
    assert!(!app.help);
    for (width, height) in [(1, 1), (39, 8), (40, 8), (300, 100)] {
        screen(&app, width, height);
    }
    press(&mut app, &[KeyCode::Char('q')]);
    assert!(app.quit);
}
