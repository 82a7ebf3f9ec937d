//! Times one case through the whole runtime: from the call until the output is ready and dropped
//! again.

use std::time::{Duration, Instant};

use super::place::Runner;

/// The fewest timed repeats, regardless of their duration.
const REPEATS_MIN: usize = 3;
/// Runs before the first timed run.
const WARM_UPS: usize = 3;
/// How long a GPU is kept busy before the first timed run: with a heavy load, then with the case
/// itself. An idle GPU lowers its clocks while inputs are made, and raises them only under load.
const LOAD: Duration = Duration::from_millis(300);
const GPU_WARM_UP: Duration = Duration::from_millis(200);

/// The times of one case.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    pub best: Duration,
    pub median: Duration,
    /// The device's own times, if it reports them.
    pub device: Option<DeviceTimes>,
    pub repeats: usize,
}

/// The times of a device for one case, without queues, launches and waits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceTimes {
    pub best: Duration,
    pub median: Duration,
}

/// Runs the case a few times to warm up, on a GPU after a heavy load. Then runs the case until the
/// time or the repeats are used up.
pub fn measure(
    runner: &Runner,
    load: Option<&Runner>,
    time_per_case: Duration,
    repeats_max: usize,
) -> panoply::Result<Times> {
    if let Some(load) = load {
        run_for(load, LOAD)?;
    }
    run_for(runner, if load.is_some() { GPU_WARM_UP } else { Duration::ZERO })?;
    let (mut times, mut device) = (Vec::new(), Vec::new());
    let begin = Instant::now();
    while times.len() < REPEATS_MIN || (begin.elapsed() < time_per_case && times.len() < repeats_max) {
        let start = Instant::now();
        let on_device = runner()?;
        times.push(start.elapsed());
        device.extend(on_device);
    }
    times.sort_unstable();
    device.sort_unstable();
    let median = |times: &[Duration]| times.get(times.len() / 2).copied();
    let whole = median(&times).unwrap_or_default();
    let own = median(&device).zip(device.first().copied()).map(|(median, best)| DeviceTimes { best, median });
    Ok(Times { best: times[0], median: whole, device: own, repeats: times.len() })
}

/// Runs `runner` for this long, and at least `WARM_UPS` times.
fn run_for(runner: &Runner, time: Duration) -> panoply::Result<()> {
    let (begin, mut runs) = (Instant::now(), 0);
    while runs < WARM_UPS || begin.elapsed() < time {
        runner()?;
        runs += 1;
    }
    Ok(())
}
