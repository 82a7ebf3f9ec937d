//! Filters of finite response by their sums: each sample is the weighted sum of the samples before it.
//!
//! `y[t] = Σ taps[k] · x[t - k]`. Taps are real; complex ones are two filters. Samples are real, or complex in pairs. The terms of a sum are
//! added in an order that does not depend on where the sample lies in its piece, so pieces of a stream give bit for bit what the whole
//! gives.

use crate::lanes::Lanes;
use crate::level::{Kind, Level};
use crate::threads::{Threads, for_each_piece, share};

/// Real taps, laid out for a level.
pub struct Taps {
    level: Level,
    /// In the order in which they are added, filled up with zeros.
    groups: Vec<f32>,
    /// How many numbers a sample has: 1, or 2 where it is complex.
    step: usize,
    count: usize,
}

/// Output samples of one turn of a thread, at the least.
const PIECE_MIN: usize = 4096;

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

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Numbers of samples that must stand before the first: the memory of the filter.
    pub fn history_len(&self) -> usize {
        self.count.saturating_sub(1) * self.step
    }

    /// Numbers before the first that the kernel reads, those that zero taps multiply included.
    fn reach(&self) -> usize {
        self.groups.len() * self.step
    }

    /// The filtered samples of `input`, before which `history` stood: the last numbers of it that count, zeros where there are fewer.
    pub fn filter(&self, threads: &dyn Threads, history: &[f32], input: &[f32], output: &mut [f32]) {
        assert_eq!(input.len(), output.len());
        let piece = (share(output.len(), threads.count(), PIECE_MIN * self.step)).next_multiple_of(2);
        for_each_piece(threads, output, piece, &|index, part| {
            let begin = index * piece;
            self.filter_piece(history, input, begin, part);
        });
    }

    /// The part of the output that begins at this number of the input.
    fn filter_piece(&self, history: &[f32], input: &[f32], begin: usize, output: &mut [f32]) {
        let (reach, block) = (self.reach(), block_of(self.level));
        let mut done = 0;
        let mut copied: Vec<f32> = Vec::new();
        while done < output.len() {
            let at = begin + done;
            let whole = (output.len() - done) / block * block;
            if at >= reach && whole > 0 {
                self.blocks(&input[at - reach..at + whole], &mut output[done..done + whole]);
                done += whole;
                continue;
            }
            // Near the beginning and the end what the kernel reads is put together, with zeros where there is nothing. A NaN in
            // what only zero taps multiply must not be read.
            let len = (output.len() - done).min(reach.max(block).saturating_sub(at).max(block));
            let padded = len.next_multiple_of(block);
            copied.clear();
            copied.resize(reach + padded, 0.0);
            let have = at.min(reach);
            copied[reach - have..reach + len].copy_from_slice(&input[at - have..at + len]);
            let older = history.len().min(reach - have);
            copied[reach - have - older..reach - have].copy_from_slice(&history[history.len() - older..]);
            let mut sums = vec![0.0; padded];
            self.blocks(&copied, &mut sums);
            output[done..done + len].copy_from_slice(&sums[..len]);
            done += len;
        }
        self.mend(history, input, begin, output);
    }

    /// Sums that came out as NaN or infinity are added up again by themselves: a zero tap that only fills up a group makes NaN of an
    /// infinite sample that the filter does not reach.
    fn mend(&self, history: &[f32], input: &[f32], begin: usize, output: &mut [f32]) {
        if output.iter().fold(0.0_f32, |sum, value| sum + value * 0.0) == 0.0 {
            return;
        }
        for (at, value) in output.iter_mut().enumerate().filter(|(_, value)| !value.is_finite()) {
            let sample = |back: usize| match (begin + at).checked_sub(back) {
                Some(place) => input[place],
                None => (history.len() + begin + at).checked_sub(back).map_or(0.0, |place| history[place]),
            };
            let mut sum = 0.0_f32;
            for (place, weight) in self.groups.iter().enumerate() {
                let tap = self.tap_at(place);
                if tap < self.count {
                    let (a, b) = (*weight, sample(tap * self.step));
                    sum = if self.level == Level::PLAIN { a * b + sum } else { a.mul_add(b, sum) };
                }
            }
            *value = sum;
        }
    }

    /// Which tap stands at this place.
    fn tap_at(&self, place: usize) -> usize {
        let (rows, columns) = (lanes_of(self.level) / self.step, group_of(self.level));
        let (group, within) = (place / (rows * columns), place % (rows * columns));
        group * rows * columns + within % columns * rows + within / columns
    }

    /// Whole blocks; `reach` numbers stand before the first.
    fn blocks(&self, input: &[f32], output: &mut [f32]) {
        assert_eq!(input.len(), output.len() + self.reach());
        assert_eq!(output.len() % block_of(self.level), 0);
        let taps = self.groups.as_slice();
        match (self.level.kind(), self.step) {
            // SAFETY: the lengths were checked, and plain arrays need no instructions of their own.
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

/// Numbers in a vector.
fn lanes_of(level: Level) -> usize {
    if level.kind() == Kind::Avx512 { 16 } else { 8 }
}

/// Taps that share one vector of samples.
fn group_of(level: Level) -> usize {
    if level.kind() == Kind::Avx512 { 4 } else { 2 }
}

/// Numbers of the output that are under way at once.
fn block_of(level: Level) -> usize {
    if level.kind() == Kind::Avx512 { 8 * 16 } else { 6 * 8 }
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
        // SAFETY: the level is only made where the CPU has its instructions.
        (Kind::Avx512, 1) => unsafe { avx512::<1>(taps, input, output) },
        // SAFETY: as above.
        (Kind::Avx512, _) => unsafe { avx512::<2>(taps, input, output) },
        // SAFETY: as above.
        (_, 1) => unsafe { avx2::<1>(taps, input, output) },
        // SAFETY: as above.
        (_, _) => unsafe { avx2::<2>(taps, input, output) },
    }
}

/// A block of `SUMS` vectors at a time. Of the taps of a group, those that lie a whole vector apart share each of the `LOADS` vectors that are
/// loaded: `SUMS + GROUP - 1`.
///
/// # Safety
/// The CPU has the type's instructions. `output` is whole blocks, and `input` has `taps.len() · STEP` numbers more before them.
#[inline(always)]
unsafe fn sums<V: Lanes, const GROUP: usize, const SUMS: usize, const LOADS: usize, const STEP: usize>(
    taps: &[f32],
    input: &[f32],
    output: &mut [f32],
) {
    let (width, rows) = (V::COUNT, V::COUNT / STEP);
    let reach = taps.len() * STEP;
    for begin in (0..output.len()).step_by(SUMS * width) {
        // SAFETY: as the caller has it. The farthest number read before a block is `reach - STEP`, the last is the block's own.
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
    use super::*;
    use crate::threads::OneThread;
    use crate::threads::tests::Scoped;

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
            filter.filter(&Scoped(3), &[], &input, &mut whole);
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
}
