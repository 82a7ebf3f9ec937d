//! The forward convolution and the gradient of its input. Both set up a stencil that `correlate`
//! runs.

use super::correlate::correlate;
use super::correlation::{Correlation, Placement, WeightView};
use super::epilogue::Epilogue;
use super::packed::{PackedWeights, all_finite};
use super::real::StoredElement;
use super::tile::Real;
use super::workspace::{ConvWorkspace, HasScratch, Scratch, SharedSlice, lines};
use super::{ConvShape, depthwise, winograd};
use crate::simd::Simd;
use crate::team::Team;

/// Minimum number of pixels that a thread gathers: fewer are done before another thread is awake.
const GATHERED_PIXELS_MIN: usize = 16 << 10;

/// The convolution; `kept` holds constant weights in packed form.
pub(super) fn forward_kept<S: StoredElement>(
    simd: Simd,
    team: &Team,
    workspace: &mut ConvWorkspace,
    shape: &ConvShape,
    operands: (&[S], &[S]),
    mut kept: Option<&mut PackedWeights>,
    epilogue: &Epilogue<'_, S>,
    output: &mut [S],
) {
    let (input, weights) = operands;
    assert_eq!((input.len(), weights.len()), (shape.input_len(), shape.weight_len()), "input and weights");
    assert_eq!(output.len(), shape.output_len(), "output");
    let simd = simd.min(Simd::detect());
    // Depthwise kernels skip the padding, and Winograd's algorithm mixes weights: both are correct
    // for finite weights only.
    let is_small = shape.group_channels() == 1 && shape.padding != [0; 4];
    let is_mixed = kept.is_some() && shape.kernel == [3, 3];
    let is_plain = (is_small || is_mixed) && !all_finite(weights, kept.as_deref_mut());
    if !is_plain && depthwise::forward(simd, team, shape, operands, epilogue, output) {
        return;
    }
    let scratch = S::Real::scratch(workspace);
    if !is_plain && winograd::forward(simd, team, scratch, shape, operands, kept.as_deref_mut(), epilogue, output) {
        return;
    }
    let mut shared = std::mem::take(&mut scratch.shared);
    let dense = without_stride(shape).filter(|_| S::IN_PLACE);
    let (shape, input) = match &dense {
        Some(dense) => (dense, gathered(team, shape, dense, input, lines(&mut shared, dense.input_len()))),
        None => (shape, input),
    };
    set_stencil(scratch, shape);
    let job = Correlation {
        batch: shape.batch,
        groups: shape.groups,
        channels: shape.group_channels(),
        filters: shape.group_filters(),
        source: input,
        weights: WeightView {
            data: weights,
            group_stride: shape.group_filters() * shape.group_channels() * shape.taps(),
            filter_stride: shape.group_channels() * shape.taps(),
            channel_stride: shape.taps(),
        },
        bias: epilogue.bias,
        activate: epilogue.activate,
        placement: Placement::dense(shape.output()),
    };
    correlate(simd, team, scratch, &job, kept, output);
    scratch.shared = shared;
}

/// The dense convolution of the pixels that are read, if each output reads one pixel and a stride
/// skips others.
fn without_stride(shape: &ConvShape) -> Option<ConvShape> {
    let leaves_out = shape.kernel == [1, 1] && shape.stride != [1, 1] && shape.padding == [0; 4];
    leaves_out.then(|| ConvShape { input: shape.output(), stride: [1, 1], ..*shape })
}

/// Copies the pixels that `dense` reads of the input to `to`, which must have room for them.
fn gathered<'a, S: StoredElement>(
    team: &Team,
    shape: &ConvShape,
    dense: &ConvShape,
    input: &[S],
    to: &'a mut [S::Real],
) -> &'a [S] {
    let ([_, width], [rows, columns]) = (shape.input, dense.input);
    let (plane, kept) = (shape.input[0] * width, rows * columns);
    let target = SharedSlice::new(to);
    let grain = GATHERED_PIXELS_MIN.div_ceil(kept.max(1));
    team.run_ranges(shape.batch * shape.channels, grain, &|planes| {
        for index in planes {
            let source = &input[index * plane..][..plane];
            // SAFETY: the plane belongs to no other range.
            let to = unsafe { target.part(index * kept, kept) };
            for (row, to) in to.chunks_exact_mut(columns.max(1)).enumerate() {
                let from = source[row * shape.stride[0] * width..].iter().step_by(shape.stride[1]);
                to.iter_mut().zip(from).for_each(|(to, from)| *to = from.real());
            }
        }
    });
    // SAFETY: the caller guarantees that both types are the same, and all numbers were written
    // above or before.
    unsafe { std::slice::from_raw_parts(to.as_ptr().cast::<S>(), to.len()) }
}

/// Computes the gradient of the input: the derivative of the sum of `gradient * output` by each
/// input number.
///
/// Input rows with the same remainder modulo the stride are read by the same taps. For each
/// vertical and horizontal remainder, the gradient is a convolution of the output's gradient with
/// stride one, in which channels and filters swap their roles. Inputs that no output reads get
/// zero.
pub(super) fn backward_input<S: StoredElement>(
    simd: Simd,
    team: &Team,
    workspace: &mut ConvWorkspace,
    shape: &ConvShape,
    operands: (&[S], &[S]),
    input_gradient: &mut [S],
) {
    let (gradient, weights) = operands;
    assert_eq!((gradient.len(), weights.len()), (shape.output_len(), shape.weight_len()), "gradient and weights");
    assert_eq!(input_gradient.len(), shape.input_len(), "input gradient");
    let [row_phases, column_phases] = [0, 1].map(|axis| phases(shape, axis));
    let is_reached = |axis: usize, phases: &[usize]| phases.len() == shape.stride[axis].min(shape.input[axis]);
    if !is_reached(0, &row_phases) || !is_reached(1, &column_phases) {
        input_gradient.fill(S::default());
    }
    for &row_phase in &row_phases {
        for &column_phase in &column_phases {
            let scratch = S::Real::scratch(workspace);
            let origin = [row_phase, column_phase];
            scratch.stencil.source = shape.output();
            scratch.stencil.stride = [1, 1];
            scratch.stencil.output =
                std::array::from_fn(|axis| (shape.input[axis] - origin[axis]).div_ceil(shape.stride[axis]));
            scratch.stencil.taps.clear();
            scratch.tap_weights.clear();
            for row in 0..shape.kernel[0] {
                for column in 0..shape.kernel[1] {
                    let reach = |axis: usize, tap: usize| {
                        let distance =
                            (origin[axis] + shape.padding[axis]) as isize - (tap * shape.dilation[axis]) as isize;
                        let step = shape.stride[axis] as isize;
                        (distance.rem_euclid(step) == 0).then(|| distance.div_euclid(step))
                    };
                    if let (Some(vertical), Some(horizontal)) = (reach(0, row), reach(1, column)) {
                        scratch.stencil.taps.push([vertical, horizontal]);
                        scratch.tap_weights.push(row * shape.kernel[1] + column);
                    }
                }
            }
            scratch.stencil.drop_idle_taps(&mut scratch.tap_weights);
            let job = Correlation {
                batch: shape.batch,
                groups: shape.groups,
                channels: shape.group_filters(),
                filters: shape.group_channels(),
                source: gradient,
                weights: WeightView {
                    data: weights,
                    group_stride: shape.group_filters() * shape.group_channels() * shape.taps(),
                    filter_stride: shape.taps(),
                    channel_stride: shape.group_channels() * shape.taps(),
                },
                bias: None,
                activate: None,
                placement: Placement { plane: shape.input, origin, step: shape.stride },
            };
            correlate(simd.min(Simd::detect()), team, scratch, &job, None, input_gradient);
        }
    }
}

/// The remainders, modulo the stride of an axis, of the inputs that any tap reads. Empty if there
/// is no product.
fn phases(shape: &ConvShape, axis: usize) -> Vec<usize> {
    if has_no_product(shape) {
        return Vec::new();
    }
    let step = shape.stride[axis] as isize;
    let reached = |tap: usize| (tap * shape.dilation[axis]) as isize - shape.padding[axis] as isize;
    let phase = |tap: usize| reached(tap).rem_euclid(step) as usize;
    let mut phases: Vec<usize> = (0..shape.kernel[axis]).map(phase).filter(|p| *p < shape.input[axis]).collect();
    phases.sort_unstable();
    phases.dedup();
    phases
}

/// Whether the convolution has no product at all, regardless of the kernel's size.
fn has_no_product(shape: &ConvShape) -> bool {
    shape.weight_len() == 0 || shape.input_len() == 0 || shape.output_len() == 0
}

/// Sets the stencil that describes which inputs each output reads.
pub(super) fn set_stencil<T: Real>(scratch: &mut Scratch<T>, shape: &ConvShape) {
    let stencil = &mut scratch.stencil;
    (stencil.source, stencil.output, stencil.stride) = (shape.input, shape.output(), shape.stride);
    stencil.taps.clear();
    scratch.tap_weights.clear();
    if has_no_product(shape) {
        return;
    }
    for row in 0..shape.kernel[0] {
        for column in 0..shape.kernel[1] {
            stencil.taps.push([
                (row * shape.dilation[0]) as isize - shape.padding[0] as isize,
                (column * shape.dilation[1]) as isize - shape.padding[1] as isize,
            ]);
            scratch.tap_weights.push(row * shape.kernel[1] + column);
        }
    }
    stencil.drop_idle_taps(&mut scratch.tap_weights);
}
