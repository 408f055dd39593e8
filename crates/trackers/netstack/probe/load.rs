//! The programs: loaded by the set that this kernel allows, and attached.

use std::collections::BTreeSet;

use libbpf_rs::btf::Btf;
use libbpf_rs::{Object, ObjectBuilder};

use super::Netstack;
use crate::netstack::cgroups::Cgroups;
use crate::netstack::error::{Error, Result};
use crate::netstack::hooks::HOOKS;
use crate::netstack::{NAME, Options, Scope, buckets};
use crate::record::{self, NETSTACK_CGROUPS, netstack_cgroup, netstack_config};
use crate::session::{Doing as _, available, program};
use crate::{Attach, Hook, HookStatus, Program, refusal};

/// The programs. Aligned as libelf wants it.
#[repr(C, align(8))]
struct Aligned<B: ?Sized>(B);
static OBJECT: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/netstack.bpf.o")));

impl Netstack {
    pub(super) fn attach(&mut self, btf: &Btf<'_>, refused: &str) -> Result<()> {
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
            let (tracker, what, required) = (NAME, hook.what, hook.required);
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
}

fn is_function(program: &Program) -> bool {
    matches!(program.attach, Attach::Fentry(_) | Attach::Fexit(_))
}

/// Whether a program is wanted where functions are traced, or are not. Without an alternative it is.
fn is_of_set(hook: &Hook, program: &Program, functions: bool) -> bool {
    !hook.programs.iter().any(is_function) || is_function(program) == functions
}

/// What the programs are to count.
pub(super) fn configured(options: &Options, cgroups: &Cgroups) -> Result<netstack_config> {
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
pub(super) fn load(btf: &Btf<'_>, config: &netstack_config) -> Result<(Object, bool, String)> {
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
