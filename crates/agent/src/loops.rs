//! Where in a process's C library its event loops can be seen to ask for events.
//!
//! A uprobe on an instruction that the kernel must step over costs nine microseconds, on one that it
//! can emulate (`nop`, `push`, a branch) half of one. So the probe goes to the first such instruction
//! that every call passes with its arguments still in their registers.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    Register,
};
use object::{Object as _, ObjectSegment as _, ObjectSymbol as _, SymbolKind};
use underspan_trackers::Session;
use underspan_trackers::event_loop::FUNCTIONS;

/// Longest way from a function's entry that is looked at.
const BYTES: usize = 64;

/// A program, and where in the file it is to be attached.
type Call = (&'static str, u64);

/// After its start a process takes a moment to load its libraries: it is looked at again then, each
/// time after twice as long.
const FIRST_LOOK: Duration = Duration::from_millis(20);
/// A process that has no C library by then has none.
const LAST_LOOK: Duration = Duration::from_secs(5);

/// Processes whose calls are to be probed.
#[derive(Debug, Default)]
pub(crate) struct LoopProbes {
    loops: Loops,
    due: HashMap<u32, (Instant, Duration)>,
}

impl LoopProbes {
    /// A process is watched from now on. A forked one has its parent's libraries already.
    pub(crate) fn watch(&mut self, pid: u32) {
        self.due.insert(pid, (Instant::now(), FIRST_LOOK));
    }

    /// It has ended, or is no longer watched.
    pub(crate) fn forget(&mut self, session: &mut Session, pid: u32) {
        self.due.remove(&pid);
        session.detach_loops(pid);
    }

    /// Attaches to processes that are due. Returns when to call this next.
    pub(crate) fn attach_due(&mut self, session: &mut Session) -> Option<Instant> {
        let now = Instant::now();
        let due: Vec<_> = self.due.iter().filter(|(_, (at, _))| *at <= now).collect();
        let due: Vec<_> = due.into_iter().map(|(pid, (_, pause))| (*pid, *pause)).collect();
        for (pid, pause) in due {
            self.due.remove(&pid);
            let attached = self.loops.of(pid).and_then(|(path, calls)| {
                session.attach_loops(pid, &path, &calls).map_err(|error| error.to_string())
            });
            match attached {
                Ok(()) => {}
                Err(_) if pause <= LAST_LOOK => {
                    self.due.insert(pid, (now + pause, pause * 2));
                }
                Err(why) => tracing::debug!(pid, "stalls of its event loops are not seen: {why}"),
            }
        }
        self.due.values().map(|(at, _)| *at).min()
    }
}

/// Finds the calls; remembers what it found per file.
#[derive(Debug, Default)]
struct Loops {
    known: HashMap<(u64, u64), Vec<Call>>,
}

impl Loops {
    /// The process's C library, by a path that opens it from here, and its calls.
    fn of(&mut self, pid: u32) -> Result<(PathBuf, Vec<Call>), String> {
        let path = libc_of(pid)?;
        let meta = fs::metadata(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let file = (meta.dev(), meta.ino());
        if let Some(calls) = self.known.get(&file) {
            return Ok((path, calls.clone()));
        }
        let calls = calls(&path)?;
        self.known.insert(file, calls.clone());
        Ok((path, calls))
    }
}

/// Through `map_files`, so that another mount namespace's or a deleted file is found too.
fn libc_of(pid: u32) -> Result<PathBuf, String> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))
        .map_err(|error| format!("its mappings cannot be read: {error}"))?;
    let range = maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let name = rest.rsplit('/').next()?;
        (name.starts_with("libc.so.6") || name.starts_with("libc-2.")).then_some(range)
    });
    let range = range.ok_or("it has not loaded glibc")?;
    Ok(PathBuf::from(format!("/proc/{pid}/map_files/{range}")))
}

fn calls(path: &Path) -> Result<Vec<Call>, String> {
    let data = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let file =
        object::File::parse(&*data).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut calls = Vec::new();
    for symbol in file.dynamic_symbols().filter(|symbol| symbol.kind() == SymbolKind::Text) {
        let Ok(name) = symbol.name() else { continue };
        let Some((_, program)) = FUNCTIONS.iter().find(|(function, _)| *function == name) else {
            continue;
        };
        let Some(offset) = file_offset(&file, symbol.address()) else { continue };
        let code =
            usize::try_from(offset).ok().and_then(|from| data.get(from..)).unwrap_or_default();
        if let Some(cheap) = cheap_instruction(&code[..code.len().min(BYTES)]) {
            calls.push((*program, offset + cheap));
        }
    }
    // Some functions have two versions at one address.
    calls.sort_unstable();
    calls.dedup();
    match calls.is_empty() {
        true => Err(format!("{} has no call that could be probed cheaply", path.display())),
        false => Ok(calls),
    }
}

fn file_offset(file: &object::File<'_>, address: u64) -> Option<u64> {
    file.segments().find_map(|segment| {
        let inside = address.checked_sub(segment.address())?;
        let (offset, size) = segment.file_range();
        (inside < size).then_some(offset + inside)
    })
}

/// The offset of the first instruction that is cheap to probe, if every call reaches it and nothing
/// before it changes the arguments.
fn cheap_instruction(code: &[u8]) -> Option<u64> {
    const ARGUMENTS: [Register; 3] = [Register::RDI, Register::RSI, Register::RDX];
    let mut info = InstructionInfoFactory::new();
    for instruction in Decoder::with_ip(64, code, 0, DecoderOptions::NONE).iter() {
        if instruction.is_invalid() {
            return None;
        }
        if is_emulated(&instruction) {
            return Some(instruction.ip());
        }
        let writes = info.info(&instruction).used_registers().iter().any(|used| {
            let written =
                !matches!(used.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::None);
            written && ARGUMENTS.contains(&used.register().full_register())
        });
        if writes || instruction.flow_control() != FlowControl::Next {
            return None;
        }
    }
    None
}

/// What Linux emulates on x86-64: one-byte and long `nop`s, `push` of a register, and branches to a
/// fixed place. `endbr64` is none of them.
fn is_emulated(instruction: &Instruction) -> bool {
    match instruction.flow_control() {
        FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch | FlowControl::Call => {
            !matches!(
                instruction.mnemonic(),
                Mnemonic::Loop | Mnemonic::Loope | Mnemonic::Loopne | Mnemonic::Jrcxz
            )
        }
        FlowControl::Next => {
            instruction.mnemonic() == Mnemonic::Nop
                || (instruction.mnemonic() == Mnemonic::Push
                    && instruction.op0_kind() == iced_x86::OpKind::Register)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_branch_of_a_call_that_asks_first_whether_there_are_threads() {
        // cmpb $0, x(%rip); mov %ecx, %r10d; je …
        let code = [0x80, 0x3d, 0xf1, 0x26, 0x0d, 0, 0, 0x41, 0x89, 0xca, 0x74, 0x14, 0xb8, 0xe8];
        assert_eq!(cheap_instruction(&code), Some(10));
    }

    #[test]
    fn after_endbr64_and_never_on_it() {
        // endbr64; push %r12
        assert_eq!(cheap_instruction(&[0xf3, 0x0f, 0x1e, 0xfa, 0x41, 0x54]), Some(4));
    }

    #[test]
    fn not_where_an_argument_is_gone() {
        // mov %rsi, %rdi; push %rbp
        assert_eq!(cheap_instruction(&[0x48, 0x89, 0xf7, 0x55]), None);
        // xor %edx, %edx; push %rbp: the 32-bit name is the same register
        assert_eq!(cheap_instruction(&[0x31, 0xd2, 0x55]), None);
    }

    #[test]
    fn not_beyond_a_return_or_what_is_no_code() {
        assert_eq!(cheap_instruction(&[0xc3, 0x55]), None);
        assert_eq!(cheap_instruction(&[]), None);
        assert_eq!(cheap_instruction(&[0x06, 0x55]), None);
    }

    #[test]
    fn this_hosts_libc_has_them_all() {
        let (path, calls) = Loops::default().of(std::process::id()).unwrap();
        assert!(path.starts_with("/proc"));
        for program in ["loop_epoll", "loop_poll", "loop_select"] {
            assert!(
                calls.iter().any(|(of, _)| *of == program),
                "{program} is missing of {calls:?}"
            );
        }
    }

    #[test]
    fn who_is_gone_has_no_libc() {
        assert!(Loops::default().of(u32::MAX).is_err());
    }
}
