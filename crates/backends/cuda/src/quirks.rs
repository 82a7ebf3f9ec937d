//! What differs between architectures, as data: which kernels a compute capability (90 for 9.0) has the instructions for.

/// The first capability that multiplies tiles of 16 × 8 of every type, and copies to a block's memory by itself.
const MATRIX_TILES_MIN: u32 = 80;
/// The one with instructions for four warps together in the form that kernels use; its own instructions need the architecture's full
/// name.
const WARP_GROUPS: u32 = 90;

/// Whether warps multiply tiles, and copies go on by themselves.
pub(crate) const fn matrix_tiles(capability: u32) -> bool {
    capability >= MATRIX_TILES_MIN
}

/// Whether four warps multiply together.
pub(crate) const fn warp_groups(capability: u32) -> bool {
    capability == WARP_GROUPS
}

/// What follows the number in the architecture's name.
pub(crate) const fn architecture_suffix(capability: u32) -> &'static str {
    if capability == WARP_GROUPS { "a" } else { "" }
}
