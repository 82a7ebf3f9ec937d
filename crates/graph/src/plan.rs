//! Plans: the steps that a device runs for a graph, and the locations of all values.

use std::fmt;
use std::sync::Arc;

use panoply_core::expr::Program;
use panoply_core::graph::{Slot, Step};
use panoply_core::op::compute::{ComputeOp, Map};
use panoply_core::{Op, Tensor};

use crate::cost::touched_bytes;
use crate::fuse::copies::copied;
use crate::{Facts, Lists};

/// A graph compiled for sizes of its symbols and the facts of a device.
#[derive(Debug)]
pub struct Plan {
    /// The facts that it was compiled for.
    pub facts: Facts,
    /// The values, and their locations.
    pub slots: Vec<PlanSlot>,
    /// Steps of constants only, which run once.
    pub once: Vec<Step>,
    /// Steps of each run, in order.
    pub steps: Vec<Step>,
    /// For each step in `steps`, its fused epilogue beyond the op's own, if any.
    pub tails: Vec<Option<Box<Tail>>>,
    /// For each step, the slots that are not read after it.
    pub ends: Lists,
    /// The outputs: views of slots.
    pub outputs: Vec<Tensor>,
    /// Bytes of the block that the slots in the arena share.
    pub arena_bytes: usize,
    /// The most bytes that slots in the arena hold at the same time, a lower bound of the arena's
    /// size.
    pub live_bytes_max: usize,
    /// The memory that the plan needs at its peak.
    pub peak: Peak,
}

/// The memory that one run of a plan needs at its peak, in bytes. A run never uses more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peak {
    /// Inputs.
    pub input_bytes: u64,
    /// Constants.
    pub constant_bytes: u64,
    /// Results of steps that run once.
    pub kept_bytes: u64,
    /// Values between steps.
    pub arena_bytes: u64,
    /// Outputs.
    pub output_bytes: u64,
}

impl Peak {
    pub(crate) fn of(slots: &[PlanSlot], arena_bytes: usize) -> Peak {
        let mut peak = Peak { arena_bytes: arena_bytes as u64, ..Peak::default() };
        for PlanSlot { slot, place, .. } in slots {
            let sum = match place {
                SlotPlace::Input(_) => &mut peak.input_bytes,
                SlotPlace::Constant(_) => &mut peak.constant_bytes,
                SlotPlace::Kept => &mut peak.kept_bytes,
                SlotPlace::Own => &mut peak.output_bytes,
                SlotPlace::Arena(_) | SlotPlace::Unread => continue,
            };
            *sum = sum.saturating_add(slot.len_bytes() as u64);
        }
        peak
    }

    /// The total. If a device computes in host memory, inputs and constants take no extra memory.
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

/// The axes of an op's output in memory order, the outermost first.
pub type Order = [usize; 4];

/// Constants concatenated along an axis.
#[derive(Debug, PartialEq, Eq)]
pub struct Concatenation {
    /// The nodes.
    pub nodes: Vec<usize>,
    /// The axis of concatenation.
    pub axis: usize,
}

/// The epilogue of a step, applied to each element of its output: an expression whose input 0 is
/// the element, and its other inputs.
#[derive(Clone, Debug)]
pub struct Tail {
    /// The expression.
    pub program: Program,
    /// Its inputs from the second on: views of slots, or tensors.
    pub more: Vec<Tensor>,
}

impl Tail {
    /// The tail as a separate op on a step's output.
    pub fn op(&self, made: &Tensor) -> Op {
        let inputs: Vec<&Tensor> = std::iter::once(made).chain(&self.more).collect();
        Op::Compute(ComputeOp::Map(Map::with_program(&self.program, &inputs)))
    }
}

/// A slot and its location.
#[derive(Clone, Debug)]
pub struct PlanSlot {
    /// Its element type, shape and origin. If it has an `order`, the shape is that of the memory.
    pub slot: Slot,
    /// Its location.
    pub place: SlotPlace,
    /// The memory order of the output of the step that makes it. `None` stands for the op's own
    /// row-major order.
    pub order: Option<&'static Order>,
    /// The constants that it consists of, if there are several.
    pub joined: Option<Arc<Concatenation>>,
}

/// The location of a slot while the plan runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotPlace {
    /// The input with this index.
    Input(usize),
    /// The constant of this node, copied to the device once.
    Constant(usize),
    /// The output of a step that runs once.
    Kept,
    /// In the arena, at this byte offset.
    Arena(usize),
    /// In an allocation of its own, for an output.
    Own,
    /// Not read by any step.
    Unread,
}

impl Plan {
    /// Number of steps of each run that only change the layout, and the bytes that they read and
    /// write.
    pub fn layout_copies(&self) -> (usize, u64) {
        let copies = self.steps.iter().filter_map(|step| copied(&step.op));
        let bytes = |view: &Tensor| touched_bytes(view).saturating_add(view.len_bytes() as u64);
        copies.fold((0, 0), |(count, sum), view| (count + 1, sum.saturating_add(bytes(&view))))
    }
}
