//! Memory that the walker reads: a living process's, or what was recorded of one.
//!
//! A recording is text: the layout, the threads with what the walker must find, and the memory that it
//! takes to find it. `UNDERSPAN_RECORD=1 cargo test -p underspan-trackers living` makes them anew from
//! the interpreters that it finds.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

use super::walker::Walk;
use crate::record::{bytes_of, python_layout, read};
use crate::stack::PythonFrame;
use underspan_model::StackEnd;

/// Where the walker reads.
pub(super) trait Memory {
    /// Fills `to`, or returns false.
    fn read(&mut self, from: u64, to: &mut [u8]) -> bool;
}

/// A living process's, which remembers what was read.
pub(super) struct Living {
    memory: File,
    pub(super) read: BTreeMap<u64, Vec<u8>>,
}

impl Living {
    pub(super) fn new(pid: i32) -> Self {
        let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
        Living { memory, read: BTreeMap::new() }
    }
}

impl Memory for Living {
    fn read(&mut self, from: u64, to: &mut [u8]) -> bool {
        if self.memory.read_exact_at(to, from).is_err() {
            return false;
        }
        let kept = self.read.entry(from).or_default();
        if kept.len() < to.len() {
            *kept = to.to_vec();
        }
        true
    }
}

/// A thread, and what the walker must find of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Thread {
    pub(super) name: String,
    pub(super) pthread: u64,
    pub(super) walk: Walk,
}

/// What was recorded of a process.
#[derive(Debug)]
pub(super) struct Recording {
    pub(super) layout: python_layout,
    pub(super) threads: Vec<Thread>,
    pub(super) memory: BTreeMap<u64, Vec<u8>>,
}

impl Memory for BTreeMap<u64, Vec<u8>> {
    fn read(&mut self, from: u64, to: &mut [u8]) -> bool {
        // Pieces overlap: one of the few before the address may reach over it.
        for (start, bytes) in self.range(..=from).rev().take(64) {
            let skip = (from - start) as usize;
            if let Some(found) = bytes.get(skip..skip + to.len()) {
                to.copy_from_slice(found);
                return true;
            }
        }
        false
    }
}

impl Recording {
    pub(super) fn save(&self, path: &Path) {
        let mut text = format!("layout {}\n", hex(bytes_of(&self.layout)));
        for Thread { name, pthread, walk } in &self.threads {
            let end = walk.end.name();
            let _ = write!(text, "thread {name} {pthread:x} {end} {:x}", walk.tstate);
            for frame in &walk.frames {
                let PythonFrame { code, check, lasti, entry } = frame;
                let _ = write!(text, " {code:x},{check:x},{lasti:x},{}", u8::from(*entry));
            }
            text.push('\n');
        }
        for (start, bytes) in &self.memory {
            let _ = writeln!(text, "memory {start:x} {}", hex(bytes));
        }
        let mut file = GzEncoder::new(File::create(path).unwrap(), Compression::best());
        file.write_all(text.as_bytes()).unwrap();
        file.finish().unwrap();
    }

    pub(super) fn load(path: &Path) -> Self {
        let mut text = String::new();
        GzDecoder::new(File::open(path).unwrap()).read_to_string(&mut text).unwrap();
        let (mut layout, mut threads, mut memory) = (None, Vec::new(), BTreeMap::new());
        for line in text.lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            match fields[0] {
                "layout" => layout = Some(read(&unhex(fields[1])).unwrap()),
                "thread" => threads.push(Thread {
                    name: fields[1].to_owned(),
                    pthread: number(fields[2]),
                    walk: Walk {
                        end: StackEnd::ALL.into_iter().find(|end| end.name() == fields[3]).unwrap(),
                        tstate: number(fields[4]),
                        frames: fields[5..].iter().map(|frame| python(frame)).collect(),
                    },
                }),
                "memory" => drop(memory.insert(number(fields[1]), unhex(fields[2]))),
                other => panic!("{other}"),
            }
        }
        Recording { layout: layout.unwrap(), threads, memory }
    }
}

fn python(text: &str) -> PythonFrame {
    let fields: Vec<u64> = text.split(',').map(number).collect();
    let [code, check, lasti, entry] = fields[..] else { panic!("{text}") };
    PythonFrame { code, check: check as u32, lasti: lasti as u32, entry: entry == 1 }
}

fn number(text: &str) -> u64 {
    u64::from_str_radix(text, 16).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let (digits, _) = text.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| number(std::str::from_utf8(pair).unwrap()) as u8;
    digits.iter().map(byte).collect()
}
