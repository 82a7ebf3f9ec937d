//! The list of steps that passes rewrite, with the readers of each slot.

use std::collections::BTreeMap;
use std::sync::Arc;

use panoply_core::graph::{Graph, Instance, Origin, Outputs, Slot, Step, placeholder, slot_of, view_of};
use panoply_core::op::compute::{ComputeOp, Map};
use panoply_core::{Op, Result, Shape, Tensor};

use crate::Lists;
use crate::plan::{Concatenation, Order, Tail};
use crate::views::through;

/// An instance being rewritten. Fused steps leave gaps, so step numbers are stable.
pub(crate) struct Rewrite {
    pub(crate) slots: Vec<Slot>,
    pub(crate) steps: Vec<Option<Step>>,
    pub(crate) outputs: Vec<Tensor>,
    /// By slot, the memory order of the output, if it differs from the op's.
    pub(crate) orders: Vec<Option<&'static Order>>,
    /// The concatenated constants that a slot consists of, by slots that consist of several.
    pub(crate) parts: BTreeMap<usize, Arc<Concatenation>>,
    /// By step, its fused epilogue.
    pub(crate) tails: Vec<Option<Box<Tail>>>,
    readers: Vec<Readers>,
    is_output: Vec<bool>,
}

/// The readers of a slot: their count, and the exclusive or of their step numbers. If there is one
/// reader, this is its number. A slot that every step reads thus costs no more than others.
#[derive(Clone, Copy, Default)]
struct Readers {
    count: u32,
    mixed: u32,
}

/// For each slot of an instance, the slot with the same value that replaces it after nodes were
/// merged.
struct SlotReplacements(Vec<u32>);

impl SlotReplacements {
    fn new(graph: &Graph, instance: &Instance, simplified: &[Option<usize>]) -> SlotReplacements {
        let mut moved: Vec<u32> = (0..instance.slots.len() as u32).collect();
        // A node has at most one step or one constant, and equal nodes come after the first of
        // them.
        let mut firsts: Vec<u32> = vec![u32::MAX; graph.nodes().len()];
        for (slot, held) in instance.slots.iter().enumerate() {
            let node = match held.origin {
                Origin::Constant(node) => node,
                Origin::Step(step) => instance.steps[step].node,
                Origin::Input(_) => continue,
            };
            let slot = slot as u32;
            firsts[node] = firsts[node].min(slot);
            if let Some(first) = simplified[node].filter(|first| *first != node) {
                moved[slot as usize] = firsts[first] + slot - firsts[node];
            }
        }
        SlotReplacements(moved)
    }

    /// The same view of the replacement slot. `None` if the slot is not replaced.
    fn tensor(&self, tensor: &Tensor, slots: &[Slot]) -> Result<Option<Tensor>> {
        match slot_of(tensor).map(|slot| (slot, self.0[slot] as usize)) {
            Some((own, other)) if own != other => {
                let whole = placeholder(slots[other].dtype, slots[other].shape, other)?;
                view_of(tensor, &whole).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// The op with all tensors on replacement slots. Returns the same op if nothing changes.
    fn op(&self, op: &Arc<Op>, slots: &[Slot]) -> Result<Arc<Op>> {
        let mut is_moved = false;
        op.for_each_tensor(&mut |tensor| is_moved |= slot_of(tensor).is_some_and(|slot| self.0[slot] as usize != slot));
        if !is_moved {
            return Ok(Arc::clone(op));
        }
        let (mut changed, mut done) = (Op::clone(op), Ok(()));
        changed.for_each_tensor_mut(&mut |tensor| match self.tensor(tensor, slots) {
            Ok(Some(other)) => *tensor = other,
            Ok(None) => {}
            Err(error) => done = Err(error),
        });
        done.map(|()| Arc::new(changed))
    }
}

impl Rewrite {
    /// The list of an instance's steps. `simplified` gives for each node the node that represents
    /// it, if any.
    pub(crate) fn new(graph: &Graph, instance: &Instance, simplified: &[Option<usize>]) -> Result<Rewrite> {
        let moved = SlotReplacements::new(graph, instance, simplified);
        let kept = |step: &Step| match simplified[step.node] == Some(step.node) {
            true => Ok(Some(Step { op: moved.op(&step.op, &instance.slots)?, ..step.clone() })),
            false => Ok(None),
        };
        let steps: Vec<Option<Step>> = instance.steps.iter().map(kept).collect::<Result<_>>()?;
        let output = |view: &Tensor| moved.tensor(view, &instance.slots).map(|moved| moved.unwrap_or(view.clone()));
        let outputs: Vec<Tensor> = instance.outputs.iter().map(output).collect::<Result<_>>()?;
        let slots = instance.slots.clone();
        let mut is_output = vec![false; slots.len()];
        outputs.iter().filter_map(slot_of).for_each(|slot| is_output[slot] = true);
        let mut work = Rewrite {
            readers: vec![Readers::default(); slots.len()],
            orders: vec![None; slots.len()],
            parts: BTreeMap::new(),
            tails: vec![None; steps.len()],
            slots,
            steps,
            outputs,
            is_output,
        };
        for index in 0..work.steps.len() {
            work.enter_reads(index);
        }
        Ok(work)
    }

    /// The op of a step, unless it was removed.
    pub(crate) fn op(&self, step: usize) -> Option<&Op> {
        self.steps.get(step)?.as_ref().map(|step| &*step.op)
    }

    /// The map of a step, if its op is a map.
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

    /// The only step that reads a slot. `None` if there are several or the slot is an output.
    pub(crate) fn only_reader(&self, slot: usize) -> Option<usize> {
        let Readers { count, mixed } = self.readers[slot];
        (count == 1 && !self.is_output[slot]).then_some(mixed as usize)
    }

    /// Whether a step reads a slot, or the slot is an output.
    pub(crate) fn is_read(&self, slot: usize) -> bool {
        self.readers[slot].count > 0 || self.is_output[slot]
    }

    /// Whether a slot is an output.
    pub(crate) fn is_output(&self, slot: usize) -> bool {
        self.is_output[slot]
    }

    /// The step that makes a tensor's slot, if the step has one output, and `reader` is its only
    /// reader.
    pub(crate) fn private_maker(&self, tensor: &Tensor, reader: usize) -> Option<usize> {
        let slot = slot_of(tensor)?;
        let maker = self.maker(slot)?;
        let alone = self.only_reader(slot) == Some(reader);
        (alone && self.steps[maker].as_ref()?.outputs.len() == 1).then_some(maker)
    }

    /// Replaces the op of a step. The outputs stay.
    pub(crate) fn replace(&mut self, step: usize, op: Op) {
        self.leave_reads(step);
        if let Some(step) = &mut self.steps[step] {
            step.op = Arc::new(op);
        }
        self.enter_reads(step);
    }

    /// Replaces the op of a step and sets its epilogue. The outputs stay.
    pub(crate) fn replace_with_tail(&mut self, step: usize, op: Op, tail: Tail) {
        self.leave_reads(step);
        if let Some(step) = &mut self.steps[step] {
            step.op = Arc::new(op);
        }
        self.tails[step] = Some(Box::new(tail));
        self.enter_reads(step);
    }

    /// Removes a step. Its outputs must have no readers.
    pub(crate) fn remove(&mut self, step: usize) {
        self.leave_reads(step);
        self.steps[step] = None;
    }

    /// Removes a step if its outputs are unused.
    pub(crate) fn remove_if_unread(&mut self, step: usize) {
        let unread = self.steps[step]
            .as_ref()
            .is_some_and(|step| step.outputs.iter().all(|slot| self.readers[slot].count == 0 && !self.is_output[slot]));
        if unread {
            self.remove(step);
        }
    }

    /// Appends a slot and returns its index.
    pub(crate) fn new_slot(&mut self, slot: Slot) -> usize {
        self.slots.push(slot);
        self.orders.push(None);
        self.readers.push(Readers::default());
        self.is_output.push(false);
        self.slots.len() - 1
    }

    /// Appends a step with one output and returns the output's slot. The step must depend on
    /// constants only, because its reader precedes it.
    pub(crate) fn push_once(&mut self, node: usize, op: Op, mut output: Slot) -> usize {
        output.origin = Origin::Step(self.steps.len());
        let slot = self.new_slot(output);
        self.steps.push(Some(Step { node, op: Arc::new(op), outputs: Outputs::new(slot..slot + 1) }));
        self.tails.push(None);
        self.enter_reads(self.steps.len() - 1);
        slot
    }

    /// For each slot, the steps that read it, in order.
    pub(crate) fn all_readers(&self) -> Lists {
        Lists::new(self.slots.len(), |enter| {
            for step in 0..self.steps.len() {
                self.slots_read_by(step).into_iter().for_each(|slot| enter(slot, step));
            }
        })
    }

    /// Whether these steps can read `slot`, so far a contiguous tensor of `shape`, through `seen`
    /// instead.
    pub(crate) fn can_see(&self, slot: usize, readers: &[u32], shape: &Shape, seen: &Tensor) -> bool {
        readers.iter().all(|step| {
            let mut all = true;
            if let Some(op) = self.op(*step as usize) {
                op.for_each_tensor(&mut |tensor| {
                    all &= slot_of(tensor) != Some(slot) || through(tensor, shape, seen).is_some();
                });
            }
            all
        })
    }

    /// Makes a step read a slot of `shape` through `seen`.
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
            (readers.count, readers.mixed) = (readers.count + 1, readers.mixed ^ index as u32);
        }
    }

    fn leave_reads(&mut self, index: usize) {
        for slot in self.slots_read_by(index) {
            let readers = &mut self.readers[slot];
            (readers.count, readers.mixed) = (readers.count - 1, readers.mixed ^ index as u32);
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
