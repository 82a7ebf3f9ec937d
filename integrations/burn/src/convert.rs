//! Conversion of tensors from and to Burn's, and random numbers.

use burn_backend::{Distribution, TensorData};
use burn_std::{BoolStore, Bytes, DType as BurnType, Shape};
use panoply_core::{DType, Element, Tensor, bf16, f16};
use rand::rngs::StdRng;

use crate::error::Error;

const SERVED: &str = "f32, f16, bf16, f64, i32, u32, i8, u8 and bool";

/// Returns the runtime's element type for Burn's. A bool is a byte.
pub(crate) fn dtype(burn: BurnType) -> Result<DType, Error> {
    Ok(match burn {
        BurnType::F32 | BurnType::Flex32 => DType::F32,
        BurnType::F16 => DType::F16,
        BurnType::BF16 => DType::BF16,
        BurnType::F64 => DType::F64,
        BurnType::I32 => DType::I32,
        BurnType::U32 => DType::U32,
        BurnType::I8 => DType::I8,
        BurnType::U8 | BurnType::Bool(BoolStore::Native | BoolStore::U8) => DType::U8,
        other => return Err(Error::ElementType { got: format!("{other:?}"), expected: SERVED }),
    })
}

/// Returns the number of bytes of a tensor of this type and shape.
pub(crate) fn len_bytes(burn: BurnType, shape: &Shape) -> Result<u64, Error> {
    let size = dtype(burn)?.size_bytes();
    let bytes = shape.iter().try_fold(size as u64, |bytes, dim| bytes.checked_mul(*dim as u64));
    bytes.ok_or(Error::Limit { what: "bytes of a tensor", limit: u64::MAX, got: u64::MAX })
}

/// Converts the tensor data of a message to a tensor.
pub(crate) fn from_burn(data: &TensorData) -> Result<Tensor, Error> {
    let dims: Vec<usize> = data.shape().iter().copied().collect();
    let is_bool = matches!(data.dtype(), BurnType::Bool(_));
    let bytes = data.as_bytes();
    match dtype(data.dtype())? {
        DType::F32 => tensor::<f32>(bytes, &dims),
        DType::F16 => tensor::<f16>(bytes, &dims),
        DType::BF16 => tensor::<bf16>(bytes, &dims),
        DType::F64 => tensor::<f64>(bytes, &dims),
        DType::I32 => tensor::<i32>(bytes, &dims),
        DType::U32 => tensor::<u32>(bytes, &dims),
        DType::I8 => tensor::<i8>(bytes, &dims),
        DType::U8 if is_bool => {
            let values = bytes.iter().map(|byte| u8::from(*byte != 0)).collect();
            Ok(Tensor::from_vec::<u8>(values, &dims)?)
        }
        DType::U8 => tensor::<u8>(bytes, &dims),
        other => Err(Error::ElementType { got: other.to_string(), expected: SERVED }),
    }
}

/// Copies the bytes of a message, because they need not be aligned.
fn tensor<T: Element>(bytes: &[u8], dims: &[usize]) -> Result<Tensor, Error> {
    let count = bytes.len() / size_of::<T>();
    let mut values = vec![T::zeroed(); count];
    let target: &mut [u8] = bytemuck::cast_slice_mut(&mut values);
    if target.len() != bytes.len() {
        return Err(Error::Protocol(format!("{} bytes are no whole number of elements", bytes.len())));
    }
    target.copy_from_slice(bytes);
    Ok(Tensor::from_vec(values, dims)?)
}

/// Converts a tensor on the host to the data of a message, with the element type that the client
/// expects.
pub(crate) fn to_burn(tensor: &Tensor, wanted: BurnType) -> Result<TensorData, Error> {
    if dtype(wanted)? != tensor.dtype() {
        let (expected, got) = (format!("{wanted:?}"), tensor.dtype().to_string());
        return Err(Error::Expected { op: "read".to_owned(), expected, got });
    }
    let tensor = tensor.contiguous()?;
    let bytes = Bytes::from_bytes_vec(tensor.as_bytes()?.to_vec());
    let shape = Shape::from(tensor.shape().to_vec());
    TensorData::try_from_bytes(bytes, shape, wanted).map_err(|error| Error::Protocol(error.to_string()))
}

/// Draws random numbers. For the same seed they equal those of Burn's own CPU backend.
pub(crate) fn random(
    shape: &Shape,
    wanted: BurnType,
    distribution: Distribution,
    rng: &mut StdRng,
) -> Result<Tensor, Error> {
    check(distribution)?;
    check_narrow(dtype(wanted)?, distribution)?;
    let shape = shape.clone();
    let data = match dtype(wanted)? {
        DType::F32 => TensorData::random::<f32, _, _>(shape, distribution, rng),
        DType::F16 => TensorData::random::<f16, _, _>(shape, distribution, rng),
        DType::BF16 => TensorData::random::<bf16, _, _>(shape, distribution, rng),
        DType::F64 => TensorData::random::<f64, _, _>(shape, distribution, rng),
        DType::I32 => {
            // `TensorData::random` first converts the bounds to integers; an empty range between
            // them is not a distribution.
            if let Distribution::Uniform(low, high) = distribution
                && (low as i32) >= (high as i32)
            {
                return Err(Error::unsupported("random", format!("no integer lies in {low}..{high}")));
            }
            TensorData::random::<i32, _, _>(shape, distribution, rng)
        }
        other => return Err(Error::ElementType { got: other.to_string(), expected: "random floats and i32" }),
    };
    from_burn(&data)
}

/// Checks the bounds after conversion to 16 bits: the range between them must be non-empty and
/// finite.
fn check_narrow(dtype: DType, distribution: Distribution) -> Result<(), Error> {
    let Distribution::Uniform(low, high) = distribution else { return Ok(()) };
    let [low, high] = match dtype {
        DType::F16 => [low, high].map(|bound| f16::from_f64(bound).to_f64()),
        DType::BF16 => [low, high].map(|bound| bf16::from_f64(bound).to_f64()),
        _ => return Ok(()),
    };
    let most = if dtype == DType::F16 { f16::MAX.to_f64() } else { bf16::MAX.to_f64() };
    match low < high && high - low <= most {
        true => Ok(()),
        false => Err(Error::unsupported("random", format!("no {dtype} lies in {low}..{high}"))),
    }
}

/// Refuses parameters for which a distribution is undefined: drawing from it would panic.
fn check(distribution: Distribution) -> Result<(), Error> {
    let fits = match distribution {
        Distribution::Default => true,
        Distribution::Bernoulli(probability) => (0.0..=1.0).contains(&probability),
        Distribution::Uniform(low, high) => {
            let fits = |bound: f64| bound.abs() <= f64::from(f32::MAX) / 2.0;
            low < high && fits(low) && fits(high) && (low as f32) < (high as f32)
        }
        Distribution::Normal(mean, deviation) => mean.is_finite() && deviation.is_finite() && deviation >= 0.0,
    };
    if fits { Ok(()) } else { Err(Error::unsupported("random", format!("{distribution:?} is no distribution"))) }
}
