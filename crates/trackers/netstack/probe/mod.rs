//! The programs of `netstack`: told what to count, and kept in step with the world. Loaded in `load.rs`;
//! what is looked at is in `watched.rs`, what is read of it in `histograms.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use libbpf_rs::btf::Btf;
use libbpf_rs::{Link, MapCore as _, MapFlags, MapHandle, Object};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, TimestampingFlag, setsockopt, socket, sockopt,
};

use super::cgroups::Cgroups;
use super::error::{Error, Result};
use super::{Namespace, Options, Scope, clock};
use crate::record::{self, netstack_clock};
use crate::session::{Doing as _, map, preflight};
use crate::{HookStatus, refusal};

mod histograms;
mod load;
mod watched;

#[cfg(test)]
pub(super) use histograms::REASONS;
use load::{configured, load};
use watched::Watched;

/// How often namespaces, interfaces and cgroups are looked after.
const LOOK_AFTER: Duration = Duration::from_secs(1);

/// Times packets on their way through the receive stack, until it is dropped.
pub struct Netstack {
    options: Options,
    /// Functions are traced: then every namespace is seen, and only filtered.
    functions: bool,
    hooks: Vec<HookStatus>,
    watched: BTreeMap<u32, Watched>,
    interface_names: BTreeMap<(u32, u32), String>,
    /// Those that were asked for and are there.
    wanted_interfaces: BTreeMap<(u32, u32), String>,
    gone_pids: BTreeSet<u32>,
    cgroups: Cgroups,
    /// Those that were asked for and are still there, by number.
    wanted_cgroups: BTreeMap<u64, String>,
    clock: Option<netstack_clock>,
    looked_after: Instant,
    notices: Vec<String>,
    lost: MapHandle,
    clock_map: MapHandle,
    links: Vec<Link>,
    object: Object,
    _stamping: OwnedFd,
}

/// Has the kernel stamp received packets for as long as it is open.
fn ask_for_stamps() -> Result<OwnedFd> {
    let problem = |what| move |source| Error::System { what, source };
    let asking = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)
        .map_err(problem("opening a socket"))?;
    let flags = TimestampingFlag::SOF_TIMESTAMPING_RX_SOFTWARE
        | TimestampingFlag::SOF_TIMESTAMPING_SOFTWARE;
    setsockopt(&asking, sockopt::Timestamping, &flags)
        .map_err(problem("asking for time stamps of received packets (SO_TIMESTAMPING)"))?;
    Ok(asking)
}

impl Netstack {
    /// Loads and attaches the programs. Needs root.
    ///
    /// # Errors
    /// If this kernel or user cannot have them, or what was asked for is not there; the message says
    /// what to do.
    pub fn open(options: Options) -> Result<Self> {
        preflight()?;
        let btf = Btf::from_vmlinux().map_err(|_| crate::Error::NoBtf)?;
        libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Debug, refusal::print)));
        // It takes the kernel a while to begin; so does loading.
        let stamping = ask_for_stamps()?;
        let cgroups = Cgroups::new();
        let config = configured(&options, &cgroups)?;
        let (object, functions, refused) = load(&btf, &config)?;
        let wanted = config.cgroups.iter().map(|cgroup| cgroup.id);
        let wanted_cgroups = wanted.zip(options.cgroups.iter().cloned()).collect();

        let mut netstack = Netstack {
            functions,
            watched: BTreeMap::new(),
            interface_names: BTreeMap::new(),
            wanted_interfaces: BTreeMap::new(),
            gone_pids: BTreeSet::new(),
            cgroups,
            wanted_cgroups,
            clock: None,
            looked_after: Instant::now(),
            notices: Vec::new(),
            lost: map(&object, "lost")?,
            clock_map: map(&object, ".data.clock")?,
            hooks: Vec::new(),
            links: Vec::new(),
            object,
            _stamping: stamping,
            options,
        };
        netstack.keep_clock()?;
        for pid in &netstack.options.pids {
            netstack.put("pids", &pid.to_ne_bytes())?;
        }
        for namespace in netstack.wanted_namespaces()? {
            match netstack.watch(namespace) {
                // It was not asked for by its name, and may be gone again.
                Err(error) if netstack.options.scope == Scope::All => tracing::debug!("{error}"),
                watched => watched?,
            }
        }
        netstack.find_interfaces()?;
        netstack.attach(&btf, &refused)?;
        Ok(netstack)
    }

    /// Which way each hook was attached.
    pub fn hooks(&self) -> &[HookStatus] {
        &self.hooks
    }

    /// Whether functions are traced; otherwise tracepoints and netfilter hooks are used, which only
    /// see the namespaces that were asked for.
    pub fn traces_functions(&self) -> bool {
        self.functions
    }

    /// The namespaces that are looked at. None: all there are.
    pub fn namespaces(&self) -> impl Iterator<Item = &Namespace> {
        self.watched.values().map(|watched| &watched.namespace)
    }

    /// What happened to what is looked at since the last call, in words.
    pub fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }

    /// Keeps step with the world; call it several times a second. After the wall clock was set,
    /// packets are counted as lost until it was called.
    ///
    /// # Errors
    /// If a clock or a map cannot be read.
    pub fn refresh(&mut self) -> Result<()> {
        self.keep_clock()?;
        if self.looked_after.elapsed() >= LOOK_AFTER {
            self.looked_after = Instant::now();
            self.look_after()?;
        }
        Ok(())
    }

    /// Shows every loaded program's name and descriptor, for its statistics.
    pub fn each_program(&self, mut each: impl FnMut(&str, BorrowedFd<'_>)) {
        for program in self.object.progs_mut().filter(|program| program.as_fd().as_raw_fd() >= 0) {
            each(&program.name().to_string_lossy(), program.as_fd());
        }
    }

    fn put(&self, name: &str, key: &[u8]) -> Result<()> {
        map(&self.object, name)?
            .update(key, &[1], MapFlags::ANY)
            .doing(format!("writing the map {name}"))?;
        Ok(())
    }

    fn keep_clock(&mut self) -> Result<()> {
        let problem = |source| Error::System { what: "reading the clocks", source };
        let zero = 0_u32.to_ne_bytes();
        let written = self.clock_map.lookup(&zero, MapFlags::ANY).doing("reading the clock")?;
        let written = written.and_then(|bytes| record::from_bytes::<netstack_clock>(&bytes));
        let paused = written.is_some_and(|clock| clock.paused != 0);
        let Some(clock) = clock::refreshed(self.clock.as_ref(), paused).map_err(problem)? else {
            return Ok(());
        };
        let update = self.clock_map.update(&zero, record::bytes_of(&clock), MapFlags::ANY);
        update.doing("writing the clock")?;
        if let Some(before) = self.clock.replace(clock)
            && before.valid_from != clock.valid_from
        {
            let by = clock.real_offset.wrapping_sub(before.real_offset) as i64 / 1_000_000;
            self.notices.push(format!("the wall clock was set by {by} ms"));
        }
        Ok(())
    }
}
