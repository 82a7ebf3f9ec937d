//! LayerNorm: every float, with and without weight, bias and mean; one and several axes; empty,
//! one, prime and long rows; constant rows, NaN and infinities; views.

use panoply_core::DType;
use panoply_core::op::compute::LayerNorm;

use super::transpose::odd_view;
use crate::suite::case::Case;
use crate::tolerance::Tolerance;
use crate::values::{random_tensor, tensor_of};

/// Dimensions, and the number of trailing axes to normalise.
const SHAPES: [(&[usize], usize); 8] = [
    (&[1], 1),
    (&[0, 3], 1),
    (&[3, 0], 1),
    (&[7, 13], 1),
    (&[7, 13], 2),
    (&[2, 3, 5, 7], 3),
    (&[5, 768], 1),
    (&[3, 2053], 1),
];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_float()) {
        let mut add = |what: String, op: LayerNorm| {
            let name = format!("layernorm/{dtype}/{what}");
            cases.push(Case::new(format!("{name}/plain"), op.clone(), tolerance(dtype)));
            cases.push(Case::new(format!("{name}/rms"), op.rms(), tolerance(dtype)));
        };
        for (dims, axes) in SHAPES {
            let op = LayerNorm::new(&random_tensor(dtype, dims, 70)).trailing_axes(axes);
            let row = &dims[dims.len() - axes..];
            let (weight, bias) = (random_tensor(dtype, row, 71), random_tensor(dtype, row, 72));
            add(format!("{dims:?}/last{axes}"), op.clone());
            add(format!("{dims:?}/last{axes}/weight"), op.clone().weight(&weight));
            add(format!("{dims:?}/last{axes}/bias"), op.clone().bias(&bias).epsilon(0.125));
            add(format!("{dims:?}/last{axes}/both"), op.weight(&weight).bias(&bias));
        }
        add("view".to_owned(), LayerNorm::new(&odd_view(dtype)).trailing_axes(2));
        let (nan, inf) = (f64::NAN, f64::INFINITY);
        let values = [[2.0, 2.0, 2.0], [0.0, 0.0, 0.0], [1.0, nan, 2.0], [1.0, inf, 2.0], [1.0, 2.0, 3.0]];
        add("special".to_owned(), LayerNorm::new(&tensor_of(dtype, &[5, 3], values.as_flattened())));
    }
    cases
}

/// The outputs are a few units at most, and their terms are rounded a few times.
fn tolerance(dtype: DType) -> Tolerance {
    match dtype {
        DType::F64 => Tolerance::Close { relative: 1e-12, absolute: 1e-12 },
        DType::F16 => Tolerance::Close { relative: 2e-3, absolute: 2e-3 },
        DType::BF16 => Tolerance::Close { relative: 1.6e-2, absolute: 1.6e-2 },
        _ => Tolerance::Close { relative: 4e-6, absolute: 4e-6 },
    }
}
