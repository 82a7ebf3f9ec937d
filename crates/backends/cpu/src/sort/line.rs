//! One line of words: which method sorts it.

#[cfg(target_arch = "x86_64")]
use super::vector::{VectorWord, quicksort};
use crate::simd::Simd;

/// Words that the standard library's sort handles better than any set-up of ours.
const TINY_LEN_MAX: usize = 2;

/// Sorts `words` on the calling thread.
#[cfg(target_arch = "x86_64")]
pub(super) fn sort_words<W: VectorWord>(simd: Simd, words: &mut [W]) {
    if words.len() > TINY_LEN_MAX && simd.min(Simd::detect()) == Simd::Avx512 && counts_bits() {
        let splits = 2 * words.len().ilog2() + 8;
        // SAFETY: `Simd::detect` and `counts_bits` found every instruction that the quicksort is compiled with.
        unsafe { quicksort(words, splits) };
    } else {
        words.sort_unstable();
    }
}

/// Sorts `words` on the calling thread.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn sort_words<W: super::key::Word>(_simd: Simd, words: &mut [W]) {
    words.sort_unstable();
}

#[cfg(target_arch = "x86_64")]
fn counts_bits() -> bool {
    is_x86_feature_detected!("popcnt") && is_x86_feature_detected!("bmi1") && is_x86_feature_detected!("bmi2")
}
