//! Gather: every element type, rows and single elements; scalars, empty, views, and indices out of
//! range.

use panoply_core::op::compute::Gather;
use panoply_core::{DType, Tensor};

use super::transpose::odd_view;
use crate::suite::case::Case;
use crate::tolerance::Tolerance;
use crate::values::{Random, random_tensor};

/// Input dimensions, index dimensions, axis.
const ROWS: [(&[usize], &[usize], usize); 9] = [
    (&[1], &[], 0),
    (&[7], &[13], 0),
    (&[5, 3], &[4, 2], 0),
    (&[5, 3], &[7], 1),
    (&[2, 11, 17], &[5, 1, 3], 1),
    (&[101, 33], &[257], 0),
    (&[4, 0], &[3], 0),
    (&[4, 3], &[0], 1),
    (&[0, 3], &[0, 2], 0),
];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in DType::ALL {
        for (dims, index_dims, axis) in ROWS {
            let op = Gather::new(&random_tensor(dtype, dims, 31), &indices(index_dims, dims[axis]), axis);
            cases.push(Case::new(format!("gather/{dtype}/{dims:?} by {index_dims:?}"), op, Tolerance::Exact));
        }
        let op = Gather::along(&random_tensor(dtype, &[3, 7, 5], 32), &indices(&[3, 11, 5], 7), 1);
        cases.push(Case::new(format!("gather/{dtype}/along"), op, Tolerance::Exact));
        let op = Gather::along(&random_tensor(dtype, &[3, 7], 33), &indices(&[3, 0], 7), 1);
        cases.push(Case::new(format!("gather/{dtype}/along none"), op, Tolerance::Exact));
        let op = Gather::new(&odd_view(dtype), &indices(&[3], 4), 2);
        cases.push(Case::new(format!("gather/{dtype}/view"), op, Tolerance::Exact));
    }
    let input = random_tensor(DType::I32, &[6, 6], 34);
    let strided = indices(&[4, 6], 6).transpose().unwrap_or_else(|error| panic!("the view is wrong: {error}"));
    cases.push(Case::new("gather/indices/view", Gather::new(&input, &strided, 0), Tolerance::Exact));
    let values = Tensor::from_vec(vec![1, 0, 2, 1], [2, 2]).unwrap_or_else(|error| panic!("{error}"));
    cases.push(Case::new("gather/indices/of itself", Gather::new(&values, &unsigned(&[1, 0]), 0), Tolerance::Exact));
    cases.push(Case::new(
        "gather/indices/same tensor",
        Gather::new(&unsigned(&[2, 0, 1]), &unsigned(&[2, 0, 1]), 0),
        Tolerance::Exact,
    ));
    cases.push(Case::new("gather/indices/too large", Gather::new(&input, &unsigned(&[0, 6]), 0), Tolerance::Exact));
    cases.push(Case::new("gather/indices/largest", Gather::new(&input, &unsigned(&[u32::MAX]), 1), Tolerance::Exact));
    cases.push(Case::new("gather/indices/too small", Gather::new(&input, &signed(&[-6, -7]), 0), Tolerance::Exact));
    let empty = random_tensor(DType::F32, &[0, 3], 35);
    cases.push(Case::new("gather/indices/of nothing", Gather::new(&empty, &signed(&[0]), 0), Tolerance::Exact));
    cases
}

/// Random indices into `len` elements, some of which count from the end.
fn indices(dims: &[usize], len: usize) -> Tensor {
    let mut random = Random::new(36);
    let count: usize = dims.iter().product();
    let mut next = || random.below(2 * len.max(1) as u64) as i32 - len as i32;
    let values = (0..count).map(|_| next()).collect();
    Tensor::from_vec(values, dims).unwrap_or_else(|error| panic!("indices of {dims:?}: {error}"))
}

fn unsigned(values: &[u32]) -> Tensor {
    Tensor::from_slice(values, [values.len()]).unwrap_or_else(|error| panic!("{error}"))
}

fn signed(values: &[i32]) -> Tensor {
    Tensor::from_slice(values, [values.len()]).unwrap_or_else(|error| panic!("{error}"))
}
