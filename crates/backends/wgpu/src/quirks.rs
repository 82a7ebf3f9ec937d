//! Facts about certain adapters and drivers, as data: faults, and the fastest ways to transfer
//! bytes.

use panoply_wgsl_gpu::driver::Transfers;
use panoply_wgsl_gpu::quirks::{MeasuredWays, Quirk};

/// All known faults. Each entry was seen on the adapter that it names.
pub const QUIRKS: &[Quirk] = &[];

/// The kinds of memory for bytes on their way between host and device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// wgpu's own, mapped and unmapped each time.
    Mapped,
    /// Host memory from Vulkan, cached by the CPU: fast to read and to write.
    Cached,
    /// Host memory, not cached: writes are combined, reads are slow.
    Uncached,
    /// Device memory, which the host writes over the bus.
    Device,
    /// Huge pages of this process that Vulkan imports.
    Imported,
}

/// How kernels read host tensors on an adapter that shares memory with the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// They do not: the bytes are copied to staging memory, and from there to the device's.
    Copied,
    /// In place through Vulkan; on other APIs as [`Sharing::Mapped`].
    InPlace,
    /// In buffers that the host maps: it copies the bytes there, and the device copies nothing.
    Mapped,
}

/// The ways in which bytes cross between host and device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferWays {
    /// Staging memory for uploads.
    pub up: Memory,
    /// Staging memory for downloads.
    pub down: Memory,
    /// How large uploads are split into chunks.
    pub transfers: Transfers,
    /// How kernels read host tensors, if the adapter has no memory of its own.
    pub sharing: Sharing,
}

/// The default ways: cached memory in both directions, like the pinned memory of the CUDA backend.
pub const WAYS: TransferWays = TransferWays {
    up: Memory::Cached,
    down: Memory::Cached,
    transfers: Transfers { chunk_bytes: 8 << 20, chunks: 16, copiers_max: 8 },
    sharing: Sharing::InPlace,
};

/// The known ways, measured by the test `transfer_rate`.
pub const KNOWN_WAYS: &[MeasuredWays<TransferWays>] = &[MeasuredWays {
    adapter: "NVIDIA",
    driver: "",
    ways: TransferWays {
        up: Memory::Imported,
        down: Memory::Cached,
        transfers: Transfers { chunk_bytes: 4 << 20, chunks: 16, copiers_max: 8 },
        sharing: Sharing::InPlace,
    },
    reason: "H200, driver 580: 1 GiB up 43.7 GB/s imported, 39.5 cached, 31.9 mapped by wgpu; down 52.0, 50.3 and 5.1",
}];
