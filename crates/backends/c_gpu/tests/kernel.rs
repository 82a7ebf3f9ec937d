//! A caller's own kernels on the emulated device, with warps of 32 and of 64 lanes: their faults
//! are reported, and the engine continues.

#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::sync::Arc;
use std::time::{Duration, Instant};

use panoply_c_gpu::{EmulatedBackend, GpuBackend, GpuEngine};
use panoply_conformance::run_one;
use panoply_core::graph::Graph;
use panoply_core::op::compute::{Kernel, KernelProgram, LaunchSize, Scalar, ScalarType};
use panoply_core::op::graph::RunGraph;
use panoply_core::{Api, Backend, DType, DeviceId, Error, ErrorKind, OpenOptions, Operation, Result, Shape, Tensor};
use panoply_cpu::CpuBackend;
use panoply_pipeline::Pipeline;
use panoply_runtime::{RunOptions, Runtime, WorkerLimits};

const ELEMENTS: usize = 100;
const LAUNCH_TIME_MAX: Duration = Duration::from_millis(300);
const DOUBLE: &str = "KERNEL f(GLOBAL const f32 *x, GLOBAL f32 *y, u32 n)
{
    u32 i = block_x() * block_size_x() + thread_x();
    if (i < n) y[i] = 2.0f * x[i];
}";

fn engines() -> Vec<GpuEngine> {
    let backend = match EmulatedBackend::new() {
        Ok(backend) => backend.launch_time_max(LAUNCH_TIME_MAX),
        Err(absence) => {
            println!("skipped: {absence}");
            return Vec::new();
        }
    };
    let open = |backend: EmulatedBackend| {
        let info = backend.discover().unwrap().remove(0);
        backend.open_engine(&info, &OpenOptions::default()).unwrap()
    };
    vec![open(backend.clone().wide_warps()), open(backend)]
}

fn kernel(source: &str, entry: &str) -> Kernel {
    let x = Tensor::from_vec((0..ELEMENTS).map(|x| x as f32).collect(), [ELEMENTS]).unwrap();
    let builder = Kernel::c(source, entry).named("mine").input("x", DType::F32).output("y", DType::F32);
    let program = builder.scalar("n", ScalarType::U32).build().unwrap();
    let call = Kernel::new(&program).input(&x).scalar(ELEMENTS as u32).output(*x.shape());
    call.launch(LaunchSize::over(ELEMENTS, 64))
}

fn run(engine: &mut GpuEngine, kernel: Kernel) -> Result<Vec<Tensor>> {
    // Two devices take turns on this thread.
    engine.context_mut().driver.make_current()?;
    <Kernel as Operation>::output(run_one(engine, kernel.into_op()?)?)
}

fn expect_doubled(engine: &mut GpuEngine) {
    let outputs = run(engine, kernel(DOUBLE, "f")).unwrap();
    let expected: Vec<f32> = (0..ELEMENTS).map(|x| 2.0 * x as f32).collect();
    assert_eq!(outputs[0].to_vec::<f32>().unwrap(), expected);
}

#[test]
fn what_does_not_compile_says_why_and_where() {
    for mut engine in engines() {
        for (source, entry, expected) in [
            ("// One.\n// Two.\nKERNEL f(GLOBAL const f32 *x, GLOBAL f32 *y, u32 n) { y[0] = x[0] }\n", "f", "mine:3:"),
            ("KERNEL f(GLOBAL const f32 *x, GLOBAL f32 *y, u32 n) {\n  y[0] = missing(n);\n}", "f", "mine:2:"),
            (DOUBLE, "g", "g"),
            ("KERNEL f(GLOBAL f32 *y, u32 n) { y[0] = 1.0f; }", "f", "KERNEL f(const f32 *, f32 *, u32)"),
            ("KERNEL f(GLOBAL const f32 *x, GLOBAL f32 *y, f32 n) {}", "f", "KERNEL f(const f32 *, f32 *, u32)"),
            ("#error no such luck", "f", "no such luck"),
        ] {
            let error = run(&mut engine, kernel(source, entry)).unwrap_err();
            let Error::KernelSource { kernel, language, message } = &error else { panic!("{error}") };
            assert_eq!((kernel.as_str(), *language, error.kind()), ("mine", "C", ErrorKind::Caller));
            assert!(message.contains(expected), "expected {expected} in {message}");
        }
        expect_doubled(&mut engine);
    }
}

#[test]
fn what_goes_wrong_ends_the_op_and_nothing_else() {
    let body = |text: &str| format!("KERNEL f(GLOBAL const f32 *x, GLOBAL f32 *y, u32 n)\n{{\n{text}\n}}");
    let depth =
        "DEVICE u32 deep(u32 n) { volatile u32 a[64]; a[n % 64] = n; return n == 0 ? a[0] : deep(n - 1) + a[1]; }\n";
    for mut engine in engines() {
        for (text, expected) in [
            (body("y[n] = 1.0f;"), "wrote 4 bytes at byte 400 of argument 1, which has 400"),
            (body("y[0] = x[n + thread_x()];"), "read 4 bytes at byte 400 of argument 0, which has 400"),
            (body("if (thread_x() == 3) y[-1] = 1.0f;"), "thread 3,0,0 of block 0,0,0 wrote 4 bytes at byte -4"),
            (body("((GLOBAL f32 *)x)[thread_x()] = 1.0f;"), "wrote to an input"),
            (body("*(f32 *)(u64)12345676 = 1.0f;"), "none of its arguments"),
            (body("*(u32 *)((u8 *)y + 2) = n;"), "misaligned"),
            (body("SHARED f32 part[64]; part[4096 * 64 + n] = 1.0f;"), "wrote 4 bytes"),
            (body("if (thread_x() < 5) BARRIER(); else WARP_BARRIER();"), "parted ways around a barrier"),
            (body("y[0] = (f32)(7 / (n - 100));"), "divided by zero"),
            (body("for (u32 i = 0;; i++) y[i % n] = 1.0f;"), "has not ended after 300 ms"),
            (body("u32 i = 0; while (1) i++;"), "has not ended after 300 ms"),
            (body("while (x[1] == 1.0f) BARRIER();"), "has not ended after 300 ms"),
            (format!("{depth}{}", body("y[0] = (f32)deep(1000000);")), "used up its stack"),
        ] {
            let error = run(&mut engine, kernel(&text, "f")).unwrap_err();
            assert!(matches!(&error, Error::KernelFault { kernel, .. } if kernel == "mine"), "{text}: {error}");
            assert!(error.to_string().contains(expected), "{text}: {error}");
            assert_eq!(error.kind(), ErrorKind::Caller);
        }
        expect_doubled(&mut engine);
    }
}

#[test]
fn sizes_that_the_device_does_not_have_are_refused() {
    for mut engine in engines() {
        let mut large = kernel(DOUBLE, "f");
        large.outputs[0] = Shape::new([1 << 50]).unwrap();
        assert!(matches!(run(&mut engine, large), Err(Error::OutOfMemory { .. })));
        let mut block = kernel(DOUBLE, "f");
        block.launch = block.launch.block_bytes(200 << 10);
        assert!(matches!(run(&mut engine, block), Err(Error::OutOfBounds { .. })));
        let mut types = kernel(DOUBLE, "f");
        types.scalars[0] = Scalar::F32(1.0);
        assert!(matches!(run(&mut engine, types), Err(Error::InvalidArgument { .. })));
        expect_doubled(&mut engine);
    }
}

#[test]
fn each_program_is_compiled_once() {
    for mut engine in engines() {
        expect_doubled(&mut engine);
        let before = engine.context_mut().compile_queue().compiled();
        (0..3).for_each(|_| expect_doubled(&mut engine));
        assert_eq!(engine.context_mut().compile_queue().compiled(), before);
    }
}

/// An op with an endless kernel ends at its timeout. Its thread is abandoned, and the device is
/// opened again.
#[test]
fn an_endless_loop_ends_with_the_ops_time() {
    let backend = match EmulatedBackend::new() {
        Ok(backend) => backend.launch_time_max(Duration::from_secs(5)),
        Err(absence) => return println!("skipped: {absence}"),
    };
    let limits = WorkerLimits { op_time_max: Duration::from_millis(500), ..WorkerLimits::default() };
    let runtime = Runtime::builder().backend(Arc::new(backend)).limits(limits).build().unwrap();
    let device = DeviceId { api: Api::SIMULATED, index: 0 };
    let on_device = || RunOptions::require(device).to_host();
    // Compilation is not to be limited here: the first op may exceed its time, and is then run
    // again.
    let doubled = || runtime.run_with(kernel(DOUBLE, "f"), on_device()).wait();
    let started = Instant::now();
    while doubled().is_err() {
        assert!(started.elapsed() < Duration::from_secs(60), "the device never comes up");
    }
    let endless = kernel(
        "KERNEL f(GLOBAL const f32 *x, GLOBAL f32 *y, u32 n)\n{\nfor (u32 i = 0;; i++) y[i % n] = 1.0f;\n}",
        "f",
    );
    let started = Instant::now();
    let error = runtime.run_with(endless, on_device()).wait().unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
    let started = Instant::now();
    while doubled().is_err() {
        assert!(started.elapsed() < Duration::from_secs(60), "the device does not come back");
    }
}

/// On the CPU a program is its closure. A closure that panics or does not end fails only its own
/// op.
#[test]
fn closures_that_go_wrong_end_their_ops_alone() {
    let limits = WorkerLimits { op_time_max: Duration::from_secs(3), ..WorkerLimits::default() };
    let runtime = Runtime::builder().backend(Arc::new(CpuBackend::new())).limits(limits).build().unwrap();
    let call = |body: fn(&[f32], &mut [f32])| {
        let builder = Kernel::on_cpu("mine", move |call| {
            body(call.input(0)?, call.output(0)?);
            Ok(())
        });
        let program = builder.input("x", DType::F32).output("y", DType::F32).build().unwrap();
        let x = Tensor::from_vec(vec![1.0_f32, 2.0, 3.0], [3]).unwrap();
        Kernel::new(&program).input(&x).output(*x.shape())
    };
    let expect_doubled = || {
        let double: fn(&[f32], &mut [f32]) = |x, y| y.iter_mut().zip(x).for_each(|(y, x)| *y = 2.0 * x);
        let started = Instant::now();
        let outputs = loop {
            match runtime.run(call(double)).wait() {
                Ok(outputs) => break outputs,
                Err(error) => assert!(started.elapsed() < Duration::from_secs(60), "{error}"),
            }
        };
        assert_eq!(outputs[0].to_vec::<f32>().unwrap(), [2.0, 4.0, 6.0]);
    };
    expect_doubled();
    let error = runtime.run(call(|_, _| panic!("no luck"))).wait().unwrap_err();
    assert!(matches!(&error, Error::KernelFault { reason, .. } if reason.contains("no luck")), "{error}");
    let error = runtime.run(call(|x, y| y[0] = x[y.len()])).wait().unwrap_err();
    assert!(matches!(&error, Error::KernelFault { reason, .. } if reason.contains("out of bounds")), "{error}");
    let error = runtime.run(call(|_, _| std::thread::sleep(Duration::from_secs(8)))).wait().unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    expect_doubled();
    let mut large = call(|_, _| ());
    large.outputs[0] = Shape::new([1 << 50]).unwrap();
    assert!(matches!(runtime.run(large).wait(), Err(Error::OutOfMemory { .. })));
    let error = runtime.run(kernel(DOUBLE, "f")).wait().unwrap_err();
    assert!(error.to_string().contains("has no closure"), "{error}");
    expect_doubled();
}

/// A program that multiplies by a number. All these programs have the same name, so only their
/// texts distinguish them.
fn times(factor: u32) -> Arc<KernelProgram> {
    let source = format!(
        "KERNEL f(GLOBAL const f32 *x, GLOBAL f32 *y, u32 n)
{{
    u32 i = block_x() * block_size_x() + thread_x();
    if (i < n) y[i] = {factor}.0f * x[i];
}}"
    );
    let builder = Kernel::c(source, "f").input("x", DType::F32).output("y", DType::F32);
    let builder = builder.scalar("n", ScalarType::U32).on_cpu(move |call| {
        let (x, y) = (call.input::<f32>(0)?, call.output::<f32>(0)?);
        y.iter_mut().zip(x).for_each(|(y, x)| *y = factor as f32 * x);
        Ok(())
    });
    builder.build().unwrap()
}

fn times_call(program: &Arc<KernelProgram>, x: &Tensor) -> Kernel {
    let call = Kernel::new(program).input(x).scalar(x.elements() as u32).output(*x.shape());
    call.launch(LaunchSize::over(x.elements(), 64))
}

/// The CPU and the emulated device, each in a separate runtime.
fn runtimes() -> Vec<Arc<Runtime>> {
    let mut backends: Vec<Arc<dyn Backend>> = vec![Arc::new(CpuBackend::new())];
    match EmulatedBackend::new() {
        Ok(backend) => backends.push(Arc::new(backend)),
        Err(absence) => println!("skipped: {absence}"),
    }
    let limits = WorkerLimits { op_time_max: Duration::from_secs(60), ..WorkerLimits::default() };
    let build = |backend| Arc::new(Runtime::builder().backend(backend).limits(limits.clone()).build().unwrap());
    backends.into_iter().map(build).collect()
}

#[test]
fn a_kernel_is_a_stage_of_a_pipeline() {
    let (double, triple) = (times(2), times(3));
    for runtime in runtimes() {
        let (double, triple) = (Arc::clone(&double), Arc::clone(&triple));
        let row = |n: u32| Tensor::from_vec(vec![n as f32; ELEMENTS], [ELEMENTS]).unwrap();
        let (sixfold, report) = Pipeline::builder()
            .source(0..20_u32)
            .map("row", row)
            .op("double", Arc::clone(&runtime), move |x: &Tensor| times_call(&double, x))
            .op("triple", Arc::clone(&runtime), move |x: &Vec<Tensor>| times_call(&triple, &x[0]))
            .try_map("read", |x: &Vec<Tensor>| x[0].to_vec::<f32>())
            .collect()
            .run()
            .unwrap();
        assert_eq!(sixfold, (0..20).map(|n| vec![6.0 * n as f32; ELEMENTS]).collect::<Vec<_>>());
        assert_eq!(report.stage("triple").unwrap().given, 20);
        // A compile error becomes the stage's error, with the compiler's message.
        let wrong = |x: &Tensor| Kernel { inputs: vec![x.clone()], ..kernel("KERNEL f(int", "f") };
        let stage = Pipeline::builder().source([row(1)]).op("wrong", Arc::clone(&runtime), wrong);
        let error = stage.collect().run().unwrap_err().to_string();
        assert!(error.contains("stage wrong") && error.contains("mine"), "{error}");
    }
}

#[test]
fn a_kernel_is_a_node_of_a_graph() {
    let (double, triple) = (times(2), times(3));
    let mut g = Graph::builder("kernels");
    let x = g.input("x", DType::F32, &[ELEMENTS.into()]).unwrap();
    let more = g.add(x, x).unwrap();
    let first = g.op(&[more], |x| times_call(&double, &x[0])).unwrap();
    // The same name, parameters and operands, but a different kernel.
    let second = g.op(&[more], |x| times_call(&triple, &x[0])).unwrap();
    let again = g.op(&[more], |x| times_call(&triple, &x[0])).unwrap();
    let sum = g.add(first, second).unwrap();
    let sum = g.add(sum, again).unwrap();
    g.output("sum", sum).unwrap();
    let graph = g.finish().unwrap();
    let x = Tensor::from_vec((0..ELEMENTS).map(|x| x as f32).collect(), [ELEMENTS]).unwrap();
    let expected: Vec<f32> = (0..ELEMENTS).map(|x| 16.0 * x as f32).collect();
    for runtime in runtimes() {
        for _ in 0..3 {
            let op = RunGraph::new(&graph, &[&x]);
            let outputs = runtime.run_with(op, RunOptions::default().to_host()).wait().unwrap();
            assert_eq!(outputs[0].to_vec::<f32>().unwrap(), expected);
        }
    }
}
