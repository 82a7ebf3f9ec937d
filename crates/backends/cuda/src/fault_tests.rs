//! What goes wrong on a device: typed errors, and later ops succeed. On the emulated device, and on a GPU where there is
//! one.

use std::time::Duration;

use panoply_conformance::run_one;
use panoply_core::op::compute::{Map, MatMul, Metric, Search, Transfer};
use panoply_core::{
    Api, Backend, DType, DeviceInfo, Engine, Error, Finished, Item, Op, OpenOptions, Operation, Tensor,
};
use panoply_kernels::c::Kernel;

use crate::CudaBackend;
use crate::context::Arguments;
use crate::driver::Launch;
use crate::engine::CudaEngine;

/// Every device that the tests can run on, and how it is opened. Says why one is left out.
fn devices() -> Vec<(CudaBackend, DeviceInfo)> {
    let mut devices = Vec::new();
    match CudaBackend::emulated() {
        Ok(emulated) => devices.extend(emulated.discover().unwrap().into_iter().map(|info| (emulated.clone(), info))),
        Err(absence) => println!("skipped: the emulated device: {absence}"),
    }
    match CudaBackend::new().discover() {
        Ok(found) => devices.extend(found.into_iter().map(|info| (CudaBackend::new(), info))),
        Err(absence) => println!("skipped: GPUs: {absence}"),
    }
    devices
}

fn open(backend: &CudaBackend, info: &DeviceInfo) -> CudaEngine {
    backend.open_engine(info, &OpenOptions::default()).unwrap()
}

/// An op that must succeed on an engine that works.
fn assert_works(engine: &mut dyn Engine) {
    let values = Tensor::from_vec(vec![1.0_f32, -2.0, 3.5], [3]).unwrap();
    let sum = run_one(engine, Map::add(&values, &values).into_op().unwrap()).unwrap().into_tensor().unwrap();
    assert_eq!(sum.to_vec::<f32>().unwrap(), [2.0, -4.0, 7.0]);
}

#[test]
fn out_of_memory_is_typed_and_passes() {
    for (backend, info) in devices() {
        let mut engine = open(&backend, &info);
        let one = Tensor::scalar(1.0_f32).unwrap().reshape([1, 1]).unwrap();
        let huge = one.broadcast_to([1 << 20, 1 << 20]).unwrap();
        let error = run_one(&mut engine, Map::add(&huge, &huge).into_op().unwrap()).unwrap_err();
        let Error::OutOfMemory { place, asked, free, .. } = &error else { panic!("{}: {error}", info.id) };
        assert_eq!((place.as_str(), *asked >= 1 << 42), (info.id.to_string().as_str(), true));
        assert!(*free > 0);
        assert_works(&mut engine);
    }
}

#[test]
fn a_kernel_that_does_not_compile_says_where() {
    for (backend, info) in devices() {
        let mut engine = open(&backend, &info);
        let broken = Kernel::generated("broken", "KERNEL broken(void) { this is not C; }".into(), "broken");
        let error = engine.context_mut().launch(&broken, Launch::new(1, 1), &mut Arguments::new()).unwrap_err();
        let Error::DeviceFault { reason, .. } = &error else { panic!("{}: {error}", info.id) };
        assert!(reason.contains("broken/broken does not compile") && reason.contains("not"), "{reason}");
        assert_works(&mut engine);
    }
}

#[test]
fn a_tensor_of_an_engine_that_is_gone_is_refused() {
    for (backend, info) in devices() {
        let mut engine = open(&backend, &info);
        let values = Tensor::zeros(DType::F32, [1000]).unwrap();
        let mut batch = vec![Item { token: 1, op: Transfer::to_device(&values, info.id).into_op().unwrap() }];
        engine.submit(&mut batch);
        let resident = wait(&mut engine).pop().unwrap().result.unwrap().into_tensor().unwrap();
        let mut second = open(&backend, &info);
        drop(engine);
        let error = run_one(&mut second, Transfer::to_host(&resident).into_op().unwrap()).unwrap_err();
        assert!(error.to_string().contains("upload it again"), "{error}");
        assert_works(&mut second);
    }
}

/// Set in the process that spoils its GPU.
const SPOIL: &str = "PANOPLY_TEST_SPOIL";

/// An access to memory that is not there loses the context: every op that follows is answered so, and opening the device
/// again works or says why not. The driver holds a process responsible for good, so this one has a process of its own.
#[test]
fn an_illegal_address_loses_the_device() {
    if let Err(absence) = CudaBackend::new().discover() {
        return println!("skipped: {absence}");
    }
    let this = std::env::current_exe().unwrap();
    let name = "fault_tests::spoil_the_device";
    let child =
        std::process::Command::new(this).args(["--exact", name, "--nocapture"]).env(SPOIL, "1").output().unwrap();
    let told = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && told.contains("spoilt:"), "{told}{}", String::from_utf8_lossy(&child.stderr));
}

#[test]
fn spoil_the_device() {
    if std::env::var_os(SPOIL).is_none() {
        return println!("skipped: done in a process of its own by an_illegal_address_loses_the_device");
    }
    let backend = CudaBackend::new();
    let info = backend.discover().unwrap().remove(0);
    let mut engine = open(&backend, &info);
    let wild = Kernel::generated("wild", "KERNEL wild(GLOBAL u32 *p) { *p = 1u; }".into(), "wild");
    engine.context_mut().launch(&wild, Launch::new(1, 1), &mut Arguments::new().address(0x10)).unwrap();
    let values = Tensor::from_vec(vec![1.0_f32], [1]).unwrap();
    for _ in 0..2 {
        let error = run_one(&mut engine, Map::add(&values, &values).into_op().unwrap()).unwrap_err();
        assert!(matches!(error, Error::DeviceLost { .. }), "{error}");
    }
    assert!(engine.health().fault.is_some());
    drop(engine);
    match backend.open_engine(&info, &OpenOptions::default()) {
        Ok(mut again) => {
            assert_works(&mut again);
            println!("spoilt: and opened again");
        }
        Err(error) => {
            assert!(matches!(error, Error::DeviceUnavailable { .. }), "{error}");
            println!("spoilt: {error}");
        }
    }
}

/// Set in the process whose kernel uses an address that does not fit its type.
const MISALIGN: &str = "PANOPLY_TEST_MISALIGN";

/// x86 reads from any address, GPUs do not: the emulated device is as strict as they are, and ends the process.
#[test]
fn the_emulated_device_finds_misaligned_addresses() {
    let this = std::env::current_exe().unwrap();
    let name = "fault_tests::read_a_misaligned_address";
    let child =
        std::process::Command::new(this).args(["--exact", name, "--nocapture"]).env(MISALIGN, "1").output().unwrap();
    let told = String::from_utf8_lossy(&child.stdout);
    if told.contains("skipped: the emulated device") {
        return println!("{told}");
    }
    let complaint = String::from_utf8_lossy(&child.stderr);
    assert!(told.contains("aligned: fine") && complaint.contains("misaligned: a thread of block 0,0,0"), "{complaint}");
}

#[test]
fn read_a_misaligned_address() {
    if std::env::var_os(MISALIGN).is_none() {
        return println!("skipped: done in a process of its own by the_emulated_device_finds_misaligned_addresses");
    }
    let text = "KERNEL wide(GLOBAL u32 *p) { *(GLOBAL u32x4 *)p = *(GLOBAL const u32x4 *)(p + 4); }";
    let wide = Kernel::generated("wide", text.into(), "wide");
    for (backend, info) in devices().into_iter().filter(|(_, info)| info.id.api == Api::SIMULATED) {
        let mut engine = open(&backend, &info);
        let context = engine.context_mut();
        let address = context.scratch(256).unwrap();
        context.launch(&wide, Launch::new(1, 1), &mut Arguments::new().address(address)).unwrap();
        println!("aligned: fine");
        let _ = context.launch(&wide, Launch::new(1, 1), &mut Arguments::new().address(address + 4));
    }
}

#[test]
fn ops_come_back_once_and_in_order() {
    for (backend, info) in devices() {
        let mut engine = open(&backend, &info);
        let values = Tensor::from_vec(vec![1.0_f32; 1000], [1000]).unwrap();
        let good = |token| Item { token, op: Map::add(&values, &values).into_op().unwrap() };
        let elsewhere = Transfer::to_device(&values, "cuda:77".parse().unwrap()).into_op().unwrap();
        let mut batch = vec![good(5), Item { token: 3, op: elsewhere }, good(9), good(1)];
        engine.submit(&mut batch);
        assert!(batch.is_empty());
        let finished = wait(&mut engine);
        let outcomes: Vec<(u64, bool)> = finished.iter().map(|done| (done.token, done.result.is_ok())).collect();
        assert_eq!(outcomes, [(5, true), (3, false), (9, true), (1, true)]);
        assert_eq!(finished[0].bytes_moved, 8000);
    }
}

/// Callers that multiply small matrices, or search the same rows, at the same time: one launch, and each its own answer.
#[test]
fn equal_ops_run_together() {
    for (backend, info) in devices() {
        let mut engine = open(&backend, &info);
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
            let alone: Vec<Vec<f32>> =
                ops.iter().map(|op| floats(&mut engine, op.clone().into_op().unwrap())).collect();
            assert_eq!(together(&mut engine, ops.into_iter().map(|op| op.into_op().unwrap()).collect()), alone);
        }
    }
}

/// Maps of the same expression and shapes, from the host and from views on the device: one launch for all.
#[test]
fn equal_maps_are_one_launch() {
    for (backend, info) in devices() {
        let mut engine = open(&backend, &info);
        let values = |i: usize| Tensor::from_vec((0..60).map(|n| (n * 3 + i) as f32 - 9.0).collect(), [5, 12]).unwrap();
        let row = |i: usize| Tensor::from_vec((0..12).map(|n| (n + i) as f32).collect(), [12]).unwrap();
        let all: Vec<Tensor> = (0..20).map(|i| resident(&mut engine, &values(i))).collect();
        // Odd columns lie on no wide boundary, even ones on one.
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
            let before = engine.context_mut().launches;
            assert_eq!(together(&mut engine, ops().collect()), alone);
            assert_eq!(engine.context_mut().launches, before + 1, "{} maps", maps.len());
        }
    }
}

/// One op of a group is wrong, which only shows while the group is queued: the others do not suffer for it.
#[test]
fn a_bad_op_fails_alone() {
    for (backend, info) in devices() {
        let mut engine = open(&backend, &info);
        let ones = Tensor::from_vec(vec![1.0_f32; 16], [4, 4]).unwrap();
        let mut gone = open(&backend, &info);
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
}

/// Lengths that differ, of rows that do not: such searches are not one.
#[test]
fn searches_with_other_lengths_stay_apart() {
    for (backend, info) in devices() {
        let mut engine = open(&backend, &info);
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
}

/// A thread that owns two engines: each works on its own device, whichever was used last.
#[test]
fn engines_of_one_thread_do_not_mix() {
    for (backend, info) in devices() {
        let (mut first, mut second) = (open(&backend, &info), open(&backend, &info));
        let values = Tensor::from_vec(vec![2.0_f32; 1000], [1000]).unwrap();
        let batch = || vec![Item { token: 1, op: Map::mul(&values, &values).into_op().unwrap() }];
        first.submit(&mut batch());
        second.submit(&mut batch());
        for engine in [&mut first, &mut second] {
            let product = wait(engine).pop().unwrap().result.unwrap().into_tensor().unwrap();
            assert_eq!(floats(engine, Transfer::to_host(&product).into_op().unwrap()), [4.0; 1000]);
        }
        assert!(first.health().memory_percent.is_some());
        drop(second);
        assert!(first.health().memory_percent.is_some());
        assert_works(&mut first);
    }
}

/// The last tensor of an op's answer, on the host.
fn floats(engine: &mut CudaEngine, op: Op) -> Vec<f32> {
    let value = run_one(engine, op).unwrap();
    value.tensors().last().unwrap().to_vec::<f32>().unwrap()
}

fn resident(engine: &mut CudaEngine, tensor: &Tensor) -> Tensor {
    let op = Transfer::to_device(tensor, engine.info().id).into_op().unwrap();
    engine.submit(&mut vec![Item { token: 1, op }]);
    wait(engine).pop().unwrap().result.unwrap().into_tensor().unwrap()
}

/// The same of ops that are submitted as one batch, which must run as one.
fn together(engine: &mut CudaEngine, ops: Vec<Op>) -> Vec<Vec<f32>> {
    let count = ops.len() as u32;
    let mut batch = ops.into_iter().zip(0..).map(|(op, token)| Item { token, op }).collect();
    engine.submit(&mut batch);
    let finished = wait(engine);
    assert!(finished.iter().all(|done| done.batch_size == count), "they did not run together");
    let last = |done: Finished| done.result.unwrap().tensors().last().unwrap().clone();
    let outputs: Vec<Tensor> = finished.into_iter().map(last).collect();
    outputs.iter().map(|output| floats(engine, Transfer::to_host(output).into_op().unwrap())).collect()
}

fn wait(engine: &mut CudaEngine) -> Vec<Finished> {
    let mut finished = Vec::new();
    while engine.poll(&mut finished, Duration::from_millis(1)) > 0 {}
    finished
}
