//! Modulate and Demodulate: every constellation, hard and soft, symbols without a point, NaN.

use panoply_core::op::signal::{Constellation, Demodulate, Modulate};
use panoply_core::{Complex64, DType, Tensor};

use super::fft::random_complex;
use crate::judge::Judge;
use crate::suite::case::Case;
use crate::tolerance::Tolerance;
use crate::values::Random;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let soft = Tolerance::Close { relative: 1e-5, absolute: 2e-4 };
    // A point between two symbols may be decided either way.
    let hard = Judge::Mostly { tolerance: Tolerance::Exact, share_max: 0.002 };
    for constellation in constellations() {
        let name = constellation.name();
        let count = 1_u64 << constellation.bits();
        for dims in [&[0][..], &[1], &[63], &[64, 3], &[1025], &[2, 0, 5], &[20_000]] {
            let elements = dims.iter().product();
            let mut random = Random::new(91);
            let symbols: Vec<u8> = (0..elements).map(|_| random.below(count) as u8).collect();
            let what = format!("{name}/{dims:?}");
            let op = Modulate::new(constellation.clone(), &tensor(symbols, dims));
            cases.push(Case::new(format!("modulate/{what}"), op, Tolerance::Exact));
            let received = random_complex(dims, 92);
            let op = Demodulate::hard(constellation.clone(), &received);
            cases.push(Case::new(format!("demodulate/hard/{what}"), op, hard));
            let op = Demodulate::soft(constellation.clone(), &received, 0.5);
            cases.push(Case::new(format!("demodulate/soft/{what}"), op, soft));
        }
    }
    let op = Modulate::new(Constellation::Qam16, &tensor(vec![3_u8, 15, 16, 255], &[4]));
    cases.push(Case::new("modulate/qam16/no_point", op, Tolerance::Exact));
    let nan = tensor(vec![Complex64::new(f32::NAN, f32::NAN), Complex64::new(0.5, 0.5)], &[2]);
    let op = Demodulate::soft(Constellation::Qpsk, &nan.slice(0, 1, 2).unwrap_or(nan), 1.0);
    cases.push(Case::new("demodulate/soft/qpsk/view", op, soft));
    // Far outside the points only the angle decides.
    let far: Vec<Complex64> = (0..72).map(|at| Complex64::from_polar(1e8, at as f32 * 0.087_266_46 + 0.01)).collect();
    let op = Demodulate::hard(Constellation::Psk8, &tensor(far, &[72]));
    cases.push(Case::new("demodulate/hard/psk8/far", op, hard));
    cases
}

fn constellations() -> Vec<Constellation> {
    let mut all = Constellation::ALL.to_vec();
    let points = random_complex(&[16], 93);
    let points = points.as_slice::<Complex64>().map(<[Complex64]>::to_vec).unwrap_or_default();
    all.extend(Constellation::custom(&points));
    assert_eq!((all.len(), all[6].points().len(), DType::Complex64.size_bytes()), (7, 16, 8));
    all
}

fn tensor<T: panoply_core::Element>(values: Vec<T>, dims: &[usize]) -> Tensor {
    Tensor::from_vec(values, dims).unwrap_or_else(|error| panic!("a test tensor: {error}"))
}
