//! The search against plain loops, at every vector level.

use panoply_core::op::compute::Metric;
use panoply_core::{bf16, f16};
use panoply_cpu_machine::simd::Simd;
use panoply_cpu_machine::team::Team;
use panoply_cpu_order::search::*;

#[derive(Clone)]
enum OwnedRows {
    F32(Vec<f32>),
    F16(Vec<f16>),
    BF16(Vec<bf16>),
    I8(Vec<i8>),
}

impl OwnedRows {
    fn of(kind: usize, values: &[f32]) -> OwnedRows {
        match kind {
            0 => OwnedRows::F32(values.to_vec()),
            1 => OwnedRows::F16(values.iter().map(|value| f16::from_f32(*value)).collect()),
            2 => OwnedRows::BF16(values.iter().map(|value| bf16::from_f32(*value)).collect()),
            _ => OwnedRows::I8(values.iter().map(|value| (*value * 60.0) as i8).collect()),
        }
    }

    fn view(&self) -> Vectors<'_> {
        match self {
            OwnedRows::F32(values) => Vectors::F32(values),
            OwnedRows::F16(values) => Vectors::F16(values),
            OwnedRows::BF16(values) => Vectors::BF16(values),
            OwnedRows::I8(values) => Vectors::I8(values),
        }
    }

    /// `count` elements from `start` on, which need not be aligned for vectors.
    fn view_from(&self, start: usize, count: usize) -> Vectors<'_> {
        match self {
            OwnedRows::F32(values) => Vectors::F32(&values[start..][..count]),
            OwnedRows::F16(values) => Vectors::F16(&values[start..][..count]),
            OwnedRows::BF16(values) => Vectors::BF16(&values[start..][..count]),
            OwnedRows::I8(values) => Vectors::I8(&values[start..][..count]),
        }
    }

    fn widened(&self) -> Vec<f64> {
        match self {
            OwnedRows::F32(values) => values.iter().map(|value| f64::from(*value)).collect(),
            OwnedRows::F16(values) => values.iter().map(|value| value.to_f64()).collect(),
            OwnedRows::BF16(values) => values.iter().map(|value| value.to_f64()).collect(),
            OwnedRows::I8(values) => values.iter().map(|value| f64::from(*value)).collect(),
        }
    }
}

fn random(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2) + 1;
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((state >> 40) as f32 / (1 << 23) as f32) - 1.0
        })
        .collect()
}

fn score(metric: Metric, row: &[f64], query: &[f64]) -> f64 {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    match metric {
        Metric::Dot => dot(row, query),
        Metric::Cosine => {
            let norms = dot(row, row).sqrt() * dot(query, query).sqrt();
            if norms == 0.0 { 0.0 } else { dot(row, query) / norms }
        }
        Metric::Euclidean => row.iter().zip(query).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt(),
    }
}

/// Checks a result independently of the rounding of close scores: each score is right, the order is
/// right, and no omitted row is clearly better than the last returned one.
fn check(input: &SearchInput<'_>, rows: &OwnedRows, queries: &OwnedRows, ids: &[u32], scores: &[f32], name: &str) {
    let (rows, queries) = (rows.widened(), queries.widened());
    let passes = |row: usize| input.filter.is_none_or(|words| words[row / 32] >> (row % 32) & 1 == 1);
    let passing = (0..input.row_count).filter(|row| passes(*row)).count();
    let sign = if input.metric == Metric::Euclidean { -1.0 } else { 1.0 };
    for query in 0..input.query_count {
        let vector = &queries[query * input.dim..][..input.dim];
        let all: Vec<f64> = (0..input.row_count)
            .map(|row| score(input.metric, &rows[row * input.dim..][..input.dim], vector))
            .collect();
        let scale = all.iter().fold(1.0_f64, |most, score| most.max(score.abs()));
        let tolerance = scale * 4.0e-6;
        let (ids, scores) = (&ids[query * input.k..][..input.k], &scores[query * input.k..][..input.k]);
        let found = input.k.min(passing);
        for place in 0..found {
            assert!(passes(ids[place] as usize), "{name}: row {} is filtered out", ids[place]);
            assert!((all[ids[place] as usize] - f64::from(scores[place])).abs() <= tolerance, "{name}: score");
            if place > 0 {
                let (before, after) = (sign as f32 * scores[place - 1], sign as f32 * scores[place]);
                assert!(before > after || before == after && ids[place - 1] < ids[place], "{name}: order");
            }
        }
        if found > 0 {
            let last = sign * f64::from(scores[found - 1]);
            for row in (0..input.row_count).filter(|row| passes(*row) && !ids.contains(&(*row as u32))) {
                assert!(sign * all[row] <= last + tolerance, "{name}: row {row} was missed");
            }
        }
        assert!(ids[found..].iter().all(|id| *id == u32::MAX), "{name}: missing ids");
        assert!(scores[found..].iter().all(|score| *score == input.metric.missing_score()), "{name}: missing scores");
    }
}

fn run(team: &Team, simd: Simd, input: &SearchInput<'_>) -> (Vec<u32>, Vec<f32>) {
    let mut ids = vec![7; input.query_count * input.k];
    let mut scores = vec![7.0; ids.len()];
    search(team, simd, input, &mut ids, &mut scores);
    (ids, scores)
}

const METRICS: [Metric; 3] = [Metric::Dot, Metric::Cosine, Metric::Euclidean];

#[test]
fn every_type_metric_and_level_finds_the_nearest() {
    let teams = [Team::single(), Team::new(2)];
    let shapes = [(1, 1, 1, 1), (5, 3, 2, 7), (97, 17, 9, 3), (301, 40, 33, 10), (1009, 64, 17, 5), (700, 131, 64, 70)];
    for (kind, query_kind) in [(0, 0), (1, 1), (2, 2), (3, 3), (1, 0), (2, 0), (3, 0)] {
        for (row_count, dim, query_count, k) in shapes {
            let rows = OwnedRows::of(kind, &random(row_count * dim, 1));
            let queries = OwnedRows::of(query_kind, &random(query_count * dim, 2));
            for metric in METRICS {
                for simd in Simd::available() {
                    for team in &teams {
                        let input = SearchInput {
                            rows: rows.view(),
                            queries: queries.view(),
                            dim,
                            row_count,
                            query_count,
                            metric,
                            k,
                            filter: None,
                            row_norms: None,
                        };
                        let name =
                            format!("{kind}/{query_kind} {row_count}x{dim} q{query_count} k{k} {metric:?} {simd:?}");
                        let (ids, scores) = run(team, simd, &input);
                        check(&input, &rows, &queries, &ids, &scores, &name);
                    }
                }
            }
        }
    }
}

/// The score of a row from plain loops, and the tolerance for sums in `f32`.
fn plain(metric: Metric, row: &[f64], query: &[f64]) -> (f64, f64) {
    let wanted = score(metric, row, query);
    let most: f64 = match metric {
        Metric::Dot => row.iter().zip(query).map(|(a, b)| (a * b).abs()).sum(),
        Metric::Cosine => 1.0,
        Metric::Euclidean => wanted + row.iter().zip(query).map(|(a, b)| a.abs().max(b.abs())).fold(0.0, f64::max),
    };
    (wanted, most * 2.0_f64.powi(-22) * (row.len() as f64).sqrt().max(2.0) + 1.0e-37)
}

#[test]
fn odd_dimensions_offsets_and_numbers_score_as_plain_loops_do() {
    let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.0e-41, -6.0e-8, 6.0e-5, 6.0e4, -0.0];
    let (team, row_count, query_count) = (Team::single(), 21, 2);
    let mut cases = 0;
    for dim in 1..=70 {
        let offset = dim % 8;
        let mut values = random(offset + row_count * dim, dim as u64);
        // Each odd value is in a row of its own, at varying indices; one row has only very small
        // numbers.
        for (row, odd) in odd.into_iter().enumerate() {
            values[offset + row * dim + (dim * 5 + row) % dim] = odd;
        }
        values[offset + 10 * dim..offset + 11 * dim].iter_mut().for_each(|value| *value *= 1.0e-6);
        for (kind, query_kind) in [(0, 0), (1, 1), (2, 2), (3, 3), (1, 0), (2, 0), (3, 0)] {
            let (rows, queries) =
                (OwnedRows::of(kind, &values), OwnedRows::of(query_kind, &random(8 + query_count * dim, 9)));
            let (row_values, query_values) = (&rows.widened()[offset..], &queries.widened()[8 - offset..]);
            for metric in METRICS {
                for simd in Simd::available() {
                    let input = SearchInput {
                        rows: rows.view_from(offset, row_count * dim),
                        queries: queries.view_from(8 - offset, query_count * dim),
                        dim,
                        row_count,
                        query_count,
                        metric,
                        k: row_count,
                        filter: None,
                        row_norms: None,
                    };
                    let name = format!("{kind}/{query_kind} {dim} at {offset} {metric:?} {simd:?}");
                    let (ids, scores) = run(&team, simd, &input);
                    for (query, (ids, scores)) in ids.chunks(row_count).zip(scores.chunks(row_count)).enumerate() {
                        let query = &query_values[query * dim..][..dim];
                        let mut seen = ids.to_vec();
                        seen.sort_unstable();
                        assert!(seen.into_iter().eq(0..row_count as u32), "{name}: {ids:?}");
                        assert!(scores.is_sorted_by_key(|score| score.is_nan()), "{name}: NaN is last: {scores:?}");
                        for (id, got) in ids.iter().zip(scores) {
                            let row = &row_values[*id as usize * dim..][..dim];
                            let (wanted, near) = plain(metric, row, query);
                            // Products with numbers below the range in which f32 has full precision
                            // have no digits left.
                            let vanishes = metric == Metric::Cosine && row.iter().all(|value| value.abs() < 1.0e-37);
                            let right = match (wanted.is_nan(), wanted.is_infinite()) {
                                (true, _) => got.is_nan(),
                                _ if vanishes => got.abs() <= 1.001,
                                (false, true) => f64::from(*got) == wanted,
                                (false, false) => (f64::from(*got) - wanted).abs() <= near,
                            };
                            assert!(right, "{name}, row {id}: {got}, not {wanted}");
                            cases += 1;
                        }
                    }
                }
            }
        }
    }
    assert_eq!(cases, 70 * 7 * 3 * Simd::available().len() * row_count * query_count);
}

#[test]
fn every_number_of_queries_is_right() {
    let (row_count, dim, k) = (130, 35, 4);
    let team = Team::new(2);
    for kind in [0, 3] {
        let rows = OwnedRows::of(kind, &random(row_count * dim, 3));
        for query_count in 1..=70 {
            let queries = OwnedRows::of(kind, &random(query_count * dim, 4));
            for metric in METRICS {
                for simd in Simd::available() {
                    let input = SearchInput {
                        rows: rows.view(),
                        queries: queries.view(),
                        dim,
                        row_count,
                        query_count,
                        metric,
                        k,
                        filter: None,
                        row_norms: None,
                    };
                    let (ids, scores) = run(&team, simd, &input);
                    check(&input, &rows, &queries, &ids, &scores, &format!("q{query_count} {metric:?} {simd:?}"));
                }
            }
        }
    }
}

#[test]
fn filters_and_given_norms_are_obeyed() {
    let (row_count, dim) = (1500_usize, 24);
    let team = Team::new(2);
    let words = row_count.div_ceil(32);
    let sparse: Vec<u32> = (0..words).map(|word| if word % 5 == 3 { 1 << (word % 32) } else { 0 }).collect();
    let dense: Vec<u32> = (0..words).map(|word| !(1 << (word % 32))).collect();
    for filter in [sparse, dense, vec![0; words], vec![u32::MAX; words + 2]] {
        for kind in [0, 2, 3] {
            let rows = OwnedRows::of(kind, &random(row_count * dim, 5));
            let norms: Vec<f32> = rows
                .widened()
                .chunks(dim)
                .map(|row| row.iter().map(|value| value * value).sum::<f64>().sqrt() as f32)
                .collect();
            for query_count in [1, 20, 40] {
                let queries = OwnedRows::of(kind, &random(query_count * dim, 6));
                for (metric, row_norms) in
                    METRICS.map(|metric| (metric, None)).into_iter().chain([(Metric::Cosine, Some(&norms[..]))])
                {
                    for simd in Simd::available() {
                        let input = SearchInput {
                            rows: rows.view(),
                            queries: queries.view(),
                            dim,
                            row_count,
                            query_count,
                            metric,
                            k: 20,
                            filter: Some(&filter),
                            row_norms,
                        };
                        let (ids, scores) = run(&team, simd, &input);
                        check(&input, &rows, &queries, &ids, &scores, &format!("filter {metric:?} {simd:?}"));
                    }
                }
            }
        }
    }
}

#[test]
fn ties_go_to_the_smaller_id_on_every_path() {
    let (row_count, dim) = (2000, 48);
    let team = Team::new(2);
    let rows: Vec<f32> = (0..row_count * dim).map(|index| ((index / dim) % 3) as f32).collect();
    for query_count in [1, 4, 16, 32] {
        let queries = vec![1.0; query_count * dim];
        for simd in Simd::available() {
            let input = SearchInput {
                rows: Vectors::F32(&rows),
                queries: Vectors::F32(&queries),
                dim,
                row_count,
                query_count,
                metric: Metric::Dot,
                k: 100,
                filter: None,
                row_norms: None,
            };
            let (ids, _) = run(&team, simd, &input);
            let wanted: Vec<u32> = (0..100).map(|place| place * 3 + 2).collect();
            assert!(ids.chunks(100).all(|ids| ids == wanted), "{query_count} {simd:?}");
        }
    }
}

#[test]
fn nan_comes_last_and_zero_vectors_score_zero() {
    let dim = 16;
    let mut rows = random(60 * dim, 8);
    rows[7 * dim] = f32::NAN;
    rows[9 * dim..10 * dim].fill(0.0);
    rows[11 * dim] = f32::INFINITY;
    for query_count in [1, 32] {
        let queries = vec![0.5; query_count * dim];
        for metric in METRICS {
            for simd in Simd::available() {
                let input = SearchInput {
                    rows: Vectors::F32(&rows),
                    queries: Vectors::F32(&queries),
                    dim,
                    row_count: 60,
                    query_count,
                    metric,
                    k: 61,
                    filter: None,
                    row_norms: None,
                };
                let (ids, scores) = run(&Team::single(), simd, &input);
                for (ids, scores) in ids.chunks(61).zip(scores.chunks(61)) {
                    let nan = if metric == Metric::Cosine { [7, 11] } else { [ids[58], 7] };
                    assert_eq!(ids[58..60], nan, "{metric:?} {simd:?}");
                    assert!(scores[59].is_nan() && !scores[57].is_nan());
                    assert_eq!((ids[60], scores[60]), (u32::MAX, metric.missing_score()));
                    let zero = ids.iter().position(|id| *id == 9).unwrap();
                    assert!(metric == Metric::Euclidean || scores[zero] == 0.0);
                }
            }
        }
    }
}

#[test]
fn tiny_and_huge_vectors_keep_their_angle() {
    for size in [1.0e-25_f32, 1.0e-15, 1.0e15, 1.0e25] {
        let rows = [size, 0.0, size, size, 0.0, size];
        let input = SearchInput {
            rows: Vectors::F32(&rows),
            queries: Vectors::F32(&[1.0, 0.0]),
            dim: 2,
            row_count: 3,
            query_count: 1,
            metric: Metric::Cosine,
            k: 3,
            filter: None,
            row_norms: None,
        };
        let (ids, scores) = run(&Team::single(), Simd::detect(), &input);
        assert_eq!(ids, [0, 1, 2]);
        assert!((scores[0] - 1.0).abs() < 1.0e-6 && (scores[1] - 0.5_f32.sqrt()).abs() < 1.0e-6 && scores[2] == 0.0);
    }
}

#[test]
fn empty_inputs_give_empty_or_missing_answers() {
    let input = SearchInput {
        rows: Vectors::F32(&[]),
        queries: Vectors::F32(&[1.0, 2.0]),
        dim: 2,
        row_count: 0,
        query_count: 1,
        metric: Metric::Euclidean,
        k: 2,
        filter: None,
        row_norms: None,
    };
    assert_eq!(run(&Team::single(), Simd::detect(), &input), (vec![u32::MAX; 2], vec![f32::INFINITY; 2]));
    assert_eq!(run(&Team::single(), Simd::detect(), &SearchInput { k: 0, ..input }), (vec![], vec![]));
    let no_queries = SearchInput { queries: Vectors::F32(&[]), query_count: 0, ..input };
    assert_eq!(run(&Team::new(2), Simd::detect(), &no_queries), (vec![], vec![]));
    let no_dimensions = SearchInput { queries: Vectors::F32(&[]), dim: 0, row_count: 3, ..input };
    assert_eq!(run(&Team::new(2), Simd::detect(), &no_dimensions), (vec![0, 1], vec![0.0; 2]));
}

#[test]
fn many_queries_over_few_rows_are_shared_out() {
    let (row_count, dim, query_count) = (30, 8, 1100);
    let rows = OwnedRows::of(0, &random(row_count * dim, 9));
    let queries = OwnedRows::of(0, &random(query_count * dim, 10));
    let input = SearchInput {
        rows: rows.view(),
        queries: queries.view(),
        dim,
        row_count,
        query_count,
        metric: Metric::Euclidean,
        k: 3,
        filter: None,
        row_norms: None,
    };
    let (ids, scores) = run(&Team::new(2), Simd::detect(), &input);
    check(&input, &rows, &queries, &ids, &scores, "shared out");
}
