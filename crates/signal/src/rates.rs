//! Filters of finite response that change the rate: zeros between the samples before the filter, samples left out behind it. Neither the
//! products with the zeros nor the samples that are left out are computed.
//!
//! Samples are numbers, two for each where they are complex. Which terms of a sum are added to which depends on the taps alone, so pieces of a
//! stream give bit for bit what the whole gives.

use panoply_core::Threads;

use crate::level::{Level, fused, leveled};
use crate::threads::{for_each_piece, share};

/// Output samples of one turn of a thread, at the least.
const PIECE_MIN: usize = 1024;
/// Terms that are added up side by side.
const LANES: usize = 16;

/// Taps, sorted by which of them meet samples at once.
pub struct Rates {
    level: Level,
    /// Of each phase the taps `phase, phase + up, …`, the last first, each once for every number of a sample.
    phases: Vec<Vec<f32>>,
    /// The same of the imaginary parts; nothing where taps are real.
    imaginary: Vec<Vec<f32>>,
    step: usize,
    up: usize,
    down: usize,
}

impl Rates {
    /// Taps by their real and, where they have them, imaginary parts, for rates of at least 1 and samples of `step` numbers, 1 or 2. Complex
    /// taps need complex samples.
    pub fn new(level: Level, real: &[f32], imaginary: Option<&[f32]>, rates: (usize, usize), step: usize) -> Rates {
        let (up, down) = rates;
        let phase = |taps: &[f32], first: usize| {
            taps.iter().skip(first).step_by(up).rev().flat_map(|tap| std::iter::repeat_n(*tap, step)).collect()
        };
        let phases = (0..up).map(|first| phase(real, first)).collect();
        let imaginary = imaginary.map_or_else(Vec::new, |taps| (0..up).map(|first| phase(taps, first)).collect());
        Rates { level, phases, imaginary, step, up, down }
    }

    /// How many numbers before the present sample count.
    pub fn history_len(&self) -> usize {
        self.phases.first().map_or(0, Vec::len).saturating_sub(self.step)
    }

    /// How many samples come out of `len`, where the first falls `phase` steps of the raised rate behind the first sample.
    pub fn output_len(&self, len: usize, phase: usize) -> usize {
        (len * self.up).saturating_sub(phase).div_ceil(self.down)
    }

    /// The phase of the piece that follows.
    pub fn next_phase(&self, len: usize, phase: usize) -> usize {
        phase + self.output_len(len, phase) * self.down - len * self.up
    }

    /// The samples that come out of `input`, before which `history` stood, with zeros before that.
    pub fn filter(&self, threads: &dyn Threads, history: &[f32], input: &[f32], phase: usize, output: &mut [f32]) {
        let (step, before) = (self.step, self.history_len());
        assert_eq!(output.len(), self.output_len(input.len() / step, phase) * step);
        // The first outputs reach back beyond the piece: what they read is put together.
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

leveled! {
    /// The outputs from this time of the raised rate on. `lead` numbers of `samples` stand before the first sample.
    fn sums(rates: &Rates, samples: &[f32], lead: usize, time: usize, output: &mut [f32]) = sums_body
}

#[inline(always)]
fn sums_body<const FMA: bool>(rates: &Rates, samples: &[f32], lead: usize, time: usize, output: &mut [f32]) {
    let (mut newest, mut phase) = (time / rates.up, time % rates.up);
    let (whole, part) = (rates.down / rates.up, rates.down % rates.up);
    for out in output.chunks_exact_mut(rates.step) {
        let (end, taps) = (lead + (newest + 1) * rates.step, &rates.phases[phase]);
        let near = &samples[end - taps.len()..end];
        let [even, odd] = dot::<FMA>(near, taps);
        match out {
            [out] => *out = even + odd,
            [re, im] => {
                (*re, *im) = (even, odd);
                if let Some(taps) = rates.imaginary.get(phase) {
                    let [turned_re, turned_im] = dot::<FMA>(near, taps);
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

/// The sums of the products in even and in odd places.
#[inline(always)]
fn dot<const FMA: bool>(samples: &[f32], taps: &[f32]) -> [f32; 2] {
    let mut lanes = [0.0_f32; LANES];
    let ((whole, rest), (whole_taps, rest_taps)) = (samples.as_chunks::<LANES>(), taps.as_chunks::<LANES>());
    for (samples, taps) in whole.iter().zip(whole_taps) {
        for lane in 0..LANES {
            lanes[lane] = fused::<FMA>(samples[lane], taps[lane], lanes[lane]);
        }
    }
    for (lane, (sample, tap)) in lanes.iter_mut().zip(rest.iter().zip(rest_taps)) {
        *lane = fused::<FMA>(*sample, *tap, *lane);
    }
    let mut width = LANES;
    while width > 2 {
        width /= 2;
        (0..width).for_each(|lane| lanes[lane] += lanes[lane + width]);
    }
    [lanes[0], lanes[1]]
}

#[cfg(test)]
mod tests {
    use panoply_core::OneThread;

    use super::*;
    use crate::threads::tests::Scoped;

    fn numbers(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    /// With all the zeros, and all the samples that are left out.
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
                filter.filter(&Scoped(2), &[], &input, 0, &mut whole);
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
        // One sum after the other takes four cycles a term; side by side a fraction of one.
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
