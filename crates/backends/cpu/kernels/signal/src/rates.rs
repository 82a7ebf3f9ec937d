//! Filters of finite response that change the sample rate: zeros are inserted between the samples
//! before the filter, and samples are dropped after it. Neither the products with the zeros nor the
//! dropped samples are computed.
//!
//! A sample is one number, or two if it is complex. The order of the additions depends on the taps
//! alone, so the pieces of a stream give bit for bit the same result as the whole stream.

use panoply_core::Threads;

use crate::lanes::Lanes;
use crate::level::{Kind, Level};
use crate::threads::{for_each_piece, share};

/// The least number of output samples in one turn of a thread.
const PIECE_MIN: usize = 1024;
/// The largest number of partial sums that are computed in parallel.
const LANES: usize = 16;

/// Taps, grouped by phase: the taps of a phase meet samples at the same time.
pub struct Rates {
    level: Level,
    /// The taps `phase, phase + up, …` of each phase, the last first. Each tap is repeated for
    /// every number of a sample.
    phases: Vec<Vec<f32>>,
    /// The same for the imaginary parts of the taps; empty if taps are real.
    imaginary: Vec<Vec<f32>>,
    step: usize,
    up: usize,
    down: usize,
}

impl Rates {
    /// Makes a filter of the real parts and, for complex taps, the imaginary parts of the taps.
    /// Both rates are at least 1; a sample is `step` numbers, 1 or 2. Complex taps need complex
    /// samples.
    pub fn new(level: Level, real: &[f32], imaginary: Option<&[f32]>, rates: (usize, usize), step: usize) -> Rates {
        let (up, down) = rates;
        let phase = |taps: &[f32], first: usize| {
            taps.iter().skip(first).step_by(up).rev().flat_map(|tap| std::iter::repeat_n(*tap, step)).collect()
        };
        let phases = (0..up).map(|first| phase(real, first)).collect();
        let imaginary = imaginary.map_or_else(Vec::new, |taps| (0..up).map(|first| phase(taps, first)).collect());
        Rates { level, phases, imaginary, step, up, down }
    }

    /// Number of numbers before the current sample that the filter needs.
    pub fn history_len(&self) -> usize {
        self.phases.first().map_or(0, Vec::len).saturating_sub(self.step)
    }

    /// Number of output samples for `len` input samples, if the first output is `phase` steps of
    /// the upsampled rate after the first input.
    pub fn output_len(&self, len: usize, phase: usize) -> usize {
        (len * self.up).saturating_sub(phase).div_ceil(self.down)
    }

    /// The phase of the next piece, after a piece of `len` samples with this phase.
    pub fn next_phase(&self, len: usize, phase: usize) -> usize {
        phase + self.output_len(len, phase) * self.down - len * self.up
    }

    /// Filters `input`. `history` has the numbers before it; before these the signal is zero.
    pub fn filter(&self, threads: &dyn Threads, history: &[f32], input: &[f32], phase: usize, output: &mut [f32]) {
        let (step, before) = (self.step, self.history_len());
        assert_eq!(output.len(), self.output_len(input.len() / step, phase) * step);
        // The first outputs reach back into the history, so their inputs are copied into one
        // buffer.
        let mut joined = vec![0.0; before + before.min(input.len())];
        let older = history.len().min(before);
        joined[before - older..before].copy_from_slice(&history[history.len() - older..]);
        let own = joined.len() - before;
        joined[before..].copy_from_slice(&input[..own]);
        let near = self.output_len(before / step, phase).min(output.len() / step);
        let piece = share(output.len() / step, threads.count(), PIECE_MIN);
        for_each_piece(threads, output, piece * step, &|index, part| {
            let first = index * piece;
            let (early, late) = part.split_at_mut((near.saturating_sub(first) * step).min(part.len()));
            let time = phase + first * self.down;
            sums(self.level, self, &joined, before, time, early);
            sums(self.level, self, input, 0, time + early.len() / step * self.down, late);
        });
    }
}

/// Computes the outputs from time `time` of the upsampled rate on. `samples` has `lead` numbers
/// before the first sample.
fn sums(level: Level, rates: &Rates, samples: &[f32], lead: usize, time: usize, output: &mut [f32]) {
    match level.kind() {
        // SAFETY: plain arrays need no special instructions.
        Kind::Plain => unsafe { sums_body::<[f32; 8]>(rates, samples, lead, time, output) },
        #[cfg(target_arch = "x86_64")]
        kind => x86(kind, rates, samples, lead, time, output),
        #[cfg(not(target_arch = "x86_64"))]
        _ => (),
    }
}

#[cfg(target_arch = "x86_64")]
fn x86(kind: Kind, rates: &Rates, samples: &[f32], lead: usize, time: usize, output: &mut [f32]) {
    use std::arch::x86_64::{__m256, __m512};
    #[target_feature(enable = "avx2,fma")]
    fn avx2(rates: &Rates, samples: &[f32], lead: usize, time: usize, output: &mut [f32]) {
        // SAFETY: this function enables the instructions.
        unsafe { sums_body::<__m256>(rates, samples, lead, time, output) }
    }
    #[target_feature(enable = "avx2,fma,avx512f")]
    fn avx512(rates: &Rates, samples: &[f32], lead: usize, time: usize, output: &mut [f32]) {
        // SAFETY: this function enables the instructions.
        unsafe { sums_body::<__m512>(rates, samples, lead, time, output) }
    }
    match kind {
        // SAFETY: a level is only made if the CPU has its instructions.
        Kind::Avx512 | Kind::Gfni => unsafe { avx512(rates, samples, lead, time, output) },
        // SAFETY: as above.
        _ => unsafe { avx2(rates, samples, lead, time, output) },
    }
}

/// # Safety
/// The CPU has the type's instructions.
#[inline(always)]
unsafe fn sums_body<V: Lanes>(rates: &Rates, samples: &[f32], lead: usize, time: usize, output: &mut [f32]) {
    let (mut newest, mut phase) = (time / rates.up, time % rates.up);
    let (whole, part) = (rates.down / rates.up, rates.down % rates.up);
    for out in output.chunks_exact_mut(rates.step) {
        let (end, taps) = (lead + (newest + 1) * rates.step, &rates.phases[phase]);
        let near = &samples[end - taps.len()..end];
        // SAFETY: as the caller guarantees.
        let [even, odd] = unsafe { dot::<V>(near, taps) };
        match out {
            [out] => *out = even + odd,
            [re, im] => {
                (*re, *im) = (even, odd);
                if let Some(taps) = rates.imaginary.get(phase) {
                    // SAFETY: as above.
                    let [turned_re, turned_im] = unsafe { dot::<V>(near, taps) };
                    *re -= turned_im;
                    *im += turned_re;
                }
            }
            _ => (),
        }
        (newest, phase) = (newest + whole, phase + part);
        if phase >= rates.up {
            (newest, phase) = (newest + 1, phase - rates.up);
        }
    }
}

/// The sums of the products at even and at odd indices.
///
/// # Safety
/// The CPU has the type's instructions.
#[inline(always)]
unsafe fn dot<V: Lanes>(samples: &[f32], taps: &[f32]) -> [f32; 2] {
    let len = samples.len().min(taps.len());
    let whole = len / V::COUNT * V::COUNT;
    let mut lanes = [0.0_f32; LANES];
    // SAFETY: the caller guarantees the instructions; whole vectors end before the end of both
    // slices, and the lanes have room for a vector.
    unsafe {
        let term = |at: usize, sum: V| V::load(samples.as_ptr().add(at)).mul_add(V::load(taps.as_ptr().add(at)), sum);
        let (mut first, mut second, mut at) = (V::splat(0.0), V::splat(0.0), 0);
        while at + V::COUNT < whole {
            (first, second) = (term(at, first), term(at + V::COUNT, second));
            at += 2 * V::COUNT;
        }
        if at < whole {
            first = term(at, first);
        }
        V::splat(1.0).mul_add(first, second).store(lanes.as_mut_ptr());
    }
    let eight: [f32; 8] = std::array::from_fn(|lane| lanes[lane] + lanes[lane + 8]);
    let four: [f32; 4] = std::array::from_fn(|lane| eight[lane] + eight[lane + 4]);
    let mut sums = [four[0] + four[2], four[1] + four[3]];
    for (place, (sample, tap)) in samples[whole..len].iter().zip(&taps[whole..len]).enumerate() {
        sums[place % 2] += sample * tap;
    }
    sums
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

    /// Computed with all zeros and all dropped samples.
    fn expected(taps: &[f32], input: &[f32], up: usize, down: usize) -> Vec<f32> {
        let stuffed = |at: usize| if at.is_multiple_of(up) { input[at / up] } else { 0.0 };
        let sum = |at: usize| {
            let term =
                |(tap, weight): (usize, &f32)| at.checked_sub(tap).map(|place| f64::from(*weight * stuffed(place)));
            taps.iter().enumerate().filter_map(term).sum::<f64>() as f32
        };
        (0..input.len() * up).step_by(down).map(sum).collect()
    }

    #[test]
    fn every_ratio_is_what_plain_loops_give_in_any_pieces() {
        for (up, down) in [(1, 1), (1, 4), (3, 1), (3, 2), (2, 3), (7, 5), (16, 15)] {
            for (count, len) in [(1, 10), (5, 100), (64, 50), (31, 3000)] {
                let (taps, input) = (numbers(count, 1), numbers(len, 2));
                let filter = Rates::new(Level::best(), &taps, None, (up, down), 1);
                let mut whole = vec![0.0; filter.output_len(len, 0)];
                filter.filter(&ScopedThreads(2), &[], &input, 0, &mut whole);
                let expected = expected(&taps, &input, up, down);
                assert_eq!(whole.len(), expected.len());
                whole.iter().zip(&expected).for_each(|(got, expected)| assert!((got - expected).abs() < 1e-4));
                let (mut pieces, mut at, mut phase) = (Vec::new(), 0, 0);
                for size in [1, 0, 2, 7, 50].into_iter().cycle() {
                    let end = len.min(at + size);
                    let history = &input[at.saturating_sub(filter.history_len())..at];
                    let mut piece = vec![0.0; filter.output_len(end - at, phase)];
                    filter.filter(&OneThread, history, &input[at..end], phase, &mut piece);
                    phase = filter.next_phase(end - at, phase);
                    pieces.extend(piece);
                    at = end;
                    if at == len {
                        break;
                    }
                }
                assert_eq!(whole, pieces, "{up}/{down} {count} {len}");
            }
        }
    }

    #[test]
    fn long_sums_do_not_wait_for_each_other() {
        // Sequential sums take four cycles for each term; parallel ones take a fraction of a cycle.
        let (taps, input) = (numbers(4096, 1), numbers(1 << 16, 2));
        let filter = Rates::new(Level::best(), &taps, None, (1, 8), 1);
        let mut output = vec![0.0; filter.output_len(input.len(), 0)];
        let products = (output.len() * taps.len()) as u128;
        let mut once = || {
            let begin = std::time::Instant::now();
            filter.filter(&OneThread, &[], &input, 0, &mut output);
            begin.elapsed()
        };
        let best = (0..5).map(|_| once()).min().unwrap();
        if Level::best() != Level::PLAIN {
            let picoseconds = best.as_nanos() * 1000 / products;
            assert!(picoseconds < 700, "{picoseconds} ps for a product");
        }
    }
}
