//! The steps of a recurrent layer whose products with the input are already computed.
//!
//! 1. Rows of the batch and directions are independent: each direction of a few rows is a task.
//! 2. Tasks run on several threads if there is enough work. Each task writes to memory of its own.
//! 3. A direction is split into parts of its units if its weights exceed the cache of one core, or
//!    if its rows are too few to spread over threads. Each thread holds the weights of its parts,
//!    and the threads synchronise after every step. A unit's sum does not depend on the thread that
//!    computes it.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::gates::{Gates, Sums, step};
use crate::product::{Level, Panels};

/// The number of products per task below which a thread costs more than it saves.
const TASK_WORK_MIN: usize = 4 << 20;
/// Number of rows multiplied at a time. The rows of a task are a multiple of it.
const ROWS: usize = 4;
/// The number of products per step and row of a part below which threads wait more than they work.
const PART_WORK_MIN: usize = 1 << 16;
/// The most parts of a direction.
const PARTS_MAX: usize = 8;
/// Weights up to this size stay in the second-level cache of a core. For larger weights, reading
/// parts is faster than reading the whole twice.
const WEIGHT_BYTES_CLOSE: usize = 1 << 20;
/// Spins of a waiting thread before it yields its CPU.
const SPINS_MAX: u32 = 20_000;

/// A recurrent layer.
pub struct Layer {
    gates: Gates,
    hidden: usize,
    steps: usize,
    /// Number of steps of each row of the batch.
    lengths: Vec<usize>,
    directions: Vec<Direction>,
    level: Level,
}

struct Direction {
    parts: Vec<UnitRange>,
    /// Whether steps run backwards.
    is_reversed: bool,
}

/// A range of units and their weights of the state.
struct UnitRange {
    units: Range<usize>,
    panels: Panels,
}

/// The inputs of a run. Missing states are zeros.
pub struct RunInputs<'a> {
    /// Products of the weights with the input plus biases, ordered by steps, rows, directions,
    /// gates and units.
    pub sums: &'a [f32],
    /// The first hidden states, ordered by directions, rows and units.
    pub hidden: Option<&'a [f32]>,
    /// The first cells of an LSTM, in the same order.
    pub cells: Option<&'a [f32]>,
}

/// The outputs of a run: all hidden states if they are wanted, the last states, and the cells. The
/// last two hold the initial values at the start.
pub struct RunOutputs<'a> {
    /// Ordered by steps, directions, rows and units.
    pub all: Option<&'a mut [f32]>,
    /// Ordered by directions, rows and units.
    pub last: &'a mut [f32],
    /// In the same order; only an LSTM writes them.
    pub cells: &'a mut [f32],
}

/// One direction of some rows.
struct DirectionTask {
    rows: RowRange,
    /// One share for each part of the direction.
    shares: Vec<Share>,
}

#[derive(Clone, Copy)]
struct RowRange {
    direction: usize,
    first: usize,
    count: usize,
}

/// The state of a part for some rows, ordered by rows and the part's units.
struct Share {
    hidden: Vec<f32>,
    cells: Vec<f32>,
    /// All states, ordered by steps, rows and units.
    all: Vec<f32>,
}

impl Layer {
    /// A layer with `gates · hidden` rows by `hidden` columns of state weights for each direction,
    /// and as many biases as rows.
    pub fn new(
        gates: Gates,
        (steps, hidden): (usize, usize),
        lengths: Vec<usize>,
        (weights, biases): (&[f32], &[f32]),
        reversed: &[bool],
    ) -> Layer {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let parts = parts_of(gates, (steps, hidden, lengths.len()), reversed.len(), threads);
        Layer::in_parts(gates, (steps, hidden), lengths, (weights, biases), reversed, parts)
    }

    fn in_parts(
        gates: Gates,
        (steps, hidden): (usize, usize),
        lengths: Vec<usize>,
        (weights, biases): (&[f32], &[f32]),
        reversed: &[bool],
        parts: usize,
    ) -> Layer {
        let rows = gates.count() * hidden;
        let part = |direction: usize, units: Range<usize>| {
            let (mut matrix, mut summands) = (Vec::new(), Vec::new());
            for gate in 0..gates.count() {
                let (start, len) = (direction * rows + gate * hidden + units.start, units.len());
                matrix.extend_from_slice(&weights[start * hidden..][..len * hidden]);
                summands.extend_from_slice(&biases[start..][..len]);
            }
            UnitRange { units, panels: Panels::new(&matrix, &summands, hidden) }
        };
        let size = hidden.div_ceil(parts.max(1)).next_multiple_of(UNITS).max(1);
        let direction = |(place, reversed): (usize, &bool)| {
            let starts = (0..hidden).step_by(size);
            let parts = starts.map(|start| part(place, start..hidden.min(start + size))).collect();
            Direction { parts, is_reversed: *reversed }
        };
        let directions = reversed.iter().enumerate().map(direction).collect();
        Layer { gates, hidden, steps, lengths, directions, level: Level::detect() }
    }

    /// Runs all steps.
    pub fn run(&self, given: &RunInputs<'_>, made: &mut RunOutputs<'_>) {
        let mut tasks = self.tasks(given);
        let products = self.steps * self.gates.count() * self.hidden * self.hidden;
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let rows = tasks.first().map_or(0, |task| task.rows.count);
        if self.has_parts() {
            tasks.iter_mut().for_each(|task| self.go_together(given.sums, task, threads));
        } else if threads.min(tasks.len()) <= 1 || products * rows < TASK_WORK_MIN {
            tasks.iter_mut().for_each(|task| self.go_through(given.sums, task));
        } else {
            let (threads, left) = (threads.min(tasks.len()), Mutex::new(tasks.iter_mut()));
            let work = || loop {
                let task = left.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some(task) = task else { break };
                self.go_through(given.sums, task);
            };
            std::thread::scope(|scope| {
                for _ in 1..threads {
                    // If the system refuses a thread, the other threads do its share.
                    let _ = std::thread::Builder::new().spawn_scoped(scope, work);
                }
                work();
            });
        }
        tasks.iter().for_each(|task| self.gather(task, made));
    }

    fn has_parts(&self) -> bool {
        self.directions.iter().any(|direction| direction.parts.len() > 1)
    }

    fn tasks(&self, given: &RunInputs<'_>) -> Vec<DirectionTask> {
        let (batch, hidden) = (self.lengths.len(), self.hidden);
        let is_cut = batch >= 2 * ROWS && !self.has_parts();
        let size = if is_cut { batch.div_ceil(2).next_multiple_of(ROWS) } else { batch };
        let mut tasks = Vec::new();
        for (direction, Direction { parts, .. }) in self.directions.iter().enumerate() {
            for first in (0..batch).step_by(size.max(1)) {
                let rows = RowRange { direction, first, count: size.min(batch - first) };
                let share = |part: &UnitRange| {
                    let units = part.units.clone();
                    let taken = |of: Option<&[f32]>| match of {
                        Some(values) => {
                            let values = &values[(direction * batch + first) * hidden..][..rows.count * hidden];
                            values.chunks_exact(hidden).flat_map(|row| &row[units.clone()]).copied().collect()
                        }
                        None => vec![0.0; rows.count * units.len()],
                    };
                    let cells = if self.gates == Gates::Lstm { taken(given.cells) } else { Vec::new() };
                    let all = vec![0.0; self.steps * rows.count * units.len()];
                    Share { hidden: taken(given.hidden), cells, all }
                };
                tasks.push(DirectionTask { rows, shares: parts.iter().map(share).collect() });
            }
        }
        tasks
    }

    /// The number of steps of the longest of some rows.
    fn steps_of(&self, rows: RowRange) -> usize {
        self.lengths[rows.first..][..rows.count].iter().copied().max().unwrap_or(0)
    }

    /// Runs all steps of a direction in one part.
    fn go_through(&self, sums: &[f32], task: &mut DirectionTask) {
        let Direction { parts, .. } = &self.directions[task.rows.direction];
        for (part, share) in parts.iter().zip(&mut task.shares) {
            let mut products = vec![0.0; task.rows.count * part.panels.stride()];
            for at in 0..self.steps_of(task.rows) {
                part.panels.multiply(self.level, &share.hidden, &mut products, at % 2 == 1);
                self.advance(sums, task.rows, part, (&products, at), share);
            }
        }
    }

    /// Runs all steps of a direction in several parts, each on its own thread if there are enough
    /// threads.
    fn go_together(&self, sums: &[f32], task: &mut DirectionTask, threads: usize) {
        let (rows, parts) = (task.rows, &self.directions[task.rows.direction].parts);
        let states = States::new(rows.count, self.hidden);
        parts.iter().zip(&task.shares).for_each(|(part, share)| states.put(0, part, share));
        let threads = threads.min(parts.len());
        let shares: Vec<_> = parts.iter().zip(&mut task.shares).map(|pair| Mutex::new(Some(pair))).collect();
        let (meeting, members) = (StepBarrier::default(), AtomicUsize::new(0));
        let work = |number: usize| {
            let _guard = BreakOnPanic(&meeting);
            let count = meeting.wait_for_members(&members);
            let own = shares.iter().skip(number).step_by(count);
            let own = own.filter_map(|share| share.lock().unwrap_or_else(PoisonError::into_inner).take());
            let mut own: Vec<(&UnitRange, &mut Share)> = own.collect();
            let (mut state, mut products) = (vec![0.0; rows.count * self.hidden], Vec::new());
            for at in 0..self.steps_of(rows) {
                states.get(at, &mut state);
                for (part, share) in &mut own {
                    products.resize(rows.count * part.panels.stride(), 0.0);
                    part.panels.multiply(self.level, &state, &mut products, at % 2 == 1);
                    self.advance(sums, rows, part, (&products, at), share);
                    states.put(at + 1, part, share);
                }
                if !meeting.meet((at + 1) * count) {
                    break;
                }
            }
        };
        std::thread::scope(|scope| {
            let spawned = (1..threads).take_while(|number| {
                let number = *number;
                std::thread::Builder::new().spawn_scoped(scope, move || work(number)).is_ok()
            });
            // If the system refuses a thread, the other threads do its share.
            members.store(1 + spawned.count(), Ordering::Release);
            work(0);
        });
    }

    /// Updates a part's units by one step.
    fn advance(
        &self,
        sums: &[f32],
        rows: RowRange,
        part: &UnitRange,
        (products, at): (&[f32], usize),
        share: &mut Share,
    ) {
        let (hidden, units, stride) = (self.hidden, part.units.len(), part.panels.stride());
        let (width, directions) = (self.gates.count() * hidden, self.directions.len());
        let lengths = &self.lengths[rows.first..][..rows.count];
        for (row, len) in lengths.iter().enumerate().filter(|(_, len)| at < **len) {
            let is_reversed = self.directions[rows.direction].is_reversed;
            let step_at = if is_reversed { len - 1 - at } else { at };
            let place = (step_at * self.lengths.len() + rows.first + row) * directions + rows.direction;
            let input = &sums[place * width..][part.units.start..width];
            let sums = Sums { input: (input, hidden), state: (&products[row * stride..][..stride], units) };
            let hidden = &mut share.hidden[row * units..][..units];
            let cells = share.cells.get_mut(row * units..).and_then(|cells| cells.get_mut(..units));
            step(self.level, self.gates, &sums, hidden, cells.unwrap_or_default());
            share.all[(step_at * rows.count + row) * units..][..units].copy_from_slice(hidden);
        }
    }

    fn gather(&self, task: &DirectionTask, made: &mut RunOutputs<'_>) {
        let (batch, hidden, rows) = (self.lengths.len(), self.hidden, task.rows);
        let first = rows.direction * batch + rows.first;
        for (part, share) in self.directions[rows.direction].parts.iter().zip(&task.shares) {
            let units = part.units.len();
            let put = |source: &[f32], target: &mut [f32]| {
                for (row, values) in source.chunks_exact(units).enumerate() {
                    target[(first + row) * hidden + part.units.start..][..units].copy_from_slice(values);
                }
            };
            if units == 0 || rows.count == 0 {
                continue;
            }
            if let Some(all) = &mut made.all {
                let step = self.directions.len() * batch * hidden;
                let steps = all.chunks_exact_mut(step).zip(share.all.chunks_exact(rows.count * units));
                steps.for_each(|(target, source)| put(source, target));
            }
            put(&share.hidden, made.last);
            if self.gates == Gates::Lstm {
                put(&share.cells, made.cells);
            }
        }
    }
}

/// Vector width: the number of units of a part is a multiple of it, except for the last part.
const UNITS: usize = 16;

/// The number of parts for the units of a direction.
fn parts_of(gates: Gates, (steps, hidden, batch): (usize, usize, usize), directions: usize, threads: usize) -> usize {
    let products = gates.count() * hidden * hidden;
    let work = products.saturating_mul(steps).saturating_mul(batch);
    let is_spread = directions > 1 || (batch >= 2 * ROWS && products * size_of::<f32>() <= WEIGHT_BYTES_CLOSE);
    if is_spread || work < TASK_WORK_MIN {
        return 1;
    }
    (products / PART_WORK_MIN).min(threads).clamp(1, PARTS_MAX)
}

/// The hidden states of a step and of the next one. Parts write their own units and read all units.
struct States {
    both: [Vec<AtomicU32>; 2],
    hidden: usize,
}

impl States {
    fn new(rows: usize, hidden: usize) -> States {
        let zeros = || (0..rows * hidden).map(|_| AtomicU32::new(0)).collect();
        States { both: [zeros(), zeros()], hidden }
    }

    fn put(&self, at: usize, part: &UnitRange, share: &Share) {
        let rows = share.hidden.chunks_exact(part.units.len().max(1));
        for (row, target) in rows.zip(self.both[at % 2].chunks_exact(self.hidden.max(1))) {
            let places = target[part.units.clone()].iter().zip(row);
            places.for_each(|(place, value)| place.store(value.to_bits(), Ordering::Relaxed));
        }
    }

    fn get(&self, at: usize, state: &mut [f32]) {
        let places = self.both[at % 2].iter().zip(state);
        places.for_each(|(place, value)| *value = f32::from_bits(place.load(Ordering::Relaxed)));
    }
}

/// A barrier at which threads wait for each other after each step.
#[derive(Default)]
struct StepBarrier {
    arrived: AtomicUsize,
    is_broken: AtomicBool,
}

impl StepBarrier {
    /// Waits until there were `all` arrivals since the start, and makes the other threads' writes
    /// visible. Returns `false` if a thread panicked.
    fn meet(&self, all: usize) -> bool {
        self.arrived.fetch_add(1, Ordering::AcqRel);
        self.wait(|| self.arrived.load(Ordering::Acquire) >= all)
    }

    /// Waits until the number of members is known. Returns one if a panic prevents that.
    fn wait_for_members(&self, members: &AtomicUsize) -> usize {
        self.wait(|| members.load(Ordering::Acquire) > 0);
        members.load(Ordering::Acquire).max(1)
    }

    fn wait(&self, is_over: impl Fn() -> bool) -> bool {
        let mut spins = 0;
        while !is_over() {
            if self.is_broken.load(Ordering::Relaxed) {
                return false;
            }
            spins += 1;
            if spins < SPINS_MAX { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        true
    }
}

/// Releases the waiting threads if a thread panics.
struct BreakOnPanic<'a>(&'a StepBarrier);

impl Drop for BreakOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.is_broken.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(len: usize, seed: usize) -> Vec<f32> {
        (0..len).map(|at| (((at + seed) * 7919 % 1013) as f32 - 506.0) / 2500.0).collect()
    }

    /// All states, the last ones and the cells.
    fn made(layer: &Layer, sums: &[f32], state: &[f32]) -> [Vec<f32>; 3] {
        let len = layer.directions.len() * layer.lengths.len() * layer.hidden;
        let (mut all, mut last, mut cells) = (vec![0.0; layer.steps * len], vec![0.0; len], vec![0.0; len]);
        let given = RunInputs { sums, hidden: Some(state), cells: Some(state) };
        layer.run(&given, &mut RunOutputs { all: Some(&mut all), last: &mut last, cells: &mut cells });
        [all, last, cells]
    }

    #[test]
    fn parts_make_what_the_whole_makes() {
        let (steps, lists) = (7, [vec![7], vec![7, 3, 0], vec![7; 9]]);
        for (gates, hidden) in [(Gates::Lstm, 40), (Gates::Gru, 100), (Gates::Tanh, 17), (Gates::Relu, 64)] {
            for (lengths, reversed) in lists.iter().flat_map(|list| [(list, vec![true]), (list, vec![false, true])]) {
                let (directions, rows) = (reversed.len(), gates.count() * hidden);
                let (weights, biases) = (numbers(directions * rows * hidden, 3), numbers(directions * rows, 5));
                let sums = numbers(steps * lengths.len() * directions * rows, 11);
                let state = numbers(directions * lengths.len() * hidden, 17);
                let of = |parts: usize| {
                    let weights = (&*weights, &*biases);
                    let layer = Layer::in_parts(gates, (steps, hidden), lengths.clone(), weights, &reversed, parts);
                    assert_eq!(layer.has_parts(), parts > 1);
                    made(&layer, &sums, &state)
                };
                let whole = of(1);
                assert!(whole[0].iter().any(|value| *value != 0.0));
                [2, 3].iter().for_each(|parts| assert_eq!(of(*parts), whole, "{gates:?} {lengths:?} {parts}"));
            }
        }
    }

    #[test]
    fn parts_are_for_large_layers_of_few_rows() {
        assert_eq!(parts_of(Gates::Gru, (100, 400, 1), 1, 2), 2);
        assert_eq!(parts_of(Gates::Gru, (100, 400, 8), 1, 2), 2);
        assert_eq!(parts_of(Gates::Gru, (100, 400, 1), 1, 1), 1);
        assert_eq!(parts_of(Gates::Gru, (100, 400, 1), 2, 2), 1, "directions are spread already");
        assert_eq!(parts_of(Gates::Lstm, (1, 128, 1), 1, 2), 1, "too little for a thread");
        assert_eq!(parts_of(Gates::Lstm, (100, 200, 8), 1, 2), 1, "rows are spread already");
    }

    #[test]
    fn a_thread_that_panics_does_not_keep_the_others() {
        let meeting = StepBarrier::default();
        std::thread::scope(|scope| {
            let panics = scope.spawn(|| {
                let _guard = BreakOnPanic(&meeting);
                panic!("a step");
            });
            assert!(!meeting.meet(2));
            assert!(panics.join().is_err());
        });
    }
}
