//! Selection of the method that sorts or splits one line of words.

use super::split::Splitter;
#[cfg(target_arch = "x86_64")]
use super::vector::{count_below, quicksort, split};
#[cfg(target_arch = "x86_64")]
use super::vector_word::VectorWord;
use crate::simd::Simd;

/// Maximum length for which the standard library's sort is faster than any set-up.
const TINY_LEN_MAX: usize = 2;

/// Sorts `words` on the calling thread.
#[cfg(target_arch = "x86_64")]
pub(super) fn sort_words<W: VectorWord>(simd: Simd, words: &mut [W]) {
    if words.len() > TINY_LEN_MAX && has_vectors(simd) {
        let splits = 2 * words.len().ilog2() + 8;
        // SAFETY: `has_vectors` found every instruction that the quicksort is compiled with.
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

/// The functions that distribute words over a few buckets in vector registers, if the CPU supports
/// them.
#[cfg(target_arch = "x86_64")]
pub(super) fn splitter<W: VectorWord>(simd: Simd) -> Option<Splitter<W>> {
    // The functions are unsafe because of the instructions that they are compiled with;
    // `has_vectors` has checked them.
    has_vectors(simd).then_some(Splitter { count_below: count_below::<W>, split: split::<W> })
}

/// The functions that distribute words over a few buckets in vector registers, if the CPU supports
/// them.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn splitter<W: super::key::Word>(_simd: Simd) -> Option<Splitter<W>> {
    None
}

/// Whether the CPU has the quicksort's instructions.
#[cfg(target_arch = "x86_64")]
fn has_vectors(simd: Simd) -> bool {
    simd.min(Simd::detect()) == Simd::Avx512
        && is_x86_feature_detected!("popcnt")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
}
