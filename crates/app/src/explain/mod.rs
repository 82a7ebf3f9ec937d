//! `panoply explain`: predicts where an op would run and how long each device would take, with the
//! reason for the choice.

mod plot;

use std::time::Duration;

use panoply::{Alternative, RunOptions, Runtime, Settings, Tensor, Verdict};
use serde::Serialize;

use crate::configuration::{ExplainOptions, Format};
use crate::failure::Failure;
use crate::op_kind::{AnyOp, OpKind, size_text};
use crate::partial::Partial;
use crate::screen::Screen;

/// The prediction for one device and one size, as JSON and as a line of the table.
#[derive(Serialize)]
struct PredictionRow {
    op: &'static str,
    size: String,
    device: String,
    verdict: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    transfer_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    finish_us: Option<f64>,
    /// Whether the figures were learned from ops that ran on the device.
    measured: bool,
}

impl PredictionRow {
    /// Whether there are times that nothing measured is behind.
    fn is_guess(&self) -> bool {
        !self.measured && self.run_us.is_some()
    }
}

/// Prints the router's prediction for each size.
pub fn show(options: &ExplainOptions, screen: &mut Screen) -> Result<(), Failure> {
    let mut settings = Settings::load().map_err(anyhow::Error::new)?;
    settings.only = options.apis.clone().or(settings.only);
    let runtime = settings.builder().build()?;
    runtime.warnings().iter().for_each(crate::failure::warn);
    let mut guessed = Vec::new();
    for size in &options.sizes {
        let alternatives = ask(&runtime, options.op, size, options.to_host)?;
        let rows: Vec<PredictionRow> = alternatives.iter().map(|device| row(options.op, size, device)).collect();
        let new = rows.iter().filter(|row| row.is_guess() && !guessed.contains(&row.device));
        guessed.extend(new.map(|row| row.device.clone()).collect::<Vec<_>>());
        match options.format {
            Format::Json => rows.iter().try_for_each(|row| screen.json_line(row))?,
            Format::Table => print(&rows, &alternatives, screen)?,
        }
    }
    if options.format == Format::Table && !guessed.is_empty() {
        screen.prose(&guess_text(&guessed))?;
    }
    if let Some(path) = &options.plot {
        let curves = curves(&runtime, options)?;
        Partial::create(path, true)?.finish_with(plot::svg(options.op, &curves).as_bytes())?;
    }
    Ok(())
}

/// Predicted finish in seconds by size, for one device.
pub struct Curve {
    pub device: String,
    pub points: Vec<(f64, f64)>,
}

fn curves(runtime: &Runtime, options: &ExplainOptions) -> Result<Vec<Curve>, Failure> {
    let mut curves: Vec<Curve> = Vec::new();
    for size in options.op.sizes() {
        let scale = size.first().copied().unwrap_or(1) as f64;
        for device in ask(runtime, options.op, &size, options.to_host)? {
            let Some(prediction) = device.prediction else { continue };
            let point = (scale, prediction.finish().as_secs_f64());
            let name = device.device.to_string();
            match curves.iter_mut().find(|curve| curve.device == name) {
                Some(curve) => curve.points.push(point),
                None => curves.push(Curve { device: name, points: vec![point] }),
            }
        }
    }
    Ok(curves)
}

/// Asks the router for its prediction. The inputs are views of a single number, so that no memory
/// is needed.
fn ask(runtime: &Runtime, op: OpKind, size: &[usize], to_host: bool) -> Result<Vec<Alternative>, Failure> {
    let view = |dims: &[usize]| Tensor::scalar(0.0_f32)?.broadcast_to(dims);
    let form = op.size_form();
    let usage =
        || Failure::Usage(format!("{}: expected a size of the form {form}, got {}", op.name(), size_text(size)));
    let made = op.op(size, &view).ok_or_else(usage)?.map_err(anyhow::Error::new)?;
    let wishes = RunOptions { to_host, ..RunOptions::default() };
    Ok(runtime.explain(AnyOp(made), &wishes).map_err(anyhow::Error::new)?)
}

fn row(op: OpKind, size: &[usize], device: &Alternative) -> PredictionRow {
    let microseconds = |time: Duration| time.as_secs_f64() * 1e6;
    let prediction = device.prediction;
    PredictionRow {
        op: op.name(),
        size: size_text(size),
        device: device.device.to_string(),
        verdict: verdict_text(&device.verdict),
        queue_us: prediction.map(|prediction| microseconds(prediction.queue)),
        transfer_us: prediction.map(|prediction| microseconds(prediction.transfer)),
        run_us: prediction.map(|prediction| microseconds(prediction.run)),
        finish_us: prediction.map(|prediction| microseconds(prediction.finish())),
        measured: device.measured,
    }
}

fn print(rows: &[PredictionRow], alternatives: &[Alternative], screen: &mut Screen) -> Result<(), Failure> {
    let Some(first) = rows.first() else { return Ok(()) };
    screen.line(screen.strong(&format!("{} {}", first.op, first.size)))?;
    screen.line(screen.faint(&format!(
        "  {:<14}{:>12}{:>12}{:>12}{:>12}  VERDICT",
        "DEVICE", "QUEUE", "TRANSFER", "RUN", "FINISH"
    )))?;
    for row in rows {
        let time = |value: Option<f64>| value.map_or("-".to_owned(), time_text);
        let basis = if row.is_guess() { " (guessed)" } else { "" };
        screen.line(format!(
            "  {:<14}{:>12}{:>12}{:>12}{:>12}  {}{basis}",
            row.device,
            time(row.queue_us),
            time(row.transfer_us),
            time(row.run_us),
            time(row.finish_us),
            row.verdict
        ))?;
    }
    screen.line(reason(alternatives))
}

/// Says that times are guesses, and how to measure.
fn guess_text(devices: &[String]) -> String {
    format!(
        "Guessed times are rough and may be far off: this op was not measured on {} yet. `panoply bench --calibrate` \
         measures the devices, within minutes, and keeps the result.",
        devices.join(", ")
    )
}

/// Formats the reason for the choice, in a sentence.
fn reason(alternatives: &[Alternative]) -> String {
    let taken = |device: &&Alternative| matches!(device.verdict, Verdict::Chosen | Verdict::Explored);
    let Some(winner) = alternatives.iter().find(taken) else { return "  no device can run it\n".to_owned() };
    let name = winner.device;
    if winner.verdict == Verdict::Explored {
        return format!("  {name} is tried to learn how fast it is\n");
    }
    let finish = |device: &Alternative| Some(device.prediction?.finish().as_secs_f64());
    let others = alternatives.iter().filter(|device| device.device != name && device.verdict == Verdict::Slower);
    let nearest = others.filter_map(|device| Some((finish(device)?, device))).min_by(|a, b| a.0.total_cmp(&b.0));
    match (nearest, finish(winner)) {
        (Some((other, device)), Some(own)) if own > 0.0 => {
            format!("  {name} is expected to finish {:.1} times sooner than {}\n", other / own, device.device)
        }
        _ => format!("  {name} is the only device that can run it now\n"),
    }
}

fn verdict_text(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Chosen => "chosen".to_owned(),
        Verdict::Explored => "chosen, to learn".to_owned(),
        Verdict::Slower => "slower".to_owned(),
        Verdict::Costlier => "sooner, but it costs too much there".to_owned(),
        Verdict::SameHardware(device) => format!("the same hardware as {device}"),
        Verdict::Cold => "must compile first".to_owned(),
        Verdict::NotAllowed => "not allowed".to_owned(),
        Verdict::Unfit(reason) => format!("unfit: {reason}"),
        Verdict::Unsupported(reason) => format!("cannot: {reason}"),
        _ => "not chosen".to_owned(),
    }
}

fn time_text(microseconds: f64) -> String {
    match microseconds {
        value if value < 1e3 => format!("{value:.1} µs"),
        value if value < 1e6 => format!("{:.2} ms", value / 1e3),
        value => format!("{:.2} s", value / 1e6),
    }
}
