//! Checks callers' own kernels in WGSL on every device of a backend: faults in them are reported,
//! and the engine continues to work.

use panoply_conformance::{discovered, run_one};
use panoply_core::op::compute::{Kernel, KernelBuilder, LaunchSize, ScalarType};
use panoply_core::{Backend, DType, Engine, Error, ErrorKind, OpenOptions, Operation, Result, Shape, Support, Tensor};

const ELEMENTS: usize = 100;
const DOUBLE: &str = "@compute @workgroup_size(BLOCK_X)
fn f(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < scalars.n { y[id.x] = 2.0 * x[id.x]; }
}";

/// A kernel that does not compile.
#[derive(Clone, Copy, Debug)]
pub struct FaultyKernel<'a> {
    pub source: &'a str,
    /// The name of the function to run.
    pub entry: &'a str,
    /// Part of the error's message.
    pub message: &'a str,
}

/// The faulty kernels that every backend reports.
const FAULTY: [FaultyKernel<'_>; 6] = [
    FaultyKernel {
        source: "// One.\n// Two.\n@compute @workgroup_size(1) fn f() { y[0] = x[0] }\n",
        entry: "f",
        message: "wgsl:3:",
    },
    FaultyKernel {
        source: "@compute @workgroup_size(1)\nfn f() {\n  y[0] = missing;\n}",
        entry: "f",
        message: "wgsl:3:",
    },
    FaultyKernel { source: DOUBLE, entry: "g", message: "g" },
    FaultyKernel { source: "@compute @workgroup_size(1)\nfn f() {\n  x[0] = 1.0;\n}", entry: "f", message: "x" },
    FaultyKernel { source: "var<private> y: f32;\n@compute @workgroup_size(1) fn f() {}", entry: "f", message: "y" },
    FaultyKernel {
        source: "@compute @workgroup_size(65536)\nfn f() { y[0] = 1.0; }",
        entry: "f",
        message: "Workgroup size",
    },
];

fn builder(source: &str, entry: &str) -> KernelBuilder {
    let builder = Kernel::wgsl(source, entry).named("mine").input("x", DType::F32).output("y", DType::F32);
    builder.scalar("n", ScalarType::U32)
}

fn kernel(source: &str, entry: &str) -> Kernel {
    let x = Tensor::from_vec((0..ELEMENTS).map(|x| x as f32).collect(), [ELEMENTS]).unwrap();
    let call = Kernel::new(&builder(source, entry).build().unwrap()).input(&x).scalar(ELEMENTS as u32);
    call.output(*x.shape()).launch(LaunchSize::over(ELEMENTS, 64))
}

fn run(engine: &mut dyn Engine, kernel: Kernel) -> Result<Vec<Tensor>> {
    <Kernel as Operation>::output(run_one(engine, kernel.into_op()?)?)
}

fn expect_doubled(engine: &mut dyn Engine) {
    let outputs = run(engine, kernel(DOUBLE, "f")).unwrap();
    let expected: Vec<f32> = (0..ELEMENTS).map(|x| 2.0 * x as f32).collect();
    assert_eq!(outputs[0].to_vec::<f32>().unwrap(), expected);
}

/// The error of a faulty kernel has the reason and its line. `more` are faulty kernels that only
/// this backend reports.
pub fn what_does_not_compile_says_why_and_where(backend: &dyn Backend, more: &[FaultyKernel<'_>]) {
    for device in discovered(backend) {
        let mut engine = backend.open(&device, &OpenOptions::default()).unwrap();
        for FaultyKernel { source, entry, message: expected } in FAULTY.iter().chain(more) {
            let error = run(engine.as_mut(), kernel(source, entry)).unwrap_err();
            let Error::KernelSource { kernel, language, message } = &error else { panic!("{source}: {error}") };
            assert_eq!((kernel.as_str(), *language, error.kind()), ("mine", "WGSL", ErrorKind::Caller));
            assert!(message.contains(expected), "expected {expected} in {message}");
        }
        expect_doubled(engine.as_mut());
    }
}

/// A kernel sees its own tensors and no memory behind them.
pub fn indices_end_with_the_tensors(backend: &dyn Backend) {
    let source = "@compute @workgroup_size(BLOCK_X)
fn f(@builtin(global_invocation_id) id: vec3<u32>) {
    y[id.x + 1000000u] = 1.0;
    if id.x == 0u {
        y[0] = f32(arrayLength(&x));
        y[1] = f32(arrayLength(&y));
    }
}";
    for device in discovered(backend) {
        let mut engine = backend.open(&device, &OpenOptions::default()).unwrap();
        let outputs = run(engine.as_mut(), kernel(source, "f")).unwrap();
        let values = outputs[0].to_vec::<f32>().unwrap();
        assert_eq!(values[..2], [ELEMENTS as f32; 2]);
        // An index out of bounds is clamped or dropped: it ends inside the tensor or nowhere.
        assert!(values[2..ELEMENTS - 1].iter().all(|value| *value == 0.0));
        expect_doubled(engine.as_mut());
    }
}

pub fn what_wgsl_has_not_is_refused_before_it_runs(backend: &dyn Backend) {
    for device in discovered(backend) {
        let refused = |kernel: Kernel, expected: &str| match backend.supports(&device, &kernel.into_op().unwrap()) {
            Support::No(reason) => assert!(reason.contains(expected), "{reason}"),
            Support::Yes => panic!("expected: {expected}"),
        };
        let mut block = kernel(DOUBLE, "f");
        block.launch = block.launch.block_bytes(64);
        refused(block, "block memory");
        let mut grid = kernel(DOUBLE, "f");
        grid.launch.grid[0] = 100_000;
        refused(grid, "65535");
        let mut large = kernel(DOUBLE, "f");
        large.outputs[0] = Shape::new([1 << 50]).unwrap();
        refused(large, "an output");
        let wide = builder(DOUBLE, "f").scalar("w", ScalarType::U64).build().unwrap();
        let narrow = kernel(DOUBLE, "f");
        let wide = Kernel::new(&wide).input(&narrow.inputs[0]).scalar(1_u32).scalar(1_u64).output(narrow.outputs[0]);
        refused(wide, "the scalar w of 64 bits");
        let c = Kernel::c("KERNEL f(GLOBAL f32 *y) {}", "f").output("y", DType::F32).build().unwrap();
        refused(Kernel::new(&c).output(Shape::scalar()), "no WGSL form");
    }
}
