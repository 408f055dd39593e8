//! What the boxes of a picture are called.

use underspan_model::{Code, Frame, FrameKind, State};

use crate::sample::Thread;

/// A node of a call tree. Nodes under the same parent with equal labels are one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Label {
    /// All time.
    Root,
    /// A process, by name.
    Process(String),
    /// A thread: name, process and id. Without ids all of that name.
    Thread(String, u32, u32),
    /// Outer frames are missing, and why.
    Truncated(String),
    /// A function.
    Function(Function),
    /// What a thread did at the place below.
    State(State),
    /// What it waited for, in the words of its runtime.
    Wait(State, String),
    /// A sample without a stack.
    NoStack,
    /// Time that no sample stands for.
    NotSampled(State),
}

/// A function; in pictures by line, with a line.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Its source file, or empty.
    pub file: String,
    /// Its executable, library or kernel module, or empty.
    pub module: String,
    /// The line in the file, or 0.
    pub line: u32,
    /// Where its code runs, or its language.
    pub kind: FrameKind,
}

impl Function {
    /// The frame's function, with its line if `by_line`.
    pub fn of(frame: &Frame, by_line: bool) -> Function {
        Function {
            name: frame.function.clone(),
            file: frame.file.clone(),
            module: frame.module.clone(),
            line: if by_line { frame.line } else { 0 },
            kind: frame.kind,
        }
    }

    /// What it is called.
    pub(crate) fn code(&self) -> Code<'_> {
        Code { kind: self.kind, function: &self.name, module: &self.module }
    }

    /// The file's name without its folders.
    pub fn base_name(&self) -> &str {
        self.file.rsplit('/').next().unwrap_or(&self.file)
    }

    /// `reports.py:88`, or what is known of it.
    pub fn position(&self) -> String {
        match (self.base_name(), self.line) {
            ("", _) => String::new(),
            (file, 0) => file.to_owned(),
            (file, line) => format!("{file}:{line}"),
        }
    }
}

impl Label {
    /// A frame's label.
    pub fn frame(frame: &Frame, by_line: bool) -> Label {
        Label::Function(Function::of(frame, by_line))
    }

    /// A thread's label.
    pub fn thread(thread: &Thread) -> Label {
        Label::Thread(thread.name.clone(), thread.pid, thread.tid)
    }

    /// The label of all threads of this name.
    pub fn threads(thread: &Thread) -> Label {
        Label::Thread(thread.name.clone(), 0, 0)
    }

    /// In one line. A Python function comes with its file, a native one without: its name says
    /// enough, and its file is seldom known. Kernel functions end in `_[k]`, as is the custom.
    pub fn text(&self) -> String {
        match self {
            Label::Root => String::from("all"),
            Label::Process(name) if name.is_empty() => String::from("[unnamed process]"),
            Label::Process(name) => name.clone(),
            Label::Thread(name, _, 0) => name.clone(),
            Label::Thread(name, _, tid) => format!("{name} (thread {tid})"),
            Label::Truncated(why) => format!("[truncated: {why}]"),
            Label::State(state) => format!("[{}]", state.name()),
            Label::Wait(_, reason) => format!("[{reason}]"),
            Label::NoStack => String::from("[no stack]"),
            Label::NotSampled(state) => format!("[not sampled: {}]", state.name()),
            Label::Function(function) => match (function.kind, function.position()) {
                (FrameKind::Kernel, _) => format!("{}_[k]", function.name),
                (FrameKind::Native, position) if function.line == 0 || position.is_empty() => {
                    function.name.clone()
                }
                (_, position) if position.is_empty() => function.name.clone(),
                (_, position) => format!("{} ({position})", function.name),
            },
        }
    }

    /// The function, if it is one.
    pub fn function(&self) -> Option<&Function> {
        match self {
            Label::Function(function) => Some(function),
            _ => None,
        }
    }
}
