//! Scores of a few rows on the caller's own thread. Handing rows to a worker and waiting costs
//! about 10 µs; a list or two of an index are scored in less time.
//!
//! One loop uses AVX2 and reads as fast as a core's cache delivers; a loop in plain Rust serves
//! other processors.

use panoply_core::op::compute::Metric;

/// Maximum number of elements scored directly: beyond that several threads are faster than one.
pub(crate) const DIRECT_ELEMENTS_MAX: usize = 1 << 20;
/// Independent sums in the plain loop, to avoid a dependency chain.
const LANES: usize = 8;

/// Calls `visit` with a key for each row; smaller keys are nearer. Keys are squared distances for
/// euclidean, negated products otherwise.
pub(crate) fn for_each_key(metric: Metric, query: &[f32], rows: &[f32], mut visit: impl FnMut(u32, f32)) {
    let squares = metric == Metric::Euclidean;
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
        if squares {
            // SAFETY: the check above found the instructions for which the function is compiled.
            return unsafe { avx2::for_each_sum::<true>(query, rows, visit) };
        }
        // SAFETY: the check above found the instructions for which the function is compiled.
        return unsafe { avx2::for_each_sum::<false>(query, rows, |row, sum| visit(row, -sum)) };
    }
    for_each_sum(squares, query, rows, |row, sum| visit(row, if squares { sum } else { -sum }));
}

/// Calls `visit` for each row with the sum of its products with the query, or of the squared
/// differences.
fn for_each_sum(squares: bool, query: &[f32], rows: &[f32], mut visit: impl FnMut(u32, f32)) {
    let term = |query: f32, value: f32| if squares { (query - value) * (query - value) } else { query * value };
    let (query_lanes, query_rest) = query.as_chunks::<LANES>();
    for (row, values) in (0..).zip(rows.chunks_exact(query.len().max(1))) {
        let (value_lanes, value_rest) = values.as_chunks::<LANES>();
        let mut sums = [0.0_f32; LANES];
        for (query, values) in query_lanes.iter().zip(value_lanes) {
            (0..LANES).for_each(|lane| sums[lane] += term(query[lane], values[lane]));
        }
        let rest: f32 = query_rest.iter().zip(value_rest).map(|(query, value)| term(*query, *value)).sum();
        visit(row, sums.iter().sum::<f32>() + rest);
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{
        __m256, _mm256_add_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_setzero_ps, _mm256_storeu_ps, _mm256_sub_ps,
    };

    /// Elements per step: four vectors with independent sums.
    const STEP: usize = 32;

    /// Calls `visit` for each row with the sum of its products with the query, or of the squared
    /// differences.
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn for_each_sum<const SQUARES: bool>(query: &[f32], rows: &[f32], mut visit: impl FnMut(u32, f32)) {
        for (row, values) in (0..).zip(rows.chunks_exact(query.len().max(1))) {
            visit(row, sum::<SQUARES>(query, values));
        }
    }

    #[target_feature(enable = "avx2,fma")]
    #[inline]
    fn sum<const SQUARES: bool>(query: &[f32], values: &[f32]) -> f32 {
        let (query_steps, query_rest) = query.as_chunks::<STEP>();
        let (value_steps, value_rest) = values.as_chunks::<STEP>();
        let (mut first, mut second) = (_mm256_setzero_ps(), _mm256_setzero_ps());
        let (mut third, mut fourth) = (_mm256_setzero_ps(), _mm256_setzero_ps());
        for (query, values) in query_steps.iter().zip(value_steps) {
            first = add::<SQUARES, 0>(first, query, values);
            second = add::<SQUARES, 8>(second, query, values);
            third = add::<SQUARES, 16>(third, query, values);
            fourth = add::<SQUARES, 24>(fourth, query, values);
        }
        let mut rest = 0.0;
        for (query, value) in query_rest.iter().zip(value_rest) {
            rest += if SQUARES { (query - value) * (query - value) } else { query * value };
        }
        let mut lanes = [0.0_f32; 8];
        let sums = _mm256_add_ps(_mm256_add_ps(first, second), _mm256_add_ps(third, fourth));
        // SAFETY: the array has room for the eight numbers of a vector register.
        unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), sums) };
        lanes.iter().sum::<f32>() + rest
    }

    /// Adds the terms of the eight elements at `AT` of a step.
    #[target_feature(enable = "avx2,fma")]
    #[inline]
    fn add<const SQUARES: bool, const AT: usize>(sum: __m256, query: &[f32; STEP], values: &[f32; STEP]) -> __m256 {
        const { assert!(AT + 8 <= STEP) };
        // SAFETY: eight numbers begin at `AT` in both arrays, by the assertion above.
        let (query, values) =
            unsafe { (_mm256_loadu_ps(query.as_ptr().add(AT)), _mm256_loadu_ps(values.as_ptr().add(AT))) };
        match SQUARES {
            true => {
                let difference = _mm256_sub_ps(query, values);
                _mm256_fmadd_ps(difference, difference, sum)
            }
            false => _mm256_fmadd_ps(query, values, sum),
        }
    }
}

/// The `k` smallest keys, ascending; equal keys are ordered by age, smallest first. NaN counts as
/// infinitely far.
pub(crate) struct Nearest {
    k: usize,
    /// Keys, ages and rows, in order.
    pub(crate) kept: Vec<(f32, u32, u32)>,
}

impl Nearest {
    pub(crate) fn new(k: usize) -> Nearest {
        Nearest { k, kept: Vec::with_capacity(k.min(1024) + 1) }
    }

    /// The largest key kept, once there are `k`. Larger keys need not be offered.
    pub(crate) fn worst(&self) -> Option<f32> {
        if self.kept.len() < self.k { None } else { self.kept.last().map(|(key, _, _)| *key) }
    }

    pub(crate) fn offer(&mut self, key: f32, age: u32, row: u32) {
        // NaN has no order among numbers and would break the order of the others.
        let key = if key.is_nan() { f32::INFINITY } else { key };
        let is_before = |(other, other_age, _): &(f32, u32, u32)| *other < key || *other == key && *other_age < age;
        if self.kept.len() < self.k || self.kept.last().is_some_and(|last| !is_before(last)) {
            let place = self.kept.partition_point(is_before);
            self.kept.insert(place, (key, age, row));
            self.kept.truncate(self.k);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_scores_as_plain_loops_do() {
        for dimension in [1, 3, 7, 8, 9, 17, 31, 32, 33, 128, 200, 4096] {
            let number = |index: usize| ((index * 7919) % 613) as f32 / 100.0 - 3.0;
            let rows: Vec<f32> = (0..dimension * 9).map(number).collect();
            let query: Vec<f32> = (0..dimension).map(|index| number(index + 5)).collect();
            for metric in Metric::ALL {
                // Tolerance relative to the summed terms.
                let near = 4.0e-6 * query.iter().map(|value| f64::from(value.abs() * 6.2)).sum::<f64>().max(1.0);
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
                    assert!((f64::from(key) - wanted(row)).abs() < near, "{metric:?} {dimension}: {key}");
                    seen += 1;
                });
                let squares = metric == Metric::Euclidean;
                for_each_sum(squares, &query, &rows, |row, sum| plain.push((row, if squares { sum } else { -sum })));
                assert_eq!((seen, plain.len()), (9, 9));
                assert!(plain.iter().all(|(row, key)| (f64::from(*key) - wanted(*row)).abs() < near));
            }
        }
    }

    /// The result of a plain loop in `f64`, and the tolerance for a sum in `f32`.
    fn plain(metric: Metric, query: &[f32], row: &[f32]) -> (f64, f64) {
        let term = |(query, value): (&f32, &f32)| {
            let (query, value) = (f64::from(*query), f64::from(*value));
            if metric == Metric::Euclidean { (query - value) * (query - value) } else { -query * value }
        };
        let sum = query.iter().zip(row).map(term).sum();
        let most: f64 = query.iter().zip(row).map(|pair| term(pair).abs()).sum();
        (sum, most * f64::from(f32::EPSILON) * (query.len() as f64 + 2.0) + 1.0e-38)
    }

    #[test]
    fn odd_dimensions_offsets_and_numbers_score_as_plain_loops_do() {
        let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.0e-41, -1.0e-41, f32::MIN_POSITIVE, 1.0e30, -0.0];
        let mut cases = 0;
        for dimension in 1..=70 {
            for offset in 0..8 {
                let number = |index: usize| ((index * 7919 + offset * 31) % 613) as f32 / 100.0 - 3.0;
                let mut rows: Vec<f32> = (0..offset + dimension * 10).map(number).collect();
                // Put each odd number in its own row, at varying positions.
                for (row, odd) in odd.into_iter().enumerate() {
                    rows[offset + row * dimension + (offset * 5 + row) % dimension] = odd;
                }
                let query: Vec<f32> = (0..8 + dimension).map(|index| number(index + 5)).collect();
                let (rows, query) = (&rows[offset..], &query[8 - offset..][..dimension]);
                for metric in Metric::ALL {
                    let check = |row: u32, key: f32| {
                        let (wanted, near) = plain(metric, query, &rows[row as usize * dimension..][..dimension]);
                        let right = match (wanted.is_nan(), wanted.abs() > f64::from(f32::MAX)) {
                            (true, _) => key.is_nan(),
                            (false, true) => key.is_infinite() && f64::from(key).signum() == wanted.signum(),
                            (false, false) => (f64::from(key) - wanted).abs() <= near,
                        };
                        assert!(right, "{metric:?} {dimension} at {offset}, row {row}: {key}, not {wanted}");
                    };
                    let squares = metric == Metric::Euclidean;
                    let mut seen = 0;
                    for_each_key(metric, query, rows, |row, key| {
                        check(row, key);
                        seen += 1;
                    });
                    for_each_sum(squares, query, rows, |row, sum| check(row, if squares { sum } else { -sum }));
                    assert_eq!(seen, 10);
                    cases += 2 * seen;
                }
            }
        }
        assert_eq!(cases, 70 * 8 * 3 * 20);
    }

    #[test]
    fn what_is_no_number_takes_no_place_from_a_number() {
        let mut state = 1_u32;
        for round in 0..2000 {
            let mut next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                state >> 20
            };
            let odd = [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
            let key = |number: u32| odd.get(number as usize % 9).copied().unwrap_or(number as f32 / 7.0);
            let keys: Vec<f32> = (0..next() % 40).map(|_| key(next())).collect();
            let k = next() as usize % 12;
            let mut nearest = Nearest::new(k);
            (0..).zip(&keys).for_each(|(row, key)| nearest.offer(*key, row, row));
            let far = |row: &u32| if keys[*row as usize].is_nan() { f32::INFINITY } else { keys[*row as usize] };
            let mut wanted: Vec<u32> = (0..keys.len() as u32).collect();
            wanted.sort_by(|a, b| far(a).total_cmp(&far(b)));
            wanted.truncate(k);
            let kept: Vec<u32> = nearest.kept.iter().map(|(_, _, row)| *row).collect();
            assert_eq!(kept, wanted, "round {round}: {keys:?}");
        }
    }

    #[test]
    fn the_nearest_are_kept_in_order() {
        let mut nearest = Nearest::new(3);
        for (row, key) in (0..).zip([5.0, 1.0, 4.0, 1.0, 9.0, 1.0, 0.5]) {
            nearest.offer(key, 10 - row, row);
        }
        assert_eq!(nearest.kept, [(0.5, 4, 6), (1.0, 5, 5), (1.0, 7, 3)]);
        assert_eq!((nearest.worst(), Nearest::new(1).worst()), (Some(1.0), None));
        let mut none = Nearest::new(0);
        none.offer(1.0, 1, 1);
        assert!(none.kept.is_empty());
    }
}
