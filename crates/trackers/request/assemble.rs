//! A request is told in parts; here they become one.
//!
//! It ends when its answer says so (see [`super::framing`]), or when BPF does: the next request was read, or the
//! connection was closed. Of an answer that does not say where it ends, a kept-alive connection that falls silent
//! says nothing either: that request ends when nothing more was sent for [`SILENCE_NS`], unless its thread is
//! still at it.

use std::collections::{HashMap, HashSet};

use underspan_model::{Ledger, State};

use super::answering::Answering;
use super::framing::{Framing, framing};
use super::http::{self, Head};
use crate::record::{REQUEST_HEAD, SENDS_TOLD, request_end, request_sent_event};

/// An answer whose thread waits for work this long after a write was over with that.
pub(super) const SILENCE_NS: u64 = 1_000_000_000;

/// More requests in flight than this are not followed.
const MAX_PENDING: usize = 65_536;

/// The first part: a thread read the first bytes. Times are monotonic.
#[derive(Debug, Default)]
pub(super) struct Asked {
    pub(super) id: u64,
    pub(super) pid: u32,
    pub(super) tid: u32,
    pub(super) comm: String,
    /// First byte in the kernel.
    pub(super) ready: u64,
    /// 0 if it is not its connection's first request.
    pub(super) accepted: u64,
    pub(super) accept_tid: u32,
    pub(super) read: u64,
    /// Which of its connection, from 0.
    pub(super) number: u32,
    pub(super) peer: String,
    pub(super) local: String,
    pub(super) head: Head,
    /// Its bytes so far, if more of them may follow.
    pub(super) unfinished: Vec<u8>,
    /// Perhaps the rest of a request that was in progress when its connection was taken up.
    pub(super) unsure: bool,
    /// How many bytes were read at once.
    pub(super) bytes: u64,
    /// Where the reading thread's ledger began; 0: it is not known.
    pub(super) born: u64,
    /// That ledger, when the request was read.
    pub(super) at_read: Ledger,
    /// When it was last told that it is not answered yet; 0: never.
    pub(super) open_told: u64,
    /// What ends its answer, once that has begun.
    pub(super) framing: Framing,
}

impl Asked {
    /// What its thread did until then, of which nothing was told: unknown, but for what the end of the thread told.
    fn lost_sight(&self, until: u64, died: Option<&Died>) -> Ledger {
        let died = died.filter(|died| died.born == self.born && died.until <= until);
        let mut ledger = died.and_then(|died| died.ledger.since(&self.at_read)).unwrap_or_default();
        ledger[State::Other] += until.saturating_sub(self.read).saturating_sub(ledger.total());
        ledger
    }

    /// Where the client is on this host too, over a socket whose close is not always seen.
    fn is_unix(&self) -> bool {
        self.peer == "unix"
    }
}

/// How far an answer has come.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// Nobody can tell.
    #[default]
    Unknown,
    /// More of it is to come.
    GoesOn,
    /// Its last byte was sent.
    Whole,
}

/// The latest of the other parts.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// When the last byte was sent, or when an unanswered request ended.
    pub(super) until: u64,
    pub(super) sent_tid: u32,
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
    pub(super) status: u16,
    pub(super) answered: bool,
    pub(super) shared_thread: bool,
    /// Writes that were told.
    pub(super) writes: u32,
    pub(super) progress: Progress,
    /// The reading thread's time from `read` to `until`.
    pub(super) ledger: Ledger,
}

/// A whole request.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) asked: Asked,
    pub(super) told: Told,
    /// `requests.end`.
    pub(super) end: &'static str,
}

impl Finished {
    /// Accept queue, handoff and handler, in nanoseconds. They sum to the request's duration.
    pub(super) fn phases(&self) -> (u64, u64, u64) {
        phases(&self.asked, &self.told)
    }
}

pub(super) fn phases(asked: &Asked, told: &Told) -> (u64, u64, u64) {
    let accept_queue = asked.accepted.saturating_sub(asked.ready);
    let handoff = asked.read.saturating_sub(asked.accepted.max(asked.ready));
    (accept_queue, handoff, told.until.saturating_sub(asked.read))
}

/// Requests that have been read and have not ended.
#[derive(Default)]
pub(super) struct Assembler {
    pending: HashMap<u64, (Asked, Option<Told>)>,
    /// Threads that have ended, by id. Their connections are closed afterwards.
    died: HashMap<u32, Died>,
}

/// A thread that has ended.
struct Died {
    /// When its ledger began.
    born: u64,
    until: u64,
    ledger: Ledger,
}

impl Assembler {
    /// A request was read. `false` if too many are in flight to follow it.
    pub(super) fn asked(&mut self, mut asked: Asked) -> bool {
        if self.pending.len() >= MAX_PENDING {
            return false;
        }
        // The first byte's arrival was missed: the wait before the read is not known.
        if asked.ready == 0 || asked.ready > asked.read {
            asked.ready = asked.read;
        }
        // Accepted by a call that the kernel reports after the read, or by one of another socket
        // that had the same address.
        if asked.accepted > asked.read {
            asked.accepted = 0;
        }
        self.pending.insert(asked.id, (asked, None));
        true
    }

    /// More of a head that came in several pieces: what follows its first `at` bytes.
    pub(super) fn more(&mut self, id: u64, at: usize, piece: &[u8]) {
        let Some((asked, _)) = self.pending.get_mut(&id) else { return };
        // Not after a piece that was lost; nor where none was announced.
        if at == 0 || at != asked.unfinished.len() || at + piece.len() > REQUEST_HEAD as usize {
            return;
        }
        asked.unfinished.extend_from_slice(piece);
        asked.head = http::request_head(&asked.unfinished);
    }

    /// How an answer begins.
    pub(super) fn answers(&mut self, id: u64, start: &[u8]) {
        if let Some((asked, _)) = self.pending.get_mut(&id) {
            asked.framing = framing(&asked.head.method, start);
        }
    }

    /// Part of an answer, or the end. Returns the request if it is whole now.
    pub(super) fn told(&mut self, event: &request_sent_event) -> Option<Finished> {
        let (asked, told) = self.pending.get_mut(&event.id)?;
        let until = event.h.time;
        let ledger = if event.ledger_ok == 0 {
            asked.lost_sight(until, self.died.get(&asked.tid))
        } else {
            Ledger::new(event.ns)
        };
        let answer = event.answer.map(|c| c as u8);
        let writes = told.as_ref().map_or(0, |told| told.writes) + 1;
        let progress = progress(asked, event, writes);
        *told = Some(Told {
            until,
            sent_tid: event.h.tid,
            bytes_in: event.bytes_in,
            bytes_out: event.bytes_out,
            status: http::status(answer.get(..event.answer_len.into()).unwrap_or_default()),
            answered: event.answered != 0,
            shared_thread: event.shared_thread != 0,
            writes,
            progress,
            ledger,
        });
        let end = match (u32::from(event.end), event.answered != 0) {
            (request_end::END_NOT, _) if progress == Progress::Whole => "sent",
            (request_end::END_NOT, _) => return None,
            // A client that resets after its answer is how some close.
            (_, true) => "sent",
            (request_end::END_RESET, false) => "reset",
            (request_end::END_PEER_CLOSED, false) => "peer_closed",
            (_, false) => "closed",
        };
        self.finish(event.id, end)
    }

    /// Answered requests that have been silent long enough at `now`.
    pub(super) fn silent(&mut self, now: u64, answering: &Answering) -> Vec<Finished> {
        self.take("sent", |asked, told| {
            told.is_some_and(|told| {
                told.answered
                    && now.saturating_sub(told.until) >= SILENCE_NS
                    && !answering.pauses(asked.id, told, now)
            })
        })
    }

    /// All of whose answers something was sent.
    pub(super) fn answered(&self) -> impl Iterator<Item = (&Asked, &Told)> {
        let pending = self.pending.values();
        pending
            .filter_map(|(asked, told)| Some((asked, told.as_ref().filter(|told| told.answered)?)))
    }

    /// A thread has ended, whose ledger began at `born`.
    pub(super) fn thread_ended(&mut self, tid: u32, born: u64, until: u64, ledger: Ledger) {
        self.died.insert(tid, Died { born, until, ledger });
    }

    /// Forgets threads that have ended, but for those that have read what has not ended.
    pub(super) fn forget_threads(&mut self) {
        if !self.died.is_empty() {
            let readers: HashSet<u32> = self.pending.values().map(|(asked, _)| asked.tid).collect();
            self.died.retain(|tid, _| readers.contains(tid));
        }
    }

    /// Requests of a process that has ended.
    pub(super) fn process_ended(&mut self, pid: u32, now: u64) -> Vec<Finished> {
        let mut ended = self.take("closed", |asked, _| asked.pid == pid);
        for request in &mut ended {
            if request.told.answered {
                request.end = "sent";
            } else {
                request.cut(now, &self.died);
            }
        }
        ended
    }

    /// Everything in flight, when nobody listens any more.
    pub(super) fn all(&mut self, now: u64) -> Vec<Finished> {
        let mut rest = self.take("open", |_, _| true);
        for request in &mut rest {
            if request.told.answered {
                request.end = "sent";
            } else {
                request.cut(now, &self.died);
            }
        }
        rest
    }

    /// All that nothing was sent for.
    pub(super) fn unanswered(&mut self) -> impl Iterator<Item = &mut Asked> {
        let pending = self.pending.values_mut();
        let unanswered =
            pending.filter(|(_, told)| told.as_ref().is_none_or(|told| !told.answered));
        unanswered.map(|(asked, _)| asked)
    }

    fn take(
        &mut self,
        end: &'static str,
        which: impl Fn(&Asked, Option<&Told>) -> bool,
    ) -> Vec<Finished> {
        let ids: Vec<_> = self
            .pending
            .iter()
            .filter(|(_, (asked, told))| which(asked, told.as_ref()))
            .map(|(id, _)| *id)
            .collect();
        ids.into_iter().filter_map(|id| self.finish(id, end)).collect()
    }

    fn finish(&mut self, id: u64, end: &'static str) -> Option<Finished> {
        let (asked, told) = self.pending.remove(&id)?;
        if asked.unsure && asked.head.method.is_empty() {
            return None;
        }
        let told = told.unwrap_or_else(|| Told { until: asked.read, ..Told::default() });
        Some(Finished { asked, told, end })
    }
}

/// How far an answer has come with this write, of which so many were told.
fn progress(asked: &Asked, event: &request_sent_event, writes: u32) -> Progress {
    let is_whole = match asked.framing {
        Framing::Unknown => return Progress::Unknown,
        Framing::Bytes(bytes) => event.bytes_out >= bytes,
        Framing::Chunks => event.last_chunk != 0,
        // That a Unix socket was closed is not seen on every kernel.
        Framing::Close if asked.is_unix() => return Progress::Unknown,
        Framing::Close => false,
    };
    match is_whole {
        true => Progress::Whole,
        // Writes that follow at once are not told, and the rest may have been among them.
        false if writes >= SENDS_TOLD && matches!(asked.framing, Framing::Bytes(_)) => {
            Progress::Unknown
        }
        false => Progress::GoesOn,
    }
}

impl Finished {
    /// Ends an unanswered request now. What its thread did is not known, unless it ended.
    fn cut(&mut self, now: u64, died: &HashMap<u32, Died>) {
        self.told.until = now.max(self.asked.read);
        self.told.ledger = self.asked.lost_sight(self.told.until, died.get(&self.asked.tid));
    }
}
