//! Recursive filters as second-order sections, computed in f64 for every sample type.
//!
//! Many lines run in parallel in vector registers. A single long line is cut into segments that run
//! in parallel as well, if the filter's memory decays: the state at the start of a segment is found
//! by running the filter over the samples before it, as many as it remembers. A filter that decays
//! slowly or grows runs sample by sample.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use panoply_core::Threads;
use panoply_core::op::signal::Biquad;

use crate::finite::is_finite;
use crate::level::{Kind, Level, leveled};
use crate::threads::{for_each_piece, share};

#[cfg(target_arch = "x86_64")]
mod wide;

/// Number of lines or segments that run in parallel.
const LANES: usize = 16;
/// Number of samples of each line that are gathered at a time.
const TILE: usize = 64;
/// The remaining fraction at which a state counts as forgotten.
const FORGOTTEN: f64 = 1e-18;
/// The longest memory, in samples, for which a line is cut.
const MEMORY_MAX: usize = 1 << 16;
/// The least length of a segment, as a multiple of the memory. In shorter segments finding the
/// state would cost too much.
const SEGMENT_PER_MEMORY: usize = 4;
/// The largest number of sections for which a line is cut. The memory is found with matrices, whose
/// cost grows with the cube of that number.
const SECTIONS_CUT_MAX: usize = 32;
/// States below this size are set to zero. Denormal numbers are about a hundred times slower to
/// compute with.
const STATE_MIN: f64 = 1e-290;

/// The state of a section for one line.
pub type State = [f64; 2];

/// A cascade of second-order sections.
pub struct Sections {
    level: Level,
    sections: Vec<Biquad>,
    /// Number of samples after which a state is forgotten; `None` if it never is. Computed when the
    /// first line comes that is long enough to be cut.
    memory: OnceLock<Option<usize>>,
}

/// One line of samples: every `stride`-th number, starting at index `first`.
#[derive(Clone, Copy, Debug)]
struct SampleLine {
    first: usize,
    stride: usize,
    len: usize,
}

impl Sections {
    /// A cascade in which the sections run one after the other.
    pub fn new(level: Level, sections: &[Biquad]) -> Sections {
        Sections { level, sections: sections.to_vec(), memory: OnceLock::new() }
    }

    /// Number of sections.
    pub fn count(&self) -> usize {
        self.sections.len()
    }

    /// Filters lines of `len` samples with `step` numbers each; each number of the samples is a
    /// line of its own. `states` has a state for each line, number and section. It is carried over
    /// from the previous piece, and updated.
    pub fn filter(
        &self,
        threads: &dyn Threads,
        len: usize,
        step: usize,
        input: &[f32],
        output: &mut [f32],
        states: &mut [State],
    ) {
        if len == 0 || input.is_empty() {
            return;
        }
        assert_eq!(input.len(), output.len());
        let (per_line, lines) = (len * step, input.len() / (len * step));
        assert_eq!(states.len(), lines * step * self.count());
        // A NaN or infinity in the state is never forgotten.
        let finite =
            |states: &[State]| is_finite(self.level, input) && states.iter().flatten().all(|value| value.is_finite());
        if lines * step < LANES && self.can_cut(len) && finite(states) {
            let per_state = step * self.count();
            for line in 0..lines {
                let place = line * per_line..(line + 1) * per_line;
                let states = &mut states[line * per_state..(line + 1) * per_state];
                self.long_line(threads, step, &input[place.clone()], &mut output[place], states);
            }
            return;
        }
        // Each thread takes whole lines with their states.
        let each = share(lines, threads.count(), LANES.div_ceil(step));
        let states = SharedStates::new(states, each * step * self.count());
        for_each_piece(threads, output, each * per_line, &|index, part| {
            let begin = index * each * per_line;
            states.with(index, |states| {
                self.lines(len, step, &input[begin..begin + part.len()], part, states);
            });
        });
    }

    /// Runs lines in parallel on one thread, as many as there are lanes.
    fn lines(&self, len: usize, step: usize, input: &[f32], output: &mut [f32], states: &mut [State]) {
        let count = input.len() / len;
        let line = |index: usize| SampleLine { first: index / step * len * step + index % step, stride: step, len };
        let per_line = self.count();
        let mut first = 0;
        while first < count {
            let lines: Vec<SampleLine> = (first..count.min(first + LANES)).map(line).collect();
            let states = &mut states[first * per_line..(first + lines.len()) * per_line];
            if lines.len() < LANES / 4 {
                for (line, states) in lines.iter().zip(states.chunks_mut(per_line.max(1))) {
                    self.one_by_one(*line, input, output, states);
                }
            } else {
                let mut lanes = to_lanes(states, per_line);
                let begins: Vec<usize> = lines.iter().map(|line| line.first).collect();
                self.side_by_side(&begins, step, len, input, Some(output), &mut lanes);
                from_lanes(&lanes, states, per_line);
            }
            first += lines.len();
        }
    }

    /// Runs lines in parallel that begin at the indices `begins` and are `len` samples long, with
    /// `stride` numbers from sample to sample. Without an output only the states are updated.
    fn side_by_side(
        &self,
        begins: &[usize],
        stride: usize,
        len: usize,
        input: &[f32],
        mut output: Option<&mut [f32]>,
        states: &mut LaneStates,
    ) {
        #[allow(unused_mut)]
        let mut done = 0;
        #[cfg(target_arch = "x86_64")]
        if let Some(begins) = begins.as_array().filter(|_| stride == 1 && self.level.kind() >= Kind::Avx512) {
            // SAFETY: a level is only made if the CPU has its instructions.
            done = unsafe { wide::whole_tiles(&self.sections, begins, len, input, output.as_deref_mut(), states) };
        }
        if done < len {
            let begins: Vec<usize> = begins.iter().map(|begin| begin + done * stride).collect();
            lanes_kernel(self.level, &self.sections, &begins, stride, len - done, input, output, states);
        }
    }

    /// Whether a line of this length is worth cutting.
    fn can_cut(&self, len: usize) -> bool {
        let longest = len / LANES / SEGMENT_PER_MEMORY;
        longest > 0 && self.sections.len() <= SECTIONS_CUT_MAX && self.memory().is_some_and(|memory| memory <= longest)
    }

    fn memory(&self) -> Option<usize> {
        *self.memory.get_or_init(|| memory(&self.sections))
    }

    /// Filters a line that is cut into segments, some for each thread.
    fn long_line(&self, threads: &dyn Threads, step: usize, input: &[f32], output: &mut [f32], states: &mut [State]) {
        let (len, memory) = (input.len() / step, self.memory().unwrap_or(0));
        // The first segment of each turn finds its state from the samples before it, like all other
        // segments.
        let turns = (threads.count().max(1) * 2).min((len / (LANES * SEGMENT_PER_MEMORY * memory.max(1))).max(1));
        let turn = len.div_ceil(turns);
        let carried = states.to_vec();
        let ends = std::sync::Mutex::new(vec![[0.0; 2]; states.len()]);
        let overflowed = AtomicBool::new(false);
        for_each_piece(threads, output, turn * step, &|index, part| {
            let (begin, own_len) = (index * turn, part.len() / step);
            for number in 0..step {
                let own = number * self.count()..(number + 1) * self.count();
                let end = self.segments(begin, own_len, step, number, input, part, &carried[own.clone()]);
                let Some(end) = end else {
                    overflowed.store(true, Ordering::Relaxed);
                    continue;
                };
                if begin + own_len == len {
                    ends.lock().unwrap_or_else(|poisoned| poisoned.into_inner())[own].copy_from_slice(&end);
                }
            }
        });
        if overflowed.into_inner() {
            // A NaN or infinity is never forgotten, so later segments depend on all earlier ones.
            for number in 0..step {
                let own = number * self.count()..(number + 1) * self.count();
                self.one_by_one(SampleLine { first: number, stride: step, len }, input, output, &mut states[own]);
            }
            return;
        }
        states.copy_from_slice(&ends.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()));
    }

    /// Filters the samples from `begin` on of one number's line, in parallel segments. Returns the
    /// last state. `None` if a state overflowed.
    #[allow(clippy::too_many_arguments)] // The position of one line, the input and the output.
    fn segments(
        &self,
        begin: usize,
        len: usize,
        step: usize,
        number: usize,
        input: &[f32],
        output: &mut [f32],
        carried: &[State],
    ) -> Option<Vec<State>> {
        let (memory, sections) = (self.memory().unwrap_or(0), self.count());
        // Segments at the same offset within their pages would evict each other from the cache.
        let segment = len / LANES;
        let segment = if segment > 4096 { segment - segment % 1024 - 144 } else { segment };
        let mut lanes = vec![[[0.0; LANES]; 2]; sections];
        let starts: Vec<usize> = (0..LANES).map(|lane| begin + lane * segment).collect();
        // Warm-up: each lane runs over the samples before its segment. Its initial state is
        // forgotten by the end.
        let warm: Vec<usize> = starts.iter().map(|start| start.saturating_sub(memory) * step + number).collect();
        self.side_by_side(&warm, step, memory, input, None, &mut lanes);
        if begin == 0 {
            for (lane, carried) in lanes.iter_mut().zip(carried) {
                (lane[0][0], lane[1][0]) = (carried[0], carried[1]);
            }
        }
        let base = begin * step;
        let begins: Vec<usize> = starts.iter().map(|start| (start - begin) * step + number).collect();
        self.side_by_side(&begins, step, segment, &input[base..], Some(output), &mut lanes);
        // A NaN or infinity in a section's state stays there until the end of the segment.
        if !lanes.iter().flatten().flatten().all(|state| state.is_finite()) {
            return None;
        }
        // The remaining samples run one by one from the last segment's state.
        let mut last: Vec<State> = lanes.iter().map(|lane| [lane[0][LANES - 1], lane[1][LANES - 1]]).collect();
        let rest = SampleLine { first: LANES * segment * step + number, stride: step, len: len - LANES * segment };
        self.one_by_one(rest, &input[base..], output, &mut last);
        Some(last)
    }

    /// Runs one line sample by sample. The CPU overlaps the sections of successive samples by
    /// itself.
    fn one_by_one(&self, line: SampleLine, input: &[f32], output: &mut [f32], states: &mut [State]) {
        for at in 0..line.len {
            let place = line.first + at * line.stride;
            let mut value = f64::from(input[place]);
            for (section, state) in self.sections.iter().zip(states.iter_mut()) {
                let out = section.b[0] * value + state[0];
                state[0] = section.b[1] * value - section.a[0] * out + state[1];
                state[1] = section.b[2] * value - section.a[1] * out;
                value = out;
            }
            output[place] = value as f32;
            if at % TILE == TILE - 1 || at + 1 == line.len {
                states.iter_mut().flatten().for_each(settle);
            }
        }
    }
}

/// Sets a state that is almost zero to zero.
#[inline(always)]
fn settle(state: &mut f64) {
    *state = if state.abs() < STATE_MIN { 0.0 } else { *state };
}

/// Number of samples, a power of two, after which the sections' states are forgotten. `None` if
/// there is no such number up to `MEMORY_MAX`.
fn memory(sections: &[Biquad]) -> Option<usize> {
    if !sections.iter().all(Biquad::is_stable) {
        return None;
    }
    let size = 2 * sections.len();
    // The matrix that maps the states to those after one sample of silence.
    let mut matrix: Vec<Vec<f64>> = vec![vec![0.0; size]; size];
    for column in 0..size {
        let mut states = vec![[0.0; 2]; sections.len()];
        states[column / 2][column % 2] = 1.0;
        let mut value = 0.0;
        for (section, state) in sections.iter().zip(states.iter_mut()) {
            let out = section.b[0] * value + state[0];
            state[0] = section.b[1] * value - section.a[0] * out + state[1];
            state[1] = section.b[2] * value - section.a[1] * out;
            value = out;
        }
        states.iter().flatten().enumerate().for_each(|(row, value)| matrix[row][column] = *value);
    }
    let mut samples = 1;
    while samples <= MEMORY_MAX {
        let largest = matrix.iter().flatten().fold(0.0_f64, |largest, value| largest.max(value.abs()));
        if largest < FORGOTTEN {
            return Some(samples);
        }
        if !largest.is_finite() {
            return None;
        }
        let mut square = vec![vec![0.0; size]; size];
        for (row, sums) in square.iter_mut().enumerate() {
            for (weight, terms) in matrix[row].iter().zip(&matrix).filter(|(weight, _)| **weight != 0.0) {
                sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += weight * term);
            }
        }
        matrix = square;
        samples *= 2;
    }
    None
}

/// The states of lines, split into one part for each turn.
struct SharedStates<'a>(Vec<std::sync::Mutex<&'a mut [State]>>);

impl<'a> SharedStates<'a> {
    fn new(states: &'a mut [State], each: usize) -> SharedStates<'a> {
        SharedStates(states.chunks_mut(each.max(1)).map(std::sync::Mutex::new).collect())
    }

    fn with(&self, index: usize, work: impl FnOnce(&mut [State])) {
        match self.0.get(index) {
            // Each part is taken by one turn only, so this lock never blocks.
            Some(own) => work(&mut own.lock().unwrap_or_else(|poisoned| poisoned.into_inner())),
            None => work(&mut []),
        }
    }
}

/// The states of up to `LANES` lines, section by section.
type LaneStates = Vec<[[f64; LANES]; 2]>;

fn to_lanes(states: &[State], sections: usize) -> LaneStates {
    let mut lanes = vec![[[0.0; LANES]; 2]; sections];
    for (line, own) in states.chunks_exact(sections.max(1)).enumerate() {
        for (lane, state) in lanes.iter_mut().zip(own) {
            (lane[0][line], lane[1][line]) = (state[0], state[1]);
        }
    }
    lanes
}

fn from_lanes(lanes: &LaneStates, states: &mut [State], sections: usize) {
    for (line, own) in states.chunks_exact_mut(sections.max(1)).enumerate() {
        for (lane, state) in lanes.iter().zip(own) {
            *state = [lane[0][line], lane[1][line]];
        }
    }
}

leveled! {
    /// [`Sections::side_by_side`] at any level.
    #[allow(clippy::too_many_arguments)] // The positions of the lines, the input and the output.
    fn lanes_kernel(
        sections: &[Biquad],
        begins: &[usize],
        stride: usize,
        len: usize,
        input: &[f32],
        output: Option<&mut [f32]>,
        states: &mut [[[f64; LANES]; 2]],
    ) = lanes_body
}

#[inline(always)]
fn lanes_body<const FMA: bool>(
    sections: &[Biquad],
    begins: &[usize],
    stride: usize,
    len: usize,
    input: &[f32],
    mut output: Option<&mut [f32]>,
    states: &mut [[[f64; LANES]; 2]],
) {
    let mut tile = [[0.0_f64; LANES]; TILE];
    let mut done = 0;
    while done < len {
        let count = TILE.min(len - done);
        for (lane, begin) in begins.iter().enumerate() {
            let line = &input[begin + done * stride..=begin + (done + count - 1) * stride];
            if stride == 1 {
                line.iter().zip(&mut tile).for_each(|(value, row)| row[lane] = f64::from(*value));
            } else {
                line.iter().step_by(stride).zip(&mut tile).for_each(|(value, row)| row[lane] = f64::from(*value));
            }
        }
        for (section, state) in sections.iter().zip(states.iter_mut()) {
            section_body::<FMA>(section, &mut tile[..count], state);
        }
        if let Some(output) = output.as_deref_mut() {
            for (lane, begin) in begins.iter().enumerate() {
                let line = &mut output[begin + done * stride..=begin + (done + count - 1) * stride];
                if stride == 1 {
                    line.iter_mut().zip(&tile).for_each(|(value, row)| *value = row[lane] as f32);
                } else {
                    line.iter_mut().step_by(stride).zip(&tile).for_each(|(value, row)| *value = row[lane] as f32);
                }
            }
        }
        done += count;
    }
}

#[inline(always)]
fn section_body<const FMA: bool>(section: &Biquad, tile: &mut [[f64; LANES]], state: &mut [[f64; LANES]; 2]) {
    let fused = |a: f64, b: f64, c: f64| if FMA { a.mul_add(b, c) } else { a * b + c };
    let ([b0, b1, b2], [a1, a2]) = (section.b, section.a);
    let [mut first, mut second] = *state;
    for row in tile {
        let mut outs = [0.0; LANES];
        for lane in 0..LANES {
            outs[lane] = fused(b0, row[lane], first[lane]);
        }
        for lane in 0..LANES {
            first[lane] = fused(-a1, outs[lane], fused(b1, row[lane], second[lane]));
        }
        for lane in 0..LANES {
            second[lane] = fused(-a2, outs[lane], b2 * row[lane]);
        }
        *row = outs;
    }
    first.iter_mut().chain(&mut second).for_each(settle);
    *state = [first, second];
}

#[cfg(test)]
mod tests {
    use panoply_core::OneThread;

    use super::*;
    use crate::threads::tests::ScopedThreads;
    use panoply_radio::design::{Band, Prototype, recursive};

    fn numbers(count: usize) -> Vec<f32> {
        let mut state = 7_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    /// Filters one number's line at a time, sample by sample.
    fn plain(sections: &[Biquad], len: usize, step: usize, input: &[f32]) -> Vec<f32> {
        let mut output = vec![0.0; input.len()];
        for first in (0..input.len()).step_by(len * step) {
            for number in 0..step {
                let mut states = vec![[0.0; 2]; sections.len()];
                let filter = Sections::new(Level::PLAIN, sections);
                filter.one_by_one(
                    SampleLine { first: first + number, stride: step, len },
                    input,
                    &mut output,
                    &mut states,
                );
            }
        }
        output
    }

    fn close(got: &[f32], expected: &[f32]) {
        for (got, expected) in got.iter().zip(expected) {
            assert!((got - expected).abs() <= 1e-6 * (1.0 + expected.abs()), "{got} {expected}");
        }
    }

    #[test]
    fn lines_and_segments_are_what_single_samples_give() {
        let sections = recursive(Prototype::Butterworth, 8, Band::LowPass(0.2)).unwrap();
        for level in Level::all() {
            let filter = Sections::new(level, &sections);
            for (lines, len, step) in
                [(1, 100_003, 1), (1, 200_000, 2), (37, 500, 1), (3, 70, 2), (16, 1, 1), (5, 3, 1)]
            {
                let input = numbers(lines * len * step);
                let expected = plain(&sections, len, step, &input);
                for threads in [&OneThread as &dyn Threads, &ScopedThreads(3)] {
                    let mut output = vec![0.0; input.len()];
                    let mut states = vec![[0.0; 2]; lines * step * sections.len()];
                    filter.filter(threads, len, step, &input, &mut output, &mut states);
                    close(&output, &expected);
                }
            }
        }
    }

    #[test]
    fn pieces_of_a_line_go_on_where_the_last_ended() {
        let sections = recursive(Prototype::Chebyshev1 { ripple_db: 1.0 }, 5, Band::HighPass(0.4)).unwrap();
        let filter = Sections::new(Level::best(), &sections);
        let input = numbers(300_000);
        let expected = plain(&sections, input.len(), 1, &input);
        let (mut output, mut states) = (vec![0.0; input.len()], vec![[0.0; 2]; sections.len()]);
        let mut at = 0;
        for len in [1, 17, 100_000, 3, 64, 150_000].into_iter().cycle() {
            let end = input.len().min(at + len);
            filter.filter(&ScopedThreads(2), end - at, 1, &input[at..end], &mut output[at..end], &mut states);
            at = end;
            if at == input.len() {
                break;
            }
        }
        close(&output, &expected);
    }

    #[test]
    fn what_grows_runs_sample_by_sample() {
        let growing = [Biquad { b: [1.0, 0.0, 0.0], a: [-1.001, 0.0] }];
        assert!(!growing[0].is_stable() && memory(&growing).is_none());
        assert!(memory(&[Biquad { b: [1.0, 0.0, 0.0], a: [-0.999_999_9, 0.0] }]).is_none(), "fades too slowly");
        assert_eq!(memory(&[Biquad { b: [1.0, 0.0, 0.0], a: [0.0, 0.0] }]), Some(2));
        let (input, mut output) = (vec![1.0; 2000], vec![0.0; 2000]);
        Sections::new(Level::best(), &growing).filter(&OneThread, 2000, 1, &input, &mut output, &mut [[0.0; 2]]);
        assert!((output[1999] - ((1.001_f64.powi(2000) - 1.0) / 0.001) as f32).abs() < 0.01);
    }

    #[test]
    fn many_sections_are_ready_at_once() {
        let sections = vec![Biquad { b: [1.0, 0.1, 0.0], a: [-0.5, 0.3] }; 256];
        let begin = std::time::Instant::now();
        let (mut output, mut states) = (vec![0.0; 4096], vec![[0.0; 2]; 256]);
        Sections::new(Level::best(), &sections).filter(&OneThread, 4096, 1, &vec![1.0; 4096], &mut output, &mut states);
        assert!(begin.elapsed().as_millis() < 500, "{:?}", begin.elapsed());
        assert!(output[4095].is_finite() && output[4095] != 0.0);
    }

    #[test]
    fn silence_brings_states_to_zero() {
        let sections = [Biquad { b: [1.0, 0.0, 0.0], a: [-1.8, 0.81] }, Biquad { b: [1.0, 0.5, 0.0], a: [-0.9, 0.0] }];
        for level in Level::all() {
            let filter = Sections::new(level, &sections);
            for lines in [1, 16] {
                let (len, mut states) = (20_000, vec![[0.0; 2]; 2 * lines]);
                let mut input = vec![0.0; len * lines];
                input.iter_mut().step_by(len).for_each(|first| *first = 1.0);
                let mut output = vec![0.0; len * lines];
                filter.filter(&OneThread, len, 1, &input, &mut output, &mut states);
                assert!(states.iter().flatten().all(|state| *state == 0.0), "{level:?} {lines}: {states:?}");
            }
        }
    }

    #[test]
    fn what_overflows_within_a_long_line_is_not_forgotten() {
        let sections =
            [Biquad { b: [1e300, 0.0, 0.0], a: [-0.5, 0.0] }, Biquad { b: [1e-300, 0.0, 0.0], a: [-0.5, 0.0] }];
        let mut input = vec![1.0; 200_000];
        input[1000] = 1e30;
        let expected = plain(&sections, input.len(), 1, &input);
        assert!(expected[900].is_finite() && !expected[199_999].is_finite());
        let (mut output, mut states) = (vec![0.0; input.len()], vec![[0.0; 2]; 2]);
        let filter = Sections::new(Level::best(), &sections);
        filter.filter(&ScopedThreads(2), input.len(), 1, &input, &mut output, &mut states);
        for (at, (got, expected)) in output.iter().zip(&expected).enumerate() {
            assert_eq!(got.is_finite(), expected.is_finite(), "{at}");
        }
        assert!(states.iter().flatten().any(|state| !state.is_finite()));
    }
}
