//! Scan: every kind, direction and element type; every axis; empty, one, prime and long; NaN and
//! infinities; views.

use panoply_core::DType;
use panoply_core::op::compute::{Scan, ScanKind};

use super::transpose::odd_view;
use crate::suite::case::Case;
use crate::tolerance::Tolerance;
use crate::values::{random_tensor, tensor_of};

/// Dimensions and axis.
const SHAPES: [(&[usize], usize); 9] = [
    (&[1], 0),
    (&[0, 3], 0),
    (&[3, 0], 1),
    (&[7, 13], 0),
    (&[3, 129], 1),
    (&[64], 0),
    (&[1031], 0),
    (&[2, 3, 5, 7], 1),
    (&[2, 61, 300], 1),
];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in DType::ALL.into_iter().filter(|dtype| *dtype != DType::Complex64) {
        for kind in ScanKind::ALL {
            let mut add = |what: String, op: Scan| {
                let name = format!("scan/{dtype}/{}/{what}", kind.name());
                let tolerance = tolerance(dtype, kind);
                cases.push(Case::new(format!("{name}/inclusive"), op.clone(), tolerance));
                cases.push(Case::new(format!("{name}/exclusive"), op.clone().exclusive(), tolerance));
                cases.push(Case::new(format!("{name}/reverse"), op.clone().reverse(), tolerance));
                cases.push(Case::new(format!("{name}/both"), op.reverse().exclusive(), tolerance));
            };
            for (dims, axis) in SHAPES {
                add(format!("{dims:?}/axis{axis}"), Scan::new(&random_tensor(dtype, dims, 40), kind).axis(axis));
            }
            add("view".to_owned(), Scan::new(&odd_view(dtype), kind).axis(0));
            if dtype.is_float() {
                let (nan, inf) = (f64::NAN, f64::INFINITY);
                let values = [1.0, inf, 2.0, -inf, 3.0, 0.5, nan, 1.5, -0.0, 0.0, -inf, 1.0, 2.0, inf];
                add("special".to_owned(), Scan::new(&tensor_of(dtype, &[2, 7], &values), kind));
            }
        }
        let long = random_tensor(dtype, &[300_007], 41);
        let tolerance = tolerance(dtype, ScanKind::Sum);
        cases.push(Case::new(format!("scan/{dtype}/sum/long"), Scan::sum(&long), tolerance));
    }
    cases
}

/// Sums are as exact as adding in f32 (f64 for f64) in blocks. Products of many factors come near
/// zero.
fn tolerance(dtype: DType, kind: ScanKind) -> Tolerance {
    match dtype {
        _ if matches!(kind, ScanKind::Max | ScanKind::Min) => Tolerance::Exact,
        DType::F32 => Tolerance::Close { relative: 1e-5, absolute: 1e-4 },
        DType::F64 => Tolerance::Close { relative: 1e-12, absolute: 1e-12 },
        DType::F16 => Tolerance::Close { relative: 2e-3, absolute: 1e-3 },
        DType::BF16 => Tolerance::Close { relative: 1.6e-2, absolute: 1e-3 },
        _ => Tolerance::Exact,
    }
}
