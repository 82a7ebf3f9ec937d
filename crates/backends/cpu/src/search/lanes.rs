//! The vector operations that the scoring kernels are written in, one implementation for each [`Simd`] level.
//!
//! A kernel is a type that implements [`Kernel`]; [`run`] compiles it once for each level inside a function that has the
//! level's instructions enabled, and everything below it is `inline(always)`, so that it becomes one loop of them.

use crate::simd::Simd;
use panoply_core::dtype::{bf16, f16};

/// The longest vector, in `f32` lanes. Rows and queries that are padded are padded to a multiple of this.
pub(super) const LANES_MAX: usize = 16;

/// Work that is generic over the vector level.
pub(super) trait Kernel {
    /// What the work gives back.
    type Output;

    /// Does the work with the instructions of `L`.
    ///
    /// # Safety
    /// The CPU has the instructions of `L`.
    unsafe fn run<L: Lanes>(self) -> Self::Output;
}

/// Runs `kernel` with the instructions of `simd`, or of what the CPU has if that is less.
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

/// A vector of `f32` and the few operations on it that scoring needs.
///
/// Every method is unsafe for one reason: the CPU must have the instructions. Those that take a pointer read or write
/// the stated number of elements there, at any alignment.
pub(super) trait Lanes: Copy {
    /// The vector.
    type V: Copy;
    /// How many `f32` it holds.
    const WIDTH: usize;

    unsafe fn splat(value: f32) -> Self::V;
    unsafe fn load_f32(from: *const f32) -> Self::V;
    unsafe fn load_f16(from: *const f16) -> Self::V;
    unsafe fn load_bf16(from: *const bf16) -> Self::V;
    unsafe fn load_i8(from: *const i8) -> Self::V;
    unsafe fn store(to: *mut f32, value: Self::V);
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `c - a * b`.
    unsafe fn nfma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The sum of the lanes of each of eight vectors.
    unsafe fn sum8(values: [Self::V; 8]) -> [f32; 8];
    /// One bit for each lane: not (`value` ≤ `bound`), which holds also if either is NaN.
    unsafe fn exceeds(value: Self::V, bound: Self::V) -> u32;
    /// Asks for the cache line at `from`, which may be any address.
    unsafe fn prefetch<T>(from: *const T);
    /// The same, but no nearer than the second-level cache.
    unsafe fn prefetch_far<T>(from: *const T);
}

/// An element of a row that widens to `f32` without loss.
pub(super) trait RowElement: Copy + Send + Sync + Default + 'static {
    fn widen(self) -> f32;
    /// The same elements, if they are `f32` already.
    fn as_f32(elements: &[Self]) -> Option<&[f32]>;
    /// Reads `L::WIDTH` elements.
    ///
    /// # Safety
    /// As [`Lanes`] says.
    unsafe fn load<L: Lanes>(from: *const Self) -> L::V;
}

macro_rules! row_elements {
    ($($element:ty, $load:ident, $value:ident => $widen:expr, $elements:ident => $as_f32:expr);*) => {$(
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
        }
    )*};
}

row_elements!(
    f32, load_f32, value => value, elements => Some(elements);
    f16, load_f16, value => value.to_f32(), _elements => None;
    bf16, load_bf16, value => value.to_f32(), _elements => None;
    i8, load_i8, value => f32::from(value), _elements => None
);

/// Reads `N` vectors, `stride` numbers apart. (A loop, because a closure would not be compiled with the instructions of
/// the function around it.)
///
/// # Safety
/// As [`Lanes`] says, for every one of the vectors.
#[inline(always)]
pub(super) unsafe fn load_each<L: Lanes, const N: usize>(from: *const f32, stride: usize) -> [L::V; N] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut vectors = [L::splat(0.0); N];
        for (index, vector) in vectors.iter_mut().enumerate() {
            *vector = L::load_f32(from.add(index * stride));
        }
        vectors
    }
}

/// Reads the `len` < `L::WIDTH` elements that are left, with zeros behind them.
///
/// # Safety
/// As [`Lanes`] says, for `len` elements.
#[inline(always)]
pub(super) unsafe fn load_part<L: Lanes, T: RowElement>(from: *const T, len: usize) -> L::V {
    let mut padded = [T::default(); LANES_MAX];
    // SAFETY: `len` elements are readable (the caller's promise) and fit the array; the array holds a whole vector.
    unsafe {
        std::ptr::copy_nonoverlapping(from, padded.as_mut_ptr(), len.min(LANES_MAX));
        T::load::<L>(padded.as_ptr())
    }
}

/// Not (`value` ≤ `bound`): true also if either is NaN, so that nothing undecided is lost.
#[inline(always)]
pub(super) fn exceeds(value: f32, bound: f32) -> bool {
    value > bound || value.is_nan() || bound.is_nan()
}

/// Plain Rust in the shape of a vector, for the compiler to make of it what the target has.
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
        // SAFETY: the caller's promise.
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
        // SAFETY: the caller keeps the contract of `Lanes`; so do the three below.
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
