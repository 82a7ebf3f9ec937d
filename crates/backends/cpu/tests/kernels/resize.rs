//! Resizing against the definitions, at every vector level.

use half::{bf16, f16};
use panoply_cpu::pixel::{Pixel, round_to_u8};
use panoply_cpu::resize::*;
use panoply_cpu_machine::simd::Simd;
use panoply_cpu_machine::team::Team;

const SIZES: [((usize, usize), (usize, usize)); 12] = [
    ((1, 1), (1, 1)),
    ((1, 1), (5, 7)),
    ((5, 7), (1, 1)),
    ((2, 2), (4, 4)),
    ((4, 4), (2, 2)),
    ((7, 13), (11, 5)),
    ((13, 101), (29, 47)),
    ((16, 64), (48, 200)),
    ((37, 41), (37, 41)),
    ((31, 97), (97, 31)),
    ((64, 300), (9, 17)),
    ((40, 512), (20, 256)),
];

fn values(len: usize) -> Vec<f32> {
    let mut state = 7_u32;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(1664525).wrapping_add(1013904223);
            (state >> 24) as f32
        })
        .collect()
}

/// One plane with one channel, in f64, straight from the definitions.
fn naive(
    mode: &str,
    input: (usize, usize),
    output: (usize, usize),
    at: impl Fn(usize, usize) -> f64,
    y: usize,
    x: usize,
) -> f64 {
    let taps = |index: usize, input: usize, output: usize| -> Vec<(usize, f64)> {
        let scale = input as f64 / output as f64;
        match mode {
            "nearest" => vec![(index * input / output, 1.0)],
            "area" => {
                let range = (index * input / output)..((index + 1) * input).div_ceil(output);
                let share = 1.0 / range.len() as f64;
                range.map(|tap| (tap, share)).collect()
            }
            _ => {
                let position = ((index as f64 + 0.5) * scale - 0.5).max(0.0);
                let first = (position.floor() as usize).min(input - 1);
                let weight = position - first as f64;
                vec![(first, 1.0 - weight), ((first + 1).min(input - 1), weight)]
            }
        }
    };
    let mut sum = 0.0;
    for (row, row_weight) in taps(y, input.0, output.0) {
        for (column, column_weight) in taps(x, input.1, output.1) {
            sum += row_weight * column_weight * at(row, column);
        }
    }
    sum
}

fn check<T: Pixel + bytemuck::Pod>(tolerance: f64) {
    let team = Team::new(2);
    for (input, output) in SIZES {
        for (planes, channels) in [(1, 1), (3, 1), (2, 3), (1, 4), (1, 17)] {
            let sizes = Sizes { planes, channels, input, output };
            let wide = values(sizes.rows_in() * sizes.row_in());
            let mut source = vec![T::default(); wide.len()];
            T::narrow(Simd::Scalar, &wide, &mut source);
            for mode in ["nearest", "bilinear", "area"] {
                for simd in Simd::available() {
                    let mut result = vec![T::default(); sizes.rows_out() * sizes.row_out()];
                    match mode {
                        "nearest" => nearest(simd, &team, &sizes, &source, &mut result),
                        "area" => area(simd, &team, &sizes, &source, &mut result),
                        _ => bilinear(simd, &team, &sizes, &source, &mut result),
                    }
                    let mut got = vec![0.0; result.len()];
                    T::widen(Simd::Scalar, &result, &mut got);
                    for (index, got) in got.iter().enumerate() {
                        let (channel, pixel) = (index % channels, index / channels);
                        let (x, row) = (pixel % output.1, pixel / output.1);
                        let (y, plane) = (row % output.0, row / output.0);
                        let at = |y: usize, x: usize| {
                            f64::from(wide[((plane * input.0 + y) * input.1 + x) * channels + channel])
                        };
                        let expected = naive(mode, input, output, at, y, x);
                        let close = (f64::from(*got) - expected).abs() <= tolerance;
                        assert!(close, "{mode} {sizes:?} {simd:?} at {index}: {got} {expected}");
                    }
                }
            }
        }
    }
}

#[test]
fn every_type_agrees_with_the_definition() {
    check::<f32>(1e-3);
    check::<u8>(0.5001);
    check::<f16>(0.07);
    check::<bf16>(0.6);
}

#[test]
fn area_over_bytes_rounds_ties_to_even_and_is_exact() {
    let sizes = Sizes { planes: 1, channels: 1, input: (1, 8), output: (1, 4) };
    let mut result = [0_u8; 4];
    area(Simd::detect(), &Team::single(), &sizes, &[0, 1, 1, 2, 2, 3, 255, 255], &mut result);
    assert_eq!(result, [0, 2, 2, 255]);
    assert_eq!(round_to_u8(1.5), 2);
}

#[test]
fn huge_boxes_are_exact_over_bytes() {
    // 300 x 301 pixels in a box: the sum is beyond what an f32 holds exactly.
    let sizes = Sizes { planes: 2, channels: 1, input: (300, 301), output: (1, 1) };
    let mut input = vec![254_u8; 2 * 300 * 301];
    input[..45_150].fill(253);
    input[300 * 301] = 255;
    let mut result = [0_u8; 2];
    area(Simd::detect(), &Team::single(), &sizes, &input, &mut result);
    assert_eq!(result, [254, 254]);
    input[45_149] = 252;
    input[45_148] = 252;
    area(Simd::detect(), &Team::single(), &sizes, &input, &mut result);
    assert_eq!(result, [253, 254]);
}

#[test]
fn infinities_and_nan_reach_only_the_pixels_that_weigh_them() {
    let sizes = Sizes { planes: 1, channels: 1, input: (1, 4), output: (1, 8) };
    for simd in Simd::available() {
        let mut result = [0.0_f32; 8];
        bilinear(simd, &Team::single(), &sizes, &[1.0, 2.0, f32::NAN, f32::INFINITY], &mut result);
        assert_eq!(result[..3], [1.0, 1.25, 1.75]);
        assert!(result[3..7].iter().all(|value| value.is_nan()));
    }
}

#[test]
fn empty_images_stay_empty() {
    let sizes = Sizes { planes: 0, channels: 3, input: (4, 4), output: (8, 8) };
    bilinear::<f32>(Simd::detect(), &Team::single(), &sizes, &[], &mut []);
    let sizes = Sizes { planes: 1, channels: 3, input: (4, 4), output: (0, 8) };
    area::<u8>(Simd::detect(), &Team::single(), &sizes, &[0; 48], &mut []);
    nearest::<u8>(Simd::detect(), &Team::single(), &sizes, &[0; 48], &mut []);
}
