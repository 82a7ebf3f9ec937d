//! Fir, Iir and Convolve: from one tap to more taps than the signal has samples, rates, extents,
//! views, NaN and infinity.

use panoply_core::op::signal::{Biquad, Convolve, Extent, Fir, Iir};
use panoply_core::{DType, Tensor};

use super::fft::random_complex;
use crate::suite::case::Case;
use crate::tolerance::Tolerance;
use crate::values::random_tensor;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    add_fir(&mut cases);
    add_rates(&mut cases);
    add_convolve(&mut cases);
    add_iir(&mut cases);
    add_special(&mut cases);
    cases
}

/// The tolerance for sums of `terms` products of numbers up to 1, also if computed by transforms.
fn sums(terms: usize) -> Tolerance {
    Tolerance::Close { relative: 2e-6, absolute: 4e-7 * (terms.max(4) as f64).sqrt() * 8.0 }
}

fn samples(dtype: DType, dims: &[usize], seed: u64) -> Tensor {
    match dtype {
        DType::Complex64 => random_complex(dims, seed),
        _ => random_tensor(dtype, dims, seed),
    }
}

fn add_fir(cases: &mut Vec<Case>) {
    let kinds = [(DType::F32, DType::F32), (DType::Complex64, DType::F32), (DType::Complex64, DType::Complex64)];
    for (dtype, taps_dtype) in kinds {
        for (taps, dims) in [
            (1, &[1][..]),
            (1, &[300]),
            (2, &[129]),
            (5, &[0]),
            (9, &[4]),
            (16, &[3, 65]),
            (33, &[1031]),
            (101, &[2, 1000]),
            (101, &[9000]),
            (130, &[40, 31]),
            (257, &[2000]),
            (1023, &[3000]),
            (600, &[2, 3, 700]),
        ] {
            let (input, filter) = (samples(dtype, dims, 80), samples(taps_dtype, &[taps], 81));
            let name = format!("fir/{}/{}/{dims:?}t{taps}", dtype.name(), taps_dtype.name());
            cases.push(Case::new(name, Fir::new(&input, &filter), sums(taps)));
        }
    }
    let wrong = |error| -> Tensor { panic!("the view is wrong: {error}") };
    let view = random_tensor(DType::F32, &[61, 9], 82).transpose().unwrap_or_else(wrong);
    let taps = random_tensor(DType::F32, &[21], 83).slice_step(0, 1, 20, 2).unwrap_or_else(wrong);
    cases.push(Case::new("fir/f32/view", Fir::new(&view, &taps), sums(10)));
}

fn add_rates(cases: &mut Vec<Case>) {
    let kinds = [(DType::F32, DType::F32), (DType::Complex64, DType::F32), (DType::Complex64, DType::Complex64)];
    for (dtype, taps_dtype) in kinds {
        for (up, down) in [(1, 2), (1, 7), (4, 1), (3, 2), (2, 3), (160, 147)] {
            for (taps, dims) in [(1, &[5][..]), (24, &[2, 100]), (63, &[1500]), (3, &[0])] {
                let (input, filter) = (samples(dtype, dims, 84), samples(taps_dtype, &[taps], 85));
                let op = Fir::new(&input, &filter).interpolate(up).decimate(down);
                let name = format!("fir/{}/{}/{dims:?}t{taps}/{up}to{down}", dtype.name(), taps_dtype.name());
                cases.push(Case::new(name, op, sums(taps)));
            }
        }
    }
}

fn add_convolve(cases: &mut Vec<Case>) {
    let kinds = [(DType::F32, DType::F32), (DType::Complex64, DType::F32), (DType::Complex64, DType::Complex64)];
    for (dtype, kernel_dtype) in kinds {
        for (kernel, dims) in [
            (1, &[1][..]),
            (3, &[0]),
            (4, &[100]),
            (7, &[3]),
            (64, &[2, 65]),
            (300, &[40]),
            (500, &[3000]),
            (1, &[3, 7]),
        ] {
            for extent in [Extent::Full, Extent::Same, Extent::Valid] {
                let (input, other) = (samples(dtype, dims, 86), samples(kernel_dtype, &[kernel], 87));
                let what = format!("{}x{}/{dims:?}k{kernel}/{extent:?}", dtype.name(), kernel_dtype.name());
                let convolution = Convolve::new(&input, &other).extent(extent);
                cases.push(Case::new(format!("convolve/{what}"), convolution, sums(kernel)));
                let correlation = Convolve::correlation(&input, &other).extent(extent);
                cases.push(Case::new(format!("correlate/{what}"), correlation, sums(kernel)));
            }
        }
    }
}

/// Sections whose response decays fast, slowly, or not at all, and one whose response grows.
fn filters() -> [(&'static str, Vec<Biquad>); 5] {
    let soon = Biquad { b: [0.2, 0.3, 0.1], a: [-0.5, 0.25] };
    let resonant = Biquad { b: [0.1, 0.0, -0.1], a: [-1.2, 0.9] };
    [
        ("one", vec![soon]),
        ("three", vec![soon, resonant, soon]),
        ("slow", vec![Biquad { b: [0.001, 0.0, 0.0], a: [-0.999, 0.0] }]),
        ("sum", vec![Biquad { b: [1.0, 0.0, 0.0], a: [-1.0, 0.0] }]),
        ("growing", vec![Biquad { b: [1.0, 0.0, 0.0], a: [-1.01, 0.0] }]),
    ]
}

fn add_iir(cases: &mut Vec<Case>) {
    let close = Tolerance::Close { relative: 1e-6, absolute: 1e-6 };
    for (name, sections) in filters() {
        for dtype in [DType::F32, DType::Complex64] {
            for dims in [&[1][..], &[0], &[2, 0], &[1000], &[3, 65], &[37, 130], &[2, 5, 64], &[16, 3]] {
                let op = Iir::new(&samples(dtype, dims, 88), sections.clone());
                cases.push(Case::new(format!("iir/{}/{name}/{dims:?}", dtype.name()), op, close));
            }
        }
    }
    for dtype in [DType::F32, DType::Complex64] {
        let op = Iir::new(&samples(dtype, &[2, 70_001], 89), filters()[1].1.clone());
        cases.push(Case::new(format!("iir/{}/long", dtype.name()), op, close));
    }
}

/// A NaN or an infinity affects only the sums that it is a term of.
fn add_special(cases: &mut Vec<Case>) {
    for (name, value) in [("nan", f32::NAN), ("infinity", f32::INFINITY)] {
        for len in [40, 500] {
            let mut values: Vec<f32> = (0..2 * len).map(|at| (at % 11) as f32 - 5.0).collect();
            values[len / 2] = value;
            let input = Tensor::from_vec(values, [2, len]).unwrap_or_else(|error| panic!("a test tensor: {error}"));
            let taps = random_tensor(DType::F32, &[7], 90);
            cases.push(Case::new(format!("fir/f32/{name}/{len}"), Fir::new(&input, &taps), sums(64)));
            let sections = filters()[0].1.clone();
            let close = Tolerance::Close { relative: 1e-6, absolute: 1e-6 };
            let mut once: Vec<f32> = (0..len / 8).map(|at| at as f32).collect();
            once[2] = value;
            let once = Tensor::from_vec(once, [len / 8]);
            let once = once.unwrap_or_else(|error| panic!("a test tensor: {error}"));
            cases.push(Case::new(format!("iir/f32/{name}/{len}"), Iir::new(&once, sections), close));
        }
    }
}
