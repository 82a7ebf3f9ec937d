//! Sorting elements of 8 or 16 bits by counting them.

use super::key::{SortKey, Word};
use crate::parts::Parts;
use crate::scratch;
use crate::team::Team;

/// Elements that one task counts at least.
const GRAIN_ELEMENTS: usize = 1 << 18;

/// Sorts the line by counting how often each word occurs, then writing each that often.
pub(super) fn sort<T: SortKey>(team: &Team, input: &[T], descending: bool, out: &mut [T]) {
    let values = 1_usize << T::BITS;
    let tasks = if input.len() < 2 * GRAIN_ELEMENTS { 1 } else { team.threads() };
    let piece = input.len().div_ceil(tasks);
    let mut counts = scratch::zeroed::<usize>(tasks * values);
    let shared = Parts::new(&mut counts);
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
