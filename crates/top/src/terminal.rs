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

/// How often keys are looked for, and the ring is drained.
const LOOK: Duration = Duration::from_millis(100);

/// A signal asked for the end.
static END: AtomicBool = AtomicBool::new(false);

extern "C" fn end(signal: i32) {
    // The terminal is gone: there is none to give back, and whoever reads it may never return.
    if signal == libc::SIGHUP && hung_up(libc::STDIN_FILENO, 0) {
        // SAFETY: may be called in a handler; the kernel takes the programs out.
        unsafe { libc::_exit(128 + signal) };
    }
    END.store(true, Ordering::Relaxed);
}

/// Waits for up to so many milliseconds until there is something to read, and says whether the other end
/// of the terminal is gone. crossterm must not be asked then: it reads nothing again and again, for ever.
fn hung_up(terminal: i32, wait_ms: i32) -> bool {
    let mut asked = libc::pollfd { fd: terminal, events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid entry.
    let told = unsafe { libc::poll(&raw mut asked, 1, wait_ms) };
    told > 0 && asked.revents & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0
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
pub fn show(watch: &mut Watch, every: Duration) -> Result<(), Error> {
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
                read_stack(&mut app, watch);
                changed = true;
            }
        }
        if app.detail.as_ref().is_some_and(|detail| detail.stack.is_none()) {
            read_stack(&mut app, watch);
        }
    }
    Ok(())
}

/// Handles keys until `next`, or a moment. True if something is to be drawn.
fn keys(app: &mut App, next: Instant) -> Result<bool, Error> {
    let wait = next.saturating_duration_since(Instant::now()).min(LOOK);
    let mut changed = false;
    if hung_up(libc::STDIN_FILENO, i32::try_from(wait.as_millis()).unwrap_or(0)) {
        END.store(true, Ordering::Relaxed);
        return Ok(false);
    }
    // A signal, such as that of another size, ends the wait as well: it is asked for in any case.
    while event::poll(Duration::ZERO).map_err(Error::Terminal)? {
        match event::read().map_err(Error::Terminal)? {
            Event::Key(key) if key.kind != KeyEventKind::Release => app.key(key),
            _ => {}
        }
        changed = true;
    }
    Ok(changed)
}

fn read_stack(app: &mut App, watch: &mut Watch) {
    if let Some(detail) = &mut app.detail {
        detail.stack = Some(watch.stack(detail.pid, detail.tid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_whose_other_end_is_gone_is_noticed() {
        let (mut master, mut slave) = (0, 0);
        let none = std::ptr::null_mut();
        // SAFETY: two valid places for descriptors; the rest is not wanted.
        let opened =
            unsafe { libc::openpty(&mut master, &mut slave, none, none.cast(), none.cast()) };
        assert_eq!(opened, 0);
        assert!(!hung_up(slave, 0), "it is there, and silent");
        // SAFETY: our own descriptors.
        unsafe { libc::close(master) };
        assert!(hung_up(slave, 1000));
        // SAFETY: likewise.
        unsafe { libc::close(slave) };
    }
}
