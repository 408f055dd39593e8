//! How large the parts of a request are, in percent.
//!
//! Rounded one by one, percentages that make a whole need not sum to it. So they are rounded together,
//! once, and whoever names a part asks here: a table, a finding and a line of their own that speak of the
//! same time say the same.

use std::collections::BTreeMap;

use underspan_explain::Part;
use underspan_explain::words::{fraction, percent_of};

use super::bar::per_mille;

/// The parts of one request, each with its time and its share in tenths of a percent.
pub(super) struct Shares {
    parts: BTreeMap<&'static str, (u64, usize)>,
    whole_ns: u64,
}

impl Shares {
    /// Of parts that sum to the whole.
    pub(super) fn of(parts: &[Part]) -> Self {
        let mut parts: Vec<&Part> = parts.iter().collect();
        // A tenth more or less changes the largest least.
        parts.sort_by_key(|part| std::cmp::Reverse(part.ns));
        let ns: Vec<u64> = parts.iter().map(|part| part.ns).collect();
        let named = parts.iter().zip(per_mille(&ns));
        Shares {
            parts: named.map(|(part, tenths)| (part.part, (part.ns, tenths))).collect(),
            whole_ns: ns.iter().fold(0, |sum, ns| sum.saturating_add(*ns)),
        }
    }

    /// `93.8 %`: some of the parts together, or pieces of them, as the stalls of a connection are of a
    /// state's time.
    pub(super) fn percent<'a>(&self, parts: impl IntoIterator<Item = &'a Part>) -> String {
        let (mut ns, mut tenths) = (0u64, 0.0);
        for piece in parts {
            let (part_ns, part_tenths) = self.parts.get(piece.part).copied().unwrap_or_default();
            ns = ns.saturating_add(piece.ns);
            tenths += part_tenths as f64 * fraction(piece.ns, part_ns);
        }
        percent_of(tenths.round() as u64, ns, self.whole_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(part: &'static str, ns: u64) -> Part {
        Part { part, ns, fraction: 0.0 }
    }

    #[test]
    fn parts_sum_and_pieces_are_as_large_as_their_parts_allow() {
        let parts = [part("running", 1), part("sleep", 1), part("net_read", 1)];
        let shares = Shares::of(&parts);
        let each: Vec<_> = parts.iter().map(|part| shares.percent([part])).collect();
        assert_eq!(each, ["33.4 %", "33.3 %", "33.3 %"]);
        assert_eq!(shares.percent(&parts[..2]), "66.7 %");
        assert_eq!(shares.percent(&parts), "100 %");
        assert_eq!(shares.percent(&[]), "0 %");
        let shares = Shares::of(&[part("net_read", 1000), part("sleep", 2000)]);
        assert_eq!(shares.percent([&part("net_read", 1000)]), "33.3 %");
        assert_eq!(shares.percent([&part("net_read", 500)]), "16.7 %");
    }

    #[test]
    fn little_is_not_nothing_and_nearly_all_is_not_all() {
        let parts = [part("running", 1), part("sleep", 99_999_999)];
        let shares = Shares::of(&parts);
        assert_eq!(shares.percent([&parts[0]]), "<0.1 %");
        assert_eq!(shares.percent([&parts[1]]), ">99.9 %");
        assert_eq!(Shares::of(&[]).percent(&[]), "0 %");
    }
}
