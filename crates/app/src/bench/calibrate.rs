//! `panoply bench --calibrate`: runs copies of several sizes and ops of every class on every
//! device, so that the router learns their times. The learned profile is stored in the user's cache
//! folder.

use std::time::{Duration, Instant};

use panoply::prelude::*;
use panoply::{DType, DeviceId, DeviceInfo, learned};
use serde::Serialize;

use super::random::Normals;
use crate::configuration::{BenchOptions, Format};
use crate::failure::Failure;
use crate::op_kind::{AnyOp, OpKind};
use crate::screen::Screen;
use crate::store::commit::{Commit, Words};

/// How often each op is run. The first run may include compilation.
const REPEATS: usize = 6;
/// After an op that takes longer than this, no larger size of its kind is run.
const OP_TIME_MAX: Duration = Duration::from_millis(60);
/// Sizes in bytes of the copies that measure links.
const COPY_BYTES: [usize; 5] = [4 << 10, 64 << 10, 1 << 20, 32 << 20, 256 << 20];
/// After copies of one size that take longer than this in total, no larger copies are run.
const COPIES_TIME_MAX: Duration = Duration::from_millis(500);
const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// The learned figures of one device.
#[derive(Serialize)]
struct CalibrationRow {
    device: String,
    ops: usize,
    classes: usize,
    /// The best rates of large copies.
    #[serde(flatten)]
    copies: CopyRates,
    /// The rate and latency that the router predicts for a copy.
    #[serde(skip_serializing_if = "Option::is_none")]
    upload_expected: Option<LinkPrediction>,
    #[serde(skip_serializing_if = "Option::is_none")]
    download_expected: Option<LinkPrediction>,
    seconds: f64,
}

/// The best rates of copies between the host and a device. All are `None` if host and device share
/// memory.
#[derive(Debug, Default, Serialize)]
struct CopyRates {
    #[serde(skip_serializing_if = "Option::is_none")]
    upload_ordinary_gb_per_s: Option<f64>,
    /// Rate of uploads from memory that the device itself downloaded into.
    #[serde(skip_serializing_if = "Option::is_none")]
    upload_pinned_gb_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    download_gb_per_s: Option<f64>,
}

/// The prediction of the router's model for one direction of a link.
#[derive(Debug, Serialize)]
struct LinkPrediction {
    gb_per_s: f32,
    latency_us: f32,
}

impl LinkPrediction {
    fn new(latency_ns: f32, bytes_per_ns: f32) -> LinkPrediction {
        LinkPrediction { gb_per_s: bytes_per_ns, latency_us: latency_ns / 1e3 }
    }
}

const WORDS: Words = Words {
    before: "the figures that were kept before are unchanged",
    after: "the measured figures are kept",
    unknown: "it is unknown whether the measured figures are kept or those before; `panoply bench --calibrate` repeats",
};

/// Fails if the result could not be stored.
pub fn expect_place() -> Result<(), Failure> {
    let unusable = "what is learned could not be kept, so nothing was measured";
    let advice = "PANOPLY_CACHE names another folder";
    learned::check().map(drop).map_err(|error| anyhow::anyhow!("{unusable}: {error}; {advice}").into())
}

/// Measures every device and stores the result.
pub fn run(options: &BenchOptions, runtime: &Runtime, screen: &mut Screen) -> Result<(), Failure> {
    let devices: Vec<DeviceInfo> = runtime.devices().collect();
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
    let stored = Commit::announced(WORDS).make(|| learned::store(runtime).map_err(|error| (error, true)));
    let path = stored.map_err(|(error, _)| anyhow::anyhow!("what was learned cannot be kept: {error}"))?;
    screen.note_done(WORDS.after);
    if options.format == Format::Table {
        screen.line(format!("kept in {}", path.display()))?;
    }
    Ok(())
}

/// Runs copies of several sizes in both directions: an upload from ordinary memory, a download to
/// the host, and an upload from the memory of that download. A device that computes in the host's
/// memory has no link.
fn measure_links(runtime: &Runtime, device: &DeviceInfo) -> CopyRates {
    let mut rates = CopyRates::default();
    if device.shares_host_memory {
        return rates;
    }
    for bytes in COPY_BYTES {
        let Ok(source) = Tensor::zeros(DType::U8, [bytes]) else { break };
        let begun = Instant::now();
        for _ in 0..REPEATS {
            // A failure belongs to the device, and the router has learned from it that the device
            // fails.
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

/// Runs one op in growing sizes, until the op takes too long or the device refuses it.
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

fn row(runtime: &Runtime, device: &DeviceInfo, copies: CopyRates, took: Duration) -> CalibrationRow {
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
    CalibrationRow {
        device: device.id.to_string(),
        ops: ops.len(),
        classes,
        copies,
        upload_expected: up.map(|link| LinkPrediction::new(link.latency_ns, link.bytes_per_ns)),
        download_expected: down.map(|link| LinkPrediction::new(link.latency_ns, link.bytes_per_ns)),
        seconds: took.as_secs_f64(),
    }
}

fn line(row: &CalibrationRow) -> String {
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

    /// A link with 50 µs of latency and 250 µs for each MiB has 4.19 GB/s.
    #[test]
    fn both_directions_of_a_known_link_are_found() {
        let script = Script::new().resident().link(Duration::from_micros(50), Duration::from_micros(250));
        let backend = virtual_backend().unwrap().device(script.kind(panoply::DeviceKind::DiscreteGpu));
        let runtime = Runtime::builder().only([]).backend(Arc::new(backend)).build().unwrap();
        let device = runtime.devices().next().unwrap();
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
