//! Memory that callers ask for, the limits of the pools, and devices that read host memory in
//! place.

#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::time::Duration;

use panoply_c_gpu::{EmulatedBackend, GpuBackend, GpuEngine};
use panoply_core::op::compute::{Map, Transfer};
use panoply_core::{
    Backend, DType, DeviceInfo, Engine, Error, FinishedOp, Item, MemoryLimits, OpenOptions, Operation, Shape, Tensor,
};

const ELEMENTS: usize = 100_000;
const BYTES: usize = 4 * ELEMENTS;

/// The backend and its device. If there is none, prints the reason.
fn backend(integrated: bool) -> Option<(EmulatedBackend, DeviceInfo)> {
    let backend = EmulatedBackend::new().map(|backend| if integrated { backend.integrated() } else { backend });
    let backend = backend.inspect_err(|absence| println!("skipped: {absence}")).ok()?;
    let device = backend.discover().unwrap().remove(0);
    Some((backend, device))
}

fn open(memory: MemoryLimits, integrated: bool) -> Option<GpuEngine> {
    let (backend, device) = backend(integrated)?;
    Some(backend.open_engine(&device, &OpenOptions { memory, ..OpenOptions::default() }).unwrap())
}

fn finish(engine: &mut GpuEngine, op: impl Operation) -> FinishedOp {
    engine.submit(&mut vec![Item { token: 1, op: op.into_op().unwrap() }]);
    let mut finished = Vec::new();
    while engine.poll(&mut finished, Duration::from_secs(1)) > 0 {}
    finished.pop().unwrap()
}

fn run(engine: &mut GpuEngine, op: impl Operation) -> Tensor {
    finish(engine, op).result.unwrap().into_tensor().unwrap()
}

/// A tensor in pinned memory of the engine.
fn pinned(engine: &mut GpuEngine, value: f32) -> Tensor {
    let mut memory = engine.pinned(BYTES).unwrap();
    memory.bytes_mut().chunks_exact_mut(4).for_each(|element| element.copy_from_slice(&value.to_le_bytes()));
    Tensor::from_host(DType::F32, Shape::new([ELEMENTS]).unwrap(), memory.freeze()).unwrap()
}

#[test]
fn an_integrated_device_copies_nothing_that_is_pinned() {
    for (integrated, copied) in [(false, 2 * BYTES as u64), (true, 0)] {
        let Some(mut engine) = open(MemoryLimits::default(), integrated) else { return };
        let (one, two) = (pinned(&mut engine, 1.5), pinned(&mut engine, 2.0));
        let done = finish(&mut engine, Map::mul(&one, &two));
        assert_eq!(done.bytes_moved, copied, "integrated: {integrated}");
        let product = done.result.unwrap().into_tensor().unwrap();
        assert_eq!(run(&mut engine, Transfer::to_host(&product)).as_slice::<f32>().unwrap(), [3.0; ELEMENTS]);
        // The op has given the memory back, so it can be written again.
        let (mut one, held) = (one, done.op);
        assert!(one.as_mut_slice::<f32>().is_err(), "the op still holds it");
        drop(held);
        one.as_mut_slice::<f32>().unwrap()[0] = 7.0;
        assert_eq!(run(&mut engine, Transfer::to_host(&one)).as_slice::<f32>().unwrap()[..2], [7.0, 1.5]);
        // Ordinary memory may be anything, and is copied by both.
        let ordinary = Tensor::from_vec(vec![1.0_f32; ELEMENTS], [ELEMENTS]).unwrap();
        assert_eq!(finish(&mut engine, Map::neg(&ordinary)).bytes_moved, BYTES as u64);
    }
}

#[test]
fn zeroes_are_filled_in_and_not_copied() {
    let Some(mut engine) = open(MemoryLimits::default(), false) else { return };
    let device = engine.info().id;
    let zeros = Tensor::zeros(DType::F32, [] as [usize; 0]).unwrap().broadcast_to([100, 1000]).unwrap();
    let done = finish(&mut engine, Transfer::to_device(&zeros, device));
    assert_eq!(done.bytes_moved, 0);
    let there = done.result.unwrap().into_tensor().unwrap();
    assert!(there.is_contiguous());
    assert_eq!(run(&mut engine, Transfer::to_host(&there)).as_slice::<f32>().unwrap(), [0.0; ELEMENTS]);
    let halves = Tensor::scalar(0.5_f32).unwrap().broadcast_to([10]).unwrap();
    let there = run(&mut engine, Transfer::to_device(&halves, device));
    assert_eq!(run(&mut engine, Transfer::to_host(&there)).as_slice::<f32>().unwrap(), [0.5; 10]);
}

/// Bytes that the engine caches after it has run an op on large tensors, and brought one back.
fn cached_after_work(memory: MemoryLimits) -> Option<(GpuEngine, u64)> {
    let mut engine = open(memory, false)?;
    let ordinary = Tensor::from_vec(vec![1.0_f32; ELEMENTS], [ELEMENTS]).unwrap();
    let negated = run(&mut engine, Map::neg(&ordinary));
    drop((run(&mut engine, Transfer::to_host(&negated)), negated));
    let cached = engine.memory().cached_bytes;
    Some((engine, cached))
}

#[test]
fn each_pool_keeps_what_its_limit_permits_and_trimming_frees_it() {
    let limits = MemoryLimits::default();
    let Some((mut engine, all)) = cached_after_work(limits) else { return };
    let device = MemoryLimits { pool_bytes_max: Some(0), ..limits };
    let pinned = MemoryLimits { pinned_bytes_max: Some(0), ..limits };
    let (_, only_pinned) = cached_after_work(device).unwrap();
    let (_, only_device) = cached_after_work(pinned).unwrap();
    assert!(only_pinned >= BYTES as u64 && only_device >= BYTES as u64);
    assert_eq!(all, only_pinned + only_device);
    let none = MemoryLimits { pool_bytes_max: Some(0), pinned_bytes_max: Some(0), ..limits };
    assert_eq!(cached_after_work(none).unwrap().1, 0);
    engine.trim(usize::MAX);
    assert_eq!(engine.memory().cached_bytes, all);
    engine.trim(0);
    assert_eq!(engine.memory().cached_bytes, 0);
}

#[test]
fn an_op_beyond_the_devices_limit_is_out_of_memory_and_the_next_one_runs() {
    let memory = MemoryLimits { device_bytes_max: Some(4 * BYTES), ..MemoryLimits::default() };
    let Some(mut engine) = open(memory, false) else { return };
    let device = engine.info().id;
    let large = Tensor::from_vec(vec![1.0_f32; 8 * ELEMENTS], [8 * ELEMENTS]).unwrap();
    let refused = finish(&mut engine, Transfer::to_device(&large, device)).result.unwrap_err();
    let Error::OutOfMemory { place, asked, free, largest } = &refused else { panic!("{refused}") };
    assert_eq!(*place, device.to_string());
    assert!(*asked >= 8 * BYTES as u64 && *free <= 4 * BYTES as u64 && largest == free, "{refused}");
    let small = Tensor::from_vec(vec![1.0_f32; ELEMENTS], [ELEMENTS]).unwrap();
    let there = run(&mut engine, Transfer::to_device(&small, device));
    assert_eq!(run(&mut engine, Transfer::to_host(&there)).as_slice::<f32>().unwrap(), [1.0; ELEMENTS]);
}
