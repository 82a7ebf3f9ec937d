//! AVX-512: 28 registers of sums, two registers of B, and A broadcast from memory.

use std::arch::x86_64::*;

use super::AHEAD_BYTES_PER_CHUNK;

/// Defines one kernel from its vector operations.
macro_rules! kernel {
    ($features:literal, $word:ty, $acc:ty, $lanes:literal, $mask:ty,
     wide: $wide:ty, load: $load:expr, splat: $splat:expr, sum: $sum:ty, zero: $zero:expr, fma: $fma:expr,
     add: $add:expr, mask_load: $mask_load:expr, mask_store: $mask_store:expr) => {
        const ROWS: usize = 14;
        const COLS: usize = 2 * $lanes;
        const CHUNK: usize = 64 / size_of::<$word>();

        type FixedRowsKernel =
            unsafe fn(usize, *const $word, *const $word, usize, *mut $acc, usize, usize, bool, *const $word);

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

        /// A kernel as described by [`TileFn`](super::super::TileFn).
        ///
        /// # Safety
        /// As for [`TileFn`](super::super::TileFn).
        pub(in super::super) unsafe fn tile(
            steps: usize,
            a: *const $word,
            b: *const $word,
            dst: *mut $acc,
            ld: usize,
            rows: usize,
            cols: usize,
            accumulate: bool,
            ahead: *const $word,
        ) {
            // SAFETY: the caller's contract, with the number of rows and vectors made constants.
            unsafe { FIXED[rows - 1][(cols - 1) / $lanes](steps, a, b, COLS, dst, ld, cols, accumulate, ahead) }
        }

        #[target_feature(enable = $features)]
        #[allow(clippy::needless_range_loop)] // Constant bounds over registers read best as indices.
        unsafe fn fixed<const R: usize, const V: usize>(
            steps: usize,
            mut a: *const $word,
            mut b: *const $word,
            b_step: usize,
            dst: *mut $acc,
            ld: usize,
            cols: usize,
            accumulate: bool,
            mut ahead: *const $word,
        ) {
            let mut sums: [[$sum; V]; R] = [[$zero; V]; R];
            for r in 0..R {
                for v in 0..V {
                    // Prefetches the result's lines while the products are computed.
                    _mm_prefetch::<_MM_HINT_T0>(dst.wrapping_add(r * ld + v * $lanes).cast());
                }
            }
            let mut left = steps;
            while left > 0 {
                let count = left.min(CHUNK);
                for line in 0..AHEAD_BYTES_PER_CHUNK / 64 {
                    _mm_prefetch::<_MM_HINT_T1>(ahead.wrapping_byte_add(line * 64).cast());
                }
                ahead = ahead.wrapping_byte_add(AHEAD_BYTES_PER_CHUNK);
                for offset in 0..count {
                    // SAFETY: a step of B has `V` vectors of words, a chunk of A's panel `ROWS`
                    // lines of `CHUNK` words.
                    unsafe {
                        let wide: [$wide; V] = std::array::from_fn(|v| $load(b.add(v * $lanes)));
                        for r in 0..R {
                            let one = $splat(a.add(r * CHUNK + offset));
                            for v in 0..V {
                                sums[r][v] = $fma(one, wide[v], sums[r][v]);
                            }
                        }
                        b = b.wrapping_add(b_step);
                    }
                }
                left -= count;
                a = a.wrapping_add(ROWS * CHUNK);
            }
            for r in 0..R {
                for v in 0..V {
                    let live = (cols - v * $lanes).min($lanes);
                    let mask = ((1_u32 << live) - 1) as $mask;
                    // SAFETY: the mask restricts loads and stores to the valid columns of row `r`.
                    unsafe {
                        let at = dst.add(r * ld + v * $lanes);
                        if accumulate {
                            sums[r][v] = $add(sums[r][v], $mask_load(mask, at));
                        }
                        $mask_store(at, mask, sums[r][v]);
                    }
                }
            }
        }
    };
}

/// Defines the kernel of a type that is multiplied in its memory format.
macro_rules! in_place {
    ($word:ty, $acc:ty, $lanes:literal) => {
        /// A kernel as described by [`InPlaceFn`](super::super::InPlaceFn).
        ///
        /// # Safety
        /// As for [`InPlaceFn`](super::super::InPlaceFn).
        pub(in super::super) unsafe fn tile_in_place(
            steps: usize,
            a: *const $word,
            b: *const $word,
            b_step: usize,
            dst: *mut $acc,
            ld: usize,
            rows: usize,
            cols: usize,
        ) {
            // SAFETY: the caller's contract; the columns are whole vectors, so no other column is
            // read.
            unsafe { FIXED[rows - 1][(cols - 1) / $lanes](steps, a, b, b_step, dst, ld, cols, false, b) }
        }
    };
}

pub(super) mod f32 {
    use super::*;
    in_place!(u32, f32, 16);
    kernel!("avx512f", u32, f32, 16, __mmask16,
        wide: __m512, load: |p: *const u32| _mm512_loadu_ps(p.cast()),
        splat: |p: *const u32| _mm512_set1_ps(*p.cast::<f32>()),
        sum: __m512, zero: _mm512_setzero_ps(), fma: |x, y, sum| _mm512_fmadd_ps(x, y, sum),
        add: |x, y| _mm512_add_ps(x, y), mask_load: |m, p| _mm512_maskz_loadu_ps(m, p),
        mask_store: |p, m, x| _mm512_mask_storeu_ps(p, m, x));
}

pub(super) mod f64 {
    use super::*;
    in_place!(u64, f64, 8);
    kernel!("avx512f", u64, f64, 8, __mmask8,
        wide: __m512d, load: |p: *const u64| _mm512_loadu_pd(p.cast()),
        splat: |p: *const u64| _mm512_set1_pd(*p.cast::<f64>()),
        sum: __m512d, zero: _mm512_setzero_pd(), fma: |x, y, sum| _mm512_fmadd_pd(x, y, sum),
        add: |x, y| _mm512_add_pd(x, y), mask_load: |m, p| _mm512_maskz_loadu_pd(m, p),
        mask_store: |p, m, x| _mm512_mask_storeu_pd(p, m, x));
}

pub(super) mod i32 {
    use super::*;
    kernel!("avx512f", u32, i32, 16, __mmask16,
        wide: __m512i, load: |p: *const u32| _mm512_loadu_si512(p.cast()),
        splat: |p: *const u32| _mm512_set1_epi32(*p.cast::<i32>()),
        sum: __m512i, zero: _mm512_setzero_si512(), fma: |x, y, sum| _mm512_add_epi32(_mm512_mullo_epi32(x, y), sum),
        add: |x, y| _mm512_add_epi32(x, y), mask_load: |m, p| _mm512_maskz_loadu_epi32(m, p),
        mask_store: |p, m, x| _mm512_mask_storeu_epi32(p, m, x));
}

pub(super) mod i16 {
    use super::*;
    kernel!("avx512f,avx512bw", u32, i32, 16, __mmask16,
        wide: __m512i, load: |p: *const u32| _mm512_loadu_si512(p.cast()),
        splat: |p: *const u32| _mm512_set1_epi32(*p.cast::<i32>()),
        sum: __m512i, zero: _mm512_setzero_si512(), fma: |x, y, sum| _mm512_add_epi32(_mm512_madd_epi16(x, y), sum),
        add: |x, y| _mm512_add_epi32(x, y), mask_load: |m, p| _mm512_maskz_loadu_epi32(m, p),
        mask_store: |p, m, x| _mm512_mask_storeu_epi32(p, m, x));
}

pub(super) mod bf16 {
    use super::*;
    kernel!("avx512f,avx512bf16", u32, f32, 16, __mmask16,
        wide: __m512bh, load: |p: *const u32| std::mem::transmute::<__m512i, __m512bh>(_mm512_loadu_si512(p.cast())),
        splat: |p: *const u32| std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(*p.cast::<i32>())),
        sum: __m512, zero: _mm512_setzero_ps(), fma: |x, y, sum| _mm512_dpbf16_ps(sum, x, y),
        add: |x, y| _mm512_add_ps(x, y), mask_load: |m, p| _mm512_maskz_loadu_ps(m, p),
        mask_store: |p, m, x| _mm512_mask_storeu_ps(p, m, x));
}

/// Complex products: one sum multiplies A's real part and one its imaginary part, both with B as it
/// is in memory. Both sums are joined when the tile is written.
pub(super) mod complex {
    use super::*;
    use panoply_core::dtype::Complex64;

    const ROWS: usize = 6;
    const LANES: usize = 8;
    const COLS: usize = 2 * LANES;
    const CHUNK: usize = 8;

    /// A kernel as described by [`TileFn`](super::super::TileFn).
    ///
    /// # Safety
    /// As for [`TileFn`](super::super::TileFn).
    pub(in super::super) unsafe fn tile(
        steps: usize,
        a: *const u64,
        b: *const u64,
        dst: *mut Complex64,
        ld: usize,
        rows: usize,
        cols: usize,
        accumulate: bool,
        _ahead: *const u64,
    ) {
        type FixedRowsKernel = unsafe fn(usize, *const u64, *const u64, *mut Complex64, usize, usize, bool);
        const FIXED: [[FixedRowsKernel; 2]; ROWS] = [
            [fixed::<1, 1>, fixed::<1, 2>],
            [fixed::<2, 1>, fixed::<2, 2>],
            [fixed::<3, 1>, fixed::<3, 2>],
            [fixed::<4, 1>, fixed::<4, 2>],
            [fixed::<5, 1>, fixed::<5, 2>],
            [fixed::<6, 1>, fixed::<6, 2>],
        ];
        // SAFETY: the caller's contract, with the number of rows and vectors made constants.
        unsafe { FIXED[rows - 1][(cols - 1) / LANES](steps, a, b, dst, ld, cols, accumulate) }
    }

    #[target_feature(enable = "avx512f")]
    #[allow(clippy::needless_range_loop)] // Constant bounds over registers read best as indices.
    unsafe fn fixed<const R: usize, const V: usize>(
        steps: usize,
        mut a: *const u64,
        mut b: *const u64,
        dst: *mut Complex64,
        ld: usize,
        cols: usize,
        accumulate: bool,
    ) {
        let mut by_real = [[_mm512_setzero_ps(); V]; R];
        let mut by_imaginary = [[_mm512_setzero_ps(); V]; R];
        let mut left = steps;
        while left > 0 {
            let count = left.min(CHUNK);
            for offset in 0..count {
                // SAFETY: a step of B's panel has `COLS` words, a chunk of A's panel `ROWS` lines
                // of `CHUNK` words.
                unsafe {
                    let wide: [__m512; V] = std::array::from_fn(|v| _mm512_load_ps(b.add(v * LANES).cast()));
                    for r in 0..R {
                        let one = a.add(r * CHUNK + offset).cast::<f32>();
                        let (real, imaginary) = (_mm512_set1_ps(*one), _mm512_set1_ps(*one.add(1)));
                        for v in 0..V {
                            by_real[r][v] = _mm512_fmadd_ps(real, wide[v], by_real[r][v]);
                            by_imaginary[r][v] = _mm512_fmadd_ps(imaginary, wide[v], by_imaginary[r][v]);
                        }
                    }
                    b = b.add(COLS);
                }
            }
            left -= count;
            a = a.wrapping_add(ROWS * CHUNK);
        }
        for r in 0..R {
            for v in 0..V {
                let live = 2 * (cols - v * LANES).min(LANES);
                let mask = ((1_u32 << live) - 1) as __mmask16;
                let crossed = _mm512_permute_ps::<0b10_11_00_01>(by_imaginary[r][v]);
                // Real parts subtract the crossed product, imaginary parts add it.
                let mut sum = _mm512_fmaddsub_ps(_mm512_set1_ps(1.0), by_real[r][v], crossed);
                // SAFETY: the mask restricts loads and stores to the valid columns of row `r`.
                unsafe {
                    let at = dst.add(r * ld + v * LANES).cast::<f32>();
                    if accumulate {
                        sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, at));
                    }
                    _mm512_mask_storeu_ps(at, mask, sum);
                }
            }
        }
    }
}
