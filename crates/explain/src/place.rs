//! From stacks to a line that its author recognises.

use std::collections::BTreeMap;

use serde::Serialize;
use underspan_model::{Frame, FrameKind, Sample, Stack};

use crate::interval::{Cover, Interval};
use crate::words;

/// A place is named only if the thread was there for at least this share of what was sampled.
const MOSTLY: f64 = 0.5;

/// Where in the code a thread was.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Place {
    /// The function it was in: the innermost one that has a name of its own language (Python's
    /// before the interpreter's).
    pub function: String,
    /// The application's file from which that function was called, or its own.
    pub file: String,
    /// The line in that file, or 0.
    pub line: u32,
    /// The application's function in that file.
    pub caller: String,
    /// For how many nanoseconds samples show the thread there.
    pub ns: u64,
    /// No Python: what has a line may be anybody's code, far further out.
    #[serde(skip)]
    native: bool,
}

impl Place {
    /// `json.dumps at reports.py:88`; `SSL_read, called from fetch (client.c:12)`.
    pub fn words(&self) -> String {
        if self.native && self.line != 0 && self.caller != self.function {
            let file = base_name(&self.file);
            return format!(
                "{}, called from {} ({file}:{})",
                self.function, self.caller, self.line
            );
        }
        match (self.file.is_empty(), self.line) {
            (true, _) => self.function.clone(),
            (false, 0) => format!("{} ({})", self.function, base_name(&self.file)),
            (false, line) => format!("{} at {}:{line}", self.function, base_name(&self.file)),
        }
    }
}

/// Where one thread was for most of the sampled part of some time, if there is one such place.
pub(crate) fn mostly<'a>(
    samples: impl Iterator<Item = &'a Sample>,
    during: &Cover,
) -> Option<Place> {
    let mut places: BTreeMap<Place, u64> = BTreeMap::new();
    let mut total = 0u64;
    for sample in samples {
        let ns = during.within(Interval::new(sample.start_time, sample.duration_ns)).total();
        total = total.saturating_add(ns);
        if ns > 0
            && let Some(place) = place(&sample.stack)
        {
            let sum = places.entry(place).or_default();
            *sum = sum.saturating_add(ns);
        }
    }
    let (place, ns) = places.into_iter().max_by_key(|(_, ns)| *ns)?;
    (words::fraction(ns, total) >= MOSTLY).then_some(Place { ns, ..place })
}

/// Where code called `gc.collect()`, if that is what a stack shows: the interpreter's function of that name,
/// beneath no other Python. Collections that nobody asked for do not come by it.
pub(crate) fn asks_to_collect(stack: &Stack) -> Option<Place> {
    let mut native = stack.frames.iter().rev().take_while(|f| f.kind != FrameKind::Python);
    let is_builtin = |frame: &Frame| {
        let name = frame.function.split('.').next().unwrap_or_default();
        frame.kind == FrameKind::Native && ["gc_collect", "gc_collect_impl"].contains(&name)
    };
    let asked = native.any(is_builtin) && stack.frames.iter().any(|f| f.kind == FrameKind::Python);
    asked.then(|| place(stack)).flatten()
}

/// The place that one stack shows.
pub(crate) fn place(stack: &Stack) -> Option<Place> {
    let innermost_first = || stack.frames.iter().rev();
    let python = |frame: &&Frame| frame.kind == FrameKind::Python;
    let function = innermost_first().find(python).or_else(|| {
        innermost_first().find(|frame| frame.kind == FrameKind::Native && is_named(frame))
    })?;
    // What is native below Python is the interpreter's, which may have lines too.
    let same_language = |frame: &&Frame| frame.kind == function.kind && is_application(frame);
    let caller = innermost_first().find(same_language).unwrap_or(function);
    Some(Place {
        function: qualified(function),
        file: caller.file.clone(),
        line: caller.line,
        caller: caller.function.clone(),
        ns: 0,
        native: function.kind == FrameKind::Native,
    })
}

fn is_named(frame: &Frame) -> bool {
    !frame.function.is_empty() && !frame.function.starts_with("0x") && !is_plumbing(frame)
}

/// The C library's way into the kernel says nothing of who called it; nor where it is linked statically,
/// and its module is the program's.
fn is_plumbing(frame: &Frame) -> bool {
    let module = base_name(&frame.module);
    frame.code().is_way_to_kernel()
        || ["libc.so", "libc-", "libpthread", "ld-linux", "[vdso]"]
            .iter()
            .any(|own| module.starts_with(own))
}

/// Code that the service's authors wrote, as far as its path tells.
fn is_application(frame: &Frame) -> bool {
    const NOT: [&str; 6] = [
        "/lib/python",
        "/lib64/python",
        "/site-packages/",
        "/dist-packages/",
        "<frozen",
        "<string>",
    ];
    match frame.kind {
        FrameKind::Kernel => false,
        FrameKind::Python => !NOT.iter().any(|part| frame.file.contains(part)),
        FrameKind::Native => frame.line != 0 && is_named(frame) && !frame.file.starts_with("/usr/"),
    }
}

/// `json.dumps` for `dumps` in `…/json/__init__.py`: what one would search for. The application's own
/// functions need no module: their file is told.
fn qualified(frame: &Frame) -> String {
    if frame.kind != FrameKind::Python || is_application(frame) {
        return frame.function.clone();
    }
    match module(&frame.file) {
        Some(module) => format!("{module}.{}", frame.function),
        None => frame.function.clone(),
    }
}

/// The module that a library's file is imported as.
fn module(file: &str) -> Option<String> {
    let library = ["/site-packages/", "/dist-packages/"];
    let inside = library.iter().find_map(|part| file.split_once(part)).map(|(_, rest)| rest);
    let inside = inside.or_else(|| {
        // `/usr/lib/python3.11/json/encoder.py`
        let (_, rest) =
            file.split_once("/lib/python").or_else(|| file.split_once("/lib64/python"))?;
        rest.split_once('/').map(|(_, rest)| rest)
    });
    let frozen = || file.strip_prefix("<frozen ").and_then(|rest| rest.strip_suffix('>'));
    let path = inside.or_else(frozen)?;
    let path = path.strip_suffix(".py").unwrap_or(path);
    let path = path.strip_suffix("/__init__").unwrap_or(path);
    Some(path.replace('/', "."))
}

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use underspan_model::State;

    fn frame(kind: FrameKind, function: &str, file: &str, line: u32) -> Frame {
        Frame { kind, function: function.into(), file: file.into(), line, module: String::new() }
    }

    fn python(function: &str, file: &str, line: u32) -> Frame {
        frame(FrameKind::Python, function, file, line)
    }

    fn stack(frames: &[Frame]) -> Stack {
        Stack { frames: frames.to_vec(), truncated: String::new() }
    }

    #[test]
    fn the_callee_is_named_and_the_applications_line() {
        let stack = stack(&[
            python("Thread.run", "/usr/lib/python3.11/threading.py", 975),
            python("export", "/srv/shop/reports.py", 88),
            python("dumps", "/usr/lib/python3.11/json/__init__.py", 231),
            python("JSONEncoder.encode", "/usr/lib/python3.11/json/encoder.py", 200),
            frame(FrameKind::Native, "c_make_encoder", "", 0),
            frame(FrameKind::Kernel, "futex_wait", "", 0),
        ]);
        let place = place(&stack).unwrap();
        assert_eq!(place.words(), "json.encoder.JSONEncoder.encode at reports.py:88");
        assert_eq!(place.caller, "export");
    }

    #[test]
    fn the_applications_own_function_needs_no_module() {
        let stack = stack(&[
            python("main", "/srv/shop/app.py", 3),
            python("Cart.total", "/srv/shop/cart.py", 17),
        ]);
        assert_eq!(place(&stack).unwrap().words(), "Cart.total at cart.py:17");
    }

    #[test]
    fn an_interpreter_with_debug_information_is_no_application() {
        let stack = stack(&[
            frame(FrameKind::Python, "read", "/app/reports.py", 40),
            frame(FrameKind::Native, "acquire_timed", "/build/Modules/_threadmodule.c", 98),
            frame(FrameKind::Native, "__futex_wait", "nptl/futex-internal.c", 57),
        ]);
        let place = place(&stack).unwrap();
        assert_eq!(
            (place.words().as_str(), place.caller.as_str()),
            ("read at reports.py:40", "read")
        );
    }

    #[test]
    fn without_python_the_innermost_symbol_that_is_not_the_c_librarys() {
        let mut read = frame(FrameKind::Native, "__libc_recv", "", 0);
        read.module = "/usr/lib/x86_64-linux-gnu/libc.so.6".into();
        let stack = stack(&[
            frame(FrameKind::Native, "main", "/src/server.c", 10),
            frame(FrameKind::Native, "serve", "/src/server.c", 42),
            read,
            frame(FrameKind::Kernel, "tcp_recvmsg", "", 0),
        ]);
        assert_eq!(place(&stack).unwrap().words(), "serve at server.c:42");
    }

    #[test]
    fn a_line_of_another_native_function_is_told_as_its_own() {
        let stack = stack(&[
            frame(FrameKind::Native, "uv__read", "/src/deps/uv/src/unix/stream.c", 1143),
            frame(FrameKind::Native, "node::LibuvStreamWrap::OnUvRead", "", 0),
            frame(FrameKind::Native, "v8::base::Time::Now()", "", 0),
        ]);
        assert_eq!(
            place(&stack).unwrap().words(),
            "v8::base::Time::Now(), called from uv__read (stream.c:1143)"
        );
    }

    #[test]
    fn a_system_call_is_no_place_also_where_the_c_library_is_part_of_the_program() {
        let stack = stack(&[
            frame(FrameKind::Native, "serve", "/src/server.c", 42),
            frame(FrameKind::Native, "syscall", "/src/musl/syscall.s", 13),
        ]);
        assert_eq!(place(&stack).unwrap().words(), "serve at server.c:42");
    }

    #[test]
    fn nothing_is_named_where_there_is_no_name() {
        assert_eq!(place(&stack(&[frame(FrameKind::Native, "0x7f00", "", 0)])), None);
        assert_eq!(place(&Stack::default()), None);
    }

    #[test]
    fn a_place_needs_half_of_what_was_sampled() {
        let at = |start, ns, line| Sample {
            start_time: start,
            duration_ns: ns,
            state: State::Running,
            stack: stack(&[python("f", "/srv/a.py", line)]),
            ..Sample::default()
        };
        let during = Cover::from(Interval::new(0, 100));
        let most = [at(0, 60, 1), at(60, 40, 2)];
        assert_eq!(mostly(most.iter(), &during).map(|p| (p.line, p.ns)), Some((1, 60)));
        let none = [at(0, 40, 1), at(40, 30, 2), at(70, 30, 3)];
        assert_eq!(mostly(none.iter(), &during), None);
        // What lies outside counts for nothing.
        let outside = [at(90, 400, 1), at(0, 90, 2)];
        assert_eq!(mostly(outside.iter(), &during).map(|p| p.line), Some(2));
        assert_eq!(mostly([].iter(), &during), None);
    }
}
