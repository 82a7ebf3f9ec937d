//! Fft, Ifft and Fft2: a pass for each factor of the length. Lines along an axis that is not the
//! last are transposed first, and the results are transposed back.

use panoply_core::op::signal::{Fft, Fft2, Ifft};
use panoply_core::{Complex64, DType, Error, Result, Shape, Tensor};
use panoply_kernels::wgsl::{FftKernel, FftLine, Kernel};

use crate::context::{Context, groups_for};
use crate::driver::Driver;
use crate::operand::{Operand, is_seen};
use crate::profile::Profile;

/// The small factors of a pass, tried in this order: with a factor f, each written element reads f
/// elements.
const RADICES: [usize; 8] = [4, 2, 3, 5, 7, 11, 13, 17];
/// The largest factor: a pass with a factor f takes f steps for each element.
const RADIX_MAX: usize = 8192;
/// The longest transform on a driver in software: lavapipe and SwiftShader, through Vulkan, return
/// zeros or NaN for 65,536 points. GPUs return the right numbers; the cause is not known.
const SOFTWARE_LEN_MAX: usize = 32_768;

pub(super) fn support(profile: &Profile, op: &Fft) -> Result<(), String> {
    fits(profile, &op.input, op.axis, op.input.shape()[op.axis])
}

pub(super) fn inverse_support(profile: &Profile, op: &Ifft) -> Result<(), String> {
    fits(profile, &op.input, op.axis, op.real_len.unwrap_or(op.input.shape()[op.axis]))
}

pub(super) fn planes_support(profile: &Profile, op: &Fft2) -> Result<(), String> {
    let dims = op.input.shape();
    let last = op.output_shape().map_err(|error| error.to_string())?.rank() - 1;
    fits(profile, &op.input, last, dims[last])?;
    fits(profile, &op.input, last - 1, dims[last - 1])
}

/// Checks that kernels see all of the lines of `len` complex numbers, and that the length has no
/// large factor.
fn fits(profile: &Profile, input: &Tensor, axis: usize, len: usize) -> Result<(), String> {
    if input.dtype() == DType::F64 {
        return Err("fft of f64".to_owned());
    }
    if profile.is_software && len > SOFTWARE_LEN_MAX {
        return Err(format!("{len} points; drivers in software are wrong beyond {SOFTWARE_LEN_MAX}"));
    }
    let lines = input.elements().checked_div(input.shape()[axis]).unwrap_or(0);
    if !is_seen(lines.saturating_mul(len), DType::Complex64.size_bytes(), profile.binding_bytes_max) {
        return Err(format!("beyond {} bytes, which the adapter binds", profile.binding_bytes_max));
    }
    match factors(len).into_iter().max() {
        Some(largest) if largest > RADIX_MAX => {
            Err(format!("the length has the factor {largest}; passes take factors up to {RADIX_MAX}"))
        }
        _ => Ok(()),
    }
}

pub(super) fn run<D: Driver>(op: &Fft, context: &mut Context<D>) -> Result<Tensor> {
    let (from, to) = match op.input.dtype() {
        DType::F32 => (FftLine::Real, FftLine::Half),
        _ => (FftLine::Complex, FftLine::Complex),
    };
    let job = FftTask { from, to, len: op.input.shape()[op.axis], inverse: false };
    job.run(&op.input, op.axis, op.output_shape()?, context)
}

pub(super) fn run_inverse<D: Driver>(op: &Ifft, context: &mut Context<D>) -> Result<Tensor> {
    let (from, to, len) = match op.real_len {
        Some(len) => (FftLine::Half, FftLine::Real, len),
        None => (FftLine::Complex, FftLine::Complex, op.input.shape()[op.axis]),
    };
    FftTask { from, to, len, inverse: true }.run(&op.input, op.axis, op.output_shape()?, context)
}

pub(super) fn run_planes<D: Driver>(op: &Fft2, context: &mut Context<D>) -> Result<Tensor> {
    let shape = op.output_shape()?;
    if shape.elements() == 0 {
        return Tensor::zeros(DType::Complex64, shape);
    }
    let (last, inverse) = (shape.rank() - 1, op.inverse);
    let (from, to) = match op.input.dtype() {
        DType::F32 => (FftLine::Real, FftLine::Half),
        _ => (FftLine::Complex, FftLine::Complex),
    };
    let source = context.input(&op.input)?;
    let job = FftTask { from, to, len: op.input.shape()[last], inverse };
    let rows = job.passes(source, DType::Complex64, shape, context)?;
    let (mut order, mut turned): (Vec<usize>, Vec<usize>) = ((0..=last).collect(), shape.to_vec());
    order.swap(last - 1, last);
    turned.swap(last - 1, last);
    let columns = context.dense(rows.permuted(&order)?)?;
    let job = FftTask { from: FftLine::Complex, to: FftLine::Complex, len: shape[last - 1], inverse };
    let columns = job.passes(columns, DType::Complex64, Shape::new(turned)?, context)?;
    let planes = context.dense(columns.permuted(&order)?)?;
    context.finish(planes)
}

/// A transform of lines of `len`, which counts the real elements if one side is real.
struct FftTask {
    from: FftLine,
    to: FftLine,
    len: usize,
    inverse: bool,
}

impl FftTask {
    fn run<D: Driver>(&self, input: &Tensor, axis: usize, shape: Shape, context: &mut Context<D>) -> Result<Tensor> {
        let dtype = if self.to == FftLine::Real { DType::F32 } else { DType::Complex64 };
        if shape.elements() == 0 {
            return Tensor::zeros(dtype, shape);
        }
        let last = shape.rank() - 1;
        let mut order: Vec<usize> = (0..=last).collect();
        order.swap(axis, last);
        let mut turned = shape.to_vec();
        turned.swap(axis, last);
        let source = context.input(&input.permute(&order)?)?;
        let output = self.passes(source, dtype, Shape::new(turned)?, context)?;
        let output = match axis == last {
            true => output,
            false => {
                let view = output.permuted(&order)?;
                context.dense(view)?
            }
        };
        context.finish(output)
    }

    fn passes<D: Driver>(
        &self,
        mut source: Operand<D>,
        dtype: DType,
        shape: Shape,
        context: &mut Context<D>,
    ) -> Result<Operand<D>> {
        let lines = shape.elements() / shape[shape.rank() - 1];
        let roots = context.input(&roots(self.len)?)?;
        let (factors, mut stride) = (factors(self.len), 1);
        for (number, radix) in factors.iter().enumerate() {
            let (first, last) = (number == 0, number + 1 == factors.len());
            let target = match last {
                true => context.output(dtype, shape)?,
                false => context.output(DType::Complex64, Shape::new([lines, self.len])?)?,
            };
            let kernel = FftKernel {
                from: if first { self.from } else { FftLine::Complex },
                to: if last { self.to } else { FftLine::Complex },
            };
            let count = target.elements();
            let scale = if last && self.inverse { 1.0 / self.len as f32 } else { 1.0 };
            let sizes = [count, count / lines, self.len, self.len / stride, stride, *radix, source.offset];
            let mut params = sizes.map(|size| size as u32).to_vec();
            params.extend([u32::from(self.inverse), scale.to_bits()]);
            context.run(&Kernel::Fft(kernel), &[&target], &[&source, &roots], &params, groups_for(count))?;
            (source, stride) = (target, stride * radix);
        }
        Ok(source)
    }
}

/// The `len`-th roots of one, in the order of the transform.
fn roots(len: usize) -> Result<Tensor> {
    let root = |place: usize| {
        let (sin, cos) = (-std::f64::consts::TAU * place as f64 / len as f64).sin_cos();
        Complex64::new(cos as f32, sin as f32)
    };
    let mut roots = Vec::new();
    let bytes = len * size_of::<Complex64>();
    roots.try_reserve_exact(len).map_err(|_| Error::OutOfMemory {
        place: "the host".to_owned(),
        asked: bytes as u64,
        free: 0,
        largest: 0,
    })?;
    roots.extend((0..len).map(root));
    Tensor::from_vec(roots, [len])
}

/// Factors whose product is the length: small factors, then primes. Never empty.
fn factors(len: usize) -> Vec<usize> {
    let (mut factors, mut rest) = (Vec::new(), len.max(1));
    let mut take = |rest: &mut usize, factor: usize| {
        while rest.is_multiple_of(factor) {
            factors.push(factor);
            *rest /= factor;
        }
    };
    for radix in RADICES {
        take(&mut rest, radix);
    }
    let mut prime = 19;
    while rest > 1 && prime * prime <= rest {
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
        assert_eq!(factors(0), [1]);
        assert_eq!(factors(1), [1]);
        assert_eq!(factors(1024), [4; 5]);
        assert_eq!(factors(2 * 19 * 19 * 1009), [2, 19, 19, 1009]);
        for len in (1..3000).chain([1 << 30, 65_537 * 3]) {
            assert_eq!(factors(len).iter().product::<usize>(), len);
        }
    }
}
