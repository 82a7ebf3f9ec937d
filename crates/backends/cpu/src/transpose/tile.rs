//! Transposing one block: squares in registers, the ragged edges element by element.
//!
//! A register is treated as lanes of 16 bytes. A lane holds `K = 16 / N` elements of one source row, so `K` registers
//! hold, lane by lane, `K`×`K` squares; `log2 K` rounds of interleaving transpose all of them at once. Lane `l` is
//! filled from rows `l·K…`, so that each finished register is one contiguous piece of an output row.

use crate::simd::Simd;

/// Outputs of this size do not fit in any cache that matters: they are written past it, which saves reading each line
/// before it is overwritten.
const STREAM_BYTES_MIN: usize = 32 * 1024 * 1024;

/// Whether an output of this size is better written past the caches.
pub fn should_stream(out_bytes: usize) -> bool {
    out_bytes >= STREAM_BYTES_MIN
}

/// Must be called by each thread when its blocks are done: writes past the cache are not ordered with later ones.
pub fn finish(stream: bool) {
    #[cfg(target_arch = "x86_64")]
    if stream {
        // SAFETY: the fence is part of SSE, which every x86-64 CPU has.
        unsafe { std::arch::x86_64::_mm_sfence() };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = stream;
}

/// A block of a larger copy: `to[a * out_across + i] = from[a * across + i * inner]`, all in elements, for every
/// `a < lengths.0` and `i < lengths.1`.
#[derive(Clone, Copy)]
pub struct Block<const N: usize> {
    /// The block's first element in the source.
    pub from: *const [u8; N],
    /// The block's first element in the output.
    pub to: *mut [u8; N],
    /// Source stride of the inner axis (the output's contiguous one).
    pub inner: isize,
    /// Output stride of the axis across.
    pub out_across: usize,
    /// Lengths across and inner.
    pub lengths: (usize, usize),
}

impl<const N: usize> Block<N> {
    /// Copies the block where neighbours across are contiguous in the source (`across` is one).
    ///
    /// # Safety
    /// Every element of the block must be within the source and the output, no other thread may touch the output's
    /// elements, and this CPU must have `simd`.
    pub unsafe fn transpose(&self, simd: Simd, stream: bool) {
        match simd {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the caller vouches for the block and for the instructions.
            Simd::Avx512 if N <= 8 => unsafe { x86::transpose_avx512(self, stream) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above. Half a line at a time cannot be streamed: that measured ten times slower.
            Simd::Avx2 if N <= 8 => unsafe { x86::transpose_avx2(self, false) },
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
    /// As [`Block::transpose`], with `across` as the source stride of the axis across.
    pub unsafe fn gather(&self, across: isize) {
        // SAFETY: the whole block is the caller's promise.
        unsafe { self.gather_part(across, 0..self.lengths.0, 0..self.lengths.1) }
    }

    /// # Safety
    /// As [`Block::gather`]; the ranges must lie within `lengths`.
    unsafe fn gather_part(&self, across: isize, a: std::ops::Range<usize>, i: std::ops::Range<usize>) {
        for a in a {
            // SAFETY: `a` and `i` are within the block, which the caller vouches for.
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

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Block;
    use std::arch::x86_64::*;

    /// A source row stride that is a multiple of this puts the rows of a tile into the same few cache sets.
    const CONFLICT_BYTES: usize = 2048;
    const LINE_BYTES: usize = 64;

    macro_rules! transpose_block {
        ($name:ident, $features:literal, $bytes:literal, $tile:ident) => {
            /// # Safety
            /// As [`Block::transpose`]; the CPU must have the features.
            #[target_feature(enable = $features)]
            pub unsafe fn $name<const N: usize>(block: &Block<N>, stream: bool) {
                // SAFETY: the caller vouches for the block and for the features.
                unsafe {
                    match N {
                        1 => whole_tiles::<N, 16>(block, stream),
                        2 => whole_tiles::<N, 8>(block, stream),
                        4 => whole_tiles::<N, 4>(block, stream),
                        _ => whole_tiles::<N, 2>(block, stream),
                    }
                }

                #[target_feature(enable = $features)]
                #[inline]
                unsafe fn whole_tiles<const N: usize, const K: usize>(block: &Block<N>, stream: bool) {
                    const LANES: usize = $bytes / 16;
                    let (across, inner) = block.lengths;
                    let line = LINE_BYTES / N;
                    let (whole_across, whole_inner) = (across - across % K, inner - inner % (LANES * K));
                    let stream = stream
                        && (block.to as usize).is_multiple_of($bytes)
                        && (block.out_across * N).is_multiple_of($bytes);
                    let pack = (block.inner.unsigned_abs() * N).is_multiple_of(CONFLICT_BYTES);
                    let mut packed = [0_u8; $bytes * LINE_BYTES];
                    // SAFETY: tiles are taken only where all of their rows and columns are within the block; the
                    // edges are left to the element loop.
                    unsafe {
                        for i in (0..whole_inner).step_by(LANES * K) {
                            for first in (0..whole_across).step_by(line) {
                                let columns = line.min(whole_across - first);
                                let mut from = block.from.offset(i as isize * block.inner).add(first).cast::<u8>();
                                let mut row_bytes = block.inner * N as isize;
                                if pack && columns == line {
                                    for row in 0..LANES * K {
                                        let source = from.offset(row as isize * row_bytes);
                                        let copy = packed.as_mut_ptr().add(row * LINE_BYTES);
                                        std::ptr::copy_nonoverlapping(source, copy, LINE_BYTES);
                                    }
                                    (from, row_bytes) = (packed.as_ptr(), LINE_BYTES as isize);
                                }
                                for a in (0..columns).step_by(K) {
                                    let to = block.to.add((first + a) * block.out_across + i).cast::<u8>();
                                    $tile::<K>(from.add(a * N), row_bytes, to, block.out_across * N, stream);
                                }
                            }
                        }
                        block.gather_part(1, 0..whole_across, whole_inner..inner);
                        block.gather_part(1, whole_across..across, 0..inner);
                    }
                }
            }
        };
    }

    transpose_block!(transpose_avx512, "avx512f,avx512bw", 64, tile_avx512);
    transpose_block!(transpose_avx2, "avx2", 32, tile_avx2);

    /// Transposes `4·K` rows of 16 bytes into `K` rows of 64 bytes.
    ///
    /// # Safety
    /// All rows must be within their memory; with `stream`, the output rows must be aligned to 64 bytes.
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    unsafe fn tile_avx512<const K: usize>(from: *const u8, row: isize, to: *mut u8, out_row: usize, stream: bool) {
        let mut lanes = [_mm512_setzero_si512(); K];
        for (index, register) in lanes.iter_mut().enumerate() {
            // SAFETY: rows `index + l·K` for l < 4 are among the `4·K` that the caller vouches for.
            unsafe {
                let load =
                    |lane: usize| _mm_loadu_si128(from.offset((index + lane * K) as isize * row).cast::<__m128i>());
                let low = _mm512_castsi128_si512(load(0));
                let low = _mm512_inserti32x4::<1>(low, load(1));
                let low = _mm512_inserti32x4::<2>(low, load(2));
                *register = _mm512_inserti32x4::<3>(low, load(3));
            }
        }
        for _ in 0..K.ilog2() {
            let before = lanes;
            for half in 0..K / 2 {
                let (a, b) = (before[half], before[half + K / 2]);
                (lanes[2 * half], lanes[2 * half + 1]) = match K {
                    16 => (_mm512_unpacklo_epi8(a, b), _mm512_unpackhi_epi8(a, b)),
                    8 => (_mm512_unpacklo_epi16(a, b), _mm512_unpackhi_epi16(a, b)),
                    4 => (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b)),
                    _ => (_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b)),
                };
            }
        }
        for (index, register) in lanes.iter().enumerate() {
            // SAFETY: output row `index` of `K` is the caller's promise, as is the alignment when streaming.
            unsafe {
                let to = to.add(index * out_row).cast::<__m512i>();
                if stream { _mm512_stream_si512(to, *register) } else { _mm512_storeu_si512(to, *register) }
            }
        }
    }

    /// Transposes `2·K` rows of 16 bytes into `K` rows of 32 bytes.
    ///
    /// # Safety
    /// All rows must be within their memory.
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn tile_avx2<const K: usize>(from: *const u8, row: isize, to: *mut u8, out_row: usize, _stream: bool) {
        let mut lanes = [_mm256_setzero_si256(); K];
        for (index, register) in lanes.iter_mut().enumerate() {
            // SAFETY: rows `index` and `index + K` are among the `2·K` that the caller vouches for.
            unsafe {
                let low = _mm_loadu_si128(from.offset(index as isize * row).cast::<__m128i>());
                let high = _mm_loadu_si128(from.offset((index + K) as isize * row).cast::<__m128i>());
                *register = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), high);
            }
        }
        for _ in 0..K.ilog2() {
            let before = lanes;
            for half in 0..K / 2 {
                let (a, b) = (before[half], before[half + K / 2]);
                (lanes[2 * half], lanes[2 * half + 1]) = match K {
                    16 => (_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b)),
                    8 => (_mm256_unpacklo_epi16(a, b), _mm256_unpackhi_epi16(a, b)),
                    4 => (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b)),
                    _ => (_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b)),
                };
            }
        }
        for (index, register) in lanes.iter().enumerate() {
            // SAFETY: output row `index` of `K` is the caller's promise.
            unsafe {
                _mm256_storeu_si256(to.add(index * out_row).cast::<__m256i>(), *register);
            }
        }
    }
}
