//! What an EBS volume says of itself: a log page of its NVMe controller.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;

const MAGIC: u32 = 0x3C23_B510;
const LOG_PAGE: u32 = 0xD0;
const PAGE_BYTES: usize = 4096;
const GET_LOG_PAGE: u8 = 0x02;
/// `_IOWR('N', 0x41, struct nvme_admin_cmd)`
const NVME_IOCTL_ADMIN_CMD: libc::Ioctl = 0xC048_4E41_u32 as libc::Ioctl;
/// A controller that does not answer must not hold up the others, in ms.
const TIMEOUT: u32 = 500;
/// The model of the controllers of EBS volumes.
pub(super) const MODEL: &str = "Amazon Elastic Block Store";

/// For how long more was asked of a volume than it, or its instance, may give. In ns, since it was
/// attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Exceeded {
    pub(super) volume_iops: u64,
    pub(super) volume_throughput: u64,
    pub(super) instance_iops: u64,
    pub(super) instance_throughput: u64,
}

/// Why a log page is not one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotEbs {
    #[error("the log page is cut")]
    Short,
    #[error("the log page begins with {0:#010x}: the volume does not publish its statistics")]
    Magic(u32),
    #[error("the log page has more time than there was")]
    Implausible,
}

/// Reads the log page.
pub(super) fn exceeded(page: &[u8]) -> Result<Exceeded, NotEbs> {
    let magic = page.first_chunk().map(|magic| u32::from_le_bytes(*magic)).ok_or(NotEbs::Short)?;
    if magic != MAGIC {
        return Err(NotEbs::Magic(magic));
    }
    // magic, reserved, then u64s: operations, bytes and times of reads and writes; from 56 on, µs.
    let at = |offset: usize| -> Result<u64, NotEbs> {
        let bytes = page.get(offset..).and_then(|rest| rest.first_chunk()).ok_or(NotEbs::Short)?;
        u64::from_le_bytes(*bytes).checked_mul(1_000).ok_or(NotEbs::Implausible)
    };
    Ok(Exceeded {
        volume_iops: at(56)?,
        volume_throughput: at(64)?,
        instance_iops: at(72)?,
        instance_throughput: at(80)?,
    })
}

/// As the kernel has it.
#[repr(C)]
#[derive(Default)]
struct AdminCommand {
    opcode: u8,
    flags: u8,
    reserved: u16,
    namespace: u32,
    cdw2: u32,
    cdw3: u32,
    metadata: u64,
    address: u64,
    metadata_len: u32,
    data_len: u32,
    cdw10: u32,
    cdw11: u32,
    cdw12: u32,
    cdw13: u32,
    cdw14: u32,
    cdw15: u32,
    timeout_ms: u32,
    result: u32,
}

const _: () = assert!(size_of::<AdminCommand>() == 72);

/// Asks a controller for it. Needs CAP_SYS_ADMIN.
pub(super) fn read(controller: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(controller)?;
    let mut page = vec![0u8; PAGE_BYTES];
    let mut command = AdminCommand {
        opcode: GET_LOG_PAGE,
        namespace: 1,
        address: page.as_mut_ptr() as u64,
        data_len: PAGE_BYTES as u32,
        // Dwords less one, above the page's number.
        cdw10: LOG_PAGE | ((PAGE_BYTES as u32 / 4 - 1) << 16),
        timeout_ms: TIMEOUT,
        ..AdminCommand::default()
    };
    // SAFETY: the command names a buffer of the length it says, which outlives the call.
    let status = unsafe { libc::ioctl(file.as_raw_fd(), NVME_IOCTL_ADMIN_CMD, &raw mut command) };
    match status {
        0 => Ok(page),
        1.. => {
            Err(io::Error::other(format!("the controller refused it (NVMe status {status:#x})")))
        }
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As a gp3 volume answers: 2 s over its operations, 0.5 s over its instance's throughput.
    fn recorded() -> Vec<u8> {
        let mut page = vec![0; PAGE_BYTES];
        page[..4].copy_from_slice(&MAGIC.to_le_bytes());
        let words = [900u64, 800, 1 << 30, 1 << 31, 5_000, 6_000, 2_000_000, 0, 0, 500_000, 12];
        for (field, word) in page[8..].chunks_exact_mut(8).zip(words) {
            field.copy_from_slice(&word.to_le_bytes());
        }
        page
    }

    #[test]
    fn microseconds_become_nanoseconds() {
        let expected = Exceeded {
            volume_iops: 2_000_000_000,
            instance_throughput: 500_000_000,
            ..Exceeded::default()
        };
        assert_eq!(exceeded(&recorded()), Ok(expected));
    }

    #[test]
    fn another_page_is_told_apart() {
        let mut page = recorded();
        page[0] ^= 1;
        assert_eq!(exceeded(&page), Err(NotEbs::Magic(MAGIC ^ 1)));
        assert_eq!(exceeded(&[0; PAGE_BYTES]), Err(NotEbs::Magic(0)));
        assert_eq!(exceeded(&recorded()[..87]), Err(NotEbs::Short));
        assert_eq!(exceeded(&[]), Err(NotEbs::Short));
    }

    #[test]
    fn a_file_that_is_no_controller_is_an_error() {
        assert!(read(Path::new("/dev/no-such-nvme0")).is_err());
        let error = read(Path::new("/dev/null")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(
            magic in any::<bool>(),
            rest in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let magic = if magic { MAGIC.to_le_bytes().to_vec() } else { Vec::new() };
            let _ = exceeded(&[magic, rest].concat());
        }
    }
}
