//! What the user looks at, and what each key does to it. Knows of no terminal and no kernel.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::stack::Current;
use crate::table::{Key, Order, Row};
use crate::view::{Thread, View};

/// A part of the screen that has a cursor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Pane {
    #[default]
    Threads,
    Requests,
    Culprits,
}

/// One thread on the whole screen.
#[derive(Clone, Debug)]
pub(crate) struct Detail {
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    /// Where it is; `None` until it was read.
    pub(crate) stack: Option<Current>,
    /// Lines scrolled past.
    pub(crate) scroll: u16,
}

/// Everything that is shown.
#[derive(Debug, Default)]
pub(crate) struct App {
    pub(crate) view: View,
    pub(crate) order: Order,
    pub(crate) pane: Pane,
    /// The selected row of the threads; the index is where it was, should it be gone.
    pub(crate) selected: Option<Key>,
    pub(crate) cursor: usize,
    /// Of the other panes.
    pub(crate) request: usize,
    pub(crate) culprit: usize,
    pub(crate) detail: Option<Detail>,
    /// The filter is being typed.
    pub(crate) typing: bool,
    pub(crate) paused: bool,
    pub(crate) help: bool,
    pub(crate) quit: bool,
}

impl App {
    /// A new interval has ended.
    pub(crate) fn update(&mut self, view: View) {
        self.view = view;
        self.request = self.request.min(self.view.requests.len().saturating_sub(1));
        self.culprit = self.culprit.min(self.view.culprits.len().saturating_sub(1));
        self.follow();
    }

    /// Puts the cursor where the selected row is now.
    fn follow(&mut self) {
        let keys: Vec<_> = self.order.rows(&self.view).iter().map(Row::key).collect();
        match self.selected.and_then(|selected| keys.iter().position(|key| *key == selected)) {
            Some(at) => self.cursor = at,
            None => {
                self.cursor = self.cursor.min(keys.len().saturating_sub(1));
                self.selected = keys.get(self.cursor).copied();
            }
        }
    }

    /// The thread with this id, and its process's name.
    pub(crate) fn thread(&self, pid: u32, tid: u32) -> Option<(&str, &Thread)> {
        let process = self.view.processes.iter().find(|process| process.pid == pid)?;
        let thread = process.threads.iter().find(|thread| thread.tid == tid)?;
        Some((&process.process, thread))
    }

    pub(crate) fn key(&mut self, key: KeyEvent) {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            self.quit = true;
        } else if self.typing {
            self.type_filter(key.code);
        } else if self.help {
            // Any key closes it.
            self.help = false;
        } else if !self.common(key.code) {
            match self.detail {
                Some(_) => self.detail_key(key.code),
                None => self.main_key(key.code),
            }
        }
    }

    fn type_filter(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                self.order.filter.clear();
            }
            KeyCode::Backspace => {
                self.order.filter.pop();
            }
            KeyCode::Char(c) => self.order.filter.push(c),
            _ => {}
        }
        self.follow();
    }

    fn common(&mut self, key: KeyCode) -> bool {
        match key {
            KeyCode::Char('q') => self.quit = true,
            KeyCode::Char('?' | 'h') => self.help = true,
            KeyCode::Char('p') => self.paused = !self.paused,
            _ => return false,
        }
        true
    }

    fn detail_key(&mut self, key: KeyCode) {
        let Some(detail) = &mut self.detail else { return };
        match key {
            KeyCode::Esc | KeyCode::Enter | KeyCode::Backspace | KeyCode::Left => {
                self.detail = None;
            }
            KeyCode::Down | KeyCode::Char('j') => detail.scroll = detail.scroll.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => detail.scroll = detail.scroll.saturating_sub(1),
            KeyCode::PageDown => detail.scroll = detail.scroll.saturating_add(10),
            KeyCode::PageUp => detail.scroll = detail.scroll.saturating_sub(10),
            KeyCode::Home => detail.scroll = 0,
            _ => {}
        }
    }

    fn main_key(&mut self, key: KeyCode) {
        match key {
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Esc => self.order.filter.clear(),
            KeyCode::Char('>' | '.') => self.order.column = self.order.column.next(1),
            KeyCode::Char('<' | ',') => self.order.column = self.order.column.next(-1),
            KeyCode::Char('r') => self.order.reverse = !self.order.reverse,
            KeyCode::Tab => self.pane = self.next_pane(1),
            KeyCode::BackTab => self.pane = self.next_pane(2),
            KeyCode::Down | KeyCode::Char('j') => self.step(1),
            KeyCode::Up | KeyCode::Char('k') => self.step(-1),
            KeyCode::PageDown => self.step(10),
            KeyCode::PageUp => self.step(-10),
            KeyCode::Home => self.step(isize::MIN),
            KeyCode::End => self.step(isize::MAX),
            KeyCode::Left => self.fold(true),
            KeyCode::Right => self.fold(false),
            KeyCode::Char(' ') => self.toggle(),
            KeyCode::Enter => self.enter(),
            _ => {}
        }
        self.follow();
    }

    fn next_pane(&self, steps: usize) -> Pane {
        let panes = [Pane::Threads, Pane::Requests, Pane::Culprits];
        let at = panes.iter().position(|pane| *pane == self.pane).unwrap_or(0);
        panes[(at + steps) % panes.len()]
    }

    fn step(&mut self, by: isize) {
        let (cursor, len) = match self.pane {
            Pane::Threads => (&mut self.cursor, self.order.rows(&self.view).len()),
            Pane::Requests => (&mut self.request, self.view.requests.len()),
            Pane::Culprits => (&mut self.culprit, self.view.culprits.len()),
        };
        *cursor = cursor.saturating_add_signed(by).min(len.saturating_sub(1));
        if self.pane == Pane::Threads {
            let rows = self.order.rows(&self.view);
            self.selected = rows.get(self.cursor).map(Row::key);
        }
    }

    fn fold(&mut self, fold: bool) {
        if let Some(Key::Process(pid) | Key::Thread(pid, _)) = self.selected {
            if fold {
                self.order.folded.insert(pid);
                self.selected = Some(Key::Process(pid));
            } else {
                self.order.folded.remove(&pid);
            }
        }
    }

    fn toggle(&mut self) {
        if let Some(Key::Process(pid) | Key::Thread(pid, _)) = self.selected {
            self.fold(!self.order.folded.contains(&pid));
        }
    }

    fn enter(&mut self) {
        let who = match self.pane {
            Pane::Threads => match self.selected {
                Some(Key::Thread(pid, tid)) => Some((pid, tid)),
                Some(Key::Process(_)) => return self.toggle(),
                None => None,
            },
            Pane::Requests => {
                self.view.requests.get(self.request).map(|request| (request.pid, request.tid))
            }
            Pane::Culprits => {
                self.view.culprits.get(self.culprit).map(|culprit| (culprit.pid, culprit.tid))
            }
        };
        self.detail = who.map(|(pid, tid)| Detail { pid, tid, stack: None, scroll: 0 });
    }
}
