//! Stacked bars, and percentages that sum.

/// Splits `width` cells among parts so that they fill it, each to the nearest cell. A part that took
/// any time keeps at least one cell as long as there are enough.
pub(super) fn cells(parts: &[u64], width: usize) -> Vec<usize> {
    let shares = apportion(parts, width);
    let mut cells: Vec<usize> = shares;
    for part in 0..parts.len() {
        if parts[part] > 0 && cells[part] == 0 {
            // The largest can spare one.
            let largest = (0..cells.len()).max_by_key(|&other| (cells[other], other));
            if let Some(largest) = largest.filter(|&largest| cells[largest] > 1) {
                cells[largest] -= 1;
                cells[part] = 1;
            }
        }
    }
    cells
}

/// Each part's share in tenths of a percent. They sum to 1000 unless there is nothing.
pub(super) fn per_mille(parts: &[u64]) -> Vec<usize> {
    apportion(parts, 1000)
}

/// Whole units by largest remainder: rounded, and still summing to `units`.
fn apportion(parts: &[u64], units: usize) -> Vec<usize> {
    let total: u128 = parts.iter().map(|&part| u128::from(part)).sum();
    if total == 0 {
        return vec![0; parts.len()];
    }
    let exact = |part: u64| u128::from(part) * units as u128;
    let mut shares: Vec<usize> = parts.iter().map(|&part| (exact(part) / total) as usize).collect();
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_by_key(|&part| (std::cmp::Reverse(exact(parts[part]) % total), part));
    let missing = units - shares.iter().sum::<usize>();
    for part in order.into_iter().take(missing) {
        shares[part] += 1;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_sum_to_a_hundred() {
        assert_eq!(per_mille(&[1, 1, 1]), [334, 333, 333]);
        assert_eq!(per_mille(&[u64::MAX, u64::MAX]), [500, 500]);
        assert_eq!(per_mille(&[0, 0]), [0, 0]);
    }

    #[test]
    fn a_small_part_keeps_a_cell() {
        assert_eq!(cells(&[1000, 1, 0], 10), [9, 1, 0]);
        assert_eq!(cells(&[5, 5], 10), [5, 5]);
        assert_eq!(cells(&[1, 1, 1], 2).iter().sum::<usize>(), 2);
    }
}
