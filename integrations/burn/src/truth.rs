//! Burn's ops on true and false. The few that masks are made with are recorded.

use burn_backend::ops::BoolTensorOps;
use burn_backend::{DType, ExecutionError, Scalar, Shape, Slice, TensorData, TensorMetadata};
use burn_flex::{Flex, FlexTensor};
use burn_std::{BoolDType, FloatDType, IntDType};

use crate::array::Array;
use crate::backend::Panoply;
use crate::device::PanoplyDevice;
use crate::float::{map, read};
use crate::formula::Formula;
use crate::host::{ToHost, count, on_host};

macro_rules! recorded_truths {
    ($(fn $name:ident($first:ident $(, $more:ident)*) = $formula:ident;)*) => {
        $(fn $name($first: Array $(, $more: Array)*) -> Array {
            map(Formula::$formula, &[&$first $(, &$more)*], &[], $first.dtype()).unwrap_or_else(|| {
                count(stringify!($name));
                let device = $first.device();
                Array::from_host(Flex::$name(ToHost::to_host($first) $(, ToHost::to_host($more))*), device)
            })
        })*
    };
}

impl BoolTensorOps<Panoply> for Panoply {
    fn bool_from_data(data: TensorData, device: &PanoplyDevice) -> Array {
        Array::from_host(FlexTensor::from_data(data), *device)
    }

    async fn bool_into_data(tensor: Array) -> Result<TensorData, ExecutionError> {
        read(&tensor)
    }

    fn bool_to_device(tensor: Array, device: &PanoplyDevice) -> Array {
        tensor.on(*device)
    }

    fn bool_into_float(tensor: Array, out: FloatDType) -> Array {
        let made = (out == FloatDType::F32).then(|| map(Formula::Same, &[&tensor], &[], DType::F32));
        made.flatten().unwrap_or_else(|| {
            count("bool_into_float");
            let device = tensor.device();
            Array::from_host(Flex::bool_into_float(ToHost::to_host(tensor), out), device)
        })
    }

    recorded_truths! {
        fn bool_not(tensor) = Not;
        fn bool_and(lhs, rhs) = And;
        fn bool_or(lhs, rhs) = Or;
    }

    on_host! {
        fn bool_empty(shape: Shape, device: &PanoplyDevice, dtype: BoolDType) -> Array;
        fn bool_zeros(shape: Shape, device: &PanoplyDevice, dtype: BoolDType) -> Array;
        fn bool_ones(shape: Shape, device: &PanoplyDevice, dtype: BoolDType) -> Array;
        fn bool_into_int(tensor: Array, out_dtype: IntDType) -> Array;
        fn bool_reshape(tensor: Array, shape: Shape) -> Array;
        fn bool_slice(tensor: Array, slices: &[Slice]) -> Array;
        fn bool_slice_assign(tensor: Array, slices: &[Slice], value: Array) -> Array;
        fn bool_mask_where(tensor: Array, mask: Array, value: Array) -> Array;
        fn bool_mask_fill(tensor: Array, mask: Array, value: Scalar) -> Array;
        fn bool_gather(dim: usize, tensor: Array, indices: Array) -> Array;
        fn bool_scatter_or(dim: usize, tensor: Array, indices: Array, value: Array) -> Array;
        fn bool_select(tensor: Array, dim: usize, indices: Array) -> Array;
        fn bool_select_or(tensor: Array, dim: usize, indices: Array, value: Array) -> Array;
        fn bool_cat(tensors: Vec<Array>, dim: usize) -> Array;
        fn bool_equal(lhs: Array, rhs: Array) -> Array;
        fn bool_equal_elem(lhs: Array, rhs: Scalar) -> Array;
        fn bool_swap_dims(tensor: Array, dim1: usize, dim2: usize) -> Array;
        fn bool_permute(tensor: Array, axes: &[usize]) -> Array;
        fn bool_flip(tensor: Array, axes: &[usize]) -> Array;
        fn bool_expand(tensor: Array, shape: Shape) -> Array;
        fn bool_unfold(tensor: Array, dim: usize, size: usize, step: usize) -> Array;
    }
}
