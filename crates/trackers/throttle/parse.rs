//! The kernel's files, from text to numbers. Pure: damaged text is an error, never a number.

/// Text that is not what this file has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}, line {line}: {what}")]
pub struct Damaged {
    /// Which file.
    pub file: &'static str,
    /// Counted from 1; 0 for the file as a whole.
    pub line: usize,
    /// What is wrong.
    pub what: &'static str,
}

type Parsed<T> = Result<T, Damaged>;

fn damaged<T>(file: &'static str, line: usize, what: &'static str) -> Parsed<T> {
    Err(Damaged { file, line, what })
}

/// A CPU's line of `/proc/net/softnet_stat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Softnet {
    pub(super) cpu: u32,
    pub(super) processed: u32,
    pub(super) dropped: u32,
    pub(super) squeezed: u32,
}

/// Columns since 5.10: `processed dropped time_squeeze … backlog_len index …`.
const SOFTNET_INDEX: usize = 12;

/// Reads `/proc/net/softnet_stat`. Older kernels do not say which CPU a line is of; then its number
/// counts.
pub(super) fn softnet(text: &str) -> Parsed<Vec<Softnet>> {
    let file = "softnet_stat";
    let mut cpus = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let mut fields = Vec::with_capacity(16);
        for field in line.split_ascii_whitespace() {
            match u32::from_str_radix(field, 16) {
                Ok(value) => fields.push(value),
                Err(_) => return damaged(file, index + 1, "not a hexadecimal number"),
            }
        }
        let &[processed, dropped, squeezed, _, _, _, _, _, _, ..] = &fields[..] else {
            return damaged(file, index + 1, "less than nine columns");
        };
        let cpu = fields.get(SOFTNET_INDEX).copied().unwrap_or(index as u32);
        cpus.push(Softnet { cpu, processed, dropped, squeezed });
    }
    if cpus.is_empty() {
        return damaged(file, 0, "there is no line");
    }
    Ok(cpus)
}

/// Totals of a file in `/proc/pressure`, in µs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pressure {
    pub(super) some: Option<u64>,
    pub(super) full: Option<u64>,
}

/// Reads one of `/proc/pressure`.
pub(super) fn pressure(text: &str) -> Parsed<Pressure> {
    let file = "pressure";
    let mut pressure = Pressure::default();
    for (index, line) in text.lines().enumerate() {
        let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
        let total = rest.split(' ').find_map(|field| field.strip_prefix("total="));
        let Some(total) = total.and_then(|total| total.parse().ok()) else {
            return damaged(file, index + 1, "no total");
        };
        match kind {
            "some" => pressure.some = Some(total),
            "full" => pressure.full = Some(total),
            _ => return damaged(file, index + 1, "neither some nor full"),
        }
    }
    if pressure == Pressure::default() {
        return damaged(file, 0, "there is no line");
    }
    Ok(pressure)
}

/// Reads each CPU's stolen time from `/proc/stat`, in ticks.
pub(super) fn steal(text: &str) -> Parsed<Vec<(u32, u64)>> {
    let file = "stat";
    let mut cpus = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let Some(rest) = line.strip_prefix("cpu") else { continue };
        if rest.starts_with(' ') {
            continue; // their sum
        }
        let mut fields = rest.split_ascii_whitespace();
        let Some(cpu) = fields.next().and_then(|cpu| cpu.parse().ok()) else {
            return damaged(file, index + 1, "a CPU without a number");
        };
        // user nice system idle iowait irq softirq steal
        let Some(steal) = fields.nth(7).and_then(|ticks| ticks.parse().ok()) else {
            return damaged(file, index + 1, "no stolen time");
        };
        cpus.push((cpu, steal));
    }
    if cpus.is_empty() {
        return damaged(file, 0, "there is no CPU");
    }
    Ok(cpus)
}

/// An interface's line of `/proc/net/dev`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) receive_errs: u64,
    pub(super) receive_drop: u64,
    pub(super) receive_fifo: u64,
    pub(super) transmit_errs: u64,
    pub(super) transmit_drop: u64,
}

/// Reads `/proc/net/dev`.
pub(super) fn interfaces(text: &str) -> Parsed<Vec<Interface>> {
    let file = "net/dev";
    let mut found = Vec::new();
    if !text.starts_with("Inter-|") {
        return damaged(file, 1, "not the heading");
    }
    for (index, line) in text.lines().enumerate().skip(2) {
        // A name may have a colon in it (an alias of old); the numbers have none.
        let Some((name, rest)) = line.rsplit_once(':') else {
            return damaged(file, index + 1, "no interface");
        };
        let fields: Result<Vec<u64>, _> = rest.split_ascii_whitespace().map(str::parse).collect();
        let Ok(
            [
                _,
                _,
                receive_errs,
                receive_drop,
                receive_fifo,
                _,
                _,
                _,
                _,
                _,
                transmit_errs,
                transmit_drop,
                _,
                _,
                _,
                _,
            ],
        ) = fields.as_deref()
        else {
            return damaged(file, index + 1, "not sixteen numbers");
        };
        found.push(Interface {
            name: name.trim().to_owned(),
            receive_errs: *receive_errs,
            receive_drop: *receive_drop,
            receive_fifo: *receive_fifo,
            transmit_errs: *transmit_errs,
            transmit_drop: *transmit_drop,
        });
    }
    Ok(found)
}

/// Listeners' troubles in a network namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Listen {
    pub(super) overflows: u64,
    pub(super) drops: u64,
}

/// Reads `/proc/net/netstat`: pairs of lines, names and values.
pub(super) fn listen(text: &str) -> Parsed<Listen> {
    let file = "netstat";
    let mut lines = text.lines().enumerate().filter(|(_, line)| line.starts_with("TcpExt: "));
    let (Some((_, names)), Some((line, values))) = (lines.next(), lines.next()) else {
        return damaged(file, 0, "no pair of lines TcpExt");
    };
    if names.split(' ').count() != values.split(' ').count() {
        return damaged(file, line + 1, "not as many values as names");
    }
    let value = |wanted: &str| {
        let mut pairs = names.split(' ').zip(values.split(' '));
        pairs.find(|(name, _)| *name == wanted).and_then(|(_, value)| value.parse().ok())
    };
    match (value("ListenOverflows"), value("ListenDrops")) {
        (Some(overflows), Some(drops)) => Ok(Listen { overflows, drops }),
        _ => damaged(file, line + 1, "no number for ListenOverflows or ListenDrops"),
    }
}

/// What a cgroup's quota did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Quota {
    pub(super) periods: u64,
    pub(super) throttled_periods: u64,
    pub(super) throttled_ns: u64,
}

/// Reads a cgroup's `cpu.stat`, of v1 (`throttled_time`, in ns) or v2 (`throttled_usec`). `None`: v2
/// without the CPU controller, where no quota can be.
pub(super) fn quota(text: &str) -> Parsed<Option<Quota>> {
    let file = "cpu.stat";
    let mut quota = Quota::default();
    let mut found = [false; 3];
    for (index, line) in text.lines().enumerate() {
        let Some((name, value)) = line.split_once(' ') else {
            return damaged(file, index + 1, "not a name and a value");
        };
        let (field, scale) = match name {
            "nr_periods" => (0, 1),
            "nr_throttled" => (1, 1),
            "throttled_time" => (2, 1),
            "throttled_usec" => (2, 1_000),
            _ => continue,
        };
        let value = value.trim().parse::<u64>().ok().and_then(|value| value.checked_mul(scale));
        let Some(value) = value else { return damaged(file, index + 1, "not a number") };
        found[field] = true;
        *[&mut quota.periods, &mut quota.throttled_periods, &mut quota.throttled_ns][field] = value;
    }
    match found {
        [true, true, true] => Ok(Some(quota)),
        [false, false, false] => Ok(None),
        _ => damaged(file, 0, "the quota's counters are incomplete"),
    }
}

#[cfg(test)]
#[path = "parse_tests.rs"]
mod tests;
