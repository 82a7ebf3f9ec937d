//! Scores of a few rows on the caller's own thread. Handing rows to a worker and waiting for it takes some 10 µs; a list or
//! two of an index are scored in less.
//!
//! The loops are plain Rust over fixed lanes; they are compiled once for each vector level, and chosen when they run.

use panoply_core::op::compute::Metric;

/// Elements that are scored directly at most: beyond that several threads are quicker than one.
pub(crate) const DIRECT_ELEMENTS_MAX: usize = 1 << 20;
/// Sums that are kept at once, so that none waits for itself.
const LANES: usize = 32;

/// For each row its key: the smaller, the nearer. Squared distances under euclidean, negative products otherwise.
pub(crate) fn for_each_key(metric: Metric, query: &[f32], rows: &[f32], visit: impl FnMut(u32, f32)) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx512f") {
        // SAFETY: the processor has the instructions for which the function is compiled.
        return unsafe { keys_avx512(metric, query, rows, visit) };
    } else if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
        // SAFETY: the processor has the instructions for which the function is compiled.
        return unsafe { keys_avx2(metric, query, rows, visit) };
    }
    keys::<false>(metric, query, rows, visit);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn keys_avx512(metric: Metric, query: &[f32], rows: &[f32], visit: impl FnMut(u32, f32)) {
    keys::<true>(metric, query, rows, visit);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn keys_avx2(metric: Metric, query: &[f32], rows: &[f32], visit: impl FnMut(u32, f32)) {
    keys::<true>(metric, query, rows, visit);
}

#[inline(always)]
fn keys<const FUSED: bool>(metric: Metric, query: &[f32], rows: &[f32], mut visit: impl FnMut(u32, f32)) {
    let rows = (0..).zip(rows.chunks_exact(query.len().max(1)));
    match metric {
        Metric::Euclidean => rows.for_each(|(row, values)| {
            visit(
                row,
                sum::<FUSED>(query, values, |query, value| {
                    let difference = query - value;
                    (difference, difference)
                }),
            );
        }),
        Metric::Dot | Metric::Cosine => {
            rows.for_each(|(row, values)| visit(row, -sum::<FUSED>(query, values, |query, value| (query, value))));
        }
    }
}

/// The sum of the products of what `factors` makes of each pair.
#[inline(always)]
fn sum<const FUSED: bool>(query: &[f32], values: &[f32], factors: impl Fn(f32, f32) -> (f32, f32)) -> f32 {
    let add = |sum: f32, (a, b): (f32, f32)| if FUSED { a.mul_add(b, sum) } else { a * b + sum };
    let (query_lanes, query_rest) = query.as_chunks::<LANES>();
    let (value_lanes, value_rest) = values.as_chunks::<LANES>();
    let mut sums = [0.0_f32; LANES];
    for (query, values) in query_lanes.iter().zip(value_lanes) {
        for lane in 0..LANES {
            sums[lane] = add(sums[lane], factors(query[lane], values[lane]));
        }
    }
    let rest = query_rest.iter().zip(value_rest).fold(0.0, |sum, (query, value)| add(sum, factors(*query, *value)));
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            sums[lane] += sums[lane + width];
        }
        width /= 2;
    }
    sums[0] + rest
}

/// The `k` smallest keys, in order; equal ones in the order in which they came.
pub(crate) struct Nearest {
    k: usize,
    pub(crate) kept: Vec<(f32, u32)>,
}

impl Nearest {
    pub(crate) fn new(k: usize) -> Nearest {
        Nearest { k, kept: Vec::with_capacity(k.min(1024) + 1) }
    }

    pub(crate) fn offer(&mut self, key: f32, row: u32) {
        if self.kept.len() < self.k || self.kept.last().is_some_and(|(last, _)| key < *last) {
            let place = self.kept.partition_point(|(other, _)| *other <= key);
            self.kept.insert(place, (key, row));
            self.kept.truncate(self.k);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_scores_as_plain_loops_do() {
        for dimension in [1, 3, 31, 32, 33, 128, 200] {
            let number = |index: usize| ((index * 7919) % 613) as f32 / 100.0 - 3.0;
            let rows: Vec<f32> = (0..dimension * 9).map(number).collect();
            let query: Vec<f32> = (0..dimension).map(|index| number(index + 5)).collect();
            for metric in Metric::ALL {
                let wanted = |row: u32| -> f64 {
                    let values = rows[row as usize * dimension..][..dimension].iter().map(|value| f64::from(*value));
                    let pairs = query.iter().map(|value| f64::from(*value)).zip(values);
                    match metric {
                        Metric::Euclidean => pairs.map(|(query, value)| (query - value) * (query - value)).sum(),
                        Metric::Dot | Metric::Cosine => -pairs.map(|(query, value)| query * value).sum::<f64>(),
                    }
                };
                let (mut seen, mut plain) = (0, Vec::new());
                for_each_key(metric, &query, &rows, |row, key| {
                    assert!((f64::from(key) - wanted(row)).abs() < 1.0e-2, "{metric:?} {dimension}: {key}");
                    seen += 1;
                });
                keys::<false>(metric, &query, &rows, |row, key| plain.push((row, key)));
                assert_eq!((seen, plain.len()), (9, 9));
                assert!(plain.iter().all(|(row, key)| (f64::from(*key) - wanted(*row)).abs() < 1.0e-2));
            }
        }
    }

    #[test]
    fn the_nearest_are_kept_in_order() {
        let mut nearest = Nearest::new(3);
        for (row, key) in (0..).zip([5.0, 1.0, 4.0, 1.0, 9.0, 1.0, 0.5]) {
            nearest.offer(key, row);
        }
        assert_eq!(nearest.kept, [(0.5, 6), (1.0, 1), (1.0, 3)]);
        let mut none = Nearest::new(0);
        none.offer(1.0, 1);
        assert!(none.kept.is_empty());
    }
}
