//! Arrays on the host, computed with `ndarray` alone: no runtime, no threads, no devices. Sums are
//! kept in f32; f16 and bf16 are rounded when they are stored.

use ndarray::{ArcArray, ArrayD, IxDyn, Slice};
use panoply_core::op::compute::Reduction;
use panoply_core::{DType, Tensor, bf16, f16};

use crate::host_ops as ops;
use crate::{ArrayOp, ComputeBackend};
use panoply_nn::random;
use panoply_nn::{Error, Result};

/// The host as a compute backend.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostBackend;

impl HostBackend {
    /// Creates the backend.
    pub fn new() -> HostBackend {
        HostBackend
    }
}

/// An array on the host: floats, held in f32 together with the type to which they are rounded; or
/// indices.
#[derive(Clone, Debug)]
pub enum HostData {
    /// Floats.
    Floats(ArcArray<f32, IxDyn>, DType),
    /// Indices.
    Indices(ArcArray<u32, IxDyn>),
}

impl HostData {
    /// Rounds floats to an element type.
    fn rounded(mut values: ArrayD<f32>, dtype: DType) -> HostData {
        match dtype {
            DType::F16 => values.mapv_inplace(|value| f16::from_f32(value).to_f32()),
            DType::BF16 => values.mapv_inplace(|value| bf16::from_f32(value).to_f32()),
            _ => {}
        }
        HostData::Floats(values.into_shared(), dtype)
    }

    fn floats(&self) -> Result<&ArcArray<f32, IxDyn>> {
        match self {
            HostData::Floats(values, _) => Ok(values),
            HostData::Indices(_) => Err(Error::invalid("array: an operand", "floats", "indices")),
        }
    }

    fn dtype(&self) -> DType {
        match self {
            HostData::Floats(_, dtype) => *dtype,
            HostData::Indices(_) => DType::U32,
        }
    }
}

impl ComputeBackend for HostBackend {
    type Data = HostData;

    fn name(&self) -> String {
        "the host".to_owned()
    }

    fn upload(&self, tensor: Tensor) -> Result<HostData> {
        let dims = tensor.shape().to_vec();
        let wrong = |error: ndarray::ShapeError| Error::invalid("array", "elements of its shape", error);
        let floats = |values: Vec<f32>| -> Result<HostData> {
            let values = ArrayD::from_shape_vec(dims.clone(), values).map_err(wrong)?;
            Ok(HostData::Floats(values.into_shared(), tensor.dtype()))
        };
        match tensor.dtype() {
            DType::F32 => floats(tensor.to_vec::<f32>()?),
            DType::F16 => floats(tensor.to_vec::<f16>()?.iter().map(|value| value.to_f32()).collect()),
            DType::BF16 => floats(tensor.to_vec::<bf16>()?.iter().map(|value| value.to_f32()).collect()),
            DType::U32 => {
                let values = ArrayD::from_shape_vec(dims.clone(), tensor.to_vec::<u32>()?).map_err(wrong)?;
                Ok(HostData::Indices(values.into_shared()))
            }
            other => Err(Error::invalid("array: element type", "f32, f16, bf16 or u32", other)),
        }
    }

    fn download(&self, data: &HostData) -> Result<Tensor> {
        let dims = self.dims(data);
        Ok(match data {
            HostData::Indices(values) => Tensor::from_vec(values.iter().copied().collect(), dims)?,
            HostData::Floats(values, DType::F16) => {
                Tensor::from_vec(values.iter().map(|value| f16::from_f32(*value)).collect(), dims)?
            }
            HostData::Floats(values, DType::BF16) => {
                Tensor::from_vec(values.iter().map(|value| bf16::from_f32(*value)).collect(), dims)?
            }
            HostData::Floats(values, _) => Tensor::from_vec(values.iter().copied().collect::<Vec<f32>>(), dims)?,
        })
    }

    fn dims(&self, data: &HostData) -> Vec<usize> {
        match data {
            HostData::Floats(values, _) => values.shape().to_vec(),
            HostData::Indices(values) => values.shape().to_vec(),
        }
    }

    fn run(&self, op: &ArrayOp, operands: &[&HostData]) -> Result<HostData> {
        let first = operands.first().ok_or_else(|| Error::invalid("array: operands", "at least one", 0))?;
        if let (ArrayOp::Gather, [table, HostData::Indices(indices)]) = (op, operands) {
            return Ok(HostData::rounded(ops::gather(table.floats()?, indices)?, table.dtype()));
        }
        if let ArrayOp::Reduce(Reduction::ArgMax | Reduction::ArgMin, axes) = op {
            let is_max = matches!(op, ArrayOp::Reduce(Reduction::ArgMax, _));
            return Ok(HostData::Indices(ops::extreme_place(first.floats()?, axes, is_max)?.into_shared()));
        }
        if let ArrayOp::Mask { keep, seed, stream } = op {
            let key = random::mask_key(*seed, stream);
            let limit = (keep.clamp(0.0, 1.0) * 4_294_967_296.0).min(4_294_967_295.0) as u32;
            let mut counter = 0;
            let mask = first.floats()?.map(|_| {
                counter += 1;
                f32::from(u8::from(random::number(key, counter - 1) < limit))
            });
            return Ok(HostData::rounded(mask, first.dtype()));
        }
        let floats: Vec<&ArcArray<f32, IxDyn>> = operands.iter().map(|data| data.floats()).collect::<Result<_>>()?;
        let (values, dtype) = compute(op, &floats, first.dtype())?;
        Ok(HostData::rounded(values, dtype))
    }
}

fn compute(op: &ArrayOp, operands: &[&ArcArray<f32, IxDyn>], dtype: DType) -> Result<(ArrayD<f32>, DType)> {
    let shape = |error: ndarray::ShapeError| Error::invalid("array: a shape", "one that fits", error);
    let made = match (op, operands) {
        (ArrayOp::Map(program), _) => {
            let dtypes = vec![dtype; operands.len()];
            let output = program.output_dtype(&dtypes).map_err(panoply_core::Error::Expression)?;
            return Ok((ops::map(program, operands)?, output));
        }
        (ArrayOp::Reshape(dims), [x]) => {
            ArrayD::from_shape_vec(dims.clone(), x.iter().copied().collect()).map_err(shape)?
        }
        (ArrayOp::Permute(order), [x]) => x.view().permuted_axes(order.as_slice()).to_owned(),
        (ArrayOp::Slice { axis, start, end, step }, [x]) if *axis < x.ndim() && *end <= x.shape()[*axis] => {
            let slice = Slice::new(*start as isize, Some(*end as isize), *step as isize);
            x.slice_axis(ndarray::Axis(*axis), slice).to_owned()
        }
        (ArrayOp::Broadcast(dims), [x]) => match x.broadcast(dims.as_slice()) {
            Some(view) => view.to_owned(),
            None => {
                return Err(Error::invalid("array: broadcast", "a shape that it stretches to", format!("{dims:?}")));
            }
        },
        (ArrayOp::Reduce(reduction, axes), [x]) => ops::reduce(*reduction, x, axes)?,
        (ArrayOp::MatMul { transpose_a, transpose_b }, [a, b]) => ops::matmul(a, b, *transpose_a, *transpose_b)?,
        (ArrayOp::Conv2d(options), [x, weights]) => ops::conv2d(x, weights, options)?,
        (ArrayOp::ConvTranspose2d(options, size), [x, weights]) => ops::conv_transpose2d(x, weights, options, *size)?,
        (ArrayOp::Pool2d { kind, kernel, stride, padding }, [x]) => ops::pool2d(x, *kind, *kernel, *stride, *padding)?,
        (ArrayOp::Softmax { axis, is_log }, [x]) => ops::softmax(x, *axis, *is_log)?,
        (ArrayOp::LayerNorm { epsilon }, [x, weight, bias]) => ops::layer_norm(x, weight, bias, *epsilon)?,
        (ArrayOp::Attention { is_causal }, [q, k, v]) => ops::attention(q, k, v, *is_causal)?,
        _ => {
            return Err(Error::invalid("array: operands", "those of the op", format!("{} for {op:?}", operands.len())));
        }
    };
    Ok((made, dtype))
}
