//! Modulate and Demodulate: one thread per symbol. On square constellations each axis is decided
//! separately.

use panoply_core::op::signal::{Constellation, Decision, Demodulate, Modulate};
use panoply_core::{DType, Error, Result, Value};
use panoply_kernels::c::{Kernel, MODEM};

use crate::arguments::Arguments;
use crate::context::Context;
use crate::driver::Address;
use crate::ops::messages::place_plain;

const BLOCK_THREADS: usize = 256;
/// Symbols per thread in the largest useful grid.
const SYMBOLS_EACH: usize = 2;
/// Bits of a complaint that hold the symbol's position.
const PLACE_BITS: u32 = 48;

pub(super) fn modulate(op: &Modulate, context: &mut Context) -> Result<Value> {
    let elements = op.input.elements();
    let output = context.output(DType::Complex64, *op.input.shape())?;
    if elements > 0 {
        let points = place_points(&op.constellation, context)?;
        let count = 1_usize << op.constellation.bits();
        let source = context.input(&op.input)?;
        let complaint = context.complaint(no_point, count as u64)?;
        let mut arguments = Arguments::new()
            .address(output.address)
            .address(source)
            .address(points)
            .size(count)
            .u64(elements as u64)
            .address(complaint);
        let launch = context.blocks(elements, BLOCK_THREADS, SYMBOLS_EACH);
        context.launch(&Kernel::new(MODEM, "modulate"), launch, &mut arguments)?;
    }
    Ok(Value::Tensor(output.into_tensor()))
}

pub(super) fn demodulate(op: &Demodulate, context: &mut Context) -> Result<Value> {
    let (dtype, shape) = op.output_type()?;
    let output = context.output(dtype, shape)?;
    let elements = op.input.elements();
    if elements > 0 {
        let points = place_points(&op.constellation, context)?;
        let source = context.input(&op.input)?;
        let (is_soft, scale) = match op.decision {
            Decision::Hard => (false, 1.0),
            Decision::Soft { noise } => (true, 1.0 / noise),
        };
        let mut arguments =
            Arguments::new().address(output.address).address(source).address(points).u64(elements as u64).f32(scale);
        let kernel = Kernel::new(MODEM, "demodulate")
            .integer("BITS", op.constellation.bits() as i64)
            .flag("SQUARE", is_square(&op.constellation))
            .flag("SOFT", is_soft);
        let launch = context.blocks(elements, BLOCK_THREADS, SYMBOLS_EACH);
        context.launch(&kernel, launch, &mut arguments)?;
    }
    Ok(Value::Tensor(output.into_tensor()))
}

fn is_square(constellation: &Constellation) -> bool {
    use Constellation::{Qam16, Qam64, Qam256, Qpsk};
    matches!(constellation, Qpsk | Qam16 | Qam64 | Qam256)
}

fn place_points(constellation: &Constellation, context: &mut Context) -> Result<Address> {
    let points = constellation.points();
    place_plain(bytemuck::cast_slice(&points), context)
}

fn no_point(word: u64, count: u64) -> Error {
    let (symbol, place) = (word << 1 >> (PLACE_BITS + 1), word & ((1 << PLACE_BITS) - 1));
    Error::invalid("modulate: symbols", format!("below {count}"), format!("{symbol} at {place}"))
}
