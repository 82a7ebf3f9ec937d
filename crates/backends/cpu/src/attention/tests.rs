use super::*;

fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|index| ((index * 37 + seed * 101) % 64) as f32 / 16.0 - 2.0).collect()
}

fn heads(elements: &[f32], count: usize, rows: usize, cols: usize) -> Heads<'_, f32> {
    Heads { elements, starts: (0..count).map(|head| head * rows * cols).collect(), step: cols }
}

/// The attention, computed with plain loops in f64.
fn expected(problem: &Problem<'_, f32>) -> Vec<f32> {
    let mut out = Vec::new();
    let at = |heads: &Heads<'_, f32>, head: usize, row: usize, col: usize| {
        f64::from(heads.elements[heads.starts[head] + row * heads.step + col])
    };
    for head in 0..problem.q.starts.len() {
        for row in 0..problem.n_q {
            let seen =
                if problem.is_causal { (row + 1 + problem.n_k).saturating_sub(problem.n_q) } else { problem.n_k };
            let score = |key: usize| {
                let product = |col| at(&problem.q, head, row, col) * at(&problem.k, head, key, col);
                (0..problem.d).map(product).sum::<f64>() * f64::from(problem.scale)
            };
            let scores: Vec<f64> = (0..seen.min(problem.n_k)).map(score).collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = scores.iter().map(|score| (score - max).exp()).sum();
            for col in 0..problem.d_v {
                let weighted = |(key, score): (usize, &f64)| (score - max).exp() * at(&problem.v, head, key, col);
                let sum: f64 = scores.iter().enumerate().map(weighted).sum();
                out.push(if scores.is_empty() { 0.0 } else { (sum / total) as f32 });
            }
        }
    }
    out
}

/// More queries than a task has, more keys than a tile has, on every level and with several numbers
/// of threads.
#[test]
fn tiles_agree_with_plain_loops_on_every_level() {
    let (count, d, d_v) = (3, 20, 12);
    for (n_q, n_k, is_causal) in [(300, 700, false), (300, 700, true), (700, 300, true), (5, 257, false), (1, 1, true)]
    {
        let (q, k, v) = (numbers(count * n_q * d, 1), numbers(count * n_k * d, 2), numbers(count * n_k * d_v, 3));
        let problem = Problem {
            q: heads(&q, count, n_q, d),
            k: heads(&k, count, n_k, d),
            v: heads(&v, count, n_k, d_v),
            mask: Mask::None,
            n_q,
            n_k,
            d,
            d_v,
            scale: 0.3,
            is_causal,
        };
        let expected = expected(&problem);
        for simd in Simd::available() {
            for threads in [1, 3] {
                let mut out = vec![f32::NAN; expected.len()];
                attention(&Team::new(threads), simd, &mut Vec::new(), &problem, &mut out).unwrap();
                let worst = out.iter().zip(&expected).map(|(got, wanted)| (got - wanted).abs()).fold(0.0, f32::max);
                assert!(worst < 2e-6, "{n_q} x {n_k}, {simd:?}, {threads} threads: off by {worst}");
            }
        }
    }
}

#[test]
fn views_outside_their_elements_are_refused() {
    let few = numbers(10, 1);
    let problem = Problem {
        q: heads(&few, 1, 2, 4),
        k: heads(&few, 1, 2, 4),
        v: Heads { elements: &few, starts: vec![8], step: 4 },
        mask: Mask::None,
        n_q: 2,
        n_k: 2,
        d: 4,
        d_v: 4,
        scale: 1.0,
        is_causal: false,
    };
    let refused = attention(&Team::single(), Simd::detect(), &mut Vec::new(), &problem, &mut [0.0; 8]);
    assert_eq!(refused, Err(Failure::Outside));
}

#[test]
fn few_heads_are_spread_over_all_threads() {
    assert_eq!(tile_rows(64, 1024, 8), ROWS_MAX);
    assert_eq!(tile_rows(1, 256, 8), ROWS_MIN);
    assert_eq!((tile_rows(1, 256, 1), tile_rows(1, 3, 1)), (ROWS_MAX, 3));
}
