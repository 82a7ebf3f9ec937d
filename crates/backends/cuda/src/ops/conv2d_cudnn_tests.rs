use panoply_conformance::Tolerance;
use panoply_conformance::reference::reference;
use panoply_conformance::values::{difference, random_tensor};
use panoply_core::op::compute::{Conv2d, Conv2dBackwardInput, Conv2dBackwardWeight, ConvOptions};
use panoply_core::{Absence, Api, DeviceId, Op, Operation, Shape, Tensor, f16};
use panoply_kernels::c::Dialect;

use super::super::conv2d::{Operands, Product};
use super::*;
use crate::driver::Driver;
use crate::driver::cuda::{self, CudaDriver};
use crate::driver::emulated::{self, EmulatedDriver};

/// A context on the emulated device, or why there is none.
fn context() -> Result<Context, Absence> {
    let compiler = emulated::find_compiler()?;
    let device = DeviceId { api: Api::SIMULATED, index: 0 };
    Ok(Context::new(Rc::new(EmulatedDriver::new(device, compiler)), device, Dialect::Host, 1 << 20, None))
}

fn job(output: Address, bias: Option<Address>, dims: [usize; 4]) -> Job {
    let [batch, filters, height, width] = dims;
    let shape = ConvShape::new([batch, 1, height, width], [filters, 1, 1, 1], &ConvOptions::default()).unwrap();
    let tensors = Tensors { input: 0, weights: 0, output, bias };
    Job { shape, dtype: DType::F16, pass: Pass::Forward, tensors, activation: Activation::Relu }
}

#[test]
fn images_are_turned_and_finished() {
    let mut context = match context() {
        Ok(context) => context,
        Err(absence) => return println!("skipped: {absence}"),
    };
    for [matrices, rows, columns] in [[1, 1, 1], [2, 66, 130], [3, 67, 65], [2, 5, 64]] {
        let numbers: Vec<f16> = (0..matrices * rows * columns).map(|n| f16::from_f32((n % 97) as f32 - 40.0)).collect();
        let source = context.input(&Tensor::from_vec(numbers.clone(), [matrices, rows, columns]).unwrap()).unwrap();
        let shape = Shape::new([matrices, columns, rows]).unwrap();
        let target = context.scratch(numbers.len() * 2).unwrap();
        turn(DType::F16, target, source, [matrices, rows, columns], Activation::Relu, &mut context).unwrap();
        let turned = context.download(target, DType::F16, shape).unwrap().to_vec::<f16>().unwrap();
        for (index, number) in turned.iter().enumerate() {
            let (row, column) = (index % rows, index / rows % columns);
            let from = numbers[(index / (rows * columns) * rows + row) * columns + column].to_f32();
            assert_eq!(number.to_f32(), from.max(0.0), "{index} of {rows} x {columns}");
        }
    }
    let dims = [2, 3, 7, 5];
    let numbers: Vec<f16> = (0..210).map(|n| f16::from_f32(n as f32 - 100.0)).collect();
    let output = context.input(&Tensor::from_vec(numbers.clone(), dims).unwrap()).unwrap();
    let bias: Vec<f16> = [1.0, -2.0, 3.0].map(f16::from_f32).to_vec();
    let bias_at = context.input(&Tensor::from_vec(bias.clone(), [3]).unwrap()).unwrap();
    job(output, Some(bias_at), dims).finish(&mut context).unwrap();
    let finished = context.download(output, DType::F16, Shape::new(dims).unwrap()).unwrap().to_vec::<f16>().unwrap();
    for (index, number) in finished.iter().enumerate() {
        let wanted = (numbers[index].to_f32() + bias[index / 35 % 3].to_f32()).max(0.0);
        assert_eq!(number.to_f32(), wanted, "{index}");
    }
}

/// Tests the library on every GPU that there is.
fn with_library(test: impl Fn(&Cudnn, &mut Context)) {
    let devices = match cuda::discover() {
        Ok(devices) => devices,
        Err(absence) => return println!("skipped: {absence}"),
    };
    for info in devices {
        let driver = Rc::new(CudaDriver::open(&info).unwrap());
        match driver.libraries().and_then(|libraries| libraries.cudnn()) {
            Some(cudnn) => test(cudnn, &mut Context::new(driver.clone(), info.id, Dialect::Cuda, 1 << 30, None)),
            None => println!("skipped: {} has no cuDNN", info.id),
        }
    }
}

/// Where there are a GPU and the library, it has plans for every pass in every layout that is looked for, and says how
/// long each takes.
#[test]
fn the_library_has_plans() {
    with_library(|cudnn, context| {
        for (dtype, pass) in DTYPES.iter().flat_map(|(dtype, _)| PASSES.map(|pass| (*dtype, pass))) {
            let job = large_job(dtype, pass, context);
            assert!(job.is_eligible());
            for channels_last in job.layouts() {
                time_plans(cudnn, &job, channels_last, context);
            }
            drop(context.take_queued());
        }
    });
}

fn large_job(dtype: DType, pass: Pass, context: &mut Context) -> Job {
    let options = ConvOptions { padding: [1; 4], ..ConvOptions::default() };
    let shape = ConvShape::new([64, 256, 56, 56], [256, 256, 3, 3], &options).unwrap();
    let mut zeroed = |elements: usize| {
        let address = context.scratch(elements * dtype.size_bytes()).unwrap();
        context.fill(address, 0, elements * dtype.size_bytes()).unwrap();
        address
    };
    let (input, weights) = (zeroed(shape.input_len()), zeroed(shape.weight_len()));
    let tensors = Tensors { input, weights, output: zeroed(shape.output_len()), bias: None };
    Job { shape, dtype, pass, tensors, activation: Activation::None }
}

/// Engines that round more than they say are refused, and what is chosen is as close as the suite asks for.
#[test]
fn what_is_chosen_is_exact() {
    with_library(|cudnn, context| {
        for (dtype, relative) in DTYPES {
            for (kernel, pass) in KERNELS.iter().flat_map(|kernel| PASSES.map(|pass| (*kernel, pass))) {
                let (job, op) = small_job(dtype, kernel, pass, context);
                tell_verdicts(cudnn, &job, context);
                assert!(run(&job, context).unwrap(), "no engine for {dtype} {kernel:?} {pass:?}");
                let expected = reference(&op).unwrap().into_tensor().unwrap();
                let result = Operands::of(pass, &job.tensors).out;
                let got = context.download(result, dtype, *expected.shape()).unwrap();
                context.driver.synchronize(Stream::Download).unwrap();
                let absolute = 4.0 * f64::from(f32::EPSILON) * (Product::of(pass, &job.shape).terms() + 4) as f64;
                let off = difference(&expected, &got, Tolerance::Close { relative, absolute });
                assert!(off.is_none(), "{dtype} {kernel:?} {pass:?}: {off:?}");
                drop(context.take_queued());
            }
        }
    });
}

/// The element types that the library takes, and what the suite lets results be off by, of their size.
const DTYPES: [(DType, f64); 3] = [(DType::F32, 1e-6), (DType::F16, 1.0 / 1024.0), (DType::BF16, 1.0 / 128.0)];
const PASSES: [Pass; 3] = [Pass::Forward, Pass::Input, Pass::Weights];
/// Height and width, padding and stride.
const KERNELS: [[usize; 3]; 4] = [[3, 1, 1], [1, 0, 1], [5, 2, 1], [3, 1, 2]];

/// A job of random numbers, and the op that it is of.
fn small_job(dtype: DType, [side, pad, step]: [usize; 3], pass: Pass, context: &mut Context) -> (Job, Op) {
    let (padding, stride) = ([pad; 4], [step; 2]);
    let options = ConvOptions { padding, stride, ..ConvOptions::default() };
    let shape = ConvShape::new([4, 32, 30, 28], [64, 32, side, side], &options).unwrap();
    let x = random_tensor(dtype, &shape.input_dims(), 1);
    let w = random_tensor(dtype, &shape.weight_dims(), 2);
    let y = random_tensor(dtype, &shape.output_dims(), 3);
    let [input, weights, output] = [&x, &w, &y].map(|tensor| context.input(tensor).unwrap());
    let op = match pass {
        Pass::Forward => Conv2d::new(&x, &w).padding(padding).stride(stride).into_op(),
        Pass::Input => Conv2dBackwardInput::new(&y, &w, [30, 28]).padding(padding).stride(stride).into_op(),
        Pass::Weights => Conv2dBackwardWeight::new(&x, &y, [side; 2]).padding(padding).stride(stride).into_op(),
    };
    let tensors = Tensors { input, weights, output, bias: None };
    (Job { shape, dtype, pass, tensors, activation: Activation::None }, op.unwrap())
}

/// Says which engines were refused.
fn tell_verdicts(cudnn: &Cudnn, job: &Job, context: &mut Context) {
    let trial = Trial::new(job, context).unwrap();
    for channels_last in job.layouts() {
        let plans = cudnn.plans(&job.problem(channels_last)).unwrap_or_default();
        let bytes = plans.iter().map(|plan| plan.workspace_bytes).max().unwrap_or(0);
        let room = trial.job.room(channels_last, bytes, context).unwrap();
        for plan in &plans {
            if trial.job.queue(cudnn, plan, &room, context).unwrap() && !trial.is_exact(context).unwrap() {
                let what = (job.dtype, job.pass, job.shape.kernel, job.shape.stride, plan.engine());
                println!("refused: {what:?}, channels last: {channels_last}");
            }
        }
    }
}

#[test]
fn a_trial_finds_sums_that_are_off() {
    let mut context = match context() {
        Ok(context) => context,
        Err(absence) => return println!("skipped: {absence}"),
    };
    for (dtype, pass) in [(DType::F32, Pass::Forward), (DType::F32, Pass::Input), (DType::F16, Pass::Weights)] {
        let (mut job, _) = small_job(dtype, [3, 1, 2], pass, &mut context);
        job.shape.batch = 1;
        let trial = Trial::new(&job, &mut context).unwrap();
        assert!(!trial.is_exact(&mut context).unwrap(), "{dtype} {pass:?}: noise is no result");
        let product = Product::of(pass, &job.shape);
        let operands = Operands::of(pass, &trial.job.tensors);
        product.run(dtype, operands, &mut context).unwrap();
        assert!(trial.is_exact(&mut context).unwrap(), "{dtype} {pass:?}");
        // The first sum is one of those that are compared.
        context.fill(operands.out, 0x40, dtype.size_bytes()).unwrap();
        assert!(!trial.is_exact(&mut context).unwrap(), "{dtype} {pass:?}: a wrong sum");
    }
}

fn time_plans(cudnn: &Cudnn, job: &Job, channels_last: bool, context: &mut Context) {
    let plans = cudnn.plans(&job.problem(channels_last)).unwrap_or_else(|error| {
        println!("no plan: {error}");
        Vec::new()
    });
    println!("{} {:?}, channels last: {channels_last}: {} plans", job.dtype, job.pass, plans.len());
    let bytes = plans.iter().map(|plan| plan.workspace_bytes).max().unwrap_or(0);
    let room = job.room(channels_last, bytes, context).unwrap();
    for plan in &plans {
        let time = job.time(cudnn, plan, &room, context).unwrap();
        println!("  {time:?} with {} bytes of workspace", plan.workspace_bytes);
    }
    assert!(!plans.is_empty() || !channels_last);
}
