//! Pooling against plain loops.

use panoply_cpu_conv::conv::ConvElement;
use panoply_cpu_conv::pool2d::*;
use panoply_cpu_machine::simd::Simd;
use panoply_cpu_machine::team::Team;

fn numbers(len: usize) -> Vec<f64> {
    let mut state = 88_172_645_463_325_252_u64;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            // Few enough bits for every number and sum to be exact in every type.
            (state >> 59) as f64 - 16.0
        })
        .collect()
}

fn shapes() -> Vec<PoolShape> {
    let base = PoolShape { batch: 2, channels: 3, input: [11, 13], kernel: [2, 2], stride: [2, 2], padding: [0; 4] };
    vec![
        base,
        PoolShape { kernel: [3, 3], padding: [1; 4], ..base },
        PoolShape { kernel: [3, 3], stride: [1, 1], padding: [1; 4], ..base },
        PoolShape { kernel: [3, 3], stride: [1, 1], padding: [2, 0, 1, 2], ..base },
        PoolShape { kernel: [11, 13], stride: [11, 13], ..base },
        PoolShape { kernel: [4, 5], stride: [3, 7], padding: [3, 4, 2, 4], ..base },
        PoolShape { kernel: [1, 1], stride: [1, 1], ..base },
        PoolShape { kernel: [1, 1], stride: [4, 3], ..base },
        PoolShape { input: [1, 1], kernel: [3, 3], padding: [1; 4], ..base },
        PoolShape { input: [2, 1031], batch: 1, ..base },
        PoolShape { input: [56, 56], channels: 32, kernel: [3, 3], padding: [1; 4], ..base },
        PoolShape { channels: 0, ..base },
    ]
}

/// Pools with plain loops over the (row, column) pairs of each window that are inside the image.
fn naive(shape: &PoolShape, kind: PoolKind, input: &[f64]) -> Vec<f64> {
    let [height, width] = shape.output();
    let mut output = Vec::new();
    for plane in 0..shape.batch * shape.channels {
        for y in 0..height {
            for x in 0..width {
                let mut seen = Vec::new();
                for ky in 0..shape.kernel[0] {
                    for kx in 0..shape.kernel[1] {
                        let row = (y * shape.stride[0] + ky).wrapping_sub(shape.padding[0]);
                        let column = (x * shape.stride[1] + kx).wrapping_sub(shape.padding[1]);
                        if row < shape.input[0] && column < shape.input[1] {
                            seen.push(input[(plane * shape.input[0] + row) * shape.input[1] + column]);
                        }
                    }
                }
                let count = match kind {
                    PoolKind::Average { count_padding: true } => shape.kernel[0] * shape.kernel[1],
                    _ => seen.len(),
                };
                output.push(match kind {
                    PoolKind::Max if seen.iter().any(|number| number.is_nan()) => f64::NAN,
                    PoolKind::Max => seen.iter().copied().fold(f64::NEG_INFINITY, f64::max),
                    PoolKind::Average { .. } => seen.iter().sum::<f64>() / count as f64,
                });
            }
        }
    }
    output
}

const KINDS: [PoolKind; 3] =
    [PoolKind::Max, PoolKind::Average { count_padding: false }, PoolKind::Average { count_padding: true }];

fn check<S: ConvElement>(of: fn(f64) -> S, value: fn(S) -> f64, relative: f64)
where
    S::Real: WindowNumber,
{
    for shape in shapes() {
        let exact = numbers(shape.batch * shape.channels * shape.input[0] * shape.input[1]);
        let input: Vec<S> = exact.iter().map(|number| of(*number)).collect();
        for kind in KINDS {
            let expected = naive(&shape, kind, &exact);
            for simd in Simd::available() {
                for team in [Team::single(), Team::new(2)] {
                    let mut got = vec![of(f64::NAN); expected.len()];
                    pool2d(simd, &team, &shape, kind, &input, &mut got);
                    for (index, got) in got.iter().enumerate() {
                        let off = (value(*got) - expected[index]).abs();
                        assert!(off <= relative * expected[index].abs(), "{shape:?} {kind:?} {simd:?} at {index}");
                    }
                }
            }
        }
    }
}

#[test]
fn every_type_agrees_with_plain_loops() {
    check::<f32>(|number| number as f32, f64::from, 1e-6);
    check::<f64>(|number| number, |number| number, 1e-15);
    check::<half::f16>(half::f16::from_f64, half::f16::to_f64, 1e-3);
    check::<half::bf16>(half::bf16::from_f64, half::bf16::to_f64, 8e-3);
}

#[test]
fn nan_and_infinity_stay_in_their_windows() {
    let shape = PoolShape { batch: 1, channels: 1, input: [9, 40], kernel: [3, 3], stride: [2, 2], padding: [1; 4] };
    for position in 0..9 * 40 {
        for special in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let mut exact = numbers(9 * 40);
            exact[position] = special;
            let input: Vec<f32> = exact.iter().map(|number| *number as f32).collect();
            for kind in KINDS {
                let expected = naive(&shape, kind, &exact);
                for simd in Simd::available() {
                    let mut got = vec![0.0; expected.len()];
                    pool2d(simd, &Team::single(), &shape, kind, &input, &mut got);
                    for (got, expected) in got.iter().zip(&expected) {
                        let close = (f64::from(*got) - expected).abs() < 1e-5;
                        let same = f64::from(*got) == *expected || got.is_nan() && expected.is_nan();
                        assert!(close || same, "{kind:?} {simd:?}: {got}, not {expected}");
                    }
                }
            }
        }
    }
}

/// `[batch, channels, pixels]` as `[batch, pixels, channels]`.
fn channels_last<T: Copy>(planes: &[T], channels: usize, pixels: usize) -> Vec<T> {
    let image = |image: &[T]| -> Vec<T> {
        (0..pixels)
            .flat_map(|pixel| (0..channels).map(move |channel| (channel, pixel)))
            .map(|(channel, pixel)| image[channel * pixels + pixel])
            .collect()
    };
    planes.chunks_exact((channels * pixels).max(1)).flat_map(image).collect()
}

#[test]
fn channels_may_be_last() {
    let base = PoolShape { batch: 2, channels: 70, input: [11, 13], kernel: [3, 3], stride: [2, 2], padding: [1; 4] };
    let more = [
        base,
        PoolShape { kernel: [5, 5], stride: [1, 1], padding: [2; 4], ..base },
        PoolShape { batch: 1, channels: 700, input: [7, 7], kernel: [7, 7], padding: [0; 4], ..base },
        PoolShape { channels: 150, input: [4, 300], ..base },
    ];
    for shape in shapes().into_iter().chain(more) {
        let (pixels, pooled) = (shape.input[0] * shape.input[1], shape.output()[0] * shape.output()[1]);
        let mut exact = numbers(shape.batch * shape.channels * pixels);
        if let Some(number) = exact.get_mut(17) {
            *number = f64::NAN;
        }
        let input: Vec<f32> = exact.iter().map(|number| *number as f32).collect();
        let input = channels_last(&input, shape.channels, pixels);
        for kind in KINDS {
            let expected = channels_last(&naive(&shape, kind, &exact), shape.channels, pooled);
            for simd in Simd::available() {
                for team in [Team::single(), Team::new(2)] {
                    let mut got = vec![-77.0; expected.len()];
                    pool2d_pixels(simd, &team, &shape, kind, &input, &mut got);
                    for (index, (got, expected)) in got.iter().zip(&expected).enumerate() {
                        let close = (f64::from(*got) - expected).abs() <= 1e-6 * expected.abs();
                        let nan = got.is_nan() && expected.is_nan();
                        assert!(close || nan, "{shape:?} {kind:?} {simd:?} at {index}: {got}, not {expected}");
                    }
                }
            }
        }
    }
}
