//! Plans: what a device is to do for a graph, and where everything lies meanwhile.

use std::fmt;

use panoply_core::Tensor;
use panoply_core::graph::{Slot, Step};

use crate::Facts;
use crate::cost::touched_bytes;
use crate::fuse::copies::copied;

/// A graph compiled for sizes of its symbols and the facts of a device.
#[derive(Debug)]
pub struct Plan {
    /// The facts that it was compiled for.
    pub facts: Facts,
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
    /// What it needs at its peak.
    pub peak: Peak,
}

/// The memory that a plan needs at its peak, in bytes: never is more in use for one run of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peak {
    /// Inputs.
    pub input_bytes: u64,
    /// Constants.
    pub constant_bytes: u64,
    /// What is made of constants once.
    pub kept_bytes: u64,
    /// What lies between steps.
    pub arena_bytes: u64,
    /// Outputs.
    pub output_bytes: u64,
}

impl Peak {
    pub(crate) fn of(slots: &[PlanSlot], arena_bytes: usize) -> Peak {
        let mut peak = Peak { arena_bytes: arena_bytes as u64, ..Peak::default() };
        for PlanSlot { slot, place } in slots {
            let sum = match place {
                Place::Input(_) => &mut peak.input_bytes,
                Place::Constant(_) => &mut peak.constant_bytes,
                Place::Kept => &mut peak.kept_bytes,
                Place::Own => &mut peak.output_bytes,
                Place::Arena(_) | Place::Unread => continue,
            };
            *sum = sum.saturating_add(slot.len_bytes() as u64);
        }
        peak
    }

    /// All of it. Where a device computes in the host's memory, inputs and constants are there already.
    pub fn bytes(&self, shares_host_memory: bool) -> u64 {
        let brought = if shares_host_memory { [0; 2] } else { [self.input_bytes, self.constant_bytes] };
        let made = [self.kept_bytes, self.arena_bytes, self.output_bytes];
        brought.into_iter().chain(made).fold(0, u64::saturating_add)
    }
}

impl fmt::Display for Peak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Peak { input_bytes, constant_bytes, kept_bytes, arena_bytes, output_bytes } = self;
        write!(f, "inputs {input_bytes}, constants {constant_bytes}, made of them {kept_bytes}, ")?;
        write!(f, "between steps {arena_bytes}, outputs {output_bytes}")
    }
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
    /// How many steps of each run do nothing but lay elements out in another order, and the bytes that they read and write.
    pub fn layout_copies(&self) -> (usize, u64) {
        let copies = self.steps.iter().filter_map(|step| copied(&step.op));
        let bytes = |view: &Tensor| touched_bytes(view).saturating_add(view.len_bytes() as u64);
        copies.fold((0, 0), |(count, sum), view| (count + 1, sum.saturating_add(bytes(&view))))
    }
}
