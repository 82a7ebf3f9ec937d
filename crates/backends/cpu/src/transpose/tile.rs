//! Transposes one block: squares in registers, the ragged edges element by element.
//!
//! A register is treated as lanes of 16 bytes. A lane holds `K = 16 / N` elements of one source
//! row, so `K` registers hold, lane by lane, `K`×`K` squares; `log2 K` rounds of interleaving
//! transpose all of them at once. Lane `l` is filled from rows `l·K…`, so that each finished
//! register is one contiguous piece of an output row. Images with few channels have rows shorter
//! than a lane; they are split or joined pixel by pixel in the same registers.

use crate::color::{deinterleave3, interleave3};
use crate::simd::Simd;

/// Minimum size of outputs that exceed any relevant cache. They are written past the caches, which
/// saves reading each line before it is overwritten.
const STREAM_BYTES_MIN: usize = 32 * 1024 * 1024;

/// Whether writing an output of this size past the caches is faster.
pub fn should_stream(out_bytes: usize) -> bool {
    out_bytes >= STREAM_BYTES_MIN
}

/// Orders the streamed writes before later ones. Each thread must call this function when its
/// blocks are done.
pub fn finish(stream: bool) {
    #[cfg(target_arch = "x86_64")]
    if stream {
        // SAFETY: the fence is part of SSE, which every x86-64 CPU has.
        unsafe { std::arch::x86_64::_mm_sfence() };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = stream;
}

/// A block of a larger copy: `to[a * out_across + i] = from[a * across + i * inner]`, all in
/// elements, for every `a < lengths.0` and `i < lengths.1`.
#[derive(Clone, Copy)]
pub struct CopyBlock<const N: usize> {
    /// The block's first element in the source.
    pub from: *const [u8; N],
    /// The block's first element in the output.
    pub to: *mut [u8; N],
    /// Source stride of the inner axis, which is contiguous in the output.
    pub inner: isize,
    /// Output stride of the `across` axis.
    pub out_across: usize,
    /// Lengths of the `across` and inner axes.
    pub lengths: (usize, usize),
    /// One past the last element of the source's memory.
    pub from_end: *const [u8; N],
}

impl<const N: usize> CopyBlock<N> {
    /// Copies a block whose neighbours across are contiguous in the source (`across` is one).
    ///
    /// # Safety
    /// Every element of the block must be inside the source and the output, no other thread may
    /// access the output's elements, and this CPU must have `simd`.
    pub unsafe fn transpose(&self, simd: Simd, stream: bool) {
        // SAFETY: the caller guarantees the block.
        if N == 1 && unsafe { self.three_planes(simd) } {
            return;
        }
        match simd {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the caller guarantees the block and the instructions.
            Simd::Avx512 if N <= 8 => unsafe { super::x86::transpose_avx512(self, stream) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above. Half lines must not be streamed: streaming them measured ten times
            // slower.
            Simd::Avx2 if N <= 8 => unsafe { super::x86::transpose_avx2(self, false) },
            _ => {
                let _ = stream;
                // SAFETY: as above.
                unsafe { self.gather(1) }
            }
        }
    }

    /// Copies the block element by element.
    ///
    /// # Safety
    /// As for [`CopyBlock::transpose`], with `across` as the source stride of the `across` axis.
    pub unsafe fn gather(&self, across: isize) {
        // SAFETY: the caller guarantees the whole block.
        unsafe { self.gather_part(across, 0..self.lengths.0, 0..self.lengths.1) }
    }

    /// Splits or joins three interleaved bytes. False if the block is neither case.
    ///
    /// # Safety
    /// As for [`CopyBlock::transpose`].
    unsafe fn three_planes(&self, simd: Simd) -> bool {
        let (across, inner) = self.lengths;
        let (from, to) = (self.from.cast::<u8>(), self.to.cast::<u8>());
        if across == 3 && self.inner == 3 {
            // SAFETY: the source's pixels are contiguous. The output has three rows of `inner`
            // bytes that do not overlap, because they are rows of one block.
            unsafe {
                let pixels = std::slice::from_raw_parts(from, inner * 3);
                let plane = |a: usize| std::slice::from_raw_parts_mut(to.add(a * self.out_across), inner);
                deinterleave3(simd, pixels, plane(0), plane(1), plane(2));
            }
            return true;
        }
        if inner == 3 && self.out_across == 3 {
            // SAFETY: the source has three rows of `across` bytes, and the output's pixels are
            // contiguous.
            unsafe {
                let plane = |i: isize| std::slice::from_raw_parts(from.offset(i * self.inner), across);
                let pixels = std::slice::from_raw_parts_mut(to, across * 3);
                interleave3(simd, plane(0), plane(1), plane(2), pixels);
            }
            return true;
        }
        false
    }

    /// # Safety
    /// As for [`CopyBlock::gather`]; the ranges must be within `lengths`.
    pub(super) unsafe fn gather_part(&self, across: isize, a: std::ops::Range<usize>, i: std::ops::Range<usize>) {
        for a in a {
            // SAFETY: `a` and `i` are within the block, which the caller guarantees.
            unsafe {
                let from = self.from.offset(a as isize * across);
                let to = self.to.add(a * self.out_across);
                for i in i.clone() {
                    *to.add(i) = *from.offset(i as isize * self.inner);
                }
            }
        }
    }
}
