//! What ops of the domain refuse before they reach a device, and the shapes of what they give.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use super::*;
use crate::dtype::{Complex64, DType};
use crate::error::{Error, Result};
use crate::op::{Describe, Op, Operation};
use crate::tensor::Tensor;

fn zeros(dtype: DType, dims: &[usize]) -> Tensor {
    Tensor::zeros(dtype, dims).unwrap()
}

fn output(op: impl Operation) -> (DType, Vec<usize>) {
    let types = op.into_op().unwrap().outputs().unwrap();
    (types[0].0, types[0].1.to_vec())
}

fn refused(result: Result<Op>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn shapes_follow_from_lengths_and_rates() {
    let (x, z, taps) = (zeros(DType::F32, &[3, 10]), zeros(DType::Complex64, &[10]), zeros(DType::F32, &[25]));
    assert_eq!(output(Fir::new(&x, &taps)), (DType::F32, vec![3, 10]));
    assert_eq!(output(Fir::new(&x, &taps).decimate(3)), (DType::F32, vec![3, 4]));
    assert_eq!(output(Fir::new(&z, &taps).interpolate(3).decimate(2)), (DType::Complex64, vec![15]));
    for (extent, len) in [(Extent::Full, 34), (Extent::Same, 10), (Extent::Valid, 16)] {
        assert_eq!(output(Convolve::new(&x, &taps).extent(extent)), (DType::F32, vec![3, len]));
    }
    let bytes = zeros(DType::U8, &[2, 223]);
    assert_eq!(output(RsEncode::new(ReedSolomon::ccsds(223), &bytes)), (DType::U8, vec![2, 255]));
    assert_eq!(output(ConvolutionalEncode::new(&zeros(DType::U8, &[4, 2]), 13)), (DType::U8, vec![4, 5]));
    assert_eq!(output(Viterbi::new(&zeros(DType::U8, &[4, 38]), 13)), (DType::U8, vec![4, 2]));
    assert_eq!(output(Demodulate::soft(Constellation::Qam64, &z, 0.5)), (DType::F32, vec![10, 6]));
    assert_eq!(output(ErasureRebuild::new(&zeros(DType::U8, &[5, 9]), 3, [4, 0])), (DType::U8, vec![2, 9]));
}

#[test]
fn filters_refuse_what_makes_no_filter() {
    let (x, z) = (zeros(DType::F32, &[3, 10]), zeros(DType::Complex64, &[10]));
    assert!(refused(Fir::new(&x, &zeros(DType::F32, &[0])).into_op()).contains("taps"));
    assert!(Fir::new(&x, &zeros(DType::F32, &[2, 2])).into_op().is_err());
    assert!(Fir::new(&x, &zeros(DType::Complex64, &[2])).into_op().is_err(), "complex taps make complex samples");
    assert!(Fir::new(&z, &zeros(DType::Complex64, &[2])).into_op().is_ok());
    assert!(Fir::new(&zeros(DType::F64, &[4]), &zeros(DType::F32, &[2])).into_op().is_err());
    assert!(Fir::new(&x, &zeros(DType::F32, &[2])).decimate(0).into_op().is_err());
    assert!(Fir::new(&x, &zeros(DType::F32, &[2])).interpolate(usize::MAX).into_op().is_err());
    assert!(Convolve::new(&x, &zeros(DType::F32, &[0])).into_op().is_err());
    assert!(Convolve::new(&x, &zeros(DType::Complex64, &[3])).into_op().is_err());
    let section = Biquad { b: [1.0, 0.0, 0.0], a: [0.0, 0.0] };
    assert!(Iir::new(&x, []).into_op().is_err());
    assert!(refused(Iir::new(&x, [Biquad { a: [f64::NAN, 0.0], ..section }]).into_op()).contains("section 0"));
    let grows = Biquad { a: [-2.1, 1.1], ..section };
    let unstable = Iir::new(&x, [section, grows]);
    assert_eq!(unstable.unstable_sections(), [1]);
    assert!(unstable.into_op().is_ok(), "reported, not refused");
    assert!(StartFilter::new(Filter::iir([section]), DType::F32).lines(0).into_op().is_err());
    assert!(StartFilter::new(Filter::fir(&zeros(DType::F32, &[0])), DType::F32).into_op().is_err());
}

#[test]
fn codes_refuse_what_makes_no_code() {
    let word = zeros(DType::U8, &[255]);
    for (data, parity) in [(0, 4), (4, 0), (250, 6), (100, 65), (usize::MAX, 2)] {
        assert!(ReedSolomon::new(data, parity).check().is_err(), "{data} {parity}");
    }
    assert!(ReedSolomon { polynomial: 0x11b, ..ReedSolomon::new(10, 4) }.check().is_err());
    assert!(ReedSolomon { polynomial: 0, ..ReedSolomon::new(10, 4) }.check().is_err());
    assert!(ReedSolomon { root_step: 5, ..ReedSolomon::new(10, 4) }.check().is_err());
    let code = ReedSolomon::ccsds(223);
    assert!(RsDecode::new(code, &word).erased([3, 3]).into_op().is_err());
    assert!(matches!(RsDecode::new(code, &word).erased([255]).into_op(), Err(Error::OutOfBounds { limit: 254, .. })));
    assert!(RsEncode::new(code, &word).into_op().is_err(), "a word is not data");
    assert!(ErasureEncode::new(&zeros(DType::U8, &[10, 3]), 247).into_op().is_err());
    assert!(ErasureEncode::new(&zeros(DType::U8, &[0, 3]), 1).into_op().is_err());
    assert!(ErasureRebuild::new(&zeros(DType::U8, &[5, 9]), 3, [0, 1, 2]).into_op().is_err(), "too many are lost");
    assert!(ErasureRebuild::new(&zeros(DType::U8, &[5, 9]), 3, [5]).into_op().is_err());
    assert!(Viterbi::new(&word, usize::MAX).into_op().is_err());
    let code = Convolutional { polynomials: [0, 0o133] };
    assert!(ConvolutionalEncode::new(&zeros(DType::U8, &[1]), 8).code(code).into_op().is_err());
}

#[test]
fn modems_refuse_what_makes_no_constellation() {
    let z = zeros(DType::Complex64, &[4]);
    let points = |count: usize| Constellation::custom(&vec![Complex64::new(1.0, 0.0); count]);
    assert!(points(1).is_err() && points(6).is_err() && points(512).is_err() && points(4).is_ok());
    assert!(Constellation::custom(&[Complex64::new(f32::NAN, 0.0), Complex64::new(1.0, 0.0)]).is_err());
    assert!(Modulate::new(Constellation::Qpsk, &z).into_op().is_err());
    assert!(Demodulate::hard(Constellation::Qpsk, &zeros(DType::F32, &[4])).into_op().is_err());
    for noise in [0.0, -1.0, f32::NAN, f32::INFINITY, 1e-45] {
        assert!(Demodulate::soft(Constellation::Qpsk, &z, noise).into_op().is_err(), "{noise}");
    }
}

#[test]
fn each_kind_of_check_has_its_own_curve() {
    let crc = |kind| Crc::new(kind, vec![0; 10]);
    let labels: Vec<&str> = Checksum::ALL.iter().map(|kind| crc(*kind).cost_class().label).collect();
    assert_eq!(labels.len(), labels.iter().collect::<std::collections::HashSet<_>>().len());
    assert_ne!(crc(Checksum::Crc32).batch_key(), crc(Checksum::Crc32c).batch_key());
}
