//! Every level and team size against loops in f64.

use half::{bf16, f16};

use panoply_cpu_machine::extents::Extents;
use panoply_cpu_machine::simd::Simd;
use panoply_cpu_machine::team::Team;
use panoply_cpu_rows::softmax::*;

const SHAPES: [(usize, usize, usize); 10] = [
    (1, 1, 1),
    (5, 3, 1),
    (3, 17, 1),
    (7, 513, 1),
    (2, 5000, 1),
    (1, 140_001, 1),
    (2, 11, 3),
    (3, 40, 130),
    (0, 4, 2),
    (2, 0, 3),
];

fn expected(line: &[f64], log: bool) -> Vec<f64> {
    let max = line.iter().copied().fold(f64::NEG_INFINITY, |a, b| if b.is_nan() || b > a { b } else { a });
    let total: f64 = line.iter().map(|value| (value - max).exp()).sum();
    line.iter().map(|value| if log { value - max - total.ln() } else { (value - max).exp() / total }).collect()
}

fn check<T: Soft>(make: impl Fn(f64) -> T, value: impl Fn(T) -> f64, relative: f64) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for (outer, axis, inner) in SHAPES {
        let extents = Extents { outer, axis, inner };
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1_u64 << 49) as f64 - 8.0
        };
        let input: Vec<T> = (0..extents.elements()).map(|_| make(next())).collect();
        for (log, simd) in
            [false, true].into_iter().flat_map(|log| Simd::available().into_iter().map(move |s| (log, s)))
        {
            for team in [Team::single(), Team::new(2)] {
                let mut out = vec![make(0.5); input.len()];
                softmax(simd, &team, &input, extents, log, &mut out);
                for line in 0..if axis == 0 { 0 } else { extents.lines() } {
                    let places = (0..axis).map(|row| (line / inner * axis + row) * inner + line % inner);
                    let values: Vec<f64> = places.clone().map(|place| value(input[place])).collect();
                    for (place, expected) in places.zip(expected(&values, log)) {
                        let got = value(out[place]);
                        let limit = relative * (expected.abs() + if log { 1.0 } else { 1e-4 });
                        assert!((got - expected).abs() <= limit, "{extents:?} {simd:?} {log}: {got} {expected}");
                    }
                }
            }
        }
    }
}

#[test]
fn agrees_with_loops() {
    check(|value| value as f32, f64::from, 1e-6);
    check(|value| value, |value| value, 1e-14);
    check(f16::from_f64, f64::from, 2e-3);
    check(bf16::from_f64, f64::from, 8e-3);
}

#[test]
fn special_lines() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    for simd in Simd::available() {
        for (line, all_nan) in [
            ([-inf, -inf, -inf], true),
            ([0.0, inf, 1.0], true),
            ([nan, 0.0, 1.0], true),
            ([0.0, -inf, 0.0], false),
            ([1e30, 0.0, -1e30], false),
        ] {
            for inner in [1, 3] {
                let input: Vec<f32> = line.iter().flat_map(|value| vec![*value; inner]).collect();
                let mut out = vec![0.0; input.len()];
                softmax(simd, &Team::single(), &input, Extents { outer: 1, axis: 3, inner }, false, &mut out);
                assert_eq!(out.iter().all(|value| value.is_nan()), all_nan, "{line:?} {out:?}");
                assert!(all_nan || (out.iter().sum::<f32>() - inner as f32).abs() < 1e-6);
            }
        }
    }
}
