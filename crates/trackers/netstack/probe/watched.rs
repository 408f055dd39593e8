//! What is looked at: namespaces, interfaces, cgroups and processes, all of which come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};

use libbpf_rs::{MapCore as _, MapFlags};

use super::Netstack;
use crate::NetfilterHook;
use crate::netstack::error::{Error, Result};
use crate::netstack::hooks::NETFILTER;
use crate::netstack::{Namespace, Scope};
use crate::record::{self, netstack_interface};
use crate::session::{Doing as _, map, program};

/// Programs of other sessions may be at the same place already; then the next is taken.
const PRIORITIES: i32 = 64;

/// A namespace that packets are looked at in. Its links go when it is dropped.
pub(super) struct Watched {
    pub(super) namespace: Namespace,
    _links: Vec<OwnedFd>,
}

impl Netstack {
    pub(super) fn wanted_namespaces(&self) -> Result<Vec<Namespace>> {
        Ok(match &self.options.scope {
            Scope::Own => vec![Namespace::own()?],
            Scope::Namespaces(paths) => {
                paths.iter().map(|path| Namespace::at(path)).collect::<Result<_>>()?
            }
            Scope::All if self.functions => Vec::new(),
            Scope::All => Namespace::all().into_values().collect(),
        })
    }

    pub(super) fn watch(&mut self, namespace: Namespace) -> Result<()> {
        self.put("namespaces", &namespace.inode.to_ne_bytes())?;
        let mut links = Vec::new();
        if !self.functions {
            for (name, hook) in NETFILTER {
                let program = program(&self.object, name)?;
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
    pub(super) fn find_interfaces(&mut self) -> Result<()> {
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

    pub(super) fn known_namespaces(&self) -> Vec<Namespace> {
        match self.watched.is_empty() {
            true => Namespace::all().into_values().collect(),
            false => self.namespaces().cloned().collect(),
        }
    }

    /// What was asked for may go, and what everything was asked of may grow.
    pub(super) fn look_after(&mut self) -> Result<()> {
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
