//! Stores that bypass the caches: an output larger than the caches would only evict the inputs.

use crate::simd::Simd;

/// Whether this level supports such stores.
pub(super) fn available(simd: Simd) -> bool {
    cfg!(target_arch = "x86_64") && simd >= Simd::Avx2
}

/// Copies `bytes` from a block in the cache to memory.
///
/// # Safety
/// Both pointers are valid for `bytes` and do not overlap, and [`available`] has returned true.
pub(super) unsafe fn copy(target: *mut u8, source: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's contract; AVX is part of the level.
    unsafe {
        x86::copy(target, source, bytes)
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller's contract.
    unsafe {
        std::ptr::copy_nonoverlapping(source, target, bytes)
    }
}

/// Orders the stores before later stores that signal their completion to other threads.
pub(super) fn finish(streamed: bool) {
    #[cfg(target_arch = "x86_64")]
    if streamed {
        // SAFETY: SSE is part of x86-64.
        unsafe { std::arch::x86_64::_mm_sfence() };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = streamed;
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    const LINE_BYTES: usize = 64;

    /// # Safety
    /// Both pointers are valid for `bytes` and do not overlap; the CPU has AVX.
    #[target_feature(enable = "avx")]
    pub unsafe fn copy(target: *mut u8, source: *const u8, bytes: usize) {
        let head = target.align_offset(LINE_BYTES).min(bytes);
        let lines = (bytes - head) / LINE_BYTES;
        // SAFETY: `head`, the whole lines and the rest together are `bytes`; the lines are aligned
        // in the target.
        unsafe {
            std::ptr::copy_nonoverlapping(source, target, head);
            for line in 0..lines {
                let at = head + line * LINE_BYTES;
                let (from, to) = (source.add(at).cast::<__m256i>(), target.add(at).cast::<__m256i>());
                let (low, high) = (_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1)));
                _mm256_stream_si256(to, low);
                _mm256_stream_si256(to.add(1), high);
            }
            let done = head + lines * LINE_BYTES;
            std::ptr::copy_nonoverlapping(source.add(done), target.add(done), bytes - done);
        }
    }
}
