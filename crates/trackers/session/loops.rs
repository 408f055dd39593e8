//! Probing the calls by which a process's event loops ask for events.

use std::collections::BTreeMap;
use std::path::Path;

use libbpf_rs::{Link, ProgramAttachType, UprobeMultiOpts, UprobeOpts};

use super::Session;
use super::error::{Doing as _, Error, Result};
use super::load::program;

impl Session {
    /// Probes a process's calls at these offsets in the file: pairs of a program of the loop tracker
    /// and an offset. The probes are in that process only. Attaching again replaces: the old ones go some time later, and a
    /// call that both see begins an iteration twice, of which the first is over at once.
    pub fn attach_loops(
        &mut self,
        pid: u32,
        path: &Path,
        calls: &[(&'static str, u64)],
    ) -> Result<()> {
        let mut links = Vec::new();
        let attached = self.probe_calls(pid, path, calls, &mut links);
        self.loops.put(pid, links);
        if attached.is_err() {
            self.loops.remove(pid);
        }
        attached
    }

    /// Those that were attached before one could not be are in `links`, too.
    fn probe_calls(
        &self,
        pid: u32,
        path: &Path,
        calls: &[(&'static str, u64)],
        links: &mut Vec<Link>,
    ) -> Result<()> {
        let id = i32::try_from(pid).map_err(|_| Error::Load(format!("{pid} is no process id")))?;
        let mut by_program: BTreeMap<&'static str, Vec<usize>> = BTreeMap::new();
        for &(name, offset) in calls {
            by_program.entry(name).or_default().push(offset as usize);
        }
        let doing = || format!("probing calls in {} of process {pid}", path.display());
        for (name, offsets) in by_program {
            let program = program(&self.object, name)?;
            if matches!(program.attach_type(), ProgramAttachType::TraceUprobeMulti) {
                let options = UprobeMultiOpts { offsets, ..UprobeMultiOpts::default() };
                let link = program.attach_uprobe_multi_with_opts(id, path, "", options);
                links.push(link.doing(doing())?);
                continue;
            }
            for offset in offsets {
                let link = program.attach_uprobe_with_opts(id, path, offset, UprobeOpts::default());
                links.push(link.doing(doing())?);
            }
        }
        Ok(())
    }

    /// The process has ended, or is no longer watched. Its probes go some time later.
    pub fn detach_loops(&mut self, pid: u32) {
        self.loops.remove(pid);
    }
}
