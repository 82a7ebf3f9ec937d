//! Checks and measures the ways in which a backend transfers bytes: kinds of staging memory,
//! queues, and numbers of chunks and threads.

use std::time::{Duration, Instant};

use panoply_core::op::compute::Transfer;
use panoply_core::{Item, Operation, Tensor};
use panoply_wgsl_gpu::driver::Transfers;

use crate::transfer::{bytes, there_and_back};
use crate::{TestBackend, TestEngine, engine};

/// Number of times that each transfer is timed; the fastest counts. The first also allocates the
/// memory.
const ROUNDS: usize = 6;
/// The longest time for one transfer.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Further sizes and numbers of chunks, and numbers of threads, that are measured: MiB of a chunk,
/// chunks, and threads that copy.
const SPREADS: [(usize, usize, usize); 8] =
    [(4, 16, 8), (4, 32, 8), (8, 16, 4), (8, 16, 6), (8, 16, 12), (16, 8, 8), (16, 16, 8), (32, 8, 8)];

/// A backend that transfers all bytes in one way.
pub struct TransferWay {
    /// The kinds of memory and the queue, in columns of a fixed width.
    pub name: String,
    /// How the backend splits large uploads.
    pub transfers: Transfers,
    pub backend: Box<dyn TestBackend>,
}

/// The ways to split large uploads that are measured.
pub fn spreads() -> impl Iterator<Item = Transfers> {
    SPREADS.into_iter().map(|(chunk_mib, chunks, copiers_max)| Transfers {
        chunk_bytes: chunk_mib << 20,
        chunks,
        copiers_max,
    })
}

/// Small, odd and large tensors come back whole in each of these ways.
pub fn every_way_brings_the_right_bytes(ways: impl IntoIterator<Item = TransferWay>) {
    for way in ways {
        let Some(mut engine) = engine(&*way.backend) else { return };
        for count in [300, 300_001, (70 << 20) + 3] {
            let sent = bytes(count, count);
            let back = there_and_back(&mut *engine, &sent);
            assert!(back.as_bytes().unwrap() == sent.as_bytes().unwrap(), "{count} bytes: {}", way.name);
        }
    }
}

/// Prints GB/s up and down for each of these ways. `PANOPLY_TRANSFER_MIB=64` takes one size instead
/// of 256 MiB and 1 GiB.
pub fn print_rates(ways: impl IntoIterator<Item = TransferWay>) {
    let asked = std::env::var("PANOPLY_TRANSFER_MIB").ok().and_then(|text| text.parse::<usize>().ok());
    let sizes = asked.map_or(vec![256, 1024], |mib| vec![mib]);
    for way in ways {
        let Some(mut engine) = engine(&*way.backend) else { return };
        for mib in &sizes {
            let measured = measure(&mut *engine, *mib, &way.name);
            let rate = |seconds: f64| (mib << 20) as f64 / seconds / 1e9;
            let (up, down, first_down) = (rate(measured.up), rate(measured.down), rate(measured.first_down));
            let Transfers { chunk_bytes, chunks, copiers_max } = way.transfers;
            let (name, chunk_mib) = (&way.name, chunk_bytes >> 20);
            println!(
                "{mib:5} MiB  {name}  {chunk_mib:2} MiB x {chunks:2}, {copiers_max:2} threads  up {up:6.1} GB/s  down {down:6.1} GB/s (first {first_down:6.1})"
            );
            assert!(up > 0.0 && down > 0.0, "{name}");
        }
    }
}

/// Seconds of transfers to a device and back.
struct TransferSeconds {
    up: f64,
    down: f64,
    first_down: f64,
}

/// Times transfers of one size. The bytes of the first must come back whole.
fn measure(engine: &mut dyn TestEngine, mib: usize, name: &str) -> TransferSeconds {
    let sent = bytes(mib << 20, 1);
    let device = engine.device();
    let mut measured = TransferSeconds { up: f64::INFINITY, down: f64::INFINITY, first_down: 0.0 };
    for round in 0..ROUNDS {
        let (there, up) = timed(engine, Transfer::to_device(&sent, device));
        let (back, down) = timed(engine, Transfer::to_host(&there));
        (measured.up, measured.down) = (measured.up.min(up), measured.down.min(down));
        if round == 0 {
            measured.first_down = down;
            assert!(back.as_bytes().unwrap() == sent.as_bytes().unwrap(), "{name}");
        }
    }
    measured
}

/// Runs a transfer and returns its result with the seconds that it took.
fn timed(engine: &mut dyn TestEngine, op: impl Operation) -> (Tensor, f64) {
    let (mut finished, started) = (Vec::new(), Instant::now());
    engine.submit(&mut vec![Item { token: 1, op: op.into_op().unwrap() }]);
    while engine.poll(&mut finished, WAIT_MAX) > 0 {}
    let took = started.elapsed().as_secs_f64();
    (finished.pop().unwrap().result.unwrap().into_tensor().unwrap(), took)
}
