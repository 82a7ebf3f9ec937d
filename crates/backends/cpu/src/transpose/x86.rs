//! The register tiles of AVX-512 and AVX2. [`tile`](super::tile) explains the idea.

use super::tile::CopyBlock;
use std::arch::x86_64::*;

/// A source row stride that is a multiple of this maps the rows of a tile to the same few cache
/// sets.
const CONFLICT_BYTES: usize = 2048;
const LINE_BYTES: usize = 64;

/// Copies a block with 64-byte registers if the output's rows are aligned to them, and the rest of
/// the inner axis with 32-byte registers.
///
/// # Safety
/// As for [`CopyBlock::transpose`]; the CPU must have the features.
#[target_feature(enable = "avx2,avx512f,avx512bw")]
pub unsafe fn transpose_avx512<const N: usize>(block: &CopyBlock<N>, stream: bool) {
    // SAFETY: the caller guarantees the block and the features; the rest is a part of the block.
    unsafe {
        let narrow = block.lengths.1 * N <= 16;
        let aligned = (block.to as usize | (block.out_across * N)).is_multiple_of(LINE_BYTES);
        if !narrow && !aligned {
            // Every store of a whole line would touch two lines. Half lines do so half as often: a
            // third faster.
            return transpose_avx2(block, false);
        }
        let done = match N {
            1 => tiles_avx512::<N, 16>(block, stream),
            2 => tiles_avx512::<N, 8>(block, stream),
            4 => tiles_avx512::<N, 4>(block, stream),
            _ => tiles_avx512::<N, 2>(block, stream),
        };
        if done < block.lengths.1 {
            transpose_avx2(&block.rest_from(done), false);
        }
    }
}

/// Copies a block with 32-byte registers, and the rest of the inner axis element by element.
///
/// # Safety
/// As for [`CopyBlock::transpose`]; the CPU must have the features.
#[target_feature(enable = "avx2")]
pub unsafe fn transpose_avx2<const N: usize>(block: &CopyBlock<N>, _stream: bool) {
    // SAFETY: the caller guarantees the block and the features; the rest is a part of the block.
    unsafe {
        let done = match N {
            1 => tiles_avx2::<N, 16>(block, false),
            2 => tiles_avx2::<N, 8>(block, false),
            4 => tiles_avx2::<N, 4>(block, false),
            _ => tiles_avx2::<N, 2>(block, false),
        };
        block.gather_part(1, 0..block.lengths.0, done..block.lengths.1);
    }
}

impl<const N: usize> CopyBlock<N> {
    /// The part of the block from `inner` on.
    ///
    /// # Safety
    /// `inner` must be below the inner length.
    unsafe fn rest_from(&self, inner: usize) -> CopyBlock<N> {
        // SAFETY: the element belongs to the block.
        let (from, to) = unsafe { (self.from.offset(inner as isize * self.inner), self.to.add(inner)) };
        CopyBlock { from, to, lengths: (self.lengths.0, self.lengths.1 - inner), ..*self }
    }

    /// Whether `rows` rows from `inner` on can be read up to column `end`, which may be beyond the
    /// block.
    fn may_read(&self, inner: usize, rows: usize, end: usize) -> bool {
        let first = self.from.wrapping_offset(inner as isize * self.inner);
        let last = first.wrapping_offset((rows - 1) as isize * self.inner);
        first.max(last).wrapping_add(end) <= self.from_end
    }
}

macro_rules! tiles {
    ($name:ident, $features:literal, $bytes:literal, $tile:ident, $pixels:ident) => {
        /// Copies whole tiles and returns the completed length along the inner axis.
        ///
        /// # Safety
        /// As for [`CopyBlock::transpose`]; the CPU must have the features.
        #[target_feature(enable = $features)]
        #[inline]
        unsafe fn $name<const N: usize, const K: usize>(block: &CopyBlock<N>, stream: bool) -> usize {
            const LANES: usize = $bytes / 16;
            let (across, inner) = block.lengths;
            if inner <= K && block.out_across == inner {
                // SAFETY: the output's rows are contiguous, and the caller guarantees the block.
                unsafe { $pixels::<N, K>(block) };
                return inner;
            }
            let line = LINE_BYTES / N;
            let whole_inner = inner - inner % (LANES * K);
            let out_row = block.out_across * N;
            let stream = stream && (block.to as usize).is_multiple_of($bytes) && out_row.is_multiple_of($bytes);
            let pack = (block.inner.unsigned_abs() * N).is_multiple_of(CONFLICT_BYTES);
            let mut packed = std::mem::MaybeUninit::<[u8; $bytes * LINE_BYTES]>::uninit();
            let packed = packed.as_mut_ptr().cast::<u8>();
            for i in (0..whole_inner).step_by(LANES * K) {
                for first in (0..across).step_by(line) {
                    let columns = line.min(across - first);
                    // SAFETY: all rows of the tile are within the block. The last columns may be
                    // read beyond the block, but not beyond the source's memory, and are not
                    // written.
                    unsafe {
                        if !columns.is_multiple_of(K)
                            && !block.may_read(i, LANES * K, first + columns.next_multiple_of(K))
                        {
                            block.gather_part(1, first..first + columns, i..i + LANES * K);
                            continue;
                        }
                        let mut from = block.from.offset(i as isize * block.inner).add(first).cast::<u8>();
                        let mut row_bytes = block.inner * N as isize;
                        if pack && columns == line {
                            for row in 0..LANES * K {
                                let source = from.offset(row as isize * row_bytes);
                                std::ptr::copy_nonoverlapping(source, packed.add(row * LINE_BYTES), LINE_BYTES);
                            }
                            (from, row_bytes) = (packed.cast_const(), LINE_BYTES as isize);
                        }
                        for a in (0..columns).step_by(K) {
                            let to = block.to.add((first + a) * block.out_across + i).cast::<u8>();
                            $tile::<K>(from.add(a * N), row_bytes, to, out_row, K.min(columns - a), stream);
                        }
                    }
                }
            }
            whole_inner
        }
    };
}

tiles!(tiles_avx512, "avx512f,avx512bw", 64, tile_avx512, pixels_avx512);
tiles!(tiles_avx2, "avx2", 32, tile_avx2, pixels_avx2);

/// Transposes the lanes of `K` registers.
macro_rules! transpose_lanes {
    ($lanes:ident, $K:ident, [$($lo:ident $hi:ident),*]) => {
        for _ in 0..$K.ilog2() {
            let before = $lanes;
            for half in 0..$K / 2 {
                let (a, b) = (before[half], before[half + $K / 2]);
                ($lanes[2 * half], $lanes[2 * half + 1]) =
                    transpose_lanes!(@pick $K, a, b, $($lo $hi),*);
            }
        }
    };
    (@pick $K:ident, $a:ident, $b:ident, $lo8:ident $hi8:ident, $lo16:ident $hi16:ident, $lo32:ident $hi32:ident,
     $lo64:ident $hi64:ident) => {
        match $K {
            16 => ($lo8($a, $b), $hi8($a, $b)),
            8 => ($lo16($a, $b), $hi16($a, $b)),
            4 => ($lo32($a, $b), $hi32($a, $b)),
            _ => ($lo64($a, $b), $hi64($a, $b)),
        }
    };
}

macro_rules! transpose_lanes_512 {
    ($lanes:ident, $K:ident) => {
        transpose_lanes!($lanes, $K, [
            _mm512_unpacklo_epi8 _mm512_unpackhi_epi8, _mm512_unpacklo_epi16 _mm512_unpackhi_epi16,
            _mm512_unpacklo_epi32 _mm512_unpackhi_epi32, _mm512_unpacklo_epi64 _mm512_unpackhi_epi64
        ])
    };
}

macro_rules! transpose_lanes_256 {
    ($lanes:ident, $K:ident) => {
        transpose_lanes!($lanes, $K, [
            _mm256_unpacklo_epi8 _mm256_unpackhi_epi8, _mm256_unpacklo_epi16 _mm256_unpackhi_epi16,
            _mm256_unpacklo_epi32 _mm256_unpackhi_epi32, _mm256_unpacklo_epi64 _mm256_unpackhi_epi64
        ])
    };
}

/// Transposes `4·K` rows of 16 bytes into `K` rows of 64 bytes and writes the first `keep` of them.
///
/// # Safety
/// All rows must be within their memory; with `stream`, the output rows must be aligned to 64
/// bytes.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
unsafe fn tile_avx512<const K: usize>(
    from: *const u8,
    row: isize,
    to: *mut u8,
    out_row: usize,
    keep: usize,
    stream: bool,
) {
    let mut lanes = [_mm512_setzero_si512(); K];
    for (index, register) in lanes.iter_mut().enumerate() {
        // SAFETY: rows `index + l·K` for l < 4 are among the `4·K` rows that the caller guarantees.
        unsafe {
            let load = |lane: usize| _mm_loadu_si128(from.offset((index + lane * K) as isize * row).cast::<__m128i>());
            let low = _mm512_castsi128_si512(load(0));
            let low = _mm512_inserti32x4::<1>(low, load(1));
            let low = _mm512_inserti32x4::<2>(low, load(2));
            *register = _mm512_inserti32x4::<3>(low, load(3));
        }
    }
    transpose_lanes_512!(lanes, K);
    for (index, register) in lanes.iter().enumerate() {
        if index < keep {
            // SAFETY: the caller guarantees output row `index`, and its alignment when streaming.
            unsafe {
                let to = to.add(index * out_row).cast::<__m512i>();
                if stream { _mm512_stream_si512(to, *register) } else { _mm512_storeu_si512(to, *register) }
            }
        }
    }
}

/// Transposes `2·K` rows of 16 bytes into `K` rows of 32 bytes and writes the first `keep` of them.
/// Half lines are never streamed: streaming them measured ten times slower.
///
/// # Safety
/// All rows must be within their memory.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn tile_avx2<const K: usize>(
    from: *const u8,
    row: isize,
    to: *mut u8,
    out_row: usize,
    keep: usize,
    _stream: bool,
) {
    let mut lanes = [_mm256_setzero_si256(); K];
    for (index, register) in lanes.iter_mut().enumerate() {
        // SAFETY: rows `index` and `index + K` are among the `2·K` rows that the caller guarantees.
        unsafe {
            let low = _mm_loadu_si128(from.offset(index as isize * row).cast::<__m128i>());
            let high = _mm_loadu_si128(from.offset((index + K) as isize * row).cast::<__m128i>());
            *register = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), high);
        }
    }
    transpose_lanes_256!(lanes, K);
    for (index, register) in lanes.iter().enumerate() {
        if index < keep {
            // SAFETY: the caller guarantees output row `index`.
            unsafe { _mm256_storeu_si256(to.add(index * out_row).cast::<__m256i>(), *register) };
        }
    }
}

/// Joins at most `K` planes into contiguous pixels. Each pixel is written as a whole lane. The next
/// pixel overwrites the surplus, and the last pixels are written one element at a time.
///
/// # Safety
/// As for [`CopyBlock::transpose`]; and the inner length is at most `K` and equal to `out_across`.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
unsafe fn pixels_avx512<const N: usize, const K: usize>(block: &CopyBlock<N>) {
    let (across, inner) = block.lengths;
    let mut done = 0;
    // SAFETY: the planes hold `4·K` elements from `done` on, and the last lane ends within the
    // block's output.
    unsafe {
        while done + 4 * K <= across && (done + 4 * K - 1) * inner + K <= across * inner {
            let mut lanes = [_mm512_setzero_si512(); K];
            for (plane, register) in lanes.iter_mut().enumerate().take(inner) {
                *register = _mm512_loadu_si512(block.from.offset(plane as isize * block.inner).add(done).cast());
            }
            transpose_lanes_512!(lanes, K);
            let to = |pixel: usize| block.to.add((done + pixel) * inner).cast::<__m128i>();
            for (index, register) in lanes.iter().enumerate() {
                _mm_storeu_si128(to(index), _mm512_castsi512_si128(*register));
            }
            for (index, register) in lanes.iter().enumerate() {
                _mm_storeu_si128(to(K + index), _mm512_extracti32x4_epi32::<1>(*register));
            }
            for (index, register) in lanes.iter().enumerate() {
                _mm_storeu_si128(to(2 * K + index), _mm512_extracti32x4_epi32::<2>(*register));
            }
            for (index, register) in lanes.iter().enumerate() {
                _mm_storeu_si128(to(3 * K + index), _mm512_extracti32x4_epi32::<3>(*register));
            }
            done += 4 * K;
        }
        block.gather_part(1, done..across, 0..inner);
    }
}

/// [`pixels_avx512`] with 32-byte registers.
///
/// # Safety
/// As for [`pixels_avx512`].
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn pixels_avx2<const N: usize, const K: usize>(block: &CopyBlock<N>) {
    let (across, inner) = block.lengths;
    let mut done = 0;
    // SAFETY: the planes hold `2·K` elements from `done` on, and the last lane ends within the
    // block's output.
    unsafe {
        while done + 2 * K <= across && (done + 2 * K - 1) * inner + K <= across * inner {
            let mut lanes = [_mm256_setzero_si256(); K];
            for (plane, register) in lanes.iter_mut().enumerate().take(inner) {
                *register = _mm256_loadu_si256(block.from.offset(plane as isize * block.inner).add(done).cast());
            }
            transpose_lanes_256!(lanes, K);
            let to = |pixel: usize| block.to.add((done + pixel) * inner).cast::<__m128i>();
            for (index, register) in lanes.iter().enumerate() {
                _mm_storeu_si128(to(index), _mm256_castsi256_si128(*register));
            }
            for (index, register) in lanes.iter().enumerate() {
                _mm_storeu_si128(to(K + index), _mm256_extracti128_si256::<1>(*register));
            }
            done += 2 * K;
        }
        block.gather_part(1, done..across, 0..inner);
    }
}
