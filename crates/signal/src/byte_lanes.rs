//! Vectors of bytes, so that a kernel is written once for every width.

/// As many bytes as a register holds, at most 64. Every method of a type for one instruction set needs a CPU that has it.
pub(crate) trait ByteLanes: Copy {
    /// How many.
    const COUNT: usize;

    /// All alike.
    ///
    /// # Safety
    /// The CPU has the type's instructions.
    unsafe fn splat(value: u8) -> Self;

    /// From memory, aligned or not.
    ///
    /// # Safety
    /// The CPU has the type's instructions, and there are `COUNT` bytes to read.
    unsafe fn load(from: *const u8) -> Self;

    /// To memory, aligned or not.
    ///
    /// # Safety
    /// The CPU has the type's instructions, and there is room for `COUNT` bytes.
    unsafe fn store(self, to: *mut u8);

    /// The sums, at most 255.
    ///
    /// # Safety
    /// The CPU has the type's instructions.
    unsafe fn add(self, other: Self) -> Self;

    /// The differences, at least 0.
    ///
    /// # Safety
    /// The CPU has the type's instructions.
    unsafe fn sub(self, other: Self) -> Self;

    /// The smaller of each two.
    ///
    /// # Safety
    /// The CPU has the type's instructions.
    unsafe fn min(self, other: Self) -> Self;

    /// A bit for each lane that is smaller than the other's.
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
        // SAFETY: the caller sees to it; bytes have no alignment.
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
                    // SAFETY: the caller knows that the CPU has it.
                    unsafe { $splat(value as i8) }
                }

                #[inline(always)]
                unsafe fn load(from: *const u8) -> Self {
                    // SAFETY: the caller knows that the CPU has it, and that there is enough to read.
                    unsafe { $load(from.cast()) }
                }

                #[inline(always)]
                unsafe fn store(self, to: *mut u8) {
                    // SAFETY: the caller knows that the CPU has it, and that there is room.
                    unsafe { $store(to.cast(), self) }
                }

                #[inline(always)]
                unsafe fn add(self, other: Self) -> Self {
                    // SAFETY: the caller knows that the CPU has it.
                    unsafe { $add(self, other) }
                }

                #[inline(always)]
                unsafe fn sub(self, other: Self) -> Self {
                    // SAFETY: the caller knows that the CPU has it.
                    unsafe { $sub(self, other) }
                }

                #[inline(always)]
                unsafe fn min(self, other: Self) -> Self {
                    // SAFETY: the caller knows that the CPU has it.
                    unsafe { $min(self, other) }
                }

                #[inline(always)]
                unsafe fn less(self, other: Self) -> u64 {
                    // SAFETY: the caller knows that the CPU has it.
                    unsafe { $less(self, other) }
                }
            }
        };
    }

    /// Those that are not the larger of the two.
    #[inline(always)]
    unsafe fn less_256(a: __m256i, b: __m256i) -> u64 {
        // SAFETY: the caller knows that the CPU has it.
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
