//! Makes and compares test values. Everything is exact or seeded, so that a failing case fails
//! again.

use panoply_core::{Complex64, DType, Element, Result, Tensor, bf16, f16};

pub use panoply_simulated::Random;

use crate::tolerance::Tolerance;

/// A contiguous tensor of random values suited to the element type: floats between -2 and 2, small
/// integers.
pub fn random_tensor(dtype: DType, dims: &[usize], seed: u64) -> Tensor {
    let mut random = Random::new(seed ^ 0x5eed);
    let count: usize = dims.iter().product();
    let values: Vec<f64> = (0..count)
        .map(|_| match dtype {
            DType::I32 => random.below(2001) as f64 - 1000.0,
            DType::U32 => random.below(2001) as f64,
            DType::I8 => random.below(256) as f64 - 128.0,
            DType::U8 => random.below(256) as f64,
            _ => random.signed_unit() * 2.0,
        })
        .collect();
    tensor_of(dtype, dims, &values)
}

/// A contiguous tensor of small integers of either sign: sums of their products are exact, and many
/// are equal.
pub fn whole_numbers(dtype: DType, dims: &[usize], seed: u64) -> Tensor {
    let mut random = Random::new(seed);
    let count: usize = dims.iter().product();
    let values: Vec<f64> = (0..count).map(|_| random.below(9) as f64 - 4.0).collect();
    tensor_of(dtype, dims, &values)
}

/// A contiguous tensor of these values, converted to the element type (complex: the imaginary part
/// is half the real).
pub fn tensor_of(dtype: DType, dims: &[usize], values: &[f64]) -> Tensor {
    fn build<T: Element>(dims: &[usize], values: &[f64], convert: impl Fn(f64) -> T) -> Tensor {
        let values: Vec<T> = values.iter().map(|value| convert(*value)).collect();
        Tensor::from_vec(values, dims).unwrap_or_else(|error| panic!("a test tensor of {dims:?}: {error}"))
    }
    match dtype {
        DType::F32 => build(dims, values, |value| value as f32),
        DType::F16 => build(dims, values, f16::from_f64),
        DType::BF16 => build(dims, values, bf16::from_f64),
        DType::F64 => build(dims, values, |value| value),
        DType::I32 => build(dims, values, |value| value as i32),
        DType::U32 => build(dims, values, |value| value as u32),
        DType::I8 => build(dims, values, |value| value as i8),
        DType::U8 => build(dims, values, |value| value as u8),
        DType::Complex64 => build(dims, values, |value| Complex64::new(value as f32, value as f32 * 0.5)),
    }
}

/// The elements as `f64`, in row-major order; a complex element gives two. The tensor must be on
/// the host.
pub fn to_f64(tensor: &Tensor) -> Result<Vec<f64>> {
    fn read<T: Element>(tensor: &Tensor, convert: impl Fn(T) -> f64) -> Result<Vec<f64>> {
        Ok(tensor.to_vec::<T>()?.into_iter().map(convert).collect())
    }
    match tensor.dtype() {
        DType::F32 => read(tensor, |value: f32| f64::from(value)),
        DType::F16 => read(tensor, f16::to_f64),
        DType::BF16 => read(tensor, bf16::to_f64),
        DType::F64 => read(tensor, |value: f64| value),
        DType::I32 => read(tensor, |value: i32| f64::from(value)),
        DType::U32 => read(tensor, |value: u32| f64::from(value)),
        DType::I8 => read(tensor, |value: i8| f64::from(value)),
        DType::U8 => read(tensor, |value: u8| f64::from(value)),
        DType::Complex64 => {
            let values = tensor.to_vec::<Complex64>()?;
            Ok(values.iter().flat_map(|value| [f64::from(value.re), f64::from(value.im)]).collect())
        }
    }
}

/// The number of elements that differ beyond the tolerance, and the number of elements; or why they
/// cannot be compared.
pub fn elements_that_differ(expected: &Tensor, got: &Tensor, tolerance: Tolerance) -> Result<(usize, usize), String> {
    if (expected.dtype(), expected.shape()) != (got.dtype(), got.shape()) {
        return Err(format!("expected {expected:?}, got {got:?}"));
    }
    let text = |error: panoply_core::Error| error.to_string();
    let (expected, got) = (to_f64(expected).map_err(text)?, to_f64(got).map_err(text)?);
    let differing = expected.iter().zip(&got).filter(|(expected, got)| !tolerance.accepts(**expected, **got));
    Ok((differing.count(), expected.len()))
}

/// Describes how two tensors differ beyond the tolerance, or `None`. NaN equals NaN; infinities
/// must agree in sign.
pub fn difference(expected: &Tensor, got: &Tensor, tolerance: Tolerance) -> Option<String> {
    if expected.dtype() != got.dtype() {
        return Some(format!("expected {}, got {}", expected.dtype(), got.dtype()));
    }
    if expected.shape() != got.shape() {
        return Some(format!("expected shape {:?}, got {:?}", expected.shape(), got.shape()));
    }
    let (expected, got) = match (to_f64(expected), to_f64(got)) {
        (Ok(expected), Ok(got)) => (expected, got),
        (Err(error), _) | (_, Err(error)) => return Some(error.to_string()),
    };
    let wrong = |(_, (expected, got)): &(usize, (&f64, &f64))| !tolerance.accepts(**expected, **got);
    let mut differing = expected.iter().zip(&got).enumerate().filter(wrong);
    let (index, (expected, got)) = differing.next()?;
    Some(format!("element {index}: expected {expected:?}, got {got:?} ({} more differ)", differing.count()))
}
