//! Transfer to the host: contiguous tensors and views, every element type.

use panoply_core::DType;
use panoply_core::op::compute::Transfer;

use super::transpose::odd_view;
use crate::suite::case::Case;
use crate::tolerance::Tolerance;
use crate::values::random_tensor;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in DType::ALL {
        for dims in [&[][..], &[0], &[13, 5]] {
            let op = Transfer::to_host(&random_tensor(dtype, dims, 4));
            cases.push(Case::new(format!("transfer/{dtype}/{dims:?}"), op, Tolerance::Exact));
        }
        let op = Transfer::to_host(&odd_view(dtype));
        cases.push(Case::new(format!("transfer/{dtype}/view"), op, Tolerance::Exact));
    }
    cases
}
