//! Kernel: runs the closure of a user-defined program, on the engine's thread; a program in pieces
//! runs on all threads.

use std::sync::Mutex;

use panoply_core::op::compute::Kernel;
use panoply_core::{Result, Tensor, Value};

use crate::context::{Context, OutputBytes};
use crate::ops::compute::transpose::copy_view;
use crate::parts::DisjointSlice;

/// Bytes that one thread zeroes before another one is asked to help.
const ZEROED_BYTES: usize = 256 << 10;
/// The same for bytes that a closure writes piece by piece. This many bytes are zeroed just before
/// they are written, while they are in the caches.
const PIECES_BYTES: usize = 64 << 10;

pub(crate) fn run(op: &Kernel, context: &mut Context) -> Result<Value> {
    let readable = |(place, tensor): (usize, &Tensor)| match op.reads_in_place(place) {
        true => Ok(tensor.clone()),
        false => copy_view(tensor, context),
    };
    let inputs = op.inputs.iter().enumerate().map(readable).collect::<Result<Vec<_>>>()?;
    if op.program.pieces().is_some() {
        return run_pieces(op, &inputs, context);
    }
    let mut outputs: Vec<OutputBytes> = Vec::with_capacity(op.outputs.len());
    for (dtype, shape) in op.output_types() {
        let bytes = shape.elements() * dtype.size_bytes();
        let mut output = context.output_bytes(dtype, shape)?;
        // Memory of the pool contains data of earlier ops.
        if !op.program.writes_all() {
            let parts = DisjointSlice::new(output.bytes_mut());
            // SAFETY: the ranges of one job do not overlap.
            context.team.run_ranges(bytes, ZEROED_BYTES, &|range| unsafe { parts.range(range) }.fill(0));
        }
        outputs.push(output);
    }
    op.call(&inputs, outputs.iter_mut().map(OutputBytes::bytes_mut).collect())?;
    let tensors = outputs.into_iter().map(OutputBytes::into_tensor).collect::<Result<Vec<_>>>()?;
    Ok(Kernel::value(tensors))
}

/// Runs the pieces in parallel.
fn run_pieces(op: &Kernel, inputs: &[Tensor], context: &mut Context) -> Result<Value> {
    let Some((dtype, shape)) = op.output_types().next() else { return Ok(Kernel::value([])) };
    let count = op.program.pieces().unwrap_or(1);
    let mut output = context.output_bytes(dtype, shape)?;
    let piece_bytes = output.bytes_mut().len() / count;
    let (parts, failed) = (DisjointSlice::new(output.bytes_mut()), Mutex::new(None));
    if piece_bytes > 0 {
        let at_once = PIECES_BYTES.div_ceil(piece_bytes);
        context.team.run_ranges(count, at_once, &|range| {
            for start in range.clone().step_by(at_once) {
                let pieces = start..(start + at_once).min(range.end);
                // SAFETY: the ranges of one job do not overlap, and the output has all pieces.
                let part = unsafe { parts.range(pieces.start * piece_bytes..pieces.end * piece_bytes) };
                if !op.program.writes_all() {
                    part.fill(0);
                }
                if let Err(error) = op.call_pieces(inputs, pieces, part) {
                    *failed.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(error);
                }
            }
        });
    }
    match failed.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()) {
        Some(error) => Err(error),
        None => Ok(Kernel::value([output.into_tensor()?])),
    }
}
