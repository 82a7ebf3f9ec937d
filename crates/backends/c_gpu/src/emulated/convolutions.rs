//! A vendor's convolutions in plain loops, for tests of the code that uses such a library:
//! channels-last (NHWC) images of f16, with a residual, a bias and a fused activation.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use panoply_core::op::compute::Activation;
use panoply_core::{DType, f16};

use super::driver::Recording;
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

fn convolve(problem: &ConvolutionProblem, tensors: &ConvolutionTensors) {
    let [images, filters, height, width] = problem.output;
    let [_, channels, in_height, in_width] = problem.input;
    let [_, _, down, across] = problem.weights;
    let (x, w) = (numbers(tensors.input, problem.input), numbers(tensors.weights, problem.weights));
    let bias = tensors.bias.map(|bias| numbers(bias, [1, filters, 1, 1]));
    let residual = tensors.residual.map(|residual| numbers(residual, problem.output));
    let count = (images * filters * height * width) as usize;
    // SAFETY: as in `numbers`; no other code reads or writes the result meanwhile.
    let y = unsafe { std::slice::from_raw_parts_mut(tensors.output.0 as *mut f16, count) };
    for (index, result) in y.iter_mut().enumerate() {
        let index = index as i64;
        let (filter, pixel) = (index % filters, index / filters);
        let (column, row, image) = (pixel % width, pixel / width % height, pixel / width / height);
        let mut sum = 0.0_f32;
        for tap in 0..down * across {
            let (r, c) = (tap / across, tap % across);
            let from_row = row * problem.stride[0] + r * problem.dilation[0] - problem.padding[0][0];
            let from_column = column * problem.stride[1] + c * problem.dilation[1] - problem.padding[0][1];
            if !(0..in_height).contains(&from_row) || !(0..in_width).contains(&from_column) {
                continue;
            }
            let from = (((image * in_height + from_row) * in_width + from_column) * channels) as usize;
            let factor = ((filter * down * across + tap) * channels) as usize;
            let both = x[from..from + channels as usize].iter().zip(&w[factor..factor + channels as usize]);
            sum += both.map(|(x, w)| x.to_f32() * w.to_f32()).sum::<f32>();
        }
        sum += residual.map_or(0.0, |residual| residual[index as usize].to_f32());
        sum += bias.map_or(0.0, |bias| bias[filter as usize].to_f32());
        let is_cut = problem.activation == Activation::Relu && sum < 0.0;
        *result = f16::from_f32(if is_cut { 0.0 } else { sum });
    }
}
