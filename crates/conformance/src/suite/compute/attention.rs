//! Attention: every element type; empty, one, prime and long sequences; heads that share keys;
//! masks of every shape; causal masks with more and with fewer keys than queries; packed views;
//! large magnitudes; NaN and infinity.
//!
//! Tolerances: elements are between -2 and 2. A score is a sum of d products that may lose
//! `4 d · 2^-21`, times the scale; this is the relative error of a weight. f16 and bf16 weights may
//! be rounded (2^-11 and 2^-8 of the weight, and values are up to 2), and so may the result. Sums
//! over the keys add a few units for each doubling of the number of keys.

use panoply_core::op::compute::Attention;
use panoply_core::{DType, Op, Tensor, Value};

use crate::judge::Judge;
use crate::suite::case::Case;
use crate::tolerance::Tolerance;
use crate::values::{random_tensor, tensor_of, to_f64, whole_numbers};

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Batch, heads of queries and of keys, queries, keys, elements of a query and of a value.
const SIZES: [[usize; 7]; 15] = [
    [1, 1, 1, 1, 1, 1, 1],
    [2, 3, 3, 0, 5, 8, 8],
    [2, 3, 3, 5, 0, 8, 8],
    [0, 3, 3, 5, 5, 8, 8],
    [2, 2, 2, 5, 7, 0, 3],
    [2, 2, 2, 5, 7, 3, 0],
    [1, 2, 2, 17, 19, 13, 7],
    [2, 6, 2, 65, 67, 40, 40],
    [1, 2, 1, 33, 200, 72, 24],
    [2, 2, 2, 128, 128, 64, 64],
    [1, 1, 1, 150, 300, 64, 64],
    [3, 4, 1, 1, 259, 64, 64],
    [1, 1, 1, 70, 131, 128, 128],
    [1, 2, 1, 21, 45, 256, 256],
    [1, 1, 1, 9, 35, 300, 270],
];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in DTYPES {
        for size in SIZES {
            cases.push(plain(dtype, size));
        }
        cases.extend(causal(dtype));
        cases.extend(masked(dtype));
        cases.extend(arranged(dtype));
        cases.extend(large(dtype));
        cases.extend(unusual(dtype));
    }
    cases
}

/// The tolerance for scores that are sums of `d` products, for any scale.
fn tolerance(dtype: DType, d: usize) -> Tolerance {
    let scores = 2.0 * (d as f64 + 8.0).sqrt() * 4.0 * 2_f64.powi(-21);
    let (relative, absolute) = match dtype {
        DType::F16 => (2_f64.powi(-10), scores + 2_f64.powi(-10)),
        DType::BF16 => (2_f64.powi(-7), scores + 2_f64.powi(-7)),
        _ => (2_f64.powi(-20), scores),
    };
    Tolerance::Close { relative, absolute }
}

fn named(dtype: DType, what: &str, op: Attention, d: usize) -> Case {
    Case::new(format!("attention/{dtype}/{what}"), op, tolerance(dtype, d))
}

fn tensors(dtype: DType, [batch, heads, kv_heads, n_q, n_k, d, d_v]: [usize; 7]) -> [Tensor; 3] {
    [
        random_tensor(dtype, &[batch, heads, n_q, d], 1),
        random_tensor(dtype, &[batch, kv_heads, n_k, d], 2),
        random_tensor(dtype, &[batch, kv_heads, n_k, d_v], 3),
    ]
}

fn plain(dtype: DType, size: [usize; 7]) -> Case {
    let [q, k, v] = tensors(dtype, size);
    let [batch, heads, kv_heads, n_q, n_k, d, d_v] = size;
    let name = format!("{batch}x{heads}({kv_heads})x{n_q}({n_k})x{d}({d_v})");
    named(dtype, &name, Attention::new(&q, &k, &v), d)
}

/// As many keys as queries, more, and fewer. With fewer keys the first queries see none.
fn causal(dtype: DType) -> Vec<Case> {
    let sizes = [(40, 40), (1, 100), (33, 70), (70, 33), (129, 129), (200, 130), (5, 1), (3, 0)];
    let each = |(n_q, n_k): (usize, usize)| {
        let [q, k, v] = tensors(dtype, [1, 4, 2, n_q, n_k, 64, 48]);
        named(dtype, &format!("causal/{n_q}({n_k})"), Attention::new(&q, &k, &v).causal(), 64)
    };
    sizes.into_iter().map(each).collect()
}

/// Masks that broadcast in every way, of either type, with rows that contain only -∞.
fn masked(dtype: DType) -> Vec<Case> {
    let [q, k, v] = tensors(dtype, [2, 4, 2, 37, 75, 40, 48]);
    let plain = || Attention::new(&q, &k, &v);
    let mut cases = Vec::new();
    for (index, dims) in
        [vec![2, 4, 37, 75], vec![37, 75], vec![2, 1, 1, 75], vec![4, 37, 1], vec![1], vec![75]].iter().enumerate()
    {
        let mask_dtype = if index % 2 == 0 { DType::F32 } else { dtype };
        let op = plain().mask(&random_tensor(mask_dtype, dims, 4));
        cases.push(named(dtype, &format!("mask/{dims:?}/{mask_dtype}"), op, 40));
    }
    // Hides whole rows, whole beginnings that are longer than a tile, and single keys.
    let hole = |row: usize, key: usize| row.is_multiple_of(5) || (row % 3 == 1 && key < 70) || (row + key) % 7 == 2;
    let value = |index: usize| if hole(index / 75, index % 75) { f64::NEG_INFINITY } else { 0.25 };
    let holes: Vec<f64> = (0..37 * 75).map(value).collect();
    let holes = tensor_of(dtype, &[37, 75], &holes);
    cases.push(named(dtype, "mask/holes", plain().mask(&holes), 40));
    cases.push(named(dtype, "mask/holes and causal", plain().mask(&holes).causal(), 40));
    let none = tensor_of(DType::F32, &[1], &[f64::NEG_INFINITY]);
    cases.push(named(dtype, "mask/nothing left", plain().mask(&none), 40));
    let turned = random_tensor(dtype, &[75, 37], 5).transpose();
    cases.push(named(dtype, "mask/turned", plain().mask(&view(turned)).scale(-0.5), 40));
    cases
}

fn view(view: panoply_core::Result<Tensor>) -> Tensor {
    view.unwrap_or_else(|error| panic!("the view is wrong: {error}"))
}

/// Views: the parts of a packed tensor, transposed matrices, stretched heads, steps; other ranks.
fn arranged(dtype: DType) -> Vec<Case> {
    let (batch, n, heads, d) = (2, 50, 3, 32);
    let packed = random_tensor(dtype, &[batch, n, 3, heads, d], 6);
    let part = |index: usize| {
        let whole = packed.slice(2, index, index + 1).and_then(|part| part.permute(&[0, 2, 3, 1, 4]));
        let axes = view(whole);
        // A view of the same memory drops the axis of length one.
        let dims = [batch, heads, n, d];
        let strides = panoply_core::shape::Strides::new([axes.strides()[0], axes.strides()[2], axes.strides()[3], 1]);
        let shape = panoply_core::Shape::new(dims);
        view(shape.and_then(|shape| Tensor::from_parts(dtype, shape, strides?, axes.offset(), axes.buffer().clone())))
    };
    let [q, k, v] = [part(0), part(1), part(2)];
    let [flat_q, flat_k, flat_v] = tensors(dtype, [1, 4, 2, 20, 30, 16, 16]).map(|t| view(t.reshape(&t.shape()[1..])));
    let (one_query, one_mask) = (view(flat_q.slice(1, 3, 4)), random_tensor(dtype, &[4, 1, 30], 10));
    let turned = view(random_tensor(dtype, &[2, 16, 30], 7).transpose());
    let one_head = view(random_tensor(dtype, &[1, 30, 16], 8).broadcast_to([2, 30, 16]));
    let steps = view(random_tensor(dtype, &[2, 60, 33], 9).slice_step(1, 1, 60, 2).and_then(|t| t.slice(2, 3, 19)));
    let deep = |rows: usize, seed: u64| random_tensor(dtype, &[2, 1, 2, 2, rows, 16], seed);
    let ops = [
        ("packed", Attention::new(&q, &k, &v)),
        ("packed causal", Attention::new(&q, &k, &v).causal()),
        ("without a batch", Attention::new(&flat_q, &flat_k, &flat_v)),
        ("turned keys", Attention::new(&flat_q, &turned, &flat_v)),
        ("turned values", Attention::new(&flat_q, &flat_k, &turned)),
        ("one head for all", Attention::new(&flat_q, &one_head, &one_head)),
        ("steps", Attention::new(&flat_q, &steps, &flat_v)),
        ("steps of values", Attention::new(&flat_q, &flat_k, &steps)),
        ("six axes", Attention::new(&deep(9, 1), &deep(11, 2), &deep(11, 3)).causal()),
        ("one query for each head", Attention::new(&one_query, &flat_k, &flat_v).mask(&one_mask).causal()),
        ("scaled", Attention::new(&flat_q, &flat_k, &flat_v).scale(0.125)),
        ("scaled by zero", Attention::new(&flat_q, &flat_k, &flat_v).scale(0.0)),
    ];
    ops.into_iter().map(|(name, op)| named(dtype, name, op, 32)).collect()
}

/// Scores in the tens of thousands of either sign, which differ by whole numbers. They are exact,
/// so only the softmax can lose precision. The scores of later keys are higher, or lower.
fn large(dtype: DType) -> Vec<Case> {
    let (n_q, n_k, d) = (20, 150, 16);
    let times = |tensor: Tensor, factor: f64| {
        let values: Vec<f64> = to_f64(&tensor).unwrap_or_default().iter().map(|x| x * factor).collect();
        tensor_of(dtype, tensor.shape(), &values)
    };
    let q = times(whole_numbers(dtype, &[1, n_q, d], 1), 16.0);
    let k = times(whole_numbers(dtype, &[1, n_k, d], 2), 16.0);
    let v = random_tensor(dtype, &[1, n_k, d], 3);
    let ramp = |slope: f64| {
        let values: Vec<f64> = (0..n_k).map(|key| slope * (key / 8 * 8) as f64).collect();
        tensor_of(DType::F32, &[n_k], &values)
    };
    // All keys weigh the same, in whichever tile they are.
    let row = &to_f64(&k).unwrap_or_default()[..d];
    let equal = tensor_of(dtype, &[1, n_k, d], &row.repeat(n_k));
    let ops = [
        ("large and equal", Attention::new(&q, &equal, &v).scale(0.37)),
        ("large", Attention::new(&q, &k, &v).scale(1.0)),
        ("large and ever larger", Attention::new(&q, &k, &v).scale(0.25).mask(&ramp(64.0))),
        ("large and ever smaller", Attention::new(&q, &k, &v).scale(-0.25).mask(&ramp(-64.0))),
    ];
    ops.into_iter().map(|(name, op)| named(dtype, name, op, d)).collect()
}

/// A NaN or an infinity in a query affects its row, in a key all rows of its head, and in a mask
/// the row of the mask.
fn unusual(dtype: DType) -> Vec<Case> {
    let ([q, k, v], count) = (tensors(dtype, [1, 2, 2, 6, 9, 16, 16]), 2 * 6 * 16);
    let with = |tensor: &Tensor, at: usize, value: f64| {
        let mut values = to_f64(tensor).unwrap_or_default();
        values[at] = value;
        tensor_of(dtype, tensor.shape(), &values)
    };
    let mask = |value: f64| {
        let mut values = vec![0.0; 6 * 9];
        values[2 * 9 + 4] = value;
        tensor_of(DType::F32, &[6, 9], &values)
    };
    let ops = [
        ("nan in q", Attention::new(&with(&q, count / 2 + 3, f64::NAN), &k, &v)),
        ("infinity in q", Attention::new(&with(&q, 3, f64::INFINITY), &k, &v)),
        ("nan in k", Attention::new(&q, &with(&k, 5, f64::NAN), &v)),
        ("nan in v", Attention::new(&q, &k, &with(&v, 20, f64::NAN))),
        ("nan in the mask", Attention::new(&q, &k, &v).mask(&mask(f64::NAN))),
        ("infinity in the mask", Attention::new(&q, &k, &v).mask(&mask(f64::INFINITY))),
    ];
    let mut cases: Vec<Case> = ops.into_iter().map(|(name, op)| named(dtype, name, op, 16)).collect();
    let op = Attention::new(&q, &k, &with(&v, 20, f64::INFINITY));
    cases.push(Case::new(format!("attention/{dtype}/infinity in v"), op, Judge::Own(infinite_or_none)));
    cases
}

/// Accepts infinity for an infinite value, or NaN from an engine that splits numbers in two. All
/// other values must be finite.
fn infinite_or_none(_op: &Op, expected: &Value, got: &Value) -> Option<String> {
    let numbers = |value: &Value| value.tensors().next().and_then(|tensor| to_f64(tensor).ok()).unwrap_or_default();
    let (expected, got) = (numbers(expected), numbers(got));
    if expected.len() != got.len() {
        return Some(format!("expected {} elements, got {}", expected.len(), got.len()));
    }
    let place = expected.iter().zip(&got).position(|(expected, got)| expected.is_finite() != got.is_finite())?;
    Some(format!("element {place}: expected {}, got {}", expected[place], got[place]))
}
