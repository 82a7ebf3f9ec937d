//! Filters of finite response by spectra (overlap-save): pieces of the signal are multiplied with
//! the spectrum of the taps, and the samples of each result that the circular wrap has not spoiled
//! are kept. Two pieces of real samples are transformed as one piece of complex numbers.

use std::sync::{Arc, Mutex};

use num_complex::Complex32;
use panoply_core::Threads;
use panoply_cpu_fourier::Fft;

/// The shortest and the longest transform.
const LEN_MIN: usize = 256;
const LEN_MAX: usize = 1 << 20;
/// Transforms up to this length fit into a core's cache.
const CACHED_LEN_MAX: usize = 1 << 14;

/// Taps with their spectrum.
pub struct Spectral {
    forward: Arc<dyn Fft<f32>>,
    inverse: Arc<dyn Fft<f32>>,
    spectrum: Vec<Complex32>,
    taps: usize,
}

/// A cache of transform plans, which are costly to make.
#[derive(Default)]
pub struct Plans {
    known: Vec<TransformPair>,
}

/// The forward and the inverse transform of one length.
type TransformPair = (usize, Arc<dyn Fft<f32>>, Arc<dyn Fft<f32>>);

/// The largest number of cached plans.
const PLANS_MAX: usize = 16;

impl Plans {
    /// The approximate memory of the plans' tables in bytes: as many complex numbers as a transform
    /// is long, for each direction.
    pub fn bytes(&self) -> usize {
        self.known.iter().map(|(len, ..)| 2 * len * size_of::<Complex32>()).sum()
    }

    /// The forward and the inverse transform of this length.
    pub fn of(&mut self, len: usize) -> (Arc<dyn Fft<f32>>, Arc<dyn Fft<f32>>) {
        if let Some((_, forward, inverse)) = self.known.iter().find(|(known, ..)| *known == len) {
            return (Arc::clone(forward), Arc::clone(inverse));
        }
        let plan = (len, panoply_cpu_fourier::forward(len), panoply_cpu_fourier::inverse(len));
        if self.known.len() == PLANS_MAX {
            self.known.remove(0);
        }
        self.known.push(plan.clone());
        (plan.1, plan.2)
    }
}

/// The length of the transforms for `taps` taps. `None` if there are too many taps.
pub fn transform_len(taps: usize) -> Option<usize> {
    let least = taps.checked_mul(2)?.checked_next_power_of_two()?.max(LEN_MIN);
    // Longer transforms waste less at their ends, as long as they fit into the cache.
    let len = least.max((4 * taps).next_power_of_two().clamp(LEN_MIN * 4, CACHED_LEN_MAX));
    (len <= LEN_MAX).then_some(len)
}

impl Spectral {
    /// A filter with these taps. `None` if there are too many.
    pub fn new(plans: &mut Plans, taps: &[Complex32]) -> Option<Spectral> {
        let len = transform_len(taps.len())?;
        let (forward, inverse) = plans.of(len);
        let mut spectrum = vec![Complex32::default(); len];
        let scale = 1.0 / len as f32;
        spectrum.iter_mut().zip(taps).for_each(|(place, tap)| *place = tap * scale);
        forward.process(&mut spectrum);
        Some(Spectral { forward, inverse, spectrum, taps: taps.len() })
    }

    /// Number of filtered samples that a transform yields.
    fn step(&self) -> usize {
        self.spectrum.len() - self.taps + 1
    }

    /// Filters `input`. `history` has the samples before it; before these the signal is zero. The
    /// taps must be real if the samples are.
    pub fn filter<S: Sample>(&self, threads: &dyn Threads, history: &[S], input: &[S], output: &mut [S]) {
        assert_eq!(input.len(), output.len());
        let step = self.step();
        let pieces: Vec<Mutex<&mut [S]>> = output.chunks_mut(step * S::PER_COMPLEX).map(Mutex::new).collect();
        let turns = pieces.len().min(4 * threads.count().max(1));
        threads.run(turns, &|turn| {
            let mut piece = vec![Complex32::default(); self.spectrum.len()];
            let scratch = self.forward.get_inplace_scratch_len().max(self.inverse.get_inplace_scratch_len());
            let mut scratch = vec![Complex32::default(); scratch];
            for index in (turn..pieces.len()).step_by(turns) {
                let begin = index * step * S::PER_COMPLEX;
                for number in 0..S::PER_COMPLEX {
                    self.gather(history, input, begin + number * step, number, &mut piece);
                }
                self.forward.process_with_scratch(&mut piece, &mut scratch);
                piece.iter_mut().zip(&self.spectrum).for_each(|(value, weight)| *value *= weight);
                self.inverse.process_with_scratch(&mut piece, &mut scratch);
                // Each piece is taken by one task only, so this lock never blocks.
                let mut out = pieces[index].lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                for (number, part) in out.chunks_mut(step).enumerate() {
                    let kept = &piece[self.taps - 1..];
                    part.iter_mut().zip(kept).for_each(|(place, value)| *place = S::take(*value, number));
                }
            }
        });
    }

    /// Gathers the samples of the piece that begins at `begin`, and the earlier samples that the
    /// filter needs for it.
    fn gather<S: Sample>(&self, history: &[S], input: &[S], begin: usize, number: usize, piece: &mut [Complex32]) {
        let before = self.taps - 1;
        let (from_input, wanted) = (before.min(begin), input.len().saturating_sub(begin).min(self.step()));
        let from_history = (before - from_input).min(history.len());
        let begin = begin.min(input.len());
        let (silent, mut rest) = piece.split_at_mut(before - from_input - from_history);
        silent.iter_mut().for_each(|place| S::put(place, S::default(), number));
        for part in [&history[history.len() - from_history..], &input[begin - from_input.min(begin)..begin + wanted]] {
            let (own, behind) = rest.split_at_mut(part.len());
            own.iter_mut().zip(part).for_each(|(place, value)| S::put(place, *value, number));
            rest = behind;
        }
        rest.iter_mut().for_each(|place| S::put(place, S::default(), number));
    }
}

/// A type of samples.
pub trait Sample: Copy + Default + Send + Sync {
    /// Number of pieces that share one complex transform.
    const PER_COMPLEX: usize;

    /// Puts a sample into piece `number` of a complex number.
    fn put(place: &mut Complex32, value: Self, number: usize);

    /// Takes the sample of piece `number` from a complex number.
    fn take(value: Complex32, number: usize) -> Self;
}

impl Sample for Complex32 {
    const PER_COMPLEX: usize = 1;

    #[inline(always)]
    fn put(place: &mut Complex32, value: Complex32, _: usize) {
        *place = value;
    }

    #[inline(always)]
    fn take(value: Complex32, _: usize) -> Complex32 {
        value
    }
}

impl Sample for f32 {
    const PER_COMPLEX: usize = 2;

    #[inline(always)]
    fn put(place: &mut Complex32, value: f32, number: usize) {
        if number == 0 { place.re = value } else { place.im = value }
    }

    #[inline(always)]
    fn take(value: Complex32, number: usize) -> f32 {
        if number == 0 { value.re } else { value.im }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::tests::ScopedThreads;
    use panoply_core::OneThread;

    fn numbers(count: usize, seed: u32) -> Vec<Complex32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..count).map(|_| Complex32::new(next(), next())).collect()
    }

    fn expected(taps: &[Complex32], history: &[Complex32], input: &[Complex32]) -> Vec<Complex32> {
        let all: Vec<Complex32> = history.iter().chain(input).copied().collect();
        let sum = |at: usize| {
            let one = |(tap, weight): (usize, &Complex32)| at.checked_sub(tap).map(|place| weight * all[place]);
            taps.iter().enumerate().filter_map(one).sum()
        };
        (history.len()..all.len()).map(sum).collect()
    }

    #[test]
    fn pieces_are_what_sums_give() {
        let mut plans = Plans::default();
        for (taps, before, len) in
            [(1, 0, 1), (1, 0, 5000), (200, 0, 100), (200, 300, 4000), (700, 50, 9001), (9, 0, 0)]
        {
            let (taps, history, input) = (numbers(taps, 1), numbers(before, 2), numbers(len, 3));
            let mut output = vec![Complex32::default(); len];
            Spectral::new(&mut plans, &taps).unwrap().filter(&ScopedThreads(2), &history, &input, &mut output);
            for (got, expected) in output.iter().zip(expected(&taps, &history, &input)) {
                assert!((got - expected).norm() < 1e-3, "{got} {expected}");
            }
            let real = |values: &[Complex32]| values.iter().map(|value| value.re).collect::<Vec<f32>>();
            let only_real = |values: &[Complex32]| values.iter().map(|value| value.re.into()).collect::<Vec<_>>();
            let mut output = vec![0.0; len];
            let filter = Spectral::new(&mut plans, &only_real(&taps)).unwrap();
            filter.filter(&OneThread, &real(&history), &real(&input), &mut output);
            let expected = expected(&only_real(&taps), &only_real(&history), &only_real(&input));
            for (got, expected) in output.iter().zip(expected) {
                assert!((got - expected.re).abs() < 1e-3, "{got} {expected}");
            }
        }
        assert!(Spectral::new(&mut plans, &numbers(LEN_MAX, 1)).is_none());
    }
}
