//! The forward convolution and the gradient of its input: both set up a stencil and let `correlate` run it.

use super::correlate::{Activate, Correlation, Placement, WeightView, correlate};
use super::packed::PackedWeights;
use super::real::Stored;
use super::tile::Real;
use super::workspace::{ConvWorkspace, HasScratch, Scratch, SharedSlice, lines};
use super::{ConvShape, depthwise, winograd};
use crate::simd::Simd;
use crate::team::Team;

/// Pixels that a thread gathers at least: fewer are there before another thread is awake.
const GATHERED_PIXELS_MIN: usize = 16 << 10;

/// What happens to the sums of a forward convolution before they are stored.
pub struct Epilogue<'a, S: Stored> {
    /// One number for each filter, added first.
    pub bias: Option<&'a [S]>,
    /// Applied to the sums, in the type that they are computed in.
    pub activate: Option<Activate<'a, S::Real>>,
}

impl<S: Stored> Epilogue<'_, S> {
    /// Neither bias nor activation.
    pub fn none() -> Self {
        Epilogue { bias: None, activate: None }
    }
}

/// `output[n][f] = activate(bias[f] + Σ input[n][c] ⋆ weights[f][c])`, with every element of `output` overwritten.
pub fn forward<S: Stored>(
    simd: Simd,
    team: &Team,
    workspace: &mut ConvWorkspace,
    shape: &ConvShape,
    operands: (&[S], &[S]),
    epilogue: &Epilogue<'_, S>,
    output: &mut [S],
) {
    forward_kept(simd, team, workspace, shape, operands, None, epilogue, output);
}

/// As [`forward`], with weights that do not change: `kept` keeps them as they are packed.
pub fn forward_kept<S: Stored>(
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
    if depthwise::forward(simd, team, shape, operands, epilogue, output) {
        return;
    }
    let scratch = S::Real::scratch(workspace);
    if winograd::forward(simd, team, scratch, shape, operands, kept.as_deref_mut(), epilogue, output) {
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

/// The convolution of the pixels that are read, where each output reads one pixel and some are left out.
fn without_stride(shape: &ConvShape) -> Option<ConvShape> {
    let leaves_out = shape.kernel == [1, 1] && shape.stride != [1, 1] && shape.padding == [0; 4];
    leaves_out.then(|| ConvShape { input: shape.output(), stride: [1, 1], ..*shape })
}

/// The pixels that `dense` has of the input, in `to`, which has room for them.
fn gathered<'a, S: Stored>(
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
            // SAFETY: no other range has this plane.
            let to = unsafe { target.part(index * kept, kept) };
            for (row, to) in to.chunks_exact_mut(columns.max(1)).enumerate() {
                let from = source[row * shape.stride[0] * width..].iter().step_by(shape.stride[1]);
                to.iter_mut().zip(from).for_each(|(to, from)| *to = from.real());
            }
        }
    });
    // SAFETY: the caller asks only where both types are the same, and all numbers were written above, or before.
    unsafe { std::slice::from_raw_parts(to.as_ptr().cast::<S>(), to.len()) }
}

/// The gradient of the input: what a change of each input number does to the sum of `gradient * output`.
///
/// Input rows with the same remainder by the stride are reached by the same taps. For each such remainder (vertical and
/// horizontal) this is a convolution of the output's gradient, with stride one and the roles of channels and filters
/// exchanged. Inputs that no output reads get zero.
pub fn backward_input<S: Stored>(
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
    for row_phase in 0..shape.stride[0].min(shape.input[0]) {
        for column_phase in 0..shape.stride[1].min(shape.input[1]) {
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

/// The stencil by which outputs read inputs.
pub(super) fn set_stencil<T: Real>(scratch: &mut Scratch<T>, shape: &ConvShape) {
    let stencil = &mut scratch.stencil;
    (stencil.source, stencil.output, stencil.stride) = (shape.input, shape.output(), shape.stride);
    stencil.taps.clear();
    scratch.tap_weights.clear();
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
