//! Tests of the arguments that convolution and pooling accept and refuse.

use proptest::prelude::*;

use crate::dtype::DType;
use crate::error::Error;
use crate::op::Operation;
use crate::op::compute::{Conv2d, Conv2dBackwardInput, Conv2dBackwardWeight, ConvOptions, ConvShape, Pool2d};
use crate::tensor::Tensor;

fn zeros(dims: &[usize]) -> Tensor {
    Tensor::zeros(DType::F32, dims).unwrap()
}

#[test]
fn shapes_follow_from_stride_padding_and_dilation() {
    let op = Conv2d::new(&zeros(&[2, 4, 9, 7]), &zeros(&[6, 2, 3, 2]))
        .stride([2, 1])
        .padding([1, 0, 2, 1])
        .dilation([2, 3])
        .groups(2);
    assert_eq!(op.output_shape().unwrap().dims(), [2, 6, 4, 5]);
    assert!(op.into_op().is_ok());
    let pool = Pool2d::max(&zeros(&[1, 3, 7, 8]), [3, 3]).stride([2, 2]).padding([1, 1, 1, 1]);
    assert_eq!(pool.output_shape().unwrap().dims(), [1, 3, 4, 4]);
    assert_eq!(Pool2d::global_average(&zeros(&[2, 3, 7, 8])).output_shape().unwrap().dims(), [2, 3, 1, 1]);
}

#[test]
fn every_product_of_an_image_is_visited_once() {
    let options = ConvOptions { stride: [2, 3], padding: [2, 1, 0, 4], dilation: [3, 2], groups: 2 };
    let shape = ConvShape::new([2, 4, 7, 9], [6, 2, 3, 2], &options).unwrap();
    let mut visited = Vec::new();
    shape.for_each_product(|at| visited.push((at.output, at.weight, at.input)));
    let count = visited.len();
    visited.sort_unstable();
    visited.dedup();
    assert_eq!(visited.len(), count, "a product was visited twice");
    // Along one axis: (output, tap, position in the image), without those in the padding.
    let axis = |axis: usize, outputs: usize| -> Vec<[usize; 3]> {
        let (first, size) = (options.padding[axis], shape.input[axis]);
        let taps = |output: usize| (0..shape.kernel[axis]).map(move |tap| (output, tap));
        let padded = |(output, tap)| (output, tap, output * options.stride[axis] + tap * options.dilation[axis]);
        let is_inside = |&(_, _, at): &(usize, usize, usize)| at >= first && at < first + size;
        let inside = (0..outputs).flat_map(taps).map(padded).filter(is_inside);
        inside.map(|(output, tap, at)| [output, tap, at - first]).collect()
    };
    // (2 + 7 + 0 - 7) / 2 + 1 rows, and (1 + 9 + 4 - 3) / 3 + 1 columns.
    let (rows, columns) = (axis(0, 2), axis(1, 4));
    let mut expected = Vec::new();
    for (image, filter, channel) in (0..2).flat_map(|n| (0..6).flat_map(move |f| (0..2).map(move |c| (n, f, c)))) {
        // The first three filters read the first two channels, the others the last two.
        let read = if filter < 3 { channel } else { 2 + channel };
        for ([row, down, y], [column, across, x]) in rows.iter().flat_map(|row| columns.iter().map(move |c| (*row, *c)))
        {
            let output = [image, filter, row, column];
            expected.push((output, [filter, channel, down, across], [image, read, y, x]));
        }
    }
    expected.sort_unstable();
    assert_eq!(visited, expected);
    // Row 0 reads the image with two of three taps and row 1 with all, columns 0 and 3 with one tap
    // of two and the others with both.
    assert_eq!((rows.len(), columns.len(), count), (5, 6, 2 * 6 * 2 * 5 * 6));
    assert!(visited.iter().all(|(_, _, [_, _, y, x])| *y < 7 && *x < 9));
}

#[test]
fn bad_convolutions_are_named() {
    let (input, weights) = (zeros(&[1, 4, 5, 5]), zeros(&[6, 4, 3, 3]));
    let op = || Conv2d::new(&input, &weights);
    assert!(op().into_op().is_ok());
    let bad = |op: Conv2d| op.into_op().unwrap_err();
    assert!(matches!(bad(op().stride([0, 1])), Error::InvalidArgument { what: "conv2d stride", .. }));
    assert!(matches!(bad(op().dilation([1, 0])), Error::InvalidArgument { what: "conv2d dilation", .. }));
    assert!(matches!(bad(op().groups(0)), Error::InvalidArgument { what: "conv2d groups", .. }));
    assert!(matches!(bad(op().groups(3)), Error::InvalidArgument { what: "conv2d channels", .. }));
    assert!(matches!(bad(op().groups(4)), Error::InvalidArgument { what: "conv2d filters", .. }));
    assert!(matches!(
        bad(op().groups(2)),
        Error::ShapeMismatch { expected, got, .. } if expected == [6, 2, 3, 3] && got == [6, 4, 3, 3]
    ));
    assert!(matches!(bad(op().dilation([3, 1])), Error::InvalidArgument { what: "conv2d kernel", .. }));
    assert!(matches!(bad(op().dilation([usize::MAX, 1])), Error::InvalidArgument { what: "conv2d kernel", .. }));
    assert!(matches!(bad(op().padding([usize::MAX, 0, 1, 0])), Error::SizeOverflow { .. }));
    assert!(matches!(bad(op().padding([1 << 60, 0, 0, 0])), Error::SizeOverflow { .. }));
    assert!(matches!(bad(op().bias(&zeros(&[5]))), Error::ShapeMismatch { what: "conv2d bias", .. }));
    assert!(matches!(bad(Conv2d::new(&zeros(&[4, 5, 5]), &weights)), Error::RankMismatch { got: 3, .. }));
    let doubles = Tensor::zeros(DType::F64, [6, 4, 3, 3]).unwrap();
    assert!(matches!(bad(Conv2d::new(&input, &doubles)), Error::DTypeMismatch { what: "conv2d weights", .. }));
    let integers = Tensor::zeros(DType::I32, [1, 4, 5, 5]).unwrap();
    assert!(matches!(bad(Conv2d::new(&integers, &weights)), Error::DTypeUnsupported { .. }));
    assert!(matches!(bad(Conv2d::new(&input, &zeros(&[6, 4, 0, 3]))), Error::InvalidArgument { .. }));
}

#[test]
fn gradients_must_have_the_outputs_shape() {
    let (input, weights, gradient) = (zeros(&[1, 4, 5, 6]), zeros(&[6, 4, 3, 3]), zeros(&[1, 6, 3, 4]));
    let op = Conv2dBackwardInput::new(&gradient, &weights, [5, 6]);
    assert_eq!(op.output_shape().unwrap().dims(), [1, 4, 5, 6]);
    let op = Conv2dBackwardWeight::new(&input, &gradient, [3, 3]);
    assert_eq!(op.output_shape().unwrap().dims(), [6, 4, 3, 3]);
    let error = Conv2dBackwardInput::new(&gradient, &weights, [6, 6]).into_op().unwrap_err();
    assert!(matches!(error, Error::ShapeMismatch { expected, .. } if expected == [1, 6, 4, 4]));
    let error = Conv2dBackwardWeight::new(&input, &gradient, [3, 2]).into_op().unwrap_err();
    assert!(matches!(error, Error::ShapeMismatch { expected, .. } if expected == [1, 6, 3, 5]));
}

#[test]
fn steps_and_windows_of_any_size_can_be_multiplied() {
    for size in [1, 5] {
        let pool = Pool2d::average(&zeros(&[1, 1, size, size]), [1, 1]).stride([usize::MAX, usize::MAX]);
        let shape = pool.pool_shape().unwrap();
        assert_eq!((shape.output(), shape.stride), ([1, 1], [size, size]));
        assert_eq!(shape.window(0, 0), 0..1);
    }
    let vast = [1 << 40, 1 << 40];
    let pool = Pool2d::average(&zeros(&[1, 1, 1, 1]), vast).padding([vast[0] - 1; 4]).count_padding(true);
    assert!(matches!(pool.into_op().unwrap_err(), Error::SizeOverflow { what: "pool2d kernel", .. }));
}

#[test]
fn bad_poolings_are_named() {
    let input = zeros(&[1, 2, 5, 5]);
    let bad = |op: Pool2d| op.into_op().unwrap_err();
    assert!(matches!(bad(Pool2d::max(&input, [0, 1])), Error::InvalidArgument { what: "pool2d kernel", .. }));
    assert!(matches!(bad(Pool2d::max(&input, [6, 1])), Error::InvalidArgument { what: "pool2d kernel", .. }));
    let op = Pool2d::max(&input, [2, 2]);
    assert!(matches!(bad(op.clone().padding([2, 0, 0, 0])), Error::InvalidArgument { what: "pool2d padding", .. }));
    assert!(matches!(bad(op.stride([0, 1])), Error::InvalidArgument { what: "pool2d stride", .. }));
    assert!(bad(Pool2d::global_max(&zeros(&[1, 2, 0, 5]))).to_string().contains("at least 1"));
    assert!(matches!(bad(Pool2d::global_max(&zeros(&[2, 5]))), Error::RankMismatch { got: 2, .. }));
}

proptest! {
    #[test]
    fn no_sizes_panic(
        input in prop::array::uniform4(any::<usize>()),
        weights in prop::array::uniform4(0_usize..6),
        small in prop::array::uniform4(0_usize..9),
        stride in prop::array::uniform2(any::<usize>()),
        padding in prop::array::uniform4(prop_oneof![0_usize..9, any::<usize>()]),
        dilation in prop::array::uniform2(prop_oneof![0_usize..4, any::<usize>()]),
        groups in 0_usize..4,
    ) {
        let options = ConvOptions { stride, padding, dilation, groups };
        for input in [input, small] {
            if let Ok(shape) = ConvShape::new(input, weights, &options) {
                let _ = shape.output_len();
                prop_assert!(shape.stride.iter().all(|stride| *stride <= isize::MAX as usize));
            }
        }
    }
}
