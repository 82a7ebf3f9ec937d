//! Checks that every kind of staging memory transfers the right bytes. On request, measures the
//! speed of each.

use std::time::{Duration, Instant};

use panoply_core::op::compute::Transfer;
use panoply_core::{Backend, Engine, Item, OpenOptions, Operation, Tensor};
use panoply_wgsl_gpu::driver::Transfers;

use crate::backend::{WgpuBackend, WgpuEngine};
use crate::quirks::{Memory, TransferWays, WAYS};
use panoply_wgsl_gpu_testing::transfer::{bytes, there_and_back};

const KINDS: [Memory; 5] = [Memory::Mapped, Memory::Cached, Memory::Uncached, Memory::Device, Memory::Imported];
/// Number of times that each transfer is timed; the fastest counts. The first also allocates the
/// memory.
const ROUNDS: usize = 6;
/// The longest time for one transfer.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// An engine on the first adapter, or `None` if there is none; then the test prints that it is
/// skipped.
fn engine(ways: TransferWays) -> Option<WgpuEngine> {
    let backend = WgpuBackend::with_ways(ways);
    match backend.discover() {
        Ok(devices) => Some(backend.open_engine(&devices[0], &OpenOptions::default()).unwrap()),
        Err(absence) => {
            eprintln!("skipped: {absence}");
            None
        }
    }
}

#[test]
fn every_kind_of_memory_brings_the_right_bytes() {
    for kind in KINDS {
        let Some(mut engine) = engine(TransferWays { up: kind, down: kind, ..WAYS }) else { return };
        for count in [300, 300_001, (70 << 20) + 3] {
            let sent = bytes(count, count);
            let back = there_and_back(&mut engine, &sent);
            assert!(back.as_bytes().unwrap() == sent.as_bytes().unwrap(), "{count} bytes through {kind:?}");
        }
    }
}

/// `units-wgpu transfer_rate --ignored --nocapture` prints GB/s up and down for each kind of
/// memory, and for sizes and numbers of chunks and threads; `PANOPLY_TRANSFER_MIB=64` takes one
/// size instead of 256 MiB and 1 GiB.
#[test]
#[ignore = "a measurement, which takes a minute on a GPU and gigabytes of memory"]
fn transfer_rate() {
    let asked = std::env::var("PANOPLY_TRANSFER_MIB").ok().and_then(|text| text.parse::<usize>().ok());
    let sizes = asked.map_or(vec![256, 1024], |mib| vec![mib]);
    let spread =
        |chunk_mib: usize, chunks, copiers_max| Transfers { chunk_bytes: chunk_mib << 20, chunks, copiers_max };
    let variants = KINDS.map(|kind| TransferWays { up: kind, down: kind, ..WAYS }).into_iter().chain(
        [(4, 16, 8), (4, 32, 8), (8, 16, 4), (8, 16, 6), (8, 16, 12), (16, 8, 8), (16, 16, 8), (32, 8, 8)]
            .map(|(chunk, chunks, copiers)| TransferWays { transfers: spread(chunk, chunks, copiers), ..WAYS }),
    );
    let mut rates = 0;
    for ways in variants {
        let Some(mut engine) = engine(ways) else { return };
        for mib in &sizes {
            let sent = bytes(mib << 20, 1);
            let device = engine.context().device;
            let (mut up, mut down) = (f64::INFINITY, f64::INFINITY);
            let mut first_down = 0.0;
            for round in 0..ROUNDS {
                let (there, took) = timed(&mut engine, Transfer::to_device(&sent, device));
                up = up.min(took);
                let (back, took) = timed(&mut engine, Transfer::to_host(&there));
                down = down.min(took);
                if round == 0 {
                    first_down = took;
                    assert!(back.as_bytes().unwrap() == sent.as_bytes().unwrap(), "{ways:?}");
                }
            }
            let rate = |seconds: f64| (mib << 20) as f64 / seconds / 1e9;
            let Transfers { chunk_bytes, chunks, copiers_max } = ways.transfers;
            println!(
                "{mib:5} MiB  {:8?}  {:2} MiB x {chunks:2}, {copiers_max:2} threads  up {:6.1} GB/s  down {:6.1} GB/s (first {:6.1})",
                ways.up,
                chunk_bytes >> 20,
                rate(up),
                rate(down),
                rate(first_down)
            );
            rates += usize::from(rate(up) > 0.0 && rate(down) > 0.0);
        }
    }
    assert_eq!(rates, sizes.len() * 13);
}

/// Runs a transfer and returns its result with the seconds that it took.
fn timed(engine: &mut WgpuEngine, op: impl Operation) -> (Tensor, f64) {
    let (mut finished, started) = (Vec::new(), Instant::now());
    engine.submit(&mut vec![Item { token: 1, op: op.into_op().unwrap() }]);
    while engine.poll(&mut finished, WAIT_MAX) > 0 {}
    let took = started.elapsed().as_secs_f64();
    (finished.pop().unwrap().result.unwrap().into_tensor().unwrap(), took)
}
