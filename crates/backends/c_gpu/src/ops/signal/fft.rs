//! Fft and Ifft. Long lines of complex numbers use two passes over tiles, which is faster than
//! cuFFT. Inverse transforms of shorter lines use one pass that also scales, since the library
//! would need another pass for that. All others use the vendor's library if there is one, else our
//! passes. Numbers in f64 use the library or our passes. Lines along another axis than the last are
//! transposed before and after.

use std::rc::Rc;

use panoply_core::op::signal::{Fft, Ifft};
use panoply_core::{DType, Error, Result, Shape, Strides, Support, Tensor, Value};
use panoply_kernels::c::{FFT, FFT_TILES, Kernel};

use crate::arguments::Arguments;
use crate::context::Context;
use crate::driver::{Address, Launch};
use crate::layout::{Layout, View};
use crate::library::TransformKind;

/// The small radices of a pass, in order of preference.
const RADICES: [u32; 9] = [16, 8, 4, 2, 3, 5, 7, 11, 13];
/// The memory formats of a line; see the kernel.
const COMPLEX: u32 = 0;
const REAL: u32 = 1;
const HALF: u32 = 2;
/// Maximum length of a line: kernels number its elements with 32 bits.
const LEN_MAX: usize = i32::MAX as usize;
const THREADS: usize = 256;
/// Lengths of lines transformed by tiles: as matrices whose sides have from 512 to 2048 elements.
const TILED_LOG2: std::ops::RangeInclusive<u32> = 18..=22;
/// Elements per thread of such a pass.
const TILED_PER_THREAD: usize = 16;
/// Maximum lines per block for which the kernel has padding.
const TILE_LINES_MAX: usize = 16;
/// Lines per tile: the first if block memory has room, else the second.
const TILE_LINES: [usize; 2] = [8, 4];
/// Threads per multiprocessor that have enough registers for such a pass.
const TILED_THREADS: usize = 1024;
/// Below this many elements in total, the library's kernels fill the device better.
const TILED_ELEMENTS_MIN: usize = 1 << 21;
/// Lengths of lines that a single block transforms: from 256 to 4096 elements.
const BLOCK_LINE_LOG2: std::ops::RangeInclusive<u32> = 8..=12;
/// Approximate threads of such a block.
const BLOCK_LINE_THREADS: usize = 256;
/// The library processes real numbers two at a time.
const REALS_AT_ONCE: u64 = 2;

/// Whether lines of this length are supported.
pub(crate) fn supports(len: usize) -> Support {
    if len <= LEN_MAX { Support::Yes } else { Support::No(format!("a line has at most {LEN_MAX} elements, not {len}")) }
}

pub(crate) fn run(op: &Fft, context: &mut Context) -> Result<Value> {
    let is_real = op.input.dtype() != DType::Complex64 && !op.pairs;
    let kind = if is_real { TransformKind::FromReal } else { TransformKind::Forward };
    let len = op.input.shape()[op.axis];
    transform(&op.input, op.axis, (kind, len), op.output_shape()?, context)
}

pub(crate) fn run_inverse(op: &Ifft, context: &mut Context) -> Result<Value> {
    let (kind, len) = match op.real_len {
        Some(len) => (TransformKind::ToReal, len),
        None => (TransformKind::Inverse, op.input.shape()[op.axis]),
    };
    transform(&op.input, op.axis, (kind, len), op.output_shape()?, context)
}

fn transform(
    input: &Tensor,
    axis: usize,
    (kind, len): (TransformKind, usize),
    shape: Shape,
    context: &mut Context,
) -> Result<Value> {
    let wide = input.dtype() == DType::F64;
    let dtype = match (wide, kind) {
        (true, _) => DType::F64,
        (false, TransformKind::ToReal) => DType::F32,
        (false, _) => DType::Complex64,
    };
    let output = context.output(dtype, shape)?;
    if shape.elements() == 0 {
        return Ok(Value::Tensor(output.into_tensor()));
    }
    // Complex numbers in f64 are pairs along a separate axis.
    let (pairs, pairs_out) = (wide && kind != TransformKind::FromReal, wide && kind != TransformKind::ToReal);
    let last = shape.rank() - 1 - usize::from(pairs_out);
    let mut order: Vec<usize> = (0..=last + usize::from(pairs)).collect();
    order.swap(axis, last);
    let source = context.input(&input.permute(&order)?)?;
    let target = match axis == last {
        true => output.address,
        false => context.scratch(shape.elements() * dtype.size_bytes())?,
    };
    let count = shape.elements() / shape[axis] / if pairs_out { 2 } else { 1 };
    FftLines { kind, wide, len, lines: count, source, target }.run(context)?;
    if axis != last {
        let mut turned = shape.to_vec();
        turned.swap(axis, last);
        let mut steps = Shape::new(turned)?.contiguous_strides().to_vec();
        steps.swap(axis, last);
        let view = View { address: target, layout: Layout::new(&shape, &Strides::new(steps)?) };
        context.copy_view(output.address, &view, dtype, shape.elements())?;
    }
    Ok(Value::Tensor(output.into_tensor()))
}

/// Contiguous lines on the device. If one side is real, `len` counts the real elements.
pub(super) struct FftLines {
    pub(super) kind: TransformKind,
    /// Whether the numbers are in f64.
    pub(super) wide: bool,
    pub(super) len: usize,
    pub(super) lines: usize,
    pub(super) source: Address,
    pub(super) target: Address,
}

impl FftLines {
    /// Transforms the lines by the best method. The source stays unchanged.
    pub(super) fn run(&self, context: &mut Context) -> Result<()> {
        let large = self.lines * self.len >= TILED_ELEMENTS_MIN;
        let tiled = large && self.by_tiles(context)?;
        let done = tiled || self.by_blocks(context)? || self.by_library(context)? || self.by_tiles(context)?;
        if done { Ok(()) } else { self.by_passes(context) }
    }

    fn half(&self) -> usize {
        self.len / 2 + 1
    }

    /// The scaling factor of the output.
    fn factor(&self) -> f64 {
        match self.kind {
            TransformKind::Forward | TransformKind::FromReal => 1.0,
            TransformKind::Inverse | TransformKind::ToReal => 1.0 / self.len as f64,
        }
    }

    /// Bytes per complex number.
    fn complex_bytes(&self) -> usize {
        if self.wide { 2 * DType::F64.size_bytes() } else { DType::Complex64.size_bytes() }
    }

    /// A kernel for these numbers.
    fn kernel(&self, name: &'static str) -> Kernel {
        Kernel::new(FFT, name).flag("WIDE", self.wide)
    }

    /// Adds the factor as an argument of the numbers' type.
    fn add_factor(&self, arguments: Arguments) -> Arguments {
        if self.wide { arguments.f64(self.factor()) } else { arguments.f32(self.factor() as f32) }
    }

    /// Inverse transforms in one pass, with one block for several lines. Returns false if the lines
    /// are not suitable.
    fn by_blocks(&self, context: &mut Context) -> Result<bool> {
        let fits = self.len.is_power_of_two() && BLOCK_LINE_LOG2.contains(&self.len.ilog2());
        if self.wide || self.kind != TransformKind::Inverse || !fits {
            return Ok(false);
        }
        let threads_of_line = self.len / TILED_PER_THREAD;
        let lines = (BLOCK_LINE_THREADS / threads_of_line).clamp(1, TILE_LINES_MAX);
        let (threads, properties) = (lines * threads_of_line, context.driver.properties());
        let bytes = tile_bytes(self.len, lines);
        if bytes > properties.shared_bytes_max as usize || threads > properties.block_threads_max as usize {
            return Ok(false);
        }
        let kernel = Kernel::new(FFT_TILES, "fft_lines")
            .integer("LEN", self.len)
            .integer("LINES", lines)
            .flag("INVERSE", true)
            .flag("FIRST", false)
            .integer("BLOCKS", TILED_THREADS / threads);
        let arguments = Arguments::new().address(self.target).address(self.source).u64(self.lines as u64);
        let launch = Launch::new(self.lines.div_ceil(lines), threads).shared(bytes);
        context.launch(&kernel, launch, &mut arguments.f32(self.factor() as f32))?;
        Ok(true)
    }

    /// The transform in two passes over tiles. Returns false if the lines are not suitable, or
    /// there is no memory between the passes.
    fn by_tiles(&self, context: &mut Context) -> Result<bool> {
        let complex = matches!(self.kind, TransformKind::Forward | TransformKind::Inverse);
        if self.wide || !complex || !self.len.is_power_of_two() || !TILED_LOG2.contains(&self.len.ilog2()) {
            return Ok(false);
        }
        let rows = 1 << (self.len.ilog2() / 2);
        let cols = self.len / rows;
        if [rows, cols].iter().any(|len| self.tile_lines(*len, context).is_none()) {
            return Ok(false);
        }
        let between = match context.scratch(self.lines * self.len * DType::Complex64.size_bytes()) {
            Err(Error::OutOfMemory { .. }) => return Ok(false),
            scratch => scratch?,
        };
        self.tiled_pass(true, [rows, cols], [between, self.source], context)?;
        self.tiled_pass(false, [rows, cols], [self.target, between], context)?;
        Ok(true)
    }

    fn tiled_pass(
        &self,
        first: bool,
        [rows, cols]: [usize; 2],
        [target, source]: [Address; 2],
        context: &mut Context,
    ) -> Result<()> {
        let (len, across) = if first { (rows, cols) } else { (cols, rows) };
        let Some(lines) = self.tile_lines(len, context) else { return Ok(()) };
        let threads = lines * len / TILED_PER_THREAD;
        let kernel = Kernel::new(FFT_TILES, "fft_tiles")
            .integer("LEN", len)
            .integer("LINES", lines)
            .flag("INVERSE", self.kind == TransformKind::Inverse)
            .flag("FIRST", first)
            .integer("BLOCKS", TILED_THREADS / threads);
        let arguments = Arguments::new().address(target).address(source).size(rows).size(cols);
        let mut arguments = arguments.f32(self.factor() as f32);
        let launch = Launch::new(self.lines * across / lines, threads);
        context.launch(&kernel, launch.shared(tile_bytes(len, lines)), &mut arguments)
    }

    /// Lines per tile, for lines of `len` elements; `None` if no block has room for one.
    fn tile_lines(&self, len: usize, context: &Context) -> Option<usize> {
        let properties = context.driver.properties();
        let fits = |lines: &usize| {
            tile_bytes(len, *lines) <= properties.shared_bytes_max as usize
                && lines * len / TILED_PER_THREAD <= properties.block_threads_max as usize
        };
        TILE_LINES.into_iter().find(fits)
    }

    /// The transform by the library; false if the library does not support it.
    fn by_library(&self, context: &mut Context) -> Result<bool> {
        if self.len == 1 || self.len > LEN_MAX {
            return Ok(false);
        }
        let driver = Rc::clone(&context.driver);
        let Some(library) = driver.transforms() else { return Ok(false) };
        let plan = match self.wide {
            true => library.plan_wide(self.len, self.lines, self.kind),
            false => library.plan(self.len, self.lines, self.kind),
        };
        let Some(plan) = plan else { return Ok(false) };
        let workspace = context.scratch(plan.workspace_bytes())?;
        let source = match self.kind {
            TransformKind::ToReal => self.packed_halves(context)?,
            TransformKind::FromReal if !self.source.is_multiple_of(REALS_AT_ONCE * self.complex_bytes() as u64 / 2) => {
                let bytes = self.lines * self.len * self.complex_bytes() / 2;
                let aligned = context.scratch(bytes)?;
                context.copy(aligned, self.source, bytes)?;
                aligned
            }
            TransformKind::Forward | TransformKind::Inverse | TransformKind::FromReal => self.source,
        };
        if !context.is_rehearsal() {
            plan.run(source, self.target, workspace)?;
        }
        if self.kind == TransformKind::Inverse {
            let count = self.lines * self.len;
            let arguments = Arguments::new().address(self.target).u64(count as u64);
            let launch = context.blocks(count.div_ceil(2), THREADS, 4);
            context.launch(&self.kernel("scale"), launch, &mut self.add_factor(arguments))?;
        }
        Ok(true)
    }

    /// A scaled copy of the input, for the library to overwrite.
    fn packed_halves(&self, context: &mut Context) -> Result<Address> {
        let count = self.lines * self.half();
        let packed = context.scratch(count * self.complex_bytes())?;
        let arguments = Arguments::new().address(packed).address(self.source).u64(self.lines as u64).size(self.len);
        let launch = context.blocks(count, THREADS, 4);
        context.launch(&self.kernel("pack_half"), launch, &mut self.add_factor(arguments))?;
        Ok(packed)
    }

    /// The transform by our kernels, with one pass per factor of the length.
    fn by_passes(&self, context: &mut Context) -> Result<()> {
        if self.len > LEN_MAX {
            let reason = format!("a line has at most {LEN_MAX} elements, not {}", self.len);
            return Err(Error::Unsupported { op: "fft", reason });
        }
        let len = self.len as u32;
        let factors = factors(len);
        let bytes = self.lines * self.len * self.complex_bytes();
        let mut between = [Address::NULL; 2];
        for place in between.iter_mut().take(factors.len() - 1) {
            *place = context.scratch(bytes)?;
        }
        let (mut source, mut stride) = (self.source, 1);
        for (number, radix) in factors.iter().enumerate() {
            let (first, last) = (number == 0, number + 1 == factors.len());
            let target = if last { self.target } else { between[number % 2] };
            let pass = Round { len, length: len / stride, stride, radix: *radix, first, last };
            self.pass(&pass, [target, source], context)?;
            (source, stride) = (target, stride * radix);
        }
        Ok(())
    }

    fn pass(&self, pass: &Round, [target, source]: [Address; 2], context: &mut Context) -> Result<()> {
        let small = pass.radix <= RADICES[0];
        let (from, to, sign) = match self.kind {
            TransformKind::Forward => (COMPLEX, COMPLEX, -1.0_f32),
            TransformKind::Inverse => (COMPLEX, COMPLEX, 1.0),
            TransformKind::FromReal => (REAL, HALF, -1.0),
            TransformKind::ToReal => (HALF, REAL, 1.0),
        };
        let (from, to) = (if pass.first { from } else { COMPLEX }, if pass.last { to } else { COMPLEX });
        let kernel = self
            .kernel(if small { "butterfly" } else { "plain_sum" })
            .integer("RADIX", if small { pass.radix } else { 1 });
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let scale = if pass.last { self.factor() } else { 1.0 };
        let mut words = vec![self.lines as u64, pair(pass.len, pass.length), pair(pass.stride, pass.radix)];
        match self.wide {
            true => words.extend([scale.to_bits(), pair(sign.to_bits(), 0)]),
            false => words.push(pair((scale as f32).to_bits(), sign.to_bits())),
        }
        words.push(pair(from, to));
        let mut arguments = Arguments::new().address(target).address(source).structure(&words);
        let threads_wanted = self.lines * self.len / if small { pass.radix as usize } else { 1 };
        let launch = context.blocks(threads_wanted, THREADS, 1);
        context.launch(&kernel, launch, &mut arguments)
    }
}

/// Block memory of a tile.
fn tile_bytes(len: usize, lines: usize) -> usize {
    lines * (len + len / 16 + 16 / lines) * DType::Complex64.size_bytes()
}

/// One pass over all lines; see the kernel.
struct Round {
    len: u32,
    length: u32,
    stride: u32,
    radix: u32,
    first: bool,
    last: bool,
}

/// Factors of the length: the radices in order, then primes. Never empty.
fn factors(len: u32) -> Vec<u32> {
    let (mut factors, mut rest) = (Vec::new(), len);
    let mut take = |rest: &mut u32, factor: u32| {
        while rest.is_multiple_of(factor) {
            factors.push(factor);
            *rest /= factor;
        }
    };
    for radix in RADICES {
        take(&mut rest, radix);
    }
    let mut prime = 17;
    while rest > 1 && u64::from(prime) * u64::from(prime) <= u64::from(rest) {
        take(&mut rest, prime);
        prime += 2;
    }
    if rest > 1 || factors.is_empty() {
        factors.push(rest);
    }
    factors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_multiply_to_the_length() {
        assert_eq!(factors(1), [1]);
        assert_eq!(factors(1024), [16, 16, 4]);
        assert_eq!(factors(1009), [1009]);
        assert_eq!(factors(2 * 17 * 17 * 19), [2, 17, 17, 19]);
        for len in (1..3000).chain([1 << 30, u32::MAX / 2, 65_537 * 3, 46_337 * 46_337]) {
            assert_eq!(factors(len).iter().product::<u32>(), len);
        }
    }
}
