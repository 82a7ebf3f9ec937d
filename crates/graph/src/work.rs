//! The list of steps that passes rewrite, with who reads each slot.

use std::sync::Arc;

use panoply_core::graph::{Instance, Origin, Slot, Step, slot_of};
use panoply_core::op::compute::{ComputeOp, Map};
use panoply_core::{Op, Shape, Tensor};

use crate::plan::{Joined, Order, Tail};
use crate::views::through;

/// An instance being rewritten. Steps that were fused into others leave a gap, so numbers stay.
pub(crate) struct Work {
    pub(crate) slots: Vec<Slot>,
    pub(crate) steps: Vec<Option<Step>>,
    pub(crate) outputs: Vec<Tensor>,
    /// By slot: in which order the axes of its maker's output lie, where it is another than the op's.
    pub(crate) orders: Vec<Option<Order>>,
    /// By slot: the constants that lie one behind the other in it, where it is made of several.
    pub(crate) parts: Vec<Option<Arc<Joined>>>,
    /// By step: what is done to its output as it is made.
    pub(crate) tails: Vec<Option<Tail>>,
    readers: Vec<Readers>,
    is_output: Vec<bool>,
}

/// The steps that read a slot: how many, and the sum of their numbers, which is the number of the only one. So a slot that every
/// step reads costs no more than others.
#[derive(Clone, Copy, Default)]
struct Readers {
    count: usize,
    sum: usize,
}

impl Work {
    pub(crate) fn new(instance: Instance) -> Work {
        let Instance { slots, steps, outputs, .. } = instance;
        let mut is_output = vec![false; slots.len()];
        outputs.iter().filter_map(slot_of).for_each(|slot| is_output[slot] = true);
        let mut work = Work {
            readers: vec![Readers::default(); slots.len()],
            orders: vec![None; slots.len()],
            parts: vec![None; slots.len()],
            tails: vec![None; steps.len()],
            slots,
            steps: steps.into_iter().map(Some).collect(),
            outputs,
            is_output,
        };
        for index in 0..work.steps.len() {
            work.enter_reads(index);
        }
        work
    }

    /// The op of a step that is still there.
    pub(crate) fn op(&self, step: usize) -> Option<&Op> {
        self.steps.get(step)?.as_ref().map(|step| &step.op)
    }

    /// The map of a step, where it is one.
    pub(crate) fn map(&self, step: usize) -> Option<&Map> {
        match self.op(step)? {
            Op::Compute(ComputeOp::Map(map)) => Some(map),
            _ => None,
        }
    }

    /// The step that makes a slot.
    pub(crate) fn maker(&self, slot: usize) -> Option<usize> {
        match self.slots[slot].origin {
            Origin::Step(step) => Some(step),
            Origin::Input(_) | Origin::Constant(_) => None,
        }
    }

    /// The one step that reads a slot, where there is only one and the slot is no output.
    pub(crate) fn only_reader(&self, slot: usize) -> Option<usize> {
        let Readers { count, sum } = self.readers[slot];
        (count == 1 && !self.is_output[slot]).then_some(sum)
    }

    /// Whether a slot is an output.
    pub(crate) fn is_output(&self, slot: usize) -> bool {
        self.is_output[slot]
    }

    /// The step that makes what this tensor views, where that has one output and no reader but `reader`.
    pub(crate) fn private_maker(&self, tensor: &Tensor, reader: usize) -> Option<usize> {
        let slot = slot_of(tensor)?;
        let maker = self.maker(slot)?;
        let alone = self.only_reader(slot) == Some(reader);
        (alone && self.steps[maker].as_ref()?.outputs.len() == 1).then_some(maker)
    }

    /// Gives a step another op with the same outputs.
    pub(crate) fn replace(&mut self, step: usize, op: Op) {
        self.leave_reads(step);
        if let Some(step) = &mut self.steps[step] {
            step.op = op;
        }
        self.enter_reads(step);
    }

    /// Gives a step another op with the same outputs, and something that is done to them.
    pub(crate) fn replace_with_tail(&mut self, step: usize, op: Op, tail: Tail) {
        self.leave_reads(step);
        if let Some(step) = &mut self.steps[step] {
            step.op = op;
        }
        self.tails[step] = Some(tail);
        self.enter_reads(step);
    }

    /// Takes a step away. Nobody may read its outputs any more.
    pub(crate) fn remove(&mut self, step: usize) {
        self.leave_reads(step);
        self.steps[step] = None;
    }

    /// Takes a step away that nobody reads.
    pub(crate) fn remove_if_unread(&mut self, step: usize) {
        let unread = self.steps[step].as_ref().is_some_and(|step| {
            step.outputs.iter().all(|slot| self.readers[*slot].count == 0 && !self.is_output[*slot])
        });
        if unread {
            self.remove(step);
        }
    }

    /// A slot that is one more than there were.
    pub(crate) fn new_slot(&mut self, slot: Slot) -> usize {
        self.slots.push(slot);
        self.orders.push(None);
        self.parts.push(None);
        self.readers.push(Readers::default());
        self.is_output.push(false);
        self.slots.len() - 1
    }

    /// A step behind all others, with one output; it must be one of constants, since its reader is before it.
    pub(crate) fn push_once(&mut self, node: usize, op: Op, mut output: Slot) -> usize {
        output.origin = Origin::Step(self.steps.len());
        let slot = self.new_slot(output);
        self.steps.push(Some(Step { node, op, outputs: vec![slot] }));
        self.tails.push(None);
        self.enter_reads(self.steps.len() - 1);
        slot
    }

    /// For each slot the steps that read it, in order.
    pub(crate) fn all_readers(&self) -> Vec<Vec<usize>> {
        let mut readers = vec![Vec::new(); self.slots.len()];
        for step in 0..self.steps.len() {
            self.slots_read_by(step).into_iter().for_each(|slot| readers[slot].push(step));
        }
        readers
    }

    /// Whether these steps can read what lay one element after the other in `slot`, in a tensor of `shape`, through `seen`.
    pub(crate) fn can_see(&self, slot: usize, readers: &[usize], shape: &Shape, seen: &Tensor) -> bool {
        readers.iter().all(|step| {
            let mut all = true;
            if let Some(op) = self.op(*step) {
                op.for_each_tensor(&mut |tensor| {
                    all &= slot_of(tensor) != Some(slot) || through(tensor, shape, seen).is_some();
                });
            }
            all
        })
    }

    /// Lets a step read a slot of `shape` through `seen`.
    pub(crate) fn see(&mut self, step: usize, slot: usize, shape: &Shape, seen: &Tensor) {
        let Some(op) = self.op(step) else { return };
        let mut changed = op.clone();
        changed.for_each_tensor_mut(&mut |tensor| {
            if slot_of(tensor) == Some(slot)
                && let Some(view) = through(tensor, shape, seen)
            {
                *tensor = view;
            }
        });
        self.replace(step, changed);
    }

    fn enter_reads(&mut self, index: usize) {
        for slot in self.slots_read_by(index) {
            let readers = &mut self.readers[slot];
            (readers.count, readers.sum) = (readers.count + 1, readers.sum + index);
        }
    }

    fn leave_reads(&mut self, index: usize) {
        for slot in self.slots_read_by(index) {
            let readers = &mut self.readers[slot];
            (readers.count, readers.sum) = (readers.count - 1, readers.sum - index);
        }
    }

    /// The slots that a step reads, each once.
    fn slots_read_by(&self, index: usize) -> Vec<usize> {
        let mut slots = Vec::new();
        let mut read = |tensor: &Tensor| slots.extend(slot_of(tensor).filter(|slot| !slots.contains(slot)));
        if let Some(step) = &self.steps[index] {
            step.op.for_each_tensor(&mut read);
            self.tails[index].iter().flat_map(|tail| &tail.more).for_each(read);
        }
        slots
    }
}
