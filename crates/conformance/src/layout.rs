//! Layouts of test tensors: the same elements with other strides, on the host and on devices.

use panoply_core::op::compute::Transfer;
use panoply_core::{DType, Engine, HostBufferMut, Operation, Result, Shape, Tensor, bf16};
use panoply_simulated::run_there;

/// The axes of a tensor from the outermost in memory to the innermost.
fn memory_order(tensor: &Tensor) -> Vec<usize> {
    let mut order: Vec<usize> = (0..tensor.shape().rank()).collect();
    if !tensor.is_contiguous() {
        order.sort_by_key(|axis| std::cmp::Reverse(tensor.strides()[*axis].unsigned_abs()));
    }
    order
}

fn inverse(order: &[usize]) -> Vec<usize> {
    let mut inverse = vec![0; order.len()];
    order.iter().enumerate().for_each(|(place, axis)| inverse[*axis] = place);
    inverse
}

/// The elements of `tensor` with the memory order of `like`, which must have the same shape.
pub(crate) fn laid_out_like(tensor: &Tensor, like: &Tensor) -> Result<Tensor> {
    if like.is_contiguous() {
        return tensor.contiguous();
    }
    let order = memory_order(like);
    tensor.permute(&order)?.contiguous()?.permute(&inverse(&order))
}

/// The tensor on an engine's device, with the same memory order as on the host: a view stays a
/// view.
pub(crate) fn resident(engine: &mut dyn Engine, tensor: &Tensor) -> Result<Tensor> {
    let order = memory_order(tensor);
    let transfer = Transfer::to_device(&tensor.permute(&order)?, engine.info().id).into_op()?;
    run_there(engine, transfer)?.into_tensor()?.permute(&inverse(&order))
}

/// The same elements in memory where every row of the first axis occurs twice and the second copy
/// is skipped.
pub(crate) fn spread(tensor: &Tensor) -> Result<Tensor> {
    let contiguous = tensor.contiguous()?;
    let bytes = contiguous.as_bytes()?;
    let Some(rows) = tensor.shape().first().copied().filter(|rows| *rows > 0 && !bytes.is_empty()) else {
        return Ok(tensor.clone());
    };
    let mut buffer = HostBufferMut::zeroed(2 * bytes.len())?;
    let row_bytes = bytes.len() / rows;
    for (row, target) in bytes.chunks_exact(row_bytes).zip(buffer.bytes_mut().chunks_exact_mut(2 * row_bytes)) {
        target[..row_bytes].copy_from_slice(row);
        target[row_bytes..].copy_from_slice(row);
    }
    let shape: Shape = tensor.shape().with_dim(0, 2 * rows)?;
    Tensor::from_host(tensor.dtype(), shape, buffer.freeze())?.slice_step(0, 0, 2 * rows, 2)
}

/// The tensor with every subnormal number that a device may flush replaced by a zero of the same
/// sign.
pub(crate) fn without_subnormals(tensor: &Tensor) -> Result<Tensor> {
    let flushed = match tensor.dtype() {
        DType::F32 => {
            let flush = |x: f32| if x.is_subnormal() { 0.0_f32.copysign(x) } else { x };
            let values = tensor.to_vec::<f32>()?;
            let has_any = values.iter().any(|x| x.is_subnormal());
            has_any.then(|| Tensor::from_vec(values.into_iter().map(flush).collect(), tensor.shape().dims()))
        }
        DType::BF16 => {
            let is_subnormal = |x: &bf16| x.to_f32().is_subnormal();
            let flush = |x: bf16| if is_subnormal(&x) { bf16::from_f32(0.0_f32.copysign(x.to_f32())) } else { x };
            let values = tensor.to_vec::<bf16>()?;
            let has_any = values.iter().any(is_subnormal);
            has_any.then(|| Tensor::from_vec(values.into_iter().map(flush).collect(), tensor.shape().dims()))
        }
        _ => None,
    };
    flushed.map_or_else(|| Ok(tensor.clone()), |flushed| laid_out_like(&flushed?, tensor))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::random_tensor;

    #[test]
    fn other_elements_lie_as_those_before() {
        let like = random_tensor(DType::F32, &[4, 3, 2], 1).permute(&[2, 0, 1]).unwrap();
        let tensor = random_tensor(DType::F32, &[2, 4, 3], 2);
        let laid = laid_out_like(&tensor, &like).unwrap();
        assert_eq!((laid.strides(), laid.is_contiguous()), (like.strides(), false));
        assert_eq!(laid.to_vec::<f32>().unwrap(), tensor.to_vec::<f32>().unwrap());
    }

    #[test]
    fn subnormal_numbers_alone_become_zero() {
        let values = vec![1e-40_f32, -1e-40, 1.0, f32::NAN, -0.0, f32::MIN_POSITIVE];
        let tensor = Tensor::from_vec(values, [2, 3]).unwrap().transpose().unwrap();
        let flushed = without_subnormals(&tensor).unwrap();
        assert_eq!(flushed.strides(), tensor.strides());
        let bits: Vec<u32> = flushed.to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect();
        let expected = [0.0, f32::NAN, -0.0, -0.0, 1.0, f32::MIN_POSITIVE];
        assert_eq!(bits, expected.map(f32::to_bits));
    }
}
