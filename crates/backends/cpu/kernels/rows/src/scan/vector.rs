//! The running sum of f32 in AVX-512 registers, with the same additions in the same order as the
//! portable kernel.

use std::arch::x86_64::*;

use super::{BLOCK, Direction};

const LANES: usize = 16;

/// Scans one chunk after `before` and returns the total of the chunk alone. Without `STORE`, only
/// the total is computed.
///
/// # Safety
/// The CPU must have AVX-512 F, BW, DQ and VL.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub(super) unsafe fn scan_chunk<const STORE: bool>(
    chunk: &[f32],
    direction: Direction,
    before: f64,
    out: &mut [f32],
) -> f64 {
    // SAFETY: the CPU has AVX-512, as the caller guarantees.
    unsafe {
        match (direction.reverse, direction.exclusive) {
            (false, false) => scan_blocks::<STORE, false, false>(chunk, before, out),
            (false, true) => scan_blocks::<STORE, false, true>(chunk, before, out),
            (true, false) => scan_blocks::<STORE, true, false>(chunk, before, out),
            (true, true) => scan_blocks::<STORE, true, true>(chunk, before, out),
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn scan_blocks<const STORE: bool, const REVERSE: bool, const EXCLUSIVE: bool>(
    chunk: &[f32],
    before: f64,
    out: &mut [f32],
) -> f64 {
    let len = chunk.len();
    assert!(!STORE || out.len() == len);
    let mut total = 0.0;
    let mut done = 0;
    let (mut padded, mut padded_out) = ([0.0; BLOCK], [0.0; BLOCK]);
    while done < len {
        let count = BLOCK.min(len - done);
        let place = if REVERSE { len - done - count } else { done };
        let carry = before + total;
        let last;
        if count == BLOCK {
            let to = if STORE { out[place..place + BLOCK].as_mut_ptr() } else { std::ptr::null_mut() };
            // SAFETY: a whole block is at `place` in the chunk and, if it is stored, in the output.
            last = unsafe { scan_block::<STORE, REVERSE, EXCLUSIVE>(chunk.as_ptr().add(place), carry as f32, to) };
        } else {
            // The zeros go to the end of the scan.
            let start = if REVERSE { BLOCK - count } else { 0 };
            padded.fill(0.0);
            padded[start..start + count].copy_from_slice(&chunk[place..place + count]);
            // SAFETY: both arrays hold a block.
            last = unsafe {
                scan_block::<STORE, REVERSE, EXCLUSIVE>(padded.as_ptr(), carry as f32, padded_out.as_mut_ptr())
            };
            if STORE {
                out[place..place + count].copy_from_slice(&padded_out[start..start + count]);
            }
        }
        total += f64::from(last);
        done += count;
    }
    total
}

/// Scans the block at `from`, writes it to `to` if `STORE` is set, and returns the block's own sum.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn scan_block<const STORE: bool, const REVERSE: bool, const EXCLUSIVE: bool>(
    from: *const f32,
    carry: f32,
    to: *mut f32,
) -> f32 {
    let carry = _mm512_set1_ps(carry);
    let last_lane = _mm512_set1_epi32(15);
    let mut running = _mm512_setzero_ps();
    let mut previous = _mm512_setzero_ps();
    for group in 0..BLOCK / LANES {
        let place = LANES * if REVERSE { BLOCK / LANES - 1 - group } else { group };
        // SAFETY: the caller guarantees a block at `from`.
        let mut vector = unsafe { _mm512_loadu_ps(from.add(place)) };
        if REVERSE {
            vector = turn(vector);
        }
        vector = accumulate(vector);
        if group > 0 {
            vector = _mm512_add_ps(running, vector);
        }
        running = _mm512_permutexvar_ps(last_lane, vector);
        if STORE {
            let mut local = vector;
            if EXCLUSIVE {
                // Shifted by one lane; the first lane receives the last lane of the previous group,
                // or zero.
                let (bits, earlier) = (_mm512_castps_si512(vector), _mm512_castps_si512(previous));
                local = _mm512_castsi512_ps(_mm512_alignr_epi32::<15>(bits, earlier));
                previous = vector;
            }
            let mut settled = _mm512_add_ps(carry, local);
            if REVERSE {
                settled = turn(settled);
            }
            // SAFETY: the caller guarantees a block at `to`.
            unsafe { _mm512_storeu_ps(to.add(place), settled) };
        }
    }
    _mm512_cvtss_f32(running)
}

/// The running sum of the lanes, added in halves.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn accumulate(mut vector: __m512) -> __m512 {
    let bits = |vector| _mm512_castps_si512(vector);
    let zero = _mm512_setzero_si512();
    let earlier = _mm512_castsi512_ps(_mm512_alignr_epi32::<15>(bits(vector), zero));
    vector = _mm512_mask_add_ps(vector, 0xfffe, earlier, vector);
    let earlier = _mm512_castsi512_ps(_mm512_alignr_epi32::<14>(bits(vector), zero));
    vector = _mm512_mask_add_ps(vector, 0xfffc, earlier, vector);
    let earlier = _mm512_castsi512_ps(_mm512_alignr_epi32::<12>(bits(vector), zero));
    vector = _mm512_mask_add_ps(vector, 0xfff0, earlier, vector);
    let earlier = _mm512_castsi512_ps(_mm512_alignr_epi32::<8>(bits(vector), zero));
    _mm512_mask_add_ps(vector, 0xff00, earlier, vector)
}

/// The lanes in reverse order.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn turn(vector: __m512) -> __m512 {
    _mm512_permutexvar_ps(_mm512_set_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), vector)
}
