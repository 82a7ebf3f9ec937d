//! The reference against independent figures: one module per op, each reading the file that its script made.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use panoply_conformance::fixture::Fixture;
use panoply_conformance::reference::reference;
use panoply_conformance::suite::Tolerance;
use panoply_conformance::values::difference;
use panoply_core::{Operation, Tensor};

#[path = "fixtures/attention.rs"]
mod attention;
#[path = "fixtures/color_convert.rs"]
mod color_convert;
#[path = "fixtures/conv2d.rs"]
mod conv2d;
#[path = "fixtures/fft.rs"]
mod fft;
#[path = "fixtures/filters.rs"]
mod filters;
#[path = "fixtures/gather.rs"]
mod gather;
#[path = "fixtures/layernorm.rs"]
mod layernorm;
#[path = "fixtures/ldpc.rs"]
mod ldpc;
#[path = "fixtures/map.rs"]
mod map;
#[path = "fixtures/matmul.rs"]
mod matmul;
#[path = "fixtures/normalize.rs"]
mod normalize;
#[path = "fixtures/planes.rs"]
mod planes;
#[path = "fixtures/pool2d.rs"]
mod pool2d;
#[path = "fixtures/reduce.rs"]
mod reduce;
#[path = "fixtures/resize.rs"]
mod resize;
#[path = "fixtures/row_map.rs"]
mod row_map;
#[path = "fixtures/scan.rs"]
mod scan;
#[path = "fixtures/search.rs"]
mod search;
#[path = "fixtures/softmax.rs"]
mod softmax;
#[path = "fixtures/sort.rs"]
mod sort;
#[path = "fixtures/spectra.rs"]
mod spectra;
#[path = "fixtures/topk.rs"]
mod topk;
#[path = "fixtures/transpose.rs"]
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
