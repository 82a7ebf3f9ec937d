//! The vector operations of the scoring kernels, with one implementation for each [`Simd`] level.
//!
//! A kernel is a type that implements [`Kernel`]. [`run`] compiles it once for each level inside a
//! function that has the level's instructions enabled. All its callees are `inline(always)`, so
//! that the whole kernel uses these instructions.

use crate::simd::Simd;
use panoply_core::dtype::{bf16, f16};

/// The longest vector, in `f32` lanes. Padded rows and queries have a multiple of this length.
pub(super) const LANES_MAX: usize = 16;

/// Work that is generic over the vector level.
pub(super) trait Kernel {
    /// The result of the work.
    type Output;

    /// Does the work with the instructions of `L`.
    ///
    /// # Safety
    /// The CPU has the instructions of `L`.
    unsafe fn run<L: Lanes>(self) -> Self::Output;
}

/// Runs `kernel` with the instructions of `simd`, or of the CPU's level if that is lower.
#[inline]
pub(super) fn run<K: Kernel>(simd: Simd, kernel: K) -> K::Output {
    match simd.min(Simd::detect()) {
        // SAFETY: `detect` found AVX-512 F, BW, DQ and VL.
        #[cfg(target_arch = "x86_64")]
        Simd::Avx512 => unsafe { x86::run_avx512(kernel) },
        // SAFETY: `detect` found AVX2, FMA and F16C.
        #[cfg(target_arch = "x86_64")]
        Simd::Avx2 => unsafe { x86::run_avx2(kernel) },
        // SAFETY: plain Rust needs no special instructions.
        _ => unsafe { kernel.run::<Portable>() },
    }
}

/// A vector of `f32` and the operations that scoring needs.
///
/// Every method is unsafe for one reason: the CPU must have the instructions. Methods with a
/// pointer read or write the stated number of elements there, at any alignment.
pub(super) trait Lanes: Copy {
    /// The vector type.
    type V: Copy;
    /// Number of `f32` in a vector.
    const WIDTH: usize;

    unsafe fn splat(value: f32) -> Self::V;
    unsafe fn load_f32(from: *const f32) -> Self::V;
    /// Reads `len` < `WIDTH` elements, followed by zeros.
    #[inline(always)]
    unsafe fn load_part_f32(from: *const f32, len: usize) -> Self::V {
        // SAFETY: the caller's contract; the padded array holds a whole vector.
        unsafe { Self::load_f32(padded(from, len).as_ptr()) }
    }
    unsafe fn load_f16(from: *const f16) -> Self::V;
    /// Reads `len` < `WIDTH` elements, followed by zeros.
    #[inline(always)]
    unsafe fn load_part_f16(from: *const f16, len: usize) -> Self::V {
        // SAFETY: the caller's contract; the padded array holds a whole vector.
        unsafe { Self::load_f16(padded(from, len).as_ptr()) }
    }
    unsafe fn load_bf16(from: *const bf16) -> Self::V;
    /// Reads `len` < `WIDTH` elements, followed by zeros.
    #[inline(always)]
    unsafe fn load_part_bf16(from: *const bf16, len: usize) -> Self::V {
        // SAFETY: the caller's contract; the padded array holds a whole vector.
        unsafe { Self::load_bf16(padded(from, len).as_ptr()) }
    }
    unsafe fn load_i8(from: *const i8) -> Self::V;
    /// Reads `len` < `WIDTH` elements, followed by zeros.
    #[inline(always)]
    unsafe fn load_part_i8(from: *const i8, len: usize) -> Self::V {
        // SAFETY: the caller's contract; the padded array holds a whole vector.
        unsafe { Self::load_i8(padded(from, len).as_ptr()) }
    }
    unsafe fn store(to: *mut f32, value: Self::V);
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `c - a * b`.
    unsafe fn nfma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The sum of the lanes of each of eight vectors.
    unsafe fn sum8(values: [Self::V; 8]) -> [f32; 8];
    /// One bit for each lane: not (`value` ≤ `bound`), which is also true if either is NaN.
    unsafe fn exceeds(value: Self::V, bound: Self::V) -> u32;
    /// Prefetches the cache line at `from`, which may be any address.
    unsafe fn prefetch<T>(from: *const T);
    /// Prefetches the cache line at `from` into the second-level cache only.
    unsafe fn prefetch_far<T>(from: *const T);
}

/// An element of a row that widens to `f32` without loss.
pub(super) trait RowElement: Copy + Send + Sync + Default + 'static {
    fn widen(self) -> f32;
    /// The same elements, if they are `f32`.
    fn as_f32(elements: &[Self]) -> Option<&[f32]>;
    /// Reads `L::WIDTH` elements.
    ///
    /// # Safety
    /// As for [`Lanes`].
    unsafe fn load<L: Lanes>(from: *const Self) -> L::V;
    /// Reads `len` < `L::WIDTH` elements, followed by zeros.
    ///
    /// # Safety
    /// As for [`Lanes`].
    unsafe fn load_part<L: Lanes>(from: *const Self, len: usize) -> L::V;
}

macro_rules! row_elements {
    ($($element:ty, $load:ident, $load_part:ident, $value:ident => $widen:expr, $elements:ident => $as_f32:expr);*) => {$(
        impl RowElement for $element {
            #[inline(always)]
            fn widen(self) -> f32 {
                let $value = self;
                $widen
            }

            #[inline(always)]
            fn as_f32($elements: &[Self]) -> Option<&[f32]> {
                $as_f32
            }

            #[inline(always)]
            unsafe fn load<L: Lanes>(from: *const Self) -> L::V {
                // SAFETY: the caller keeps the contract of `Lanes`.
                unsafe { L::$load(from) }
            }

            #[inline(always)]
            unsafe fn load_part<L: Lanes>(from: *const Self, len: usize) -> L::V {
                // SAFETY: the caller keeps the contract of `Lanes`.
                unsafe { L::$load_part(from, len) }
            }
        }
    )*};
}

row_elements!(
    f32, load_f32, load_part_f32, value => value, elements => Some(elements);
    f16, load_f16, load_part_f16, value => value.to_f32(), _elements => None;
    bf16, load_bf16, load_part_bf16, value => value.to_f32(), _elements => None;
    i8, load_i8, load_part_i8, value => f32::from(value), _elements => None
);

/// Reads `N` vectors, `stride` numbers apart. (A loop, because a closure would not be compiled with
/// the instructions of the enclosing function.)
///
/// # Safety
/// As for [`Lanes`], for each of the vectors.
#[inline(always)]
pub(super) unsafe fn load_each<L: Lanes, const N: usize>(from: *const f32, stride: usize) -> [L::V; N] {
    // SAFETY: the caller's contract.
    unsafe {
        let mut vectors = [L::splat(0.0); N];
        for (index, vector) in vectors.iter_mut().enumerate() {
            *vector = L::load_f32(from.add(index * stride));
        }
        vectors
    }
}

/// The `len` < [`LANES_MAX`] elements at `from`, followed by zeros, for levels without masked
/// loads.
///
/// # Safety
/// `len` elements are readable at `from`.
#[inline(always)]
unsafe fn padded<T: RowElement>(from: *const T, len: usize) -> [T; LANES_MAX] {
    let mut padded = [T::default(); LANES_MAX];
    for (index, element) in padded.iter_mut().enumerate().take(len) {
        // SAFETY: the caller's contract.
        *element = unsafe { from.add(index).read_unaligned() };
    }
    padded
}

/// Not (`value` ≤ `bound`): also true if either is NaN, so that no candidate is lost.
#[inline(always)]
pub(super) fn exceeds(value: f32, bound: f32) -> bool {
    value > bound || value.is_nan() || bound.is_nan()
}

/// A portable vector in plain Rust, from which the compiler generates the target's vector code.
#[derive(Clone, Copy)]
pub(super) struct Portable;

const PORTABLE_WIDTH: usize = 8;

impl Portable {
    #[inline(always)]
    fn each(lane: impl Fn(usize) -> f32) -> [f32; PORTABLE_WIDTH] {
        std::array::from_fn(lane)
    }

    /// # Safety
    /// A whole vector is readable at `from`.
    #[inline(always)]
    unsafe fn widened<T: RowElement>(from: *const T) -> [f32; PORTABLE_WIDTH] {
        // SAFETY: the caller's contract.
        Self::each(|lane| unsafe { from.add(lane).read_unaligned() }.widen())
    }
}

impl Lanes for Portable {
    type V = [f32; PORTABLE_WIDTH];
    const WIDTH: usize = PORTABLE_WIDTH;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self::V {
        [value; PORTABLE_WIDTH]
    }

    #[inline(always)]
    unsafe fn load_f32(from: *const f32) -> Self::V {
        // SAFETY: the caller's contract is that of `Lanes`, here and in the three methods below.
        unsafe { Self::widened(from) }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> Self::V {
        // SAFETY: as above.
        unsafe { Self::widened(from) }
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> Self::V {
        // SAFETY: as above.
        unsafe { Self::widened(from) }
    }

    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self::V {
        // SAFETY: as above.
        unsafe { Self::widened(from) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, value: Self::V) {
        // SAFETY: a whole vector is writable there.
        unsafe { to.cast::<Self::V>().write_unaligned(value) }
    }

    #[inline(always)]
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
        Self::each(|lane| a[lane] - b[lane])
    }

    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        Self::each(|lane| a[lane] * b[lane])
    }

    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        Self::each(|lane| a[lane] * b[lane] + c[lane])
    }

    #[inline(always)]
    unsafe fn nfma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        Self::each(|lane| c[lane] - a[lane] * b[lane])
    }

    #[inline(always)]
    unsafe fn sum8(values: [Self::V; 8]) -> [f32; 8] {
        values.map(|value| value.iter().sum())
    }

    #[inline(always)]
    unsafe fn exceeds(value: Self::V, bound: Self::V) -> u32 {
        (0..PORTABLE_WIDTH).fold(0, |mask, lane| mask | (u32::from(exceeds(value[lane], bound[lane])) << lane))
    }

    #[inline(always)]
    unsafe fn prefetch<T>(_from: *const T) {}

    #[inline(always)]
    unsafe fn prefetch_far<T>(_from: *const T) {}
}

#[cfg(target_arch = "x86_64")]
#[path = "lanes_x86.rs"]
pub(super) mod x86;
