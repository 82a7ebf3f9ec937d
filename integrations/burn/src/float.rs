//! Burn's ops on floats. Those on f32 are recorded.

use burn_backend::ops::{ActivationOps, FloatTensorOps};
use burn_backend::tensor::IndexingUpdateOp;
use burn_backend::{DType, Distribution, ExecutionError, Scalar, Shape, Slice, TensorData, TensorMetadata};
use burn_flex::{Flex, FlexTensor};
use burn_std::{BoolDType, FloatDType, IntDType, backtrace::BackTrace};
use panoply_core::op::compute::Reduction;

use crate::array::Array;
use crate::backend::Panoply;
use crate::device::PanoplyDevice;
use crate::formula::Formula;
use crate::host::{ToHost, count, on_host};
use crate::place::graph_dtype;
use crate::step::Step;

/// The most axes that a recorded tensor has.
const RANK_MAX: usize = 6;

/// Whether a tensor can be an operand of a graph in this element type.
pub(crate) fn is_recordable(array: &Array, dtype: DType) -> bool {
    array.dtype() == dtype && graph_dtype(dtype).is_some() && array.dims().len() <= RANK_MAX
}

/// Whether all are f32 and can be operands of a graph.
pub(crate) fn are_floats(arrays: &[&Array]) -> bool {
    arrays.iter().all(|array| is_recordable(array, DType::F32))
}

/// A step over f32 that makes f32 of this shape.
pub(crate) fn float(step: Step, operands: &[&Array], dims: impl Into<Shape>) -> Array {
    Array::recorded(step, operands, Vec::new(), (dims.into(), DType::F32), operands[0].device())
}

/// The shape of operands that are stretched against each other; none, where they do not fit.
pub(crate) fn stretched(operands: &[&Array]) -> Option<Vec<usize>> {
    let mut dims = operands.first()?.dims().to_vec();
    for operand in operands {
        if operand.dims().len() != dims.len() {
            return None;
        }
        for (size, own) in dims.iter_mut().zip(operand.dims()) {
            match (*size, *own) {
                (a, b) if a == b => {}
                (1, b) => *size = b,
                (_, 1) => {}
                _ => return None,
            }
        }
    }
    Some(dims)
}

/// An elementwise function of operands and numbers. None, where it cannot be recorded.
pub(crate) fn map(formula: Formula, operands: &[&Array], numbers: &[Scalar], out: DType) -> Option<Array> {
    let dims = stretched(operands)?;
    let fits = |array: &&Array| graph_dtype(array.dtype()).is_some() && array.dims().len() <= RANK_MAX;
    if !operands.iter().all(fits) || graph_dtype(out).is_none() {
        return None;
    }
    let numbers = numbers.iter().map(|number| number.elem::<f32>()).collect();
    Some(Array::recorded(Step::Map(formula), operands, numbers, (dims.into(), out), operands[0].device()))
}

/// What Burn's CPU backend answers instead.
fn host(name: &'static str, device: PanoplyDevice, run: impl FnOnce() -> FlexTensor) -> Array {
    count(name);
    Array::from_host(run(), device)
}

macro_rules! recorded_maps {
    ($(fn $name:ident($($operand:ident),*) = $formula:ident;)*) => {
        $(fn $name($($operand: Array),*) -> Array {
            let device = [$($operand.device()),*][0];
            let made = are_floats(&[$(&$operand),*]).then(|| map(Formula::$formula, &[$(&$operand),*], &[], DType::F32));
            made.flatten().unwrap_or_else(|| {
                host(stringify!($name), device, || Flex::$name($(ToHost::to_host($operand)),*))
            })
        })*
    };
}

macro_rules! recorded_with_number {
    ($(fn $name:ident = $formula:ident;)*) => {
        $(fn $name(tensor: Array, number: Scalar) -> Array {
            let made = are_floats(&[&tensor]).then(|| map(Formula::$formula, &[&tensor], &[number], DType::F32));
            made.flatten().unwrap_or_else(|| {
                host(stringify!($name), tensor.device(), || Flex::$name(ToHost::to_host(tensor), number))
            })
        })*
    };
}

macro_rules! recorded_comparisons {
    ($(fn $name:ident, $with_number:ident = $formula:ident;)*) => {
        $(fn $name(lhs: Array, rhs: Array, out: BoolDType) -> Array {
            let made = are_floats(&[&lhs, &rhs]).then(|| map(Formula::$formula, &[&lhs, &rhs], &[], out.into()));
            made.flatten().unwrap_or_else(|| {
                host(stringify!($name), lhs.device(), || Flex::$name(ToHost::to_host(lhs), ToHost::to_host(rhs), out))
            })
        }

        fn $with_number(lhs: Array, rhs: Scalar, out: BoolDType) -> Array {
            let made = are_floats(&[&lhs]).then(|| map(Formula::$formula, &[&lhs], &[rhs], out.into()));
            made.flatten().unwrap_or_else(|| {
                host(stringify!($with_number), lhs.device(), || Flex::$with_number(ToHost::to_host(lhs), rhs, out))
            })
        })*
    };
}

macro_rules! recorded_reductions {
    ($(fn $name:ident = $reduction:ident;)*) => {
        $(fn $name(tensor: Array, dim: usize) -> Array {
            match are_floats(&[&tensor]) && dim < tensor.dims().len() && tensor.dims()[dim] > 0 {
                true => float(Step::Reduce(Reduction::$reduction, dim), &[&tensor], with_size(&tensor, dim, 1)),
                false => host(stringify!($name), tensor.device(), || Flex::$name(ToHost::to_host(tensor), dim)),
            }
        })*
    };
}

/// A tensor's sizes with another along one axis.
fn with_size(tensor: &Array, axis: usize, size: usize) -> Vec<usize> {
    let mut dims = tensor.dims().to_vec();
    dims[axis] = size;
    dims
}

/// A slice as start, end and step; none, where it goes backwards or beyond.
fn cut(slice: &Slice, size: usize) -> Option<[usize; 3]> {
    let length = isize::try_from(size).ok()?;
    let at = |place: isize| (if place < 0 { place + length } else { place }).clamp(0, length);
    let (start, end) = (at(slice.start), slice.end.map_or(length, at));
    let step = usize::try_from(slice.step).ok().filter(|step| *step > 0)?;
    Some([usize::try_from(start).ok()?, usize::try_from(end.max(start)).ok()?, step])
}

/// The places of largest or smallest elements as i32.
fn places(tensor: &Array, dim: usize, largest: bool, out: IntDType) -> Option<Array> {
    let fits = are_floats(&[tensor]) && dim < tensor.dims().len() && tensor.dims()[dim] > 0 && out == IntDType::I32;
    let kind = (with_size(tensor, dim.min(tensor.dims().len() - 1), 1).into(), DType::I32);
    fits.then(|| Array::recorded(Step::Place(largest, dim), &[tensor], Vec::new(), kind, tensor.device()))
}

/// The bytes of a tensor, for its program.
pub(crate) fn read(tensor: &Array) -> Result<TensorData, ExecutionError> {
    let failed = |reason: String| ExecutionError::Generic { reason, backtrace: BackTrace::capture() };
    tensor.to_host().map(FlexTensor::into_data).map_err(failed)
}

impl FloatTensorOps<Panoply> for Panoply {
    fn float_from_data(data: TensorData, device: &PanoplyDevice) -> Array {
        Array::from_host(FlexTensor::from_data(data), *device)
    }

    async fn float_into_data(tensor: Array) -> Result<TensorData, ExecutionError> {
        read(&tensor)
    }

    fn float_to_device(tensor: Array, device: &PanoplyDevice) -> Array {
        tensor.on(*device)
    }

    recorded_maps! {
        fn float_add(lhs, rhs) = Add;
        fn float_sub(lhs, rhs) = Sub;
        fn float_mul(lhs, rhs) = Mul;
        fn float_div(lhs, rhs) = Div;
        fn float_powf(lhs, rhs) = Pow;
        fn float_neg(tensor) = Neg;
        fn float_recip(tensor) = Recip;
        fn float_exp(tensor) = Exp;
        fn float_log(tensor) = Log;
        fn float_sqrt(tensor) = Sqrt;
        fn float_abs(tensor) = Abs;
        fn float_cos(tensor) = Cos;
        fn float_sin(tensor) = Sin;
        fn float_tanh(tensor) = Tanh;
        fn float_floor(tensor) = Floor;
        fn float_ceil(tensor) = Ceil;
        fn float_erf(tensor) = Erf;
    }

    recorded_with_number! {
        fn float_add_scalar = Add;
        fn float_sub_scalar = Sub;
        fn float_mul_scalar = Mul;
        fn float_div_scalar = Div;
        fn float_powf_scalar_impl = Pow;
    }

    recorded_comparisons! {
        fn float_equal, float_equal_elem = Equal;
        fn float_not_equal, float_not_equal_elem = NotEqual;
        fn float_greater, float_greater_elem = Greater;
        fn float_greater_equal, float_greater_equal_elem = GreaterEqual;
        fn float_lower, float_lower_elem = Lower;
        fn float_lower_equal, float_lower_equal_elem = LowerEqual;
    }

    recorded_reductions! {
        fn float_sum_dim = Sum;
        fn float_mean_dim = Mean;
        fn float_max_dim = Max;
        fn float_min_dim = Min;
    }

    fn float_sum(tensor: Array) -> Array {
        match are_floats(&[&tensor]) {
            true => float(Step::SumAll, &[&tensor], [1]),
            false => host("float_sum", tensor.device(), || Flex::float_sum(ToHost::to_host(tensor))),
        }
    }

    fn float_argmax(tensor: Array, dim: usize, out: IntDType) -> Array {
        places(&tensor, dim, true, out).unwrap_or_else(|| {
            host("float_argmax", tensor.device(), || Flex::float_argmax(ToHost::to_host(tensor), dim, out))
        })
    }

    fn float_argmin(tensor: Array, dim: usize, out: IntDType) -> Array {
        places(&tensor, dim, false, out).unwrap_or_else(|| {
            host("float_argmin", tensor.device(), || Flex::float_argmin(ToHost::to_host(tensor), dim, out))
        })
    }

    fn float_matmul(lhs: Array, rhs: Array) -> Array {
        let rank = lhs.dims().len();
        let fits = are_floats(&[&lhs, &rhs]) && rank >= 2 && rhs.dims().len() == rank;
        if fits && lhs.dims()[rank - 1] == rhs.dims()[rank - 2] {
            let sizes = lhs.dims()[..rank - 2].iter().zip(rhs.dims()).map(|(a, b)| if *a == 1 { *b } else { *a });
            let dims: Vec<usize> = sizes.chain([lhs.dims()[rank - 2], rhs.dims()[rank - 1]]).collect();
            return float(Step::MatMul, &[&lhs, &rhs], dims);
        }
        host("float_matmul", lhs.device(), || Flex::float_matmul(ToHost::to_host(lhs), ToHost::to_host(rhs)))
    }

    fn float_swap_dims(tensor: Array, dim1: usize, dim2: usize) -> Array {
        let mut axes: Vec<usize> = (0..tensor.dims().len()).collect();
        axes.swap(dim1, dim2);
        Panoply::float_permute(tensor, &axes)
    }

    fn float_permute(tensor: Array, axes: &[usize]) -> Array {
        match are_floats(&[&tensor]) && axes.iter().all(|axis| *axis < tensor.dims().len()) {
            true => {
                let dims: Vec<usize> = axes.iter().map(|axis| tensor.dims()[*axis]).collect();
                float(Step::Permute(axes.to_vec()), &[&tensor], dims)
            }
            false => host("float_permute", tensor.device(), || Flex::float_permute(ToHost::to_host(tensor), axes)),
        }
    }

    fn float_reshape(tensor: Array, shape: Shape) -> Array {
        match are_floats(&[&tensor]) && shape.len() <= RANK_MAX {
            true => float(Step::Reshape(shape.to_vec()), &[&tensor], shape),
            false => host("float_reshape", tensor.device(), || Flex::float_reshape(ToHost::to_host(tensor), shape)),
        }
    }

    fn float_expand(tensor: Array, shape: Shape) -> Array {
        match are_floats(&[&tensor]) && shape.len() <= RANK_MAX {
            true => float(Step::Expand(shape.to_vec()), &[&tensor], shape),
            false => host("float_expand", tensor.device(), || Flex::float_expand(ToHost::to_host(tensor), shape)),
        }
    }

    fn float_slice(tensor: Array, slices: &[Slice]) -> Array {
        let cuts = slices.iter().zip(tensor.dims()).map(|(slice, size)| cut(slice, *size)).collect::<Option<Vec<_>>>();
        match cuts.filter(|_| are_floats(&[&tensor])) {
            Some(cuts) => {
                let mut dims = tensor.dims().to_vec();
                for (size, [start, end, step]) in dims.iter_mut().zip(&cuts) {
                    *size = (end - start).div_ceil(*step);
                }
                float(Step::Slice(cuts), &[&tensor], dims)
            }
            None => host("float_slice", tensor.device(), || Flex::float_slice(ToHost::to_host(tensor), slices)),
        }
    }

    fn float_select(tensor: Array, dim: usize, indices: Array) -> Array {
        let is_list = is_recordable(&indices, DType::I32) && indices.dims().len() == 1;
        match are_floats(&[&tensor]) && is_list && dim < tensor.dims().len() {
            true => {
                let dims = with_size(&tensor, dim, indices.dims()[0]);
                float(Step::Select(dim), &[&tensor, &indices], dims)
            }
            false => host("float_select", tensor.device(), || {
                Flex::float_select(ToHost::to_host(tensor), dim, ToHost::to_host(indices))
            }),
        }
    }

    fn float_gather(dim: usize, tensor: Array, indices: Array) -> Array {
        let fits = are_floats(&[&tensor]) && is_recordable(&indices, DType::I32) && dim < indices.dims().len();
        match fits && indices.dims() == with_size(&tensor, dim, indices.dims()[dim]) {
            true => float(Step::Gather(dim), &[&tensor, &indices], indices.shape()),
            false => host("float_gather", tensor.device(), || {
                Flex::float_gather(dim, ToHost::to_host(tensor), ToHost::to_host(indices))
            }),
        }
    }

    fn float_scatter(dim: usize, tensor: Array, indices: Array, value: Array, update: IndexingUpdateOp) -> Array {
        let fits = are_floats(&[&tensor, &value]) && is_recordable(&indices, DType::I32) && dim < tensor.dims().len();
        let is_one = fits && indices.dims() == with_size(&tensor, dim, 1) && value.dims() == indices.dims();
        match is_one && matches!(update, IndexingUpdateOp::Add) {
            true => float(Step::AddAt(dim, tensor.dims()[dim]), &[&tensor, &indices, &value], tensor.shape()),
            false => host("float_scatter", tensor.device(), || {
                let (indices, value) = (ToHost::to_host(indices), ToHost::to_host(value));
                Flex::float_scatter(dim, ToHost::to_host(tensor), indices, value, update)
            }),
        }
    }

    fn float_mask_where(tensor: Array, mask: Array, value: Array) -> Array {
        let made = are_floats(&[&tensor, &value])
            .then(|| map(Formula::Where, &[&tensor, &mask, &value], &[], DType::F32));
        made.flatten().unwrap_or_else(|| {
            host("float_mask_where", tensor.device(), || {
                Flex::float_mask_where(ToHost::to_host(tensor), ToHost::to_host(mask), ToHost::to_host(value))
            })
        })
    }

    fn float_mask_fill(tensor: Array, mask: Array, value: Scalar) -> Array {
        let made = are_floats(&[&tensor]).then(|| map(Formula::Where, &[&tensor, &mask], &[value], DType::F32));
        made.flatten().unwrap_or_else(|| {
            host("float_mask_fill", tensor.device(), || {
                Flex::float_mask_fill(ToHost::to_host(tensor), ToHost::to_host(mask), value)
            })
        })
    }

    on_host! {
        fn float_random(shape: Shape, distribution: Distribution, device: &PanoplyDevice, dtype: FloatDType) -> Array;
        fn float_into_int(tensor: Array, out_dtype: IntDType) -> Array;
        fn float_empty(shape: Shape, device: &PanoplyDevice, dtype: FloatDType) -> Array;
        fn float_remainder(lhs: Array, rhs: Array) -> Array;
        fn float_remainder_scalar(lhs: Array, rhs: Scalar) -> Array;
        fn float_cross(lhs: Array, rhs: Array, dim: usize) -> Array;
        fn float_flip(tensor: Array, axes: &[usize]) -> Array;
        fn float_select_assign(tensor: Array, dim: usize, indices: Array, value: Array, update: IndexingUpdateOp) -> Array;
        fn float_slice_assign(tensor: Array, slices: &[Slice], value: Array) -> Array;
        fn float_cumsum(tensor: Array, dim: usize) -> Array;
        fn float_cumprod(tensor: Array, dim: usize) -> Array;
        fn float_cummin(tensor: Array, dim: usize) -> Array;
        fn float_cummax(tensor: Array, dim: usize) -> Array;
        fn float_cast(tensor: Array, dtype: FloatDType) -> Array;
        fn float_log1p(tensor: Array) -> Array;
        fn float_tan(tensor: Array) -> Array;
        fn float_cosh(tensor: Array) -> Array;
        fn float_sinh(tensor: Array) -> Array;
        fn float_acos(tensor: Array) -> Array;
        fn float_acosh(tensor: Array) -> Array;
        fn float_asin(tensor: Array) -> Array;
        fn float_asinh(tensor: Array) -> Array;
        fn float_atan(tensor: Array) -> Array;
        fn float_atanh(tensor: Array) -> Array;
        fn float_atan2(lhs: Array, rhs: Array) -> Array;
        fn float_round(tensor: Array) -> Array;
        fn float_trunc(tensor: Array) -> Array;
        fn float_cat(tensors: Vec<Array>, dim: usize) -> Array;
        fn float_unfold(tensor: Array, dim: usize, size: usize, step: usize) -> Array;
    }
}

impl ActivationOps<Panoply> for Panoply {
    recorded_maps! {
        fn relu(tensor) = Relu;
        fn relu_backward(output, grad) = ReluBackward;
        fn sigmoid(tensor) = Sigmoid;
    }
}
