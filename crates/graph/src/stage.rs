//! The reusable data of a plan's runs: the ops of its steps, and the tensors between them.
//!
//! A graph of many nodes has few different ops and few different views, so each is stored once:
//! steps that differ only in their tensors share an op, and each of an op's tensors is a slot and a
//! layout. Tensors between the steps share seats by lifetime, as they share memory. A run allocates
//! nothing.

use std::collections::HashMap;
use std::sync::Arc;

use panoply_core::expr::Node;
use panoply_core::graph::{Graph, Instance, Kind, Step, slot_of, view_of};
use panoply_core::op::compute::ComputeOp;
use panoply_core::op::graph::RunGraph;
use panoply_core::{DType, Error, Op, Part, Result, Shape, Strides, Tensor, Value};

use crate::execute::{Destination, Executor, at_node};
use crate::plan::{Plan, SlotPlace, Tail};

/// The seat of slots that are never read; it stays empty.
const EMPTY_SEAT: u32 = 0;
/// Stands for the slot of a tensor that is not a view of a slot.
const NO_SLOT: u32 = u32::MAX;

pub(crate) struct Stage {
    #[allow(clippy::vec_box)] // A growing list of ops would hold them twice.
    ops: Vec<Box<StagedOp>>,
    steps: Vec<StagedStep>,
    /// The tensors of all steps' ops and epilogues, in order.
    views: Vec<View>,
    /// Placeholders, one for each layout.
    layouts: Vec<Tensor>,
    seats: Seats,
    /// By seat: its current tensor.
    filled: Vec<Option<Tensor>>,
    /// Destinations of the current step's outputs.
    outputs: Vec<Destination>,
}

/// An op, shared by steps that differ only in their tensors.
struct StagedOp {
    op: Op,
    tail: Option<Box<Tail>>,
}

/// One step: its op, and the first of its views.
struct StagedStep {
    op: u32,
    first_view: u32,
}

/// A tensor of an op: a layout of a slot's content.
#[derive(Clone, Copy)]
struct View {
    slot: u32,
    layout: u32,
}

/// The seats of slots during a run.
struct Seats {
    of_slot: Vec<u32>,
    /// Number of seats for constants and results computed from them; the seats after these are
    /// filled by each run.
    kept: usize,
    count: usize,
}

impl Stage {
    /// Prepares the data for runs of a plan; `kept` has the data on the device, by slot.
    pub(crate) fn new(plan: &Plan, graph: &Graph, instance: &Instance, kept: &HashMap<usize, Tensor>) -> Stage {
        let seats = Seats::new(plan);
        let mut filled = vec![None; seats.count];
        kept.iter().for_each(|(slot, tensor)| filled[seats.of(*slot)] = Some(tensor.clone()));
        let (ops, views, layouts) = (Vec::new(), Vec::new(), Vec::new());
        let steps = Vec::with_capacity(plan.steps.len());
        let mut stage = Stage { ops, steps, views, layouts, seats, filled, outputs: Vec::new() };
        let (mut known_ops, mut known_layouts) = (HashMap::new(), HashMap::new());
        for (step, tail) in plan.steps.iter().zip(&plan.tails) {
            let first_view = stage.views.len() as u32;
            let mut enter = |tensor: &Tensor| stage.enter(tensor, &mut known_layouts);
            step.op.for_each_tensor(&mut enter);
            tail.iter().flat_map(|tail| &tail.more).for_each(enter);
            let next = stage.ops.len() as u32;
            let op = match kind(step, graph, instance).filter(|_| tail.is_none()) {
                Some(kind) => *known_ops.entry(kind).or_insert(next),
                None => next,
            };
            if op == next {
                stage.ops.push(Box::new(StagedOp { op: Op::clone(&step.op), tail: tail.clone() }));
            }
            stage.steps.push(StagedStep { op, first_view });
        }
        stage.ops.shrink_to_fit();
        stage.views.shrink_to_fit();
        stage
    }

    fn enter(&mut self, tensor: &Tensor, known: &mut HashMap<(DType, Shape, Strides, usize), u32>) {
        let Some(slot) = slot_of(tensor) else {
            self.views.push(View { slot: NO_SLOT, layout: 0 });
            return;
        };
        let layout = (tensor.dtype(), *tensor.shape(), *tensor.strides(), tensor.offset());
        let layout = *known.entry(layout).or_insert_with(|| {
            self.layouts.push(tensor.clone());
            self.layouts.len() as u32 - 1
        });
        self.views.push(View { slot: slot as u32, layout });
    }

    pub(crate) fn run(&mut self, plan: &Plan, op: &RunGraph, executor: &mut dyn Executor) -> Result<Value> {
        for (slot, planned) in plan.slots.iter().enumerate() {
            if let SlotPlace::Input(input) = planned.place {
                let given = op.inputs().get(input).map(|tensor| executor.input(tensor)).transpose()?;
                self.filled[self.seats.of(slot)] = given;
            }
        }
        for (number, step) in plan.steps.iter().enumerate() {
            self.fill(number)?;
            self.outputs.clear();
            self.outputs.extend(step.outputs.iter().map(|slot| destination(plan, slot)));
            let staged = &self.ops[self.steps[number].op as usize];
            let made = match &staged.tail {
                Some(tail) => executor.step_with(&staged.op, tail, &self.outputs),
                None => executor.step(&staged.op, &self.outputs),
            };
            // The op's own handles are dropped before its inputs' bytes are reused.
            self.empty(number);
            let value = made.map_err(|cause| at_node(op.graph(), step.node, cause))?;
            for (slot, tensor) in step.outputs.iter().zip(value.tensors()) {
                self.filled[self.seats.of(slot)] = Some(tensor.clone());
            }
            plan.ends.of(number).for_each(|slot| self.filled[self.seats.of(slot)] = None);
        }
        self.handed_out(plan, op)
    }

    /// Drops everything that belongs to the run.
    pub(crate) fn clear(&mut self) {
        self.filled[self.seats.kept..].fill(None);
    }

    /// Gives a step's op the tensors of its views.
    fn fill(&mut self, number: usize) -> Result<()> {
        let Stage { ops, steps, views, layouts, seats, filled, .. } = self;
        let StagedStep { op, first_view } = steps[number];
        let StagedOp { op, tail } = &mut *ops[op as usize];
        let (mut views, mut wrong) = (views[first_view as usize..].iter(), Ok(()));
        let mut fill = |tensor: &mut Tensor| {
            let Some(View { slot, layout }) = views.next().filter(|view| view.slot != NO_SLOT) else { return };
            let missing = || Error::invalid("graph: a slot", "a value", format!("none in {slot}"));
            let actual = filled[seats.of(*slot as usize)].as_ref().ok_or_else(missing);
            match actual.and_then(|actual| view_of(&layouts[*layout as usize], actual)) {
                Ok(actual) => *tensor = actual,
                Err(error) => wrong = Err(error),
            }
        };
        op.for_each_tensor_mut(&mut fill);
        tail.iter_mut().flat_map(|tail| &mut tail.more).for_each(fill);
        if wrong.is_err() {
            self.empty(number);
        }
        wrong
    }

    /// Takes the tensors out of a step's op.
    fn empty(&mut self, number: usize) {
        let Stage { ops, steps, views, layouts, .. } = self;
        let StagedStep { op, first_view } = steps[number];
        let StagedOp { op, tail } = &mut *ops[op as usize];
        let mut views = views[first_view as usize..].iter();
        let mut empty = |tensor: &mut Tensor| {
            if let Some(view) = views.next().filter(|view| view.slot != NO_SLOT) {
                tensor.clone_from(&layouts[view.layout as usize]);
            }
        };
        op.for_each_tensor_mut(&mut empty);
        tail.iter_mut().flat_map(|tail| &mut tail.more).for_each(empty);
    }

    /// The outputs, in the graph's order.
    fn handed_out(&self, plan: &Plan, op: &RunGraph) -> Result<Value> {
        let missing = || Error::invalid("graph: an output", "a tensor", "nothing");
        let mut parts = Vec::with_capacity(plan.outputs.len());
        for view in &plan.outputs {
            let slot = slot_of(view).ok_or_else(missing)?;
            let output = match (plan.slots[slot].place, &self.filled[self.seats.of(slot)]) {
                (_, Some(actual)) => view_of(view, actual),
                // A constant that no step reads was not brought to the device. Engines take tensors
                // of the host only if they are contiguous.
                (SlotPlace::Constant(node), None) => {
                    view_of(view, op.graph().nodes()[node].constant().ok_or_else(missing)?)
                        .and_then(|seen| seen.contiguous())
                }
                _ => Err(missing()),
            };
            parts.push(Part::Tensor(output?));
        }
        Ok(Value::List(parts))
    }
}

impl Seats {
    fn new(plan: &Plan) -> Seats {
        let mut of_slot = vec![EMPTY_SEAT; plan.slots.len()];
        let mut count = EMPTY_SEAT + 1;
        let mut seat_all = |is_seated: &dyn Fn(SlotPlace) -> bool| {
            for (seat, slot) in of_slot.iter_mut().zip(&plan.slots) {
                if is_seated(slot.place) {
                    *seat = count;
                    count += 1;
                }
            }
            count
        };
        let kept = seat_all(&|place| matches!(place, SlotPlace::Constant(_) | SlotPlace::Kept)) as usize;
        let mut count = seat_all(&|place| matches!(place, SlotPlace::Input(_) | SlotPlace::Own));
        let mut free = Vec::new();
        for (number, step) in plan.steps.iter().enumerate() {
            for slot in step.outputs.iter() {
                if let SlotPlace::Arena(_) = plan.slots[slot].place {
                    of_slot[slot] = free.pop().unwrap_or(count);
                    count = count.max(of_slot[slot] + 1);
                }
            }
            free.extend(plan.ends.of(number).map(|slot| of_slot[slot]));
        }
        Seats { of_slot, kept, count: count as usize }
    }

    fn of(&self, slot: usize) -> usize {
        self.of_slot[slot] as usize
    }
}

/// Identifies the op of a step, apart from its tensors.
#[derive(PartialEq, Eq, Hash)]
enum OpKind<'a> {
    /// An op of the graph, which stores equal ops once.
    Recorded(usize),
    /// A map of this expression, with this number of inputs.
    Map(&'a [Node], usize),
    /// A row function, as text, with the expressions before and after it, each with its number of
    /// inputs.
    Rows(String, [(&'a [Node], usize); 2]),
}

/// The kind of a step's op, if it is easily determined: no pass has changed the op, or it consists
/// of expressions.
fn kind<'a>(step: &'a Step, graph: &Graph, instance: &Instance) -> Option<OpKind<'a>> {
    let mut is_placed = true;
    step.op.for_each_tensor(&mut |tensor| is_placed &= slot_of(tensor).is_some());
    match &*step.op {
        _ if !is_placed => return None,
        Op::Compute(ComputeOp::Map(map)) => {
            return Some(OpKind::Map(map.program().ok()?.nodes(), map.inputs().len()));
        }
        Op::Compute(ComputeOp::RowMap(map)) => {
            let before = (map.before_program().ok()?.nodes(), map.inputs().len());
            let after = (map.after_program().ok()?.nodes(), map.more().len());
            return Some(OpKind::Rows(format!("{:?}", map.function), [before, after]));
        }
        _ => {}
    }
    let own = instance.steps.binary_search_by_key(&step.node, |step| step.node).ok()?;
    match &graph.nodes()[step.node].kind {
        Kind::Op(template) if Arc::ptr_eq(&instance.steps[own].op, &step.op) => {
            Some(OpKind::Recorded(template.address()))
        }
        _ => None,
    }
}

fn destination(plan: &Plan, slot: usize) -> Destination {
    let planned = &plan.slots[slot];
    let arena_offset = if let SlotPlace::Arena(offset) = planned.place { Some(offset) } else { None };
    let is_output = planned.place == SlotPlace::Own;
    Destination { arena_offset, is_output, len_bytes: planned.slot.len_bytes(), order: planned.order.copied() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan_of;
    use crate::tests::PROCESSOR;
    use panoply_core::Operation;
    use panoply_core::graph::GraphBuilder;

    fn staged(record: impl Fn(&mut GraphBuilder)) -> (Stage, Arc<Plan>) {
        let mut g = Graph::builder("staged");
        record(&mut g);
        let graph = g.finish().unwrap();
        let op = RunGraph::new(&graph, &[&Tensor::zeros(DType::F32, [4, 4]).unwrap()]);
        op.clone().into_op().unwrap();
        let plan = plan_of(&op, &PROCESSOR).unwrap();
        (Stage::new(&plan, &graph, op.instance().unwrap(), &HashMap::new()), plan)
    }

    #[test]
    fn maps_of_one_expression_share_an_op_and_others_do_not() {
        let (stage, plan) = staged(|g| {
            let mut x = g.input("x", DType::F32, &[4.into(), 4.into()]).unwrap();
            for step in 0..8 {
                x = g.softmax(x, 0).unwrap();
                let flat = g.reshape(x, &[16.into()]).unwrap();
                let turned = g.permute(x, &[1, 0]).unwrap();
                let flat_again = g.reshape(flat, &[4.into(), 4.into()]).unwrap();
                x = if step % 2 == 0 { g.add(turned, flat_again) } else { g.sub(turned, flat_again) }.unwrap();
                x = g.softmax(x, 0).unwrap();
            }
            g.output("y", x).unwrap();
        });
        let maps = plan.steps.iter().filter(|step| matches!(&*step.op, Op::Compute(ComputeOp::Map(_)))).count();
        assert_eq!((plan.steps.len(), maps, stage.ops.len()), (24, 8, 3));
    }

    #[test]
    fn equal_steps_share_their_op_and_tensors_between_them_share_seats() {
        let (stage, plan) = staged(|g| {
            let mut x = g.input("x", DType::F32, &[4.into(), 4.into()]).unwrap();
            for step in 0..60 {
                x = if step % 3 == 2 { g.softmax(x, 0).unwrap() } else { g.softmax(x, 1).unwrap() };
            }
            g.output("y", x).unwrap();
        });
        assert_eq!((plan.steps.len(), stage.ops.len(), stage.layouts.len()), (60, 2, 1));
        // The empty seat, the input, the output, and two that alternate.
        assert_eq!((stage.filled.len(), stage.views.len()), (5, 60));
    }
}
