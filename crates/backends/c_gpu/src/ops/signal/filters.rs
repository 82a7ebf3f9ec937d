//! Fir and Convolve: tiles of outputs, with samples and taps in block memory. Long filters use
//! spectra of frames that fit block memory. If the rate changes, outputs are computed individually.

use panoply_core::op::signal::{Convolve, Fir};
use panoply_core::{Complex64, DType, Result, Tensor, Value};
use panoply_kernels::c::{FIR, FIR_SPECTRA, Kernel, Unit};

use crate::arguments::Arguments;
use crate::context::Context;
use crate::driver::{Address, Launch};

const BLOCK_THREADS: usize = 256;
/// Outputs per block.
const TILE: usize = 2048;
/// Approximate concurrent blocks per multiprocessor, and the factor for the size of the grid.
const BLOCKS_EACH: usize = 16;

/// Minimum taps and outputs for which spectra cost less.
const SPECTRA_TAPS_MIN: usize = 64;
const SPECTRA_OUTPUTS_MIN: usize = 2048;
/// Samples per frame, and maximum taps per step: the rest of a frame is outputs.
const SHORT_FRAME: Frame = Frame { len: 4096, taps_max: 2049 };
const LONG_FRAME: Frame = Frame { len: 16_384, taps_max: 8193 };
/// With more taps than this, too few outputs are left in a short frame.
const SHORT_FRAME_TAPS_MAX: usize = 1025;
/// Block memory that the kernel declares itself.
const OWN_SHARED_BYTES: usize = 64;
/// Elements per thread.
const FRAME_PER_THREAD: usize = 16;

pub(super) fn fir(op: &Fir, context: &mut Context) -> Result<Value> {
    let shape = op.output_shape()?;
    let (len, out_len) = (last(&op.input), shape.last().copied().unwrap_or(0));
    if (op.up, op.down) == (1, 1) {
        let lines = FilterLines { input: &op.input, taps: &op.taps, len, out_len, first: 0, is_turned: false };
        return lines.run(shape, context);
    }
    let output = context.output(op.input.dtype(), shape)?;
    if shape.elements() > 0 {
        let mut arguments = Arguments::new()
            .address(output.address)
            .address(context.input(&op.input)?)
            .address(context.input(&op.taps)?)
            .u64((shape.elements() / out_len) as u64)
            .u64(len as u64)
            .u64(out_len as u64)
            .size(op.taps.elements())
            .size(op.up)
            .size(op.down);
        let launch = context.blocks(shape.elements(), BLOCK_THREADS, 1);
        context.launch(&kernel(FIR, "fir_rates", &op.input, &op.taps), launch, &mut arguments)?;
    }
    Ok(Value::Tensor(output.into_tensor()))
}

pub(super) fn convolve(op: &Convolve, context: &mut Context) -> Result<Value> {
    let (shape, len) = (op.output_shape()?, last(&op.input));
    let (first, out_len) = op.part_of_full();
    let is_turned = op.correlation;
    FilterLines { input: &op.input, taps: &op.kernel, len, out_len, first, is_turned }.run(shape, context)
}

fn last(input: &Tensor) -> usize {
    input.shape().last().copied().unwrap_or(0)
}

/// Lines that are filtered without a change of rate.
struct FilterLines<'a> {
    input: &'a Tensor,
    taps: &'a Tensor,
    len: usize,
    out_len: usize,
    /// Index of the first output in the full convolution.
    first: usize,
    /// Whether the taps are reversed and conjugated.
    is_turned: bool,
}

impl FilterLines<'_> {
    fn run(&self, shape: panoply_core::Shape, context: &mut Context) -> Result<Value> {
        let output = context.output(self.input.dtype(), shape)?;
        if self.taps.elements() >= SPECTRA_TAPS_MIN
            && self.out_len >= SPECTRA_OUTPUTS_MIN
            && let Some(frame) = Frame::of(self.taps.elements(), context)
        {
            self.by_spectra(&frame, shape.elements() / self.out_len, output.address, context)?;
        } else if shape.elements() > 0 {
            let lines = shape.elements() / self.out_len;
            let mut arguments = Arguments::new()
                .address(output.address)
                .address(context.input(self.input)?)
                .address(context.input(self.taps)?)
                .u64(lines as u64)
                .u64(self.len as u64)
                .u64(self.out_len as u64)
                .size(self.taps.elements())
                .u64(self.first as u64)
                .u32(u32::from(self.is_turned));
            let tiles = lines * self.out_len.div_ceil(TILE);
            let blocks = tiles.min(context.multiprocessors() * BLOCKS_EACH).max(1);
            let launch = Launch::new(blocks, BLOCK_THREADS);
            context.launch(&kernel(FIR, "fir_tiles", self.input, self.taps), launch, &mut arguments)?;
        }
        Ok(Value::Tensor(output.into_tensor()))
    }

    fn by_spectra(&self, frame: &Frame, lines: usize, target: Address, context: &mut Context) -> Result<()> {
        let taps = self.taps.elements();
        let part = taps.min(frame.taps_max);
        let parts = taps.div_ceil(part);
        let of_frame = |entry| kernel(FIR_SPECTRA, entry, self.input, self.taps).integer("LEN", frame.len as i64);
        let (source, taps_address) = (context.input(self.input)?, context.input(self.taps)?);
        let roots = context.scratch(2 * frame.roots() * size_of::<Complex64>())?;
        let launch = Launch::new(frame.roots().div_ceil(BLOCK_THREADS), BLOCK_THREADS);
        context.launch(&of_frame("fir_roots"), launch, &mut Arguments::new().address(roots))?;
        let spectra = context.scratch(parts * frame.len * size_of::<Complex64>())?;
        let mut arguments = Arguments::new()
            .address(spectra)
            .address(taps_address)
            .address(roots)
            .size(taps)
            .size(part)
            .u32(u32::from(self.is_turned));
        context.launch(&of_frame("fir_spectrum"), frame.launch(parts), &mut arguments)?;
        // Two frames of real samples are packed into one complex frame.
        let together = if self.input.dtype() == DType::Complex64 { 1 } else { 2 };
        let units = self.out_len.div_ceil(frame.len - part + 1).div_ceil(together);
        let marks = context.scratch(lines * units * size_of::<u32>())?;
        for number in 0..parts {
            let mut arguments = Arguments::new()
                .address(target)
                .address(source)
                .address(spectra + number * frame.len * size_of::<Complex64>())
                .address(roots)
                .address(marks)
                .u64(self.len as u64)
                .u64(self.out_len as u64)
                .size(units)
                .size(part)
                .i64(self.first as i64 - (number * part) as i64)
                .u32(u32::from(number == 0));
            context.launch(&of_frame("fir_frames"), frame.launch(lines * units), &mut arguments)?;
        }
        let mut arguments = Arguments::new()
            .address(target)
            .address(source)
            .address(taps_address)
            .address(marks)
            .u64((lines * units) as u64)
            .u64(units as u64)
            .u64((together * (frame.len - part + 1)) as u64)
            .u64(self.len as u64)
            .u64(self.out_len as u64)
            .i64(self.first as i64)
            .size(taps)
            .u32(u32::from(self.is_turned));
        let blocks = (lines * units).min(context.multiprocessors() * BLOCKS_EACH).max(1);
        context.launch(&of_frame("fir_repair"), Launch::new(blocks, BLOCK_THREADS), &mut arguments)
    }
}

/// A piece of a line that one block transforms.
struct Frame {
    len: usize,
    taps_max: usize,
}

impl Frame {
    /// The frame for `taps` taps; `None` if no block has room for it.
    fn of(taps: usize, context: &Context) -> Option<Frame> {
        let properties = context.driver.properties();
        let fits = |frame: &Frame| {
            frame.block_bytes() + OWN_SHARED_BYTES <= properties.shared_bytes_max as usize
                && frame.len / FRAME_PER_THREAD <= properties.block_threads_max as usize
        };
        let long = (taps > SHORT_FRAME_TAPS_MAX).then_some(LONG_FRAME).filter(fits);
        long.or(Some(SHORT_FRAME).filter(fits))
    }

    /// Number of roots of unity in the table of one direction: six for each thread's position in
    /// each radix-16 pass.
    fn roots(&self) -> usize {
        6 * (self.len / 16 + self.len / 256 + self.len / 4096)
    }

    /// Bytes of block memory, with one element of padding after every sixteen.
    fn block_bytes(&self) -> usize {
        (self.len + self.len / 16) * size_of::<Complex64>()
    }

    fn launch(&self, blocks: usize) -> Launch {
        Launch::new(blocks, self.len / FRAME_PER_THREAD).shared(self.block_bytes())
    }
}

fn kernel(unit: Unit, entry: &'static str, input: &Tensor, taps: &Tensor) -> Kernel {
    let is_complex = |tensor: &Tensor| tensor.dtype() == DType::Complex64;
    Kernel::new(unit, entry).flag("COMPLEX", is_complex(input)).flag("COMPLEX_TAPS", is_complex(taps))
}
