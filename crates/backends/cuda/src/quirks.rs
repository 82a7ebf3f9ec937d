//! Differences between architectures, as data: for which kernels a compute capability (90 for 9.0)
//! has the instructions.

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
