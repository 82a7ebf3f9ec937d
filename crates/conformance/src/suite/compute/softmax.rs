//! Softmax: every float, every axis; empty, one, prime and long lines; NaN and infinities; views.

use panoply_core::DType;
use panoply_core::op::compute::Softmax;

use super::transpose::odd_view;
use crate::suite::case::Case;
use crate::tolerance::Tolerance;
use crate::values::{random_tensor, tensor_of};

/// Dimensions and axis.
const SHAPES: [(&[usize], usize); 9] = [
    (&[1], 0),
    (&[0, 3], 1),
    (&[3, 0], 1),
    (&[7, 13], 0),
    (&[7, 13], 1),
    (&[4, 1031], 1),
    (&[2, 3, 5, 7], 1),
    (&[2, 61, 300], 1),
    (&[140_003], 0),
];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_float()) {
        let mut add = |what: String, op: Softmax| {
            let name = format!("softmax/{dtype}/{what}");
            cases.push(Case::new(format!("{name}/plain"), op.clone(), tolerance(dtype, 1e-7)));
            cases.push(Case::new(format!("{name}/log"), op.log(), tolerance(dtype, 2e-6)));
        };
        for (dims, axis) in SHAPES {
            add(format!("{dims:?}/axis{axis}"), Softmax::new(&random_tensor(dtype, dims, 60)).axis(axis));
        }
        add("view".to_owned(), Softmax::new(&odd_view(dtype)).axis(0));
        let (nan, inf) = (f64::NAN, f64::INFINITY);
        let values = [
            [-inf, -inf, -inf, -inf],
            [1.0, nan, 2.0, 3.0],
            [0.0, inf, 1.0, 2.0],
            [0.0, -inf, 1.0, 2.0],
            [50_000.0, -50_000.0, 49_984.0, 0.0],
        ];
        let special = tensor_of(dtype, &[5, 4], values.as_flattened());
        add("special/rows".to_owned(), Softmax::new(&special));
        add("special/columns".to_owned(), Softmax::new(&special).axis(0));
    }
    cases
}

fn tolerance(dtype: DType, absolute: f64) -> Tolerance {
    match dtype {
        DType::F64 => Tolerance::Close { relative: 1e-13, absolute: 1e-13 },
        DType::F16 => Tolerance::Close { relative: 1e-3, absolute: 1e-6 },
        DType::BF16 => Tolerance::Close { relative: 8e-3, absolute: 1e-6 },
        _ => Tolerance::Close { relative: 4e-6, absolute },
    }
}
