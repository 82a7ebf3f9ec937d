//! The entry points, each compiled once for each stored type.

use half::{bf16, f16};
use panoply_cpu_machine::compile_once;

use super::epilogue::Epilogue;
use super::packed::PackedWeights;
use super::real::StoredElement;
use super::workspace::ConvWorkspace;
use super::{ConvShape, weight};
use crate::pool2d;
use crate::simd::Simd;
use crate::team::Team;

compile_once! {
    /// The convolutions of a stored type.
    pub trait ConvKernels: StoredElement {
        fn run_forward(
            simd: Simd,
            team: &Team,
            workspace: &mut ConvWorkspace,
            shape: &ConvShape,
            operands: (&[Self], &[Self]),
            kept: Option<&mut PackedWeights>,
            epilogue: &Epilogue<'_, Self>,
            output: &mut [Self],
        ) = super::forward::forward_kept;
        fn run_backward_input(
            simd: Simd,
            team: &Team,
            workspace: &mut ConvWorkspace,
            shape: &ConvShape,
            operands: (&[Self], &[Self]),
            input_gradient: &mut [Self],
        ) = super::forward::backward_input;
        fn run_backward_weight(
            simd: Simd,
            team: &Team,
            workspace: &mut ConvWorkspace,
            shape: &ConvShape,
            operands: (&[Self], &[Self]),
            weight_gradient: &mut [Self],
        ) = weight::backward_weight;
    } for f32, f64, f16, bf16
}

/// A stored element for which convolutions and pooling are compiled.
pub trait ConvElement: StoredElement + ConvKernels + pool2d::PoolKernels {}

impl<S: StoredElement + ConvKernels + pool2d::PoolKernels> ConvElement for S {}

/// `output[n][f] = activate(bias[f] + Σ input[n][c] ⋆ weights[f][c])`, with every element of
/// `output` overwritten.
pub fn forward<S: ConvElement>(
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

/// As [`forward`], with constant weights: `kept` holds the weights in packed form.
pub fn forward_kept<S: ConvElement>(
    simd: Simd,
    team: &Team,
    workspace: &mut ConvWorkspace,
    shape: &ConvShape,
    operands: (&[S], &[S]),
    kept: Option<&mut PackedWeights>,
    epilogue: &Epilogue<'_, S>,
    output: &mut [S],
) {
    S::run_forward(simd, team, workspace, shape, operands, kept, epilogue, output);
}

/// The gradient of the input: the derivative of the sum of `gradient * output` by each pixel.
pub fn backward_input<S: ConvElement>(
    simd: Simd,
    team: &Team,
    workspace: &mut ConvWorkspace,
    shape: &ConvShape,
    operands: (&[S], &[S]),
    input_gradient: &mut [S],
) {
    S::run_backward_input(simd, team, workspace, shape, operands, input_gradient);
}

/// Computes the gradient of the weights: the derivative of the sum of `gradient * output` by each
/// weight.
pub fn backward_weight<S: ConvElement>(
    simd: Simd,
    team: &Team,
    workspace: &mut ConvWorkspace,
    shape: &ConvShape,
    operands: (&[S], &[S]),
    weight_gradient: &mut [S],
) {
    S::run_backward_weight(simd, team, workspace, shape, operands, weight_gradient);
}
