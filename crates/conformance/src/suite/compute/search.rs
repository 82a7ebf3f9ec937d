//! Search: every pair of element types and every metric; empty, one and prime counts, more
//! neighbours than rows, filters, given norms, views, ties, NaN, infinities and zero vectors.
//!
//! Ids are compared like scores, so a case must not depend on the rounding of nearly equal scores:
//! either the rows are few and random, or all scores are exact.

use panoply_core::DType;
use panoply_core::op::compute::{Metric, Search};

use crate::suite::case::Case;
use crate::tolerance::Tolerance;
use crate::values::{Random, random_tensor, tensor_of};

const PAIRS: [(DType, DType); 7] = [
    (DType::F32, DType::F32),
    (DType::F16, DType::F16),
    (DType::BF16, DType::BF16),
    (DType::I8, DType::I8),
    (DType::F16, DType::F32),
    (DType::BF16, DType::F32),
    (DType::I8, DType::F32),
];

/// Rows, dimensions, queries and k.
const SHAPES: [[usize; 4]; 12] = [
    [1, 1, 1, 1],
    [0, 5, 2, 3],
    [5, 0, 2, 3],
    [7, 3, 0, 2],
    [7, 3, 2, 0],
    [3, 4, 2, 7],
    [97, 17, 1, 10],
    [101, 31, 5, 13],
    [67, 16, 16, 5],
    [131, 33, 17, 7],
    [50, 64, 40, 3],
    [61, 257, 33, 61],
];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (row_type, query_type) in PAIRS {
        for metric in Metric::ALL {
            let name = |what: &str| format!("search/{row_type}/{query_type}/{}/{what}", metric.name());
            for [rows, dim, queries, k] in SHAPES {
                let op = Search::new(
                    &random_tensor(row_type, &[rows, dim], 30),
                    &random_tensor(query_type, &[queries, dim], 31),
                    metric,
                    k,
                );
                cases.push(Case::new(name(&format!("{rows}x{dim}/q{queries}k{k}")), op, close(row_type, dim)));
            }
            cases.push(Case::new(name("filter"), filtered(row_type, query_type, metric), close(row_type, 24)));
            cases.push(Case::new(name("view"), viewed(row_type, query_type, metric), close(row_type, 6)));
            for queries in [1, 37] {
                let op = tied(row_type, query_type, metric, queries);
                cases.push(Case::new(name(&format!("ties/q{queries}")), op, close(row_type, 8)));
            }
        }
        let rows = random_tensor(row_type, &[90, 12], 32);
        let norms = tensor_of(DType::F32, &[90], &(1..=90).map(|row| f64::from(row) * 0.25).collect::<Vec<_>>());
        let op = Search::new(&rows, &random_tensor(query_type, &[9, 12], 33), Metric::Cosine, 10).row_norms(&norms);
        cases.push(Case::new(format!("search/{row_type}/{query_type}/cosine/norms"), op, close(row_type, 12)));
    }
    cases.extend(special());
    cases.extend(long());
    cases
}

/// Sums of `dim` products of two factors, accumulated in f32: the error is a share of the largest
/// possible sum.
fn close(rows: DType, dim: usize) -> Tolerance {
    let largest = if rows == DType::I8 { 128.0 * 128.0 } else { 4.0 };
    Tolerance::Close { relative: 1.0e-6, absolute: largest * dim as f64 * 5.0e-7 }
}

/// About a quarter of the rows may be returned. In the last word, bits after the last row are set
/// too.
fn filtered(row_type: DType, query_type: DType, metric: Metric) -> Search {
    let mut random = Random::new(34);
    let words: Vec<f64> = (0..4).map(|_| f64::from((random.next_u64() & random.next_u64()) as u32)).collect();
    let (rows, queries) = (random_tensor(row_type, &[107, 24], 35), random_tensor(query_type, &[20, 24], 36));
    Search::new(&rows, &queries, metric, 50).filter(&tensor_of(DType::U32, &[4], &words))
}

/// Every other row of a part, and transposed queries.
fn viewed(row_type: DType, query_type: DType, metric: Metric) -> Search {
    let rows = random_tensor(row_type, &[80, 9], 37).slice_step(0, 3, 80, 2).and_then(|rows| rows.slice(1, 2, 8));
    let queries = random_tensor(query_type, &[6, 5], 38).transpose();
    match (rows, queries) {
        (Ok(rows), Ok(queries)) => Search::new(&rows, &queries, metric, 6),
        (Err(error), _) | (_, Err(error)) => panic!("the view is wrong: {error}"),
    }
}

/// Rows that repeat every five, so that most scores tie. They are small integers, whose sums and
/// lengths are exact.
fn tied(row_type: DType, query_type: DType, metric: Metric, queries: usize) -> Search {
    let rows: Vec<f64> = (0..400 * 8).map(|index| f64::from((index / 8 % 5) * (index % 8) % 7)).collect();
    let values: Vec<f64> = (0..queries * 8).map(|index| (index % 3) as f64 + 1.0).collect();
    Search::new(&tensor_of(row_type, &[400, 8], &rows), &tensor_of(query_type, &[queries, 8], &values), metric, 90)
}

/// Rows with NaN, infinities and zeros, and a zero query.
fn special() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for metric in Metric::ALL {
            for queries in [2, 20] {
                let mut rows: Vec<f64> = (0..30 * 4).map(|index| f64::from(index % 11 - 5)).collect();
                rows[5] = f64::NAN;
                rows[13] = f64::INFINITY;
                rows[22] = f64::NEG_INFINITY;
                rows[40..48].fill(0.0);
                let mut values: Vec<f64> = (0..queries * 4).map(|index| (index % 5) as f64 + 1.0).collect();
                values[4..8].fill(0.0);
                let (rows, queries) = (tensor_of(dtype, &[30, 4], &rows), tensor_of(dtype, &[queries, 4], &values));
                let name = format!("search/{dtype}/{}/special/q{}", metric.name(), queries.shape()[0]);
                cases.push(Case::new(name, Search::new(&rows, &queries, metric, 32), close(dtype, 4)));
            }
        }
    }
    cases
}

/// Searches over enough rows that engines sample them first, or divide them among workers. The
/// scores are whole numbers.
fn long() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::I8] {
        for metric in Metric::ALL {
            for (queries, k) in [(1, 10), (3, 100), (12, 10), (18, 10), (70, 10), (140, 10)] {
                let rows: Vec<f64> = (0..5000 * 16).map(|index| f64::from(uneven(index / 16, index % 16))).collect();
                let values: Vec<f64> = (0..queries * 16).map(|index| (index * index % 7) as f64).collect();
                let (rows, values) = (tensor_of(dtype, &[5000, 16], &rows), tensor_of(dtype, &[queries, 16], &values));
                let name = format!("search/{dtype}/{}/long/q{queries}k{k}", metric.name());
                cases.push(Case::new(name, Search::new(&rows, &values, metric, k), close(dtype, 16)));
            }
        }
    }
    // Fewer rows have scores than are requested. Rows with NaN follow in the order of their ids.
    for dtype in [DType::F16, DType::BF16] {
        let row = |row: usize| if row % 250 == 7 { (row / 250) as f64 } else { f64::NAN };
        let rows: Vec<f64> = (0..5000 * 8).map(|index| row(index / 8)).collect();
        let values: Vec<f64> = (0..60 * 8).map(|index| (index % 3) as f64 + 1.0).collect();
        let (rows, values) = (tensor_of(dtype, &[5000, 8], &rows), tensor_of(dtype, &[60, 8], &values));
        let op = Search::new(&rows, &values, Metric::Dot, 32);
        cases.push(Case::new(format!("search/{dtype}/dot/long/nan"), op, close(dtype, 8)));
    }
    cases
}

/// Every other run of 128 rows is far nearer to a query of small positive numbers than the runs
/// between, so that a sample of runs can miss all relevant rows.
fn uneven(row: u32, dimension: u32) -> u32 {
    let small = (row * 37 + dimension * dimension * 11) % 5;
    if row / 128 % 2 == 1 { small + 2 } else { small * (dimension / 15) }
}
