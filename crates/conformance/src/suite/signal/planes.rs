//! Convolve2 and FindPeaks: from one kernel element to more than the plane has, extents, views;
//! peaks that are equal, flat, at edges, NaN and infinite.

use panoply_core::op::signal::{Convolve2, Extent, FindPeaks};
use panoply_core::{DType, Tensor};

use super::fft::random_complex;
use crate::suite::case::Case;
use crate::tolerance::Tolerance;
use crate::values::random_tensor;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    add_convolve2(&mut cases);
    add_peaks(&mut cases);
    cases
}

fn samples(dtype: DType, dims: &[usize], seed: u64) -> Tensor {
    match dtype {
        DType::Complex64 => random_complex(dims, seed),
        _ => random_tensor(dtype, dims, seed),
    }
}

fn made(tensor: panoply_core::Result<Tensor>) -> Tensor {
    tensor.unwrap_or_else(|error| panic!("a test tensor: {error}"))
}

/// The tolerance for sums of `terms` products of numbers up to 1, also if computed by transforms. A
/// transform spreads the rounding of the whole image over every sum: of three million sums on a
/// GPU, one of 1,320 terms differed by 6e-6 for each root of a term.
fn sums(terms: usize) -> Tolerance {
    Tolerance::Close { relative: 2e-6, absolute: 4e-7 * (terms.max(4) as f64).sqrt() * 12.0 }
}

fn add_convolve2(cases: &mut Vec<Case>) {
    let kinds = [(DType::F32, DType::F32), (DType::Complex64, DType::F32), (DType::Complex64, DType::Complex64)];
    for (dtype, kernel_dtype) in kinds {
        for (kernel, dims) in [
            ([1, 1], &[1, 1][..]),
            ([3, 3], &[0, 5]),
            ([3, 3], &[2, 5, 0]),
            ([3, 3], &[2, 9, 13]),
            ([1, 5], &[7, 30]),
            ([4, 1], &[20, 6]),
            ([7, 9], &[4, 5]),
            ([2, 8], &[5, 3]),
            ([16, 21], &[64, 70]),
            ([40, 33], &[96, 80]),
        ] {
            for extent in [Extent::Full, Extent::Same, Extent::Valid] {
                let (input, other) = (samples(dtype, dims, 190), samples(kernel_dtype, &kernel, 191));
                let (types, terms) = (format!("{}x{}", dtype.name(), kernel_dtype.name()), kernel[0] * kernel[1]);
                let what = format!("{types}/{dims:?}k{kernel:?}/{extent:?}");
                let convolution = Convolve2::new(&input, &other).extent(extent);
                cases.push(Case::new(format!("convolve2/{what}"), convolution, sums(terms)));
                let correlation = Convolve2::correlation(&input, &other).extent(extent);
                cases.push(Case::new(format!("correlate2/{what}"), correlation, sums(terms)));
            }
        }
    }
    let view = made(random_tensor(DType::F32, &[31, 22], 192).transpose());
    let kernel = made(random_tensor(DType::F32, &[6, 6], 193).slice_step(1, 0, 6, 2));
    cases.push(Case::new("convolve2/f32/view", Convolve2::new(&view, &kernel), sums(18)));
}

fn add_peaks(cases: &mut Vec<Case>) {
    for dtype in [DType::F32, DType::Complex64] {
        for (count, distance, dims) in
            [(1, 1, &[1][..]), (3, 1, &[0]), (4, 2, &[3, 50]), (100, 7, &[2, 300]), (5, 1000, &[64]), (8, 3, &[2000])]
        {
            let op = FindPeaks::new(&samples(dtype, dims, 194), count).distance(distance);
            cases.push(Case::new(format!("find_peaks/{}/{dims:?}", dtype.name()), op, Tolerance::Exact));
        }
        for (count, distance, dims) in
            [(2, 1, &[1, 1][..]), (2, 1, &[0, 4]), (9, 1, &[2, 20, 31]), (20, 4, &[40, 33]), (3, 100, &[9, 12])]
        {
            let op = FindPeaks::planes(&samples(dtype, dims, 195), count).distance(distance).at_least(0.25);
            cases.push(Case::new(format!("find_peaks/{}/plane{dims:?}", dtype.name()), op, Tolerance::Exact));
        }
    }
    let (nan, far) = (f32::NAN, f32::INFINITY);
    let line = |values: &[f32]| made(Tensor::from_slice(values, [values.len()]));
    let flat = line(&[1.0, 1.0, 1.0, 0.0, 2.0, 2.0, -1.0, 2.0, 0.0, -0.0]);
    cases.push(Case::new("find_peaks/f32/flat", FindPeaks::new(&flat, 5), Tolerance::Exact));
    let odd = line(&[nan, 3.0, nan, nan, -far, nan, far, far, 1.0, nan]);
    cases.push(Case::new("find_peaks/f32/nan", FindPeaks::new(&odd, 5), Tolerance::Exact));
    cases.push(Case::new("find_peaks/f32/floor", FindPeaks::new(&odd, 5).at_least(5.0), Tolerance::Exact));
    let view = made(random_tensor(DType::F32, &[30, 9], 196).transpose());
    cases.push(Case::new("find_peaks/f32/view", FindPeaks::new(&view, 4).distance(2), Tolerance::Exact));
}
