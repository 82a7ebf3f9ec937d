//! Tests of the trial and the choice of a vendor's convolutions, on one device.

use std::rc::Rc;

use panoply_c_gpu::context::Context;
use panoply_c_gpu::driver::Stream;
use panoply_c_gpu::library::{ConvolutionKind, ConvolutionTensors, Convolutions};
use panoply_c_gpu::ops::compute::conv2d::library::{ConvolutionTask, run};
use panoply_c_gpu::ops::compute::conv2d::trial::Trial;
use panoply_c_gpu::ops::compute::conv2d::{ConvProduct, Operands};
use panoply_conformance::Tolerance;
use panoply_conformance::reference::reference;
use panoply_conformance::values::{difference, random_tensor};
use panoply_core::op::compute::{
    Activation, Conv2d, Conv2dBackwardInput, Conv2dBackwardWeight, ConvOptions, ConvShape,
};
use panoply_core::{DType, Op, Operation};

/// The element types that libraries support, and the suite's tolerances, relative to the size of
/// the results.
const DTYPES: [(DType, f64); 3] = [(DType::F32, 1e-6), (DType::F16, 1.0 / 1024.0), (DType::BF16, 1.0 / 128.0)];
const KINDS: [ConvolutionKind; 3] = [ConvolutionKind::Forward, ConvolutionKind::Input, ConvolutionKind::Weights];
/// Height and width, padding, stride.
const KERNELS: [[usize; 3]; 4] = [[3, 1, 1], [1, 0, 1], [5, 2, 1], [3, 1, 2]];

pub fn a_trial_finds_sums_that_are_off(context: &mut Context) {
    let cases = [
        (DType::F32, ConvolutionKind::Forward),
        (DType::F32, ConvolutionKind::Input),
        (DType::F16, ConvolutionKind::Weights),
    ];
    for (dtype, kind) in cases {
        let (mut job, _) = small_job(dtype, [3, 1, 2], kind, context);
        job.shape.batch = 1;
        let trial = Trial::new(&job, context).unwrap();
        assert!(!trial.is_exact(context).unwrap(), "{dtype} {kind:?}: noise is no result");
        let product = ConvProduct::of(kind, &job.shape);
        let operands = Operands::of(kind, &trial.job.tensors);
        product.run(dtype, operands, context).unwrap();
        assert!(trial.is_exact(context).unwrap(), "{dtype} {kind:?}");
        // The first sum is among those that are compared.
        context.fill(operands.out, 0x40, dtype.size_bytes()).unwrap();
        assert!(!trial.is_exact(context).unwrap(), "{dtype} {kind:?}: a wrong sum");
    }
}

/// The library has plans for every kind in every searched layout; prints the time of each.
pub fn the_library_has_plans(context: &mut Context) {
    let driver = Rc::clone(&context.driver);
    let Some(library) = driver.convolutions() else { return println!("skipped: the device has no library") };
    for (dtype, kind) in DTYPES.iter().flat_map(|(dtype, _)| KINDS.map(|kind| (*dtype, kind))) {
        let job = large_job(dtype, kind, context);
        assert!(job.is_eligible());
        for channels_last in job.layouts() {
            time_plans(library, &job, channels_last, context);
        }
        context.forget_queued();
    }
}

/// Engines that round more than they report are refused, and the chosen plan is as exact as the
/// suite requires.
pub fn what_is_chosen_is_exact(context: &mut Context) {
    let driver = Rc::clone(&context.driver);
    let Some(library) = driver.convolutions() else { return println!("skipped: the device has no library") };
    let mut chosen = 0;
    for (dtype, relative) in DTYPES {
        for (kernel, kind) in KERNELS.iter().flat_map(|kernel| KINDS.map(|kind| (*kernel, kind))) {
            let (job, op) = small_job(dtype, kernel, kind, context);
            tell_verdicts(library, &job, context);
            if !run(&job, context).unwrap() {
                println!(
                    "{dtype} {kernel:?} {kind:?}: our own kernel, which is faster than what is exact of the library"
                );
                context.forget_queued();
                continue;
            }
            chosen += 1;
            let expected = reference(&op).unwrap().into_tensor().unwrap();
            let result = Operands::of(kind, &job.tensors).out;
            let got = context.download(result, dtype, *expected.shape()).unwrap();
            context.driver.synchronize(Stream::Download).unwrap();
            let absolute = 4.0 * f64::from(f32::EPSILON) * (ConvProduct::of(kind, &job.shape).terms() + 4) as f64;
            let off = difference(&expected, &got, Tolerance::Close { relative, absolute });
            assert!(off.is_none(), "{dtype} {kernel:?} {kind:?}: {off:?}");
            context.forget_queued();
        }
    }
    assert!(chosen > 0, "the library was never chosen");
}

fn large_job(dtype: DType, kind: ConvolutionKind, context: &mut Context) -> ConvolutionTask {
    let options = ConvOptions { padding: [1; 4], ..ConvOptions::default() };
    let shape = ConvShape::new([64, 256, 56, 56], [256, 256, 3, 3], &options).unwrap();
    let mut zeroed = |elements: usize| {
        let address = context.scratch(elements * dtype.size_bytes()).unwrap();
        context.fill(address, 0, elements * dtype.size_bytes()).unwrap();
        address
    };
    let (input, weights) = (zeroed(shape.input_len()), zeroed(shape.weight_len()));
    let tensors = ConvolutionTensors { input, weights, output: zeroed(shape.output_len()), bias: None, residual: None };
    ConvolutionTask::new(shape, dtype, kind, tensors, Activation::None)
}

/// A job of random numbers, and its op.
fn small_job(
    dtype: DType,
    [side, pad, step]: [usize; 3],
    kind: ConvolutionKind,
    context: &mut Context,
) -> (ConvolutionTask, Op) {
    let (padding, stride) = ([pad; 4], [step; 2]);
    let options = ConvOptions { padding, stride, ..ConvOptions::default() };
    let shape = ConvShape::new([4, 32, 30, 28], [64, 32, side, side], &options).unwrap();
    let x = random_tensor(dtype, &shape.input_dims(), 1);
    let w = random_tensor(dtype, &shape.weight_dims(), 2);
    let y = random_tensor(dtype, &shape.output_dims(), 3);
    let [input, weights, output] = [&x, &w, &y].map(|tensor| context.input(tensor).unwrap());
    let op = match kind {
        ConvolutionKind::Forward => Conv2d::new(&x, &w).padding(padding).stride(stride).into_op(),
        ConvolutionKind::Input => Conv2dBackwardInput::new(&y, &w, [30, 28]).padding(padding).stride(stride).into_op(),
        ConvolutionKind::Weights => {
            Conv2dBackwardWeight::new(&x, &y, [side; 2]).padding(padding).stride(stride).into_op()
        }
    };
    let tensors = ConvolutionTensors { input, weights, output, bias: None, residual: None };
    (ConvolutionTask::new(shape, dtype, kind, tensors, Activation::None), op.unwrap())
}

/// Prints the refused engines.
fn tell_verdicts(library: &dyn Convolutions, job: &ConvolutionTask, context: &mut Context) {
    let trial = Trial::new(job, context).unwrap();
    for channels_last in job.layouts() {
        let plans = library.plans(&job.problem(channels_last)).unwrap_or_default();
        let bytes = plans.iter().map(|plan| plan.workspace_bytes()).max().unwrap_or(0);
        let room = trial.job.room(channels_last, bytes, context).unwrap();
        for plan in &plans {
            if trial.job.queue(&**plan, &room, context).unwrap() && !trial.is_exact(context).unwrap() {
                let what = (job.dtype, job.kind, job.shape.kernel, job.shape.stride, plan.name());
                println!("refused: {what:?}, channels last: {channels_last}");
            }
        }
    }
}

fn time_plans(library: &dyn Convolutions, job: &ConvolutionTask, channels_last: bool, context: &mut Context) {
    let plans = library.plans(&job.problem(channels_last)).unwrap_or_else(|error| {
        println!("no plan: {error}");
        Vec::new()
    });
    println!("{} {:?}, channels last: {channels_last}: {} plans", job.dtype, job.kind, plans.len());
    let bytes = plans.iter().map(|plan| plan.workspace_bytes()).max().unwrap_or(0);
    let room = job.room(channels_last, bytes, context).unwrap();
    for plan in &plans {
        let time = job.time(&**plan, &room, context).unwrap();
        println!("  {time:?} with {} bytes of workspace", plan.workspace_bytes());
    }
    assert!(!plans.is_empty() || !channels_last);
}
