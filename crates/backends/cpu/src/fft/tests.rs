//! Transforms against the defining sum, and round trips.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use super::*;

fn signal(count: usize) -> Vec<Complex64> {
    let value = |seed: usize| (seed.wrapping_mul(2_654_435_761) % 2000) as f32 / 1000.0 - 1.0;
    (0..count).map(|place| Complex64::new(value(2 * place + 1), value(2 * place + 2))).collect()
}

fn plain(line: &[Complex64]) -> Vec<[f64; 2]> {
    let len = line.len();
    let term = |(j, x): (usize, &Complex64), k: usize| {
        let (sin, cos) = (-std::f64::consts::TAU * (j * k % len) as f64 / len as f64).sin_cos();
        let (re, im) = (f64::from(x.re), f64::from(x.im));
        [re * cos - im * sin, re * sin + im * cos]
    };
    (0..len)
        .map(|k| line.iter().enumerate().fold([0.0; 2], |sum, x| [sum[0] + term(x, k)[0], sum[1] + term(x, k)[1]]))
        .collect()
}

#[test]
fn spectra_are_the_plain_sums() {
    let mut workspace = FftWorkspace::default();
    for threads in [1, 3] {
        let team = Team::new(threads);
        for (lines, len) in [(0, 5), (7, 1), (1, 64), (300, 37), (9, 1000)] {
            let input = signal(lines * len);
            let mut output = vec![ZERO; lines * len];
            workspace.forward(&team, len, &input, &mut output).unwrap();
            for (line, spectrum) in input.chunks(len).zip(output.chunks(len)) {
                for (expected, got) in plain(line).iter().zip(spectrum) {
                    let off = (expected[0] - f64::from(got.re)).hypot(expected[1] - f64::from(got.im));
                    assert!(off < 1e-4, "{lines}x{len}: expected {expected:?}, got {got}");
                }
            }
        }
    }
}

#[test]
fn what_goes_there_comes_back() {
    let (mut workspace, team) = (FftWorkspace::default(), Team::new(2));
    for (lines, len) in [(40, 1), (3, 2), (5, 97), (2, 4096), (4, 100_003)] {
        let input = signal(lines * len);
        let (mut spectra, mut back) = (vec![ZERO; lines * len], vec![ZERO; lines * len]);
        workspace.forward(&team, len, &input, &mut spectra).unwrap();
        workspace.inverse(&team, len, &spectra, &mut back).unwrap();
        let off = input.iter().zip(&back).map(|(a, b)| (a - b).norm()).fold(0.0, f32::max);
        assert!(off < 1e-5, "{lines}x{len}: off by {off}");
        let real: Vec<f32> = input.iter().map(|value| value.re).collect();
        let (mut halves, mut real_back) = (vec![ZERO; lines * half_spectrum_len(len)], vec![0.0; lines * len]);
        workspace.forward_real(&team, len, &real, &mut halves).unwrap();
        workspace.inverse_real(&team, len, &halves, &mut real_back).unwrap();
        let off = real.iter().zip(&real_back).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(off < 1e-5, "real {lines}x{len}: off by {off}");
    }
}

#[test]
fn plans_are_kept_and_bounded() {
    let (mut workspace, team) = (FftWorkspace::default(), Team::single());
    for len in (1..=PLANS_MAX + 3).chain(1..4) {
        let input = signal(len);
        workspace.forward(&team, len, &input, &mut vec![ZERO; len]).unwrap();
        assert!(workspace.plans.len() <= PLANS_MAX);
    }
    assert!(workspace.plans.contains_key(&(3, Kind::Forward)));
}

#[test]
fn empty_lines_are_left_alone() {
    let (mut workspace, team) = (FftWorkspace::default(), Team::single());
    workspace.forward(&team, 0, &[], &mut []).unwrap();
    workspace.inverse(&team, 0, &[], &mut []).unwrap();
    workspace.forward_real(&team, 0, &[], &mut []).unwrap();
    workspace.inverse_real(&team, 0, &[], &mut []).unwrap();
    assert!(workspace.plans.is_empty());
}

#[test]
fn where_nothing_is_transformed_no_plan_is_made_however_long_the_lines_are() {
    let (mut workspace, team) = (FftWorkspace::default(), Team::single());
    let start = std::time::Instant::now();
    for len in [1 << 40, (1 << 40) - 1] {
        workspace.forward(&team, len, &[], &mut []).unwrap();
        workspace.inverse(&team, len, &[], &mut []).unwrap();
        workspace.forward_real(&team, len, &[], &mut []).unwrap();
        workspace.inverse_real(&team, len, &[], &mut []).unwrap();
    }
    assert!(workspace.plans.is_empty() && workspace.bytes() == 0);
    assert!(start.elapsed() < std::time::Duration::from_secs(1));
}

#[test]
fn plans_and_scratch_are_bounded_in_bytes_and_counted() {
    let (mut workspace, team) = (FftWorkspace::default(), Team::single());
    let mut most = 0;
    for number in 0..24 {
        let len = (1 << 18) + 2 * number;
        let input = signal(len);
        workspace.forward(&team, len, &input, &mut vec![ZERO; len]).unwrap();
        most = most.max(workspace.bytes());
        assert!(workspace.plan_bytes <= PLAN_BYTES_MAX && workspace.bytes() <= PLAN_BYTES_MAX + SCRATCH_BYTES_MAX);
    }
    assert!(most > PLAN_BYTES_MAX / 2, "they are counted: {most}");
    let absurd = workspace.plan(isize::MAX as usize / 64, Kind::Forward).map(drop);
    assert!(matches!(absurd, Err(Error::OutOfMemory { .. })), "{absurd:?}");
}
