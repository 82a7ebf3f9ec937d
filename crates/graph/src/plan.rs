//! Plans: what a device is to do for a graph, and where everything lies meanwhile.

use panoply_core::Tensor;
use panoply_core::graph::{Slot, Step};

/// A graph compiled for sizes of its symbols and the facts of a device.
#[derive(Debug)]
pub struct Plan {
    /// What there is between the steps, and where.
    pub slots: Vec<PlanSlot>,
    /// Steps of constants alone, to be run once.
    pub once: Vec<Step>,
    /// Steps of each run, in order.
    pub steps: Vec<Step>,
    /// For each step the slots that nobody reads after it.
    pub ends: Vec<Vec<usize>>,
    /// The outputs: views of slots.
    pub outputs: Vec<Tensor>,
    /// Bytes of the block that the slots in the arena share.
    pub arena_bytes: usize,
    /// The most bytes that slots in the arena hold at the same time: no arena is smaller.
    pub live_bytes_max: usize,
}

/// A slot and where it lies.
#[derive(Clone, Copy, Debug)]
pub struct PlanSlot {
    /// What it holds.
    pub slot: Slot,
    /// Where it lies.
    pub place: Place,
}

/// Where a slot lies while the plan runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// It is this input.
    Input(usize),
    /// It is the constant that is this node, brought to the device once.
    Constant(usize),
    /// A step of constants makes it once.
    Kept,
    /// In the arena, at this byte.
    Arena(usize),
    /// In memory of its own: it is an output.
    Own,
    /// Nobody reads it.
    Unread,
}

impl Plan {
    /// Bytes of constants that a device keeps for the plan: those that its steps read, and what is made of them once.
    pub fn kept_bytes(&self) -> usize {
        let kept = |slot: &&PlanSlot| matches!(slot.place, Place::Kept | Place::Constant(_));
        self.slots.iter().filter(kept).map(|slot| slot.slot.len_bytes()).sum()
    }
}
