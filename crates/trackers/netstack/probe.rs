//! The programs: loaded by the set that this kernel allows, told what to count, and read.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use libbpf_rs::btf::Btf;
use libbpf_rs::{Link, MapCore as _, MapFlags, MapHandle, Object, ObjectBuilder};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, TimestampingFlag, setsockopt, socket, sockopt,
};

use super::cgroups::Cgroups;
use super::error::{Error, Result};
use super::hooks::{HOOKS, NETFILTER};
use super::{Histogram, Namespace, Options, Point, Scope, buckets, clock};
use crate::record::{
    self, NETSTACK_CGROUPS, netstack_cgroup, netstack_clock, netstack_config, netstack_histogram,
    netstack_interface, netstack_key, netstack_lost,
};
use crate::session::{Doing as _, available, map, preflight, program};
use crate::{Attach, Hook, HookStatus, LostCount, NetfilterHook, Program, refusal};

/// The programs. Aligned as libelf wants it.
#[repr(C, align(8))]
struct Aligned<B: ?Sized>(B);
static OBJECT: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/netstack.bpf.o")));

/// How often namespaces, interfaces and cgroups are looked after.
const LOOK_AFTER: Duration = Duration::from_secs(1);
/// Programs of other sessions may be at the same place already; then the next is taken.
const PRIORITIES: i32 = 64;

/// Names of the reasons, in the order of `enum netstack_lost`.
pub(super) const REASONS: [&str; 4] = ["map_full", "unstamped", "clock_step", "unmatched"];

/// A namespace that packets are looked at in. Its links go when it is dropped.
struct Watched {
    namespace: Namespace,
    _links: Vec<OwnedFd>,
}

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
            netstack.watch(namespace)?;
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

    /// All packets timed since the beginning. What belongs to an interface or a cgroup that is gone
    /// is in it for the last time.
    ///
    /// # Errors
    /// If a map cannot be read.
    pub fn read(&mut self) -> Result<Vec<Histogram>> {
        self.refresh()?;
        let mut found = Vec::new();
        let mut names = Names::default();
        let grouped = self.options.by_interface || self.options.by_cgroup;
        let from = map(&self.object, if grouped { "histograms" } else { "plain" })?;
        for bytes in from.keys().collect::<Vec<_>>() {
            let key = if grouped { record::from_bytes(&bytes) } else { plain_key(&bytes) };
            let Some(key) = key else { continue };
            let Some(point) = Point::from_index(key.point) else { continue };
            let per_cpu =
                from.lookup_percpu(&bytes, MapFlags::ANY).doing("reading the histograms")?;
            let mut histogram = Histogram::new(point, key.ipv6 != 0);
            for cpu in per_cpu.iter().flatten() {
                let Some(counts) = record::from_bytes::<netstack_histogram>(cpu) else { continue };
                histogram.sum_ns = histogram.sum_ns.wrapping_add(counts.sum);
                for (sum, count) in histogram.buckets.iter_mut().zip(counts.buckets) {
                    *sum += count;
                }
            }
            histogram.netns = key.netns;
            let mut gone = false;
            if key.ifindex != 0 {
                let (name, is_there) = self.interface_name(key.netns, key.ifindex, &mut names);
                (histogram.interface, gone) = (name, !is_there);
            }
            if key.cgroup != 0 {
                let (path, is_there) = self.cgroup_path(key.cgroup, &mut names);
                (histogram.cgroup, gone) = (path, gone || !is_there);
            }
            if gone {
                let _ = from.delete(&bytes);
            }
            if histogram.count() > 0 {
                found.push(histogram);
            }
        }
        Ok(found)
    }

    /// Packets that are in no histogram, by reason, since the beginning.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn lost(&self) -> Result<Vec<LostCount>> {
        let mut counts: Vec<_> = REASONS
            .iter()
            .map(|reason| LostCount { tracker: super::NAME, reason, count: 0 })
            .collect();
        for point in 0..Point::ALL.len() as u32 {
            for (reason, lost) in counts.iter_mut().enumerate() {
                let cell = point * netstack_lost::NETSTACK_LOST_REASONS + reason as u32;
                let per_cpu = self
                    .lost
                    .lookup_percpu(&cell.to_ne_bytes(), MapFlags::ANY)
                    .doing("reading the counters of lost packets")?;
                let each = per_cpu.iter().flatten().filter_map(|bytes| bytes.first_chunk());
                lost.count += each.map(|count| u64::from_ne_bytes(*count)).sum::<u64>();
            }
        }
        Ok(counts)
    }

    /// Shows every loaded program's name and descriptor, for its statistics.
    pub fn each_program(&self, mut each: impl FnMut(&str, std::os::fd::BorrowedFd<'_>)) {
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

    fn wanted_namespaces(&self) -> Result<Vec<Namespace>> {
        Ok(match &self.options.scope {
            Scope::Own => vec![Namespace::own()?],
            Scope::Namespaces(paths) => {
                paths.iter().map(|path| Namespace::at(path)).collect::<Result<_>>()?
            }
            Scope::All if self.functions => Vec::new(),
            Scope::All => Namespace::all().into_values().collect(),
        })
    }

    fn watch(&mut self, namespace: Namespace) -> Result<()> {
        self.put("namespaces", &namespace.inode.to_ne_bytes())?;
        let mut links = Vec::new();
        if !self.functions {
            for (program, hook) in NETFILTER {
                let program = crate::session::program(&self.object, program)?;
                let fd = program.as_fd().as_raw_fd();
                for family in [libc::NFPROTO_IPV4, libc::NFPROTO_IPV6] {
                    let linked = namespace.enter(|| link(fd, family, hook));
                    let problem =
                        |source| Error::Namespace { path: namespace.path.clone(), source };
                    links.push(linked.flatten().map_err(problem)?);
                }
            }
        }
        self.watched.insert(namespace.inode, Watched { namespace, _links: links });
        self.tell_only_namespace()
    }

    /// One namespace is faster to tell than one of many.
    fn tell_only_namespace(&self) -> Result<()> {
        let only = match (self.watched.len(), self.watched.keys().next()) {
            (1, Some(inode)) => *inode,
            _ => 0,
        };
        map(&self.object, ".data.netns")?
            .update(&0_u32.to_ne_bytes(), &only.to_ne_bytes(), MapFlags::ANY)
            .doing("writing the namespace")?;
        Ok(())
    }

    /// The numbers of the interfaces that were asked for.
    fn find_interfaces(&mut self) -> Result<()> {
        for name in self.options.interfaces.clone() {
            let mut found = false;
            let mut known = BTreeSet::new();
            for namespace in self.known_namespaces() {
                match namespace.interface_index(&name) {
                    None => known.extend(namespace.interfaces().into_values()),
                    Some(ifindex) => {
                        found = true;
                        let key = netstack_interface { netns: namespace.inode, ifindex };
                        self.put("interfaces", record::bytes_of(&key))?;
                        self.wanted_interfaces.insert((namespace.inode, ifindex), name.clone());
                    }
                }
            }
            if !found {
                let known = known.into_iter().collect::<Vec<_>>().join(", ");
                return Err(Error::Interface { name, known });
            }
        }
        Ok(())
    }

    fn known_namespaces(&self) -> Vec<Namespace> {
        match self.watched.is_empty() {
            true => Namespace::all().into_values().collect(),
            false => self.namespaces().cloned().collect(),
        }
    }

    fn attach(&mut self, btf: &Btf<'_>, refused: &str) -> Result<()> {
        let mut attached = BTreeSet::new();
        for hook in HOOKS {
            let mut failed = Vec::new();
            let mut outcome = None;
            for candidate in hook.programs {
                match self.attach_one(btf, refused, hook, candidate, &mut attached) {
                    Ok(()) => {
                        outcome = Some(candidate.attach);
                        break;
                    }
                    Err(why) => failed.push((candidate.attach, why)),
                }
            }
            let (tracker, what, required) = (super::NAME, hook.what, hook.required);
            if outcome.is_none() && required {
                let why: Vec<_> =
                    failed.iter().map(|(attach, why)| format!("{attach}: {why}")).collect();
                return Err(crate::Error::Hook { tracker, what, why: why.join("; ") }.into());
            }
            self.hooks.push(HookStatus { tracker, what, required, outcome, failed });
        }
        Ok(())
    }

    fn attach_one(
        &mut self,
        btf: &Btf<'_>,
        refused: &str,
        hook: &Hook,
        candidate: &Program,
        attached: &mut BTreeSet<&'static str>,
    ) -> std::result::Result<(), String> {
        available(candidate.attach, btf)?;
        if !is_of_set(hook, candidate, self.functions) {
            return Err(refused.to_owned());
        }
        // Netfilter's are attached to each namespace; others may serve two hooks.
        if matches!(candidate.attach, Attach::Netfilter(_)) || !attached.insert(candidate.name) {
            return Ok(());
        }
        let program = program(&self.object, candidate.name).map_err(|error| error.to_string())?;
        self.links.push(program.attach().map_err(|error| error.to_string())?);
        Ok(())
    }

    /// What was asked for may go, and what everything was asked of may grow.
    fn look_after(&mut self) -> Result<()> {
        let gone: Vec<_> = self
            .watched
            .values()
            .filter(|watched| !watched.namespace.is_there())
            .map(|watched| watched.namespace.clone())
            .collect();
        let all = match (&self.options.scope, self.functions) {
            (Scope::All, false) => Some(Namespace::all()),
            _ => None,
        };
        for namespace in gone {
            // One process of many may have led to it.
            if let Some(other) = all.as_ref().and_then(|all| all.get(&namespace.inode)) {
                if let Some(watched) = self.watched.get_mut(&namespace.inode) {
                    watched.namespace = other.clone();
                }
                continue;
            }
            self.watched.remove(&namespace.inode);
            let _ = map(&self.object, "namespaces")?.delete(&namespace.inode.to_ne_bytes());
            self.tell_only_namespace()?;
            self.notices.push(format!("{} has ended", namespace.path.display()));
        }
        for (inode, namespace) in all.into_iter().flatten() {
            if !self.watched.contains_key(&inode) {
                // It may be gone again already.
                let _ = self.watch(namespace);
            }
        }
        for pid in &self.options.pids {
            if !std::path::Path::new(&format!("/proc/{pid}")).exists()
                && self.gone_pids.insert(*pid)
            {
                self.notices.push(format!("process {pid} has ended"));
            }
        }
        // One that is made anew under the same name has another number.
        self.wanted_cgroups.retain(|id, name| {
            let is_there = self.cgroups.is_there(*id);
            if !is_there {
                let notice = format!("cgroup {name} has gone; if it is made anew, start again");
                self.notices.push(notice);
            }
            is_there
        });
        self.look_after_interfaces()
    }

    /// An interface may go and come back, with another number.
    fn look_after_interfaces(&mut self) -> Result<()> {
        if self.options.interfaces.is_empty() {
            return Ok(());
        }
        let mut now = BTreeMap::new();
        for namespace in self.known_namespaces() {
            for (ifindex, name) in namespace.interfaces() {
                if self.options.interfaces.contains(&name) {
                    now.insert((namespace.inode, ifindex), name);
                }
            }
        }
        let before = std::mem::take(&mut self.wanted_interfaces);
        for ((netns, ifindex), name) in before.iter().filter(|(key, _)| !now.contains_key(key)) {
            let key = netstack_interface { netns: *netns, ifindex: *ifindex };
            let _ = map(&self.object, "interfaces")?.delete(record::bytes_of(&key));
            self.notices.push(format!("interface {name} ({ifindex}) has gone"));
        }
        for ((netns, ifindex), name) in now.iter().filter(|(key, _)| !before.contains_key(key)) {
            let key = netstack_interface { netns: *netns, ifindex: *ifindex };
            self.put("interfaces", record::bytes_of(&key))?;
            self.notices.push(format!("interface {name} ({ifindex}) is there"));
        }
        self.wanted_interfaces = now;
        Ok(())
    }

    /// Its name, and whether it is still there. One that is gone has its last name once more.
    fn interface_name(&mut self, netns: u32, ifindex: u32, names: &mut Names) -> (String, bool) {
        if !std::mem::replace(&mut names.interfaces_read, true) {
            names.before = std::mem::take(&mut self.interface_names);
            for namespace in self.known_namespaces() {
                for (ifindex, name) in namespace.interfaces() {
                    self.interface_names.insert((namespace.inode, ifindex), name);
                }
            }
        }
        let key = (netns, ifindex);
        let last = || names.before.get(&key).cloned().unwrap_or_else(|| format!("#{ifindex}"));
        match self.interface_names.get(&key) {
            Some(name) => (name.clone(), true),
            None => (last(), false),
        }
    }

    /// Its path, and whether it is still there.
    fn cgroup_path(&mut self, id: u64, names: &mut Names) -> (String, bool) {
        if self.cgroups.path(id).is_none() && !std::mem::replace(&mut names.cgroups_read, true) {
            self.cgroups.read();
        }
        match self.cgroups.path(id) {
            Some(path) => (path.to_owned(), self.cgroups.is_there(id)),
            None => (format!("#{id}"), false),
        }
    }
}

/// What was read to name things, once a reading.
#[derive(Default)]
struct Names {
    interfaces_read: bool,
    cgroups_read: bool,
    before: BTreeMap<(u32, u32), String>,
}

/// Attaches a program to a hook of the namespace that the calling thread is in.
fn link(program: i32, family: i32, hook: NetfilterHook) -> std::io::Result<OwnedFd> {
    let mut last = std::io::Error::from_raw_os_error(libc::EBUSY);
    for step in 0..PRIORITIES {
        let mut opts = libbpf_sys::bpf_link_create_opts {
            sz: size_of::<libbpf_sys::bpf_link_create_opts>() as u64,
            ..Default::default()
        };
        opts.__bindgen_anon_1.netfilter.pf = family as u32;
        let (number, priority) = match hook {
            // The kernel keeps the very first and the very last for itself.
            NetfilterHook::PreRouting => (libc::NF_INET_PRE_ROUTING, i32::MIN + 1 + step),
            NetfilterHook::LocalIn => (libc::NF_INET_LOCAL_IN, i32::MAX - 1 - step),
        };
        opts.__bindgen_anon_1.netfilter.hooknum = number as u32;
        opts.__bindgen_anon_1.netfilter.priority = priority;
        // SAFETY: the options outlive the call and say how long they are; a bad descriptor is refused.
        let fd = unsafe {
            libbpf_sys::bpf_link_create(program, 0, libbpf_sys::BPF_NETFILTER, &raw const opts)
        };
        if fd >= 0 {
            // SAFETY: the kernel has just made it for us.
            return Ok(unsafe { OwnedFd::from_raw_fd(fd) });
        }
        last = std::io::Error::from_raw_os_error(-fd);
        if !matches!(last.raw_os_error(), Some(libc::EBUSY | libc::EEXIST)) {
            break;
        }
    }
    Err(last)
}

/// What a cell of the ungrouped histograms is of.
fn plain_key(cell: &[u8]) -> Option<netstack_key> {
    let cell = u32::from_ne_bytes(*cell.first_chunk()?);
    let (point, ipv6) = (u8::try_from(cell / 2).ok()?, (cell % 2) as u8);
    Some(netstack_key { point, ipv6, ..netstack_key::default() })
}

fn is_function(program: &Program) -> bool {
    matches!(program.attach, Attach::Fentry(_) | Attach::Fexit(_))
}

/// Whether a program is wanted where functions are traced, or are not. Without an alternative it is.
fn is_of_set(hook: &Hook, program: &Program, functions: bool) -> bool {
    !hook.programs.iter().any(is_function) || is_function(program) == functions
}

fn configured(options: &Options, cgroups: &Cgroups) -> Result<netstack_config> {
    let mut config = netstack_config {
        bounds: buckets::bounds(),
        cells: buckets::cells(),
        min_queue: options.min_queue,
        filter_pids: u8::from(!options.pids.is_empty()),
        filter_interfaces: u8::from(!options.interfaces.is_empty()),
        filter_netns: u8::from(options.scope != Scope::All),
        by_interface: u8::from(options.by_interface),
        by_cgroup: u8::from(options.by_cgroup),
        cgroups: [netstack_cgroup::default(); NETSTACK_CGROUPS as usize],
        cgroup_count: options.cgroups.len() as u32,
        _pad: [0; 3],
    };
    if options.cgroups.len() > config.cgroups.len() {
        return Err(Error::TooMany { what: "cgroups", most: config.cgroups.len() });
    }
    for (cell, name) in config.cgroups.iter_mut().zip(&options.cgroups) {
        let cgroup = cgroups.find(name)?;
        *cell = netstack_cgroup { id: cgroup.id, level: cgroup.level, _pad: 0 };
    }
    Ok(config)
}

/// Loads the programs that trace functions, or those that do without if a single one of them is
/// refused; then the last value says which and why.
fn load(btf: &Btf<'_>, config: &netstack_config) -> Result<(Object, bool, String)> {
    let candidates = || HOOKS.iter().flat_map(|hook| hook.programs.iter().map(move |p| (hook, p)));
    let mut refused =
        candidates().filter(|(_, program)| is_function(program)).find_map(|(_, program)| {
            let why = available(program.attach, btf).err()?;
            Some(format!("{}: {why}", program.attach))
        });
    loop {
        let functions = refused.is_none();
        let mut open =
            ObjectBuilder::default().open_memory(&OBJECT.0).doing("opening the programs")?;
        // Without functions, programs only are where they were asked to be.
        let config =
            netstack_config { filter_netns: config.filter_netns | u8::from(!functions), ..*config };
        for mut map in open.maps_mut() {
            if map.name() == ".rodata.config" {
                map.set_initial_value(record::bytes_of(&config))
                    .doing("configuring the programs")?;
            }
        }
        for mut open_program in open.progs_mut() {
            let name = open_program.name().to_owned();
            let wanted = candidates().any(|(hook, program)| {
                name == program.name
                    && is_of_set(hook, program, functions)
                    && available(program.attach, btf).is_ok()
            });
            open_program.set_autoload(wanted);
        }
        let error = match open.load() {
            Ok(object) => return Ok((object, functions, refused.unwrap_or_default())),
            Err(error) => error,
        };
        let why = match refusal::take() {
            Some(refusal) => format!("{}: {}", refusal.program, refusal.why),
            None => error.to_string(),
        };
        if !functions {
            return Err(crate::Error::Load(why).into());
        }
        refused = Some(format!("this kernel does not let it be traced ({why})"));
    }
}
