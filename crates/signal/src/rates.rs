//! Filters of finite response that change the rate: zeros between the samples before the filter, samples left out behind it. Neither the
//! products with the zeros nor the samples that are left out are computed.

use std::ops::{AddAssign, Mul};

use crate::threads::{Threads, for_each_piece, share};

/// Output samples of one turn of a thread, at the least.
const PIECE_MIN: usize = 1024;

/// Taps, sorted by which of them meet samples at once.
pub struct Rates<T> {
    /// Of each phase the taps `phase, phase + up, …`, the last first.
    phases: Vec<Vec<T>>,
    up: usize,
    down: usize,
}

impl<T: Copy + Send + Sync> Rates<T> {
    /// Taps for rates of at least 1.
    pub fn new(taps: &[T], up: usize, down: usize) -> Rates<T> {
        let phase = |first: usize| taps.iter().skip(first).step_by(up).rev().copied().collect();
        Rates { phases: (0..up).map(phase).collect(), up, down }
    }

    /// How many samples before the present one count.
    pub fn history_len(&self) -> usize {
        self.phases.first().map_or(0, Vec::len).saturating_sub(1)
    }

    /// How many samples come out of `len`, where the first falls `phase` steps of the raised rate behind the first sample.
    pub fn output_len(&self, len: usize, phase: usize) -> usize {
        (len * self.up).saturating_sub(phase).div_ceil(self.down)
    }

    /// The phase of the piece that follows.
    pub fn next_phase(&self, len: usize, phase: usize) -> usize {
        phase + self.output_len(len, phase) * self.down - len * self.up
    }

    /// The samples that come out of `input`, before which `history` stood, with zeros before that. Terms are added from the oldest sample
    /// on, so pieces of a stream give bit for bit what the whole gives.
    pub fn filter<S>(&self, threads: &dyn Threads, history: &[S], input: &[S], phase: usize, output: &mut [S])
    where
        S: Copy + Default + Send + Sync + AddAssign + Mul<T, Output = S>,
    {
        assert_eq!(output.len(), self.output_len(input.len(), phase));
        let piece = share(output.len(), threads.count(), PIECE_MIN);
        for_each_piece(threads, output, piece, &|index, part| {
            for (at, place) in part.iter_mut().enumerate() {
                let time = phase + (index * piece + at) * self.down;
                let (newest, taps) = (time / self.up, &self.phases[time % self.up]);
                *place = self.sum(history, input, newest, taps);
            }
        });
    }

    #[inline]
    fn sum<S>(&self, history: &[S], input: &[S], newest: usize, taps: &[T]) -> S
    where
        S: Copy + Default + AddAssign + Mul<T, Output = S>,
    {
        let mut sum = S::default();
        if newest + 1 >= taps.len() {
            let samples = &input[newest + 1 - taps.len()..=newest];
            samples.iter().zip(taps).for_each(|(sample, tap)| sum += *sample * *tap);
            return sum;
        }
        let before = taps.len() - 1 - newest;
        let older = &history[history.len().saturating_sub(before)..];
        let silent = before - older.len();
        for (sample, tap) in older.iter().chain(&input[..=newest]).zip(&taps[silent..]) {
            sum += *sample * *tap;
        }
        sum
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
                let filter = Rates::new(&taps, up, down);
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
}
