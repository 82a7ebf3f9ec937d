//! Copies that leave the caches alone: of what is larger than they are, nothing would be found there again.

/// Copies numbers to memory. Both are as long.
pub(crate) fn stream(from: &[f32], to: &mut [f32]) {
    assert_eq!(from.len(), to.len(), "a copy is as long as what is copied");
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{__m128, _mm_loadu_ps, _mm_sfence, _mm_stream_ps};
        const LANES: usize = size_of::<__m128>() / size_of::<f32>();
        let skipped = to.as_ptr().align_offset(size_of::<__m128>()).min(to.len());
        let ((head, from), (to_head, to)) = (from.split_at(skipped), to.split_at_mut(skipped));
        to_head.copy_from_slice(head);
        let ((whole, tail), (to_whole, to_tail)) = (from.as_chunks::<LANES>(), to.as_chunks_mut::<LANES>());
        for (from, to) in whole.iter().zip(to_whole) {
            // SAFETY: there are four numbers at each place, and the second is aligned. Every x86-64 has these instructions.
            unsafe { _mm_stream_ps(to.as_mut_ptr(), _mm_loadu_ps(from.as_ptr())) };
        }
        to_tail.copy_from_slice(tail);
        // SAFETY: as above. Whoever is told that the copy is there finds it.
        unsafe { _mm_sfence() };
    }
    #[cfg(not(target_arch = "x86_64"))]
    to.copy_from_slice(from);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_any_length_from_any_place_to_any_place() {
        let numbers: Vec<f32> = (0..100).map(|at| at as f32).collect();
        for len in 0..40 {
            for first in 0..8 {
                let mut copy = vec![-1.0; 60];
                stream(&numbers[first..first + len], &mut copy[first..first + len]);
                assert_eq!(copy[first..first + len], numbers[first..first + len]);
                assert!(copy[..first].iter().chain(&copy[first + len..]).all(|value| *value == -1.0));
            }
        }
    }
}
