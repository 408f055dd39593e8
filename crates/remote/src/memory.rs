//! Reading another process's memory without stopping it.

use std::io::IoSliceMut;

use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

/// Remote ranges per system call; the kernel's own limit is `IOV_MAX` (1024).
const BATCH: usize = 512;

/// The memory of one process.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    pid: Pid,
}

/// Why a read failed.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Nothing is mapped at the address.
    #[error("nothing is mapped at {0:#x}")]
    Fault(u64),
    /// The process has ended.
    #[error("the process has ended")]
    Gone,
    /// Not permitted, or another refusal of the system.
    #[error("cannot read the process's memory: {0}")]
    Other(Errno),
}

impl Memory {
    /// The memory of the process with this id in our namespace.
    pub fn new(pid: i32) -> Self {
        Memory { pid: Pid::from_raw(pid) }
    }

    /// Fills `buffer` from `address`, wholly or not at all.
    pub fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), ReadError> {
        let len = buffer.len();
        // Addresses of the kernel's half never come from a sane structure.
        if address < 4096 || address.checked_add(len as u64).is_none_or(|end| end >= 1 << 47) {
            return Err(ReadError::Fault(address));
        }
        let remote = [RemoteIoVec { base: address as usize, len }];
        match process_vm_readv(self.pid, &mut [IoSliceMut::new(buffer)], &remote) {
            Ok(read) if read == len => Ok(()),
            Ok(_) | Err(Errno::EFAULT) => Err(ReadError::Fault(address)),
            Err(Errno::ESRCH) => Err(ReadError::Gone),
            Err(errno) => Err(ReadError::Other(errno)),
        }
    }

    /// `len` bytes at `address`.
    pub fn bytes(&self, address: u64, len: usize) -> Result<Vec<u8>, ReadError> {
        let mut buffer = vec![0; len];
        self.read(address, &mut buffer)?;
        Ok(buffer)
    }

    /// `N` bytes at `address`.
    pub fn block<const N: usize>(&self, address: u64) -> Result<[u8; N], ReadError> {
        let mut buffer = [0; N];
        self.read(address, &mut buffer)?;
        Ok(buffer)
    }

    /// The 8 bytes at `address`, as a number.
    pub fn u64(&self, address: u64) -> Result<u64, ReadError> {
        Ok(u64::from_ne_bytes(self.block(address)?))
    }

    /// The 4 bytes at `address`, as a number.
    pub fn i32(&self, address: u64) -> Result<i32, ReadError> {
        Ok(i32::from_ne_bytes(self.block(address)?))
    }

    /// Reads `N` bytes at each address. What is not mapped is `None`.
    pub fn scatter<const N: usize>(
        &self,
        addresses: &[u64],
    ) -> Result<Vec<Option<[u8; N]>>, ReadError> {
        let mut out = Vec::with_capacity(addresses.len());
        for batch in addresses.chunks(BATCH) {
            let mut buffer = vec![0; batch.len() * N];
            let remote: Vec<_> =
                batch.iter().map(|&base| RemoteIoVec { base: base as usize, len: N }).collect();
            let read =
                match process_vm_readv(self.pid, &mut [IoSliceMut::new(&mut buffer)], &remote) {
                    Ok(read) => read / N,
                    Err(Errno::EFAULT | Errno::EINVAL) => 0,
                    Err(Errno::ESRCH) => return Err(ReadError::Gone),
                    Err(errno) => return Err(ReadError::Other(errno)),
                };
            let (whole, _) = buffer.as_chunks::<N>();
            out.extend(whole.iter().take(read).map(|&block| Some(block)));
            // The call stops at the first bad address: read the rest of the batch one by one.
            for &address in batch.iter().skip(read) {
                out.push(match self.block(address) {
                    Ok(block) => Some(block),
                    Err(ReadError::Fault(_)) => None,
                    Err(error) => return Err(error),
                });
            }
        }
        Ok(out)
    }
}

impl Memory {
    /// Reads ranges of different lengths, many with one system call. What is not mapped, wholly or
    /// in part, is `None`.
    ///
    /// # Errors
    /// If the process has ended or may not be read.
    pub fn gather(&self, ranges: &[(u64, usize)]) -> Result<Vec<Option<Vec<u8>>>, ReadError> {
        let mut out = Vec::with_capacity(ranges.len());
        for batch in ranges.chunks(BATCH) {
            let total = batch.iter().map(|(_, len)| len).sum();
            let mut buffer = vec![0; total];
            let remote: Vec<_> =
                batch.iter().map(|&(base, len)| RemoteIoVec { base: base as usize, len }).collect();
            let read =
                match process_vm_readv(self.pid, &mut [IoSliceMut::new(&mut buffer)], &remote) {
                    Ok(read) => read,
                    Err(Errno::EFAULT | Errno::EINVAL) => 0,
                    Err(Errno::ESRCH) => return Err(ReadError::Gone),
                    Err(errno) => return Err(ReadError::Other(errno)),
                };
            let (mut at, mut failed) = (0, false);
            for &(address, len) in batch {
                let end: usize = at + len;
                // The call stops at the first bad address: from there on, one by one.
                failed |= end > read;
                out.push(match buffer.get(at..end).filter(|_| !failed) {
                    Some(bytes) => Some(bytes.to_vec()),
                    None => match self.bytes(address, len) {
                        Ok(bytes) => Some(bytes),
                        Err(ReadError::Fault(_)) => None,
                        Err(error) => return Err(error),
                    },
                });
                at = end;
            }
        }
        Ok(out)
    }
}

/// The address `offset` bytes after `base`. Addresses read from a damaged structure can be anything;
/// what overflows ends where no read succeeds.
pub fn after(base: u64, offset: u64) -> u64 {
    base.saturating_add(offset)
}

/// The 8 bytes at `offset` of a block that is known to be long enough; 0 past its end.
pub fn word(block: &[u8], offset: usize) -> u64 {
    block
        .get(offset..)
        .and_then(|rest| rest.first_chunk())
        .map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Memory {
        Memory::new(std::process::id() as i32)
    }

    #[test]
    fn reads_what_is_there() {
        let value = 0x1122_3344_5566_7788u64;
        assert_eq!(own().u64(&raw const value as u64).unwrap(), value);
    }

    #[test]
    fn refuses_what_is_not_mapped() {
        for address in [0, 8, 4096, 1 << 47, u64::MAX] {
            assert!(matches!(own().u64(address), Err(ReadError::Fault(_))), "{address:#x}");
        }
    }

    #[test]
    fn one_bad_address_spoils_no_other() {
        let value = 42u64;
        let good = &raw const value as u64;
        let mut addresses = vec![good; 1200];
        addresses[700] = 16;
        let read = own().scatter::<8>(&addresses).unwrap();
        assert_eq!(read.iter().filter(|block| block.is_none()).count(), 1);
        assert_eq!(read[700], None);
        assert_eq!(read[1199], Some(42u64.to_ne_bytes()));
    }

    #[test]
    fn ranges_of_different_lengths() {
        let value = [1u8, 2, 3, 4, 5, 6, 7, 8];
        let at = value.as_ptr() as u64;
        let read = own().gather(&[(at, 3), (16, 4), (at + 3, 5)]).unwrap();
        assert_eq!(read, [Some(vec![1, 2, 3]), None, Some(vec![4, 5, 6, 7, 8])]);
        assert_eq!(own().gather(&[]).unwrap(), Vec::<Option<Vec<u8>>>::new());
    }
}
