//! MatMul: every element type; empty, one, prime and long dimensions; views; batches; epilogues;
//! NaN and infinity.
//!
//! Tolerances: operands are between -2 and 2, so the rounding of a sum of k products is relative to
//! a magnitude of at most `4 k`. Sums in f32 may lose `k · 4 · 2^-22`, sums in f64 `k · 4 · 2^-51`.
//! f16 and bf16 results may then be off by one unit in the last place (2^-10 and 2^-7 of the
//! value). Integers are exact.

use panoply_core::op::compute::{Activation, MatMul, Precision};
use panoply_core::{DType, Tensor};

use crate::suite::case::Case;
use crate::tolerance::Tolerance;
use crate::values::{random_tensor, tensor_of};

/// Rows, columns, inner dimension.
const SIZES: [[usize; 3]; 14] = [
    [1, 1, 1],
    [0, 3, 4],
    [3, 0, 4],
    [3, 4, 0],
    [2, 3, 5],
    [7, 31, 13],
    [17, 33, 65],
    [64, 64, 64],
    [97, 101, 103],
    [1, 257, 129],
    [257, 1, 129],
    [1, 1, 1000],
    [30, 41, 513],
    [5, 6, 33_000],
];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in DType::ALL {
        for size in SIZES {
            cases.push(plain(dtype, size));
        }
        cases.extend(arranged(dtype));
        cases.extend(batched(dtype));
        cases.extend(with_epilogue(dtype));
    }
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
        cases.extend(activated(dtype));
        cases.extend(thin(dtype));
        cases.extend(unusual_numbers(dtype));
    }
    cases.extend(wrapping());
    cases
}

/// The tolerance for sums of `k` products, plus addends of a few units.
fn tolerance(dtype: DType, k: usize) -> Tolerance {
    let k = k as f64 + 4.0;
    let (relative, absolute) = match dtype {
        DType::F32 | DType::Complex64 => (0.0, k * 4.0 * 2_f64.powi(-22)),
        DType::F16 => (2_f64.powi(-10), k * 4.0 * 2_f64.powi(-22)),
        DType::BF16 => (2_f64.powi(-7), k * 4.0 * 2_f64.powi(-22)),
        DType::F64 => (0.0, k * 4.0 * 2_f64.powi(-51)),
        _ => return Tolerance::Exact,
    };
    Tolerance::Close { relative, absolute }
}

fn plain(dtype: DType, [m, n, k]: [usize; 3]) -> Case {
    let (a, b) = (random_tensor(dtype, &[m, k], 1), random_tensor(dtype, &[k, n], 2));
    Case::new(format!("matmul/{dtype}/{m}x{n}x{k}"), MatMul::new(&a, &b), tolerance(dtype, k))
}

/// Transposes, slices, stretched rows, and the same tensor as both operands.
fn arranged(dtype: DType) -> Vec<Case> {
    let (m, n, k) = (37, 45, 29);
    let (a, b) = (random_tensor(dtype, &[m, k], 1), random_tensor(dtype, &[k, n], 2));
    let (a_turned, b_turned) = (random_tensor(dtype, &[k, m], 3), random_tensor(dtype, &[n, k], 4));
    let wide = random_tensor(dtype, &[2 * k + 1, 3 * n], 5);
    let every_second = wide.slice_step(0, 1, 2 * k + 1, 2).and_then(|part| part.slice_step(1, 2, 3 * n, 3));
    let one_row = random_tensor(dtype, &[1, k], 6).broadcast_to([m, k]);
    let square = random_tensor(dtype, &[m, m], 7);
    let ops = [
        ("a turned", MatMul::new(&a_turned, &b).transpose_a()),
        ("b turned", MatMul::new(&a, &b_turned).transpose_b()),
        ("both turned", MatMul::new(&a_turned, &b_turned).transpose_a().transpose_b()),
        ("turned view", MatMul::new(&view(a_turned.transpose()), &view(b_turned.transpose()))),
        ("every second", MatMul::new(&a, &view(every_second))),
        ("one row", MatMul::new(&view(one_row), &b)),
        ("itself", MatMul::new(&square, &square).beta(1.0, &widened(&square, m))),
        ("itself turned", MatMul::new(&square, &square).transpose_b()),
        ("full precision", MatMul::new(&a, &b).precision(Precision::Full)),
    ];
    let named = |(name, op)| Case::new(format!("matmul/{dtype}/{name}"), op, tolerance(dtype, m.max(k)));
    ops.into_iter().map(named).collect()
}

/// Few rows or few columns, with the other operand contiguous in either order, and with epilogues.
fn thin(dtype: DType) -> Vec<Case> {
    let mut cases = Vec::new();
    for [m, n, k] in
        [[1, 512, 784], [8, 24, 40], [5, 16, 5000], [40, 10, 64], [1, 10, 256], [700, 3, 72], [2200, 10, 328]]
    {
        let (a, b) = (random_tensor(dtype, &[m, k], 1), random_tensor(dtype, &[k, n], 2));
        let (a_turned, b_turned) = (random_tensor(dtype, &[k, m], 3), random_tensor(dtype, &[n, k], 4));
        let (c, columns) = (random_tensor(dtype, &[m, n], 5), random_tensor(dtype, &[n], 6));
        let ops = [
            ("plain", MatMul::new(&a, &b).bias(&columns).activation(Activation::Relu)),
            ("b turned", MatMul::new(&a, &b_turned).transpose_b().beta(0.5, &c)),
            ("a turned", MatMul::new(&a_turned, &b).transpose_a().alpha(-2.0)),
        ];
        let named =
            |(name, op)| Case::new(format!("matmul/{dtype}/thin {m}x{n}x{k} {name}"), op, tolerance(dtype, 2 * k));
        cases.extend(ops.into_iter().map(named));
    }
    let (a, b) = (random_tensor(dtype, &[3, 2, 48], 1), random_tensor(dtype, &[3, 48, 16], 2));
    cases.push(Case::new(format!("matmul/{dtype}/thin batch"), MatMul::new(&a, &b), tolerance(dtype, 48)));
    cases
}

/// The tensor itself if it has the output's element type, else a tensor with other values.
fn widened(square: &Tensor, m: usize) -> Tensor {
    match square.dtype() {
        DType::I8 | DType::U8 => random_tensor(DType::I32, &[m, m], 8),
        _ => square.clone(),
    }
}

fn view(view: panoply_core::Result<Tensor>) -> Tensor {
    view.unwrap_or_else(|error| panic!("the view is wrong: {error}"))
}

fn batched(dtype: DType) -> Vec<Case> {
    let shapes: [(&[usize], &[usize]); 8] = [
        (&[5, 7, 11], &[5, 11, 3]),
        (&[5, 7, 11], &[11, 3]),
        (&[7, 11], &[5, 11, 3]),
        (&[2, 1, 4, 6], &[3, 6, 5]),
        (&[2, 3, 4, 6], &[2, 1, 6, 5]),
        (&[0, 4, 6], &[6, 5]),
        (&[70, 16, 16], &[70, 16, 16]),
        (&[3, 70, 60], &[3, 60, 50]),
    ];
    let mut cases = Vec::new();
    for (a_dims, b_dims) in shapes {
        let (a, b) = (random_tensor(dtype, a_dims, 1), random_tensor(dtype, b_dims, 2));
        let name = format!("matmul/{dtype}/{a_dims:?} by {b_dims:?}");
        cases.push(Case::new(name, MatMul::new(&a, &b), tolerance(dtype, 70)));
    }
    let (a, b) = (random_tensor(dtype, &[6, 4, 5], 1), random_tensor(dtype, &[6, 5], 2));
    let every_second = view(a.slice_step(0, 0, 6, 2));
    let (c, row_bias) = (output_tensor(dtype, &[4, 1], 3), output_tensor(dtype, &[4, 1], 4));
    let op = MatMul::new(&every_second, &b).transpose_b().beta(2.0, &c).bias(&row_bias);
    cases.push(Case::new(format!("matmul/{dtype}/batch of views"), op, tolerance(dtype, 20)));
    cases
}

fn output_tensor(dtype: DType, dims: &[usize], seed: u64) -> Tensor {
    let dtype = if matches!(dtype, DType::I8 | DType::U8) { DType::I32 } else { dtype };
    random_tensor(dtype, dims, seed)
}

fn with_epilogue(dtype: DType) -> Vec<Case> {
    let mut cases = Vec::new();
    for [m, n, k] in [[3, 5, 7], [67, 70, 30], [1, 300, 40], [300, 1, 40], [4, 6, 0]] {
        let (a, b) = (random_tensor(dtype, &[m, k], 1), random_tensor(dtype, &[k, n], 2));
        let c = output_tensor(dtype, &[m, n], 3);
        let (columns, rows) = (output_tensor(dtype, &[n], 4), output_tensor(dtype, &[m, 1], 5));
        let plain = || MatMul::new(&a, &b);
        let ops = [
            ("alpha", plain().alpha(-2.0)),
            ("beta", plain().beta(3.0, &c)),
            ("beta of a row", plain().beta(1.0, &columns)),
            ("bias", plain().bias(&columns)),
            ("bias of rows", plain().bias(&rows)),
            ("everything", plain().alpha(2.0).beta(-1.0, &c).bias(&columns)),
        ];
        for (name, op) in ops {
            cases.push(Case::new(format!("matmul/{dtype}/{m}x{n}x{k} {name}"), op, tolerance(dtype, 3 * k + 4)));
        }
        if dtype.is_integer() {
            let op = plain().bias(&rows).activation(Activation::Relu);
            cases.push(Case::new(format!("matmul/{dtype}/{m}x{n}x{k} relu"), op, Tolerance::Exact));
        }
    }
    cases
}

fn activated(dtype: DType) -> Vec<Case> {
    let mut cases = Vec::new();
    for [m, n, k] in [[5, 3, 4], [40, 50, 30]] {
        let (a, b) = (random_tensor(dtype, &[m, k], 1), random_tensor(dtype, &[k, n], 2));
        let bias = random_tensor(dtype, &[n], 3);
        let all = [Activation::Relu, Activation::Gelu, Activation::Silu, Activation::Sigmoid, Activation::Tanh];
        for activation in all {
            let op = MatMul::new(&a, &b).bias(&bias).activation(activation);
            let name = format!("matmul/{dtype}/{m}x{n}x{k} {activation:?}");
            cases.push(Case::new(name, op, tolerance(dtype, 3 * k)));
        }
    }
    cases
}

/// A NaN or an infinity affects its row or column and nothing else.
fn unusual_numbers(dtype: DType) -> Vec<Case> {
    let (m, n, k) = (19, 35, 21);
    let unusual = |dims: [usize; 2], seed: usize| {
        let mut values = vec![1.0; dims[0] * dims[1]];
        let len = values.len();
        for (index, value) in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0].into_iter().enumerate() {
            values[(index * 89 + seed) % len] = value;
        }
        tensor_of(dtype, &dims, &values)
    };
    let (a, b, c) = (unusual([m, k], 7), unusual([k, n], 13), unusual([m, n], 29));
    let ones = |dims: [usize; 2]| tensor_of(dtype, &dims, &vec![1.0; dims[0] * dims[1]]);
    let ops = [
        ("unusual a", MatMul::new(&a, &ones([k, n]))),
        ("unusual b", MatMul::new(&ones([m, k]), &b)),
        ("unusual both", MatMul::new(&a, &b)),
        ("unusual c", MatMul::new(&ones([m, k]), &ones([k, n])).beta(1.0, &c)),
        ("relu of unusual", MatMul::new(&a, &ones([k, n])).activation(Activation::Relu)),
        ("gelu of unusual", MatMul::new(&a, &ones([k, n])).activation(Activation::Gelu)),
    ];
    let named = |(name, op)| Case::new(format!("matmul/{dtype}/{name}"), op, tolerance(dtype, k));
    ops.into_iter().map(named).collect()
}

/// Sums and scaled sums far outside 32 bits.
fn wrapping() -> Vec<Case> {
    let (m, n, k) = (9, 40, 50);
    let large = |dtype: DType, dims: [usize; 2], factor: f64| {
        let values: Vec<f64> = (0..dims[0] * dims[1]).map(|index| (index % 97) as f64 * factor).collect();
        tensor_of(dtype, &dims, &values)
    };
    let mut cases = Vec::new();
    for (dtype, factor) in [(DType::I32, -22_000_003.0), (DType::U32, 44_000_007.0)] {
        let (a, b) = (large(dtype, [m, k], factor), large(dtype, [k, n], factor));
        let op = MatMul::new(&a, &b).alpha(-77.0).activation(Activation::Relu);
        cases.push(Case::new(format!("matmul/{dtype}/wrapping"), op, Tolerance::Exact));
    }
    cases
}
