//! Checks that every kind of staging memory transfers the right bytes. On request, measures the
//! speed of each.

use std::sync::Arc;
use std::time::Duration;

use panoply_core::op::compute::{Reduce, Transfer};
use panoply_core::{
    Backend, DType, DeviceKind, Engine, FinishedOp, HostBuffer, Item, OpenOptions, Operation, Shape, Tensor,
};
use panoply_wgsl_gpu_testing::transfer_ways::{self, TransferWay, spreads};

use crate::backend::WgpuBackend;
use crate::quirks::{Memory, Sharing, TransferWays, WAYS};

const KINDS: [Memory; 5] = [Memory::Mapped, Memory::Cached, Memory::Uncached, Memory::Device, Memory::Imported];

/// A backend that transfers bytes in these ways.
fn way(ways: TransferWays) -> TransferWay {
    let (name, transfers) = (format!("{:8?}", ways.up), ways.transfers);
    TransferWay { name, transfers, backend: Box::new(WgpuBackend::with_ways(ways)) }
}

fn kinds() -> impl Iterator<Item = TransferWays> {
    KINDS.into_iter().map(|kind| TransferWays { up: kind, down: kind, ..WAYS })
}

#[test]
fn every_kind_of_memory_brings_the_right_bytes() {
    transfer_ways::every_way_brings_the_right_bytes(kinds().map(way));
}

/// An adapter without memory of its own reads host tensors in place, or where the host has put
/// them: nothing is moved. A tensor that was read in place is released when no op needs it any
/// more.
#[test]
fn an_adapter_that_shares_memory_copies_nothing() {
    let numbers: Arc<[f32]> = (0..200_000).map(|place| (place % 100) as f32).collect();
    for (sharing, holds) in [(Sharing::Copied, false), (Sharing::InPlace, true), (Sharing::Mapped, false)] {
        let backend = WgpuBackend::with_ways(TransferWays { sharing, ..WAYS });
        let Ok(devices) = backend.discover() else { return println!("skipped: no adapter") };
        if !matches!(devices[0].kind, DeviceKind::IntegratedGpu | DeviceKind::SoftwareGpu) {
            return println!("skipped: the adapter has memory of its own");
        }
        let mut engine = backend.open(&devices[0], &OpenOptions::default()).unwrap();
        let memory = HostBuffer::from_owner::<f32, _>(Arc::clone(&numbers));
        let tensor = Tensor::from_host(DType::F32, Shape::new([200_000]).unwrap(), memory).unwrap();
        for first in [0, 4] {
            let view = tensor.slice(0, first, 200_000).unwrap();
            let done = finish(&mut *engine, Reduce::sum(&view));
            let copied = if sharing == Sharing::Copied { view.len_bytes() as u64 } else { 0 };
            assert_eq!(done.bytes_moved, copied, "{sharing:?} {first}");
            let total = done.result.unwrap().into_tensor().unwrap();
            let total = finish(&mut *engine, Transfer::to_host(&total)).result.unwrap().into_tensor().unwrap();
            let exact: f64 = numbers[first..].iter().map(|number| f64::from(*number)).sum();
            assert!((f64::from(total.as_slice::<f32>().unwrap()[0]) - exact).abs() <= exact * 1e-5, "{sharing:?}");
        }
        let there = finish(&mut *engine, Transfer::to_device(&tensor, devices[0].id)).result.unwrap();
        drop(tensor);
        assert_eq!(Arc::strong_count(&numbers) > 1, holds, "{sharing:?}");
        let back = finish(&mut *engine, Transfer::to_host(&there.into_tensor().unwrap()));
        assert!(back.result.unwrap().into_tensor().unwrap().as_slice::<f32>().unwrap() == &*numbers, "{sharing:?}");
        drop((back.op, engine));
        assert_eq!(Arc::strong_count(&numbers), 1, "{sharing:?}");
    }
}

fn finish(engine: &mut dyn Engine, op: impl Operation) -> FinishedOp {
    engine.submit(&mut vec![Item { token: 1, op: op.into_op().unwrap() }]);
    let mut finished = Vec::new();
    while engine.poll(&mut finished, Duration::from_secs(1)) > 0 {}
    finished.pop().unwrap()
}

/// `units-wgpu transfer_rate --ignored --nocapture` prints GB/s up and down for each kind of
/// memory, and for sizes and numbers of chunks and threads; `PANOPLY_TRANSFER_MIB=64` takes one
/// size instead of 256 MiB and 1 GiB.
#[test]
#[ignore = "a measurement, which takes a minute on a GPU and gigabytes of memory"]
fn transfer_rate() {
    let spreads = spreads().map(|transfers| TransferWays { transfers, ..WAYS });
    transfer_ways::print_rates(kinds().chain(spreads).map(way));
}
