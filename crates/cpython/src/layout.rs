//! Where things are inside an interpreter: from `_Py_DebugOffsets` where it has them (3.13 on),
//! else from a table read off the headers of each release.

use crate::frames::{self, FrameLayout, FrameWords};
use crate::memory::word;
use crate::{InspectError, Version};

/// Where the GIL structure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GilAt {
    /// At this offset of `_PyRuntime`.
    Runtime(u64),
    /// Behind the pointer at this offset of the main interpreter.
    Interpreter(u64),
}

/// Where the collector's state is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GcAt {
    Runtime(u64),
    Interpreter(u64),
}

/// Offsets, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// `_PyRuntime.initialized`, where it is known.
    pub(crate) initialized: Option<u64>,
    /// `_PyRuntime.interpreters.head`; `main` is the next word.
    pub(crate) interpreters_head: u64,
    pub(crate) gil: GilAt,
    pub(crate) gc: GcAt,
    /// In the collector's state.
    pub(crate) gc_collecting: u64,
    /// In the collector's state: 3 × (collections, collected, uncollectable).
    pub(crate) gc_stats: u64,
    pub(crate) interp_next: u64,
    pub(crate) interp_id: u64,
    pub(crate) interp_threads: u64,
    pub(crate) interp_modules: u64,
    pub(crate) tstate_prev: u64,
    pub(crate) tstate_next: u64,
    pub(crate) tstate_interp: u64,
    pub(crate) tstate_thread_id: u64,
    pub(crate) tstate_native_id: Option<u64>,
    /// `ht_cached_keys` of a heap type.
    pub(crate) type_cached_keys: u64,
    /// Size of `PyASCIIObject`, after which an ASCII string's characters follow.
    pub(crate) ascii_header: u64,
    pub(crate) frames: FrameLayout,
}

/// What 3.9 and 3.10 share, and the other rows are written as differences from.
const V3_9: Layout = Layout {
    initialized: Some(12),
    interpreters_head: 32,
    gil: GilAt::Runtime(352),
    gc: GcAt::Interpreter(616),
    gc_collecting: 200,
    gc_stats: 128,
    interp_next: 0,
    interp_id: 24,
    interp_threads: 8,
    interp_modules: 856,
    tstate_prev: 0,
    tstate_next: 8,
    tstate_interp: 16,
    tstate_thread_id: 176,
    tstate_native_id: None,
    type_cached_keys: 864,
    ascii_header: 48,
    frames: frames::V3_8,
};

const V3_8: Layout = Layout {
    gil: GilAt::Runtime(1152),
    gc: GcAt::Runtime(344),
    interp_id: 16,
    interp_modules: 56,
    type_cached_keys: 872,
    ..V3_9
};

const V3_10: Layout = Layout { type_cached_keys: 872, frames: frames::V3_10, ..V3_9 };

const V3_11: Layout = Layout {
    initialized: Some(16),
    interpreters_head: 40,
    gil: GilAt::Runtime(360),
    gc: GcAt::Interpreter(648),
    interp_id: 48,
    interp_threads: 16,
    interp_modules: 888,
    tstate_thread_id: 152,
    tstate_native_id: Some(160),
    type_cached_keys: 872,
    frames: frames::V3_11,
    ..V3_9
};

const V3_12: Layout = Layout {
    gil: GilAt::Interpreter(384),
    gc: GcAt::Interpreter(112),
    interp_id: 8,
    interp_threads: 72,
    interp_modules: 944,
    tstate_thread_id: 136,
    tstate_native_id: Some(144),
    type_cached_keys: 880,
    ascii_header: 40,
    frames: frames::V3_12,
    ..V3_11
};

/// How much of `_PyRuntime` [`from_debug_offsets`] needs.
pub(crate) const DEBUG_OFFSETS: usize = 1024;

const COOKIE: &[u8; 8] = b"xdebugpy";

/// The layout of `version`. `head` is the first [`DEBUG_OFFSETS`] bytes of its `_PyRuntime`.
pub(crate) fn layout(version: Version, head: &[u8]) -> Result<Layout, InspectError> {
    let unsupported = |why: &str| InspectError::Unsupported { version, why: why.into() };
    if version.level < crate::Level::Candidate {
        return Err(unsupported("alpha and beta releases change their structures; use a release"));
    }
    match version.minor_pair() {
        (3, 8) => Ok(V3_8),
        (3, 9) => Ok(V3_9),
        (3, 10) => Ok(V3_10),
        (3, 11) => Ok(V3_11),
        (3, 12) => Ok(V3_12),
        (3, 13 | 14) => from_debug_offsets(version, head),
        (major, minor) if (major, minor) < (3, 8) => {
            Err(unsupported("versions before 3.8 keep their GIL elsewhere"))
        }
        _ => Err(unsupported("this version is newer than what Underspan knows (3.8 to 3.14)")),
    }
}

/// Words of `_Py_DebugOffsets`, counted in 8 bytes. They differ by minor version.
struct Words {
    initialized: u64,
    interpreter: usize,
    gc: usize,
    imports: usize,
    gil: usize,
    thread: usize,
    frame: usize,
    code: usize,
    ascii_header: usize,
    collecting: usize,
}

const WORDS_3_13: Words = Words {
    initialized: 600,
    interpreter: 6,
    gc: 10,
    imports: 11,
    gil: 14,
    thread: 19,
    frame: 28,
    code: 34,
    ascii_header: 70,
    collecting: 72,
};

const WORDS_3_14: Words = Words {
    initialized: 776,
    interpreter: 6,
    gc: 11,
    imports: 12,
    gil: 15,
    thread: 22,
    frame: 31,
    code: 39,
    ascii_header: 80,
    collecting: 82,
};

fn from_debug_offsets(version: Version, head: &[u8]) -> Result<Layout, InspectError> {
    // It is initialized data: until the loader has mapped that, something else or nothing is there.
    if head.iter().take(COOKIE.len()).all(|byte| *byte == 0) {
        return Err(InspectError::NotReady("its data is not yet mapped".into()));
    }
    if !head.starts_with(COOKIE) {
        return Err(InspectError::SelfCheck {
            what: "_Py_DebugOffsets",
            expected: "the cookie xdebugpy".into(),
            found: format!("{:02x?}", head.get(..8).unwrap_or_default()),
        });
    }
    let at = |index: usize| word(head, index * 8);
    if Version::from_hex(at(1)) != Some(version) {
        return Err(InspectError::SelfCheck {
            what: "the version in _Py_DebugOffsets",
            expected: version.to_string(),
            found: format!("{:#x}", at(1)),
        });
    }
    if at(2) != 0 {
        return Err(InspectError::Unsupported {
            version,
            why: "this is a free-threaded build: it has no GIL to wait for".into(),
        });
    }
    let words = if version.minor == 13 { WORDS_3_13 } else { WORDS_3_14 };
    let (interp, thread) = (words.interpreter, words.thread);
    let layout = Layout {
        initialized: Some(words.initialized),
        interpreters_head: at(5),
        gil: GilAt::Interpreter(at(words.gil)),
        gc: GcAt::Interpreter(at(words.gc)),
        gc_collecting: at(words.collecting),
        // Not published: it lies directly before `collecting`, in all of these versions.
        gc_stats: at(words.collecting).wrapping_sub(72),
        interp_id: at(interp + 1),
        interp_next: at(interp + 2),
        interp_threads: at(interp + 3),
        interp_modules: at(words.imports),
        tstate_prev: at(thread + 1),
        tstate_next: at(thread + 2),
        tstate_interp: at(thread + 3),
        tstate_thread_id: at(thread + 5),
        tstate_native_id: Some(at(thread + 6)),
        type_cached_keys: V3_12.type_cached_keys,
        ascii_header: at(words.ascii_header),
        frames: frames::published(
            head,
            FrameWords { thread, frame: words.frame, code: words.code },
        )
        .map_err(|(name, offset)| misplaced(name, "inside its structure", offset))?,
    };
    plausible(&layout, at(3), at(interp), at(thread))?;
    Ok(layout)
}

/// Offsets must be aligned and lie inside the structure whose size is published beside them.
fn plausible(
    layout: &Layout,
    runtime: u64,
    interpreter: u64,
    thread: u64,
) -> Result<(), InspectError> {
    let (GilAt::Runtime(gil) | GilAt::Interpreter(gil)) = layout.gil;
    let (GcAt::Runtime(gc) | GcAt::Interpreter(gc)) = layout.gc;
    let fields = [
        ("interpreters_head", layout.interpreters_head, runtime),
        ("ceval_gil", gil, interpreter),
        ("gc.collecting", gc.saturating_add(layout.gc_collecting), interpreter),
        ("gc.generation_stats", gc.saturating_add(layout.gc_stats), interpreter),
        ("interpreter.id", layout.interp_id, interpreter),
        ("interpreter.next", layout.interp_next, interpreter),
        ("threads_head", layout.interp_threads, interpreter),
        ("imports_modules", layout.interp_modules, interpreter),
        ("tstate.prev", layout.tstate_prev, thread),
        ("tstate.next", layout.tstate_next, thread),
        ("tstate.interp", layout.tstate_interp, thread),
        ("tstate.thread_id", layout.tstate_thread_id, thread),
        ("tstate.native_thread_id", layout.tstate_native_id.unwrap_or(0), thread),
        ("asciiobject_size", layout.ascii_header, 128),
    ];
    for (name, offset, size) in fields {
        if offset % 8 != 0 || offset >= size || size > 64 << 20 {
            return Err(misplaced(name, &format!("aligned and below {size}"), offset));
        }
    }
    Ok(())
}

fn misplaced(name: &str, where_it_is: &str, offset: u64) -> InspectError {
    InspectError::SelfCheck {
        what: "the offsets in _Py_DebugOffsets",
        expected: format!("{name} {where_it_is}"),
        found: offset.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_new_and_unfinished_versions_are_refused_in_words() {
        for (hex, word) in
            [(0x0307_10f0, "before 3.8"), (0x030f_00f0, "newer"), (0x030b_00b1, "beta")]
        {
            let version = Version::from_hex(hex).unwrap();
            let error = layout(version, &[]).unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
        }
    }

    #[test]
    fn debug_offsets_of_another_version_or_build_are_refused() {
        let mut head = vec![0; DEBUG_OFFSETS];
        let version = Version::new(3, 13, 0);
        assert!(layout(version, &head).unwrap_err().is_transient());
        head[..8].copy_from_slice(b"ydebugpx");
        assert!(layout(version, &head).unwrap_err().to_string().contains("xdebugpy"));
        head[..8].copy_from_slice(COOKIE);
        head[8..16].copy_from_slice(&0x030d_01f0u64.to_ne_bytes());
        assert!(layout(version, &head).unwrap_err().to_string().contains("version"));
        head[8..16].copy_from_slice(&0x030d_00f0u64.to_ne_bytes());
        assert!(layout(version, &head).unwrap_err().to_string().contains("offsets"));
        head[16] = 1;
        assert!(layout(version, &head).unwrap_err().to_string().contains("free-threaded"));
    }
}
