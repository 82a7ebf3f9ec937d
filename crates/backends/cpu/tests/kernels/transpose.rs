//! Strided copies against the definition, at every vector level.

use panoply_cpu::transpose::*;
use panoply_cpu_machine::simd::Simd;
use panoply_cpu_machine::team::Team;

/// The definition: every element, one by one.
fn naive(view: &StridedView<'_>) -> Vec<u8> {
    let elements: usize = view.dims.iter().product();
    let mut out = Vec::with_capacity(elements * view.element_bytes);
    for nth in 0..elements {
        let (mut left, mut at) = (nth, view.offset as isize);
        for (&dim, &stride) in view.dims.iter().zip(view.strides).rev() {
            at += (left % dim) as isize * stride;
            left /= dim;
        }
        let start = at as usize * view.element_bytes;
        out.extend_from_slice(&view.bytes[start..start + view.element_bytes]);
    }
    out
}

fn check(dims: &[usize], strides: &[isize], offset: usize, memory_elements: usize) {
    for element_bytes in [1, 2, 4, 8, 16] {
        let mut state = 12345_u32;
        let bytes: Vec<u8> = (0..memory_elements * element_bytes)
            .map(|_| {
                state = state.wrapping_mul(1664525).wrapping_add(1013904223);
                (state >> 24) as u8
            })
            .collect();
        let view = StridedView { bytes: &bytes, element_bytes, dims, strides, offset };
        let expected = naive(&view);
        for simd in Simd::available() {
            for team in [Team::single(), Team::new(2)] {
                let mut out = vec![0; expected.len()];
                copy_strided_at(simd, &team, &view, &mut out).expect("a valid view");
                assert!(out == expected, "{dims:?} {strides:?} {element_bytes} {simd:?}");
            }
        }
    }
}

/// Checks the permutation of a contiguous tensor.
fn permute(shape: &[usize], order: &[usize]) {
    let mut strides = vec![1_isize; shape.len()];
    for axis in (0..shape.len().saturating_sub(1)).rev() {
        strides[axis] = strides[axis + 1] * shape[axis + 1] as isize;
    }
    let dims: Vec<usize> = order.iter().map(|&axis| shape[axis]).collect();
    let permuted: Vec<isize> = order.iter().map(|&axis| strides[axis]).collect();
    check(&dims, &permuted, 0, shape.iter().product());
}

#[test]
fn permutations_of_awkward_shapes() {
    permute(&[], &[]);
    permute(&[1], &[0]);
    permute(&[7], &[0]);
    for (rows, columns) in
        [(1, 5), (5, 1), (3, 1009), (1009, 3), (64, 64), (65, 127), (16, 130), (128, 512), (300, 257)]
    {
        permute(&[rows, columns], &[1, 0]);
    }
    permute(&[2, 17, 19, 3], &[0, 3, 1, 2]);
    permute(&[2, 3, 17, 19], &[0, 2, 3, 1]);
    permute(&[2, 64, 5, 24], &[0, 2, 1, 3]);
    permute(&[3, 5, 7, 11, 2], &[4, 2, 0, 3, 1]);
    permute(&[1, 33, 1, 31], &[3, 2, 1, 0]);
    for channels in 2..=17 {
        permute(&[2, channels, 211], &[0, 2, 1]);
        permute(&[2, 211, channels], &[0, 2, 1]);
    }
    permute(&[3, 40_000], &[1, 0]);
    permute(&[40_000, 3], &[1, 0]);
}

#[test]
fn conflicting_strides_are_packed() {
    permute(&[130, 4096], &[1, 0]);
}

#[test]
fn slices_steps_reversals_and_broadcasts() {
    check(&[10, 20], &[-20, -1], 199, 200);
    check(&[10, 7], &[20, 3], 1, 200);
    check(&[7, 10], &[3, 20], 1, 200);
    check(&[50, 40, 30], &[0, 1, 40], 0, 1200);
    check(&[40, 50], &[1, 0], 3, 43);
    check(&[100, 70], &[1, -100], 6900, 7000);
    check(&[70, 100], &[-1, 70], 69, 7000);
    check(&[5], &[0], 2, 3);
    check(&[200_003], &[2], 0, 400_006);
}

#[test]
fn large_copies_are_shared_between_threads() {
    permute(&[400, 300, 5], &[1, 0, 2]);
    check(&[3, 300_000], &[300_010, 1], 0, 900_030);
}

#[test]
fn empty_views_read_nothing() {
    check(&[0], &[1], 0, 0);
    check(&[4, 0, usize::MAX], &[1, 1, 1], 0, 0);
}

#[test]
fn bad_views_are_refused() {
    let team = Team::single();
    let refuse = |element_bytes, dims: &[usize], strides: &[isize], offset, out: usize| {
        let view = StridedView { bytes: &[0; 64], element_bytes, dims, strides, offset };
        copy_strided(&team, &view, &mut vec![0; out]).expect_err("a bad view")
    };
    assert_eq!(refuse(3, &[1], &[1], 0, 3), StridedError::ElementSize { got: 3 });
    assert_eq!(refuse(4, &[1], &[1, 1], 0, 4), StridedError::Rank { dims: 1, strides: 2 });
    assert_eq!(refuse(4, &[2], &[1], 0, 4), StridedError::OutputLen { expected: 8, got: 4 });
    assert_eq!(refuse(4, &[0], &[1], 0, 4), StridedError::OutputLen { expected: 0, got: 4 });
    assert_eq!(refuse(4, &[17], &[1], 0, 68), StridedError::OutOfBounds);
    assert_eq!(refuse(4, &[16], &[1], 1, 64), StridedError::OutOfBounds);
    assert_eq!(refuse(4, &[2], &[-1], 0, 8), StridedError::OutOfBounds);
    assert_eq!(refuse(4, &[2], &[isize::MAX], 0, 8), StridedError::OutOfBounds);
    assert_eq!(refuse(4, &[2], &[isize::MIN], usize::MAX, 8), StridedError::OutOfBounds);
    assert_eq!(refuse(4, &[usize::MAX, 3], &[0, 0], 0, 8), StridedError::OutOfBounds);
}
