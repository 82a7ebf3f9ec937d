//! Times one case through the whole runtime: from the call until the output is there and dropped again.

use std::time::{Duration, Instant};

use panoply::{RunOptions, Runtime};

use super::workload::Runner;

/// The fewest repeats that are timed, however long they take.
const REPEATS_MIN: usize = 3;
/// The most repeats that are timed; beyond this a median gets no better.
const REPEATS_MAX: usize = 1_000_000;

/// The times of one case.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    pub best: Duration,
    pub median: Duration,
    pub repeats: usize,
}

/// Runs the case once to warm up, then until the time is used up.
pub fn measure(
    runner: &Runner,
    runtime: &Runtime,
    options: &RunOptions,
    time_per_case: Duration,
) -> panoply::Result<Times> {
    runner(runtime, options)?;
    let mut times = Vec::new();
    let begin = Instant::now();
    while times.len() < REPEATS_MIN || (begin.elapsed() < time_per_case && times.len() < REPEATS_MAX) {
        let start = Instant::now();
        runner(runtime, options)?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    Ok(Times { best: times[0], median: times[times.len() / 2], repeats: times.len() })
}
