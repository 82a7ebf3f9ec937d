//! What a trace knows: which values there are, and which nodes wait for which.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use panoply_core::graph::NodeId;

use crate::element::ElementType;
use crate::lower::Origin;
use crate::program::{Body, Node, ValueId};
use crate::value::Value;

/// What a value is at this point of a trace.
#[derive(Clone)]
pub(super) enum Bound {
    /// Known for every run of this list.
    Static(Value),
    /// In this slot.
    Slot(usize),
    /// In the graph that is being recorded, where it has this element type.
    Pending(NodeId, ElementType),
}

/// Which nodes are done and which may run. Cloned where a list ends in a branch.
#[derive(Clone, Default)]
pub(super) struct State {
    pub bound: HashMap<ValueId, Bound>,
    /// The bytes that constant matrices of floats were made of.
    pub origins: HashMap<ValueId, Arc<Origin>>,
    /// How many nodes, and outputs, still need a value.
    uses: HashMap<ValueId, usize>,
    entries: Vec<Arc<Node>>,
    missing: Vec<usize>,
    waiting: HashMap<ValueId, Vec<usize>>,
    /// Nodes whose operands are there, in the file's order.
    pub ready: BTreeSet<usize>,
    /// Those of them that were found to need the host.
    pub on_host: BTreeSet<usize>,
    pub outputs: Vec<ValueId>,
    pub slots: usize,
}

impl State {
    /// Before anything has run: inputs in the first slots, constants known.
    pub(super) fn new(body: &Body, statics: &HashMap<ValueId, Value>, dynamics: &[ValueId]) -> State {
        let mut state = State { outputs: body.outputs.clone(), ..State::default() };
        for (slot, id) in body.inputs.iter().chain(dynamics).enumerate() {
            state.bound.insert(*id, Bound::Slot(slot));
        }
        state.slots = body.inputs.len() + dynamics.len();
        state.bound.extend(statics.iter().map(|(id, value)| (*id, Bound::Static(value.clone()))));
        state.add(body);
        body.outputs.iter().for_each(|id| *state.uses.entry(*id).or_default() += 1);
        state
    }

    /// Adds a body's constants and nodes.
    pub(super) fn add(&mut self, body: &Body) {
        self.bound.extend(body.constants.iter().map(|(id, array)| (*id, Bound::Static(array.clone().into()))));
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

    /// What it is counted as where it is kept.
    pub(super) fn size(&self) -> usize {
        self.entries.len() + self.bound.len() + self.uses.len() + self.waiting.len()
    }

    pub(super) fn entry(&self, place: usize) -> Arc<Node> {
        Arc::clone(&self.entries[place])
    }

    /// A value is there.
    pub(super) fn bind(&mut self, id: ValueId, bound: Bound) {
        self.bound.insert(id, bound);
        for place in self.waiting.remove(&id).unwrap_or_default() {
            self.missing[place] -= 1;
            if self.missing[place] == 0 {
                self.ready.insert(place);
            }
        }
    }

    /// A node has read its operands.
    pub(super) fn done(&mut self, node: &Node) {
        for id in node.needs() {
            if let Some(uses) = self.uses.get_mut(&id) {
                *uses = uses.saturating_sub(1);
            }
        }
    }

    /// Whether anything still needs a value.
    pub(super) fn is_needed(&self, id: ValueId) -> bool {
        self.uses.get(&id).is_some_and(|uses| *uses > 0)
    }

    pub(super) fn slot(&mut self) -> usize {
        self.slots += 1;
        self.slots - 1
    }

    /// Slots of values that something still needs.
    pub(super) fn needed_slots(&self) -> BTreeSet<usize> {
        let slot = |(id, bound): (&ValueId, &Bound)| match bound {
            Bound::Slot(slot) if self.is_needed(*id) => Some(*slot),
            _ => None,
        };
        self.bound.iter().filter_map(slot).collect()
    }

    /// Forgets values that nothing needs, so that a branch does not keep them.
    pub(super) fn prune(&mut self) {
        self.uses.retain(|_, uses| *uses > 0);
        let uses = &self.uses;
        self.bound.retain(|id, _| uses.contains_key(id));
    }
}
