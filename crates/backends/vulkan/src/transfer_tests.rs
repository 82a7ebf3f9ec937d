//! Checks that every kind of staging memory and every way of copying transfers the right bytes. On
//! request, measures the speed of each.

use std::time::Duration;

use panoply_core::op::compute::{Map, Reduce, Transfer};
use panoply_core::{Backend, Engine, Item, OpenOptions, Operation, Tensor};

use crate::backend::{VulkanBackend, VulkanEngine};
use crate::quirks::{Copies, Memory, TransferWays, WAYS};
use panoply_wgsl_gpu_testing::fault::run;
use panoply_wgsl_gpu_testing::transfer_ways::{self, TransferWay, spreads};

const KINDS: [Memory; 4] = [Memory::Cached, Memory::Uncached, Memory::Device, Memory::Imported];
/// The longest time for one batch.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// An engine on the first device, or `None` if there is none; then the test prints that it is
/// skipped.
fn engine(ways: TransferWays) -> Option<VulkanEngine> {
    let backend = VulkanBackend::with_ways(ways);
    match backend.discover() {
        Ok(devices) => Some(backend.open_engine(&devices[0], &OpenOptions::default()).unwrap()),
        Err(absence) => {
            eprintln!("skipped: {absence}");
            None
        }
    }
}

/// A backend that transfers bytes in these ways.
fn way(ways: TransferWays) -> TransferWay {
    let (name, transfers) = (format!("{:8?} {:7?}", ways.up, ways.copies), ways.transfers);
    TransferWay { name, transfers, backend: Box::new(VulkanBackend::with_ways(ways)) }
}

#[test]
fn every_kind_of_memory_brings_the_right_bytes() {
    let ways = KINDS.map(|kind| TransferWays { up: kind, down: kind, in_place: false, ..WAYS });
    transfer_ways::every_way_brings_the_right_bytes(ways.into_iter().map(way));
}

/// Copies beside the kernels keep their order, on a lane of their own whether or not the device has
/// a queue for it.
#[test]
fn copies_beside_kernels_keep_their_order() {
    for copies in [Copies::Apart, Copies::Inline] {
        let Some(mut engine) = engine(TransferWays { copies, in_place: false, ..WAYS }) else { return };
        let device = engine.context().device;
        let elements = 3 << 20;
        let host = |seed: usize| {
            let numbers: Vec<f32> = (0..elements).map(|place| ((place * 7 + seed) % 1000) as f32).collect();
            Tensor::from_vec(numbers, [elements]).unwrap()
        };
        let there = run(&mut engine, Transfer::to_device(&host(0), device)).unwrap().into_tensor().unwrap();
        // Uploads into memory that was just used, kernels over them, and downloads of memory that
        // is reused at once, all in flight together.
        let mut batch = Vec::new();
        for seed in 1..6 {
            batch.push(Map::add(&there, &host(seed)).into_op().unwrap());
            batch.push(Transfer::to_host(&there).into_op().unwrap());
            batch.push(Reduce::sum(&host(seed)).into_op().unwrap());
        }
        let mut items: Vec<Item> = batch.into_iter().zip(0..).map(|(op, token)| Item { token, op }).collect();
        engine.submit(&mut items);
        let mut finished = Vec::new();
        while engine.poll(&mut finished, WAIT_MAX) > 0 {}
        assert_eq!(finished.len(), 15);
        let first = host(0).to_vec::<f32>().unwrap();
        for (round, results) in finished.chunks(3).enumerate() {
            let seed = round + 1;
            let [sum, back, total] = results else { panic!("three ops each") };
            let tensor = |done: &panoply_core::FinishedOp| done.result.clone().unwrap().into_tensor().unwrap();
            let sums = run(&mut engine, Transfer::to_host(&tensor(sum))).unwrap().into_tensor().unwrap();
            let other = host(seed).to_vec::<f32>().unwrap();
            let expected: Vec<f32> = first.iter().zip(&other).map(|(a, b)| a + b).collect();
            assert!(sums.to_vec::<f32>().unwrap() == expected, "{copies:?} {seed}");
            assert!(tensor(back).to_vec::<f32>().unwrap() == first, "{copies:?} {seed}");
            let total = run(&mut engine, Transfer::to_host(&tensor(total))).unwrap().into_tensor().unwrap();
            let exact: f64 = other.iter().map(|number| f64::from(*number)).sum();
            let got = f64::from(total.to_vec::<f32>().unwrap()[0]);
            assert!((got - exact).abs() <= exact * 1e-5, "{copies:?} {seed}: {got}, not {exact}");
        }
    }
}

/// A host tensor is read in place, and released when it is not needed any more.
#[test]
fn tensors_of_the_host_are_read_in_place() {
    let Some(mut engine) = engine(WAYS) else { return };
    if !engine.context().driver.gpu.adapter().has.is_unified || engine.context().driver.gpu.import.is_none() {
        return eprintln!("skipped: the device does not share the host's memory");
    }
    let numbers: std::sync::Arc<[f32]> = (0..200_000).map(|place| (place % 100) as f32).collect();
    let whole = Tensor::from_host(
        panoply_core::DType::F32,
        panoply_core::Shape::new([200_000]).unwrap(),
        panoply_core::HostBuffer::from_owner(std::sync::Arc::clone(&numbers)),
    );
    let whole = whole.unwrap();
    // Views that begin at the start of a vector, and in the middle of one.
    for first in [0, 4, 13] {
        let view = whole.slice(0, first, 200_000).unwrap();
        let total = run(&mut engine, Reduce::sum(&view)).unwrap().into_tensor().unwrap();
        let total = run(&mut engine, Transfer::to_host(&total)).unwrap().into_tensor().unwrap();
        let exact: f64 = numbers[first..].iter().map(|number| f64::from(*number)).sum();
        assert!((f64::from(total.to_vec::<f32>().unwrap()[0]) - exact).abs() <= exact * 1e-5, "{first}");
    }
    let device = engine.context().device;
    let there = run(&mut engine, Transfer::to_device(&whole, device)).unwrap().into_tensor().unwrap();
    drop(whole);
    assert!(std::sync::Arc::strong_count(&numbers) > 1, "the device reads the numbers where they are");
    let back = run(&mut engine, Transfer::to_host(&there)).unwrap().into_tensor().unwrap();
    assert!(back.to_vec::<f32>().unwrap() == *numbers);
    drop(there);
    let small = Tensor::from_vec(vec![1.0_f32; 4], [4]).unwrap();
    for _ in 0..3 {
        run(&mut engine, Map::neg(&small)).unwrap();
    }
    engine.memory();
    panoply_wgsl_gpu::Driver::look(&*engine.context().driver);
    assert_eq!(std::sync::Arc::strong_count(&numbers), 1, "nobody keeps them any more");
}

/// `units-vulkan transfer_rate --ignored --nocapture` prints GB/s up and down for each kind of
/// memory, and for sizes and numbers of chunks and threads; `PANOPLY_TRANSFER_MIB=64` takes one
/// size instead of 256 MiB and 1 GiB.
#[test]
#[ignore = "a measurement, which takes a minute on a GPU and gigabytes of memory"]
fn transfer_rate() {
    let plain = TransferWays { in_place: false, ..WAYS };
    let queues = [Copies::Inline, Copies::Beside].into_iter();
    let kinds = queues.flat_map(|copies| KINDS.map(|kind| TransferWays { up: kind, down: kind, copies, ..plain }));
    let spreads = spreads().map(|transfers| TransferWays { up: Memory::Imported, transfers, ..plain });
    transfer_ways::print_rates(kinds.chain(spreads).map(way));
}
