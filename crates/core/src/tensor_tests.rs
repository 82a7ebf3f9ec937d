//! Tests of views: every view agrees with plain index arithmetic, and no view reaches outside its
//! buffer.

use proptest::prelude::*;

use super::*;

fn counting(dims: &[usize]) -> Tensor {
    let count: usize = dims.iter().product();
    Tensor::from_vec((0..count as i32).collect(), dims).unwrap()
}

#[test]
fn a_view_far_larger_than_its_buffer_is_out_of_memory_when_it_is_copied() {
    let one = Tensor::scalar(1.0_f32).unwrap();
    let wide = one.broadcast_to([1 << 20, 1 << 35]).unwrap();
    assert!(matches!(wide.to_vec::<f32>(), Err(Error::OutOfMemory { .. })));
    assert!(matches!(wide.contiguous(), Err(Error::OutOfMemory { .. })));
    assert!(matches!(Tensor::zeros(DType::F64, [1 << 50]), Err(Error::OutOfMemory { .. })));
    let empty = one.broadcast_to([0, 1 << 40]).unwrap();
    assert_eq!(empty.to_vec::<f32>().unwrap(), []);
}

#[test]
fn a_stride_of_an_axis_that_has_one_element_means_nothing_however_long_it_is() {
    let buffer = Buffer::Host(HostBuffer::from_owner::<i32, _>(vec![5, 6, 7, 8]));
    for stride in [isize::MAX, isize::MIN, -1] {
        let (shape, strides) = (Shape::new([1, 2, 1, 2]).unwrap(), Strides::new([stride, 1, stride, 2]).unwrap());
        let view = Tensor::from_parts(DType::I32, shape, strides, 0, buffer.clone()).unwrap();
        assert_eq!(view.to_vec::<i32>().unwrap(), [5, 7, 6, 8]);
        assert_eq!(view.contiguous().unwrap().to_vec::<i32>().unwrap(), [5, 7, 6, 8]);
        let part = view.slice(1, 1, 2).unwrap().slice_step(0, 0, 1, usize::MAX).unwrap();
        assert_eq!(part.to_vec::<i32>().unwrap(), [6, 8]);
        assert_eq!(view.slice(0, 1, 1).unwrap().to_vec::<i32>().unwrap(), []);
    }
}

#[test]
fn views_share_the_buffer_and_agree_with_index_arithmetic() {
    let tensor = counting(&[2, 3, 4]);
    let turned = tensor.permute(&[2, 0, 1]).unwrap();
    assert_eq!(turned.shape().dims(), [4, 2, 3]);
    assert_eq!(turned.to_vec::<i32>().unwrap()[..6], [0, 4, 8, 12, 16, 20]);
    let part = tensor.slice(1, 1, 3).unwrap().slice_step(2, 0, 4, 2).unwrap();
    assert_eq!(part.to_vec::<i32>().unwrap(), [4, 6, 8, 10, 16, 18, 20, 22]);
    assert!(!part.is_contiguous() && matches!(part.as_slice::<i32>(), Err(Error::NotContiguous { .. })));
    assert_eq!(part.contiguous().unwrap().as_slice::<i32>().unwrap(), part.to_vec::<i32>().unwrap());
    assert_eq!(tensor.slice(0, 1, 2).unwrap().as_bytes().unwrap()[..4], 12_i32.to_ne_bytes());
    assert!(part.as_bytes().is_err());
    let wide = counting(&[3, 1]).broadcast_to([2, 3, 2]).unwrap();
    assert_eq!(wide.to_vec::<i32>().unwrap(), [0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2]);
}

#[test]
fn zero_sized_tensors_are_ordinary() {
    let empty = counting(&[0, 5]);
    assert_eq!(empty.to_vec::<i32>().unwrap(), Vec::<i32>::new());
    assert_eq!(empty.transpose().unwrap().shape().dims(), [5, 0]);
    assert_eq!(empty.reshape([3, 0]).unwrap().as_slice::<i32>().unwrap(), []);
    assert_eq!(counting(&[4]).slice(0, 4, 4).unwrap().elements(), 0);
}

#[test]
fn bad_views_are_typed_errors() {
    let tensor = counting(&[2, 3]);
    assert!(matches!(tensor.slice(0, 0, 3), Err(Error::OutOfBounds { limit: 2, got: 3, .. })));
    assert!(matches!(tensor.slice(2, 0, 0), Err(Error::OutOfBounds { .. })));
    assert!(matches!(tensor.slice_step(0, 0, 2, 0), Err(Error::InvalidArgument { .. })));
    assert!(matches!(tensor.permute(&[0, 0]), Err(Error::InvalidArgument { .. })));
    assert!(matches!(tensor.reshape([4]), Err(Error::ShapeMismatch { .. })));
    assert!(matches!(tensor.broadcast_to([2, 2]), Err(Error::ShapeMismatch { .. })));
    assert!(matches!(tensor.as_slice::<f32>(), Err(Error::DTypeMismatch { .. })));
    assert!(matches!(Tensor::from_vec(vec![1.0_f32], [2]), Err(Error::ShapeMismatch { .. })));
    assert!(matches!(counting(&[3]).transpose(), Err(Error::RankMismatch { got: 1, .. })));
}

#[test]
fn views_beyond_their_buffer_are_refused() {
    let tensor = counting(&[6]);
    let view = |dims: &[usize], steps: &[isize], offset| {
        let (shape, strides) = (Shape::new(dims).unwrap(), Strides::new(steps).unwrap());
        Tensor::from_parts(DType::I32, shape, strides, offset, tensor.buffer().clone())
    };
    assert!(matches!(view(&[7], &[1], 0), Err(Error::OutOfBounds { limit: 5, got: 6, .. })));
    assert!(matches!(view(&[2], &[-1], 0), Err(Error::OutOfBounds { .. })));
    assert!(matches!(view(&[2], &[isize::MAX], 1), Err(Error::SizeOverflow { .. })));
    assert!(matches!(view(&[3], &[isize::MIN], 1), Err(Error::SizeOverflow { .. })));
    assert!(matches!(view(&[1], &[1], usize::MAX), Err(Error::SizeOverflow { .. })));
    assert!(matches!(view(&[1, 1], &[1], 0), Err(Error::RankMismatch { .. })));
    let backwards = view(&[6], &[-1], 5).unwrap();
    assert_eq!(backwards.to_vec::<i32>().unwrap(), [5, 4, 3, 2, 1, 0]);
}

proptest! {
    #[test]
    fn any_view_that_is_accepted_stays_inside(
        dims in prop::collection::vec(0_usize..5, 0..4),
        steps in prop::collection::vec(-7_isize..8, 0..4),
        offset in 0_usize..40,
    ) {
        let tensor = counting(&[32]);
        let (shape, strides) = (Shape::new(&dims).unwrap(), Strides::new(&steps).unwrap());
        if let Ok(view) = Tensor::from_parts(DType::I32, shape, strides, offset, tensor.buffer().clone()) {
            prop_assert_eq!(view.to_vec::<i32>().unwrap().len(), view.elements());
            prop_assert!(view.indices().all(|index| index < 32));
        }
    }
}

#[test]
fn a_copy_of_a_secret_is_secret() {
    let secret = crate::Bytes::secret((0..100).collect()).unwrap().to_tensor().unwrap();
    let apart = secret.slice_step(0, 1, 100, 3).unwrap();
    assert!(!apart.is_contiguous() && apart.contiguous().unwrap().buffer().is_secret());
    assert_eq!(apart.contiguous().unwrap().to_vec::<u8>().unwrap()[..3], [1, 4, 7]);
    let plain = Tensor::from_vec((0_u8..100).collect(), [100]).unwrap().slice_step(0, 1, 100, 3).unwrap();
    assert!(!plain.contiguous().unwrap().buffer().is_secret());
}
