//! Dct: a real Fourier transform with the length of the line, or twice that for the first kind,
//! with kernels before and after it. The fourth kind uses a complex transform.

use panoply_core::op::signal::{Dct, DctKind};
use panoply_core::{DType, Result, Support, Value};
use panoply_kernels::c::{DCT, Kernel};

use super::fft::{self, FftLines};
use crate::arguments::Arguments;
use crate::context::Context;
use crate::library::TransformKind;

const BLOCK_THREADS: usize = 256;

pub(super) fn supports(op: &Dct) -> Support {
    fft::supports(DctPlan::new(op).len)
}

pub(super) fn run(op: &Dct, context: &mut Context) -> Result<Value> {
    let shape = *op.input.shape();
    let output = context.output(DType::F32, shape)?;
    if shape.elements() == 0 {
        return Ok(Value::Tensor(output.into_tensor()));
    }
    let DctPlan { kind, len, entered, left } = DctPlan::new(op);
    let n = shape[shape.rank() - 1];
    let lines = shape.elements() / n;
    let number = match op.kind {
        DctKind::One => 1,
        DctKind::Two => 2,
        DctKind::Three => 3,
        DctKind::Four => 4,
    };
    let kernel = |entry| {
        let is_odd = op.kind == DctKind::Four && !n.is_multiple_of(2);
        Kernel::new(DCT, entry).integer("KIND", number).flag("ODD", is_odd)
    };
    let arguments = |to, from| {
        let arguments = Arguments::new().address(to).address(from).u64(lines as u64).u64(n as u64);
        arguments.u32(u32::from(op.orthonormal))
    };
    let before = context.scratch(lines * entered.bytes())?;
    let launch = context.blocks(lines * entered.count, BLOCK_THREADS, 1);
    let source = context.input(&op.input)?;
    context.launch(&kernel("dct_before"), launch, &mut arguments(before, source))?;
    let behind = context.scratch(lines * left.bytes())?;
    FftLines { kind, wide: false, len, lines, source: before, target: behind }.run(context)?;
    let scale = match (op.orthonormal, op.kind) {
        (false, _) => 1.0,
        (true, DctKind::One) => (0.5 / (n - 1) as f64).sqrt(),
        (true, _) => (0.5 / n as f64).sqrt(),
    };
    let launch = context.blocks(shape.elements(), BLOCK_THREADS, 1);
    context.launch(&kernel("dct_behind"), launch, &mut arguments(output.address, behind).f32(scale as f32))?;
    Ok(Value::Tensor(output.into_tensor()))
}

/// The transform of each line: its kind and length, and the numbers that go in and come out.
struct DctPlan {
    kind: TransformKind,
    len: usize,
    entered: Numbers,
    left: Numbers,
}

struct Numbers {
    count: usize,
    dtype: DType,
}

impl Numbers {
    fn bytes(&self) -> usize {
        self.count * self.dtype.size_bytes()
    }
}

impl DctPlan {
    fn new(op: &Dct) -> DctPlan {
        let n = op.input.shape().last().copied().unwrap_or(0);
        let real = |count| Numbers { count, dtype: DType::F32 };
        let complex = |count| Numbers { count, dtype: DType::Complex64 };
        let (kind, len, entered, left) = match op.kind {
            DctKind::One => {
                let len = n.saturating_sub(1).saturating_mul(2);
                (TransformKind::FromReal, len, real(len), complex(n))
            }
            DctKind::Two => (TransformKind::FromReal, n, real(n), complex(n / 2 + 1)),
            DctKind::Three => (TransformKind::ToReal, n, complex(n / 2 + 1), real(n)),
            DctKind::Four => {
                let len = if n.is_multiple_of(2) { n / 2 } else { n.saturating_mul(2) };
                (TransformKind::Forward, len, complex(len), complex(len))
            }
        };
        DctPlan { kind, len, entered, left }
    }
}
