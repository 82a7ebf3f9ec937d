//! Transpose: every element type; empty, one and prime sizes, and views of views.

use panoply_core::op::compute::Transpose;
use panoply_core::{DType, Tensor};

use crate::suite::case::Case;
use crate::tolerance::Tolerance;
use crate::values::random_tensor;

const SHAPES: [&[usize]; 8] = [&[], &[1], &[0, 3], &[7, 13], &[64, 64], &[33, 65], &[2, 3, 5, 7], &[1, 17, 1, 3]];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in DType::ALL {
        for dims in SHAPES {
            let input = random_tensor(dtype, dims, 1);
            let name = format!("transpose/{dtype}/{dims:?}");
            cases.push(Case::new(name, Transpose::new(&input), Tolerance::Exact));
        }
        cases.push(Case::new(format!("transpose/{dtype}/view"), Transpose::new(&odd_view(dtype)), Tolerance::Exact));
        let input = random_tensor(dtype, &[3, 4, 5], 2);
        let op = Transpose::with_order(&input, &[1, 2, 0]);
        cases.push(Case::new(format!("transpose/{dtype}/order"), op, Tolerance::Exact));
    }
    cases
}

/// A view with an offset, a step and a stretched axis.
pub(super) fn odd_view(dtype: DType) -> Tensor {
    let whole = random_tensor(dtype, &[9, 1, 11], 3);
    let view = whole.slice(0, 2, 9).and_then(|part| part.slice_step(2, 1, 11, 3));
    let view = view.and_then(|part| part.broadcast_to([7, 2, 4]));
    view.unwrap_or_else(|error| panic!("the view is wrong: {error}"))
}
