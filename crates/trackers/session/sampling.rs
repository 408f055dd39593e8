//! The sampling clock and the hardware counters of each CPU. CPUs come and go while the session
//! lives.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd as _, IntoRawFd as _};

use libbpf_rs::{Link, MapCore as _, MapFlags, MapHandle, Object};

use super::Session;
use super::error::{Doing as _, Error, Result};
use super::load::{map, program};
use crate::oncpu::{COUNTS, Counters, PER_CPU, PROGRAM, SAMPLES, clock, online_cpus, period_ns};
use crate::{Attach, HookStatus};

/// What samples, on which CPUs.
pub(super) struct Sampling {
    period: u64,
    counters: Option<Counters>,
    /// The program's map; closing it takes out what was put in through it.
    cells: MapHandle,
    clocks: BTreeMap<u32, Link>,
}

impl Sampling {
    /// Starts the clocks of all CPUs, and says in `hooks` what became of it. `None`: no samples.
    pub(super) fn open(object: &Object, hz: u32, hooks: &mut [HookStatus]) -> Result<Option<Self>> {
        if hz == 0 {
            refuse(hooks, SAMPLES, Attach::CpuClock, "switched off (0 Hz)");
            refuse(hooks, COUNTS, Attach::HardwareCounters, "no samples are taken");
            return Ok(None);
        }
        let counters = Counters::probe();
        let mut sampling = Sampling {
            period: period_ns(hz),
            counters: counters.as_ref().ok().copied(),
            cells: map(object, "counters")?,
            clocks: BTreeMap::new(),
        };
        match &counters {
            Err(why) => refuse(hooks, COUNTS, Attach::HardwareCounters, why),
            Ok(counters) if !counters.missing().is_empty() => {
                tracing::info!("this processor does not count {}", counters.missing().join(", "));
            }
            Ok(_) => {}
        }
        if let Err(error) = sampling.follow_cpus(object) {
            refuse(hooks, SAMPLES, Attach::CpuClock, &error.to_string());
            return Ok(None);
        }
        Ok(Some(sampling))
    }

    /// Starts the clocks of CPUs that came up, and forgets those of CPUs that went down.
    fn follow_cpus(&mut self, object: &Object) -> Result<()> {
        let online = online_cpus().map_err(|error| system("listing CPUs", error))?;
        if online.iter().eq(self.clocks.keys()) {
            return Ok(());
        }
        self.clocks.retain(|cpu, _| online.contains(cpu));
        let program = program(object, PROGRAM)?;
        for cpu in online {
            if self.clocks.contains_key(&cpu) {
                continue;
            }
            self.count(cpu)?;
            let event = clock(cpu, self.period)
                .map_err(|error| system(&format!("opening the clock of CPU {cpu}"), error))?;
            let link = program
                .attach_perf_event(event.as_raw_fd())
                .doing(format!("attaching to the clock of CPU {cpu}"))?;
            // The link closes it.
            let _ = event.into_raw_fd();
            self.clocks.insert(cpu, link);
        }
        Ok(())
    }

    /// Starts the counters of a CPU. The map keeps them open.
    fn count(&self, cpu: u32) -> Result<()> {
        let Some(counters) = self.counters else { return Ok(()) };
        let what = || format!("opening the counters of CPU {cpu}");
        let group = counters.open(cpu).map_err(|error| system(&what(), error))?;
        for (index, counter) in group.into_iter().enumerate() {
            let Some(counter) = counter else { continue };
            let cell = cpu * PER_CPU as u32 + index as u32;
            let fd = counter.as_raw_fd();
            self.cells
                .update(&cell.to_ne_bytes(), &fd.to_ne_bytes(), MapFlags::ANY)
                .doing(what())?;
        }
        Ok(())
    }
}

impl Session {
    /// Samples CPUs that came up since the last call, and no longer those that went down. Cheap:
    /// call it once a second.
    ///
    /// # Errors
    /// If the kernel does not let a new CPU be sampled.
    pub fn follow_cpus(&mut self) -> Result<()> {
        match &mut self.sampling {
            Some(sampling) => sampling.follow_cpus(&self.object),
            None => Ok(()),
        }
    }
}

fn refuse(hooks: &mut [HookStatus], what: &str, attach: Attach, why: &str) {
    for hook in hooks.iter_mut().filter(|hook| hook.what == what) {
        hook.outcome = None;
        hook.failed.push((attach, why.to_owned()));
    }
}

fn system(what: &str, source: std::io::Error) -> Error {
    Error::Bpf { what: what.to_owned(), source: source.into() }
}
