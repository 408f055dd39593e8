//! Where running goroutines were. Their stacks cannot be read while they run, but samples of the CPU
//! have them, and begin with the function that the goroutine was started with.

use std::collections::HashMap;
use std::sync::Arc;

use underspan_flame::{Kind, Place, Sample, Thread};
use underspan_model::{Frame, State};
use underspan_store::Store;

use super::rows::{self, Conditions, Grain};
use super::threads::Threads;
use super::{FlameQuery, Serving};
use crate::Error;

/// The goroutines of a process that were started with one function.
type Started = (String, u32, String);

/// Puts the time of running goroutines where the samples of the CPU are. Its sum stays what it is;
/// that of goroutines without such a sample stays without a stack.
pub(super) async fn placed(
    store: &Store,
    query: &FlameQuery,
    threads: &mut Threads,
    samples: Vec<Sample>,
) -> Result<Vec<Sample>, Error> {
    let (running, mut samples): (Vec<_>, Vec<_>) = samples
        .into_iter()
        .partition(|sample| sample.state == State::Running && sample.place == Place::NoStack);
    if running.is_empty() {
        return Ok(samples);
    }
    let query = FlameQuery { kind: Kind::Cpu, thread: None, ..query.clone() };
    let (conditions, serving) = (Conditions::range(&query), Serving::default());
    let on_cpu =
        rows::samples(store, Kind::Cpu, &conditions, Grain::Summed, threads, &serving).await?;
    let mut places: HashMap<Started, Vec<Sample>> = HashMap::new();
    for sample in on_cpu.samples {
        if let Some(function) = sample.stack().and_then(|stack| started_with(&stack.frames)) {
            let started = (sample.thread.host.clone(), sample.thread.pid, function.to_owned());
            places.entry(started).or_default().push(sample);
        }
    }
    for sample in running {
        let Thread { host, pid, name, .. } = &*sample.thread;
        match places.remove(&(host.clone(), *pid, name.clone())) {
            Some(places) => samples.extend(spread(&sample, places)),
            None => samples.push(sample),
        }
    }
    Ok(samples)
}

/// The sample's time, in the proportion of the samples of the CPU.
fn spread(sample: &Sample, places: Vec<Sample>) -> impl Iterator<Item = Sample> {
    let whole: u128 = places.iter().map(|place| u128::from(place.weight_ns)).sum();
    let (mut before, mut given) = (0_u128, 0_u64);
    places.into_iter().map(move |place| {
        // The difference of two rounded sums: no nanosecond is lost.
        before += u128::from(place.weight_ns);
        let until = before * u128::from(sample.weight_ns) / whole.max(1);
        let until = u64::try_from(until).unwrap_or(u64::MAX);
        let weight_ns = until.saturating_sub(given);
        given = until;
        Sample {
            thread: Arc::clone(&sample.thread),
            weight_ns,
            wait: sample.wait.clone(),
            idle: false,
            ..place
        }
    })
}

/// The function that the goroutine was started with which was on the CPU here. None on a stack of
/// the scheduler's own, and in system calls that its runtime knows of: it does not count them as
/// running.
fn started_with(frames: &[Frame]) -> Option<&str> {
    let mut names = frames.iter().map(|frame| frame.function.as_str());
    if names.clone().any(|name| matches!(name, "syscall.Syscall" | "syscall.Syscall6")) {
        return None;
    }
    names.find(|name| *name == "runtime.goexit")?;
    names.find(|name| !name.contains(".gowrap"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use underspan_model::{FrameKind, Stack};

    fn frames(functions: &[&str]) -> Vec<Frame> {
        let frame = |name: &&str| Frame {
            kind: FrameKind::Native,
            function: (*name).to_owned(),
            file: String::new(),
            line: 0,
            module: String::new(),
        };
        functions.iter().map(frame).collect()
    }

    fn sample(weight_ns: u64, place: Place) -> Sample {
        Sample {
            thread: Arc::new(Thread::default()),
            start_time: 0,
            duration_ns: 0,
            weight_ns,
            unsure_ns: 0,
            count: 1,
            state: State::Running,
            wait: None,
            place,
            idle: false,
            request: None,
            counters: None,
        }
    }

    #[test]
    fn a_goroutine_is_known_by_its_first_function() {
        let of = |functions: &[&str]| started_with(&frames(functions)).map(str::to_owned);
        assert_eq!(
            of(&["runtime.goexit", "main.main.gowrap1", "main.(*consumer).run", "main.decode"]),
            Some(String::from("main.(*consumer).run"))
        );
        assert_eq!(of(&["runtime.goexit", "main.run"]), Some(String::from("main.run")));
        assert_eq!(of(&["runtime.mcall", "runtime.park_m", "runtime.schedule"]), None);
        assert_eq!(of(&["runtime.goexit", "main.run", "syscall.Syscall", "read"]), None);
    }

    #[test]
    fn time_is_spread_without_loss() {
        let place = |functions| {
            let frames = frames(functions);
            sample(3, Place::Stack(Arc::new(Stack { frames, truncated: String::new() })))
        };
        let places = vec![place(&["a"]), place(&["b"]), place(&["c"])];
        let spread: Vec<_> = spread(&sample(1000, Place::NoStack), places).collect();
        let weights: Vec<_> = spread.iter().map(|sample| sample.weight_ns).collect();
        assert_eq!(weights, [333, 333, 334]);
    }
}
