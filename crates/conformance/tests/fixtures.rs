//! The reference against independent figures: one module per op, each reading the file that its
//! script made.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use panoply_conformance::fixture::Fixture;
use panoply_conformance::reference::reference;
use panoply_conformance::suite::Tolerance;
use panoply_conformance::values::difference;
use panoply_core::{Operation, Tensor};

mod attention;
mod color_convert;
mod conv2d;
mod fft;
mod filters;
mod gather;
mod layernorm;
mod ldpc;
mod map;
mod matmul;
mod normalize;
mod planes;
mod pool2d;
mod reduce;
mod resize;
mod row_map;
mod scan;
mod search;
mod softmax;
mod sort;
mod spectra;
mod topk;
mod transpose;

/// The tensors of `fixtures/<name>.txt`.
fn fixture(text: &str) -> Fixture {
    Fixture::parse(text).unwrap()
}

/// Runs the reference on an op and compares its first tensor with the figures.
fn expect(op: impl Operation, expected: &Tensor, tolerance: Tolerance) {
    let value = reference(&op.into_op().unwrap()).unwrap();
    let got = value.tensors().next().unwrap();
    assert_eq!(difference(expected, got, tolerance), None);
}
