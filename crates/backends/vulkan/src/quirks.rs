//! Facts about certain devices and drivers, as data: faults, limits that do not hold, and the
//! fastest ways to transfer bytes.

use panoply_wgsl_gpu::driver::Transfers;
use panoply_wgsl_gpu::quirks::{MeasuredWays, Quirk};

/// All known faults. Each entry was seen on the device that it names.
pub const QUIRKS: &[Quirk] = &[];

/// The limits of a device for kernels and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most bytes of a buffer that one kernel sees.
    pub binding_bytes_max: u64,
    /// The most bytes of a buffer.
    pub buffer_bytes_max: u64,
    /// The most bytes of workgroup memory.
    pub workgroup_bytes_max: u32,
    /// The most invocations of a workgroup.
    pub invocations_max: u32,
    /// The most storage buffers of one kernel.
    pub buffers_max: u32,
    /// The most bytes of parameters that a dispatch carries.
    pub immediate_bytes_max: u32,
}

/// No limit at all.
pub const UNLIMITED: Limits = Limits {
    binding_bytes_max: u64::MAX,
    buffer_bytes_max: u64::MAX,
    workgroup_bytes_max: u32::MAX,
    invocations_max: u32::MAX,
    buffers_max: u32::MAX,
    immediate_bytes_max: u32::MAX,
};

impl Limits {
    /// The smaller value of each limit.
    pub(crate) fn within(self, other: Limits) -> Limits {
        Limits {
            binding_bytes_max: self.binding_bytes_max.min(other.binding_bytes_max),
            buffer_bytes_max: self.buffer_bytes_max.min(other.buffer_bytes_max),
            workgroup_bytes_max: self.workgroup_bytes_max.min(other.workgroup_bytes_max),
            invocations_max: self.invocations_max.min(other.invocations_max),
            buffers_max: self.buffers_max.min(other.buffers_max),
            immediate_bytes_max: self.immediate_bytes_max.min(other.immediate_bytes_max),
        }
    }
}

/// Limits that are lower than one device with one driver claims.
#[derive(Clone, Copy, Debug)]
pub struct KnownLimits {
    /// Part of the device's name; empty for all.
    pub adapter: &'static str,
    /// Part of the driver's name and version; empty for all.
    pub driver: &'static str,
    /// The limits that really hold; [`UNLIMITED`] for those whose claim holds.
    pub limits: Limits,
    /// The fault beyond these limits.
    pub reason: &'static str,
}

/// The known limits.
pub const KNOWN_LIMITS: &[KnownLimits] = &[KnownLimits {
    adapter: "llvmpipe",
    driver: "",
    limits: Limits { buffer_bytes_max: i32::MAX as u64, ..UNLIMITED },
    reason: "Mesa 22.3 claims buffers of 4 GiB and allocations of 2 GiB; offsets in its kernels are signed 32-bit integers",
}];

/// The limits that really hold for a device.
pub(crate) fn kept(known: &[KnownLimits], adapter: &str, driver: &str, claimed: Limits) -> Limits {
    let applies = |known: &&KnownLimits| adapter.contains(known.adapter) && driver.contains(known.driver);
    known.iter().filter(applies).fold(claimed, |limits, known| limits.within(known.limits))
}

/// The kinds of memory for bytes on their way between host and device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Host memory, cached by the CPU: fast to read and to write.
    Cached,
    /// Host memory, not cached: writes are combined, reads are slow.
    Uncached,
    /// Device memory, which the host writes over the bus.
    Device,
    /// Huge pages of this process, imported.
    Imported,
}

/// The queue for large copies between host and device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copies {
    /// The kernels' queue, in order with the kernels.
    Inline,
    /// A queue for copies, beside the kernels, if the device has one.
    Beside,
    /// Like `Beside`, but on the kernels' queue if there is no other: for tests.
    Apart,
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
    /// The queue for large copies.
    pub copies: Copies,
    /// Whether devices that share the host's memory read large host tensors in place.
    pub in_place: bool,
}

/// The default ways: cached memory in both directions, like the pinned memory of the CUDA backend.
pub const WAYS: TransferWays = TransferWays {
    up: Memory::Cached,
    down: Memory::Cached,
    transfers: Transfers { chunk_bytes: 8 << 20, chunks: 16, copiers_max: 8 },
    copies: Copies::Beside,
    in_place: true,
};

/// The known ways, measured by the test `transfer_rate`.
pub const KNOWN_WAYS: &[MeasuredWays<TransferWays>] = &[MeasuredWays {
    adapter: "NVIDIA",
    driver: "",
    ways: TransferWays {
        up: Memory::Imported,
        transfers: Transfers { chunk_bytes: 4 << 20, chunks: 16, copiers_max: 8 },
        ..WAYS
    },
    reason: "H200, driver 580, through wgpu: 1 GiB up 43.7 GB/s imported, 39.5 cached; down 52.0 and 50.3",
}];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_do_not_hold_are_lowered_and_none_is_raised() {
        let limits = Limits { buffer_bytes_max: 100, invocations_max: 64, ..UNLIMITED };
        let known = [KnownLimits { adapter: "Example", driver: "", limits, reason: "writes nothing behind byte 100" }];
        let claimed = Limits { buffer_bytes_max: 4096, invocations_max: 32, ..UNLIMITED };
        let kept_here = kept(&known, "Example GPU", "driver", claimed);
        assert_eq!(kept_here, Limits { buffer_bytes_max: 100, ..claimed });
        assert_eq!(kept(&known, "Other GPU", "driver", claimed), claimed);
    }
}
