//! `panoply bench`: measures ops through the whole runtime, one case after the other.
//!
//! `calibrate` teaches the router and `trace` evaluates it. `callers` measures batching, `chains`
//! callers whose ops overlap, `models` whole models, and `served` models with many callers.
//!
//! [`cases`] lists the cases and [`place`] is where they run. `budget` selects the
//! cases that suit a device and how long each may take. `measure` times one case, `row` formats its
//! result, and `plot` draws the results. Every row is printed as soon as it is measured, so that an
//! early end loses nothing.

pub mod budget;
mod calibrate;
mod callers;
pub mod cases;
mod chains;
mod measure;
mod models;
mod place;
mod plot;
mod random;
pub mod row;
mod served;
mod trace;

use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use panoply::placement::Topology;
use panoply::{Capabilities, DeviceInfo, DeviceKind, Error, Runtime, Settings};

use crate::configuration::{BenchOptions, Format};
use crate::failure::Failure;
use crate::partial::Partial;
use crate::screen::{Screen, wrapped};
use budget::{Budget, Extent};
use cases::Case;
use place::{BenchDevice, Runner};
use row::{CaseRow, Measurement};

/// Measures the selected cases and prints the results.
pub fn run(options: &BenchOptions, screen: &mut Screen) -> Result<(), Failure> {
    if options.list_only {
        return list(options, screen);
    }
    if options.calibrate {
        calibrate::expect_place()?;
        return calibrate::run(options, &start(options, false)?, screen);
    }
    if let Some(ratio_max) = options.chains {
        return chains::run(options, ratio_max, screen);
    }
    match (options.callers, &options.models) {
        (Some(callers), Some(models)) => return served::run(options, models, callers, screen),
        (Some(callers), None) => return callers::run(options, callers, screen),
        (None, _) => {}
    }
    if options.trace {
        return trace::run(options, &start(options, true)?, start(options, false)?, screen);
    }
    measure_cases(options, screen)
}

fn measure_cases(options: &BenchOptions, screen: &mut Screen) -> Result<(), Failure> {
    // Created before anything is measured, so that an unusable path fails at once.
    let chart = options.plot.as_deref().map(|path| Partial::create(path, true)).transpose()?;
    let runtime = Arc::new(start(options, true)?);
    let devices = first_of_each_api(&runtime);
    let loads: Vec<Option<Runner>> = devices.iter().map(|device| load(device, &runtime)).collect();
    let suits = |case: &dyn Case, device: &DeviceInfo| budget::suits(case.scale(), device.kind, options.extent);
    let models = options.models.as_ref().map(models::cases).transpose()?.unwrap_or_default();
    let cases = options.cases.iter().copied().chain(models.iter().map(|case| &**case));
    let pairs = cases.flat_map(|case| (0..devices.len()).map(move |index| (case, index)));
    let pairs: Vec<(&dyn Case, usize)> = pairs.filter(|(case, index)| suits(*case, &devices[*index])).collect();
    let case_width = pairs.iter().map(|(case, _)| case.name().chars().count()).max().unwrap_or(0);
    if options.format == Format::Table {
        screen.line(screen.strong(&row::head(case_width)))?;
    }
    let progress = progress_bar(pairs.len());
    let mut budget = Budget::new(options.time, pairs.len());
    let pair_count = pairs.len();
    let (mut rows, mut left_out) = (Vec::new(), 0);
    for (case, index) in pairs {
        let device = &devices[index];
        progress.set_message(case.name());
        match budget.next() {
            Some(time) => {
                if let Some(row) = measure_case(case, device, loads[index].as_ref(), &runtime, options, time) {
                    progress.suspend(|| show(&row, case_width, options.format, screen))?;
                    rows.push(row);
                }
            }
            None => left_out += 1,
        }
        progress.inc(1);
    }
    progress.finish_and_clear();
    if options.format == Format::Table {
        for device in &devices {
            for gain in cases::gains(|case| rows.iter().find_map(|row| row.time_of(case, device.id))) {
                screen.line(format!("{}: {gain}", device.id))?;
            }
        }
    }
    if let Some(chart) = chart {
        chart.finish_with(plot::svg(&rows).as_bytes())?;
    }
    tell_left_out(left_out, pair_count, options, screen)?;
    complete(&rows)
}

/// Warns about cases that got no time, and names the option that measures them.
fn tell_left_out(left_out: usize, all: usize, options: &BenchOptions, screen: &mut Screen) -> Result<(), Failure> {
    if left_out > 0 {
        crate::failure::warn(left_out_text(left_out, all));
    } else if options.time.is_budget() && options.format == Format::Table {
        let hint = "A short set of cases: --full runs all, CASE-PREFIX those whose names begin so.";
        for line in wrapped(hint, screen.width()) {
            screen.line(screen.faint(&line))?;
        }
    }
    Ok(())
}

fn left_out_text(left_out: usize, all: usize) -> String {
    format!("{left_out} of {all} cases were left out for lack of time; --full runs all")
}

fn list(options: &BenchOptions, screen: &mut Screen) -> Result<(), Failure> {
    let models = options.models.as_ref().map(models::cases).transpose()?.unwrap_or_default();
    let cases = options.cases.iter().copied().chain(models.iter().map(|case| &**case));
    let names: Vec<String> = cases.map(|case| case.name()).collect();
    match options.format {
        Format::Json => screen.json(&names),
        Format::Table => names.iter().try_for_each(|name| screen.line(name)),
    }
}

/// Starts a runtime with the settings and the options. With `learned` it loads the profile of
/// earlier runs.
fn start(options: &BenchOptions, learned: bool) -> Result<Runtime, Failure> {
    start_with(options, learned, |_| {})
}

/// Like `start`, with some settings changed.
fn start_with(options: &BenchOptions, learned: bool, change: impl FnOnce(&mut Settings)) -> Result<Runtime, Failure> {
    let mut settings = Settings::load().map_err(anyhow::Error::new)?;
    settings.open.threads = options.threads.or(settings.open.threads);
    settings.only = options.apis.clone().or(settings.only);
    settings.profile &= learned;
    change(&mut settings);
    let runtime = settings.builder().build()?;
    runtime.warnings().iter().for_each(crate::failure::warn);
    Ok(runtime)
}

/// Returns one device of each API: the first that is not software, else the first.
fn first_of_each_api(runtime: &Runtime) -> Vec<DeviceInfo> {
    let is_software = |device: &DeviceInfo| matches!(device.kind, DeviceKind::Cpu | DeviceKind::SoftwareGpu);
    let mut devices: Vec<DeviceInfo> = Vec::new();
    for device in runtime.devices() {
        match devices.iter_mut().find(|earlier| earlier.id.api == device.id.api) {
            None => devices.push(device),
            Some(earlier) if is_software(earlier) && !is_software(&device) => *earlier = device,
            Some(_) => {}
        }
    }
    devices
}

fn has_own_memory(device: &DeviceInfo) -> bool {
    device.kind == DeviceKind::DiscreteGpu
}

/// Returns the load that keeps a GPU busy between cases, `None` if no load is needed. If a GPU
/// cannot even run the load, the reason shows up in its cases. Where a GPU keeps its clocks up by
/// itself, the heat of such a load would slow its cases down.
fn load(device: &DeviceInfo, runtime: &Arc<Runtime>) -> Option<Runner> {
    let place = BenchDevice { runtime: Arc::clone(runtime), device: device.clone() };
    let wanted = has_own_memory(device) && !device.capabilities.has(Capabilities::KEEPS_CLOCKS);
    if wanted { cases::LOAD.prepare(&place).ok() } else { None }
}

/// Measures one case. `None` if the device does not support the op and the case was not named on
/// the command line.
fn measure_case(
    case: &dyn Case,
    device: &DeviceInfo,
    load: Option<&Runner>,
    runtime: &Arc<Runtime>,
    options: &BenchOptions,
    time: Duration,
) -> Option<CaseRow> {
    let place = BenchDevice { runtime: Arc::clone(runtime), device: device.clone() };
    let times = case.prepare(&place).and_then(|runner| measure::measure(&runner, load, time, options.repeats_max));
    let left_out = options.extent != Extent::Named && matches!(times, Err(Error::Unsupported { .. }));
    let threads = options.threads.unwrap_or_else(|| default_threads(runtime, device));
    (!left_out).then(|| CaseRow::new(case, device.id, threads, times))
}

/// Returns the default thread count of an engine: the CPUs of its worker, limited by the CPU quota.
fn default_threads(runtime: &Runtime, device: &DeviceInfo) -> usize {
    let cpus = runtime.plan().place(device.id, None, 0).cpus;
    cpus.map_or(usize::MAX, |cpus| cpus.len()).min(Topology::current().effective_cpus())
}

fn show(row: &CaseRow, case_width: usize, format: Format, screen: &mut Screen) -> Result<(), Failure> {
    match format {
        Format::Json => screen.json_line(row)?,
        Format::Table => screen.line(row.line(case_width))?,
    }
    screen.flush()
}

fn progress_bar(steps: usize) -> ProgressBar {
    if !crate::verbosity::shows_progress() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(Some(steps as u64), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

/// Fails if any row failed. The rows have been printed already.
fn complete(rows: &[CaseRow]) -> Result<(), Failure> {
    let failed = rows.iter().filter(|row| matches!(row.result, Measurement::Failed { .. })).count();
    if failed == 0 {
        return Ok(());
    }
    Err(Failure::Run(anyhow::anyhow!("{failed} of {} cases failed; their rows say why", rows.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the warning named every case, in one line of thousands of characters.
    #[test]
    fn the_warning_about_cases_without_time_is_short() {
        let text = left_out_text(71, 99);
        assert_eq!(text, "71 of 99 cases were left out for lack of time; --full runs all");
    }
}
