//! A vendor's convolutions in plain loops, for tests of the code that uses such a library:
//! channels-last (NHWC) images of f16, with a residual, a bias and a fused activation.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use panoply_core::op::compute::{Activation, ConvShape};
use panoply_core::{DType, f16};

use super::recording::Recording;
use crate::driver::Address;
use crate::library::{ConvolutionKind, ConvolutionPlan, ConvolutionProblem, ConvolutionTensors, Convolutions};

/// The library.
pub(super) struct Loops {
    recording: Recording,
    choices: RefCell<HashMap<ConvolutionProblem, Option<Rc<dyn ConvolutionPlan>>>>,
}

/// A plan for one problem. The device's memory is the host's.
struct EmulatedConvolution {
    problem: ConvolutionProblem,
    recording: Recording,
}

impl Loops {
    pub(super) fn new(recording: Recording) -> Loops {
        Loops { recording, choices: RefCell::default() }
    }
}

impl Convolutions for Loops {
    fn plans(&self, problem: &ConvolutionProblem) -> Result<Vec<Rc<dyn ConvolutionPlan>>, String> {
        let takes = problem.channels_last
            && problem.dtype == DType::F16
            && problem.kind == ConvolutionKind::Forward
            && problem.weights[1] == problem.input[1]
            && matches!(problem.activation, Activation::None | Activation::Relu);
        if !takes {
            return Err("loops are for images of f16 numbers with their channels last".to_owned());
        }
        Ok(vec![Rc::new(EmulatedConvolution { problem: *problem, recording: Rc::clone(&self.recording) })])
    }

    fn choice(&self, problem: &ConvolutionProblem) -> Option<Option<Rc<dyn ConvolutionPlan>>> {
        self.choices.borrow().get(problem).cloned()
    }

    fn choose(&self, problem: ConvolutionProblem, plan: Option<Rc<dyn ConvolutionPlan>>) {
        self.choices.borrow_mut().insert(problem, plan);
    }

    fn fuses(&self) -> bool {
        true
    }
}

impl ConvolutionPlan for EmulatedConvolution {
    fn problem(&self) -> &ConvolutionProblem {
        &self.problem
    }

    fn workspace_bytes(&self) -> usize {
        0
    }

    fn run(&self, tensors: &ConvolutionTensors, _workspace: Address) -> Result<(), String> {
        let (problem, tensors) = (self.problem, *tensors);
        let convolve = move || convolve(&problem, &tensors);
        self.recording.call(Rc::new(convolve));
        Ok(())
    }

    fn name(&self) -> String {
        "loops".to_owned()
    }
}

/// The f16 elements of a tensor in the device's memory.
fn numbers<'a>(address: Address, dims: [i64; 4]) -> &'a [f16] {
    let count = dims.iter().product::<i64>() as usize;
    // SAFETY: the problem's tensors have these sizes, and live until the op that asked has
    // finished.
    unsafe { std::slice::from_raw_parts(address.0 as *const f16, count) }
}

/// The sizes of a problem.
fn shape_of(problem: &ConvolutionProblem) -> ConvShape {
    let [batch, channels, input @ ..] = problem.input.map(|size| size as usize);
    let [filters, group_channels, kernel @ ..] = problem.weights.map(|size| size as usize);
    let [[top, left], [bottom, right]] = problem.padding.map(|side| side.map(|zeros| zeros as usize));
    ConvShape {
        batch,
        channels,
        filters,
        groups: channels / group_channels,
        input,
        kernel,
        stride: problem.stride.map(|step| step as usize),
        dilation: problem.dilation.map(|step| step as usize),
        padding: [top, left, bottom, right],
    }
}

fn convolve(problem: &ConvolutionProblem, tensors: &ConvolutionTensors) {
    let count = problem.output.iter().product::<i64>() as usize;
    let (x, w) = (numbers(tensors.input, problem.input), numbers(tensors.weights, problem.weights));
    let [filters, channels, kernel @ ..] = problem.weights;
    let (bias, residual) = (
        tensors.bias.map(|bias| numbers(bias, [1, filters, 1, 1])),
        tensors.residual.map(|residual| numbers(residual, problem.output)),
    );
    let mut sums = vec![0.0_f32; count];
    let place = |[outer, inner, row, column]: [usize; 4], [inners, rows, columns]: [i64; 3]| {
        ((outer * rows as usize + row) * columns as usize + column) * inners as usize + inner
    };
    let [_, _, rows, columns] = problem.output;
    shape_of(problem).for_each_product(|at| {
        let input = x[place(at.input, [channels, problem.input[2], problem.input[3]])];
        let weight = w[place(at.weight, [channels, kernel[0], kernel[1]])];
        sums[place(at.output, [filters, rows, columns])] += input.to_f32() * weight.to_f32();
    });
    // SAFETY: as in `numbers`; no other code reads or writes the result meanwhile.
    let y = unsafe { std::slice::from_raw_parts_mut(tensors.output.0 as *mut f16, count) };
    for (index, (result, sum)) in y.iter_mut().zip(sums).enumerate() {
        let residual = residual.map_or(0.0, |residual| residual[index].to_f32());
        let bias = bias.map_or(0.0, |bias| bias[index % filters as usize].to_f32());
        let sum = sum + residual + bias;
        let is_cut = problem.activation == Activation::Relu && sum < 0.0;
        *result = f16::from_f32(if is_cut { 0.0 } else { sum });
    }
}
