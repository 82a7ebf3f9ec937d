//! Filters of finite response by direct sums: each output sample is a weighted sum of the current
//! and the previous input samples.
//!
//! `y[t] = Σ taps[k] · x[t - k]`. Taps are real; complex taps are two filters. Samples are real, or
//! complex as pairs of numbers. The order of the additions does not depend on the position of a
//! sample in its piece, so the pieces of a stream give bit for bit the same result as the whole
//! stream.

use panoply_core::Threads;

use crate::finite::is_finite;
use crate::lanes::Lanes;
use crate::level::{Kind, Level};
use crate::threads::{for_each_piece, share};

/// Real taps in the layout for a level.
pub struct Taps {
    level: Level,
    /// The taps in the order in which they are added, padded with zeros.
    groups: Vec<f32>,
    /// Number of numbers in a sample: 1 if real, 2 if complex.
    step: usize,
    count: usize,
}

/// The least number of output samples in one turn of a thread.
const PIECE_MIN: usize = 4096;
/// Number of output numbers that are repaired at a time.
const MENDED_NUMBERS: usize = 1 << 14;

impl Taps {
    /// Taps for samples of `step` numbers, 1 or 2.
    pub fn new(level: Level, taps: &[f32], step: usize) -> Taps {
        let width = lanes_of(level);
        let (rows, group) = (width / step, group_of(level) * width / step);
        let mut groups = Vec::with_capacity(taps.len().next_multiple_of(group));
        for first in (0..taps.len()).step_by(group) {
            for row in 0..rows {
                let tap = |column: usize| taps.get(first + row + column * rows).copied().unwrap_or(0.0);
                groups.extend((0..group / rows).map(tap));
            }
        }
        Taps { level, groups, step, count: taps.len() }
    }

    /// Number of taps.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The filter's memory: the number of numbers before the first sample that it needs.
    pub fn history_len(&self) -> usize {
        self.count.saturating_sub(1) * self.step
    }

    /// Number of numbers before the first one that the kernel reads, including those that are
    /// multiplied by padding taps.
    fn reach(&self) -> usize {
        self.groups.len() * self.step
    }

    /// Filters `input`. `history` has the numbers before it; missing ones count as zeros.
    pub fn filter(&self, threads: &dyn Threads, history: &[f32], input: &[f32], output: &mut [f32]) {
        assert_eq!(input.len(), output.len());
        let piece = (share(output.len(), threads.count(), PIECE_MIN * self.step)).next_multiple_of(2);
        for_each_piece(threads, output, piece, &|index, part| {
            let begin = index * piece;
            self.filter_piece(history, input, begin, part);
        });
    }

    /// Computes the part of the output that begins at index `begin` of the input.
    fn filter_piece(&self, history: &[f32], input: &[f32], begin: usize, output: &mut [f32]) {
        let (reach, block) = (self.reach(), block_of(self.level));
        let mut done = 0;
        while done < output.len() {
            let at = begin + done;
            let whole = (output.len() - done) / block * block;
            if at >= reach && whole > 0 {
                self.blocks(&input[at - reach..at + whole], &mut output[done..done + whole]);
                done += whole;
                continue;
            }
            // Near the beginning and the end, the samples that the kernel reads are copied into a
            // buffer and padded with zeros.
            let len = (output.len() - done).min(reach.max(block).saturating_sub(at).max(block));
            let copied = self.samples_near(history, input, at, len);
            let mut sums = vec![0.0; copied.len() - reach];
            self.blocks(&copied, &mut sums);
            output[done..done + len].copy_from_slice(&sums[..len]);
            done += len;
        }
        if !is_finite(self.level, output) {
            self.mend(history, input, begin, output);
        }
    }

    /// Repairs sums that are not finite. Padding taps, which are zero, also multiply samples
    /// outside the filter's reach, and zero times NaN or infinity is NaN. First the sums are
    /// computed with zeros in place of NaN and infinities. Then the effect of NaN and infinities
    /// follows from the number of each kind that the taps reach. These counts are sums of the same
    /// kernel, so a signal of only NaN costs just a few times as much as any other.
    fn mend(&self, history: &[f32], input: &[f32], begin: usize, output: &mut [f32]) {
        let mut counts = None;
        for (index, part) in output.chunks_mut(MENDED_NUMBERS).enumerate() {
            if is_finite(self.level, part) {
                continue;
            }
            let near = self.samples_near(history, input, begin + index * MENDED_NUMBERS, part.len());
            if is_finite(self.level, &near) {
                continue; // A sum of finite numbers overflowed.
            }
            let (signs, ones) = &*counts.get_or_insert_with(|| (self.like(sign), self.like(|_| 1.0)));
            let finite = self.sums_of(&near, |sample| if sample.is_finite() { sample } else { 0.0 });
            let nans = ones.sums_of(&near, |sample| f32::from(u8::from(sample.is_nan())));
            let infinite = ones.sums_of(&near, |sample| f32::from(u8::from(sample.is_infinite())));
            let signed = signs.sums_of(&near, |sample| if sample.is_infinite() { sample.signum() } else { 0.0 });
            for (at, value) in part.iter_mut().enumerate() {
                *value = match () {
                    () if nans[at] == 0.0 && infinite[at] == 0.0 => finite[at],
                    // All infinite terms have the same sign, and none is a product with zero.
                    () if nans[at] == 0.0 && signed[at].abs() == infinite[at] => {
                        finite[at] + signed[at] * f32::INFINITY
                    }
                    () => f32::NAN,
                };
            }
        }
    }

    /// The sums over `of(sample)`. The first `reach` samples are only history of the others.
    fn sums_of(&self, near: &[f32], of: impl Fn(f32) -> f32) -> Vec<f32> {
        let samples: Vec<f32> = near.iter().map(|sample| of(*sample)).collect();
        let mut sums = vec![0.0; near.len() - self.reach()];
        self.blocks(&samples, &mut sums);
        sums
    }

    /// The samples of whole blocks from index `at` of the input on, and the earlier samples that
    /// the kernel reads, with zeros where there are none.
    fn samples_near(&self, history: &[f32], input: &[f32], at: usize, len: usize) -> Vec<f32> {
        let reach = self.reach();
        let mut near = vec![0.0; reach + len.next_multiple_of(block_of(self.level))];
        let have = at.min(reach);
        near[reach - have..reach + len].copy_from_slice(&input[at - have..at + len]);
        let older = history.len().min(reach - have);
        near[reach - have - older..reach - have].copy_from_slice(&history[history.len() - older..]);
        near
    }

    /// Taps with the values `of(tap)`; padding taps stay zero.
    fn like(&self, of: impl Fn(f32) -> f32) -> Taps {
        let changed = |(place, tap): (usize, &f32)| {
            let is_filling = self.tap_at(place) >= self.count;
            if is_filling { 0.0 } else { of(*tap) }
        };
        let groups = self.groups.iter().enumerate().map(changed).collect();
        Taps { level: self.level, groups, step: self.step, count: self.count }
    }

    /// The number of the tap at this index of `groups`.
    fn tap_at(&self, place: usize) -> usize {
        let (rows, columns) = (lanes_of(self.level) / self.step, group_of(self.level));
        let (group, within) = (place / (rows * columns), place % (rows * columns));
        group * rows * columns + within % columns * rows + within / columns
    }

    /// Computes whole blocks; `input` has `reach` numbers before the first sample.
    fn blocks(&self, input: &[f32], output: &mut [f32]) {
        assert_eq!(input.len(), output.len() + self.reach());
        assert_eq!(output.len() % block_of(self.level), 0);
        let taps = self.groups.as_slice();
        match (self.level.kind(), self.step) {
            // SAFETY: the lengths were checked, and plain arrays need no special instructions.
            (Kind::Plain, 1) => unsafe { sums::<[f32; 8], 2, 6, 7, 1>(taps, input, output) },
            // SAFETY: as above.
            (Kind::Plain, _) => unsafe { sums::<[f32; 8], 2, 6, 7, 2>(taps, input, output) },
            #[cfg(target_arch = "x86_64")]
            (level, step) => x86(level, step, taps, input, output),
            #[cfg(not(target_arch = "x86_64"))]
            _ => (),
        }
    }
}

/// The sign of a number: 1, -1 or 0.
fn sign(value: f32) -> f32 {
    f32::from(i8::from(value > 0.0) - i8::from(value < 0.0))
}

/// Number of elements in a vector.
fn lanes_of(level: Level) -> usize {
    if level.kind() >= Kind::Avx512 { 16 } else { 8 }
}

/// Number of taps that share a loaded vector of samples.
fn group_of(level: Level) -> usize {
    if level.kind() >= Kind::Avx512 { 4 } else { 2 }
}

/// Number of output numbers that are computed at once.
fn block_of(level: Level) -> usize {
    if level.kind() >= Kind::Avx512 { 8 * 16 } else { 6 * 8 }
}

#[cfg(target_arch = "x86_64")]
fn x86(level: Kind, step: usize, taps: &[f32], input: &[f32], output: &mut [f32]) {
    use std::arch::x86_64::{__m256, __m512};
    #[target_feature(enable = "avx2,fma")]
    fn avx2<const STEP: usize>(taps: &[f32], input: &[f32], output: &mut [f32]) {
        // SAFETY: the caller has checked the lengths.
        unsafe { sums::<__m256, 2, 6, 7, STEP>(taps, input, output) }
    }
    #[target_feature(enable = "avx512f,fma")]
    fn avx512<const STEP: usize>(taps: &[f32], input: &[f32], output: &mut [f32]) {
        // SAFETY: the caller has checked the lengths.
        unsafe { sums::<__m512, 4, 8, 11, STEP>(taps, input, output) }
    }
    match (level, step) {
        // SAFETY: a level is only made if the CPU has its instructions.
        (Kind::Avx512 | Kind::Gfni, 1) => unsafe { avx512::<1>(taps, input, output) },
        // SAFETY: as above.
        (Kind::Avx512 | Kind::Gfni, _) => unsafe { avx512::<2>(taps, input, output) },
        // SAFETY: as above.
        (_, 1) => unsafe { avx2::<1>(taps, input, output) },
        // SAFETY: as above.
        (_, _) => unsafe { avx2::<2>(taps, input, output) },
    }
}

/// Computes blocks of `SUMS` vectors. The taps of a group whose distance is a whole vector share
/// each of the `LOADS` loaded vectors: `SUMS + GROUP - 1`.
///
/// # Safety
/// The CPU has the type's instructions. `output` is whole blocks, and `input` has
/// `taps.len() · STEP` more numbers, which come first.
#[inline(always)]
unsafe fn sums<V: Lanes, const GROUP: usize, const SUMS: usize, const LOADS: usize, const STEP: usize>(
    taps: &[f32],
    input: &[f32],
    output: &mut [f32],
) {
    let (width, rows) = (V::COUNT, V::COUNT / STEP);
    let reach = taps.len() * STEP;
    for begin in (0..output.len()).step_by(SUMS * width) {
        // SAFETY: as the caller guarantees. The first number that is read is `reach - STEP` before
        // the block, and the last is the block's last.
        unsafe {
            let mut sums = [V::splat(0.0); SUMS];
            let mut row_taps = taps.as_ptr();
            let mut newest = input.as_ptr().add(begin + reach);
            for _ in 0..taps.len() / (rows * GROUP) {
                for row in 0..rows {
                    let first = newest.sub(row * STEP + (GROUP - 1) * width);
                    let samples: [V; LOADS] = std::array::from_fn(|place| V::load(first.add(place * width)));
                    for column in 0..GROUP {
                        let weight = V::splat(*row_taps.add(column));
                        for place in 0..SUMS {
                            sums[place] = weight.mul_add(samples[place + GROUP - 1 - column], sums[place]);
                        }
                    }
                    row_taps = row_taps.add(GROUP);
                }
                newest = newest.sub(GROUP * width);
            }
            for (place, sum) in sums.into_iter().enumerate() {
                sum.store(output.as_mut_ptr().add(begin + place * width));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use panoply_core::OneThread;

    use super::*;
    use crate::threads::tests::ScopedThreads;

    fn numbers(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    fn expected(taps: &[f32], input: &[f32], step: usize) -> Vec<f64> {
        let term = |at: usize| {
            let one = |(tap, weight): (usize, &f32)| {
                at.checked_sub(tap * step).map_or(0.0, |place| f64::from(*weight) * f64::from(input[place]))
            };
            taps.iter().enumerate().map(one).sum()
        };
        (0..input.len()).map(term).collect()
    }

    #[test]
    fn sums_are_those_of_plain_loops_at_every_level() {
        for level in Level::all() {
            for step in [1, 2] {
                for (count, len) in
                    [(1, 1), (1, 300), (2, 129), (16, 7), (33, 400), (101, 1000), (130, 64), (257, 900), (3, 0)]
                {
                    let (taps, input) = (numbers(count, 1), numbers(len * step, 2));
                    let filter = Taps::new(level, &taps, step);
                    let mut output = vec![f32::NAN; input.len()];
                    filter.filter(&OneThread, &[], &input, &mut output);
                    for (got, expected) in output.iter().zip(expected(&taps, &input, step)) {
                        assert!((f64::from(*got) - expected).abs() < 1e-4, "{level:?} {step} {count} {len}");
                    }
                }
            }
        }
    }

    #[test]
    fn pieces_give_bit_for_bit_what_the_whole_gives() {
        for level in Level::all() {
            let (taps, input) = (numbers(77, 3), numbers(20_000, 4));
            let filter = Taps::new(level, &taps, 1);
            let (mut whole, mut pieces) = (vec![0.0; input.len()], vec![0.0; input.len()]);
            filter.filter(&ScopedThreads(3), &[], &input, &mut whole);
            let mut at = 0;
            for len in [1, 2, 75, 76, 77, 1000, 5000].into_iter().cycle() {
                let end = input.len().min(at + len);
                let history = &input[at.saturating_sub(filter.history_len())..at];
                filter.filter(&OneThread, history, &input[at..end], &mut pieces[at..end]);
                at = end;
                if at == input.len() {
                    break;
                }
            }
            assert_eq!(whole, pieces);
        }
    }

    #[test]
    fn what_is_not_finite_stays_within_the_taps_reach() {
        for level in Level::all() {
            let mut input = numbers(500, 5);
            input[200] = f32::INFINITY;
            let filter = Taps::new(level, &[1.0, -0.5, 0.25], 1);
            let mut output = vec![0.0; 500];
            filter.filter(&OneThread, &[], &input, &mut output);
            for (at, value) in output.iter().enumerate() {
                assert_eq!(value.is_finite(), !(200..203).contains(&at), "{level:?} {at} {value}");
            }
        }
    }

    #[test]
    fn samples_that_are_not_finite_cost_a_few_times_what_others_do() {
        let (taps, finite) = (numbers(255, 1), numbers(1 << 17, 2));
        let filter = Taps::new(Level::best(), &taps, 1);
        let mut output = vec![0.0; finite.len()];
        let mut time_of = |input: &[f32]| {
            let mut once = || {
                let begin = std::time::Instant::now();
                filter.filter(&OneThread, &[], input, &mut output);
                begin.elapsed()
            };
            (0..5).map(|_| once()).min().unwrap()
        };
        let usual = time_of(&finite);
        for odd in [f32::NAN, f32::INFINITY] {
            let all = time_of(&vec![odd; finite.len()]);
            assert!(all < usual * 30, "{odd}: {all:?}, else {usual:?}");
        }
    }

    #[test]
    fn infinite_terms_of_both_signs_or_with_zero_make_nan() {
        for level in Level::all() {
            let filter = Taps::new(level, &[1.0, 0.0, -2.0, 1.0], 1);
            let mut input = vec![1.0; 40];
            input[10] = f32::INFINITY;
            (input[20], input[22]) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
            input[30] = f32::NAN;
            let mut output = vec![0.0; 40];
            filter.filter(&OneThread, &[], &input, &mut output);
            assert_eq!((output[10], output[12], output[13]), (f32::INFINITY, f32::NEG_INFINITY, f32::INFINITY));
            assert!(output[11].is_nan(), "infinity times zero");
            assert!(output[22].is_nan(), "minus infinity and twice infinity");
            assert!(output[30..34].iter().all(|value| value.is_nan()) && output[34].is_finite(), "{output:?}");
            assert!(output[9].is_finite() && output[14].is_finite() && output[26].is_finite());
        }
    }
}
