//! Infinite weights of channels-last convolutions.

use panoply_core::op::compute::ConvOptions;
use panoply_cpu_conv::conv::channels_last::{Pixels, forward};
use panoply_cpu_conv::conv::{ConvShape, ConvWorkspace, Epilogue, PackedWeights};
use panoply_cpu_machine::simd::Simd;
use panoply_cpu_machine::team::Team;

/// Classifies each output of the planes of 3 filters as NaN, infinite or finite. One weight of
/// the second filter is infinite.
fn kinds(shape: &ConvShape, simd: Simd, kept: Option<&mut PackedWeights>) -> Vec<Vec<char>> {
    let mut weights = vec![0.25_f32; shape.weight_len()];
    // The first tap, which meets the padding in the first row and the first column.
    weights[shape.group_channels() * shape.taps()] = f32::INFINITY;
    let input = vec![1.0_f32; shape.input_len()];
    let pixels = Pixels::dense(&input, shape.input_dims()).unwrap_or_else(|| panic!("pixels"));
    let mut output = vec![7.0; shape.output_len()];
    let (team, mut space) = (Team::single(), ConvWorkspace::default());
    let epilogue = Epilogue::none();
    forward(simd, &team, &mut space, shape, (pixels, &weights), kept, &epilogue, &mut output);
    let kind = |value: &f32| match value {
        value if value.is_nan() => 'n',
        value if value.is_infinite() => 'i',
        _ => '.',
    };
    (0..shape.filters).map(|filter| output.iter().skip(filter).step_by(shape.filters).map(kind).collect()).collect()
}

#[test]
fn an_infinite_weight_is_nan_at_the_padding_and_infinite_elsewhere_on_every_way() {
    for (channels, groups) in [(4, 1), (32, 1), (32, 32)] {
        let filters = 32;
        let sizes = ([1, channels, 24, 24], [filters, channels / groups, 3, 3]);
        let options = ConvOptions { stride: [1, 1], padding: [1; 4], dilation: [1, 1], groups };
        let shape = ConvShape::new(sizes.0, sizes.1, &options);
        let shape = shape.unwrap_or_else(|error| panic!("a shape: {error}"));
        for simd in [Simd::Scalar, Simd::detect()] {
            for is_kept in [false, true] {
                let mut kept = PackedWeights::default();
                let planes = kinds(&shape, simd, is_kept.then_some(&mut kept));
                for (filter, plane) in planes.iter().enumerate() {
                    for (at, kind) in plane.iter().enumerate() {
                        let expected = match filter == 1 {
                            false => '.',
                            true if at < 24 || at % 24 == 0 => 'n',
                            true => 'i',
                        };
                        let what = format!("{channels} channels, {groups} groups, {simd:?}, kept {is_kept}");
                        assert_eq!(*kind, expected, "{what}: filter {filter}, pixel {at}");
                    }
                }
            }
        }
    }
}
