//! Plans: what a device is to do for a graph, and where everything lies meanwhile.

use std::fmt;
use std::sync::Arc;

use panoply_core::expr::Program;
use panoply_core::graph::{Slot, Step};
use panoply_core::op::compute::{ComputeOp, Map};
use panoply_core::{Op, Tensor};

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
    /// For each of those what is done to its output as it is made, where it is more than its op.
    pub tails: Vec<Option<Tail>>,
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
        for PlanSlot { slot, place, .. } in slots {
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

/// The axes of an op's output in the order in which they lie in memory, the outermost first.
pub type Order = [usize; 4];

/// Constants that lie one behind the other along an axis, as one.
#[derive(Debug, PartialEq, Eq)]
pub struct Joined {
    /// The nodes.
    pub nodes: Vec<usize>,
    /// Along which of their axes.
    pub axis: usize,
}

/// What is done to each element of a step's output: an expression whose input 0 is the element, and its other inputs.
#[derive(Clone, Debug)]
pub struct Tail {
    /// The expression.
    pub program: Program,
    /// Its inputs from the second on: views of slots, or tensors.
    pub more: Vec<Tensor>,
}

impl Tail {
    /// The same as an op of its own, of what a step made.
    pub fn op(&self, made: &Tensor) -> Op {
        let inputs: Vec<&Tensor> = std::iter::once(made).chain(&self.more).collect();
        Op::Compute(ComputeOp::Map(Map::with_program(&self.program, &inputs)))
    }
}

/// A slot and where it lies.
#[derive(Clone, Debug)]
pub struct PlanSlot {
    /// What it holds. Where it has an order, its shape is that of the memory.
    pub slot: Slot,
    /// Where it lies.
    pub place: Place,
    /// How the output of the step that makes it lies in it; `None`: one element after the other, as the op has them.
    pub order: Option<Order>,
    /// What it is made of, where it is several constants.
    pub joined: Option<Arc<Joined>>,
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
