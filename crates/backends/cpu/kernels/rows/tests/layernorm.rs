//! Every level and team size against loops in f64.

use half::{bf16, f16};

use panoply_cpu_machine::simd::Simd;
use panoply_cpu_machine::team::Team;
use panoply_cpu_rows::layernorm::*;

fn check<T: Normal>(make: impl Fn(f64) -> T, value: impl Fn(T) -> f64, tolerance: f64) {
    for (rows, len) in [(1, 1), (3, 2), (5, 17), (2, 768), (40, 1025), (1, 20_001), (0, 4)] {
        let wave = |index: usize| make(((index * 37 % 101) as f64 - 50.0) / 25.0 + 3.0);
        let input: Vec<T> = (0..rows * len).map(wave).collect();
        let weight: Vec<T> = (0..len).map(|index| wave(index + 5)).collect();
        let bias: Vec<T> = (0..len).map(|index| wave(index + 9)).collect();
        for (centred, weighted, biased) in
            [(true, true, true), (true, false, false), (false, true, false), (false, false, true)]
        {
            let norm = Norm {
                epsilon: 1e-5,
                centred,
                weight: weighted.then_some(&weight[..]),
                bias: biased.then_some(&bias[..]),
            };
            for (simd, team) in Simd::available().into_iter().flat_map(|s| [(s, Team::single()), (s, Team::new(2))]) {
                let mut out = vec![make(9.0); input.len()];
                layer_norm(simd, &team, &input, len, norm, &mut out);
                for (row, out) in input.chunks(len).zip(out.chunks(len)) {
                    let row: Vec<f64> = row.iter().map(|element| value(*element)).collect();
                    let mean = if centred { row.iter().sum::<f64>() / len as f64 } else { 0.0 };
                    let variance = row.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / len as f64;
                    for (index, got) in out.iter().enumerate() {
                        let mut expected = (row[index] - mean) / (variance + 1e-5).sqrt();
                        expected *= if weighted { value(weight[index]) } else { 1.0 };
                        expected += if biased { value(bias[index]) } else { 0.0 };
                        let got = value(*got);
                        assert!((got - expected).abs() <= tolerance * (1.0 + expected.abs()), "{rows}x{len} {simd:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn agrees_with_loops() {
    check(|value| value as f32, f64::from, 2e-6);
    check(|value| value, |value| value, 1e-13);
    check(f16::from_f64, f64::from, 1e-3);
    check(bf16::from_f64, f64::from, 8e-3);
}

#[test]
fn nan_fills_its_row_only() {
    let mut out = [0.0_f32; 4];
    let norm = Norm { epsilon: 1e-5, centred: true, weight: None, bias: None };
    layer_norm(Simd::detect(), &Team::single(), &[f32::NAN, 1.0, 1.0, 2.0], 2, norm, &mut out);
    assert!(out[0].is_nan() && out[1].is_nan() && !out[2].is_nan() && !out[3].is_nan());
}
