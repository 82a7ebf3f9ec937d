//! Vectors of bytes, so that a kernel is written once for every vector width.

/// A vector of as many bytes as a register holds, at most 64. Every method of a type for one
/// instruction set needs a CPU that has these instructions.
pub(crate) trait ByteLanes: Copy {
    /// Number of bytes in the vector.
    const COUNT: usize;

    /// A vector with this value in every lane.
    ///
    /// # Safety
    /// The CPU has the type's instructions.
    unsafe fn splat(value: u8) -> Self;

    /// Loads from memory, aligned or not.
    ///
    /// # Safety
    /// The CPU has the type's instructions, and `from` is valid for reads of `COUNT` bytes.
    unsafe fn load(from: *const u8) -> Self;

    /// Stores to memory, aligned or not.
    ///
    /// # Safety
    /// The CPU has the type's instructions, and `to` is valid for writes of `COUNT` bytes.
    unsafe fn store(self, to: *mut u8);

    /// The lane-wise sums, clamped to 255.
    ///
    /// # Safety
    /// The CPU has the type's instructions.
    unsafe fn add(self, other: Self) -> Self;

    /// The lane-wise differences, clamped to 0.
    ///
    /// # Safety
    /// The CPU has the type's instructions.
    unsafe fn sub(self, other: Self) -> Self;

    /// The lane-wise minimum.
    ///
    /// # Safety
    /// The CPU has the type's instructions.
    unsafe fn min(self, other: Self) -> Self;

    /// A bit for each lane, set if this vector's lane is less than the other's.
    ///
    /// # Safety
    /// The CPU has the type's instructions.
    unsafe fn less(self, other: Self) -> u64;
}

impl ByteLanes for [u8; 16] {
    const COUNT: usize = 16;

    #[inline(always)]
    unsafe fn splat(value: u8) -> Self {
        [value; 16]
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: as the caller guarantees; bytes have no alignment.
        unsafe { from.cast::<[u8; 16]>().read() }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: as above.
        unsafe { to.cast::<[u8; 16]>().write(self) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        std::array::from_fn(|lane| self[lane].saturating_add(other[lane]))
    }

    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        std::array::from_fn(|lane| self[lane].saturating_sub(other[lane]))
    }

    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        std::array::from_fn(|lane| self[lane].min(other[lane]))
    }

    #[inline(always)]
    unsafe fn less(self, other: Self) -> u64 {
        (0..16).fold(0, |bits, lane| bits | u64::from(self[lane] < other[lane]) << lane)
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::ByteLanes;
    use std::arch::x86_64::*;

    macro_rules! byte_lanes {
        ($type:ty, $count:literal, $splat:ident, $load:ident, $store:ident, $add:ident, $sub:ident, $min:ident, $less:expr) => {
            impl ByteLanes for $type {
                const COUNT: usize = $count;

                #[inline(always)]
                unsafe fn splat(value: u8) -> Self {
                    // SAFETY: the caller guarantees that the CPU has the instruction.
                    unsafe { $splat(value as i8) }
                }

                #[inline(always)]
                unsafe fn load(from: *const u8) -> Self {
                    // SAFETY: the caller guarantees that the CPU has the instruction, and that the
                    // bytes may be read.
                    unsafe { $load(from.cast()) }
                }

                #[inline(always)]
                unsafe fn store(self, to: *mut u8) {
                    // SAFETY: the caller guarantees that the CPU has the instruction, and that the
                    // bytes may be written.
                    unsafe { $store(to.cast(), self) }
                }

                #[inline(always)]
                unsafe fn add(self, other: Self) -> Self {
                    // SAFETY: the caller guarantees that the CPU has the instruction.
                    unsafe { $add(self, other) }
                }

                #[inline(always)]
                unsafe fn sub(self, other: Self) -> Self {
                    // SAFETY: the caller guarantees that the CPU has the instruction.
                    unsafe { $sub(self, other) }
                }

                #[inline(always)]
                unsafe fn min(self, other: Self) -> Self {
                    // SAFETY: the caller guarantees that the CPU has the instruction.
                    unsafe { $min(self, other) }
                }

                #[inline(always)]
                unsafe fn less(self, other: Self) -> u64 {
                    // SAFETY: the caller guarantees that the CPU has the instruction.
                    unsafe { $less(self, other) }
                }
            }
        };
    }

    /// The lanes in which `a < b`: those whose maximum is not `a`.
    #[inline(always)]
    unsafe fn less_256(a: __m256i, b: __m256i) -> u64 {
        // SAFETY: the caller guarantees that the CPU has the instructions.
        let not_less = unsafe { _mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_max_epu8(a, b), a)) };
        u64::from(!not_less as u32)
    }

    byte_lanes!(
        __m256i,
        32,
        _mm256_set1_epi8,
        _mm256_loadu_si256,
        _mm256_storeu_si256,
        _mm256_adds_epu8,
        _mm256_subs_epu8,
        _mm256_min_epu8,
        less_256
    );
    byte_lanes!(
        __m512i,
        64,
        _mm512_set1_epi8,
        _mm512_loadu_si512,
        _mm512_storeu_si512,
        _mm512_adds_epu8,
        _mm512_subs_epu8,
        _mm512_min_epu8,
        _mm512_cmplt_epu8_mask
    );
}
