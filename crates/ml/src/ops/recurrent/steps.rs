//! The steps of a recurrent layer whose products with the input are there already.
//!
//! 1. Rows of the batch and directions have nothing to do with each other: each direction of a few rows is a task of its own.
//! 2. Tasks run on threads of their own where there is work for them, and each writes to memory of its own.

use std::sync::{Mutex, PoisonError};

use super::gates::{Gates, Sums, step};
use super::product::{Level, Panels};

/// Products of one task below which a thread costs more than it saves.
const TASK_WORK_MIN: usize = 4 << 20;
/// The rows that are multiplied at a time: those of a task are a multiple of it.
const ROWS: usize = 4;

/// A recurrent layer.
pub(crate) struct Layer {
    gates: Gates,
    hidden: usize,
    steps: usize,
    /// How many steps each row of the batch has.
    lengths: Vec<usize>,
    /// The weights of the state, and whether steps go backwards.
    directions: Vec<(Panels, bool)>,
    level: Level,
}

/// What a layer is given with each run. States are zeros where they are not given.
pub(crate) struct Given<'a> {
    /// Products of the weights with the input, biases added: steps by rows by directions by gates by units.
    pub(crate) sums: &'a [f32],
    pub(crate) hidden: Option<&'a [f32]>,
    pub(crate) cells: Option<&'a [f32]>,
}

/// What a layer makes: all hidden states, where they are wanted, and the last ones and cells, which hold what they are at first.
pub(crate) struct Made<'a> {
    pub(crate) all: Option<&'a mut [f32]>,
    pub(crate) last: &'a mut [f32],
    pub(crate) cells: &'a mut [f32],
}

/// A direction of some rows.
struct Task {
    direction: usize,
    first: usize,
    rows: usize,
    hidden: Vec<f32>,
    cells: Vec<f32>,
    /// Steps by rows by units.
    all: Vec<f32>,
}

impl Layer {
    /// Of weights of the state, `gates · hidden` rows by `hidden` columns for each direction, and as many biases.
    pub(crate) fn new(
        gates: Gates,
        (steps, hidden): (usize, usize),
        lengths: Vec<usize>,
        (weights, biases): (&[f32], &[f32]),
        reversed: &[bool],
    ) -> Layer {
        let rows = gates.count() * hidden;
        let panels = |direction: usize| {
            let weights = &weights[direction * rows * hidden..][..rows * hidden];
            Panels::new(weights, &biases[direction * rows..][..rows], hidden)
        };
        let directions = reversed.iter().enumerate().map(|(place, reversed)| (panels(place), *reversed)).collect();
        Layer { gates, hidden, steps, lengths, directions, level: Level::detect() }
    }

    /// Goes through all steps.
    pub(crate) fn run(&self, given: &Given<'_>, made: &mut Made<'_>) {
        let mut tasks = self.tasks(given);
        let products = self.steps * self.gates.count() * self.hidden * self.hidden;
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(tasks.len());
        let rows = tasks.first().map_or(0, |task| task.rows);
        if threads <= 1 || products * rows < TASK_WORK_MIN {
            tasks.iter_mut().for_each(|task| self.go_through(given.sums, task));
        } else {
            let left = Mutex::new(tasks.iter_mut());
            let work = || loop {
                let task = left.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some(task) = task else { break };
                self.go_through(given.sums, task);
            };
            std::thread::scope(|scope| {
                for _ in 1..threads {
                    // Where the system refuses a thread, the others do its share.
                    let _ = std::thread::Builder::new().spawn_scoped(scope, work);
                }
                work();
            });
        }
        tasks.iter().for_each(|task| self.gather(task, made));
    }

    fn tasks(&self, given: &Given<'_>) -> Vec<Task> {
        let batch = self.lengths.len();
        let rows = if batch >= 2 * ROWS { batch.div_ceil(2).next_multiple_of(ROWS) } else { batch };
        let (hidden, mut tasks) = (self.hidden, Vec::new());
        for direction in 0..self.directions.len() {
            for first in (0..batch).step_by(rows.max(1)) {
                let rows = rows.min(batch - first);
                let part = |of: Option<&[f32]>| match of {
                    Some(values) => values[(direction * batch + first) * hidden..][..rows * hidden].to_vec(),
                    None => vec![0.0; rows * hidden],
                };
                let cells = if self.gates == Gates::Lstm { part(given.cells) } else { Vec::new() };
                let all = vec![0.0; self.steps * rows * hidden];
                tasks.push(Task { direction, first, rows, hidden: part(given.hidden), cells, all });
            }
        }
        tasks
    }

    fn go_through(&self, sums: &[f32], task: &mut Task) {
        let (panels, reversed) = &self.directions[task.direction];
        let (units, stride) = (self.hidden, panels.stride());
        let width = self.gates.count() * units;
        let mut products = vec![0.0; task.rows * stride];
        let lengths = &self.lengths[task.first..][..task.rows];
        for at in 0..lengths.iter().copied().max().unwrap_or(0) {
            panels.multiply(self.level, &task.hidden, &mut products);
            for (row, len) in lengths.iter().enumerate().filter(|(_, len)| at < **len) {
                let step_at = if *reversed { len - 1 - at } else { at };
                let place = (step_at * self.lengths.len() + task.first + row) * self.directions.len() + task.direction;
                let sums = Sums { input: &sums[place * width..][..width], state: &products[row * stride..][..width] };
                let hidden = &mut task.hidden[row * units..][..units];
                let cells = task.cells.get_mut(row * units..).and_then(|cells| cells.get_mut(..units));
                step(self.level, self.gates, &sums, hidden, cells.unwrap_or_default());
                task.all[(step_at * task.rows + row) * units..][..units].copy_from_slice(hidden);
            }
        }
    }

    fn gather(&self, task: &Task, made: &mut Made<'_>) {
        let (batch, units) = (self.lengths.len(), self.hidden);
        let (run, start) = (task.rows * units, (task.direction * batch + task.first) * units);
        if run == 0 {
            return;
        }
        if let Some(all) = &mut made.all {
            let step = self.directions.len() * batch * units;
            for (target, source) in all.chunks_exact_mut(step).zip(task.all.chunks_exact(run)) {
                target[start..][..run].copy_from_slice(source);
            }
        }
        made.last[start..][..run].copy_from_slice(&task.hidden);
        if self.gates == Gates::Lstm {
            made.cells[start..][..run].copy_from_slice(&task.cells);
        }
    }
}
