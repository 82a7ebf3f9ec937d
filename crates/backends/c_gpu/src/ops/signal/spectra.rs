//! Fft2, Stft, Istft and Psd: transforms of lines, with kernels before and after. Planes are
//! transposed between the transforms of their two axes.

use panoply_core::op::signal::{Fft2, Frames, Istft, PowerScale, Psd, Stft};
use panoply_core::{DType, Result, Tensor, Value};
use panoply_kernels::c::{FRAMES, Kernel};

use super::fft::FftLines;
use crate::arguments::Arguments;
use crate::context::Context;
use crate::driver::{Address, Launch};
use crate::layout::{Layout, View};
use crate::library::TransformKind;
use crate::ops::compute::reduce;

const BLOCK_THREADS: usize = 256;
const COMPLEX_BYTES: usize = DType::Complex64.size_bytes();

pub(super) fn fft2(op: &Fft2, context: &mut Context) -> Result<Value> {
    let shape = op.output_shape()?;
    let output = context.output(DType::Complex64, shape)?;
    if shape.elements() > 0 {
        let (last, source) = (shape.rank() - 1, context.input(&op.input)?);
        let (rows, bins) = (shape[last - 1], shape[last]);
        let planes = Planes { count: shape.elements() / rows / bins, rows, columns: op.input.shape()[last], bins };
        let kind = match (op.inverse, op.input.dtype()) {
            (true, _) => TransformKind::Inverse,
            (false, DType::F32) => TransformKind::FromReal,
            (false, _) => TransformKind::Forward,
        };
        let between = context.scratch(shape.elements() * COMPLEX_BYTES)?;
        planes.transform_rows(kind, between, source, context)?;
        let turned = planes.transform_columns(op.inverse, between, context)?;
        planes.turn_back(output.address, turned, context)?;
    }
    Ok(Value::Tensor(output.into_tensor()))
}

/// Planes of `rows` × `columns` elements, whose spectra have `bins` per row.
pub(super) struct Planes {
    pub(super) count: usize,
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) bins: usize,
}

impl Planes {
    fn elements(&self) -> usize {
        self.count * self.rows * self.bins
    }

    pub(super) fn transform_rows(
        &self,
        kind: TransformKind,
        target: Address,
        source: Address,
        context: &mut Context,
    ) -> Result<()> {
        FftLines { kind, wide: false, len: self.columns, lines: self.count * self.rows, source, target }.run(context)
    }

    /// Transposes the spectra of rows, transforms the columns, and returns the address of the
    /// result. The original spectra are overwritten.
    pub(super) fn transform_columns(&self, inverse: bool, spectra: Address, context: &mut Context) -> Result<Address> {
        let turned = context.scratch(self.elements() * COMPLEX_BYTES)?;
        self.turn(turned, spectra, [self.bins, self.rows], context)?;
        self.transform_turned(inverse, spectra, turned, context)?;
        Ok(spectra)
    }

    /// Transforms columns that were transposed to rows.
    pub(super) fn transform_turned(
        &self,
        inverse: bool,
        target: Address,
        source: Address,
        context: &mut Context,
    ) -> Result<()> {
        let kind = if inverse { TransformKind::Inverse } else { TransformKind::Forward };
        FftLines { kind, wide: false, len: self.rows, lines: self.count * self.bins, source, target }.run(context)
    }

    /// Transposes columns back to rows.
    pub(super) fn turn_back(&self, target: Address, turned: Address, context: &mut Context) -> Result<()> {
        self.turn(target, turned, [self.rows, self.bins], context)
    }

    /// Writes planes of `rows` × `columns` from a transposed source.
    fn turn(&self, target: Address, source: Address, [rows, columns]: [usize; 2], context: &mut Context) -> Result<()> {
        let strides = [(rows * columns) as isize, 1, rows as isize];
        let view = View { address: source, layout: Layout::new(&[self.count, rows, columns], &strides) };
        context.copy_view(target, &view, DType::Complex64, self.elements())
    }
}

pub(super) fn stft(op: &Stft, context: &mut Context) -> Result<Value> {
    let shape = op.output_shape()?;
    let output = context.output(DType::Complex64, shape)?;
    if shape.elements() > 0 {
        let framed = FramedLines::new(&op.frames, &op.input);
        let samples = framed.samples(context.input(&op.input)?, false, context)?;
        framed.spectra(output.address, samples, context)?;
    }
    Ok(Value::Tensor(output.into_tensor()))
}

pub(super) fn istft(op: &Istft, context: &mut Context) -> Result<Value> {
    let shape = op.output_shape()?;
    let output = context.output(op.output_dtype(), shape)?;
    if shape.elements() > 0 {
        let is_complex = !op.real;
        let framed = FramedLines { frames: &op.frames, is_complex, lines: shape.elements() / op.len, len: op.len };
        let samples = context.scratch(framed.samples_bytes())?;
        if framed.count() > 0 {
            let kind = if is_complex { TransformKind::Inverse } else { TransformKind::ToReal };
            let source = context.input(&op.input)?;
            framed.transform(kind, samples, source, context)?;
        }
        let window = context.input(&op.frames.window)?;
        let arguments = Arguments::new().address(output.address).address(samples).address(window);
        let launch = context.blocks(shape.elements(), BLOCK_THREADS, 1);
        context.launch(&framed.kernel("frame_overlaps"), launch, &mut framed.add_to(arguments))?;
    }
    Ok(Value::Tensor(output.into_tensor()))
}

pub(super) fn psd(op: &Psd, context: &mut Context) -> Result<Value> {
    let shape = op.output_shape()?;
    let output = context.output(DType::F32, shape)?;
    if shape.elements() == 0 {
        return Ok(Value::Tensor(output.into_tensor()));
    }
    let framed = FramedLines::new(&op.frames, &op.input);
    let (bins, spectra_bins) = (framed.bins(), framed.count() * framed.bins());
    let samples = framed.samples(context.input(&op.input)?, op.detrend, context)?;
    let spectra = context.scratch(spectra_bins * COMPLEX_BYTES)?;
    framed.spectra(spectra, samples, context)?;
    let powers = context.scratch(spectra_bins * DType::F32.size_bytes())?;
    let mut arguments = Arguments::new().address(powers).address(spectra).u64(spectra_bins as u64);
    context.launch(&kernel("frame_powers", false), context.blocks(spectra_bins, BLOCK_THREADS, 2), &mut arguments)?;
    reduce::means(output.address, powers, [framed.lines, framed.count() / framed.lines, bins], context)?;
    let divisor = context.scratch(DType::F32.size_bytes())?;
    let window = context.input(&op.frames.window)?;
    let of_squares = op.scale == PowerScale::Density;
    let arguments = Arguments::new().address(divisor).address(window).size(op.frames.window.elements());
    let launch = Launch::new(1, BLOCK_THREADS);
    context.launch(&kernel("window_power", false), launch, &mut arguments.u32(u32::from(of_squares)))?;
    let mirrored = if framed.is_complex { 0 } else { op.frames.transform };
    let arguments = Arguments::new().address(output.address).address(divisor).u64(shape.elements() as u64);
    let launch = context.blocks(shape.elements(), BLOCK_THREADS, 1);
    context.launch(&kernel("weigh_powers", false), launch, &mut arguments.size(bins).size(mirrored))?;
    Ok(Value::Tensor(output.into_tensor()))
}

/// Lines of `len` samples that are split into frames.
struct FramedLines<'a> {
    frames: &'a Frames,
    is_complex: bool,
    lines: usize,
    len: usize,
}

impl<'a> FramedLines<'a> {
    /// The frames of a non-empty signal.
    fn new(frames: &'a Frames, input: &Tensor) -> FramedLines<'a> {
        let len = input.shape().last().copied().unwrap_or(0);
        FramedLines { frames, is_complex: input.dtype() == DType::Complex64, lines: input.elements() / len.max(1), len }
    }

    /// Total number of frames of all lines.
    fn count(&self) -> usize {
        self.lines * self.frames.count(self.len)
    }

    fn bins(&self) -> usize {
        self.frames.bins(!self.is_complex)
    }

    fn samples_bytes(&self) -> usize {
        let dtype = if self.is_complex { DType::Complex64 } else { DType::F32 };
        self.count() * self.frames.transform * dtype.size_bytes()
    }

    fn kernel(&self, entry: &'static str) -> Kernel {
        kernel(entry, self.is_complex)
    }

    /// Adds the kernels' `framing` structure.
    fn add_to(&self, arguments: Arguments) -> Arguments {
        let Frames { window, hop, transform, .. } = self.frames;
        let pair = |low: usize, high: usize| low as u64 | (high as u64) << 32;
        let [lines, len, frames] = [self.lines, self.len, self.frames.count(self.len)].map(|count| count as u64);
        let places = [pair(window.elements(), *hop), pair(*transform, self.frames.silence())];
        arguments.structure(&[lines, len, frames, places[0], places[1]])
    }

    /// The weighted samples of all frames; with `detrend`, without the frames' means.
    fn samples(&self, source: Address, detrend: bool, context: &mut Context) -> Result<Address> {
        let means = match detrend {
            true => self.means(source, context)?,
            false => Address::NULL,
        };
        let (samples, window) = (context.scratch(self.samples_bytes())?, context.input(&self.frames.window)?);
        let arguments = Arguments::new().address(samples).address(source).address(window).address(means);
        let launch = context.blocks(self.count() * self.frames.transform, BLOCK_THREADS, 2);
        let mut arguments = self.add_to(arguments).u32(u32::from(detrend));
        context.launch(&self.kernel("frame_samples"), launch, &mut arguments)?;
        Ok(samples)
    }

    fn means(&self, source: Address, context: &mut Context) -> Result<Address> {
        let means = context.scratch(self.count() * COMPLEX_BYTES)?;
        let launch = context.blocks(self.count() * context.warp_lanes(), BLOCK_THREADS, 1);
        let mut arguments = self.add_to(Arguments::new().address(means).address(source));
        context.launch(&self.kernel("frame_means"), launch, &mut arguments)?;
        Ok(means)
    }

    fn spectra(&self, target: Address, samples: Address, context: &mut Context) -> Result<()> {
        let kind = if self.is_complex { TransformKind::Forward } else { TransformKind::FromReal };
        self.transform(kind, target, samples, context)
    }

    fn transform(&self, kind: TransformKind, target: Address, source: Address, context: &mut Context) -> Result<()> {
        let len = self.frames.transform;
        FftLines { kind, wide: false, len, lines: self.count(), source, target }.run(context)
    }
}

fn kernel(entry: &'static str, is_complex: bool) -> Kernel {
    Kernel::new(FRAMES, entry).flag("COMPLEX", is_complex)
}
