//! Counts of values by size, in memory that does not grow: a value is known to one part in eight.

/// Parts of each power of two.
const PARTS: u64 = 8;
const PLACES: usize = (64 - 2) * PARTS as usize;

/// How often values of each size came.
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
    /// One value more.
    pub fn add(&mut self, value: u64) {
        self.counts[place(value)] += 1;
        self.count += 1;
        self.sum += u128::from(value);
        self.max = self.max.max(value);
    }

    /// How many values came.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their mean; 0 where there is none.
    pub fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum as f64 / self.count as f64 }
    }

    /// The largest.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// A value that this share of all is not above: 0.5 is the median. 0 where there is none.
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

    /// For each size that came, the largest value of that size and how often; in ascending order.
    pub fn steps(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let came = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        came.map(|(at, count)| (upper(at), *count))
    }
}

/// The place of a value: itself below 8, then eight places to a power of two.
fn place(value: u64) -> usize {
    if value < PARTS {
        return value as usize;
    }
    let power = u64::from(value.ilog2());
    let part = (value >> (power - 3)) - PARTS;
    ((power - 2) * PARTS + part) as usize
}

/// The largest value of a place.
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
