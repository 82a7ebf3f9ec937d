//! AVX2: twelve registers of sums, two registers of B, and A broadcast from memory.

use std::arch::x86_64::*;

/// Defines one kernel from its vector operations. A tile with fewer columns than the kernel has is
/// computed in a copy.
macro_rules! kernel {
    ($word:ty, $acc:ty, $lanes:literal,
     vector: $vector:ty, load: $load:expr, splat: $splat:expr, zero: $zero:expr, fma: $fma:expr,
     add: $add:expr, load_sum: $load_sum:expr, store_sum: $store_sum:expr) => {
        const ROWS: usize = 6;
        const COLS: usize = 2 * $lanes;
        const CHUNK: usize = 64 / size_of::<$word>();

        type FixedRowsKernel = unsafe fn(usize, *const $word, *const $word, *mut $acc, usize, bool);

        const FIXED: [FixedRowsKernel; ROWS] = [fixed::<1>, fixed::<2>, fixed::<3>, fixed::<4>, fixed::<5>, fixed::<6>];

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
            _ahead: *const $word,
        ) {
            if cols == COLS {
                // SAFETY: the caller's contract, with the number of rows made a constant.
                return unsafe { FIXED[rows - 1](steps, a, b, dst, ld, accumulate) };
            }
            let mut full = [[<$acc>::default(); COLS]; ROWS];
            // SAFETY: the copy has room for the kernel's whole tile, and `dst` for its valid part.
            unsafe {
                FIXED[rows - 1](steps, a, b, full.as_mut_ptr().cast(), COLS, false);
                super::super::scalar::put_down(&full.as_flattened()[..rows * COLS], COLS, dst, ld, cols, accumulate);
            }
        }

        #[target_feature(enable = "avx2,fma")]
        #[allow(clippy::needless_range_loop)] // Constant bounds over registers read best as indices.
        unsafe fn fixed<const R: usize>(
            steps: usize,
            mut a: *const $word,
            mut b: *const $word,
            dst: *mut $acc,
            ld: usize,
            accumulate: bool,
        ) {
            let mut sums: [[$vector; 2]; R] = [[$zero; 2]; R];
            let mut left = steps;
            while left > 0 {
                let count = left.min(CHUNK);
                for offset in 0..count {
                    // SAFETY: a step of B's panel has `COLS` words, a chunk of A's panel `ROWS`
                    // lines of `CHUNK` words.
                    unsafe {
                        let wide: [$vector; 2] = [$load(b), $load(b.add($lanes))];
                        for r in 0..R {
                            let one = $splat(a.add(r * CHUNK + offset));
                            sums[r][0] = $fma(one, wide[0], sums[r][0]);
                            sums[r][1] = $fma(one, wide[1], sums[r][1]);
                        }
                        b = b.add(COLS);
                    }
                }
                left -= count;
                a = a.wrapping_add(ROWS * CHUNK);
            }
            for r in 0..R {
                for v in 0..2 {
                    // SAFETY: the tile has `R` rows of `COLS` elements.
                    unsafe {
                        let at = dst.add(r * ld + v * $lanes);
                        if accumulate {
                            sums[r][v] = $add(sums[r][v], $load_sum(at));
                        }
                        $store_sum(at, sums[r][v]);
                    }
                }
            }
        }
    };
}

pub(super) mod f32 {
    use super::*;
    kernel!(u32, f32, 8,
        vector: __m256, load: |p: *const u32| _mm256_load_ps(p.cast()),
        splat: |p: *const u32| _mm256_set1_ps(*p.cast::<f32>()),
        zero: _mm256_setzero_ps(), fma: |x, y, sum| _mm256_fmadd_ps(x, y, sum),
        add: |x, y| _mm256_add_ps(x, y), load_sum: |p| _mm256_loadu_ps(p), store_sum: |p, x| _mm256_storeu_ps(p, x));
}

pub(super) mod f64 {
    use super::*;
    kernel!(u64, f64, 4,
        vector: __m256d, load: |p: *const u64| _mm256_load_pd(p.cast()),
        splat: |p: *const u64| _mm256_set1_pd(*p.cast::<f64>()),
        zero: _mm256_setzero_pd(), fma: |x, y, sum| _mm256_fmadd_pd(x, y, sum),
        add: |x, y| _mm256_add_pd(x, y), load_sum: |p| _mm256_loadu_pd(p), store_sum: |p, x| _mm256_storeu_pd(p, x));
}

pub(super) mod i32 {
    use super::*;
    kernel!(u32, i32, 8,
        vector: __m256i, load: |p: *const u32| _mm256_load_si256(p.cast()),
        splat: |p: *const u32| _mm256_set1_epi32(*p.cast::<i32>()),
        zero: _mm256_setzero_si256(), fma: |x, y, sum| _mm256_add_epi32(_mm256_mullo_epi32(x, y), sum),
        add: |x, y| _mm256_add_epi32(x, y), load_sum: |p: *mut i32| _mm256_loadu_si256(p.cast()),
        store_sum: |p: *mut i32, x| _mm256_storeu_si256(p.cast(), x));
}

pub(super) mod i16 {
    use super::*;
    kernel!(u32, i32, 8,
        vector: __m256i, load: |p: *const u32| _mm256_load_si256(p.cast()),
        splat: |p: *const u32| _mm256_set1_epi32(*p.cast::<i32>()),
        zero: _mm256_setzero_si256(), fma: |x, y, sum| _mm256_add_epi32(_mm256_madd_epi16(x, y), sum),
        add: |x, y| _mm256_add_epi32(x, y), load_sum: |p: *mut i32| _mm256_loadu_si256(p.cast()),
        store_sum: |p: *mut i32, x| _mm256_storeu_si256(p.cast(), x));
}

/// Complex products: one sum multiplies A's real part and one its imaginary part, both with B as it
/// is in memory. Both sums are joined when the tile is written.
pub(super) mod complex {
    use super::*;
    use panoply_core::dtype::Complex64;

    const ROWS: usize = 3;
    const LANES: usize = 4;
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
        let mut full = [[Complex64::default(); COLS]; ROWS];
        let to = full.as_mut_ptr().cast();
        // SAFETY: the copy has room for the kernel's whole tile, and `dst` for its valid part.
        unsafe {
            match rows {
                1 => fixed::<1>(steps, a, b, to),
                2 => fixed::<2>(steps, a, b, to),
                _ => fixed::<3>(steps, a, b, to),
            }
            super::super::scalar::put_down(&full.as_flattened()[..rows * COLS], COLS, dst, ld, cols, accumulate);
        }
    }

    #[target_feature(enable = "avx2,fma")]
    #[allow(clippy::needless_range_loop)] // Constant bounds over registers read best as indices.
    unsafe fn fixed<const R: usize>(steps: usize, mut a: *const u64, mut b: *const u64, to: *mut Complex64) {
        let mut by_real = [[_mm256_setzero_ps(); 2]; R];
        let mut by_imaginary = [[_mm256_setzero_ps(); 2]; R];
        let mut left = steps;
        while left > 0 {
            let count = left.min(CHUNK);
            for offset in 0..count {
                // SAFETY: a step of B's panel has `COLS` words, a chunk of A's panel `ROWS` lines
                // of `CHUNK` words.
                unsafe {
                    let wide = [_mm256_load_ps(b.cast()), _mm256_load_ps(b.add(LANES).cast())];
                    for r in 0..R {
                        let one = a.add(r * CHUNK + offset).cast::<f32>();
                        let (real, imaginary) = (_mm256_set1_ps(*one), _mm256_set1_ps(*one.add(1)));
                        for v in 0..2 {
                            by_real[r][v] = _mm256_fmadd_ps(real, wide[v], by_real[r][v]);
                            by_imaginary[r][v] = _mm256_fmadd_ps(imaginary, wide[v], by_imaginary[r][v]);
                        }
                    }
                    b = b.add(COLS);
                }
            }
            left -= count;
            a = a.wrapping_add(ROWS * CHUNK);
        }
        for r in 0..R {
            for v in 0..2 {
                let crossed = _mm256_permute_ps::<0b10_11_00_01>(by_imaginary[r][v]);
                let sum = _mm256_addsub_ps(by_real[r][v], crossed);
                // SAFETY: `to` has `ROWS` rows of `COLS` elements.
                unsafe { _mm256_storeu_ps(to.add(r * COLS + v * LANES).cast(), sum) };
            }
        }
    }
}
