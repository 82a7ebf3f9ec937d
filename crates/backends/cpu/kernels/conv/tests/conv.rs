//! Convolutions against plain loops in f64.

use panoply_cpu_conv::conv::*;
use panoply_cpu_machine::simd::Simd;
use panoply_cpu_machine::team::Team;

fn numbers(len: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f64 / (1_u64 << 23) as f64 - 1.0
        })
        .collect()
}

/// Calls `visit(input index, weight index, output index)` for every product of the convolution.
fn products(shape: &ConvShape, mut visit: impl FnMut(usize, usize, usize)) {
    let (input, weights, output) = (shape.input_dims(), shape.weight_dims(), shape.output_dims());
    let place = |at: [usize; 4], dims: [usize; 4]| at.iter().zip(dims).fold(0, |place, (at, size)| place * size + at);
    shape.for_each_product(|at| {
        visit(place(at.input, input), place(at.weight, weights), place(at.output, output));
    });
}

fn shapes() -> Vec<ConvShape> {
    let mut all = common_shapes(base());
    all.extend(special_shapes(base()));
    all.extend(pointwise_with_stride(base()));
    all
}

fn base() -> ConvShape {
    ConvShape {
        batch: 2,
        channels: 3,
        filters: 5,
        groups: 1,
        input: [11, 13],
        kernel: [3, 3],
        stride: [1, 1],
        dilation: [1, 1],
        padding: [1, 1, 1, 1],
    }
}

fn common_shapes(base: ConvShape) -> Vec<ConvShape> {
    vec![
        base,
        ConvShape { batch: 1, channels: 1, filters: 1, input: [1, 1], kernel: [1, 1], padding: [0; 4], ..base },
        ConvShape { channels: 70, filters: 17, input: [9, 7], ..base },
        ConvShape { padding: [0; 4], ..base },
        ConvShape { channels: 33, filters: 21, input: [38, 51], ..base },
        ConvShape { channels: 32, filters: 32, input: [14, 14], padding: [0, 3, 2, 1], ..base },
        ConvShape { batch: 1, channels: 40, filters: 48, input: [13, 20], ..base },
        ConvShape { channels: 40, filters: 24, groups: 2, input: [9, 30], ..base },
        ConvShape { kernel: [1, 1], padding: [0; 4], channels: 70, filters: 20, input: [26, 31], ..base },
        ConvShape { padding: [0, 3, 2, 1], ..base },
        ConvShape { padding: [5, 6, 4, 7], ..base },
        ConvShape { kernel: [1, 1], padding: [0; 4], filters: 8, ..base },
        ConvShape { kernel: [1, 1], padding: [2, 3, 1, 0], ..base },
        ConvShape { kernel: [2, 5], ..base },
        ConvShape { stride: [2, 2], ..base },
        ConvShape { stride: [3, 2], dilation: [2, 3], padding: [2, 1, 0, 3], ..base },
        ConvShape { stride: [5, 4], kernel: [1, 2], padding: [0; 4], ..base },
        ConvShape { dilation: [2, 3], padding: [3, 2, 1, 4], ..base },
        ConvShape { channels: 6, filters: 6, groups: 6, ..base },
        ConvShape { channels: 6, filters: 12, groups: 6, stride: [2, 1], ..base },
        ConvShape { channels: 8, filters: 20, groups: 2, input: [17, 40], ..base },
        ConvShape { kernel: [11, 13], padding: [0; 4], ..base },
        ConvShape { kernel: [7, 7], stride: [2, 2], padding: [3; 4], input: [31, 29], ..base },
        ConvShape { input: [1, 200], kernel: [1, 9], padding: [0, 4, 0, 4], ..base },
        ConvShape { input: [64, 64], filters: 16, batch: 1, channels: 40, ..base },
        ConvShape { kernel: [2, 1], dilation: [1 << 40, 1 << 40], padding: [1 << 40, 0, 0, 2], ..base },
        ConvShape { kernel: [2, 2], dilation: [1 << 40; 2], padding: [1 << 39; 4], ..base },
        ConvShape { stride: [1 << 40, 3], padding: [1 << 39, 1, 1 << 39, 1], ..base },
        ConvShape { input: [0, 5], padding: [2, 1, 1, 1], ..base },
        ConvShape { input: [5, 0], padding: [2, 1, 1, 3], ..base },
        ConvShape { batch: 0, ..base },
        ConvShape { filters: 0, ..base },
        ConvShape { channels: 0, ..base },
    ]
}

/// Shapes that read one pixel for each output, and skip pixels.
fn pointwise_with_stride(base: ConvShape) -> Vec<ConvShape> {
    vec![
        ConvShape {
            channels: 20,
            filters: 40,
            input: [27, 30],
            kernel: [1, 1],
            stride: [2, 2],
            padding: [0; 4],
            ..base
        },
        ConvShape {
            channels: 18,
            filters: 34,
            groups: 2,
            input: [31, 17],
            kernel: [1, 1],
            stride: [1, 3],
            padding: [0; 4],
            ..base
        },
        ConvShape {
            channels: 40,
            filters: 64,
            input: [14, 14],
            kernel: [1, 1],
            stride: [2, 2],
            padding: [0; 4],
            ..base
        },
    ]
}

/// Shapes that have specialised kernels.
fn special_shapes(base: ConvShape) -> Vec<ConvShape> {
    vec![
        // Images of a few pixels, whose kernels have filters in their lanes.
        ConvShape { channels: 20, filters: 75, input: [7, 7], ..base },
        ConvShape { channels: 21, filters: 70, input: [6, 5], ..base },
        ConvShape { channels: 20, filters: 33, input: [7, 7], kernel: [1, 1], padding: [0; 4], ..base },
        ConvShape { channels: 24, filters: 80, groups: 2, input: [1, 1], kernel: [1, 1], padding: [0; 4], ..base },
        ConvShape { channels: 6, filters: 70, input: [9, 5], stride: [2, 2], ..base },
        ConvShape { channels: 6, filters: 70, input: [2, 19], kernel: [2, 3], padding: [0, 1, 0, 1], ..base },
        // Pointwise, with planes that are read in place.
        ConvShape { channels: 5, filters: 9, input: [14, 14], kernel: [1, 1], padding: [0; 4], ..base },
        ConvShape { channels: 99, filters: 35, input: [5, 19], kernel: [1, 1], padding: [0; 4], ..base },
        ConvShape { channels: 130, filters: 37, input: [20, 20], kernel: [1, 1], padding: [0; 4], ..base },
        ConvShape { channels: 8, filters: 64, groups: 2, input: [16, 32], kernel: [1, 1], padding: [0; 4], ..base },
        // More filters than a band has room for.
        ConvShape { batch: 1, channels: 3, filters: 2600, input: [8, 8], kernel: [1, 1], padding: [0; 4], ..base },
        // Depthwise.
        ConvShape { channels: 7, filters: 7, groups: 7, input: [9, 35], padding: [1, 2, 2, 0], ..base },
        ConvShape { channels: 4, filters: 8, groups: 4, input: [14, 14], kernel: [5, 5], padding: [2; 4], ..base },
        ConvShape { channels: 4, filters: 4, groups: 4, input: [3, 2], kernel: [7, 7], padding: [6, 3, 5, 6], ..base },
        ConvShape { channels: 4, filters: 4, groups: 4, input: [23, 50], stride: [2, 2], ..base },
        ConvShape {
            channels: 4,
            filters: 4,
            groups: 4,
            input: [20, 33],
            kernel: [5, 5],
            stride: [2, 2],
            padding: [1, 2, 2, 1],
            ..base
        },
        ConvShape {
            channels: 2,
            filters: 2,
            groups: 2,
            input: [17, 40],
            kernel: [7, 7],
            stride: [2, 2],
            padding: [3; 4],
            ..base
        },
    ]
}

trait Float: ConvElement + PartialEq + std::fmt::Debug {
    fn of(value: f64) -> Self;
    fn value(self) -> f64;
    const EPSILON: f64;
    /// The smallest positive number.
    const STEP: f64;
}

macro_rules! float {
    ($scalar:ty, $of:expr, $value:expr, $epsilon:expr, $step:expr) => {
        impl Float for $scalar {
            fn of(value: f64) -> Self {
                $of(value)
            }
            fn value(self) -> f64 {
                $value(self)
            }
            const EPSILON: f64 = $epsilon;
            const STEP: f64 = $step;
        }
    };
}
float!(f32, |v| v as f32, f64::from, 1.0 / (1 << 22) as f64, 1e-30);
float!(f64, |v| v, |v| v, 1e-15, 1e-30);
float!(half::f16, half::f16::from_f64, half::f16::to_f64, 1.0 / 1024.0, 1.0 / (1 << 24) as f64);
float!(half::bf16, half::bf16::from_f64, half::bf16::to_f64, 1.0 / 128.0, 1e-30);

fn close<S: Float>(what: &str, shape: &ConvShape, simd: Simd, got: &[S], wanted: &[f64], sizes: &[f64]) {
    within(4.0, what, shape, simd, got, wanted, sizes);
}

/// As [`close`], with `roundings` roundings of the largest sum allowed.
fn within<S: Float>(
    roundings: f64,
    what: &str,
    shape: &ConvShape,
    simd: Simd,
    got: &[S],
    wanted: &[f64],
    sizes: &[f64],
) {
    for (index, got) in got.iter().enumerate() {
        let off = (got.value() - wanted[index]).abs();
        // One rounding of the result, and the errors of a sum in f32 or f64.
        let sum = roundings * S::EPSILON.min(f32::EPSILON as f64) * sizes[index];
        let allowed = S::EPSILON * wanted[index].abs() + sum + S::STEP;
        assert!(off <= allowed, "{what} {simd:?} {shape:?} at {index}: {got:?}, not {}", wanted[index]);
    }
}

fn check<S: Float>() {
    let teams = [Team::single(), Team::new(2)];
    let mut workspace = ConvWorkspace::new();
    for shape in shapes() {
        let rounded = |len: usize, seed: u64| -> Vec<S> { numbers(len, seed).into_iter().map(S::of).collect() };
        let input = rounded(shape.input_len(), 1);
        let weights = rounded(shape.weight_len(), 2);
        let bias = rounded(shape.filters, 3);
        let gradient = rounded(shape.output_len(), 4);
        let plane: usize = shape.output().iter().product();
        let mut output = vec![0.0; shape.output_len()];
        for (index, value) in output.iter_mut().enumerate() {
            *value = bias[index / plane % shape.filters].value();
        }
        let mut sizes: Vec<f64> = output.iter().map(|value| value.abs()).collect();
        let mut input_gradient = (vec![0.0; shape.input_len()], vec![0.0; shape.input_len()]);
        let mut weight_gradient = (vec![0.0; shape.weight_len()], vec![0.0; shape.weight_len()]);
        products(&shape, |i, w, o| {
            let product = input[i].value() * weights[w].value();
            output[o] += product;
            sizes[o] += product.abs();
            let product = gradient[o].value() * weights[w].value();
            input_gradient.0[i] += product;
            input_gradient.1[i] += product.abs();
            let product = gradient[o].value() * input[i].value();
            weight_gradient.0[w] += product;
            weight_gradient.1[w] += product.abs();
        });
        // One set of weights, read in the order of every level.
        let mut kept = PackedWeights::default();
        for simd in Simd::available() {
            let mut outputs = Vec::new();
            for team in &teams {
                let mut got = vec![S::of(f64::NAN); shape.output_len()];
                let epilogue = Epilogue { bias: Some(&bias), activate: None };
                forward(simd, team, &mut workspace, &shape, (&input, &weights), &epilogue, &mut got);
                close("forward", &shape, simd, &got, &output, &sizes);
                let mut again = vec![S::of(f64::NAN); shape.output_len()];
                let (operands, kept) = ((&*input, &*weights), Some(&mut kept));
                forward_kept(simd, team, &mut workspace, &shape, operands, kept, &epilogue, &mut again);
                // Kept weights of 3×3 taps use Winograd's algorithm, which rounds more often.
                let is_three = shape.kernel == [3, 3] && shape.stride == [1, 1] && shape.dilation == [1, 1];
                if size_of::<S>() == 4 && is_three {
                    // The errors are those of the largest sum nearby, also beside an edge.
                    let largest = vec![sizes.iter().copied().fold(0.0, f64::max); sizes.len()];
                    within(16.0, "forward with kept weights", &shape, simd, &again, &output, &largest);
                } else {
                    assert_eq!(got, again, "packed weights that are kept changed the result of {shape:?}");
                }
                outputs.push((got, again));

                let mut got = vec![S::of(f64::NAN); shape.input_len()];
                backward_input(simd, team, &mut workspace, &shape, (&gradient, &weights), &mut got);
                close("backward input", &shape, simd, &got, &input_gradient.0, &input_gradient.1);

                let mut got = vec![S::of(f64::NAN); shape.weight_len()];
                backward_weight(simd, team, &mut workspace, &shape, (&input, &gradient), &mut got);
                close("backward weight", &shape, simd, &got, &weight_gradient.0, &weight_gradient.1);
            }
            assert_eq!(outputs[0], outputs[1], "the number of threads changed the result");
        }
    }
}

#[test]
fn f32_agrees_with_plain_loops() {
    check::<f32>();
}

#[test]
fn f64_agrees_with_plain_loops() {
    check::<f64>();
}

#[test]
fn halves_agree_with_plain_loops() {
    check::<half::f16>();
    check::<half::bf16>();
}

#[test]
fn kept_weights_are_packed_once_for_each_order() {
    let small = ConvShape { batch: 1, channels: 8, filters: 40, input: [3, 3], ..base() };
    let large = ConvShape { input: [12, 12], ..small };
    let team = Team::single();
    let (mut workspace, mut kept, simd) = (ConvWorkspace::new(), PackedWeights::default(), Simd::detect());
    let weights: Vec<f32> = numbers(small.weight_len(), 5).into_iter().map(|value| value as f32).collect();
    let mut run = |shape: &ConvShape, kept: &mut PackedWeights| {
        let (input, mut output) = (vec![1.0_f32; shape.input_len()], vec![0.0; shape.output_len()]);
        let operands = (&*input, &*weights);
        forward_kept(simd, &team, &mut workspace, shape, operands, Some(kept), &Epilogue::none(), &mut output);
        output
    };
    assert_eq!(kept.bytes(), 0);
    let first = run(&small, &mut kept);
    let once = kept.bytes();
    assert!(once >= weights.len() * size_of::<f32>());
    assert_eq!((run(&small, &mut kept), kept.bytes()), (first.clone(), once));
    run(&large, &mut kept);
    let both = kept.bytes();
    assert_eq!((run(&small, &mut kept), kept.bytes()), (first, both));
}

#[test]
fn activation_sees_every_output_once() {
    let base = base();
    activation_of(base);
    activation_of(ConvShape { filters: 40, input: [7, 7], ..base });
    activation_of(ConvShape { filters: 20, kernel: [1, 1], padding: [0; 4], ..base });
    activation_of(ConvShape { filters: 3, groups: 3, ..base });
}

fn activation_of(shape: ConvShape) {
    let (input, weights) = (vec![1.0_f32; shape.input_len()], vec![1.0_f32; shape.weight_len()]);
    let mut plain = vec![0.0; shape.output_len()];
    let mut workspace = ConvWorkspace::new();
    let team = Team::new(2);
    let simd = Simd::detect();
    forward(simd, &team, &mut workspace, &shape, (&input, &weights), &Epilogue::none(), &mut plain);
    let negate = |_: usize, sums: &mut [f32]| sums.iter_mut().for_each(|sum| *sum = -*sum);
    let mut negated = vec![0.0; shape.output_len()];
    let epilogue = Epilogue { bias: None, activate: Some(&negate) };
    forward(simd, &team, &mut workspace, &shape, (&input, &weights), &epilogue, &mut negated);
    assert!(plain.iter().zip(&negated).all(|(a, b)| *a == -*b && *a > 0.0));
}

/// The same numbers in channels-last order.
fn turned<T: Copy>(numbers: &[T], [batch, channels, height, width]: [usize; 4]) -> Vec<T> {
    let pixels = (0..batch).flat_map(|image| (0..height * width).map(move |pixel| (image, pixel)));
    let place = |image, pixel, channel| (image * channels + channel) * height * width + pixel;
    pixels.flat_map(|(image, pixel)| (0..channels).map(move |channel| numbers[place(image, pixel, channel)])).collect()
}

#[test]
fn images_whose_channels_lie_side_by_side() {
    use panoply_cpu_conv::conv::channels_last::{self, Pixels};
    let mut all: Vec<ConvShape> = shapes();
    for (channels, filters) in [(5, 64), (40, 33), (16, 16), (3, 48)] {
        let base = ConvShape { channels, filters, ..base() };
        let small = |size: usize| ConvShape { input: [size, size], ..base };
        all.extend([base, small(7), small(2), ConvShape { kernel: [1, 1], padding: [0; 4], ..base }]);
        all.push(ConvShape { stride: [2, 2], ..base });
        all.push(ConvShape { kernel: [5, 4], stride: [2, 3], dilation: [2, 1], padding: [3, 0, 4, 5], ..base });
        all.push(ConvShape { groups: channels, filters: channels, kernel: [5, 3], stride: [1, 2], ..base });
        all.push(ConvShape { groups: channels, filters: channels, padding: [5, 6, 7, 8], dilation: [3, 2], ..base });
        all.push(ConvShape { input: [1, 1], padding: [9, 9, 9, 9], ..base });
    }
    // One row of taps of one channel.
    let line = ConvShape { channels: 1, filters: 33, kernel: [1, 20], input: [2, 171], padding: [0; 4], ..base() };
    all.extend([line, ConvShape { stride: [1, 7], ..line }, ConvShape { dilation: [1, 2], ..line }]);
    // Strides and padding that exceed any memory: at most one tap of each output meets the image.
    let far = 1 << 60;
    let apart = ConvShape { kernel: [2, 2], stride: [far; 2], dilation: [far; 2], padding: [far; 4], ..base() };
    let depthwise = ConvShape { channels: 20, filters: 20, groups: 20, ..apart };
    all.extend([ConvShape { channels: 20, filters: 40, ..apart }, depthwise]);
    // Large enough for Winograd's algorithm.
    all.push(ConvShape { channels: 40, filters: 48, input: [38, 51], ..base() });
    all.push(ConvShape { channels: 64, filters: 71, input: [57, 22], padding: [0, 2, 3, 1], batch: 1, ..base() });
    let team = Team::new(2);
    let mut checked = 0;
    for shape in all.into_iter().filter(channels_last::takes) {
        let (input, weights) = (numbers(shape.input_len(), 1), numbers(shape.weight_len(), 2));
        let bias = numbers(shape.filters, 3);
        let [rows, columns] = shape.output();
        let mut expected: Vec<f64> =
            (0..shape.output_len()).map(|i| bias[i / (rows * columns) % shape.filters]).collect();
        products(&shape, |i, w, o| expected[o] += input[i] * weights[w]);
        let expected = turned(&expected, shape.output_dims());
        let single = |numbers: &[f64]| numbers.iter().map(|number| *number as f32).collect::<Vec<f32>>();
        let (planes, weights, bias) = (single(&input), single(&weights), single(&bias));
        let dims = shape.input_dims();
        let last = turned(&planes, dims);
        let [_, channels, height, width] = dims;
        let strides = [channels * height * width, height * width, width, 1];
        let activate = |first: usize, sums: &mut [f32]| {
            sums.iter_mut().enumerate().for_each(|(index, sum)| *sum = *sum * 2.0 + (first + index) as f32);
        };
        for simd in Simd::available() {
            let mut kept = PackedWeights::default();
            let mut workspace = ConvWorkspace::new();
            let dense = Pixels::dense(&last, dims);
            for (round, images) in [dense, Pixels::new(&planes, dims, strides), dense].into_iter().enumerate() {
                let epilogue =
                    Epilogue { bias: Some(&bias), activate: (round > 0).then_some(&activate as Activate<'_, f32>) };
                let mut output = vec![f32::NAN; shape.output_len()];
                let kept = (round != 1).then_some(&mut kept);
                let operands = (images.unwrap(), &weights[..]);
                channels_last::forward(simd, &team, &mut workspace, &shape, operands, kept, &epilogue, &mut output);
                let depth = (shape.group_channels() * shape.taps()) as f64;
                for (index, (got, expected)) in output.iter().zip(&expected).enumerate() {
                    let expected = if round > 0 { 2.0 * expected + index as f64 } else { *expected };
                    let error = (f64::from(*got) - expected).abs();
                    assert!(
                        error <= 1e-6 * (4.0 + depth + index as f64),
                        "{shape:?} {simd:?} {round} {index}: {got} {expected}"
                    );
                    checked += 1;
                }
            }
        }
    }
    assert!(checked > 100_000);
}

#[test]
fn images_outside_of_their_memory_are_refused() {
    use panoply_cpu_conv::conv::channels_last::Pixels;
    let numbers = [0.0; 24];
    assert!(Pixels::dense(&numbers, [1, 4, 2, 3]).is_some());
    assert!(Pixels::dense(&numbers[1..], [1, 4, 2, 3]).is_none());
    assert!(Pixels::new(&numbers, [2, 2, 2, 2], [usize::MAX, 1, 1, 1]).is_none());
}
