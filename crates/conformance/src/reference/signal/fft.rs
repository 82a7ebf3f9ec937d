//! Fft and Ifft: sums in f64, split by the smallest prime factor of the length. A prime length is a
//! plain sum.

use std::f64::consts::TAU;

use panoply_core::op::signal::{Fft, Ifft};
use panoply_core::{Complex64, DType, Result, Tensor, Value};

use crate::reference::lines::lines;
use crate::values::{tensor_of, to_f64};

pub(super) type Complex = [f64; 2];

pub(super) fn forward(op: &Fft) -> Result<Value> {
    let shape = op.output_shape()?;
    let (numbers, from, to) = match op.input.dtype() {
        DType::F64 => (wide_numbers(&op.input, op.pairs)?, signals(op.input.shape(), op.pairs), signals(&shape, true)),
        _ => (numbers(&op.input)?, op.input.shape().to_vec(), shape.to_vec()),
    };
    let transformed = map_lines(&numbers, &from, &to, op.axis, |line| spectrum(line, -1.0));
    Ok(Value::Tensor(match op.input.dtype() {
        DType::F64 => Tensor::from_vec(transformed.concat(), shape)?,
        _ => complex_tensor(&shape, &transformed)?,
    }))
}

/// Complex or real numbers in f64. A complex number is a pair.
fn wide_numbers(tensor: &Tensor, pairs: bool) -> Result<Vec<Complex>> {
    let values = to_f64(tensor)?;
    Ok(match pairs {
        true => values.chunks_exact(2).map(|pair| [pair[0], pair[1]]).collect(),
        false => values.into_iter().map(|value| [value, 0.0]).collect(),
    })
}

/// The dimensions without the axis of pairs.
fn signals(dims: &[usize], pairs: bool) -> Vec<usize> {
    dims[..dims.len() - usize::from(pairs)].to_vec()
}

pub(super) fn inverse(op: &Ifft) -> Result<Value> {
    let (shape, is_wide) = (op.output_shape()?, op.input.dtype() == DType::F64);
    let numbers = if is_wide { wide_numbers(&op.input, true)? } else { numbers(&op.input)? };
    let from = signals(op.input.shape(), is_wide);
    let to = signals(&shape, is_wide && op.real_len.is_none());
    let signals = map_lines(&numbers, &from, &to, op.axis, |line| {
        let line = op.real_len.map_or_else(|| line.to_vec(), |len| whole_spectrum(line, len));
        let divisor = line.len() as f64;
        spectrum(&line, 1.0).into_iter().map(|[re, im]| [re / divisor, im / divisor]).collect()
    });
    Ok(Value::Tensor(match op.real_len {
        None if is_wide => Tensor::from_vec(signals.concat(), shape)?,
        Some(_) => tensor_of(op.output_dtype(), &shape, &signals.iter().map(|[re, _]| *re).collect::<Vec<f64>>()),
        None => complex_tensor(&shape, &signals)?,
    }))
}

/// Computes `Σ x[j] · exp(sign · 2πi·j·k/n)` for each k.
pub(super) fn spectrum(line: &[Complex], sign: f64) -> Vec<Complex> {
    let len = line.len();
    if len <= 1 {
        return line.to_vec();
    }
    let root = |numerator: usize| {
        let (sin, cos) = (sign * TAU * (numerator % len) as f64 / len as f64).sin_cos();
        [cos, sin]
    };
    let radix = (2..=len).find(|divisor| len.is_multiple_of(*divisor)).unwrap_or(len);
    if radix == len {
        let roots: Vec<Complex> = (0..len).map(root).collect();
        let term = |k: usize| line.iter().enumerate().map(|(j, x)| product(*x, roots[j * k % len])).fold([0.0; 2], sum);
        return (0..len).map(term).collect();
    }
    // The elements at distance `radix`, from each start, form a shorter line, whose spectrum
    // repeats.
    let shorter = len / radix;
    let parts: Vec<Vec<Complex>> = (0..radix)
        .map(|start| spectrum(&line.iter().skip(start).step_by(radix).copied().collect::<Vec<_>>(), sign))
        .collect();
    let term = |k: usize| {
        parts.iter().enumerate().map(|(start, part)| product(part[k % shorter], root(start * k))).fold([0.0; 2], sum)
    };
    (0..len).map(term).collect()
}

/// The full spectrum of `len` real numbers, from its first half.
pub(super) fn whole_spectrum(half: &[Complex], len: usize) -> Vec<Complex> {
    let element = |k: usize| match 2 * k {
        _ if k == 0 || 2 * k == len => [half[k][0], 0.0],
        twice if twice < len => half[k],
        _ => [half[len - k][0], -half[len - k][1]],
    };
    (0..len).map(element).collect()
}

/// Maps the lines of one tensor to the lines of another, whose length may differ. Excess elements
/// are dropped.
pub(super) fn map_lines(
    numbers: &[Complex],
    from: &[usize],
    to: &[usize],
    axis: usize,
    change: impl Fn(&[Complex]) -> Vec<Complex>,
) -> Vec<Complex> {
    let mut changed = vec![[0.0; 2]; to.iter().product()];
    for (sources, targets) in lines(from, axis).into_iter().zip(lines(to, axis)) {
        let line: Vec<Complex> = sources.into_iter().map(|place| numbers[place]).collect();
        for (place, value) in targets.into_iter().zip(change(&line)) {
            changed[place] = value;
        }
    }
    changed
}

pub(super) fn numbers(tensor: &Tensor) -> Result<Vec<Complex>> {
    let values = to_f64(tensor)?;
    Ok(match tensor.dtype() {
        DType::Complex64 => values.chunks_exact(2).map(|pair| [pair[0], pair[1]]).collect(),
        _ => values.into_iter().map(|value| [value, 0.0]).collect(),
    })
}

pub(super) fn complex_tensor(dims: &[usize], numbers: &[Complex]) -> Result<Tensor> {
    Tensor::from_vec(numbers.iter().map(|[re, im]| Complex64::new(*re as f32, *im as f32)).collect(), dims)
}

pub(super) fn product(a: Complex, b: Complex) -> Complex {
    [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]]
}

pub(super) fn sum(a: Complex, b: Complex) -> Complex {
    [a[0] + b[0], a[1] + b[1]]
}
