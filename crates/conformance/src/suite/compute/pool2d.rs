//! Pool2d: every element type; windows that overlap, leave gaps, extend over the edge or cover
//! everything; views; NaN and infinities.

use panoply_core::op::compute::Pool2d;
use panoply_core::{DType, Tensor};

use crate::suite::case::Case;
use crate::tolerance::Tolerance;
use crate::values::{random_tensor, tensor_of, to_f64};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
        for dims in [[2, 3, 11, 13], [1, 1, 1, 1], [1, 5, 2, 131], [0, 3, 5, 5], [2, 0, 5, 5], [3, 7, 56, 56]] {
            push(&mut cases, dtype, &format!("{dims:?}"), &random_tensor(dtype, &dims, 51));
        }
        let view = random_tensor(dtype, &[9, 2, 8, 3], 52).permute(&[1, 3, 0, 2]);
        let view = view.and_then(|view| view.slice_step(2, 1, 9, 2)).and_then(|view| view.slice(3, 2, 8));
        push(&mut cases, dtype, "view", &view.unwrap_or_else(|error| panic!("pool2d view: {error}")));
        let mut values = to_f64(&random_tensor(dtype, &[1, 2, 9, 23], 53)).unwrap_or_default();
        (values[30], values[100], values[101], values[206]) =
            (f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::NEG_INFINITY);
        push(&mut cases, dtype, "specials", &tensor_of(dtype, &[1, 2, 9, 23], &values));
        let smallest = vec![f64::NEG_INFINITY; 36];
        push(&mut cases, dtype, "all -inf", &tensor_of(dtype, &[1, 1, 6, 6], &smallest));
    }
    cases
}

/// Adds both kinds of pooling of one tensor, in every arrangement that its size allows.
fn push(cases: &mut Vec<Case>, dtype: DType, name: &str, input: &Tensor) {
    let arrangements: [([usize; 2], [usize; 2], [usize; 4]); 7] = [
        ([1, 1], [1, 1], [0; 4]),
        ([2, 2], [2, 2], [0; 4]),
        ([3, 3], [2, 2], [1; 4]),
        ([3, 3], [1, 1], [1; 4]),
        ([2, 3], [3, 5], [1, 2, 0, 1]),
        ([5, 4], [2, 3], [4, 3, 3, 2]),
        ([1, 2], [usize::MAX, 2], [0, 1, 0, 1]),
    ];
    for (kernel, stride, padding) in arrangements {
        let max = Pool2d::max(input, kernel).stride(stride).padding(padding);
        if max.output_shape().is_err() {
            continue;
        }
        let arrangement = format!("{dtype}/{name}/k{kernel:?}s{stride:?}p{padding:?}");
        cases.push(Case::new(format!("pool2d/max/{arrangement}"), max, Tolerance::Exact));
        for count in [false, true] {
            let op = Pool2d::average(input, kernel).stride(stride).padding(padding).count_padding(count);
            cases.push(Case::new(format!("pool2d/average/{arrangement}/{count}"), op, tolerance(dtype, 20)));
        }
    }
    let global = Pool2d::global_max(input);
    cases.push(Case::new(format!("pool2d/max/{dtype}/{name}/global"), global, Tolerance::Exact));
    let area = input.shape()[2] * input.shape()[3];
    let global = Pool2d::global_average(input);
    cases.push(Case::new(format!("pool2d/average/{dtype}/{name}/global"), global, tolerance(dtype, area)));
}

/// The tolerance for sums of `terms` numbers of magnitude up to 2, accumulated in f32 (f64 for
/// f64), divided, and rounded once.
fn tolerance(dtype: DType, terms: usize) -> Tolerance {
    let (relative, unit) = match dtype {
        DType::F64 => (1e-14, f64::EPSILON),
        DType::F16 => (1.0 / 1024.0, f64::from(f32::EPSILON)),
        DType::BF16 => (1.0 / 128.0, f64::from(f32::EPSILON)),
        _ => (1e-6, f64::from(f32::EPSILON)),
    };
    let smallest_half = if dtype == DType::F16 { 6e-8 } else { 0.0 };
    Tolerance::Close { relative, absolute: unit * 2.0 * (terms as f64).sqrt() + smallest_half }
}
