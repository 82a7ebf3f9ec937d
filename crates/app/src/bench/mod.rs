//! `panoply bench`: measures ops through the whole runtime, one case after the other.
//!
//! `calibrate` teaches the router, `trace` judges it, and `callers` shows what batching brings. For the rest, [`cases`] says what there is, `workload` makes it runnable, `measure` times it, `row` is how it is written down, and
//! `plot` draws it. Every row is shown as soon as it is there, so that ending early loses nothing.

mod calibrate;
mod callers;
pub mod cases;
mod measure;
mod plot;
mod random;
pub mod row;
mod trace;
mod workload;

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use panoply::placement::Topology;
use panoply::{Api, DeviceInfo, DeviceKind, Runtime, Settings};

use crate::configuration::{BenchOptions, Format};
use crate::failure::Failure;
use crate::screen::Screen;
use cases::Work;
use row::{Measured, Row};
use workload::{Place, Runner};

/// Measures what was asked for and prints it.
pub fn run(options: &BenchOptions, screen: &mut Screen) -> Result<(), Failure> {
    if options.list_only {
        return list(options, screen);
    }
    if options.calibrate {
        return calibrate::run(options, &start(options, false)?, screen);
    }
    if let Some(callers) = options.callers {
        return callers::run(options, callers, screen);
    }
    if options.trace {
        return trace::run(options, &start(options, true)?, start(options, false)?, screen);
    }
    let chart = options.plot.as_deref().map(Chart::create).transpose()?;
    let runtime = Arc::new(start(options, true)?);
    let devices = first_of_each_api(&runtime);
    let case_width = options.cases.iter().map(|work| work.name().chars().count()).max().unwrap_or(0);
    if options.format == Format::Table {
        screen.line(screen.strong(&row::head(case_width)))?;
    }
    let progress = progress_bar(options.cases.len() * devices.len());
    let loads: Vec<Option<Runner>> = devices.iter().map(|device| load(device, &runtime)).collect();
    let mut rows = Vec::new();
    for work in &options.cases {
        for (device, load) in devices.iter().zip(&loads) {
            if work.is_large() && !options.named && !has_own_memory(device) {
                progress.inc(1);
                continue;
            }
            progress.set_message(work.name());
            let row = measure_case(work, device, load.as_ref(), &runtime, options);
            progress.suspend(|| show(&row, case_width, options.format, screen))?;
            progress.inc(1);
            rows.push(row);
        }
    }
    progress.finish_and_clear();
    if let Some(chart) = chart {
        chart.write(&rows)?;
    }
    complete(&rows)
}

fn list(options: &BenchOptions, screen: &mut Screen) -> Result<(), Failure> {
    let names: Vec<String> = options.cases.iter().map(Work::name).collect();
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

fn first_of_each_api(runtime: &Runtime) -> Vec<DeviceInfo> {
    let mut devices: Vec<DeviceInfo> = Vec::new();
    for device in runtime.devices() {
        if devices.iter().all(|earlier| earlier.id.api != device.id.api) {
            devices.push(device.clone());
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
    let place = Place { runtime: Arc::clone(runtime), device: device.id };
    let wanted = has_own_memory(device) && device.id.api != Api::CUDA;
    if wanted { workload::prepare(&cases::LOAD, &place).ok() } else { None }
}

fn measure_case(
    work: &Work,
    device: &DeviceInfo,
    load: Option<&Runner>,
    runtime: &Arc<Runtime>,
    options: &BenchOptions,
) -> Row {
    let place = Place { runtime: Arc::clone(runtime), device: device.id };
    let times = workload::prepare(work, &place)
        .and_then(|runner| measure::measure(&runner, load, options.time_per_case, options.repeats_max));
    Row::new(work, device.id, options.threads.unwrap_or_else(|| default_threads(device)), times)
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

/// The file of the chart, created before anything is measured: a path that does not work is found out at once.
struct Chart<'a> {
    path: &'a Path,
    file: File,
}

impl Chart<'_> {
    fn create(path: &Path) -> Result<Chart<'_>, Failure> {
        let file = File::create(path).with_context(|| format!("the chart cannot be written to {}", path.display()))?;
        Ok(Chart { path, file })
    }

    fn write(mut self, rows: &[Row]) -> Result<(), Failure> {
        let written = self.file.write_all(plot::svg(rows).as_bytes());
        Ok(written.with_context(|| format!("the chart could not be written to {}", self.path.display()))?)
    }
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
