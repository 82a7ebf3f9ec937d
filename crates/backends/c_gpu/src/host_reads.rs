//! Host memory that kernels read in place, on a GPU that shares memory with the host.
//!
//! Memory is never pinned for this: another engine of the process may find memory that is pinned
//! for a moment, and still be copying from it when it is unpinned. So kernels read only what stays
//! readable for as long as the tensor lives.

/// The host memory that kernels of a device read in place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostReads {
    /// None: everything is copied to the device's memory.
    #[default]
    Nothing,
    /// Memory that is pinned: tensors of `Runtime::pinned`, and downloads.
    Pinned,
    /// All memory of the process.
    Everything,
}

/// The smallest range that is read in place. A copy of less costs no more than the look-up.
const READ_BYTES_MIN: usize = 64 << 10;
/// Alignment of a range that is read in place.
const READ_ALIGN_BYTES: usize = 64;

impl HostReads {
    /// The memory that a device reads. `is_integrated`: it has no memory of its own. `maps_pinned`: kernels
    /// can read pinned memory. `reads_pageable`: they can read memory that is not pinned.
    pub fn of(is_integrated: bool, maps_pinned: bool, reads_pageable: bool) -> HostReads {
        match (is_integrated, maps_pinned, reads_pageable) {
            (true, _, true) => HostReads::Everything,
            (true, true, false) => HostReads::Pinned,
            // A GPU with memory of its own reads the host's over the bus, each time again.
            _ => HostReads::Nothing,
        }
    }

    /// Whether kernels read this range in place.
    pub fn include(self, start: *const u8, bytes: usize, is_pinned: impl FnOnce() -> bool) -> bool {
        let fits = bytes >= READ_BYTES_MIN && start.addr().is_multiple_of(READ_ALIGN_BYTES);
        fits && match self {
            HostReads::Nothing => false,
            HostReads::Pinned => is_pinned(),
            HostReads::Everything => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_devices_without_memory_of_their_own_read_the_hosts() {
        assert_eq!(HostReads::of(false, true, true), HostReads::Nothing);
        assert_eq!(HostReads::of(true, true, false), HostReads::Pinned);
        assert_eq!(HostReads::of(true, false, true), HostReads::Everything);
        assert_eq!(HostReads::of(true, false, false), HostReads::Nothing);
        let start: *const u8 = std::ptr::without_provenance(READ_ALIGN_BYTES);
        assert!(HostReads::Pinned.include(start, READ_BYTES_MIN, || true));
        assert!(!HostReads::Pinned.include(start, READ_BYTES_MIN, || false));
        assert!(!HostReads::Everything.include(start, READ_BYTES_MIN - 1, || true));
        assert!(!HostReads::Everything.include(start.wrapping_add(8), READ_BYTES_MIN, || true));
    }
}
