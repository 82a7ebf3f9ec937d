//! Burn's ops on whole numbers: those of its CPU backend.

use burn_backend::ops::IntTensorOps;
use burn_backend::tensor::IndexingUpdateOp;
use burn_backend::{Distribution, ExecutionError, Scalar, Shape, Slice, TensorData};
use burn_flex::FlexTensor;
use burn_std::{BoolDType, FloatDType, IntDType};

use crate::array::Array;
use crate::backend::Panoply;
use crate::device::PanoplyDevice;
use crate::float::read;
use crate::host::on_host;

impl IntTensorOps<Panoply> for Panoply {
    fn int_from_data(data: TensorData, device: &PanoplyDevice) -> Array {
        Array::from_host(FlexTensor::from_data(data), *device)
    }

    async fn int_into_data(tensor: Array) -> Result<TensorData, ExecutionError> {
        read(&tensor)
    }

    fn int_to_device(tensor: Array, device: &PanoplyDevice) -> Array {
        tensor.on(*device)
    }

    on_host! {
        fn int_empty(shape: Shape, device: &PanoplyDevice, dtype: IntDType) -> Array;
        fn int_reshape(tensor: Array, shape: Shape) -> Array;
        fn int_slice(tensor: Array, slices: &[Slice]) -> Array;
        fn int_slice_assign(tensor: Array, slices: &[Slice], value: Array) -> Array;
        fn int_into_float(tensor: Array, out_dtype: FloatDType) -> Array;
        fn int_mask_where(tensor: Array, mask: Array, value: Array) -> Array;
        fn int_mask_fill(tensor: Array, mask: Array, value: Scalar) -> Array;
        fn int_gather(dim: usize, tensor: Array, indices: Array) -> Array;
        fn int_scatter(dim: usize, tensor: Array, indices: Array, value: Array, update: IndexingUpdateOp) -> Array;
        fn int_select(tensor: Array, dim: usize, indices: Array) -> Array;
        fn int_select_assign(tensor: Array, dim: usize, indices: Array, value: Array, update: IndexingUpdateOp) -> Array;
        fn int_cat(tensors: Vec<Array>, dim: usize) -> Array;
        fn int_equal(lhs: Array, rhs: Array, out_dtype: BoolDType) -> Array;
        fn int_equal_elem(lhs: Array, rhs: Scalar, out_dtype: BoolDType) -> Array;
        fn int_greater(lhs: Array, rhs: Array, out_dtype: BoolDType) -> Array;
        fn int_greater_elem(lhs: Array, rhs: Scalar, out_dtype: BoolDType) -> Array;
        fn int_greater_equal(lhs: Array, rhs: Array, out_dtype: BoolDType) -> Array;
        fn int_greater_equal_elem(lhs: Array, rhs: Scalar, out_dtype: BoolDType) -> Array;
        fn int_lower(lhs: Array, rhs: Array, out_dtype: BoolDType) -> Array;
        fn int_lower_elem(lhs: Array, rhs: Scalar, out_dtype: BoolDType) -> Array;
        fn int_lower_equal(lhs: Array, rhs: Array, out_dtype: BoolDType) -> Array;
        fn int_lower_equal_elem(lhs: Array, rhs: Scalar, out_dtype: BoolDType) -> Array;
        fn int_add(lhs: Array, rhs: Array) -> Array;
        fn int_add_scalar(lhs: Array, rhs: Scalar) -> Array;
        fn int_sub(lhs: Array, rhs: Array) -> Array;
        fn int_sub_scalar(lhs: Array, rhs: Scalar) -> Array;
        fn int_mul(lhs: Array, rhs: Array) -> Array;
        fn int_mul_scalar(lhs: Array, rhs: Scalar) -> Array;
        fn int_div(lhs: Array, rhs: Array) -> Array;
        fn int_div_scalar(lhs: Array, rhs: Scalar) -> Array;
        fn int_remainder(lhs: Array, rhs: Array) -> Array;
        fn int_remainder_scalar(lhs: Array, rhs: Scalar) -> Array;
        fn int_matmul(lhs: Array, rhs: Array) -> Array;
        fn int_sum(tensor: Array) -> Array;
        fn int_sum_dim(tensor: Array, dim: usize) -> Array;
        fn int_prod(tensor: Array) -> Array;
        fn int_prod_dim(tensor: Array, dim: usize) -> Array;
        fn int_mean_dim(tensor: Array, dim: usize) -> Array;
        fn int_cumsum(tensor: Array, dim: usize) -> Array;
        fn int_cumprod(tensor: Array, dim: usize) -> Array;
        fn int_cummin(tensor: Array, dim: usize) -> Array;
        fn int_cummax(tensor: Array, dim: usize) -> Array;
        fn int_argmax(tensor: Array, dim: usize) -> Array;
        fn int_argmin(tensor: Array, dim: usize) -> Array;
        fn int_abs(tensor: Array) -> Array;
        fn int_swap_dims(tensor: Array, dim1: usize, dim2: usize) -> Array;
        fn int_permute(tensor: Array, axes: &[usize]) -> Array;
        fn int_flip(tensor: Array, axes: &[usize]) -> Array;
        fn int_random(shape: Shape, distribution: Distribution, device: &PanoplyDevice, dtype: IntDType) -> Array;
        fn int_expand(tensor: Array, shape: Shape) -> Array;
        fn bitwise_and(lhs: Array, rhs: Array) -> Array;
        fn bitwise_and_scalar(lhs: Array, rhs: Scalar) -> Array;
        fn bitwise_or(lhs: Array, rhs: Array) -> Array;
        fn bitwise_or_scalar(lhs: Array, rhs: Scalar) -> Array;
        fn bitwise_xor(lhs: Array, rhs: Array) -> Array;
        fn bitwise_xor_scalar(lhs: Array, rhs: Scalar) -> Array;
        fn bitwise_not(tensor: Array) -> Array;
        fn bitwise_left_shift(lhs: Array, rhs: Array) -> Array;
        fn bitwise_left_shift_scalar(lhs: Array, rhs: Scalar) -> Array;
        fn bitwise_right_shift(lhs: Array, rhs: Array) -> Array;
        fn bitwise_right_shift_scalar(lhs: Array, rhs: Scalar) -> Array;
        fn int_cast(tensor: Array, dtype: IntDType) -> Array;
        fn int_unfold(tensor: Array, dim: usize, size: usize, step: usize) -> Array;
    }
}
