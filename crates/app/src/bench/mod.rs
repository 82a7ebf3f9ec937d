//! `panoply bench`: measures ops through the whole runtime, one case after the other.
//!
//! `calibrate` teaches the router, `trace` judges it, `callers` shows what batching brings, `models` has whole models, and `served` those
//! of many callers. For the rest, [`cases`] says
//! what there is, [`place`] is where it runs, `budget` says which cases suit a device and how long each may take, `measure`
//! times one, `row` is how it is written down, and `plot` draws it. Every row is shown as soon as it is there, so that ending
//! early loses nothing.

pub mod budget;
mod calibrate;
mod callers;
pub mod cases;
mod measure;
mod models;
mod place;
mod plot;
mod random;
pub mod row;
mod served;
mod trace;

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use panoply::placement::Topology;
use panoply::{Api, DeviceInfo, DeviceKind, Error, Runtime, Settings};

use crate::configuration::{BenchOptions, Format};
use crate::failure::Failure;
use crate::partial::Partial;
use crate::screen::{Screen, wrapped};
use budget::{Budget, Extent};
use cases::Case;
use place::{Place, Runner};
use row::{Measured, Row};

/// Measures what was asked for and prints it.
pub fn run(options: &BenchOptions, screen: &mut Screen) -> Result<(), Failure> {
    if options.list_only {
        return list(options, screen);
    }
    if options.calibrate {
        return calibrate::run(options, &start(options, false)?, screen);
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
    // Begun before anything is measured: a path that does not work is found out at once.
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
    let (mut rows, mut left_out) = (Vec::new(), Vec::new());
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
            None => left_out.push(format!("{} on {}", case.name(), device.id)),
        }
        progress.inc(1);
    }
    progress.finish_and_clear();
    if let Some(chart) = chart {
        chart.finish_with(plot::svg(&rows).as_bytes())?;
    }
    tell_left_out(&left_out, options, screen)?;
    complete(&rows)
}

/// Says which cases there was no time for, and what measures them.
fn tell_left_out(left_out: &[String], options: &BenchOptions, screen: &mut Screen) -> Result<(), Failure> {
    if !left_out.is_empty() {
        crate::failure::warn(format!("no time was left for {}; --full measures everything", left_out.join(", ")));
    } else if options.time.is_budget() && options.format == Format::Table {
        let hint = "A short set of cases, within a minute. `panoply bench --full` measures all that suit the devices, \
                    `panoply bench CASE-PREFIX` those whose names begin so.";
        for line in wrapped(hint, screen.width()) {
            screen.line(screen.faint(&line))?;
        }
    }
    Ok(())
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

/// A runtime as the settings and the options say. `learned`: it begins with what was learned before.
fn start(options: &BenchOptions, learned: bool) -> Result<Runtime, Failure> {
    start_with(options, learned, |_| {})
}

/// The same with some settings changed.
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

/// One device of each API: the first that is hardware of its own, or else the first.
fn first_of_each_api(runtime: &Runtime) -> Vec<DeviceInfo> {
    let is_software = |device: &DeviceInfo| matches!(device.kind, DeviceKind::Cpu | DeviceKind::SoftwareGpu);
    let mut devices: Vec<DeviceInfo> = Vec::new();
    for device in runtime.devices() {
        match devices.iter_mut().find(|earlier| earlier.id.api == device.id.api) {
            None => devices.push(device.clone()),
            Some(earlier) if is_software(earlier) && !is_software(device) => *earlier = device.clone(),
            Some(_) => {}
        }
    }
    devices
}

fn has_own_memory(device: &DeviceInfo) -> bool {
    device.kind == DeviceKind::DiscreteGpu
}

/// What keeps a GPU busy between cases. One that does not run even this says why when the cases are run. CUDA keeps clocks up by
/// itself, and there the heat of such a load would slow the cases down.
fn load(device: &DeviceInfo, runtime: &Arc<Runtime>) -> Option<Runner> {
    let place = Place { runtime: Arc::clone(runtime), device: device.clone() };
    let wanted = has_own_memory(device) && device.id.api != Api::CUDA;
    if wanted { cases::LOAD.prepare(&place).ok() } else { None }
}

/// `None` where the device does not run such an op, and nobody has asked for it by name.
fn measure_case(
    case: &dyn Case,
    device: &DeviceInfo,
    load: Option<&Runner>,
    runtime: &Arc<Runtime>,
    options: &BenchOptions,
    time: Duration,
) -> Option<Row> {
    let place = Place { runtime: Arc::clone(runtime), device: device.clone() };
    let times = case.prepare(&place).and_then(|runner| measure::measure(&runner, load, time, options.repeats_max));
    let left_out = options.extent != Extent::Named && matches!(times, Err(Error::Unsupported { .. }));
    let threads = options.threads.unwrap_or_else(|| default_threads(device));
    (!left_out).then(|| Row::new(case, device.id, threads, times))
}

/// The threads that an engine takes where it is not told: the CPUs near its device, as far as the quota goes.
fn default_threads(device: &DeviceInfo) -> usize {
    let topology = Topology::current();
    let node = device.numa_node.and_then(|node| topology.node(node));
    let near = node.map(|node| node.cpus.intersection(topology.allowed()).len()).filter(|count| *count > 0);
    near.unwrap_or(usize::MAX).min(topology.effective_cpus())
}

fn show(row: &Row, case_width: usize, format: Format, screen: &mut Screen) -> Result<(), Failure> {
    match format {
        Format::Json => screen.json_line(row)?,
        Format::Table => screen.line(row.line(case_width))?,
    }
    screen.flush()
}

fn progress_bar(steps: usize) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(Some(steps as u64), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

/// A failure if any of the rows is one; they have been printed already.
fn complete(rows: &[Row]) -> Result<(), Failure> {
    let failed = rows.iter().filter(|row| matches!(row.result, Measured::Failed { .. })).count();
    if failed == 0 {
        return Ok(());
    }
    Err(Failure::Run(anyhow::anyhow!("{failed} of {} cases failed; their rows say why", rows.len())))
}
