//! A network adapter's own counters, by the ethtool ioctl. Reading them needs no privilege.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd as _;

const SIOCETHTOOL: libc::Ioctl = 0x8946;
const GDRVINFO: u32 = 0x03;
const GSTRINGS: u32 = 0x1b;
const GSTATS: u32 = 0x1d;
const GSSET_INFO: u32 = 0x37;
const STATISTICS: u32 = 1;
const STRING_BYTES: usize = 32;
/// An adapter with 128 queues has some thousand.
const MAX_COUNTERS: usize = 1 << 16;
/// The kernel writes as many values as there are at that moment, whatever there is room for. Queues
/// may have been added since the names were read: room for that, and then the read is thrown away.
const ROOM: usize = 4;

/// An adapter's driver and counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Adapter {
    pub(super) driver: String,
    /// By name, in the driver's order.
    pub(super) counters: Vec<(String, u64)>,
}

/// The driver of an interface in this process's network namespace.
pub(super) fn driver(interface: &str) -> io::Result<String> {
    // cmd, driver[32], version[32], … : 196 bytes
    let mut info = [0u8; 196];
    info[..4].copy_from_slice(&GDRVINFO.to_ne_bytes());
    ask(interface, &mut info)?;
    Ok(text(&info[4..36]))
}

/// Its driver and counters.
pub(super) fn adapter(interface: &str) -> io::Result<Adapter> {
    let driver = driver(interface)?;
    // cmd, reserved, mask (8), data[1]
    let mut set = [0u8; 24];
    set[..4].copy_from_slice(&GSSET_INFO.to_ne_bytes());
    set[8..16].copy_from_slice(&(1u64 << STATISTICS).to_ne_bytes());
    ask(interface, &mut set)?;
    let count = u32_at(&set, 16) as usize;
    if u32_at(&set, 8) == 0 || count == 0 {
        return Ok(Adapter { driver, counters: Vec::new() });
    }
    if count > MAX_COUNTERS {
        return Err(io::Error::other(format!("it says that it has {count} counters")));
    }

    let mut strings = vec![0u8; 12 + ROOM * count * STRING_BYTES];
    strings[..4].copy_from_slice(&GSTRINGS.to_ne_bytes());
    strings[4..8].copy_from_slice(&STATISTICS.to_ne_bytes());
    strings[8..12].copy_from_slice(&(count as u32).to_ne_bytes());
    ask(interface, &mut strings)?;
    let mut values = vec![0u8; 8 + ROOM * count * 8];
    values[..4].copy_from_slice(&GSTATS.to_ne_bytes());
    values[4..8].copy_from_slice(&(count as u32).to_ne_bytes());
    ask(interface, &mut values)?;
    let counters = counters(&strings, &values)
        .ok_or_else(|| io::Error::other("its counters changed while they were read"))?;
    Ok(Adapter { driver, counters })
}

/// Names (`ethtool_gstrings`) and values (`ethtool_stats`) put together. `None` if they do not belong
/// together, or are cut.
pub(super) fn counters(strings: &[u8], values: &[u8]) -> Option<Vec<(String, u64)>> {
    let count = u32::from_ne_bytes(*strings.get(8..)?.first_chunk()?);
    if count != u32::from_ne_bytes(*values.get(4..)?.first_chunk()?) {
        return None;
    }
    let count = usize::try_from(count).ok()?;
    let names = strings.get(12..)?.get(..count.checked_mul(STRING_BYTES)?)?;
    let values = values.get(8..)?.get(..count.checked_mul(8)?)?;
    let names = names.chunks_exact(STRING_BYTES).map(text);
    let values = values
        .chunks_exact(8)
        .filter_map(|value| value.first_chunk().map(|value| u64::from_ne_bytes(*value)));
    Some(names.zip(values).collect())
}

fn text(field: &[u8]) -> String {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).into_owned()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk())
        .map_or(0, |value| u32::from_ne_bytes(*value))
}

fn ask(interface: &str, command: &mut [u8]) -> io::Result<()> {
    // Any socket will do: it names the network namespace.
    let socket = UdpSocket::bind("127.0.0.1:0").or_else(|_| UdpSocket::bind("[::1]:0"))?;
    // SAFETY: all zeroes are a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let name = interface.as_bytes();
    if name.is_empty() || name.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = command.as_mut_ptr().cast();
    // SAFETY: the command has room for what the kernel writes for it: a fixed structure, or as many
    // names or values as there were a moment ago, four times over.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn recorded(names: &[&str], numbers: &[u64]) -> (Vec<u8>, Vec<u8>) {
        let mut strings = [GSTRINGS, STATISTICS, names.len() as u32].map(u32::to_ne_bytes).concat();
        for name in names {
            let mut field = [0; STRING_BYTES];
            field[..name.len()].copy_from_slice(name.as_bytes());
            strings.extend_from_slice(&field);
        }
        let mut values = [GSTATS, numbers.len() as u32].map(u32::to_ne_bytes).concat();
        values.extend(numbers.iter().flat_map(|number| number.to_ne_bytes()));
        (strings, values)
    }

    #[test]
    fn names_and_values_are_put_together() {
        let (strings, values) = recorded(&["pps_allowance_exceeded", "rx_drops"], &[7, u64::MAX]);
        let expected =
            [("pps_allowance_exceeded".to_owned(), 7), ("rx_drops".to_owned(), u64::MAX)];
        assert_eq!(counters(&strings, &values).unwrap(), expected);
    }

    #[test]
    fn counters_that_changed_meanwhile_are_not_mixed_up() {
        let (strings, _) = recorded(&["a", "b"], &[]);
        let (_, values) = recorded(&[], &[1, 2, 3]);
        assert_eq!(counters(&strings, &values), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(
            strings in proptest::collection::vec(any::<u8>(), 0..200),
            values in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            counters(&strings, &values);
        }

        #[test]
        fn cut_answers_are_no_answer(cut in 0usize..92) {
            let (strings, values) = recorded(&["a", "b"], &[1, 2]);
            let whole = strings.len() + values.len();
            prop_assume!(cut < whole);
            let strings = &strings[..strings.len().min(cut)];
            let values = &values[..values.len().min(cut.saturating_sub(strings.len()))];
            prop_assert_eq!(counters(strings, values), None);
        }
    }

    #[test]
    fn an_interface_that_is_not_there_or_has_no_counters_is_an_error_with_its_reason() {
        let error = adapter("no-such-if0").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
        let error = adapter("a-name-that-is-longer-than-names-are").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    }
}
