//! Reduce: every reduction and element type; every set of axes; empty, one, prime and long; NaN and
//! infinities; views.

use panoply_core::op::compute::{Reduce, Reduction};
use panoply_core::{DType, Describe, Tensor};

use super::transpose::odd_view;
use crate::suite::case::Case;
use crate::tolerance::Tolerance;
use crate::values::{random_tensor, tensor_of};

/// Dimensions, and the axes to reduce. `None` stands for all axes.
const SHAPES: [(&[usize], Option<&[usize]>); 15] = [
    (&[], None),
    (&[1], None),
    (&[0, 3], None),
    (&[0, 3], Some(&[0])),
    (&[0, 3], Some(&[1])),
    (&[7, 13], None),
    (&[7, 13], Some(&[0])),
    (&[7, 13], Some(&[1])),
    (&[3, 4], Some(&[])),
    (&[2, 3, 5, 7], Some(&[1, 2])),
    (&[2, 3, 5, 7], Some(&[0, 2])),
    (&[2, 3, 1, 7], Some(&[3, 1])),
    (&[5, 1031], Some(&[1])),
    (&[1031, 5], Some(&[0])),
    (&[3, 67, 129], Some(&[1])),
];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (dtype, reduction) in DType::ALL.into_iter().flat_map(|d| Reduction::ALL.map(|r| (d, r))) {
        let mut add = |what: String, op: Reduce| {
            if op.validate().is_ok() {
                let tolerance = tolerance(&op);
                cases.push(Case::new(format!("reduce/{dtype}/{}/{what}", reduction.name()), op, tolerance));
            }
        };
        for (dims, axes) in SHAPES {
            let op = Reduce::new(&random_tensor(dtype, dims, 30), reduction);
            let op = axes.into_iter().fold(op, |op, axes| op.axes(axes));
            add(format!("{dims:?}/{axes:?}"), op.clone());
            add(format!("{dims:?}/{axes:?}/keep"), op.keep_dims());
        }
        add("view".to_owned(), Reduce::new(&odd_view(dtype), reduction).axes(&[0, 2]));
        if dtype.is_float() {
            add("special/rows".to_owned(), Reduce::new(&special(dtype), reduction).axes(&[1]));
            add("special/columns".to_owned(), Reduce::new(&special(dtype), reduction).axes(&[0]));
        }
        if dtype.is_integer() {
            let largest = tensor_of(dtype, &[3, 100], &[4e9; 300]);
            add("wrap".to_owned(), Reduce::new(&largest, reduction).axes(&[1]));
        }
        if reduction == Reduction::Sum {
            add("long".to_owned(), Reduce::new(&random_tensor(dtype, &[600_011], 31), reduction));
        }
    }
    cases
}

/// Sums are as exact as adding in f32 (in f64 for f64), in any order, followed by rounding to the
/// output's type.
fn tolerance(op: &Reduce) -> Tolerance {
    let count = op.count().unwrap_or(0) as f64;
    let scale = if op.reduction == Reduction::Mean { 1.0 } else { count };
    match op.output_dtype() {
        _ if !matches!(op.reduction, Reduction::Sum | Reduction::Mean) => Tolerance::Exact,
        DType::F32 | DType::Complex64 => Tolerance::Close { relative: 1e-6, absolute: 1e-6 * scale },
        DType::F64 => Tolerance::Close { relative: 1e-14, absolute: 1e-14 * scale },
        DType::F16 => Tolerance::Close { relative: 1e-3, absolute: 1e-6 * scale },
        DType::BF16 => Tolerance::Close { relative: 8e-3, absolute: 1e-6 * scale },
        _ => Tolerance::Exact,
    }
}

/// Rows with NaN, with infinities of one and of both signs, with zeros of both signs, and with
/// equal elements.
fn special(dtype: DType) -> Tensor {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    let values = [
        [1.0, nan, 2.0, nan, -inf],
        [1.0, inf, 2.0, inf, 0.5],
        [-inf, 1.0, -inf, 2.0, 0.5],
        [inf, 1.0, -inf, 2.0, 0.5],
        [-0.0, 0.0, -0.0, 0.0, 0.0],
        [-1.0, -1.0, -1.5, -1.5, -1.0],
        [-inf, -inf, -inf, -inf, -inf],
    ];
    tensor_of(dtype, &[7, 5], values.as_flattened())
}
