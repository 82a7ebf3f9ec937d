//! Tracing: runs a program and records its steps.

use std::collections::HashMap;
use std::sync::Arc;

use super::replay::{inline, run_node, run_step, source};
use super::state::{State, ValueLocation};
use super::{CachedNodeCount, Context, Executable, Inner, OperandSource, Outcome, RunStep, RunValue};
use crate::error::{Error, Result};
use crate::lower::{Arg, Origin, Recording, VaryingOperand};
use crate::ops::call::{Call, truth};
use crate::ops::shape;
use crate::program::{Attribute, Node, OpKind, ValueId};
use crate::value::Value;

/// A run in progress, with the steps recorded so far.
pub(super) struct Tracer<'c, 'r> {
    context: &'c Context<'r>,
    kept: &'c Arc<CachedNodeCount>,
    pub(super) state: State,
    pub(super) live: Vec<Option<RunValue>>,
    pub(super) steps: Vec<RunStep>,
    recording: Option<Recording>,
    /// The values of the graph under construction.
    pending: Vec<ValueId>,
    /// Slots with converted indices, by the slot of the original indices and the length of the
    /// axis.
    indices: HashMap<(usize, usize), usize>,
    /// Conversions of indices that have not run yet.
    unconverted: Vec<RunStep>,
}

/// The most host nodes examined to find one that is independent of the recorded graph.
const LOOKED_AT_MAX: usize = 64;

impl<'c, 'r> Tracer<'c, 'r> {
    pub(super) fn new(
        context: &'c Context<'r>,
        kept: &'c Arc<CachedNodeCount>,
        state: State,
        live: Vec<Option<RunValue>>,
    ) -> Tracer<'c, 'r> {
        let (pending, indices, unconverted) = (Vec::new(), HashMap::new(), Vec::new());
        Tracer { context, kept, state, live, steps: Vec::new(), recording: None, pending, indices, unconverted }
    }

    /// Runs until all nodes are done, or until a value decides how the run continues.
    pub(super) async fn run(&mut self) -> Result<Option<Outcome>> {
        loop {
            while let Some(place) = self.state.ready.pop_first() {
                let node = self.state.entry(place);
                if !self.visit(&node).await.map_err(|cause| node.error(cause))? {
                    self.state.on_host.insert(place);
                }
            }
            let waits = |place: &usize| self.is_pending(&self.state.entry(*place));
            let free = self.state.on_host.iter().copied().take(LOOKED_AT_MAX).find(|place| !waits(place));
            let place = match free {
                Some(place) => place,
                None => {
                    self.flush().await?;
                    match self.state.on_host.first().copied() {
                        Some(place) => place,
                        None => break,
                    }
                }
            };
            self.state.on_host.remove(&place);
            let node = self.state.entry(place);
            if let Some(outcome) = self.on_host(place, &node).await.map_err(|cause| node.error(cause))? {
                self.flush().await?;
                return Ok(Some(outcome));
            }
        }
        let missing = self.state.outputs.iter().find(|id| !self.state.bound.contains_key(id));
        match missing {
            None => Ok(None),
            Some(_) => Err(Error::invalid("a graph", "outputs that some node makes", "one that none does")),
        }
    }

    fn is_pending(&self, node: &Node) -> bool {
        node.needs().any(|id| matches!(self.state.bound.get(&id), Some(ValueLocation::Pending(..))))
    }

    /// Handles a node now if it needs no step on the host. Returns `false` if the node needs the
    /// host.
    async fn visit(&mut self, node: &Arc<Node>) -> Result<bool> {
        if let (OpKind::If, Some(Some(condition))) = (node.kind, node.inputs.first())
            && let Some(ValueLocation::Static(value)) = self.state.bound.get(condition)
        {
            let condition = truth(&value.clone())?;
            inline(&mut self.state, node, condition)?;
            return Ok(true);
        }
        if node.op == "Identity" && node.inputs.len() == 1 {
            return Ok(self.alias(node));
        }
        if let Some(outputs) = self.computed(node).await? {
            outputs.iter().try_for_each(|output| self.context.hold(output.bytes()))?;
            let bounds = outputs.into_iter().map(ValueLocation::Static).collect();
            return self.complete(node, bounds).map(|()| true);
        }
        self.record(node).await
    }

    /// Binds the node's output to the value of its input.
    fn alias(&mut self, node: &Node) -> bool {
        let bound = node.inputs[0].and_then(|id| self.state.bound.get(&id)).cloned();
        if let (Some(bound), Some(Some(output))) = (bound, node.outputs.first()) {
            self.bind(*output, bound);
        }
        self.state.done(node);
        true
    }

    fn bind(&mut self, id: ValueId, bound: ValueLocation) {
        if let ValueLocation::Pending(..) = bound {
            self.pending.push(id);
        }
        self.state.bind(id, bound);
    }

    /// The outputs of a node whose operands are all constants.
    async fn computed(&mut self, node: &Arc<Node>) -> Result<Option<Vec<Value>>> {
        let fixed = |id| matches!(self.state.bound.get(&id), Some(ValueLocation::Static(_)));
        if let Some(outputs) = self.shape_alone(node)? {
            return Ok(Some(outputs));
        }
        if !node.needs().all(fixed) || matches!(node.kind, OpKind::If) {
            return Ok(None);
        }
        let inputs: Vec<Option<Value>> = node.inputs.iter().map(|id| self.static_value(*id)).collect();
        let bodies = self.bodies(node)?;
        let made = run_node(self.context, node, &inputs, &bodies, &self.live).await?;
        if let ("DequantizeLinear", Some(Some(output))) = (node.op.as_str(), node.outputs.first())
            && self.context.runtime.is_some()
            && let Some(origin) = Origin::of(&Call { node, inputs: &inputs })?
        {
            self.state.origins.insert(*output, origin);
        }
        Ok(Some(made))
    }

    /// `Shape` and `Size`, which read no elements.
    fn shape_alone(&self, node: &Node) -> Result<Option<Vec<Value>>> {
        let dims = || node.inputs.first().copied().flatten().and_then(|id| self.form(id)).map(|(_, dims)| dims);
        let call = Call { node, inputs: &[] };
        match (node.op.as_str(), node.kind) {
            ("Shape", OpKind::Plain { .. }) => dims().map(|dims| shape::shape_of(&call, &dims)).transpose(),
            ("Size", OpKind::Plain { .. }) => dims().map(|dims| shape::size_of(&dims)).transpose(),
            _ => Ok(None),
        }
    }

    fn static_value(&self, id: Option<usize>) -> Option<Value> {
        match self.state.bound.get(&id?) {
            Some(ValueLocation::Static(value)) => Some(value.clone()),
            _ => None,
        }
    }

    /// The element type and dimensions of a value that is an array.
    fn form(&self, id: usize) -> Option<(crate::ElementType, Vec<usize>)> {
        match self.state.bound.get(&id)? {
            ValueLocation::Static(Value::Array(array)) => Some((array.kind(), array.dims().to_vec())),
            ValueLocation::Static(_) => None,
            ValueLocation::Slot(slot) => match self.live.get(*slot)?.as_ref()? {
                RunValue::Value(Value::Array(array)) => Some((array.kind(), array.dims().to_vec())),
                RunValue::Value(_) => None,
                RunValue::Tensor(tensor, kind) => Some((*kind, tensor.shape().to_vec())),
            },
            ValueLocation::Pending(node, kind) => Some((*kind, self.recording.as_ref()?.dims(*node)?)),
        }
    }

    /// Records a node into the graph. Returns `false` if devices have no op for it.
    async fn record(&mut self, node: &Arc<Node>) -> Result<bool> {
        let OpKind::Plain { shape_operands, .. } = node.kind else { return Ok(false) };
        if self.context.runtime.is_none() {
            return Ok(false);
        }
        // Devices replay graphs of products with one call. Look-ups by indices that come with each
        // run cannot be replayed, because a device has to check these indices. Look-ups before the
        // first product are therefore a graph of their own.
        let is_product = matches!(node.op.as_str(), "MatMul" | "Gemm" | "Conv");
        if is_product && self.recording.as_ref().is_some_and(Recording::looks_up_alone) {
            self.flush().await?;
        }
        let mut args = Vec::with_capacity(node.inputs.len());
        for (place, id) in node.inputs.iter().enumerate() {
            let Some(id) = id else {
                args.push(Arg::Missing);
                continue;
            };
            let arg = match self.state.bound.get(id) {
                Some(ValueLocation::Static(Value::Array(array))) => Arg::Static(array.clone()),
                Some(ValueLocation::Static(_)) | None => return Ok(false),
                Some(bound) => {
                    let decides = place < 32 && shape_operands >> place & 1 == 1;
                    let (false, Some((kind, dims))) = (decides, self.form(*id)) else { return Ok(false) };
                    let at = match bound {
                        ValueLocation::Pending(node, _) => VaryingOperand::Node(*node),
                        ValueLocation::Slot(slot) => VaryingOperand::Slot(*slot),
                        ValueLocation::Static(_) => return Ok(false),
                    };
                    Arg::Dynamic { kind, dims, at }
                }
            };
            args.push(arg);
        }
        let mut recording = match self.recording.take() {
            Some(recording) => recording,
            None => Recording::new()?,
        };
        let recorded = {
            let origins: Vec<Option<Arc<Origin>>> =
                node.inputs.iter().map(|id| self.state.origins.get(&(*id)?).cloned()).collect();
            let origin = |place: usize| origins.get(place).cloned().flatten();
            recording.record(node, &args, &origin, &mut |slot, len| Ok(self.index_slot(slot, len)))
        };
        recording.has_products |= is_product && matches!(recorded, Ok(Some(_)));
        self.recording = Some(recording);
        self.convert_indices().await?;
        match recorded? {
            Some(outputs) => {
                let bounds = outputs.into_iter().map(|(node, kind)| ValueLocation::Pending(node, kind)).collect();
                self.complete(node, bounds)?;
                if self.context.recorder.is_some() {
                    self.flush_as(Some(node)).await?;
                }
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// The slot with the converted indices of another slot.
    fn index_slot(&mut self, input: usize, len: usize) -> usize {
        if let Some(output) = self.indices.get(&(input, len)) {
            return *output;
        }
        let output = self.state.slot();
        self.unconverted.push(RunStep::Indices { input, output, len });
        self.indices.insert((input, len), output);
        output
    }

    /// Runs the conversions of indices that a recorded node asked for.
    async fn convert_indices(&mut self) -> Result<()> {
        for step in std::mem::take(&mut self.unconverted) {
            run_step(self.context, &step, &mut self.live).await?;
            self.steps.push(step);
        }
        Ok(())
    }

    /// Binds a node's outputs.
    fn complete(&mut self, node: &Node, bounds: Vec<ValueLocation>) -> Result<()> {
        for (place, output) in node.outputs.iter().enumerate() {
            let Some(output) = output else { continue };
            let bound = bounds.get(place).cloned();
            self.bind(*output, bound.ok_or_else(|| Error::unsupported(format!("output {place}")))?);
        }
        self.state.done(node);
        Ok(())
    }

    /// Runs a node on the host. Returns an outcome, which ends the list, if the shapes of its
    /// outputs or the condition of an `If` are not known beforehand.
    async fn on_host(&mut self, place: usize, node: &Arc<Node>) -> Result<Option<Outcome>> {
        if let OpKind::If = node.kind {
            let condition = node.inputs.first().copied().flatten();
            let slot = match condition.and_then(|id| self.state.bound.get(&id)) {
                Some(ValueLocation::Slot(slot)) => *slot,
                _ => return Err(Error::invalid("an If", "a condition", "none")),
            };
            return Ok(Some(Outcome::Truth(slot, place)));
        }
        let inputs: Vec<OperandSource> = node
            .inputs
            .iter()
            .map(|id| id.map_or(OperandSource::Missing, |id| source(self.state.bound.get(&id))))
            .collect();
        let outputs: Vec<Option<usize>> = node.outputs.iter().map(|output| output.map(|_| self.state.slot())).collect();
        let step =
            RunStep::Host { node: Arc::clone(node), inputs, outputs: outputs.clone(), bodies: self.bodies(node)? };
        run_step(self.context, &step, &mut self.live).await?;
        self.steps.push(step);
        let bounds = outputs.iter().map(|slot| ValueLocation::Slot(slot.unwrap_or(usize::MAX))).collect();
        self.complete(node, bounds)?;
        let decided = match node.kind {
            OpKind::Plain { shape_operands, .. } => node.inputs.iter().enumerate().any(|(place, id)| {
                let decides = shape_operands >> place.min(31) & 1 == 1;
                decides && id.is_some_and(|id| !matches!(self.state.bound.get(&id), Some(ValueLocation::Static(_))))
            }),
            _ => true,
        };
        Ok(decided.then(|| Outcome::Forms(outputs.into_iter().flatten().collect())))
    }

    /// The bodies of a node, with the surrounding values that they read. Constant values are bound
    /// once.
    fn bodies(&self, node: &Node) -> Result<Vec<Inner>> {
        let mut bodies = Vec::new();
        for attribute in node.attributes.values() {
            let (Attribute::Body(body), false) = (attribute, matches!(node.kind, OpKind::If)) else { continue };
            let (mut statics, mut dynamics, mut slots) = (HashMap::new(), Vec::new(), Vec::new());
            for id in &body.captures {
                match self.state.bound.get(id) {
                    Some(ValueLocation::Static(value)) => drop(statics.insert(*id, value.clone())),
                    Some(ValueLocation::Slot(slot)) => {
                        dynamics.push(*id);
                        slots.push(*slot);
                    }
                    _ => return Err(Error::invalid("a body", "values from around it", "one that is not there")),
                }
            }
            bodies.push((Arc::new(Executable::new(Arc::clone(body), statics, dynamics, self.kept)), slots));
        }
        Ok(bodies)
    }

    /// Ends the graph under construction and runs it, so that its needed values are in slots.
    async fn flush(&mut self) -> Result<()> {
        self.flush_as(None).await
    }

    /// As `flush`; the graph consists of this node, if one is given.
    async fn flush_as(&mut self, node: Option<&Arc<Node>>) -> Result<()> {
        let Some(recording) = self.recording.take() else { return Ok(()) };
        let mut wanted: Vec<(usize, panoply_core::graph::NodeId, crate::ElementType)> = Vec::new();
        let mut pending = std::mem::take(&mut self.pending);
        pending.sort_unstable();
        pending.dedup();
        for id in &pending {
            if let (Some(ValueLocation::Pending(node, kind)), true) =
                (self.state.bound.get(id), self.state.is_needed(*id))
            {
                wanted.push((*id, *node, *kind));
            }
        }
        if !wanted.is_empty() {
            let (mut nodes, mut outputs, mut slots) = (Vec::new(), Vec::new(), HashMap::new());
            for (id, recorded, kind) in &wanted {
                let slot = *slots.entry((*recorded, *kind)).or_insert_with(|| {
                    let slot = self.state.slot();
                    nodes.push(*recorded);
                    outputs.push((slot, *kind));
                    slot
                });
                self.state.bound.insert(*id, ValueLocation::Slot(slot));
            }
            let (graph, inputs) = recording.finish(&nodes)?;
            let step = RunStep::Graph { graph, inputs, outputs, node: node.cloned() };
            run_step(self.context, &step, &mut self.live).await?;
            self.steps.push(step);
        }
        for id in pending {
            if let Some(ValueLocation::Pending(..)) = self.state.bound.get(&id) {
                self.state.bound.remove(&id);
            }
        }
        Ok(())
    }
}
