//! The terminal: taken over, given back whatever happens, and asked for keys.

use std::io::{self, IsTerminal as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossterm::event::{self, Event, KeyEventKind};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use ratatui::DefaultTerminal;

use crate::Error;
use crate::app::App;
use crate::collect::Watch;
use crate::draw::draw;
use crate::stack::Stacks;

/// How often keys are looked for, and the ring is drained.
const LOOK: Duration = Duration::from_millis(100);

/// A signal asked for the end.
static END: AtomicBool = AtomicBool::new(false);

extern "C" fn end(_signal: i32) {
    END.store(true, Ordering::Relaxed);
}

/// SIGTERM and SIGHUP end the loop, so that the terminal is given back.
fn take_signals() -> nix::Result<()> {
    let action = SigAction::new(SigHandler::Handler(end), SaFlags::empty(), SigSet::empty());
    for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT] {
        // SAFETY: the handler only stores to an atomic.
        unsafe { sigaction(signal, &action) }?;
    }
    Ok(())
}

/// Gives the terminal back when it goes. ratatui does so too if there is a panic.
struct Taken(DefaultTerminal);

impl Taken {
    fn take() -> io::Result<Self> {
        Ok(Taken(ratatui::try_init()?))
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Whether there is a terminal to show it on.
///
/// # Errors
/// If there is none.
pub fn check_terminal() -> Result<(), Error> {
    if io::stdout().is_terminal() && io::stdin().is_terminal() {
        Ok(())
    } else {
        Err(Error::NoTerminal)
    }
}

/// Shows what is seen, until the user has seen enough. `every`: the length of an interval.
///
/// # Errors
/// If there is no terminal, or the programs cannot be read any more.
pub fn show(watch: &mut Watch, mut stacks: Stacks, every: Duration) -> Result<(), Error> {
    check_terminal()?;
    take_signals().map_err(|errno| Error::Terminal(errno.into()))?;
    let mut terminal = Taken::take().map_err(Error::Terminal)?;
    let mut app = App::default();
    // Something is on the screen at once; what it does is known after the first interval.
    app.update(watch.view()?);
    let mut next = Instant::now() + every.min(Duration::from_millis(300));
    let mut changed = true;
    while !app.quit && !END.load(Ordering::Relaxed) {
        if changed {
            terminal.0.draw(|frame| draw(frame, &app)).map_err(Error::Terminal)?;
        }
        changed = keys(&mut app, next)?;
        watch.drain(Duration::ZERO)?;
        if Instant::now() >= next {
            next = Instant::now() + every;
            // While it is paused the interval goes on.
            if !app.paused {
                app.update(watch.view()?);
                read_stack(&mut app, watch, &mut stacks);
                changed = true;
            }
        }
        if app.detail.as_ref().is_some_and(|detail| detail.stack.is_none()) {
            read_stack(&mut app, watch, &mut stacks);
        }
    }
    Ok(())
}

/// Handles keys until `next`, or a moment. True if something is to be drawn.
fn keys(app: &mut App, next: Instant) -> Result<bool, Error> {
    let wait = next.saturating_duration_since(Instant::now()).min(LOOK);
    let mut changed = false;
    let mut wait = Some(wait);
    while event::poll(wait.take().unwrap_or(Duration::ZERO)).map_err(Error::Terminal)? {
        match event::read().map_err(Error::Terminal)? {
            Event::Key(key) if key.kind != KeyEventKind::Release => app.key(key),
            _ => {}
        }
        changed = true;
    }
    Ok(changed)
}

fn read_stack(app: &mut App, watch: &Watch, stacks: &mut Stacks) {
    if let Some(detail) = &mut app.detail {
        detail.stack = Some(stacks.read(detail.pid, detail.tid, watch.sample(detail.tid)));
    }
}
