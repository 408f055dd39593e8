//! The walker on recorded memory of every version, and on memory that is damaged.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use underspan_model::StackEnd;

use super::recording::{Memory, Recording};
use super::walker::walk;
use crate::record::PYTHON_FRAMES;

fn recordings() -> Vec<(PathBuf, Recording)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("stack/tests/recordings");
    let mut found: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    found.into_iter().map(|path| (path.clone(), Recording::load(&path))).collect()
}

#[test]
fn frames_of_every_version_are_found() {
    let recordings = recordings();
    for version in ["3.8.", "3.9.", "3.10.", "3.11.", "3.12.", "3.13.", "3.14."] {
        let prefix = format!("python-{version}");
        let name = |path: &Path| path.file_name().unwrap().to_string_lossy().starts_with(&prefix);
        assert!(recordings.iter().any(|(path, _)| name(path)), "no recording of {version}x");
    }
    for (path, mut recording) in recordings {
        for thread in &recording.threads {
            let walked = walk(&mut recording.memory, &recording.layout, thread.pthread, 0);
            assert_eq!(walked, thread.walk, "{} {}", path.display(), thread.name);
        }
        assert!(recording.threads.iter().any(|thread| thread.walk.frames.len() > 100));
    }
}

#[test]
fn memory_that_is_not_there_ends_the_walk() {
    for (path, recording) in recordings() {
        let thread =
            recording.threads.iter().max_by_key(|thread| thread.walk.frames.len()).unwrap();
        for missing in recording.memory.keys() {
            let mut memory = recording.memory.clone();
            memory.remove(missing);
            let walked = walk(&mut memory, &recording.layout, thread.pthread, 0);
            if walked != thread.walk {
                assert_eq!(walked.end, StackEnd::Unreadable, "{}", path.display());
                assert!(
                    thread
                        .walk
                        .frames
                        .starts_with(&walked.frames[..walked.frames.len().saturating_sub(1)])
                );
            }
        }
    }
}

/// Bytes that are wrong, here and there; everything that is read goes on to somewhere.
struct Damaged<'a> {
    recording: &'a mut Recording,
    every: u64,
    seed: u64,
    reads: u64,
}

impl Memory for Damaged<'_> {
    fn read(&mut self, from: u64, to: &mut [u8]) -> bool {
        self.reads += 1;
        let there = self.recording.memory.read(from, to);
        let mut dice = self.seed ^ self.reads.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        dice ^= dice >> 29;
        if dice.is_multiple_of(self.every) {
            let at = (dice >> 8) as usize % to.len();
            // A word of another place: such pointers lead to something.
            let word = *self.recording.memory.keys().nth(dice as usize % 97).unwrap_or(&0);
            for (to, byte) in to[at..].iter_mut().zip(word.to_ne_bytes()) {
                *to = byte;
            }
            return true;
        }
        there
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn damaged_memory_ends_the_walk(every in 1u64..400, seed: u64) {
        for (_, mut recording) in recordings() {
            let layout = recording.layout;
            let (pthread, tstate) = {
                let thread = &recording.threads[seed as usize % recording.threads.len()];
                (thread.pthread, thread.walk.tstate)
            };
            for tstate in [0, tstate, seed] {
                let mut memory = Damaged { recording: &mut recording, every, seed, reads: 0 };
                let walked = walk(&mut memory, &layout, pthread, tstate);
                prop_assert!(walked.frames.len() <= PYTHON_FRAMES as usize);
                prop_assert!(memory.reads < 20_000);
            }
        }
    }
}
