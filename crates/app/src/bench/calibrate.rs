//! `panoply bench --calibrate`: copies of several sizes and ops of every class on every device, so that the router learns how
//! long they take. What it has learned is kept in the user's cache folder.

use std::time::{Duration, Instant};

use panoply::prelude::*;
use panoply::{DType, DeviceId, DeviceInfo, learned};
use serde::Serialize;

use super::random::Normals;
use crate::configuration::{BenchOptions, Format};
use crate::failure::Failure;
use crate::op_kind::{AnyOp, OpKind};
use crate::screen::Screen;

/// How often each op is run; the first time may include compiling.
const REPEATS: usize = 6;
/// An op that takes longer than this is the largest of its kind that is run.
const OP_TIME_MAX: Duration = Duration::from_millis(60);
/// Bytes of the copies by which links are measured.
const COPY_BYTES: [usize; 5] = [4 << 10, 64 << 10, 1 << 20, 32 << 20, 256 << 20];
/// The copies of one size are the last ones if they take longer than this, all together.
const COPIES_TIME_MAX: Duration = Duration::from_millis(500);
const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// What was learned about one device.
#[derive(Serialize)]
struct Row {
    device: String,
    ops: usize,
    classes: usize,
    /// The best rates of large copies.
    #[serde(flatten)]
    copies: CopyRates,
    /// What the router expects of a copy.
    #[serde(skip_serializing_if = "Option::is_none")]
    upload_expected: Option<Expected>,
    #[serde(skip_serializing_if = "Option::is_none")]
    download_expected: Option<Expected>,
    seconds: f64,
}

/// The best rates of copies between the host and a device; none where they share memory.
#[derive(Debug, Default, Serialize)]
struct CopyRates {
    #[serde(skip_serializing_if = "Option::is_none")]
    upload_ordinary_gb_per_s: Option<f64>,
    /// From memory that the device itself downloaded into.
    #[serde(skip_serializing_if = "Option::is_none")]
    upload_pinned_gb_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    download_gb_per_s: Option<f64>,
}

/// What the router's model says about one direction of a link.
#[derive(Debug, Serialize)]
struct Expected {
    gb_per_s: f32,
    latency_us: f32,
}

impl Expected {
    fn new(latency_ns: f32, bytes_per_ns: f32) -> Expected {
        Expected { gb_per_s: bytes_per_ns, latency_us: latency_ns / 1e3 }
    }
}

/// Measures every device and stores the result.
pub fn run(options: &BenchOptions, runtime: &Runtime, screen: &mut Screen) -> Result<(), Failure> {
    let devices: Vec<DeviceInfo> = runtime.devices().cloned().collect();
    for device in &devices {
        let start = Instant::now();
        let copies = measure_links(runtime, device);
        for kind in OpKind::ALL {
            for dtype in DTYPES.into_iter().filter(|dtype| kind == OpKind::MatMul || *dtype == DType::F32) {
                measure_kind(runtime, device, kind, dtype);
            }
        }
        let row = row(runtime, device, copies, start.elapsed());
        match options.format {
            Format::Json => screen.json_line(&row)?,
            Format::Table => screen.line(line(&row))?,
        }
        screen.flush()?;
    }
    let path = learned::store(runtime).map_err(|error| anyhow::anyhow!("what was learned cannot be kept: {error}"))?;
    if options.format == Format::Table {
        screen.line(format!("kept in {}", path.display()))?;
    }
    Ok(())
}

/// Copies of several sizes, there and back: from ordinary memory, to the host, and up again from where that copy went. A device
/// that computes in the host's memory has no link.
fn measure_links(runtime: &Runtime, device: &DeviceInfo) -> CopyRates {
    let mut rates = CopyRates::default();
    if device.shares_host_memory {
        return rates;
    }
    for bytes in COPY_BYTES {
        let Ok(source) = Tensor::zeros(DType::U8, [bytes]) else { break };
        let begun = Instant::now();
        for _ in 0..REPEATS {
            // A failure is the device's; what it taught the router is that it fails.
            if copy_there_and_back(runtime, device.id, &source, &mut rates).is_err() {
                return rates;
            }
        }
        if begun.elapsed() > COPIES_TIME_MAX {
            break;
        }
    }
    rates
}

fn copy_there_and_back(
    runtime: &Runtime,
    device: DeviceId,
    source: &Tensor,
    rates: &mut CopyRates,
) -> panoply::Result<()> {
    let copy = |op: Transfer, best: &mut Option<f64>| -> panoply::Result<Tensor> {
        let start = Instant::now();
        let done = runtime.run_with(op, RunOptions::require(device)).with_report().wait()?;
        let took = done.report.transferred.unwrap_or_else(|| start.elapsed());
        let rate = source.len_bytes() as f64 / took.as_nanos().max(1) as f64;
        *best = Some(best.map_or(rate, |best| best.max(rate)));
        Ok(done.output)
    };
    let there = copy(Transfer::to_device(source, device), &mut rates.upload_ordinary_gb_per_s)?;
    let back = copy(Transfer::to_host(&there), &mut rates.download_gb_per_s)?;
    drop(there);
    copy(Transfer::to_device(&back, device), &mut rates.upload_pinned_gb_per_s).map(drop)
}

/// One op in growing sizes, until it takes too long or the device does not take it.
fn measure_kind(runtime: &Runtime, device: &DeviceInfo, kind: OpKind, dtype: DType) {
    let make = |dims: &[usize]| Normals::new(7).tensor_of(dtype, dims);
    for size in kind.sizes() {
        let Some(Ok(op)) = kind.op(&size, &make) else { return };
        let mut quickest = Duration::MAX;
        for _ in 0..REPEATS {
            let start = Instant::now();
            if runtime.run_with(AnyOp(op.clone()), RunOptions::require(device.id)).wait().is_err() {
                return;
            }
            quickest = quickest.min(start.elapsed());
            if quickest > OP_TIME_MAX {
                return;
            }
        }
    }
}

fn row(runtime: &Runtime, device: &DeviceInfo, copies: CopyRates, took: Duration) -> Row {
    let position = runtime.devices().position(|other| other.id == device.id).unwrap_or(0);
    let profile = runtime.profile().devices.into_iter().nth(position);
    let mut ops: Vec<(String, Option<DType>)> = Vec::new();
    let classes = profile.as_ref().map_or(0, |profile| profile.ops.len());
    for op in profile.iter().flat_map(|profile| &profile.ops) {
        if !ops.contains(&(op.op.clone(), op.dtype)) {
            ops.push((op.op.clone(), op.dtype));
        }
    }
    let (up, down) = profile.map_or((None, None), |profile| (profile.up, profile.down));
    Row {
        device: device.id.to_string(),
        ops: ops.len(),
        classes,
        copies,
        upload_expected: up.map(|link| Expected::new(link.latency_ns, link.bytes_per_ns)),
        download_expected: down.map(|link| Expected::new(link.latency_ns, link.bytes_per_ns)),
        seconds: took.as_secs_f64(),
    }
}

fn line(row: &Row) -> String {
    let rate = |rate: Option<f64>| rate.map_or("not measured".to_owned(), |rate| format!("{rate:.1} GB/s"));
    let CopyRates { upload_ordinary_gb_per_s, upload_pinned_gb_per_s, download_gb_per_s } = row.copies;
    let link = match upload_ordinary_gb_per_s {
        None => "computes in the host's memory".to_owned(),
        Some(_) => format!(
            "up {} (pinned {}), down {}",
            rate(upload_ordinary_gb_per_s),
            rate(upload_pinned_gb_per_s),
            rate(download_gb_per_s)
        ),
    };
    format!("{:<14} {} ops in {} classes, {link}, {:.1} s", row.device, row.ops, row.classes, row.seconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use panoply::testing::{Script, virtual_backend};
    use std::sync::Arc;

    /// 50 µs and 250 µs for each MiB are 4.19 GB/s.
    #[test]
    fn both_directions_of_a_known_link_are_found() {
        let script = Script::new().resident().link(Duration::from_micros(50), Duration::from_micros(250));
        let backend = virtual_backend().unwrap().device(script.kind(panoply::DeviceKind::DiscreteGpu));
        let runtime = Runtime::builder().only([]).backend(Arc::new(backend)).build().unwrap();
        let device = runtime.devices().next().unwrap().clone();
        let copies = measure_links(&runtime, &device);
        let row = row(&runtime, &device, copies, Duration::ZERO);
        let near = |rate: f64| (rate / 4.19 - 1.0).abs() < 0.05;
        for rate in
            [row.copies.upload_ordinary_gb_per_s, row.copies.upload_pinned_gb_per_s, row.copies.download_gb_per_s]
        {
            assert!(near(rate.unwrap()), "{:?}", row.copies);
        }
        for expected in [row.upload_expected.unwrap(), row.download_expected.unwrap()] {
            assert!(near(f64::from(expected.gb_per_s)), "{expected:?}");
            assert!((expected.latency_us / 50.0 - 1.0).abs() < 0.2, "{expected:?}");
        }
    }
}
