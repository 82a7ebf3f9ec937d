//! AVX-512 with dot products of four bytes: 28 registers of sums, two registers of B, and A
//! broadcast from memory.
//!
//! The instruction multiplies unsigned bytes with signed bytes. B's signed bytes are converted to
//! unsigned ones by adding 128. Each sum is then too large by 128 times the sum of A's row, so it
//! starts at minus that value (`debts`). Nothing saturates: sums wrap at 32 bits, as in the other
//! kernels.

use std::arch::x86_64::*;

use super::AHEAD_BYTES_PER_CHUNK;

const ROWS: usize = 14;
const LANES: usize = 16;
const COLS: usize = 2 * LANES;
/// Steps in a chunk of A.
const CHUNK: usize = 16;

type FixedRowsKernel = unsafe fn(usize, *const u32, *const u32, *mut i32, usize, usize, bool, *const u32);

/// By rows - 1, then by the number of B's vectors with valid columns - 1.
const FIXED: [[FixedRowsKernel; 2]; ROWS] = [
    [fixed::<1, 1>, fixed::<1, 2>],
    [fixed::<2, 1>, fixed::<2, 2>],
    [fixed::<3, 1>, fixed::<3, 2>],
    [fixed::<4, 1>, fixed::<4, 2>],
    [fixed::<5, 1>, fixed::<5, 2>],
    [fixed::<6, 1>, fixed::<6, 2>],
    [fixed::<7, 1>, fixed::<7, 2>],
    [fixed::<8, 1>, fixed::<8, 2>],
    [fixed::<9, 1>, fixed::<9, 2>],
    [fixed::<10, 1>, fixed::<10, 2>],
    [fixed::<11, 1>, fixed::<11, 2>],
    [fixed::<12, 1>, fixed::<12, 2>],
    [fixed::<13, 1>, fixed::<13, 2>],
    [fixed::<14, 1>, fixed::<14, 2>],
];

/// A kernel as described by [`TileFn`](super::TileFn); words are four signed bytes.
///
/// # Safety
/// As for [`TileFn`](super::TileFn).
pub(super) unsafe fn tile(
    steps: usize,
    a: *const u32,
    b: *const u32,
    dst: *mut i32,
    ld: usize,
    rows: usize,
    cols: usize,
    accumulate: bool,
    ahead: *const u32,
) {
    // SAFETY: the caller's contract, with the number of rows and vectors made constants.
    unsafe { FIXED[rows - 1][(cols - 1) / LANES](steps, a, b, dst, ld, cols, accumulate, ahead) }
}

/// For each of `R` lines of A's panel, -128 times the sum of its bytes.
///
/// # Safety
/// `a` points to a packed panel of `steps` steps, and the CPU has the instructions.
#[target_feature(enable = "avx512f,avx512vnni")]
#[inline]
unsafe fn debts<const R: usize>(steps: usize, a: *const u32) -> [i32; R] {
    let unsigned = _mm512_set1_epi8(-128);
    let mut debts = [0; R];
    for (r, debt) in debts.iter_mut().enumerate() {
        let (mut line, mut left, mut sum) = (a.wrapping_add(r * CHUNK), steps, _mm512_setzero_si512());
        while left > 0 {
            let count = left.min(CHUNK);
            let mask = ((1_u32 << count) - 1) as __mmask16;
            // SAFETY: the mask restricts the load to the steps of this chunk's line.
            let words = unsafe { _mm512_maskz_loadu_epi32(mask, line.cast()) };
            sum = _mm512_dpbusd_epi32(sum, unsigned, words);
            line = line.wrapping_add(ROWS * CHUNK);
            left -= count;
        }
        *debt = _mm512_reduce_add_epi32(sum).wrapping_neg();
    }
    debts
}

#[target_feature(enable = "avx512f,avx512vnni")]
#[allow(clippy::needless_range_loop)] // Constant bounds over registers read best as indices.
unsafe fn fixed<const R: usize, const V: usize>(
    steps: usize,
    mut a: *const u32,
    mut b: *const u32,
    dst: *mut i32,
    ld: usize,
    cols: usize,
    accumulate: bool,
    mut ahead: *const u32,
) {
    // SAFETY: the caller's contract.
    let debts = unsafe { debts::<R>(steps, a) };
    let mut sums = [[_mm512_setzero_si512(); V]; R];
    for r in 0..R {
        for v in 0..V {
            sums[r][v] = _mm512_set1_epi32(debts[r]);
            // Prefetches the result's lines while the products are computed.
            _mm_prefetch::<_MM_HINT_T0>(dst.wrapping_add(r * ld + v * LANES).cast());
        }
    }
    let unsigned = _mm512_set1_epi8(-128);
    let mut left = steps;
    while left > 0 {
        let count = left.min(CHUNK);
        for line in 0..AHEAD_BYTES_PER_CHUNK / 64 {
            _mm_prefetch::<_MM_HINT_T1>(ahead.wrapping_byte_add(line * 64).cast());
        }
        ahead = ahead.wrapping_byte_add(AHEAD_BYTES_PER_CHUNK);
        for offset in 0..count {
            // SAFETY: a step of B's panel has `COLS` words, a chunk of A's panel `ROWS` lines of
            // `CHUNK` words.
            unsafe {
                let wide: [__m512i; V] =
                    std::array::from_fn(|v| _mm512_xor_si512(unsigned, _mm512_loadu_si512(b.add(v * LANES).cast())));
                for r in 0..R {
                    let one = _mm512_set1_epi32(*a.add(r * CHUNK + offset).cast::<i32>());
                    for v in 0..V {
                        sums[r][v] = _mm512_dpbusd_epi32(sums[r][v], wide[v], one);
                    }
                }
                b = b.wrapping_add(COLS);
            }
        }
        left -= count;
        a = a.wrapping_add(ROWS * CHUNK);
    }
    for r in 0..R {
        for v in 0..V {
            let live = (cols - v * LANES).min(LANES);
            let mask = ((1_u32 << live) - 1) as __mmask16;
            // SAFETY: the mask restricts loads and stores to the valid columns of row `r`.
            unsafe {
                let at = dst.add(r * ld + v * LANES);
                if accumulate {
                    sums[r][v] = _mm512_add_epi32(sums[r][v], _mm512_maskz_loadu_epi32(mask, at));
                }
                _mm512_mask_storeu_epi32(at, mask, sums[r][v]);
            }
        }
    }
}
