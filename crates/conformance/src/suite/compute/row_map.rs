//! RowMap: every function and float type, expressions before and after it, broadcast and strided
//! inputs, rows of awkward lengths, NaN and infinities.

use panoply_core::expr::Expr;
use panoply_core::op::compute::{RowFunction, RowMap};
use panoply_core::{DType, Tensor};

use crate::suite::case::Case;
use crate::tolerance::Tolerance;
use crate::values::{random_tensor, tensor_of};

const FUNCTIONS: [RowFunction; 8] = [
    RowFunction::Sum,
    RowFunction::Mean,
    RowFunction::Max,
    RowFunction::Min,
    RowFunction::Softmax,
    RowFunction::LogSoftmax,
    RowFunction::Norm { epsilon: 1e-5, is_rms: false },
    RowFunction::Norm { epsilon: 1e-5, is_rms: true },
];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
        for function in FUNCTIONS {
            cases.extend(of(dtype, function));
        }
    }
    cases
}

fn of(dtype: DType, function: RowFunction) -> Vec<Case> {
    let mut cases = Vec::new();
    let tolerance = tolerance(dtype);
    let mut case = |what: &str, op: RowMap| {
        cases.push(Case::new(format!("row_map/{dtype}/{}/{what}", function.name()), op, tolerance));
    };
    let (x, y, z) = (Expr::input(0), Expr::input(1), Expr::input(2));
    for dims in [&[3, 1][..], &[2, 7], &[5, 2, 33], &[2, 257], &[3, 1024], &[1, 4099], &[300, 5], &[0, 4], &[17]] {
        let a = random_tensor(dtype, dims, 1);
        case(&format!("plain/{dims:?}"), RowMap::new(&x, &[&a], function));
    }
    let (a, b) = (random_tensor(dtype, &[6, 130], 2), random_tensor(dtype, &[6, 130], 3));
    let (line, column) = (random_tensor(dtype, &[130], 4), random_tensor(dtype, &[6, 1], 5));
    case("before", RowMap::new(&x * 0.125 + &y, &[&a, &b], function));
    case("broadcast", RowMap::new(&x * &y + &z, &[&line, &column, &a], function));
    let after = match function.is_reduction() {
        true => random_tensor(dtype, &[6], 6),
        false => line.clone(),
    };
    case("after", RowMap::new(&x, &[&a], function).after((&x * &y).tanh() - 0.5, &[&after]));
    let both = RowMap::new(&x + &y, &[&a, &column], function).after((&x + &y).relu().cast(DType::F32), &[&after]);
    case("both", both);
    let turned = view(random_tensor(dtype, &[130, 6], 7).transpose());
    let every_other = view(random_tensor(dtype, &[6, 260], 8).slice_step(1, 0, 260, 2));
    case("strided", RowMap::new(&x - &y, &[&turned, &every_other], function));
    let constant = Expr::constant(0.5).cast(dtype);
    case("unused", RowMap::new(constant + &x * 0.0, &[&a], function));
    let (nan, infinity) = (f64::NAN, f64::INFINITY);
    let special = tensor_of(dtype, &[4, 3], &[1.0, nan, 2.0, -infinity, 1.0, 2.0, 1.0, -1.0, 0.5, 2.0, 2.0, 2.0]);
    if !matches!(function, RowFunction::Norm { .. }) {
        case("special", RowMap::new(&x * 1.0, &[&special], function));
    }
    cases
}

fn view(tensor: panoply_core::Result<Tensor>) -> Tensor {
    tensor.unwrap_or_else(|error| panic!("the view is wrong: {error}"))
}

fn tolerance(dtype: DType) -> Tolerance {
    let (relative, absolute) = match dtype {
        DType::F64 => (1e-11, 1e-11),
        DType::F16 => (4e-3, 4e-3),
        DType::BF16 => (2e-2, 2e-2),
        _ => (2e-5, 2e-5),
    };
    Tolerance::Close { relative, absolute }
}
