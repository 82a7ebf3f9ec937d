//! The cases, one file per op. A case is an op, ready to run, and the tolerance within which every engine must agree
//! with the reference. Where the reference answers with an error, an engine must answer with one of the same kind.

use panoply_core::{Op, Operation};

mod color_convert;
mod conv2d;
mod fft;
mod gather;
mod layernorm;
mod map;
mod matmul;
mod normalize;
mod pool2d;
mod reduce;
mod resize;
mod scan;
mod search;
mod softmax;
mod sort;
mod topk;
mod transfer;
mod transpose;

/// One op to run and compare.
#[derive(Clone, Debug)]
pub struct Case {
    /// `op/dtype/what`, unique in the suite.
    pub name: String,
    /// What to run.
    pub op: Op,
    /// How close the answer must be.
    pub tolerance: Tolerance,
}

impl Case {
    /// A case of an op that passes its own checks. Panics where it does not: then the suite is wrong.
    pub fn new(name: impl Into<String>, op: impl Operation, tolerance: Tolerance) -> Case {
        let name = name.into();
        let op = op.into_op().unwrap_or_else(|error| panic!("case {name} is not valid: {error}"));
        Case { name, op, tolerance }
    }
}

/// How close two elements must be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tolerance {
    /// The same number (zeroes of either sign are equal; NaN equals NaN).
    Exact,
    /// `|expected - got| ≤ absolute + relative · |expected|`.
    Close {
        /// The share of the expected value.
        relative: f64,
        /// The part that does not depend on the value.
        absolute: f64,
    },
}

impl Tolerance {
    /// Whether `got` is close enough to `expected`.
    pub fn accepts(self, expected: f64, got: f64) -> bool {
        if expected.is_nan() || got.is_nan() {
            return expected.is_nan() && got.is_nan();
        }
        if expected.is_infinite() || got.is_infinite() {
            return expected == got;
        }
        match self {
            Tolerance::Exact => expected == got,
            Tolerance::Close { relative, absolute } => (expected - got).abs() <= absolute + relative * expected.abs(),
        }
    }
}

/// The ops that the suite names, each once: what stands before the first slash of its cases' names.
pub fn op_names() -> Vec<String> {
    let mut ops: Vec<String> =
        cases().iter().filter_map(|case| Some(case.name.split_once('/')?.0.to_owned())).collect();
    ops.sort();
    ops.dedup();
    ops
}

/// Every case of the suite.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    cases.extend(color_convert::cases());
    cases.extend(conv2d::cases());
    cases.extend(fft::cases());
    cases.extend(gather::cases());
    cases.extend(layernorm::cases());
    cases.extend(map::cases());
    cases.extend(matmul::cases());
    cases.extend(normalize::cases());
    cases.extend(pool2d::cases());
    cases.extend(reduce::cases());
    cases.extend(resize::cases());
    cases.extend(scan::cases());
    cases.extend(search::cases());
    cases.extend(softmax::cases());
    cases.extend(sort::cases());
    cases.extend(topk::cases());
    cases.extend(transfer::cases());
    cases.extend(transpose::cases());
    cases
}
