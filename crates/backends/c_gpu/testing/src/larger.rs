//! Sizes that the suite does not have, because only this backend distinguishes them: lines too long
//! for a block, contiguous and not, sorted digit by digit; products in tiles; convolutions large
//! enough for the vendor's library, in every type that it supports, and small ones in whole tiles
//! of channels; searches by tiles of every size, with vectors that do not fit block memory, and
//! rows that give the sample a bad threshold; Fourier transforms in tiles; messages that are hashed
//! level by level; filters of several chunks of taps.

use panoply_conformance::values::{Random, random_tensor, tensor_of, whole_numbers};
use panoply_conformance::{Case, Judge, Tolerance};
use panoply_core::op::compute::{
    Activation, ArgSort, Conv2d, Conv2dBackwardInput, Conv2dBackwardWeight, MatMul, Metric, Search, Sort, SortPairs,
};
use panoply_core::op::crypto::{AeadAlgorithm, Hash, HashAlgorithm, Key, Nonces, Seal};
use panoply_core::op::signal::{Biquad, Convolve, Fft, Fir, Ifft, Iir};
use panoply_core::{Bytes, Complex64, DType, Tensor};

pub fn cases() -> Vec<Case> {
    long_lines().into_iter().chain(products()).chain(convolutions()).chain(messages()).chain(filters()).collect()
}

/// Messages of many chunks, together with short ones and ones that end exactly at a chunk, or one
/// block after it.
fn messages() -> Vec<Case> {
    let bytes = |len: usize, seed: u64| {
        let mut random = Random::new(seed);
        Bytes::from_vec((0..len).map(|_| random.next_u64() as u8).collect())
    };
    let mut cases = Vec::new();
    for algorithm in AeadAlgorithm::ALL {
        let key = Key::seal(algorithm, &vec![7; algorithm.key_bytes()]).unwrap();
        let list: Vec<Bytes> = [70_001, 0, 240, 256, 16, 4080, 4096, 33_000].map(|len| bytes(len, 8)).to_vec();
        let op = Seal::new(&key, Nonces::Given(bytes(12 * list.len(), 9)), list).associated(bytes(300, 10));
        cases.push(Case::new(format!("seal/{}/long", algorithm.name()), op, Judge::Bits));
    }
    let list: Vec<Bytes> = [70_001, 3].map(|len| bytes(len, 11)).to_vec();
    for algorithm in HashAlgorithm::ALL {
        let op = Hash::new(algorithm, list.clone());
        cases.push(Case::new(format!("hash/{}/long", algorithm.name()), op, Judge::Bits));
    }
    cases
}

pub fn filters() -> Vec<Case> {
    let complex = |len: usize, seed: u64| {
        let parts = random_tensor(DType::F32, &[2 * len], seed).to_vec::<f32>().unwrap();
        let values: Vec<Complex64> = parts.chunks(2).map(|pair| Complex64::new(pair[0], pair[1])).collect();
        Tensor::from_vec(values, [len]).unwrap()
    };
    let close = Tolerance::Close { relative: 2e-6, absolute: 2e-4 };
    let (input, taps) = (random_tensor(DType::F32, &[2, 9001], 12), random_tensor(DType::F32, &[1500], 13));
    let mut values = input.to_vec::<f32>().unwrap();
    (values[100], values[12_000]) = (f32::NAN, f32::INFINITY);
    let spoilt = Tensor::from_vec(values, [2, 9001]).unwrap();
    let slow = Biquad { b: [0.001, 0.0005, 0.0], a: [-0.9995, 0.0] };
    vec![
        Case::new("fir/f32/chunks", Fir::new(&input, &taps), close),
        Case::new("convolve/f32/parts", Convolve::new(&input, &random_tensor(DType::F32, &[9000], 15)), close),
        Case::new("correlate/c64/parts", Convolve::correlation(&complex(5000, 16), &complex(2500, 17)), close),
        Case::new("correlate/f32/chunks", Convolve::correlation(&input, &taps), close),
        // A non-finite element affects only the outputs of which it is a term, in separate frames
        // and in shared ones.
        Case::new("fir/f32/frames/nan", Fir::new(&spoilt, &random_tensor(DType::F32, &[100], 18)), close),
        Case::new("convolve/f32/parts/nan", Convolve::new(&spoilt, &random_tensor(DType::F32, &[9000], 19)), close),
        // A line of more chunks than a scan has threads, through a filter whose memory spans many
        // of them.
        Case::new("iir/f32/chunks", Iir::new(&random_tensor(DType::F32, &[150_001], 14), vec![slow, slow]), close),
    ]
}

fn long_lines() -> Vec<Case> {
    let mut cases = Vec::new();
    for (dtype, values) in [(DType::F32, DType::U8), (DType::F16, DType::F64), (DType::U8, DType::F32)] {
        for (dims, axis) in [([3, 20_011], 1), ([16_385, 2], 0)] {
            let (keys, follow) = (random_tensor(dtype, &dims, 1), random_tensor(values, &dims, 2));
            let name = |op: &str| format!("{op}/{dtype}/long/{dims:?}");
            cases.push(Case::new(name("sort"), Sort::new(&keys).axis(axis), Tolerance::Exact));
            cases.push(Case::new(name("argsort"), ArgSort::new(&keys).axis(axis).descending(), Tolerance::Exact));
            cases.push(Case::new(name("sort_pairs"), SortPairs::new(&keys, &follow).axis(axis), Tolerance::Exact));
        }
    }
    let special = [f64::NAN, f64::INFINITY, -0.0, 0.0, f64::NEG_INFINITY, 1.5, -f64::NAN, -1.5];
    let numbers: Vec<f64> = (0..20_011_usize).map(|n| if n % 3 == 0 { special[n / 3 % 8] } else { n as f64 }).collect();
    let keys = tensor_of(DType::F32, &[20_011], &numbers);
    cases.push(Case::new("sort/f32/long/special/rising", Sort::new(&keys), Tolerance::Exact));
    cases.push(Case::new("sort/f32/long/special/falling", Sort::new(&keys).descending(), Tolerance::Exact));
    cases.push(Case::new("sort/f32/long/special/stable", Sort::new(&keys).stable(), Tolerance::Exact));
    cases.push(Case::new("argsort/f32/long/special", ArgSort::new(&keys), Tolerance::Exact));
    cases
}

/// Rows, columns and depth of products whose operands are read sixteen bytes at a time: less than a
/// tile, whole tiles, and partial tiles.
const PRODUCTS: [[usize; 3]; 5] = [[12, 20, 8], [64, 64, 64], [100, 132, 36], [204, 68, 516], [1100, 260, 100]];

fn products() -> Vec<Case> {
    let mut cases = Vec::new();
    for [m, n, k] in PRODUCTS {
        let mut add = |name: &str, op: MatMul| {
            // As in the suite.
            let close = Tolerance::Close { relative: 0.0, absolute: (k as f64 + 8.0) * 4.0 * 2_f64.powi(-22) };
            cases.push(Case::new(format!("matmul/f32/tiles/{m}x{n}x{k}/{name}"), op, close));
        };
        let random = |dims: &[usize], seed| random_tensor(DType::F32, dims, seed);
        let (a, b, c) = (random(&[m, k], 1), random(&[k, n], 2), random(&[m, n], 3));
        let (a_turned, b_turned) = (random(&[k, m], 4), random(&[n, k], 5));
        let (columns, rows) = (random(&[n], 6), random(&[m, 1], 7));
        add("plain", MatMul::new(&a, &b));
        add("a turned", MatMul::new(&a_turned, &b).transpose_a().bias(&columns));
        add("b turned", MatMul::new(&a, &b_turned).transpose_b().bias(&columns).activation(Activation::Relu));
        let both = MatMul::new(&a_turned, &b_turned).transpose_a().transpose_b();
        add("both turned", both.alpha(0.5).beta(-2.0, &c).bias(&rows));
        // A matrix whose rows do not fill words of sixteen bytes.
        let odd = random(&[n + 1, k], 8);
        add("odd columns", MatMul::new(&a, &odd).transpose_b());
        if m < 300 {
            let (several, one) = (random(&[3, m, k], 9), random(&[2, 1, k, n], 10));
            add("batches", MatMul::new(&several, &one).activation(Activation::Relu));
        }
    }
    cases.extend(long_sums());
    cases
}

/// Rows, columns and depth of products of 16-bit numbers whose sums a library computes in parts.
/// Some have rows at odd addresses.
const LONG_SUMS: [[usize; 3]; 9] = [
    [129, 131, 1025],
    [31, 33, 4097],
    [7, 129, 8191],
    [65, 63, 2049],
    [1, 3, 10_001],
    [64, 64, 8192],
    [16, 128, 16_384],
    [128, 8, 4096],
    [40, 24, 20_000],
];

fn long_sums() -> Vec<Case> {
    let mut cases = Vec::new();
    for (dtype, relative) in [(DType::F16, 2_f64.powi(-10)), (DType::BF16, 2_f64.powi(-7))] {
        for [m, n, k] in LONG_SUMS {
            let close = Tolerance::Close { relative, absolute: (k as f64 + 8.0) * 4.0 * 2_f64.powi(-22) };
            let (a, b) = (random_tensor(dtype, &[m, k], 11), random_tensor(dtype, &[k, n], 12));
            let b_turned = random_tensor(dtype, &[n, k], 13);
            let bias = random_tensor(dtype, &[n], 14);
            let mut add =
                |name: &str, op| cases.push(Case::new(format!("matmul/{dtype}/long/{m}x{n}x{k}/{name}"), op, close));
            add("plain", MatMul::new(&a, &b));
            add("turned", MatMul::new(&a, &b_turned).transpose_b().bias(&bias).activation(Activation::Relu));
        }
    }
    cases
}

fn convolutions() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let input = random_tensor(dtype, &[2, 32, 15, 14], 3);
        let weights = random_tensor(dtype, &[64, 32, 3, 3], 4);
        let bias = random_tensor(dtype, &[64], 5);
        let relative = match dtype {
            DType::F16 => 1.0 / 1024.0,
            DType::BF16 => 1.0 / 128.0,
            _ => 1e-6,
        };
        let close = |terms: f64| Tolerance::Close { relative, absolute: 4.0 * f64::from(f32::EPSILON) * terms };
        let plain = Conv2d::new(&input, &weights).padding([1; 4]);
        let name = |what: &str| format!("conv2d/{dtype}/large/{what}");
        cases.push(Case::new(name("plain"), plain.clone(), close(292.0)));
        cases.push(Case::new(name("bias"), plain.clone().bias(&bias), close(292.0)));
        let relu = plain.clone().bias(&bias).activation(Activation::Relu);
        cases.push(Case::new(name("bias and relu"), relu, close(292.0)));
        let uneven = plain.clone().padding([0, 1, 2, 0]).stride([1, 2]).dilation([2, 1]);
        cases.push(Case::new(name("uneven"), uneven, close(292.0)));
        let gradient = random_tensor(dtype, &[2, 64, 15, 14], 6);
        let op = Conv2dBackwardInput::new(&gradient, &weights, [15, 14]).padding([1; 4]);
        cases.push(Case::new(format!("conv2d_backward_input/{dtype}/large"), op, close(580.0)));
        let op = Conv2dBackwardWeight::new(&input, &gradient, [3, 3]).padding([1; 4]);
        cases.push(Case::new(format!("conv2d_backward_weight/{dtype}/large"), op, close(424.0)));
        // Too small for the library, and in whole tiles of channels.
        let (input, weights) = (random_tensor(dtype, &[1, 64, 9, 11], 7), random_tensor(dtype, &[64, 32, 3, 2], 8));
        let small = Conv2d::new(&input, &weights).padding([1, 0, 1, 1]).stride([2, 1]).groups(2);
        cases.push(Case::new(name("small"), small.clone(), close(196.0)));
        let gradient = small.output_shape().map(|shape| random_tensor(dtype, &shape, 9));
        let gradient = gradient.unwrap_or_else(|error| panic!("{error}"));
        let small = Conv2dBackwardInput::new(&gradient, &weights, [9, 11]).padding([1, 0, 1, 1]);
        let name = format!("conv2d_backward_input/{dtype}/small");
        cases.push(Case::new(name, small.stride([2, 1]).groups(2), close(196.0)));
    }
    cases
}

/// Rows, dimensions, queries and k.
const SEARCHES: [[usize; 4]; 8] = [
    [2300, 1100, 66, 10],
    [2300, 600, 130, 3],
    [2300, 300, 20, 16],
    [5000, 24, 300, 17],
    [20_000, 16, 20, 2048],
    [40_000, 16, 70, 100],
    [200_000, 16, 20, 10],
    [100_000, 16, 6, 1],
];

pub fn searches() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::I8] {
        for metric in [Metric::Dot, Metric::Euclidean] {
            let mut add = |name: String, op: Search| {
                let name = format!("search/{dtype}/{dtype}/{}/large/{name}", metric.name());
                cases.push(Case::new(name, op, Tolerance::Close { relative: 1e-6, absolute: 0.0 }));
            };
            for (seed, [rows, dim, queries, k]) in (10..).zip(SEARCHES) {
                let op = Search::new(
                    &whole_numbers(dtype, &[rows, dim], seed),
                    &whole_numbers(dtype, &[queries, dim], 2 * seed),
                    metric,
                    k,
                );
                add(format!("{rows}x{dim}/q{queries}k{k}"), op);
            }
            let (rows, queries) = (whole_numbers(dtype, &[6000, 16], 30), whole_numbers(dtype, &[40, 16], 31));
            // One row of every 64 may be returned: all of them are in one group of the sample.
            let words: Vec<f64> = (0..188).map(|word| if word % 2 == 0 { 8.0 } else { 0.0 }).collect();
            let filter = tensor_of(DType::U32, &[188], &words);
            add("filter".to_owned(), Search::new(&rows, &queries, metric, 12).filter(&filter));
            // All scores are the same, so no list has room for all rows up to the threshold.
            let same = tensor_of(dtype, &[9000, 16], &[1.0; 9000 * 16]);
            add("same".to_owned(), Search::new(&same, &queries, metric, 11));
        }
    }
    cases
}

/// Number of lines, and the logarithm of their length.
const TRANSFORMS: [(usize, u32); 6] = [(3, 18), (2, 19), (1, 20), (5, 20), (1, 21), (1, 22)];

/// Each transform, and its inverse.
pub fn transforms() -> Vec<Case> {
    TRANSFORMS.into_iter().flat_map(|(lines, len_log2)| transform(lines, len_log2)).collect()
}

fn transform(lines: usize, len_log2: u32) -> [Case; 2] {
    let (mut random, len) = (Random::new(u64::from(len_log2)), 1 << len_log2);
    let mut number = || random.signed_unit() as f32;
    let values: Vec<Complex64> = (0..lines * len).map(|_| Complex64::new(number(), number())).collect();
    let input = Tensor::from_vec(values, [lines, len]).unwrap_or_else(|error| panic!("{error}"));
    // As in the suite.
    let absolute = 1.5e-7 * (len as f64).sqrt() * (2.0 + f64::from(len_log2));
    let close = |share: f64| Tolerance::Close { relative: 1e-6, absolute: absolute * share };
    [
        Case::new(format!("fft/c64/large/{lines}x{len}"), Fft::new(&input), close(1.0)),
        Case::new(format!("ifft/c64/large/{lines}x{len}"), Ifft::new(&input), close(1.0 / len as f64)),
    ]
}
