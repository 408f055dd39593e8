//! Why there is no session, or why it cannot go on.

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No BTF.
    #[error(
        "this kernel has no BTF (/sys/kernel/btf/vmlinux): Underspan needs one built with \
         CONFIG_DEBUG_INFO_BTF, as Debian 12, Ubuntu 22.04, RHEL 9 and Amazon Linux 2023 have it"
    )]
    NoBtf,
    /// Not root.
    #[error(
        "loading BPF programs needs root or the capabilities BPF, PERFMON and SYS_PTRACE: run it \
         with sudo"
    )]
    NotPermitted,
    /// No tracefs.
    #[error(
        "tracefs is not mounted and cannot be ({0}): mount -t tracefs tracefs /sys/kernel/tracing"
    )]
    NoTracefs(String),
    /// The kernel refused the programs.
    #[error("the kernel refused the BPF programs: {0} (RUST_LOG=debug shows its reasons)")]
    Load(String),
    /// A required hook is missing.
    #[error("{tracker} cannot hear of \"{what}\" on this kernel: {why}")]
    Hook {
        /// The tracker.
        tracker: &'static str,
        /// The hook.
        what: &'static str,
        /// What was tried.
        why: String,
    },
    /// Anything else libbpf says.
    #[error("{what}: {source}")]
    Bpf {
        /// What was being done.
        what: String,
        /// What libbpf says.
        source: libbpf_rs::Error,
    },
}

pub(crate) type Result<T> = std::result::Result<T, Error>;

/// Says what was being done when libbpf failed.
pub(crate) trait Doing<T> {
    fn doing(self, what: impl Into<String>) -> Result<T>;
}

impl<T> Doing<T> for libbpf_rs::Result<T> {
    fn doing(self, what: impl Into<String>) -> Result<T> {
        self.map_err(|source| Error::Bpf { what: what.into(), source })
    }
}
