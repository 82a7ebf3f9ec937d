//! `panoply bench --calibrate`: runs ops of every class on every device, so that the router learns how long they take, and
//! keeps what it has learned in the user's cache folder.

use std::time::{Duration, Instant};

use panoply::prelude::*;
use panoply::{DType, DeviceInfo, learned};
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
/// Bytes of the transfers by which links are measured.
const TRANSFER_BYTES: [usize; 4] = [4 << 10, 64 << 10, 1 << 20, 32 << 20];
const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// What was learned about one device.
#[derive(Serialize)]
struct Row {
    device: String,
    ops: usize,
    classes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    upload_gb_per_s: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    upload_latency_us: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    download_gb_per_s: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    download_latency_us: Option<f32>,
    seconds: f64,
}

/// Measures every device and stores the result.
pub fn run(options: &BenchOptions, runtime: &Runtime, screen: &mut Screen) -> Result<(), Failure> {
    let devices: Vec<DeviceInfo> = runtime.devices().cloned().collect();
    for device in &devices {
        let start = Instant::now();
        measure_links(runtime, device);
        for kind in OpKind::ALL {
            for dtype in DTYPES.into_iter().filter(|dtype| kind == OpKind::MatMul || *dtype == DType::F32) {
                measure_kind(runtime, device, kind, dtype);
            }
        }
        let row = row(runtime, device, start.elapsed());
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

/// Transfers of several sizes, there and back. A device that computes in the host's memory has no link.
fn measure_links(runtime: &Runtime, device: &DeviceInfo) {
    if device.shares_host_memory {
        return;
    }
    for bytes in TRANSFER_BYTES {
        let Ok(source) = Tensor::zeros(DType::U8, [bytes]) else { continue };
        for _ in 0..REPEATS {
            let there =
                runtime.run_with(Transfer::to_device(&source, device.id), RunOptions::require(device.id)).wait();
            if let Ok(there) = there {
                // A failure is the device's; what it taught the router is that it fails.
                let _ = runtime.run_with(Transfer::to_host(&there), RunOptions::require(device.id)).wait();
            }
        }
    }
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

fn row(runtime: &Runtime, device: &DeviceInfo, took: Duration) -> Row {
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
        upload_gb_per_s: up.map(|link| link.bytes_per_ns),
        upload_latency_us: up.map(|link| link.latency_ns / 1e3),
        download_gb_per_s: down.map(|link| link.bytes_per_ns),
        download_latency_us: down.map(|link| link.latency_ns / 1e3),
        seconds: took.as_secs_f64(),
    }
}

fn line(row: &Row) -> String {
    let link = |rate: Option<f32>, latency: Option<f32>| match (rate, latency) {
        (Some(rate), Some(latency)) => format!("{rate:.1} GB/s after {latency:.1} µs"),
        _ => "none".to_owned(),
    };
    format!(
        "{:<14} {} ops in {} classes, up {}, down {}, {:.1} s",
        row.device,
        row.ops,
        row.classes,
        link(row.upload_gb_per_s, row.upload_latency_us),
        link(row.download_gb_per_s, row.download_latency_us),
        row.seconds
    )
}
