//! Micro-kernels: the product of a panel of A and a panel of B, with all sums in registers.

#[cfg(target_arch = "x86_64")]
pub(super) mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod scalar;
#[cfg(target_arch = "x86_64")]
mod vnni;

use panoply_core::dtype::Complex64;
use panoply_core::once::OnceBox;

use crate::simd::Simd;

/// The instructions that a product may use: the vector level and the matrix extensions above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa {
    pub(super) simd: Simd,
    pub(super) bf16_dot: bool,
    pub(super) byte_dot: bool,
    pub(super) amx: bool,
}

impl Isa {
    /// All instructions that this process may use. Detected once.
    pub fn detect() -> Isa {
        static ISA: OnceBox<Isa> = OnceBox::new();
        *ISA.get_or_make(|| {
            let simd = Simd::detect();
            let widest = simd == Simd::Avx512;
            let (bf16_dot, byte_dot) = (widest && has_bf16_dot(), widest && has_byte_dot());
            Isa { simd, bf16_dot, byte_dot, amx: widest && has_amx() }
        })
    }

    /// The vector level `simd` (lowered to what the CPU has) without matrix extensions.
    pub fn vectors_only(simd: Simd) -> Isa {
        let supported = Simd::available().contains(&simd);
        let simd = if supported { simd } else { Simd::Scalar };
        Isa { simd, bf16_dot: false, byte_dot: false, amx: false }
    }

    /// All that this process may use if `simd` is its best level, otherwise only that level's
    /// vectors.
    pub fn at_level(simd: Simd) -> Isa {
        let best = Isa::detect();
        if simd == best.simd { best } else { Isa::vectors_only(simd) }
    }

    /// Every combination that this process can run, lowest first; for tests.
    pub fn available() -> Vec<Isa> {
        let mut all: Vec<Isa> = Simd::available().into_iter().map(Isa::vectors_only).collect();
        let best = Isa::detect();
        if best.bf16_dot || best.byte_dot {
            all.push(Isa { amx: false, ..best });
        }
        if best.amx {
            all.push(best);
        }
        all
    }

    /// True if the tile unit multiplies bf16 and i8.
    pub fn has_tiles(self) -> bool {
        self.amx
    }
}

#[cfg(target_arch = "x86_64")]
fn has_bf16_dot() -> bool {
    is_x86_feature_detected!("avx512bf16")
}

#[cfg(target_arch = "x86_64")]
fn has_byte_dot() -> bool {
    is_x86_feature_detected!("avx512vnni")
}

#[cfg(target_arch = "x86_64")]
fn has_amx() -> bool {
    amx::permitted()
}

#[cfg(not(target_arch = "x86_64"))]
fn has_bf16_dot() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn has_byte_dot() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn has_amx() -> bool {
    false
}

/// Multiplies one pair of panels: `dst[rows, cols] (+)= a * b` over `steps` steps, `dst` row-major
/// with `ld` elements from row to row. `rows` and `cols` are at least one and at most the kernel's;
/// `accumulate` adds to the existing values. For each chunk of A the kernel may prefetch
/// [`AHEAD_BYTES_PER_CHUNK`] from `ahead` on, which is never read.
///
/// # Safety
/// `a` and `b` point to packed panels of `steps` steps, aligned to 64 bytes. `dst` points to `rows`
/// rows of `cols` elements that no other task accesses. The CPU has the kernel's instructions.
pub(super) type TileFn<W, A> = unsafe fn(
    steps: usize,
    a: *const W,
    b: *const W,
    dst: *mut A,
    ld: usize,
    rows: usize,
    cols: usize,
    accumulate: bool,
    ahead: *const W,
);

/// Bytes that a kernel prefetches for each chunk of A: at this rate nine tiles fetch a whole panel
/// of B.
pub(super) const AHEAD_BYTES_PER_CHUNK: usize = 256;

/// Multiplies a panel of A with unpacked columns of B: `dst[rows, cols] = a * b`, where the steps
/// of B are `b_step` words apart. `cols` are whole vectors.
///
/// # Safety
/// As for [`TileFn`], but `b` points to `steps` times `cols` words of any alignment.
pub(super) type InPlaceFn<W, A> =
    unsafe fn(steps: usize, a: *const W, b: *const W, b_step: usize, dst: *mut A, ld: usize, rows: usize, cols: usize);

/// A kernel for unpacked columns of B.
#[derive(Clone, Copy)]
pub(super) struct InPlace<W, A> {
    /// The number of columns must be a multiple of this.
    pub(super) lanes: usize,
    pub(super) tile: InPlaceFn<W, A>,
}

/// A micro-kernel with its parameters for the driver.
#[derive(Clone, Copy)]
pub(super) struct Kernel<W, A> {
    /// Maximum rows of a tile: the height of A's panels.
    pub(super) rows: usize,
    /// Maximum columns of a tile: the height of B's panels.
    pub(super) cols: usize,
    /// The number of steps must be a multiple of this.
    pub(super) step_unit: usize,
    /// Steps after which sums are written to memory, so that panels stay in caches.
    pub(super) depth_steps: usize,
    /// True if a thread must load the tile configuration before and release it afterwards.
    pub(super) uses_tiles: bool,
    pub(super) tile: TileFn<W, A>,
    /// The same kernel for a B that is read in place.
    pub(super) in_place: Option<InPlace<W, A>>,
}

impl<W, A> Kernel<W, A> {
    const fn plain(rows: usize, cols: usize, depth_steps: usize, tile: TileFn<W, A>) -> Self {
        Kernel { rows, cols, step_unit: 1, depth_steps, uses_tiles: false, tile, in_place: None }
    }

    #[cfg(target_arch = "x86_64")]
    const fn or_in_place(self, lanes: usize, tile: InPlaceFn<W, A>) -> Self
    where
        W: Copy,
        A: Copy,
    {
        Kernel { in_place: Some(InPlace { lanes, tile }), ..self }
    }
}

/// The kernel that sums f32 products.
pub(super) fn for_f32(isa: Isa) -> Kernel<u32, f32> {
    match isa.simd {
        #[cfg(target_arch = "x86_64")]
        Simd::Avx512 => Kernel::plain(14, 32, 1024, avx512::f32::tile).or_in_place(16, avx512::f32::tile_in_place),
        #[cfg(target_arch = "x86_64")]
        Simd::Avx2 => Kernel::plain(6, 16, 256, avx2::f32::tile),
        _ => Kernel::plain(4, 16, 256, scalar::tile::<u32, f32, 4, 16>),
    }
}

/// The kernel that sums f64 products.
pub(super) fn for_f64(isa: Isa) -> Kernel<u64, f64> {
    match isa.simd {
        #[cfg(target_arch = "x86_64")]
        Simd::Avx512 => Kernel::plain(14, 16, 512, avx512::f64::tile).or_in_place(8, avx512::f64::tile_in_place),
        #[cfg(target_arch = "x86_64")]
        Simd::Avx2 => Kernel::plain(6, 8, 256, avx2::f64::tile),
        _ => Kernel::plain(4, 8, 256, scalar::tile::<u64, f64, 4, 8>),
    }
}

/// The kernel that sums i32 products, wrapping.
pub(super) fn for_i32(isa: Isa) -> Kernel<u32, i32> {
    match isa.simd {
        #[cfg(target_arch = "x86_64")]
        Simd::Avx512 => Kernel::plain(14, 32, 256, avx512::i32::tile),
        #[cfg(target_arch = "x86_64")]
        Simd::Avx2 => Kernel::plain(6, 16, 256, avx2::i32::tile),
        _ => Kernel::plain(4, 16, 256, scalar::tile::<u32, i32, 4, 16>),
    }
}

/// The kernel that sums complex products.
pub(super) fn for_complex(isa: Isa) -> Kernel<u64, Complex64> {
    match isa.simd {
        #[cfg(target_arch = "x86_64")]
        Simd::Avx512 => Kernel::plain(6, 16, 384, avx512::complex::tile),
        #[cfg(target_arch = "x86_64")]
        Simd::Avx2 => Kernel::plain(3, 8, 256, avx2::complex::tile),
        _ => Kernel::plain(4, 4, 256, scalar::tile::<u64, Complex64, 4, 4>),
    }
}

/// The kernel that sums products of bf16 pairs; `None` if the CPU cannot multiply bf16 itself.
pub(super) fn for_bf16_pairs(isa: Isa) -> Option<Kernel<u32, f32>> {
    #[cfg(target_arch = "x86_64")]
    {
        if isa.amx {
            return Some(amx::kernel(amx::bf16_tile));
        }
        if isa.bf16_dot {
            return Some(Kernel::plain(14, 32, 384, avx512::bf16::tile));
        }
    }
    let _ = isa;
    None
}

/// The kernel that sums products of i16 pairs; `None` below AVX2.
pub(super) fn for_i16_pairs(isa: Isa) -> Option<Kernel<u32, i32>> {
    match isa.simd {
        #[cfg(target_arch = "x86_64")]
        Simd::Avx512 => Some(Kernel::plain(14, 32, 384, avx512::i16::tile)),
        #[cfg(target_arch = "x86_64")]
        Simd::Avx2 => Some(Kernel::plain(6, 16, 256, avx2::i16::tile)),
        _ => None,
    }
}

/// The kernel that sums products of four signed or unsigned bytes. `None` without a tile unit,
/// except for signed bytes if the CPU has dot products of them.
pub(super) fn for_byte_quads(isa: Isa, signed: bool) -> Option<Kernel<u32, i32>> {
    #[cfg(target_arch = "x86_64")]
    {
        if isa.amx {
            return Some(amx::kernel(if signed { amx::i8_tile } else { amx::u8_tile }));
        }
        if isa.byte_dot && signed {
            return Some(Kernel::plain(14, 32, 384, vnni::tile));
        }
    }
    let _ = (isa, signed);
    None
}
