//! What is read of the programs: histograms, with the names of what they are of, and what is in none.

use std::collections::BTreeMap;

use libbpf_rs::{MapCore as _, MapFlags};

use super::Netstack;
use crate::LostCount;
use crate::netstack::error::Result;
use crate::netstack::{Histogram, NAME, Point};
use crate::record::{self, netstack_histogram, netstack_key, netstack_lost};
use crate::session::{Doing as _, map};

/// Names of the reasons, in the order of `enum netstack_lost`.
pub(in crate::netstack) const REASONS: [&str; 4] =
    ["map_full", "unstamped", "clock_step", "unmatched"];

impl Netstack {
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
        let mut counts: Vec<_> =
            REASONS.iter().map(|reason| LostCount { tracker: NAME, reason, count: 0 }).collect();
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

/// What a cell of the ungrouped histograms is of.
fn plain_key(cell: &[u8]) -> Option<netstack_key> {
    let cell = u32::from_ne_bytes(*cell.first_chunk()?);
    let (point, ipv6) = (u8::try_from(cell / 2).ok()?, (cell % 2) as u8);
    Some(netstack_key { point, ipv6, ..netstack_key::default() })
}
