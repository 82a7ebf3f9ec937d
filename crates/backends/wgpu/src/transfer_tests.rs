//! Checks that every kind of staging memory transfers the right bytes. On request, measures the
//! speed of each.

use panoply_wgsl_gpu_testing::transfer_ways::{self, TransferWay, spreads};

use crate::backend::WgpuBackend;
use crate::quirks::{Memory, TransferWays, WAYS};

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

/// `units-wgpu transfer_rate --ignored --nocapture` prints GB/s up and down for each kind of
/// memory, and for sizes and numbers of chunks and threads; `PANOPLY_TRANSFER_MIB=64` takes one
/// size instead of 256 MiB and 1 GiB.
#[test]
#[ignore = "a measurement, which takes a minute on a GPU and gigabytes of memory"]
fn transfer_rate() {
    let spreads = spreads().map(|transfers| TransferWays { transfers, ..WAYS });
    transfer_ways::print_rates(kinds().chain(spreads).map(way));
}
