//! Vectors of f32, so that a kernel is written once for every vector width.

/// A vector of as many numbers as a register holds. Every method of a type for one instruction set
/// needs a CPU that has these instructions.
pub(crate) trait Lanes: Copy {
    /// Number of elements in the vector.
    const COUNT: usize;

    /// A vector with this value in every lane.
    ///
    /// # Safety
    /// The CPU has the type's instructions.
    unsafe fn splat(value: f32) -> Self;

    /// Loads from memory, aligned or not.
    ///
    /// # Safety
    /// The CPU has the type's instructions, and `from` is valid for reads of `COUNT` numbers.
    unsafe fn load(from: *const f32) -> Self;

    /// Stores to memory, aligned or not.
    ///
    /// # Safety
    /// The CPU has the type's instructions, and `to` is valid for writes of `COUNT` numbers.
    unsafe fn store(self, to: *mut f32);

    /// `self · other + sum`.
    ///
    /// # Safety
    /// The CPU has the type's instructions.
    unsafe fn mul_add(self, other: Self, sum: Self) -> Self;
}

impl Lanes for [f32; 8] {
    const COUNT: usize = 8;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        [value; 8]
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: as the caller guarantees; an array of f32 has the alignment of its elements.
        unsafe { from.cast::<[f32; 8]>().read() }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: as above.
        unsafe { to.cast::<[f32; 8]>().write(self) }
    }

    #[inline(always)]
    unsafe fn mul_add(self, other: Self, sum: Self) -> Self {
        std::array::from_fn(|lane| self[lane] * other[lane] + sum[lane])
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod x86 {
    use super::Lanes;
    use std::arch::x86_64::*;

    macro_rules! lanes {
        ($type:ty, $count:literal, $splat:ident, $load:ident, $store:ident, $fma:ident) => {
            impl Lanes for $type {
                const COUNT: usize = $count;

                #[inline(always)]
                unsafe fn splat(value: f32) -> Self {
                    // SAFETY: the caller guarantees that the CPU has the instruction.
                    unsafe { $splat(value) }
                }

                #[inline(always)]
                unsafe fn load(from: *const f32) -> Self {
                    // SAFETY: the caller guarantees that the CPU has the instruction, and that the
                    // numbers may be read.
                    unsafe { $load(from) }
                }

                #[inline(always)]
                unsafe fn store(self, to: *mut f32) {
                    // SAFETY: the caller guarantees that the CPU has the instruction, and that the
                    // numbers may be written.
                    unsafe { $store(to, self) }
                }

                #[inline(always)]
                unsafe fn mul_add(self, other: Self, sum: Self) -> Self {
                    // SAFETY: the caller guarantees that the CPU has the instruction.
                    unsafe { $fma(self, other, sum) }
                }
            }
        };
    }
    lanes!(__m256, 8, _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_fmadd_ps);
    lanes!(__m512, 16, _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_fmadd_ps);
}
