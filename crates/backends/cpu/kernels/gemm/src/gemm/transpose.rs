//! A 16×16 transpose of 32-bit words in AVX-512 registers.

use std::arch::x86_64::*;

/// Transposes the sixteen rows of sixteen words in `block`, and writes the first `rows_wanted` rows
/// to `to`, whose rows are `stride` words apart.
///
/// # Safety
/// The CPU has AVX-512 F.
///
/// # Panics
/// If a slice is too short.
#[target_feature(enable = "avx512f")]
pub unsafe fn transpose_16x16(block: &[u32], to: &mut [u32], stride: usize, rows_wanted: usize) {
    assert!((1..=16).contains(&rows_wanted), "one to sixteen rows");
    assert!(block.len() >= 256 && to.len() >= (rows_wanted - 1) * stride + 16, "slices hold the rows");
    let mut rows = [_mm512_setzero_si512(); 16];
    for (index, row) in rows.iter_mut().enumerate() {
        // SAFETY: row `index` is inside the 256 words just checked.
        *row = unsafe { _mm512_loadu_si512(block.as_ptr().add(index * 16).cast()) };
    }
    let mut pairs = rows;
    for index in (0..16).step_by(2) {
        pairs[index] = _mm512_unpacklo_epi32(rows[index], rows[index + 1]);
        pairs[index + 1] = _mm512_unpackhi_epi32(rows[index], rows[index + 1]);
    }
    // quads[4 * g + c] holds, in 128-bit lane l, column 4 * l + c of the rows 4 * g .. 4 * g + 4.
    let mut quads = pairs;
    for group in (0..16).step_by(4) {
        quads[group] = _mm512_unpacklo_epi64(pairs[group], pairs[group + 2]);
        quads[group + 1] = _mm512_unpackhi_epi64(pairs[group], pairs[group + 2]);
        quads[group + 2] = _mm512_unpacklo_epi64(pairs[group + 1], pairs[group + 3]);
        quads[group + 3] = _mm512_unpackhi_epi64(pairs[group + 1], pairs[group + 3]);
    }
    for column in 0..4 {
        let low_even = _mm512_shuffle_i32x4::<0b10_00_10_00>(quads[column], quads[column + 4]);
        let low_odd = _mm512_shuffle_i32x4::<0b11_01_11_01>(quads[column], quads[column + 4]);
        let high_even = _mm512_shuffle_i32x4::<0b10_00_10_00>(quads[column + 8], quads[column + 12]);
        let high_odd = _mm512_shuffle_i32x4::<0b11_01_11_01>(quads[column + 8], quads[column + 12]);
        let columns = [
            _mm512_shuffle_i32x4::<0b10_00_10_00>(low_even, high_even),
            _mm512_shuffle_i32x4::<0b10_00_10_00>(low_odd, high_odd),
            _mm512_shuffle_i32x4::<0b11_01_11_01>(low_even, high_even),
            _mm512_shuffle_i32x4::<0b11_01_11_01>(low_odd, high_odd),
        ];
        for (lane, values) in columns.into_iter().enumerate() {
            let row = 4 * lane + column;
            if row < rows_wanted {
                // SAFETY: the sixteen words of a wanted row are inside the slice, as checked above.
                unsafe { _mm512_storeu_si512(to.as_mut_ptr().add(row * stride).cast(), values) };
            }
        }
    }
}
