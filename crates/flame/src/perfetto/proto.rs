//! The messages of Perfetto's trace format that are written; the numbers are theirs.

/// `perfetto.protos.Trace`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Trace {
    /// In any order of time.
    #[prost(message, repeated, tag = "1")]
    pub packet: Vec<TracePacket>,
}

/// `perfetto.protos.TracePacket`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TracePacket {
    /// Of several clocks, at one moment.
    #[prost(message, optional, tag = "6")]
    pub clock_snapshot: Option<ClockSnapshot>,
    /// Nanoseconds of the sequence's clock.
    #[prost(uint64, optional, tag = "8")]
    pub timestamp: Option<u64>,
    /// Who writes. Interned data is of one sequence.
    #[prost(uint32, tag = "10")]
    pub trusted_packet_sequence_id: u32,
    /// An event.
    #[prost(message, optional, tag = "11")]
    pub track_event: Option<TrackEvent>,
    /// Text and stacks, by number.
    #[prost(message, optional, tag = "12")]
    pub interned_data: Option<InternedData>,
    /// `SEQ_INCREMENTAL_STATE_CLEARED` = 1, `SEQ_NEEDS_INCREMENTAL_STATE` = 2.
    #[prost(uint32, optional, tag = "13")]
    pub sequence_flags: Option<u32>,
    /// A track.
    #[prost(message, optional, tag = "60")]
    pub track_descriptor: Option<TrackDescriptor>,
}

/// `perfetto.protos.ClockSnapshot`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ClockSnapshot {
    /// The clocks.
    #[prost(message, repeated, tag = "1")]
    pub clocks: Vec<Clock>,
}

/// `perfetto.protos.ClockSnapshot.Clock`.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Clock {
    /// `REALTIME` = 1, `BOOTTIME` = 6.
    #[prost(uint32, tag = "1")]
    pub clock_id: u32,
    /// Nanoseconds.
    #[prost(uint64, tag = "2")]
    pub timestamp: u64,
}

/// `perfetto.protos.TrackDescriptor`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TrackDescriptor {
    /// Any number but 0.
    #[prost(uint64, tag = "1")]
    pub uuid: u64,
    /// Its name, for tracks that are neither a process nor a thread.
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    /// It is a process.
    #[prost(message, optional, tag = "3")]
    pub process: Option<ProcessDescriptor>,
    /// It is a thread.
    #[prost(message, optional, tag = "4")]
    pub thread: Option<ThreadDescriptor>,
    /// The track it is under.
    #[prost(uint64, optional, tag = "5")]
    pub parent_uuid: Option<u64>,
}

/// `perfetto.protos.ProcessDescriptor`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ProcessDescriptor {
    /// Its id.
    #[prost(int32, tag = "1")]
    pub pid: i32,
    /// Its name.
    #[prost(string, tag = "6")]
    pub process_name: String,
}

/// `perfetto.protos.ThreadDescriptor`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ThreadDescriptor {
    /// Its process.
    #[prost(int32, tag = "1")]
    pub pid: i32,
    /// Its id.
    #[prost(int64, tag = "2")]
    pub tid: i64,
    /// Its name.
    #[prost(string, tag = "5")]
    pub thread_name: String,
}

/// `perfetto.protos.TrackEvent`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TrackEvent {
    /// What is known of it.
    #[prost(message, repeated, tag = "4")]
    pub debug_annotations: Vec<DebugAnnotation>,
    /// `TYPE_SLICE_BEGIN` = 1, `TYPE_SLICE_END` = 2, `TYPE_INSTANT` = 3.
    #[prost(int32, tag = "9")]
    pub r#type: i32,
    /// Its track.
    #[prost(uint64, tag = "11")]
    pub track_uuid: u64,
    /// Its categories.
    #[prost(string, repeated, tag = "22")]
    pub categories: Vec<String>,
    /// Its name.
    #[prost(string, optional, tag = "23")]
    pub name: Option<String>,
    /// Its stack, of the interned ones.
    #[prost(uint64, optional, tag = "56")]
    pub callstack_iid: Option<u64>,
    /// What the stack weighs.
    #[prost(double, optional, tag = "57")]
    pub callstack_weight: Option<f64>,
}

/// `perfetto.protos.DebugAnnotation`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DebugAnnotation {
    /// A number.
    #[prost(uint64, optional, tag = "3")]
    pub uint_value: Option<u64>,
    /// Or text.
    #[prost(string, optional, tag = "6")]
    pub string_value: Option<String>,
    /// Its name.
    #[prost(string, tag = "10")]
    pub name: String,
}

/// `perfetto.protos.InternedData`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct InternedData {
    /// Names of functions.
    #[prost(message, repeated, tag = "5")]
    pub function_names: Vec<InternedString>,
    /// Functions at lines.
    #[prost(message, repeated, tag = "6")]
    pub frames: Vec<Frame>,
    /// Stacks.
    #[prost(message, repeated, tag = "7")]
    pub callstacks: Vec<Callstack>,
    /// Names of executables and libraries.
    #[prost(message, repeated, tag = "17")]
    pub mapping_paths: Vec<InternedString>,
    /// Names of source files.
    #[prost(message, repeated, tag = "18")]
    pub source_paths: Vec<InternedString>,
    /// Executables and libraries.
    #[prost(message, repeated, tag = "19")]
    pub mappings: Vec<Mapping>,
}

/// `perfetto.protos.InternedString`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct InternedString {
    /// Its number, from 1.
    #[prost(uint64, tag = "1")]
    pub iid: u64,
    /// Its text.
    #[prost(bytes = "vec", tag = "2")]
    pub str: Vec<u8>,
}

/// `perfetto.protos.Frame`.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Frame {
    /// Its number, from 1.
    #[prost(uint64, tag = "1")]
    pub iid: u64,
    /// Of `function_names`.
    #[prost(uint64, tag = "2")]
    pub function_name_id: u64,
    /// Of `mappings`.
    #[prost(uint64, tag = "3")]
    pub mapping_id: u64,
    /// Of `source_paths`.
    #[prost(uint64, optional, tag = "5")]
    pub source_path_iid: Option<u64>,
    /// The line.
    #[prost(uint32, optional, tag = "6")]
    pub line_number: Option<u32>,
}

/// `perfetto.protos.Callstack`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Callstack {
    /// Its number, from 1.
    #[prost(uint64, tag = "1")]
    pub iid: u64,
    /// The outermost first.
    #[prost(uint64, repeated, packed = "false", tag = "2")]
    pub frame_ids: Vec<u64>,
}

/// `perfetto.protos.Mapping`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Mapping {
    /// Its number, from 1.
    #[prost(uint64, tag = "1")]
    pub iid: u64,
    /// Of `mapping_paths`.
    #[prost(uint64, repeated, packed = "false", tag = "7")]
    pub path_string_ids: Vec<u64>,
}
