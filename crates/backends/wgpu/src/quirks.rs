//! What is known about certain adapters and drivers, as data: what goes wrong, and which way bytes cross fastest.

use panoply_wgsl_gpu::driver::Transfers;
use panoply_wgsl_gpu::quirks::Quirk;

/// Everything known to go wrong. Each entry was seen on the adapter that it names.
pub const QUIRKS: &[Quirk] = &[];

/// Memory for bytes on their way between host and device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// wgpu's own: mapped and unmapped each time.
    Mapped,
    /// The host's memory as Vulkan hands it out, cached by the CPU: fast to read, and to write.
    Cached,
    /// The host's memory, not cached: writes are combined, reads are slow.
    Uncached,
    /// The device's memory, which the host writes over the bus.
    Device,
    /// Huge pages of our own that Vulkan imports.
    Imported,
}

/// How bytes cross.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ways {
    /// To the device.
    pub up: Memory,
    /// To the host.
    pub down: Memory,
    /// How large uploads are spread.
    pub transfers: Transfers,
}

/// What suits most: cached memory both ways, as the CUDA backend's pinned memory is.
pub const WAYS: Ways = Ways {
    up: Memory::Cached,
    down: Memory::Cached,
    transfers: Transfers { chunk_bytes: 8 << 20, chunks: 16, copiers_max: 8 },
};

/// The ways of one adapter with one driver, where others were measured to be faster.
#[derive(Clone, Copy, Debug)]
pub struct KnownWays {
    /// Part of the adapter's name; empty for all.
    pub adapter: &'static str,
    /// Part of the driver's name and version; empty for all.
    pub driver: &'static str,
    /// How bytes cross.
    pub ways: Ways,
    /// The figures.
    pub reason: &'static str,
}

/// What was measured, by the test `transfer_rate`.
pub const KNOWN_WAYS: &[KnownWays] = &[KnownWays {
    adapter: "NVIDIA",
    driver: "",
    ways: Ways {
        up: Memory::Imported,
        down: Memory::Cached,
        transfers: Transfers { chunk_bytes: 4 << 20, chunks: 16, copiers_max: 8 },
    },
    reason: "H200, driver 580: 1 GiB up 43.7 GB/s imported, 39.5 cached, 31.9 mapped by wgpu; down 52.0, 50.3 and 5.1",
}];

/// How bytes cross to this adapter and back.
pub(crate) fn ways(known: &[KnownWays], adapter: &str, driver: &str) -> Ways {
    let applies = |known: &&KnownWays| adapter.contains(known.adapter) && driver.contains(known.driver);
    known.iter().find(applies).map_or(WAYS, |known| known.ways)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_ways_are_those_of_their_adapter_and_driver() {
        let fast = Ways { up: Memory::Uncached, ..WAYS };
        let known = [KnownWays { adapter: "Example", driver: "1.2", ways: fast, reason: "40 GB/s instead of 30" }];
        assert_eq!(ways(&known, "Example GPU", "driver 1.2.3"), fast);
        assert_eq!(ways(&known, "Example GPU", "driver 1.3"), WAYS);
        assert_eq!(ways(&known, "Other GPU", "driver 1.2.3"), WAYS);
    }
}
