//! Faults on a device: they give typed errors, and later ops succeed. Each function is a test for
//! one device.

use std::time::Duration;

use panoply_conformance::run_one;
use panoply_core::expr::Expr;
use panoply_core::op::compute::{Gather, Map, MatMul, Metric, Search, Transfer};
use panoply_core::{DType, DeviceInfo, Engine, Error, FinishedOp, Item, Op, OpenOptions, Operation, Support, Tensor};
use panoply_kernels::c::Kernel;

use panoply_c_gpu::arguments::Arguments;
use panoply_c_gpu::driver::Launch;
use panoply_c_gpu::{GpuBackend, GpuEngine};

/// A test for one device.
pub type Test = fn(&dyn GpuBackend, &DeviceInfo);

pub fn open(backend: &dyn GpuBackend, info: &DeviceInfo) -> GpuEngine {
    backend.open_engine(info, &OpenOptions::default()).unwrap()
}

/// Runs an op that must succeed on a working engine.
pub fn assert_works(engine: &mut dyn Engine) {
    let values = Tensor::from_vec(vec![1.0_f32, -2.0, 3.5], [3]).unwrap();
    let sum = run_one(engine, Map::add(&values, &values).into_op().unwrap()).unwrap().into_tensor().unwrap();
    assert_eq!(sum.to_vec::<f32>().unwrap(), [2.0, -4.0, 7.0]);
}

/// Set in the second process that shares the device.
const OTHER: &str = "PANOPLY_TEST_OTHER_PROCESS";

/// Works on a device while another process does the same. The other process runs this test again by
/// its name.
pub fn shares_a_device(backend: &dyn GpuBackend, info: &DeviceInfo, test: &str) {
    let mut engine = open(backend, info);
    assert_works(&mut engine);
    let is_other = std::env::var_os(OTHER).is_some();
    let mut program = std::process::Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", test]).env(OTHER, "1").stdout(std::process::Stdio::null());
    let mut other = (!is_other).then(|| program.spawn().unwrap());
    let (mut rounds, mut other_is_there) = (0, other.is_some());
    while rounds < 50 || other_is_there {
        assert_works(&mut engine);
        rounds += 1;
        other_is_there = other.as_mut().is_some_and(|other| other.try_wait().unwrap().is_none());
    }
    if let Some(mut other) = other {
        assert!(other.wait().unwrap().success(), "{} failed in the other process", info.id);
    }
    assert_works(&mut engine);
}

pub fn out_of_memory_is_typed_and_passes(backend: &dyn GpuBackend, info: &DeviceInfo) {
    let mut engine = open(backend, info);
    let one = Tensor::scalar(1.0_f32).unwrap().reshape([1, 1]).unwrap();
    let huge = one.broadcast_to([1 << 20, 1 << 20]).unwrap();
    let error = run_one(&mut engine, Map::add(&huge, &huge).into_op().unwrap()).unwrap_err();
    let Error::OutOfMemory { place, asked, free, .. } = &error else { panic!("{}: {error}", info.id) };
    assert_eq!((place.as_str(), *asked >= 1 << 42), (info.id.to_string().as_str(), true));
    assert!(*free > 0);
    assert_works(&mut engine);
}

pub fn a_kernel_that_does_not_compile_says_where(backend: &dyn GpuBackend, info: &DeviceInfo) {
    let mut engine = open(backend, info);
    let broken = Kernel::generated("broken", "KERNEL broken(void) { this is not C; }".into(), "broken");
    let error = engine.context_mut().launch(&broken, Launch::new(1, 1), &mut Arguments::new()).unwrap_err();
    let Error::DeviceFault { reason, .. } = &error else { panic!("{}: {error}", info.id) };
    assert!(reason.contains("broken/broken does not compile") && reason.contains("not"), "{reason}");
    assert_works(&mut engine);
}

pub fn a_tensor_of_an_engine_that_is_gone_is_refused(backend: &dyn GpuBackend, info: &DeviceInfo) {
    let mut engine = open(backend, info);
    let values = Tensor::zeros(DType::F32, [1000]).unwrap();
    let mut batch = vec![Item { token: 1, op: Transfer::to_device(&values, info.id).into_op().unwrap() }];
    engine.submit(&mut batch);
    let resident = wait(&mut engine).pop().unwrap().result.unwrap().into_tensor().unwrap();
    let mut second = open(backend, info);
    drop(engine);
    let error = run_one(&mut second, Transfer::to_host(&resident).into_op().unwrap()).unwrap_err();
    assert!(error.to_string().contains("upload it again"), "{error}");
    assert_works(&mut second);
}

pub fn ops_come_back_once(backend: &dyn GpuBackend, info: &DeviceInfo) {
    let mut engine = open(backend, info);
    let values = Tensor::from_vec(vec![1.0_f32; 1000], [1000]).unwrap();
    let good = |token| Item { token, op: Map::add(&values, &values).into_op().unwrap() };
    let elsewhere = Transfer::to_device(&values, "cuda:77".parse().unwrap()).into_op().unwrap();
    let mut batch = vec![good(5), Item { token: 3, op: elsewhere }, good(9), good(1)];
    engine.submit(&mut batch);
    assert!(batch.is_empty());
    let finished = wait(&mut engine);
    let mut outcomes: Vec<(u64, bool)> = finished.iter().map(|done| (done.token, done.result.is_ok())).collect();
    // Ops of different lanes may overtake each other.
    outcomes.sort_unstable();
    assert_eq!(outcomes, [(1, true), (3, false), (5, true), (9, true)]);
    let first = finished.iter().find(|done| done.token == 5).unwrap();
    assert_eq!(first.bytes_moved, 8000);
}

/// Small products, and searches of the same rows, that are submitted together: one launch, and each
/// op has its own result.
pub fn equal_ops_run_together(backend: &dyn GpuBackend, info: &DeviceInfo) {
    let mut engine = open(backend, info);
    let matrix = |seed: usize| {
        let values = (0..35).map(|i| ((i * 7 + seed * 3) % 11) as f32 - 5.0).collect();
        Tensor::from_vec(values, [5, 7]).unwrap()
    };
    let ops: Vec<_> = (0..9).map(|i| MatMul::new(&matrix(i), &matrix(i + 1)).transpose_b()).collect();
    let alone: Vec<Vec<f32>> = ops.iter().map(|op| floats(&mut engine, op.clone().into_op().unwrap())).collect();
    assert_eq!(together(&mut engine, ops.into_iter().map(|op| op.into_op().unwrap()).collect()), alone);

    let rows = Tensor::from_vec((0..700).map(|i| ((i * 13) % 31) as f32).collect(), [100, 7]).unwrap();
    let rows = resident(&mut engine, &rows);
    let query = |i: usize| matrix(i).slice(0, 0, 1 + i % 2).unwrap();
    let ops: Vec<_> = (0..6).map(|i| Search::new(&rows, &query(i), Metric::Dot, 3)).collect();
    let same_size = |ops: &[Search], count: usize| -> Vec<Search> {
        ops.iter().filter(|op| op.queries.shape()[0] == count).cloned().collect()
    };
    for count in [1, 2] {
        let ops = same_size(&ops, count);
        let alone: Vec<Vec<f32>> = ops.iter().map(|op| floats(&mut engine, op.clone().into_op().unwrap())).collect();
        assert_eq!(together(&mut engine, ops.into_iter().map(|op| op.into_op().unwrap()).collect()), alone);
    }
}

/// Maps of the same expression and shapes, from the host and from views on the device: one launch
/// for all.
pub fn equal_maps_are_one_launch(backend: &dyn GpuBackend, info: &DeviceInfo) {
    let mut engine = open(backend, info);
    let values = |i: usize| Tensor::from_vec((0..60).map(|n| (n * 3 + i) as f32 - 9.0).collect(), [5, 12]).unwrap();
    let row = |i: usize| Tensor::from_vec((0..12).map(|n| (n + i) as f32).collect(), [12]).unwrap();
    let all: Vec<Tensor> = (0..20).map(|i| resident(&mut engine, &values(i))).collect();
    // Odd columns are not aligned to a vector, even ones are.
    let part = |i: usize| all[i].slice(1, i % 2, i % 2 + 8).unwrap();
    let kinds: [Vec<Map>; 4] = [
        (0..7).map(|i| Map::add(&values(i), &row(i))).collect(),
        (0..20).map(|i| Map::mul(&part(i), &row(i).slice(0, 0, 8).unwrap())).collect(),
        (0..9).map(|i| Map::relu(&all[i])).collect(),
        (0..3).map(|i| Map::sub(&Tensor::scalar(i as f32).unwrap(), &Tensor::scalar(0.5_f32).unwrap())).collect(),
    ];
    for maps in kinds {
        let ops = || maps.iter().map(|map| map.clone().into_op().unwrap());
        let alone: Vec<Vec<f32>> = ops().map(|op| floats(&mut engine, op)).collect();
        let before = engine.context_mut().launches();
        assert_eq!(together(&mut engine, ops().collect()), alone);
        assert_eq!(engine.context_mut().launches(), before + 1, "{} maps", maps.len());
    }
}

/// One op of a group is wrong, which only shows while the group is queued: the other ops are not
/// affected.
pub fn a_bad_op_fails_alone(backend: &dyn GpuBackend, info: &DeviceInfo) {
    let mut engine = open(backend, info);
    let ones = Tensor::from_vec(vec![1.0_f32; 16], [4, 4]).unwrap();
    let mut gone = open(backend, info);
    let lost = resident(&mut gone, &ones);
    drop(gone);
    for op in [|x: &Tensor| MatMul::new(x, x).into_op(), |x: &Tensor| Map::add(x, x).into_op()] {
        let ours = resident(&mut engine, &ones);
        let expected = floats(&mut engine, op(&ours).unwrap());
        let inputs = [&ours, &ours, &lost, &ours];
        let item = |(tensor, token): (&&Tensor, _)| Item { token, op: op(tensor).unwrap() };
        engine.submit(&mut inputs.iter().zip(0..).map(item).collect());
        let finished = wait(&mut engine);
        let failed: Vec<u64> = finished.iter().filter(|done| done.result.is_err()).map(|done| done.token).collect();
        assert_eq!((finished.len(), failed), (4, vec![2]));
        for done in finished.into_iter().filter(|done| done.token != 2) {
            let sum = done.result.unwrap().into_tensor().unwrap();
            assert_eq!(floats(&mut engine, Transfer::to_host(&sum).into_op().unwrap()), expected);
        }
    }
}

/// Searches of the same rows with different lengths must not be joined.
pub fn searches_with_other_lengths_stay_apart(backend: &dyn GpuBackend, info: &DeviceInfo) {
    let mut engine = open(backend, info);
    let rows = Tensor::from_vec(vec![1.0_f32, 0.0, 0.0, 1.0, 3.0, 4.0], [3, 2]).unwrap();
    let rows = resident(&mut engine, &rows);
    let query = Tensor::from_vec(vec![1.0_f32, 1.0], [1, 2]).unwrap();
    let norms = [[1.0_f32, 1.0, 5.0], [1.0, 2.0, 0.5]].map(|norms| {
        let norms = Tensor::from_slice(&norms, [3]).unwrap();
        resident(&mut engine, &norms)
    });
    let search = |norms: &Tensor| Search::new(&rows, &query, Metric::Cosine, 3).row_norms(norms).into_op().unwrap();
    let ops: Vec<Op> = norms.iter().map(search).collect();
    let alone: Vec<Vec<f32>> = ops.iter().map(|op| floats(&mut engine, op.clone())).collect();
    engine.submit(&mut ops.into_iter().zip(0..).map(|(op, token)| Item { token, op }).collect());
    for (done, alone) in wait(&mut engine).into_iter().zip(alone) {
        let scores = done.result.unwrap().into_pair().unwrap().1;
        assert_eq!(floats(&mut engine, Transfer::to_host(&scores).into_op().unwrap()), alone);
    }
}

/// One thread owns two engines: each works on its own device, in any order of use.
pub fn engines_of_one_thread_do_not_mix(backend: &dyn GpuBackend, info: &DeviceInfo) {
    let (mut first, mut second) = (open(backend, info), open(backend, info));
    let values = Tensor::from_vec(vec![2.0_f32; 1000], [1000]).unwrap();
    let batch = || vec![Item { token: 1, op: Map::mul(&values, &values).into_op().unwrap() }];
    first.submit(&mut batch());
    second.submit(&mut batch());
    for engine in [&mut first, &mut second] {
        let product = wait(engine).pop().unwrap().result.unwrap().into_tensor().unwrap();
        assert_eq!(floats(engine, Transfer::to_host(&product).into_op().unwrap()), [4.0; 1000]);
    }
    assert!(first.health().memory.is_some());
    drop(second);
    assert!(first.health().memory.is_some());
    assert_works(&mut first);
}

/// An allocation shows in the figures of the device's memory, which are measured each time.
pub fn an_allocation_moves_the_memory_in_use(backend: &dyn GpuBackend, info: &DeviceInfo) {
    const BYTES: usize = 64 << 20;
    /// Other tests allocate and free at the same time.
    const ATTEMPTS_MAX: usize = 20;
    let mut engine = open(backend, info);
    let values = Tensor::zeros(DType::U8, [BYTES]).unwrap();
    let mut kept = Vec::new();
    for _ in 0..ATTEMPTS_MAX {
        let before = engine.health().memory.unwrap();
        kept.push(resident(&mut engine, &values));
        let after = engine.health().memory.unwrap();
        assert!(after.available_bytes() <= after.total_bytes());
        let rise = after.used_bytes() as i64 - before.used_bytes() as i64;
        if rise >= BYTES as i64 / 2 {
            assert_eq!(after.total_bytes(), before.total_bytes());
            return println!("{}: {before:?}, then {after:?}", info.id);
        }
    }
    panic!("{}: {BYTES} bytes more did not show in the memory in use", info.id);
}

/// The last tensor of an op's result, on the host.
fn floats(engine: &mut GpuEngine, op: Op) -> Vec<f32> {
    let value = run_one(engine, op).unwrap();
    value.tensors().last().unwrap().to_vec::<f32>().unwrap()
}

fn resident(engine: &mut GpuEngine, tensor: &Tensor) -> Tensor {
    let op = Transfer::to_device(tensor, engine.info().id).into_op().unwrap();
    engine.submit(&mut vec![Item { token: 1, op }]);
    wait(engine).pop().unwrap().result.unwrap().into_tensor().unwrap()
}

/// The last tensors of ops that are submitted as one batch, which must run as one launch.
fn together(engine: &mut GpuEngine, ops: Vec<Op>) -> Vec<Vec<f32>> {
    let count = ops.len() as u32;
    let mut batch = ops.into_iter().zip(0..).map(|(op, token)| Item { token, op }).collect();
    engine.submit(&mut batch);
    let finished = wait(engine);
    assert!(finished.iter().all(|done| done.batch_size == count), "they did not run together");
    let last = |done: FinishedOp| done.result.unwrap().tensors().last().unwrap().clone();
    let outputs: Vec<Tensor> = finished.into_iter().map(last).collect();
    outputs.iter().map(|output| floats(engine, Transfer::to_host(output).into_op().unwrap())).collect()
}

fn wait(engine: &mut GpuEngine) -> Vec<FinishedOp> {
    let mut finished = Vec::new();
    while engine.poll(&mut finished, Duration::from_millis(1)) > 0 {}
    finished
}

/// Maps that differ only in their numbers share one kernel, in any number; interpreted maps too.
pub fn constants_share_a_kernel(backend: &dyn GpuBackend, info: &DeviceInfo) {
    let mut engine = open(backend, info);
    let values = Tensor::from_vec(vec![1.0_f32, -2.0, 3.5], [3]).unwrap();
    let scaled = |by: f64, plus: f64| Map::new(Expr::input(0) * by + plus, &[&values]);
    for number in 0..CONSTANTS {
        let (by, plus) = (f64::from(number) * 0.25, f64::from(number) - 7.0);
        let got = floats(&mut engine, scaled(by, plus).into_op().unwrap());
        let expected: Vec<f32> = [1.0, -2.0, 3.5].iter().map(|x| x * by as f32 + plus as f32).collect();
        assert_eq!(got, expected, "{by} {plus}");
    }
    assert_eq!(engine.context_mut().kernels_loaded(), 1);
    // More constants than a launch has arguments for, and then more nodes than are compiled.
    for (nodes, kernels) in [(40, 2), (400, 3)] {
        for first in [2.0, 0.125] {
            let long = (0..nodes).fold(Expr::input(0), |sum, i| (sum + first) * if i % 2 == 0 { 2.0 } else { 0.5 });
            let expected = (0..nodes).fold(1.0, |sum, i| (sum + first) * if i % 2 == 0 { 2.0 } else { 0.5 });
            let got = floats(&mut engine, Map::new(long, &[&values]).into_op().unwrap());
            assert!((f64::from(got[0]) / expected - 1.0).abs() < 1e-5, "{} is not {expected}", got[0]);
        }
        assert_eq!(engine.context_mut().kernels_loaded(), kernels);
    }
}

/// Number of maps, each with different constants.
const CONSTANTS: u32 = 300;

/// A launch whose sizes do not fit is an error of kind `Caller`, and nothing is launched.
pub fn sizes_beyond_a_kernel_are_refused(backend: &dyn GpuBackend, info: &DeviceInfo) {
    let mut engine = open(backend, info);
    let nothing = Kernel::generated("nothing", "KERNEL nothing(u32 size) { }".into(), "nothing");
    let over = u32::MAX as usize + 1;
    let context = engine.context_mut();
    for (launch, size) in [(Launch::new(1, 1), over), (Launch::new(over, 1), 1), (Launch::grid([1, 65_536, 1], 1), 1)] {
        let error = context.launch(&nothing, launch, &mut Arguments::new().size(size)).unwrap_err();
        assert!(matches!(error, Error::OutOfBounds { .. }), "{error}");
    }
    assert_eq!((context.launches(), context.kernels_loaded()), (0, 0));
    // An op that was not checked for support, on a view with an axis too long for kernels.
    let one = Tensor::zeros(DType::U8, [1, 1]).unwrap();
    let long = one.broadcast_to([1, over]).unwrap().slice(1, 0, over).unwrap();
    let op = Gather::new(&long, &Tensor::from_vec(vec![0_i32], [1]).unwrap(), 1).into_op().unwrap();
    assert_ne!(backend.supports(info, &op), Support::Yes);
    assert_works(&mut engine);
}

/// Kernels compiled ahead are used when an op needs them, also by an engine opened later.
pub fn kernels_are_compiled_ahead(backend: &dyn GpuBackend, info: &DeviceInfo) {
    let matrix = Tensor::from_vec(vec![1.0_f32; 64], [8, 8]).unwrap();
    let ops = [Map::neg(&matrix).into_op().unwrap(), MatMul::new(&matrix, &matrix).into_op().unwrap()];
    let mut told = Vec::new();
    backend.compile_ahead(info, &mut ops.iter(), &mut |done, total| told.push((done, total))).unwrap();
    assert!(told.last().is_some_and(|(done, total)| done == total), "{told:?}");
    let mut engine = open(backend, info);
    let before = engine.context_mut().compile_queue().compiled();
    for op in ops {
        assert_eq!(floats(&mut engine, op).len(), 64);
    }
    assert_eq!(engine.context_mut().compile_queue().compiled(), before);
    assert!(engine.context_mut().kernels_loaded() >= 2);
}
