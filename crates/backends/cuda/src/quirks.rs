//! Differences between architectures, as data: for which kernels a compute capability (90 for 9.0)
//! has the instructions; and the host memory that a GPU reads in place.

use cudarc::driver::{result, sys};
use panoply_c_gpu::host_reads::HostReads;

/// The first capability with tile products of 16 × 8 in every type, and with asynchronous copies to
/// block memory.
const MATRIX_TILES_MIN: u32 = 80;
/// The only capability with warp-group instructions in the form that the kernels use. These
/// instructions need the architecture's full name.
const WARP_GROUPS: u32 = 90;

/// Whether warps multiply tiles, and copies are asynchronous.
pub(crate) const fn matrix_tiles(capability: u32) -> bool {
    capability >= MATRIX_TILES_MIN
}

/// Whether four warps multiply together.
pub(crate) const fn warp_groups(capability: u32) -> bool {
    capability == WARP_GROUPS
}

/// The suffix of the architecture's name after the number.
pub(crate) const fn architecture_suffix(capability: u32) -> &'static str {
    if capability == WARP_GROUPS { "a" } else { "" }
}

/// The host memory that kernels read in place. A driver that does not know an attribute says no.
pub(crate) fn host_reads(device: sys::CUdevice) -> HostReads {
    use sys::CUdevice_attribute as A;
    // SAFETY: the driver gave the device.
    let is_so = |which: A| unsafe { result::device::get_attribute(device, which) }.is_ok_and(|value| value != 0);
    HostReads::of(
        is_so(A::CU_DEVICE_ATTRIBUTE_INTEGRATED),
        is_so(A::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY),
        is_so(A::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS),
    )
}
