//! Sorting of 8-bit and 16-bit elements by counting.

use super::key::{SortKey, Word};
use crate::parts::DisjointSlice;
use crate::scratch;
use crate::team::Team;

/// Minimum elements that one task counts.
const GRAIN_ELEMENTS: usize = 1 << 18;

/// Sorts the line: counts the occurrences of each word, then writes each word as often as it
/// occurs.
pub(super) fn sort<T: SortKey>(team: &Team, input: &[T], descending: bool, out: &mut [T]) {
    let values = 1_usize << T::BITS;
    let tasks = if input.len() < 2 * GRAIN_ELEMENTS { 1 } else { team.threads() };
    let piece = input.len().div_ceil(tasks);
    let mut counts = scratch::zeroed::<usize>(tasks * values);
    let shared = DisjointSlice::new(&mut counts);
    team.run(tasks, &|task| {
        // SAFETY: every task has its own table.
        let counts = unsafe { shared.range(task * values..(task + 1) * values) };
        for element in &input[input.len().min(task * piece)..input.len().min((task + 1) * piece)] {
            counts[usize::from(element.encode().bits_from(0)) & (values - 1)] += 1;
        }
    });
    let (total, others) = counts.split_at_mut(values);
    for other in others.chunks_exact(values) {
        total.iter_mut().zip(other).for_each(|(total, count)| *total += count);
    }
    let mut rest = out;
    let mut write = |word: usize| {
        let (run, after) = std::mem::take(&mut rest).split_at_mut(total[word]);
        run.fill(T::decode(T::Word::from_bits(word as u16)));
        rest = after;
    };
    if descending { (0..values).rev().for_each(&mut write) } else { (0..values).for_each(&mut write) }
}
