//! Perfetto's trace format: per thread its states, the requests it served, and samples with stacks.

mod intern;
pub mod proto;

use std::collections::HashMap;
use std::sync::Arc;

use prost::Message as _;

use crate::sample::{Sample, Thread};
use crate::timeline::{RequestSpan, Timeline, WaitSpan};
use crate::tree::Grouping;
use intern::Interned;
use proto::{
    Clock, ClockSnapshot, DebugAnnotation, ProcessDescriptor, ThreadDescriptor, Trace, TracePacket,
    TrackDescriptor, TrackEvent,
};

const SEQUENCE: u32 = 1;
const STATE_CLEARED: u32 = 1;
const NEEDS_STATE: u32 = 2;
const REALTIME: u32 = 1;
const BOOTTIME: u32 = 6;
const SLICE_BEGIN: i32 = 1;
const SLICE_END: i32 = 2;
const INSTANT: i32 = 3;

/// The file's bytes.
pub fn perfetto(timeline: &Timeline) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.begin(timeline.begin());
    for thread in timeline.threads() {
        writer.describe(&thread);
    }
    for wait in &timeline.waits {
        writer.wait(wait);
    }
    for request in &timeline.requests {
        writer.request(request);
    }
    for sample in &timeline.samples {
        writer.sample(sample);
    }
    // Ends before begins at the same time: slices on one track must nest.
    writer.events.sort_by_key(|(time, packet)| {
        (*time, packet.track_event.as_ref().map_or(0, |event| i32::from(event.r#type != SLICE_END)))
    });
    writer.trace.packet.extend(writer.events.into_iter().map(|(_, packet)| packet));
    writer.trace.encode_to_vec()
}

#[derive(Default)]
struct Writer {
    trace: Trace,
    events: Vec<(u64, TracePacket)>,
    interned: Interned,
    tracks: HashMap<u32, u64>,
    threads: HashMap<Arc<Thread>, ThreadTracks>,
    uuids: u64,
}

#[derive(Default)]
struct ThreadTracks {
    thread: u64,
    states: Option<u64>,
    /// Tracks for requests, with when the last on each ended: an event loop serves many at once.
    requests: Vec<(u64, u64)>,
}

impl Writer {
    /// Times are of the real-time clock, which Perfetto knows only beside the one traces are in.
    fn begin(&mut self, time: u64) {
        let clock = |clock_id| Clock { clock_id, timestamp: time };
        let clocks = vec![clock(BOOTTIME), clock(REALTIME)];
        self.trace.packet.push(TracePacket {
            clock_snapshot: Some(ClockSnapshot { clocks }),
            sequence_flags: Some(STATE_CLEARED),
            ..packet()
        });
    }

    fn describe(&mut self, thread: &Arc<Thread>) {
        let process = match self.tracks.get(&thread.pid) {
            Some(uuid) => *uuid,
            None => {
                let process_name = thread.process.clone();
                let process = ProcessDescriptor { pid: id(thread.pid), process_name };
                let uuid = self.track(TrackDescriptor { process: Some(process), ..track() });
                self.tracks.insert(thread.pid, uuid);
                uuid
            }
        };
        let uuid = if thread.tid == 0 {
            self.child(process, &thread.name)
        } else {
            let descriptor = ThreadDescriptor {
                pid: id(thread.pid),
                tid: i64::from(thread.tid),
                thread_name: thread.name.clone(),
            };
            let thread = Some(descriptor);
            self.track(TrackDescriptor { thread, parent_uuid: Some(process), ..track() })
        };
        let tracks = ThreadTracks { thread: uuid, ..ThreadTracks::default() };
        self.threads.insert(Arc::clone(thread), tracks);
    }

    fn track(&mut self, descriptor: TrackDescriptor) -> u64 {
        self.uuids += 1;
        let uuid = self.uuids;
        let descriptor = TrackDescriptor { uuid, ..descriptor };
        self.trace.packet.push(TracePacket { track_descriptor: Some(descriptor), ..packet() });
        uuid
    }

    fn child(&mut self, parent: u64, name: &str) -> u64 {
        let name = Some(name.to_owned());
        self.track(TrackDescriptor { name, parent_uuid: Some(parent), ..track() })
    }

    fn wait(&mut self, wait: &WaitSpan) {
        let Some(tracks) = self.threads.get(&wait.thread) else { return };
        let uuid = match (tracks.states, tracks.thread) {
            (Some(uuid), _) => uuid,
            (None, thread) => self.child(thread, "state"),
        };
        if let Some(tracks) = self.threads.get_mut(&wait.thread) {
            tracks.states = Some(uuid);
        }
        let notes = [("waker", &wait.waker), ("holder", &wait.holder), ("peer", &wait.peer)];
        let notes = notes.into_iter().filter(|(_, text)| !text.is_empty());
        let notes = notes.map(|(name, text)| text_note(name, text)).collect();
        self.slice(uuid, wait.start_time, wait.duration_ns, wait.state.name(), "state", notes);
    }

    fn request(&mut self, request: &RequestSpan) {
        let Some(tracks) = self.threads.get(&request.thread) else { return };
        let thread = tracks.thread;
        let until = request.start_time.saturating_add(request.duration_ns);
        let free = tracks.requests.iter().position(|(_, end)| *end <= request.start_time);
        let uuid = match free.and_then(|lane| tracks.requests.get(lane)) {
            Some((uuid, _)) => *uuid,
            None => self.child(thread, "requests"),
        };
        if let Some(tracks) = self.threads.get_mut(&request.thread) {
            match free.and_then(|lane| tracks.requests.get_mut(lane)) {
                Some((_, end)) => *end = until,
                None => tracks.requests.push((uuid, until)),
            }
        }
        let mut notes = vec![
            text_note("request_id", &request.request_id),
            text_note("trace_id", &request.trace_id),
        ];
        notes.push(number_note("status", u64::from(request.status)));
        self.slice(uuid, request.start_time, request.duration_ns, &request.name, "request", notes);
    }

    fn slice(
        &mut self,
        track_uuid: u64,
        start: u64,
        duration: u64,
        name: &str,
        category: &str,
        debug_annotations: Vec<DebugAnnotation>,
    ) {
        // An end at the time of its own begin would come before it.
        let end = start.saturating_add(duration.max(1));
        let name = Some(name.to_owned());
        let categories = vec![category.to_owned()];
        let begin = TrackEvent {
            r#type: SLICE_BEGIN,
            name,
            categories,
            debug_annotations,
            ..event(track_uuid)
        };
        self.push(start, begin);
        self.push(end, TrackEvent { r#type: SLICE_END, ..event(track_uuid) });
    }

    fn sample(&mut self, sample: &Sample) {
        let Some(tracks) = self.threads.get(&sample.thread) else { return };
        let track_uuid = tracks.thread;
        let iid = self.interned.stack(Grouping::default().path(sample));
        let mut debug_annotations = vec![number_note("weight_ns", sample.weight_ns)];
        if let Some(request) = &sample.request {
            debug_annotations.push(text_note("request_id", request));
        }
        let event = TrackEvent {
            r#type: INSTANT,
            name: Some(sample.state.name().to_owned()),
            categories: vec![String::from("sample")],
            callstack_iid: Some(iid),
            callstack_weight: Some(sample.weight_ns as f64),
            debug_annotations,
            ..event(track_uuid)
        };
        // Numbers have to be told before they are used, whatever the order of the events.
        if let Some(new) = self.interned.take_new() {
            let packet = TracePacket {
                interned_data: Some(new),
                sequence_flags: Some(NEEDS_STATE),
                ..packet()
            };
            self.trace.packet.push(packet);
        }
        self.push(sample.start_time, event);
    }

    fn push(&mut self, time: u64, event: TrackEvent) {
        let packet = TracePacket {
            timestamp: Some(time),
            track_event: Some(event),
            sequence_flags: Some(NEEDS_STATE),
            ..packet()
        };
        self.events.push((time, packet));
    }
}

fn packet() -> TracePacket {
    TracePacket { trusted_packet_sequence_id: SEQUENCE, ..TracePacket::default() }
}

fn track() -> TrackDescriptor {
    TrackDescriptor::default()
}

fn event(track_uuid: u64) -> TrackEvent {
    TrackEvent { track_uuid, ..TrackEvent::default() }
}

fn text_note(name: &str, text: &str) -> DebugAnnotation {
    let string_value = Some(text.to_owned());
    DebugAnnotation { name: name.to_owned(), string_value, ..DebugAnnotation::default() }
}

fn number_note(name: &str, number: u64) -> DebugAnnotation {
    DebugAnnotation {
        name: name.to_owned(),
        uint_value: Some(number),
        ..DebugAnnotation::default()
    }
}

/// Linux ids fit.
fn id(pid: u32) -> i32 {
    i32::try_from(pid).unwrap_or(i32::MAX)
}
