//! Sort, ArgSort and SortPairs: every ordered element type, both orders, every axis; empty, one,
//! prime and long lines; ties, NaN, infinities and zeros of both signs; views; values of every
//! type.

use panoply_core::op::compute::{ArgSort, Sort, SortPairs};
use panoply_core::{DType, Tensor};

use super::transpose::odd_view;
use crate::suite::case::Case;
use crate::tolerance::Tolerance;
use crate::values::{random_tensor, tensor_of};

/// Dimensions and axis.
const SHAPES: [(&[usize], usize); 11] = [
    (&[1], 0),
    (&[0, 3], 0),
    (&[3, 0], 1),
    (&[2], 0),
    (&[7, 13], 0),
    (&[5, 101], 1),
    (&[2, 3, 5, 7], 1),
    (&[2, 257, 19], 1),
    (&[257], 0),
    (&[3, 2053], 1),
    (&[140_003], 0),
];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in DType::ALL.into_iter().filter(|dtype| *dtype != DType::Complex64) {
        let mut add = |what: String, input: &Tensor, axis: usize| {
            let name = |op: &str, order: &str| format!("{op}/{dtype}/{what}/{order}");
            let (sort, arg) = (Sort::new(input).axis(axis), ArgSort::new(input).axis(axis));
            cases.push(Case::new(name("sort", "rising"), sort.clone(), Tolerance::Exact));
            cases.push(Case::new(name("sort", "falling"), sort.clone().descending(), Tolerance::Exact));
            cases.push(Case::new(name("sort", "stable"), sort.stable(), Tolerance::Exact));
            cases.push(Case::new(name("argsort", "rising"), arg.clone(), Tolerance::Exact));
            cases.push(Case::new(name("argsort", "falling"), arg.descending(), Tolerance::Exact));
        };
        for (dims, axis) in SHAPES {
            add(format!("{dims:?}/axis{axis}"), &random_tensor(dtype, dims, 50), axis);
        }
        add("view".to_owned(), &odd_view(dtype), 2);
        add("view/axis0".to_owned(), &odd_view(dtype), 0);
        add("ties".to_owned(), &ties(dtype), 1);
        if dtype.is_float() {
            add("special".to_owned(), &special(dtype), 1);
        }
        for values in DType::ALL {
            let op = SortPairs::new(&ties(dtype), &random_tensor(values, &[3, 300], 51));
            let name = format!("sort_pairs/{dtype}/{values}");
            cases.push(Case::new(format!("{name}/rising"), op.clone(), Tolerance::Exact));
            cases.push(Case::new(format!("{name}/falling/axis0"), op.axis(0).descending(), Tolerance::Exact));
        }
        let own = ties(dtype);
        cases.push(Case::new(format!("sort_pairs/{dtype}/own"), SortPairs::new(&own, &own), Tolerance::Exact));
    }
    cases
}

/// Only four distinct values, so that nearly all elements tie.
fn ties(dtype: DType) -> Tensor {
    let values: Vec<f64> = (0..900).map(|index| f64::from(index * 7 % 4)).collect();
    tensor_of(dtype, &[3, 300], &values)
}

/// NaN, infinities and zeros of both signs.
fn special(dtype: DType) -> Tensor {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    let values = [nan, 1.0, inf, -0.0, 0.0, -inf, -nan, inf, 0.0, -0.0, -inf, 0.0, -0.0, 1.5, -1.5, nan, -2.0, -0.0];
    tensor_of(dtype, &[2, 9], &values)
}
