//! The state of a trace: known values, and nodes that wait for values.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use panoply_core::graph::NodeId;

use crate::element::ElementType;
use crate::lower::Origin;
use crate::program::{Body, Node, ValueId};
use crate::value::Value;

/// The location of a value at a point of a trace.
#[derive(Clone)]
pub(super) enum ValueLocation {
    /// A constant for every run of this list.
    Static(Value),
    /// A value in this slot.
    Slot(usize),
    /// A node of the graph under construction, with its element type.
    Pending(NodeId, ElementType),
}

/// The nodes that are done and those that may run. Cloned when a list ends in a branch.
#[derive(Clone, Default)]
pub(super) struct State {
    pub bound: HashMap<ValueId, ValueLocation>,
    /// The bytes from which constant float matrices were dequantized.
    pub origins: HashMap<ValueId, Arc<Origin>>,
    /// For each value, the number of nodes and outputs that still need it.
    uses: HashMap<ValueId, usize>,
    entries: Vec<Arc<Node>>,
    missing: Vec<usize>,
    waiting: HashMap<ValueId, Vec<usize>>,
    /// Nodes whose operands are all available, in the file's order.
    pub ready: BTreeSet<usize>,
    /// Ready nodes that have to run on the host.
    pub on_host: BTreeSet<usize>,
    pub outputs: Vec<ValueId>,
    pub slots: usize,
}

impl State {
    /// The initial state: inputs in the first slots, constants bound.
    pub(super) fn new(body: &Body, statics: &HashMap<ValueId, Value>, dynamics: &[ValueId]) -> State {
        let mut state = State { outputs: body.outputs.clone(), ..State::default() };
        for (slot, id) in body.inputs.iter().chain(dynamics).enumerate() {
            state.bound.insert(*id, ValueLocation::Slot(slot));
        }
        state.slots = body.inputs.len() + dynamics.len();
        state.bound.extend(statics.iter().map(|(id, value)| (*id, ValueLocation::Static(value.clone()))));
        state.add(body);
        body.outputs.iter().for_each(|id| *state.uses.entry(*id).or_default() += 1);
        state
    }

    /// Adds a body's constants and nodes.
    pub(super) fn add(&mut self, body: &Body) {
        self.bound.extend(body.constants.iter().map(|(id, array)| (*id, ValueLocation::Static(array.clone().into()))));
        for node in &body.nodes {
            self.add_node(Arc::clone(node));
        }
    }

    pub(super) fn add_node(&mut self, node: Arc<Node>) {
        let place = self.entries.len();
        let mut missing = 0;
        for id in node.needs() {
            *self.uses.entry(id).or_default() += 1;
            if !self.bound.contains_key(&id) {
                self.waiting.entry(id).or_default().push(place);
                missing += 1;
            }
        }
        self.entries.push(node);
        self.missing.push(missing);
        if missing == 0 {
            self.ready.insert(place);
        }
    }

    /// Its size in the budget of kept lists.
    pub(super) fn size(&self) -> usize {
        self.entries.len() + self.bound.len() + self.uses.len() + self.waiting.len()
    }

    pub(super) fn entry(&self, place: usize) -> Arc<Node> {
        Arc::clone(&self.entries[place])
    }

    /// Records that a value is available, and moves nodes whose last operand it was to `ready`.
    pub(super) fn bind(&mut self, id: ValueId, bound: ValueLocation) {
        self.bound.insert(id, bound);
        for place in self.waiting.remove(&id).unwrap_or_default() {
            self.missing[place] -= 1;
            if self.missing[place] == 0 {
                self.ready.insert(place);
            }
        }
    }

    /// Records that a node has read its operands.
    pub(super) fn done(&mut self, node: &Node) {
        for id in node.needs() {
            if let Some(uses) = self.uses.get_mut(&id) {
                *uses = uses.saturating_sub(1);
            }
        }
    }

    /// Whether a node or output still needs a value.
    pub(super) fn is_needed(&self, id: ValueId) -> bool {
        self.uses.get(&id).is_some_and(|uses| *uses > 0)
    }

    pub(super) fn slot(&mut self) -> usize {
        self.slots += 1;
        self.slots - 1
    }

    /// Slots of values that are still needed.
    pub(super) fn needed_slots(&self) -> BTreeSet<usize> {
        let slot = |(id, bound): (&ValueId, &ValueLocation)| match bound {
            ValueLocation::Slot(slot) if self.is_needed(*id) => Some(*slot),
            _ => None,
        };
        self.bound.iter().filter_map(slot).collect()
    }

    /// Removes values that are no longer needed, so that a branch does not keep them.
    pub(super) fn prune(&mut self) {
        self.uses.retain(|_, uses| *uses > 0);
        let uses = &self.uses;
        self.bound.retain(|id, _| uses.contains_key(id));
    }
}
