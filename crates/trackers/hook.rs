//! Where programs are attached, in order of preference.

/// Something a tracker must hear of, and the programs that can tell it, best first.
#[derive(Clone, Copy, Debug)]
pub struct Hook {
    /// What is heard of.
    pub what: &'static str,
    /// Alternatives, best first. The first that this kernel has is taken.
    pub programs: &'static [Program],
    /// Without it the tracker cannot run.
    pub required: bool,
}

/// One way to hear of it.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// The BPF program's name.
    pub name: &'static str,
    /// How it is attached.
    pub attach: Attach,
}

/// How a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attach {
    /// A tracepoint with typed arguments.
    BtfTracepoint(&'static str),
    /// The same, where it has so many arguments at least: older kernels' had fewer.
    BtfTracepointWith(&'static str, usize),
    /// A plain tracepoint, `category/name`.
    Tracepoint(&'static str),
    /// A kernel function's entry.
    Fentry(&'static str),
    /// A kernel function's return.
    Fexit(&'static str),
    /// A hook of netfilter, in each network namespace that is looked at.
    Netfilter(NetfilterHook),
    /// Run on request, over kernel objects of this kind.
    Iterator(&'static str),
    /// Not attached: work that a program gives a thread for when it goes back to user mode.
    TaskWork,
    /// Attached to each process that allows it, when it is watched.
    PerProcess(&'static str),
    /// A clock on each CPU.
    CpuClock,
    /// The processor's own counters, on each CPU.
    HardwareCounters,
}

/// A hook of netfilter's, and where among its users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetfilterHook {
    /// Before routing, first of all.
    PreRouting,
    /// Before the transport, last of all.
    LocalIn,
}

impl std::fmt::Display for Attach {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Attach::BtfTracepoint(name) | Attach::BtfTracepointWith(name, _) => {
                write!(f, "BTF tracepoint {name}")
            }
            Attach::Tracepoint(name) => write!(f, "tracepoint {name}"),
            Attach::Fentry(name) => write!(f, "fentry {name}"),
            Attach::Fexit(name) => write!(f, "fexit {name}"),
            Attach::Netfilter(NetfilterHook::PreRouting) => {
                write!(f, "netfilter PRE_ROUTING, first")
            }
            Attach::Netfilter(NetfilterHook::LocalIn) => write!(f, "netfilter LOCAL_IN, last"),
            Attach::Iterator(name) => write!(f, "iterator over {name}s"),
            Attach::TaskWork => write!(f, "task work (bpf_task_work_schedule_resume)"),
            Attach::PerProcess(kind) => write!(f, "{kind}, per process"),
            Attach::CpuClock => write!(f, "clock of each CPU"),
            Attach::HardwareCounters => write!(f, "hardware counters of each CPU"),
        }
    }
}

/// What became of a hook.
#[derive(Clone, Debug)]
pub struct HookStatus {
    /// The tracker that wanted it.
    pub tracker: &'static str,
    /// What is heard of.
    pub what: &'static str,
    /// Whether the tracker can do without.
    pub required: bool,
    /// The way that was taken.
    pub outcome: Option<Attach>,
    /// Better ways, and why each could not be taken.
    pub failed: Vec<(Attach, String)>,
}
