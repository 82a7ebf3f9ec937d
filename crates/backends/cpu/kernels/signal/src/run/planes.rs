//! The ops `Convolve2` and `FindPeaks`.

use std::sync::Mutex;

use num_complex::Complex32;
use panoply_core::op::signal::{Convolve2, Fft2, FindPeaks};
use panoply_core::{DType, HostBufferMut, Result, Tensor, Threads, Value};

use super::filtering::{AnyTaps, Linear, each_line, step_of};
use super::output::{Output, TakeMemory, numbers};
use super::space::Space;
use super::spectra;
use crate::peaks::{Peak, peaks};
use crate::threads::{for_each_piece, share};

/// The least number of elements in one turn of a thread.
const TURN_ELEMENTS_MIN: usize = 8192;
/// Number of products that cost as much as one transform step for one element.
const PRODUCTS_OF_STEP: usize = 24;

pub(super) fn convolve2(
    op: &Convolve2,
    space: &mut Space,
    threads: &dyn Threads,
    take: TakeMemory<'_>,
) -> Result<Value> {
    let (input, shape) = (op.input.contiguous()?, op.output_shape()?);
    let kernel = turned(&op.kernel.contiguous()?, op.correlation)?;
    let mut output = Output::take(input.dtype(), shape, take)?;
    if shape.elements() == 0 {
        return output.value();
    }
    match by_spectra(op) {
        true => spectral(op, &input, &kernel, space, threads, &mut output)?,
        false => by_rows(op, &input, &kernel, space, threads, &mut output)?,
    }
    output.value()
}

/// The kernel; for a correlation it is reversed along both axes and conjugated.
fn turned(kernel: &Tensor, is_correlation: bool) -> Result<Tensor> {
    if !is_correlation {
        return Ok(kernel.clone());
    }
    match kernel.dtype() {
        DType::Complex64 => {
            let values = kernel.as_slice::<Complex32>()?.iter().rev().map(|value| value.conj());
            Tensor::from_vec(values.collect::<Vec<Complex32>>(), kernel.shape())
        }
        _ => Tensor::from_vec(kernel.as_slice::<f32>()?.iter().rev().copied().collect::<Vec<f32>>(), kernel.shape()),
    }
}

/// Rows and columns of the transform for the full convolution: large enough, and with small prime
/// factors.
fn transform_dims(op: &Convolve2) -> [usize; 2] {
    let (dims, kernel) = (op.input.shape(), op.kernel.shape());
    [2, 1].map(|behind| smooth_len(dims[dims.rank() - behind] + kernel[kernel.rank() - behind] - 1))
}

/// The smallest length of at least `len` with no prime factors but 2, 3 and 5.
fn smooth_len(len: usize) -> usize {
    let is_smooth = |len: &usize| {
        let without = |mut rest: usize, factor: usize| {
            while rest.is_multiple_of(factor) {
                rest /= factor;
            }
            rest
        };
        [2, 3, 5].into_iter().fold(*len, without) == 1
    };
    (len.max(1)..).find(is_smooth).unwrap_or(len)
}

/// Whether transforms of whole planes cost less than direct sums.
fn by_spectra(op: &Convolve2) -> bool {
    let [(_, rows), (_, columns)] = op.parts_of_full();
    let [height, width] = transform_dims(op);
    let steps = ((height * width).max(2).ilog2() as usize).saturating_mul(2 * height * width);
    rows.saturating_mul(columns).saturating_mul(op.kernel.elements()) > steps.saturating_mul(PRODUCTS_OF_STEP)
}

/// Convolves with direct sums. Each row of the kernel is a filter, and a row of the output is the
/// sum of the filtered rows of the input.
fn by_rows(
    op: &Convolve2,
    input: &Tensor,
    kernel: &Tensor,
    space: &mut Space,
    threads: &dyn Threads,
    output: &mut Output,
) -> Result<()> {
    let (step, dims) = (step_of(input), input.shape());
    let (height, width) = (dims[dims.rank() - 2], dims[dims.rank() - 1]);
    let [(first_row, rows), (first, columns)] = op.parts_of_full();
    let mut filters = Vec::new();
    for row in 0..kernel.shape()[0] {
        let row = kernel.slice(0, row, row + 1)?.reshape([kernel.shape()[1]])?;
        filters.push(Linear::by_sums(space.level, &AnyTaps::of(&row)?, step));
    }
    let samples = numbers(input)?;
    each_line(threads, output.numbers(), columns * step, &|threads, index, out| {
        let (plane, row) = (index / rows, first_row + index % rows);
        out.fill(0.0);
        let mut one = vec![0.0; out.len()];
        for (from, filter) in filters.iter().enumerate() {
            let Some(source) = row.checked_sub(from).filter(|source| *source < height) else { continue };
            let line = &samples[(plane * height + source) * width * step..][..width * step];
            filter.part_of_full(threads, line, first * step, &mut one);
            out.iter_mut().zip(&one).for_each(|(sum, value)| *sum += value);
        }
    });
    Ok(())
}

/// Convolves by multiplying the spectra of the planes with that of the kernel.
fn spectral(
    op: &Convolve2,
    input: &Tensor,
    kernel: &Tensor,
    space: &mut Space,
    threads: &dyn Threads,
    output: &mut Output,
) -> Result<()> {
    let (step, dims, [height, width]) = (step_of(input), input.shape(), transform_dims(op));
    let (in_rows, in_columns) = (dims[dims.rank() - 2], dims[dims.rank() - 1]);
    let [(first_row, rows), (first, columns)] = op.parts_of_full();
    let (of_plane, out_plane) = (in_rows * in_columns * step, rows * columns * step);
    let kernel_dims = [kernel.shape()[0], kernel.shape()[1]];
    let weights = padded(numbers(kernel)?, kernel_dims, step_of(kernel), [height, width])?;
    let weights = spectrum(&Fft2::new(&weights), space, threads)?;
    for (source, target) in numbers(input)?.chunks_exact(of_plane).zip(output.numbers().chunks_exact_mut(out_plane)) {
        let plane = padded(source, [in_rows, in_columns], step, [height, width])?;
        let plane = spectrum(&Fft2::new(&plane), space, threads)?;
        let products: Vec<Complex32> = plane
            .as_slice::<Complex32>()?
            .iter()
            .zip(weights.as_slice::<Complex32>()?)
            .map(|(value, weight)| value * weight)
            .collect();
        let products = Tensor::from_vec(products, [height, width])?;
        let full = spectrum(&Fft2::inverse(&products), space, threads)?;
        let full = full.as_slice::<Complex32>()?;
        for (row, line) in target.chunks_exact_mut(columns * step).enumerate() {
            let from = &full[(first_row + row) * width + first..][..columns];
            match step {
                2 => line.copy_from_slice(bytemuck::cast_slice(from)),
                _ => line.iter_mut().zip(from).for_each(|(out, value)| *out = value.re),
            }
        }
    }
    Ok(())
}

fn spectrum(op: &Fft2, space: &mut Space, threads: &dyn Threads) -> Result<Tensor> {
    spectra::fft2(op, space, threads, &mut HostBufferMut::zeroed)?.into_tensor()
}

/// Copies a plane into the corner of a larger complex plane of zeros.
fn padded(numbers: &[f32], [rows, columns]: [usize; 2], step: usize, [height, width]: [usize; 2]) -> Result<Tensor> {
    let mut plane = vec![Complex32::default(); height * width];
    for row in 0..rows {
        let from = &numbers[row * columns * step..(row + 1) * columns * step];
        let to = &mut plane[row * width..][..columns];
        match step {
            2 => to.copy_from_slice(bytemuck::cast_slice(from)),
            _ => to.iter_mut().zip(from).for_each(|(place, value)| *place = (*value).into()),
        }
    }
    Tensor::from_vec(plane, [height, width])
}

pub(super) fn find_peaks(op: &FindPeaks, threads: &dyn Threads, take: TakeMemory<'_>) -> Result<Value> {
    let (input, shape) = (op.input.contiguous()?, op.output_shape()?);
    let mut strengths = Output::take(DType::F32, shape, take)?;
    let mut places = Output::take(DType::I32, shape, take)?;
    strengths.numbers().fill(0.0);
    places.integers().fill(-1);
    let ((rows, columns), step) = (op.searched(), step_of(&input));
    let (samples, each) = (numbers(&input)?, rows * columns * step);
    if each > 0 {
        let own: Vec<Mutex<&mut [i32]>> = places.integers().chunks_mut(op.count).map(Mutex::new).collect();
        let some = share(own.len(), threads.count(), TURN_ELEMENTS_MIN.div_ceil(each));
        for_each_piece(threads, strengths.numbers(), some * op.count, &|turn, part| {
            for (at, out) in part.chunks_exact_mut(op.count).enumerate() {
                let index = turn * some + at;
                let found = strongest(op, &samples[index * each..(index + 1) * each], step, columns);
                // Each plane has its own part of the output, so this lock never blocks.
                let mut places = own[index].lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                for ((strength, place), peak) in out.iter_mut().zip(places.iter_mut()).zip(found) {
                    (*strength, *place) = (peak.strength, peak.place as i32);
                }
            }
        });
    }
    Ok(Value::Pair(strengths.tensor()?, places.tensor()?))
}

fn strongest(op: &FindPeaks, samples: &[f32], step: usize, columns: usize) -> Vec<Peak> {
    let sizes: Vec<f32>;
    let strengths = match step {
        2 => {
            let size = |z: &Complex32| {
                let (re, im) = (f64::from(z.re), f64::from(z.im));
                (re * re + im * im).sqrt() as f32
            };
            sizes = bytemuck::cast_slice(samples).iter().map(size).collect();
            &sizes[..]
        }
        _ => samples,
    };
    peaks(strengths, columns, op.distance, op.at_least, op.count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_transforms_have_small_factors() {
        for (len, expected) in [(0, 1), (1, 1), (7, 8), (11, 12), (17, 18), (97, 100), (1021, 1024), (3000, 3000)] {
            assert_eq!(smooth_len(len), expected);
        }
    }
}
