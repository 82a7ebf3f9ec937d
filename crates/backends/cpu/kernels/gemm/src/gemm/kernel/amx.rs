//! The tile unit (AMX): one instruction adds to 16×16 sums the products of 16 rows of 64 bytes of A
//! and the same of B.
//!
//! Rules:
//! 1. The process must request permission for the tile state from the operating system once
//!    ([`permitted`]).
//! 2. The tile configuration belongs to a thread. A task that runs these kernels holds a
//!    [`TileState`], which loads the configuration and releases it, so that the state is never left
//!    behind on a thread of the team.
//! 3. Four tiles hold sums (32×32), two hold A and two B. Registers are live only inside one `asm!`
//!    block.

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;

use super::Kernel;

/// Lines in a panel: rows of A and columns of B.
const SIDE: usize = 32;
/// Steps that one tile instruction processes.
const TILE_STEPS: usize = 16;

/// True if the CPU has tiles for bf16 and i8, the system saves their state, and it permits this
/// process to use them.
pub(in super::super) fn permitted() -> bool {
    const AMX_BF16: u32 = 1 << 22;
    const AMX_TILE: u32 = 1 << 24;
    const AMX_INT8: u32 = 1 << 25;
    let wanted = AMX_BF16 | AMX_TILE | AMX_INT8;
    // Leaf 7 exists on every CPU that has AVX-512, which the caller checked first; older CPUs
    // return unrelated bits.
    let highest_leaf = __cpuid_count(0, 0).eax;
    highest_leaf >= 7 && __cpuid_count(7, 0).edx & wanted == wanted && request_tile_data()
}

#[cfg(target_os = "linux")]
fn request_tile_data() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: this call only sets a permission bit of the process; it accesses none of its memory.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn request_tile_data() -> bool {
    false
}

/// The tile configuration, loaded on this thread while the value lives.
pub(in super::super) struct TileState {
    /// Dropping on another thread would release the wrong state.
    not_send: std::marker::PhantomData<*const ()>,
}

#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

static FULL_TILES: TileConfig = TileConfig {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

impl TileState {
    /// Loads the configuration of eight full tiles.
    ///
    /// # Safety
    /// [`permitted`] has returned true.
    pub(in super::super) unsafe fn load() -> TileState {
        // SAFETY: the CPU has the instruction, as the caller guarantees, and the configuration is
        // 64 readable bytes.
        unsafe { asm!("ldtilecfg [{0}]", in(reg) &raw const FULL_TILES, options(nostack, readonly)) };
        TileState { not_send: std::marker::PhantomData }
    }
}

impl Drop for TileState {
    fn drop(&mut self) {
        // SAFETY: the state was loaded on this thread by `load`.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

pub(super) fn kernel<A>(tile: super::TileFn<u32, A>) -> Kernel<u32, A> {
    Kernel { rows: SIDE, cols: SIDE, step_unit: TILE_STEPS, depth_steps: 256, uses_tiles: true, tile, in_place: None }
}

macro_rules! tile_kernel {
    ($tile:ident, $full:ident, $acc:ty, $dot:literal) => {
        /// A kernel as described by [`TileFn`](super::TileFn). Steps are a multiple of sixteen.
        ///
        /// # Safety
        /// As for [`TileFn`](super::TileFn); and a [`TileState`] is alive on this thread.
        pub(in super::super) unsafe fn $tile(
            steps: usize,
            a: *const u32,
            b: *const u32,
            dst: *mut $acc,
            ld: usize,
            rows: usize,
            cols: usize,
            accumulate: bool,
            _ahead: *const u32,
        ) {
            if rows == SIDE && cols == SIDE {
                // SAFETY: the caller's contract.
                return unsafe { $full(steps / TILE_STEPS, a, b, dst, ld, accumulate) };
            }
            let mut full = [[<$acc>::default(); SIDE]; SIDE];
            // SAFETY: the copy has room for the whole tile, and `dst` for its valid part. Rows and
            // columns beyond the valid part are computed from arbitrary panel contents and dropped.
            unsafe {
                $full(steps / TILE_STEPS, a, b, full.as_mut_ptr().cast(), SIDE, false);
                super::scalar::put_down(&full.as_flattened()[..rows * SIDE], SIDE, dst, ld, cols, accumulate);
            }
        }

        /// # Safety
        /// As for the function above, with a tile of 32×32 and `count` times sixteen steps, `count`
        /// at least one.
        unsafe fn $full(count: usize, a: *const u32, b: *const u32, dst: *mut $acc, ld: usize, accumulate: bool) {
            // SAFETY: all addresses stay inside the panels (2 KiB of each per round) and the tile
            // of `dst`. The tile registers are written or zeroed inside this block before they are
            // read.
            unsafe {
                asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tilezero tmm3",
                    "test {accumulate:e}, {accumulate:e}",
                    "jz 2f",
                    "tileloadd tmm0, [{top} + {ld}]",
                    "tileloadd tmm1, [{top} + {ld} + 64]",
                    "tileloadd tmm2, [{bottom} + {ld}]",
                    "tileloadd tmm3, [{bottom} + {ld} + 64]",
                    "2:",
                    "tileloadd tmm4, [{a} + {a_stride}]",
                    "tileloadd tmm6, [{b} + {b_stride}]",
                    "tileloadd tmm7, [{b} + {b_stride} + 64]",
                    concat!($dot, " tmm0, tmm4, tmm6"),
                    concat!($dot, " tmm1, tmm4, tmm7"),
                    "tileloadd tmm5, [{a} + {a_stride} + 1024]",
                    concat!($dot, " tmm2, tmm5, tmm6"),
                    concat!($dot, " tmm3, tmm5, tmm7"),
                    "add {a}, 2048",
                    "add {b}, 2048",
                    "dec {count}",
                    "jnz 2b",
                    "tilestored [{top} + {ld}], tmm0",
                    "tilestored [{top} + {ld} + 64], tmm1",
                    "tilestored [{bottom} + {ld}], tmm2",
                    "tilestored [{bottom} + {ld} + 64], tmm3",
                    accumulate = in(reg) u32::from(accumulate),
                    top = in(reg) dst,
                    bottom = in(reg) dst.add(16 * ld),
                    ld = in(reg) ld * size_of::<$acc>(),
                    a = inout(reg) a => _,
                    a_stride = in(reg) 64_usize,
                    b = inout(reg) b => _,
                    b_stride = in(reg) 128_usize,
                    count = inout(reg) count => _,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack),
                );
            }
        }
    };
}

tile_kernel!(bf16_tile, bf16_full, f32, "tdpbf16ps");
tile_kernel!(i8_tile, i8_full, i32, "tdpbssd");
tile_kernel!(u8_tile, u8_full, i32, "tdpbuud");
