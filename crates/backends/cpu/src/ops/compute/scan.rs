//! Scan: maps the tensor's axis to a kernel over contiguous slices.

use panoply_core::op::compute::{Scan, ScanKind};
use panoply_core::{DType, Error, Result, Value, bf16, f16};

use crate::context::Context;
use crate::extents::Extents;
use crate::ops::compute::search::contiguous;
use crate::scan::{Direction, Scannable};

pub(crate) fn run(op: &Scan, context: &mut Context) -> Result<Value> {
    match op.input.dtype() {
        DType::F32 => scan::<f32>(op, context),
        DType::F16 => scan::<f16>(op, context),
        DType::BF16 => scan::<bf16>(op, context),
        DType::F64 => scan::<f64>(op, context),
        DType::I32 => scan::<i32>(op, context),
        DType::U32 => scan::<u32>(op, context),
        DType::I8 => scan::<i8>(op, context),
        DType::U8 => scan::<u8>(op, context),
        got @ DType::Complex64 => {
            Err(Error::DTypeUnsupported { what: "scan", expected: "f32, f16, bf16, f64, i32, u32, i8 or u8", got })
        }
    }
}

fn scan<T: Scannable>(op: &Scan, context: &mut Context) -> Result<Value> {
    let input = contiguous(&op.input, context)?;
    let extents = Extents::around(op.input.shape(), op.axis);
    let direction = Direction { reverse: op.reversed, exclusive: op.excludes_own };
    let kernel = match op.kind {
        ScanKind::Sum => T::scan_sum,
        ScanKind::Product => T::scan_product,
        ScanKind::Max => T::scan_max,
        ScanKind::Min => T::scan_min,
    };
    let mut output = context.output::<T>(op.output_shape())?;
    kernel(context.simd, &context.team, input.as_slice()?, extents, direction, &mut output);
    output.into_tensor().map(Value::Tensor)
}
