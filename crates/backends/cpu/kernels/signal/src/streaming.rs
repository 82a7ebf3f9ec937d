//! Non-temporal copies, which bypass the caches. A copy larger than the caches would not be found
//! there again.

use panoply_core::once::OnceBox;

/// The least size of a non-temporal copy in bytes. It is also the size if the caches' size is not
/// known.
const BYTES_MIN: usize = 16 << 20;

/// The size in bytes from which a non-temporal copy is faster: half of the largest cache, but at
/// least `BYTES_MIN`.
pub(crate) fn bytes_min() -> usize {
    static KNOWN: OnceBox<usize> = OnceBox::new();
    *KNOWN.get_or_make(|| {
        let size = |index: usize| {
            let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
            std::fs::read_to_string(path).ok().and_then(|text| size_of_cache(&text))
        };
        (0..8).filter_map(size).max().map_or(BYTES_MIN, |largest| (largest / 2).max(BYTES_MIN))
    })
}

/// Parses the size of a cache as the system reports it, such as `2048K`, in bytes.
fn size_of_cache(text: &str) -> Option<usize> {
    let text = text.trim();
    let (number, shift) = match text.strip_suffix('K') {
        Some(number) => (number, 10),
        None => text.strip_suffix('M').map_or((text, 0), |number| (number, 20)),
    };
    number.parse::<usize>().ok()?.checked_mul(1 << shift)
}

/// Non-temporal copies of one thread. Dropping the value ends with a fence, so the copies are
/// visible to every thread that learns of the end afterwards.
pub(crate) struct Stream(());

impl Stream {
    pub(crate) fn new() -> Stream {
        Stream(())
    }

    /// Copies numbers to memory. Both slices have the same length.
    pub(crate) fn copy(&mut self, from: &[f32], to: &mut [f32]) {
        assert_eq!(from.len(), to.len(), "a copy is as long as what is copied");
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{__m128, _mm_loadu_ps, _mm_stream_ps};
            const LANES: usize = size_of::<__m128>() / size_of::<f32>();
            let skipped = to.as_ptr().align_offset(size_of::<__m128>()).min(to.len());
            let ((head, from), (to_head, to)) = (from.split_at(skipped), to.split_at_mut(skipped));
            to_head.copy_from_slice(head);
            let ((whole, tail), (to_whole, to_tail)) = (from.as_chunks::<LANES>(), to.as_chunks_mut::<LANES>());
            for (from, to) in whole.iter().zip(to_whole) {
                // SAFETY: each address is valid for four numbers, and the second is aligned. Every
                // x86-64 CPU has these instructions.
                unsafe { _mm_stream_ps(to.as_mut_ptr(), _mm_loadu_ps(from.as_ptr())) };
            }
            to_tail.copy_from_slice(tail);
        }
        #[cfg(not(target_arch = "x86_64"))]
        to.copy_from_slice(from);
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every x86-64 CPU has the instruction.
        unsafe {
            std::arch::x86_64::_mm_sfence();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_caches() {
        let read = ["307200K\n", "2M", "512", "", "K", "-1K", "18446744073709551615M"].map(size_of_cache);
        assert_eq!(read, [Some(307_200 << 10), Some(2 << 20), Some(512), None, None, None, None]);
        assert!(bytes_min() >= BYTES_MIN);
    }

    #[test]
    fn copies_of_any_length_from_any_place_to_any_place() {
        let numbers: Vec<f32> = (0..100).map(|at| at as f32).collect();
        for len in 0..40 {
            for first in 0..8 {
                let mut copy = vec![-1.0; 60];
                Stream::new().copy(&numbers[first..first + len], &mut copy[first..first + len]);
                assert_eq!(copy[first..first + len], numbers[first..first + len]);
                assert!(copy[..first].iter().chain(&copy[first + len..]).all(|value| *value == -1.0));
            }
        }
    }
}
