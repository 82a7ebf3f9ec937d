//! TopK: every ordered element type; one, prime and long axes, every axis, largest and smallest,
//! ties, NaN and infinities, views.

use panoply_core::op::compute::TopK;
use panoply_core::{DType, Tensor};

use super::transpose::odd_view;
use crate::suite::case::Case;
use crate::tolerance::Tolerance;
use crate::values::{random_tensor, tensor_of};

/// Dimensions, axis and k.
const SHAPES: [(&[usize], usize, usize); 13] = [
    (&[1], 0, 1),
    (&[0, 3], 1, 2),
    (&[3, 0], 1, 0),
    (&[7, 13], 1, 13),
    (&[13, 7], 0, 5),
    (&[5, 101], 1, 0),
    (&[2, 3, 5, 7], 1, 2),
    (&[2, 257, 3], 1, 40),
    (&[4, 1000], 1, 33),
    (&[1, 4099], 1, 64),
    (&[3, 2053], 1, 700),
    (&[2, 9001], 1, 20),
    (&[1, 2500], 1, 2000),
];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in DType::ALL.into_iter().filter(|dtype| *dtype != DType::Complex64) {
        let mut add = |what: String, op: TopK| {
            cases.push(Case::new(format!("topk/{dtype}/{what}/largest"), op.clone(), Tolerance::Exact));
            cases.push(Case::new(format!("topk/{dtype}/{what}/smallest"), op.smallest(), Tolerance::Exact));
        };
        for (dims, axis, k) in SHAPES {
            add(format!("{dims:?}/axis{axis}/k{k}"), TopK::new(&random_tensor(dtype, dims, 20), k).axis(axis));
        }
        add("view".to_owned(), TopK::new(&odd_view(dtype), 3));
        add("view/axis0".to_owned(), TopK::new(&odd_view(dtype), 4).axis(0));
        add("ties".to_owned(), TopK::new(&ties(dtype), 40));
        if dtype.is_float() {
            add("special".to_owned(), TopK::new(&special(dtype), 7));
        }
    }
    cases
}

/// Only four distinct values, so that nearly all elements tie.
fn ties(dtype: DType) -> Tensor {
    let values: Vec<f64> = (0..300).map(|index| f64::from(index * 7 % 4)).collect();
    tensor_of(dtype, &[3, 100], &values)
}

/// NaN, infinities and zeros of both signs.
fn special(dtype: DType) -> Tensor {
    let values = [
        f64::NAN,
        1.0,
        f64::INFINITY,
        -0.0,
        0.0,
        f64::NEG_INFINITY,
        -f64::NAN,
        f64::INFINITY,
        0.0,
        -0.0,
        f64::NEG_INFINITY,
        0.0,
        -0.0,
        1.5,
        -1.5,
        0.0,
        f64::NEG_INFINITY,
        2.0,
        -0.0,
        -2.0,
    ];
    tensor_of(dtype, &[2, 10], &values)
}
