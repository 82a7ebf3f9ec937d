//! Counts of values by size, in constant memory, with a resolution of one part in eight.

/// Number of parts of each power of two.
const PARTS: u64 = 8;
const PLACES: usize = (64 - 2) * PARTS as usize;

/// Counts how often values of each size occurred.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Box<[u64; PLACES]>,
    count: u64,
    sum: u128,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: Box::new([0; PLACES]), count: 0, sum: 0, max: 0 }
    }
}

impl Histogram {
    /// Adds a value.
    pub fn add(&mut self, value: u64) {
        self.counts[place(value)] += 1;
        self.count += 1;
        self.sum += u128::from(value);
        self.max = self.max.max(value);
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The mean of the values. 0 if there are none.
    pub fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum as f64 / self.count as f64 }
    }

    /// The largest value. 0 if there are none.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// A value that this share of all values does not exceed: 0.5 is the median. 0 if there are
    /// none.
    pub fn quantile(&self, share: f64) -> u64 {
        let wanted = (share.clamp(0.0, 1.0) * self.count as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (at, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return upper(at).min(self.max);
            }
        }
        self.max
    }

    /// For each size that occurred, in ascending order: the largest value of that size, and the
    /// count.
    pub fn steps(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let came = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        came.map(|(at, count)| (upper(at), *count))
    }
}

/// The index of a value's count: the value itself below 8, then eight indices per power of two.
fn place(value: u64) -> usize {
    if value < PARTS {
        return value as usize;
    }
    let power = u64::from(value.ilog2());
    let part = (value >> (power - 3)) - PARTS;
    ((power - 2) * PARTS + part) as usize
}

/// The largest value that is counted at this index.
fn upper(place: usize) -> u64 {
    let place = place as u64;
    if place < PARTS {
        return place;
    }
    let (power, part) = (place / PARTS + 2, place % PARTS);
    ((PARTS + part) << (power - 3)) + ((1 << (power - 3)) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_known_to_one_part_in_eight() {
        for value in (0..5000).chain((0..64).flat_map(|power| [1_u64 << power, (1 << power) - 1])).chain([u64::MAX]) {
            let at = place(value);
            assert!(upper(at) >= value && (at == 0 || upper(at - 1) < value), "{value}");
            assert!(upper(at) - value <= value / 8, "{value} {}", upper(at));
        }
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile(0.5), 0);
        (1..=1000).for_each(|value| histogram.add(value));
        assert!((450..=575).contains(&histogram.quantile(0.5)), "{}", histogram.quantile(0.5));
        assert_eq!((histogram.quantile(1.0), histogram.max(), histogram.count()), (1000, 1000, 1000));
        assert_eq!(histogram.steps().map(|(_, count)| count).sum::<u64>(), 1000);
    }
}
