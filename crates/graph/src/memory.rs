//! Memory by lifetime: slots that are not needed at the same time share bytes of one block.
//!
//! Steps are visited in order. A slot gets the smallest hole that holds it when its step runs, or
//! the end of the block. Its bytes are freed after its last reader; adjacent holes are merged.

use std::collections::BTreeMap;

use panoply_core::graph::{Origin, Slot, Step, slot_of};
use panoply_core::shape::TENSOR_BYTES_MAX;
use panoply_core::{Error, Result, Tensor};

use crate::order::ordered;
use crate::plan::{Peak, Plan, PlanSlot, SlotPlace, Tail};
use crate::work::Rewrite;
use crate::{Facts, Lists};

/// The alignment of slots in bytes, sufficient for every device's copies and vector accesses.
pub const ALIGN_BYTES: usize = 256;

/// Stands for the last reader of a slot that no step reads.
const NO_READER: u32 = u32::MAX;

/// The plan of a finished list for a device with these facts. `once` marks the steps that run once.
pub(crate) fn plan(mut work: Rewrite, once: &[bool], facts: &Facts) -> Result<Plan> {
    let mut first = Vec::new();
    let mut is_kept = vec![false; work.slots.len()];
    let mut is_made = vec![false; work.slots.len()];
    for (place, once) in work.steps.iter_mut().zip(once) {
        let Some(step) = place else { continue };
        step.outputs.iter().for_each(|slot| (is_kept[slot], is_made[slot]) = (*once, true));
        if *once {
            first.extend(place.take());
        }
    }
    let is_there: Vec<bool> = work.steps.iter().map(Option::is_some).collect();
    let tails = std::mem::take(&mut work.tails).into_iter().zip(&is_there);
    let mut tails: Vec<_> = tails.filter_map(|(tail, is_there)| is_there.then_some(tail)).collect();
    // Unlike `flatten`, this filters in place, so that a large graph has its steps in memory once.
    #[allow(clippy::filter_map_identity)]
    let mut steps: Vec<Step> = std::mem::take(&mut work.steps).into_iter().filter_map(|step| step).collect();
    tails.shrink_to_fit();
    steps.shrink_to_fit();
    // The inputs of a tail are not part of its step's op. With tails, steps keep their order.
    let steps = if tails.iter().all(Option::is_none) { ordered(steps, work.slots.len(), facts) } else { steps };
    let last_readers = last_readers(&work, &steps, &tails);
    let place = |(slot, held): (usize, &Slot)| match held.origin {
        Origin::Input(input) => SlotPlace::Input(input),
        Origin::Constant(node) if work.is_read(slot) => SlotPlace::Constant(node),
        Origin::Constant(_) => SlotPlace::Unread,
        Origin::Step(_) if !is_made[slot] => SlotPlace::Unread,
        Origin::Step(_) if is_kept[slot] => SlotPlace::Kept,
        Origin::Step(_) if work.is_output(slot) => SlotPlace::Own,
        // Its offset is set below.
        Origin::Step(_) => SlotPlace::Arena(0),
    };
    let places: Vec<SlotPlace> = work.slots.iter().enumerate().map(place).collect();
    check_sum(&work, &places)?;
    let ends = Lists::new(steps.len(), |enter| {
        for (slot, reader) in last_readers.iter().enumerate() {
            if let (SlotPlace::Arena(_), true) = (places[slot], *reader != NO_READER) {
                enter(*reader as usize, slot);
            }
        }
    });
    let Rewrite { slots, orders, mut parts, outputs, .. } = work;
    let planned = slots.into_iter().zip(places).zip(orders).enumerate();
    let planned = planned.map(|(index, ((slot, place), order))| {
        let joined = parts.remove(&index);
        PlanSlot { slot, place, order, joined }
    });
    let mut slots: Vec<PlanSlot> = planned.collect();
    let (arena_bytes, live_bytes_max) = lay_out(&mut slots, &steps, &ends, &last_readers);
    let peak = Peak::of(&slots, arena_bytes);
    Ok(Plan { facts: *facts, slots, once: first, steps, tails, ends, outputs, arena_bytes, live_bytes_max, peak })
}

/// Checks that the sizes of all slots can be added without overflow.
fn check_sum(work: &Rewrite, places: &[SlotPlace]) -> Result<()> {
    let aligned = |bytes: usize| bytes.checked_next_multiple_of(ALIGN_BYTES);
    let add = |sum: usize, slot: &Slot| sum.checked_add(aligned(slot.len_bytes())?);
    let there = work.slots.iter().zip(places).filter(|(_, place)| **place != SlotPlace::Unread);
    match there.map(|(slot, _)| slot).try_fold(0, add) {
        Some(sum) if sum <= TENSOR_BYTES_MAX => Ok(()),
        _ => {
            let (what, got) = ("graph: bytes of all tensors together", vec![work.slots.len()]);
            Err(Error::SizeOverflow { what, got, limit: TENSOR_BYTES_MAX })
        }
    }
}

/// For each slot the last step that reads it, or [`NO_READER`].
fn last_readers(work: &Rewrite, steps: &[Step], tails: &[Option<Box<Tail>>]) -> Vec<u32> {
    let mut last = vec![NO_READER; work.slots.len()];
    for (index, (step, tail)) in steps.iter().zip(tails).enumerate() {
        let mut read = |tensor: &Tensor| {
            if let Some(slot) = slot_of(tensor) {
                last[slot] = index as u32;
            }
        };
        step.op.for_each_tensor(&mut read);
        tail.iter().flat_map(|tail| &tail.more).for_each(read);
    }
    last
}

/// Assigns every slot of the arena its offset. Returns the arena's bytes, and the most that are in
/// use at the same time.
fn lay_out(slots: &mut [PlanSlot], steps: &[Step], ends: &Lists, last: &[u32]) -> (usize, usize) {
    let mut arena = Arena::default();
    for (number, step) in steps.iter().enumerate() {
        for slot in step.outputs.iter() {
            let planned = &mut slots[slot];
            if let SlotPlace::Arena(offset) = &mut planned.place {
                *offset = arena.take(planned.slot.len_bytes());
            }
        }
        let unread = step.outputs.iter().filter(|slot| last[*slot] == NO_READER);
        for slot in ends.of(number).chain(unread) {
            if let SlotPlace::Arena(offset) = slots[slot].place {
                arena.give_back(offset, slots[slot].slot.len_bytes());
            }
        }
    }
    (arena.end, arena.used_max)
}

/// One block, its holes and the bytes in use.
#[derive(Default)]
struct Arena {
    /// Holes by their start; no two are adjacent.
    holes: BTreeMap<usize, usize>,
    /// The same holes by size.
    sizes: BTreeMap<(usize, usize), ()>,
    end: usize,
    used: usize,
    used_max: usize,
}

impl Arena {
    fn take(&mut self, bytes: usize) -> usize {
        let bytes = bytes.next_multiple_of(ALIGN_BYTES);
        self.used += bytes;
        self.used_max = self.used_max.max(self.used);
        let fitting = self.sizes.range((bytes, 0)..).next().map(|((size, offset), ())| (*offset, *size));
        let (offset, size) = match fitting {
            Some(hole) => hole,
            None => {
                // The last hole may reach the end of the block. Then the block grows only by the
                // missing bytes.
                let last = self.holes.last_key_value().map(|(offset, size)| (*offset, *size));
                let start =
                    last.filter(|(offset, size)| offset + size == self.end).map_or(self.end, |(offset, _)| offset);
                let had = self.end - start;
                self.end = start + bytes;
                self.remove(start, had);
                return start;
            }
        };
        self.remove(offset, size);
        if size > bytes {
            self.insert(offset + bytes, size - bytes);
        }
        offset
    }

    fn give_back(&mut self, offset: usize, bytes: usize) {
        let mut size = bytes.next_multiple_of(ALIGN_BYTES);
        if size == 0 {
            return;
        }
        self.used -= size;
        let mut start = offset;
        if let Some((before, had)) = self.holes.range(..offset).next_back().map(|(start, size)| (*start, *size))
            && before + had == offset
        {
            self.remove(before, had);
            (start, size) = (before, size + had);
        }
        if let Some(after) = self.holes.get(&(start + size)).copied() {
            self.remove(start + size, after);
            size += after;
        }
        self.insert(start, size);
    }

    fn insert(&mut self, offset: usize, size: usize) {
        self.holes.insert(offset, size);
        self.sizes.insert((size, offset), ());
    }

    fn remove(&mut self, offset: usize, size: usize) {
        if size > 0 {
            self.holes.remove(&offset);
            self.sizes.remove(&(size, offset));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_used_again_and_never_twice_at_once() {
        let mut arena = Arena::default();
        let mut live: Vec<(usize, usize)> = Vec::new();
        let mut state = 7_u64;
        for _ in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let bits = (state >> 33) as usize;
            if live.len() < 40 && !bits.is_multiple_of(3) {
                let bytes = bits % 5000;
                let offset = arena.take(bytes);
                let end = offset + bytes.next_multiple_of(ALIGN_BYTES);
                assert!(end <= arena.end && offset.is_multiple_of(ALIGN_BYTES));
                assert!(
                    live.iter().all(|(from, len)| end <= *from || from + len.next_multiple_of(ALIGN_BYTES) <= offset)
                );
                live.push((offset, bytes));
            } else if !live.is_empty() {
                let (offset, bytes) = live.swap_remove(bits % live.len());
                arena.give_back(offset, bytes);
            }
        }
        assert!(arena.end < arena.used_max * 2, "{} bytes for {}", arena.end, arena.used_max);
        live.drain(..).for_each(|(offset, bytes)| arena.give_back(offset, bytes));
        assert_eq!((arena.used, arena.holes.len()), (0, 1));
    }
}
