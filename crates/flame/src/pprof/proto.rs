//! The messages of pprof's `profile.proto`, field by field; its numbers are theirs.

/// `perftools.profiles.Profile`. Strings are indices into `string_table`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Profile {
    /// What a sample's values are.
    #[prost(message, repeated, tag = "1")]
    pub sample_type: Vec<ValueType>,
    /// The samples.
    #[prost(message, repeated, tag = "2")]
    pub sample: Vec<Sample>,
    /// Executables and libraries.
    #[prost(message, repeated, tag = "3")]
    pub mapping: Vec<Mapping>,
    /// Functions at lines.
    #[prost(message, repeated, tag = "4")]
    pub location: Vec<Location>,
    /// Functions.
    #[prost(message, repeated, tag = "5")]
    pub function: Vec<Function>,
    /// All text; the first is empty.
    #[prost(string, repeated, tag = "6")]
    pub string_table: Vec<String>,
    /// When it began, in nanoseconds since the Unix epoch.
    #[prost(int64, tag = "9")]
    pub time_nanos: i64,
    /// How long it took, in nanoseconds.
    #[prost(int64, tag = "10")]
    pub duration_nanos: i64,
    /// Free text.
    #[prost(int64, repeated, tag = "13")]
    pub comment: Vec<i64>,
    /// The sample type to show first.
    #[prost(int64, tag = "14")]
    pub default_sample_type: i64,
}

/// `perftools.profiles.ValueType`.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct ValueType {
    /// Such as `cpu`.
    #[prost(int64, tag = "1")]
    pub r#type: i64,
    /// Such as `nanoseconds`.
    #[prost(int64, tag = "2")]
    pub unit: i64,
}

/// `perftools.profiles.Sample`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Sample {
    /// The innermost first.
    #[prost(uint64, repeated, tag = "1")]
    pub location_id: Vec<u64>,
    /// One for each sample type.
    #[prost(int64, repeated, tag = "2")]
    pub value: Vec<i64>,
    /// What else is known.
    #[prost(message, repeated, tag = "3")]
    pub label: Vec<Label>,
}

/// `perftools.profiles.Label`.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Label {
    /// Its name.
    #[prost(int64, tag = "1")]
    pub key: i64,
    /// Its text.
    #[prost(int64, tag = "2")]
    pub str: i64,
    /// Or its number.
    #[prost(int64, tag = "3")]
    pub num: i64,
}

/// `perftools.profiles.Mapping`.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Mapping {
    /// From 1.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Its file.
    #[prost(int64, tag = "5")]
    pub filename: i64,
    /// Functions are named.
    #[prost(bool, tag = "7")]
    pub has_functions: bool,
    /// Files are named.
    #[prost(bool, tag = "8")]
    pub has_filenames: bool,
    /// Lines are told.
    #[prost(bool, tag = "9")]
    pub has_line_numbers: bool,
}

/// `perftools.profiles.Location`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Location {
    /// From 1.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// 0 for none.
    #[prost(uint64, tag = "2")]
    pub mapping_id: u64,
    /// The functions here.
    #[prost(message, repeated, tag = "4")]
    pub line: Vec<Line>,
}

/// `perftools.profiles.Line`.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Line {
    /// The function.
    #[prost(uint64, tag = "1")]
    pub function_id: u64,
    /// The line in its file, or 0.
    #[prost(int64, tag = "2")]
    pub line: i64,
}

/// `perftools.profiles.Function`.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Function {
    /// From 1.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Its name.
    #[prost(int64, tag = "2")]
    pub name: i64,
    /// Its mangled name.
    #[prost(int64, tag = "3")]
    pub system_name: i64,
    /// Its source file.
    #[prost(int64, tag = "4")]
    pub filename: i64,
}
