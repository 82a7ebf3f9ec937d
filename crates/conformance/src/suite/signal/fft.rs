//! Fft and Ifft: complex and real; lengths of zero, one, powers, primes and others; batches, axes,
//! views, NaN.

use panoply_core::op::signal::{Fft, Ifft, half_spectrum_len};
use panoply_core::{Complex64, DType, Tensor};

use crate::suite::case::Case;
use crate::tolerance::Tolerance;
use crate::values::{Random, random_tensor};

const LENGTHS: [usize; 20] = [0, 1, 2, 3, 4, 5, 7, 8, 16, 30, 31, 97, 100, 128, 1000, 1009, 1024, 4095, 12_288, 65_536];

/// The factor by which f64 is finer than f32. The reference adds up in f64 as well.
const WIDE: f64 = 1e-8;

/// Batches before the transformed axis.
const BATCHES: [usize; 3] = [0, 1, 5];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for len in LENGTHS {
        for batch in BATCHES.into_iter().filter(|batch| batch * len < 70_000) {
            add_each_kind(&mut cases, &format!("{batch}x{len}"), &[batch, len], 1);
        }
    }
    for (dims, axis) in [(&[1031, 24][..], 1), (&[24, 33], 0), (&[3, 10, 7], 1), (&[2, 3, 4, 5], 0), (&[3, 0, 7], 2)] {
        add_each_kind(&mut cases, &format!("{dims:?}/axis{axis}"), dims, axis);
    }
    cases.extend(views());
    cases.extend(special());
    cases
}

/// Adds the four kinds of transform of lines along this axis. `dims` are those of the signals.
fn add_each_kind(cases: &mut Vec<Case>, what: &str, dims: &[usize], axis: usize) {
    let len = dims[axis];
    let signals = random_complex(dims, 70);
    let mut add = |kind: &str, forward: Option<Fft>, inverse: Option<Ifft>| {
        let forward = forward.map(|op| Case::new(format!("fft/{kind}/{what}"), op, forward_tolerance(len)));
        let inverse = inverse.map(|op| Case::new(format!("ifft/{kind}/{what}"), op, inverse_tolerance(len)));
        cases.extend(forward.into_iter().chain(inverse));
    };
    add("c64", Some(Fft::new(&signals).axis(axis)), Some(Ifft::new(&signals).axis(axis)));
    let mut half = dims.to_vec();
    half[axis] = half_spectrum_len(len);
    let real = Fft::new(&random_tensor(DType::F32, dims, 71)).axis(axis);
    // The first and the last element have imaginary parts, which must be ignored.
    add("f32", Some(real), Some(Ifft::new(&random_complex(&half, 72)).axis(axis).real(len)));
    let pairs = |dims: &[usize], seed: u64| random_tensor(DType::F64, &[dims, &[2]].concat(), seed);
    let wide = |tolerance: Tolerance| match tolerance {
        Tolerance::Close { absolute, .. } => Tolerance::Close { relative: 1e-14, absolute: absolute * WIDE },
        exact => exact,
    };
    let (forward, inverse) = (wide(forward_tolerance(len)), wide(inverse_tolerance(len)));
    let complex = pairs(dims, 170);
    cases.push(Case::new(format!("fft/c128/{what}"), Fft::of_pairs(&complex).axis(axis), forward));
    cases.push(Case::new(format!("ifft/c128/{what}"), Ifft::new(&complex).axis(axis), inverse));
    let real = Fft::new(&random_tensor(DType::F64, dims, 171)).axis(axis);
    cases.push(Case::new(format!("fft/f64/{what}"), real, forward));
    let halves = Ifft::new(&pairs(&half, 172)).axis(axis).real(len);
    cases.push(Case::new(format!("ifft/f64/{what}"), halves, inverse));
}

/// Views with an offset, a step, a stretched axis, and transposed axes.
fn views() -> Vec<Case> {
    let wrong = |error| -> Tensor { panic!("the view is wrong: {error}") };
    let view = |whole: Tensor| {
        let part = whole.slice(0, 2, 9).and_then(|part| part.slice_step(2, 1, 61, 2));
        part.and_then(|part| part.broadcast_to([7, 2, 30])).unwrap_or_else(wrong)
    };
    let (complex, real) = (view(random_complex(&[9, 1, 61], 73)), view(random_tensor(DType::F32, &[9, 1, 61], 74)));
    let turned = random_complex(&[30, 17], 75).transpose().unwrap_or_else(wrong);
    vec![
        Case::new("fft/c64/view", Fft::new(&complex), forward_tolerance(30)),
        Case::new("fft/c64/view/axis0", Fft::new(&complex).axis(0), forward_tolerance(7)),
        Case::new("fft/f32/view", Fft::new(&real), forward_tolerance(30)),
        Case::new("ifft/c64/turned", Ifft::new(&turned), inverse_tolerance(30)),
        Case::new("ifft/f32/turned", Ifft::new(&turned).real(59), inverse_tolerance(59)),
    ]
}

/// A line with an element whose parts are both NaN is NaN everywhere. The other lines are not
/// affected.
fn special() -> Vec<Case> {
    let mut cases = Vec::new();
    for len in [1, 8, 31, 1000] {
        let mut values = random_complex_values(3 * len, 76);
        values[len + len / 2] = Complex64::new(f32::NAN, f32::NAN);
        let lines = tensor([3, len], values);
        cases.push(Case::new(format!("fft/c64/nan/{len}"), Fft::new(&lines), forward_tolerance(len)));
        cases.push(Case::new(format!("ifft/c64/nan/{len}"), Ifft::new(&lines), inverse_tolerance(len)));
    }
    cases
}

pub(super) fn random_complex(dims: &[usize], seed: u64) -> Tensor {
    tensor(dims, random_complex_values(dims.iter().product(), seed))
}

fn random_complex_values(count: usize, seed: u64) -> Vec<Complex64> {
    let mut random = Random::new(seed);
    (0..count).map(|_| Complex64::new(random.signed_unit() as f32, random.signed_unit() as f32)).collect()
}

fn tensor(dims: impl AsRef<[usize]>, values: Vec<Complex64>) -> Tensor {
    Tensor::from_vec(values, dims).unwrap_or_else(|error| panic!("a test tensor: {error}"))
}

/// The elements of a spectrum are about as large as the square root of the length. Rounding errors
/// add up over the passes of a fast algorithm, whose number is the logarithm of the length.
pub(super) fn forward_tolerance(len: usize) -> Tolerance {
    let len = len.max(1) as f64;
    Tolerance::Close { relative: 1e-6, absolute: 1.5e-7 * len.sqrt() * (2.0 + len.log2()) }
}

pub(super) fn inverse_tolerance(len: usize) -> Tolerance {
    match forward_tolerance(len) {
        Tolerance::Close { relative, absolute } => {
            Tolerance::Close { relative, absolute: absolute / len.max(1) as f64 }
        }
        exact => exact,
    }
}
