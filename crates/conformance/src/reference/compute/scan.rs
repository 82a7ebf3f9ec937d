//! Scan: one running value, in f64 or as an exact integer that is wrapped at every step.

use panoply_core::op::compute::{Scan, ScanKind};
use panoply_core::{DType, Result, Value};

use crate::reference::lines::{map_lines, wrap};

pub(super) fn run(op: &Scan) -> Result<Value> {
    map_lines(&op.input, op.axis, |line| scan(op, line)).map(Value::Tensor)
}

fn scan(op: &Scan, line: &[f64]) -> Vec<f64> {
    let mut running = start(op);
    let mut out = vec![0.0; line.len()];
    for step in 0..line.len() {
        let place = if op.reversed { line.len() - 1 - step } else { step };
        let before = running;
        running = join(op, running, line[place]);
        out[place] = if op.excludes_own { before } else { running };
    }
    out
}

fn join(op: &Scan, running: f64, value: f64) -> f64 {
    let dtype = op.input.dtype();
    match op.kind {
        ScanKind::Sum if dtype.is_integer() => wrap(dtype, running as i128 + value as i128) as f64,
        ScanKind::Product if dtype.is_integer() => wrap(dtype, running as i128 * value as i128) as f64,
        ScanKind::Sum => running + value,
        ScanKind::Product => running * value,
        ScanKind::Max | ScanKind::Min if running.is_nan() || value.is_nan() => f64::NAN,
        ScanKind::Max => running.max(value),
        ScanKind::Min => running.min(value),
    }
}

fn start(op: &Scan) -> f64 {
    let (lowest, highest) = match op.input.dtype() {
        DType::I32 => (f64::from(i32::MIN), f64::from(i32::MAX)),
        DType::U32 => (0.0, f64::from(u32::MAX)),
        DType::I8 => (f64::from(i8::MIN), f64::from(i8::MAX)),
        DType::U8 => (0.0, f64::from(u8::MAX)),
        _ => (f64::NEG_INFINITY, f64::INFINITY),
    };
    match op.kind {
        ScanKind::Sum => 0.0,
        ScanKind::Product => 1.0,
        ScanKind::Max => lowest,
        ScanKind::Min => highest,
    }
}
