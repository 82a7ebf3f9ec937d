//! Instances: a graph with fixed symbol sizes, as a flat list of ops over placeholders.

use std::any::Any;
use std::collections::HashMap;
use std::ops::{Deref, Range};
use std::sync::Arc;

use super::Graph;
use super::cut::GraphParts;
use super::dim::SymbolSizes;
use super::node::{Kind, Node, Nodes};
use super::placeholder::{fill_in, placeholder, slot_of, view_of};
use crate::backend::Support;
use crate::device::DeviceId;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::expr::Expr;
use crate::once::OnceBox;
use crate::op::compute::{ComputeOp, Map};
use crate::op::{Describe, Op};
use crate::part::Value;
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Number of devices whose answers about an instance are cached.
const VERDICTS_MAX: usize = 32;
/// Number of sorts of devices for which the compiler's result is cached.
const COMPILED_MAX: usize = 8;

/// A cached value for a list of devices, or for a sort of device.
type CacheEntry<K, V> = OnceBox<(K, Arc<V>)>;

/// One slot while an instance runs: a contiguous tensor.
#[derive(Clone, Debug)]
pub struct Slot {
    /// The source of the tensor.
    pub origin: Origin,
    contents: Arc<Contents>,
}

/// The contents of a slot. Slots of one type and shape may share them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Contents {
    /// Element type.
    pub dtype: DType,
    /// Shape. Placeholders may view the slot in other shapes.
    pub shape: Shape,
}

impl Slot {
    /// A slot of its own contents.
    pub fn new(dtype: DType, shape: Shape, origin: Origin) -> Slot {
        Slot { origin, contents: Arc::new(Contents { dtype, shape }) }
    }

    /// Gives the slot another shape.
    pub fn set_shape(&mut self, shape: Shape) {
        self.contents = Arc::new(Contents { shape, ..*self.contents });
    }

    /// Number of bytes.
    pub fn len_bytes(&self) -> usize {
        self.shape.elements() * self.dtype.size_bytes()
    }
}

impl Deref for Slot {
    type Target = Contents;

    fn deref(&self) -> &Contents {
        &self.contents
    }
}

/// The source of a slot's tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The input with this index.
    Input(usize),
    /// The constant with this node index.
    Constant(usize),
    /// The step with this index.
    Step(usize),
}

/// One op of an instance.
#[derive(Clone, Debug)]
pub struct Step {
    /// Index of the node that the step computes.
    pub node: usize,
    /// The op. Each of its tensors is a placeholder. Plans share unchanged ops with the instance.
    pub op: Arc<Op>,
    /// The slots of its outputs.
    pub outputs: Outputs,
}

/// The slots of a step's outputs, which follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outputs {
    first: u32,
    count: u32,
}

impl Outputs {
    /// These slots.
    pub fn new(slots: Range<usize>) -> Outputs {
        Outputs { first: slots.start as u32, count: slots.len() as u32 }
    }

    /// The slots, in the order of the op's outputs.
    pub fn iter(self) -> Range<usize> {
        let first = self.first as usize;
        first..first + self.count as usize
    }

    /// The slot of the first output.
    pub fn first(self) -> Option<usize> {
        self.iter().next()
    }

    /// Number of outputs.
    #[allow(clippy::len_without_is_empty)] // Every op has an output.
    pub fn len(self) -> usize {
        self.count as usize
    }
}

/// A graph with sizes for its symbols.
#[derive(Debug)]
pub struct Instance {
    /// The sizes of the symbols.
    pub sizes: SymbolSizes,
    /// The tensors between the ops.
    pub slots: Vec<Slot>,
    /// The ops, in an order in which they can run.
    pub steps: Vec<Step>,
    /// The outputs: views of slots.
    pub outputs: Vec<Tensor>,
    work: u64,
    verdicts: [OnceBox<(DeviceId, Support)>; VERDICTS_MAX],
    parts: [CacheEntry<Box<[DeviceId]>, GraphParts>; VERDICTS_MAX],
    compiled: [CacheEntry<u64, dyn Any + Send + Sync>; COMPILED_MAX],
}

impl Instance {
    /// Instantiates every node of the graph for these sizes of its symbols. If an op cannot run
    /// with them, the error names the node.
    pub fn new(graph: &Graph, sizes: &SymbolSizes) -> Result<Instance> {
        let nodes = graph.nodes();
        let ops = nodes.iter().filter(|node| matches!(node.kind, Kind::Op(_))).count();
        let (slots, steps) = (Vec::with_capacity(nodes.len()), Vec::with_capacity(ops));
        let (values, contents) = (Vec::with_capacity(nodes.len()), HashMap::new());
        let mut making = InstanceBuilder { slots, steps, values, contents };
        let mut readers = readers(graph);
        let mut input = 0;
        for (index, node) in nodes.iter().enumerate() {
            let port = input;
            input += usize::from(matches!(node.kind, Kind::Input));
            let value = making.node(index, node, port, sizes).map_err(|cause| graph.0.nodes.error(index, cause))?;
            making.values.push(value);
            // Tensors without further readers are dropped at once, so that a large graph holds few
            // at a time.
            for operand in node.operands.iter().map(|operand| *operand as usize) {
                readers[operand] -= 1;
                if readers[operand] == 0 {
                    making.values[operand] = Vec::new();
                }
            }
        }
        let output = |(name, node): &(String, usize)| {
            let gone = || Error::invalid("graph: an output", "a node that is there", name);
            making.values[*node].first().cloned().ok_or_else(gone)
        };
        let outputs: Vec<Tensor> = graph.outputs().iter().map(output).collect::<Result<_>>()?;
        let work = making.steps.iter().fold(0_u64, |sum, step| sum.saturating_add(step.op.work()));
        let verdicts = [const { OnceBox::new() }; VERDICTS_MAX];
        let parts = [const { OnceBox::new() }; VERDICTS_MAX];
        let compiled = [const { OnceBox::new() }; COMPILED_MAX];
        let InstanceBuilder { mut slots, mut steps, .. } = making;
        slots.shrink_to_fit();
        steps.shrink_to_fit();
        Ok(Instance { sizes: *sizes, slots, steps, outputs, work, verdicts, parts, compiled })
    }

    /// The total work of all ops.
    pub fn work(&self) -> u64 {
        self.work
    }

    /// Whether a device runs every op, according to `ask`. Each op is asked about once for each
    /// device.
    pub fn support(&self, graph: &Graph, device: DeviceId, ask: &dyn Fn(&Op) -> Support) -> Support {
        let decide = || {
            for step in &self.steps {
                if let Support::No(reason) = ask(&step.op) {
                    return Support::No(format!("{}: {reason}", graph.node_text(step.node)));
                }
            }
            Support::Yes
        };
        for place in &self.verdicts {
            match place.get() {
                Some((known, support)) if *known == device => return support.clone(),
                Some(_) => {}
                None => {
                    // Another thread may have filled this slot for another device. Then this
                    // verdict is not cached.
                    let support = decide();
                    let _ = place.set((device, support.clone()));
                    return support;
                }
            }
        }
        decide()
    }

    /// The graph in parts for these devices, of which the first runs all that it can (see
    /// [`GraphParts::new`]). The result for the first few lists is cached.
    pub fn parts(
        &self,
        graph: &Graph,
        devices: &[DeviceId],
        ask: &dyn Fn(DeviceId, &Op) -> Support,
    ) -> Result<Arc<GraphParts>> {
        let make = || GraphParts::new(graph, self, devices, ask).map(Arc::new);
        kept(&self.parts, |known| **known == *devices, || devices.into(), make)
    }

    /// The compiler's result for this sort of device. The results for the first few sorts are
    /// cached.
    pub fn compiled(
        &self,
        sort: u64,
        make: &dyn Fn() -> Result<Arc<dyn Any + Send + Sync>>,
    ) -> Result<Arc<dyn Any + Send + Sync>> {
        kept(&self.compiled, |known| *known == sort, || sort, make)
    }

    /// Runs the ops one by one with `run`, on these inputs.
    pub fn run(
        &self,
        graph: &Graph,
        inputs: &[Tensor],
        run: &mut dyn FnMut(&Op) -> Result<Value>,
    ) -> Result<Vec<Tensor>> {
        let mut filled: Vec<Option<Tensor>> = self.slots.iter().map(|_| None).collect();
        for (place, slot) in filled.iter_mut().zip(&self.slots) {
            *place = match slot.origin {
                Origin::Input(input) => inputs.get(input).map(Tensor::contiguous).transpose()?,
                Origin::Constant(node) => graph.nodes()[node].constant().cloned(),
                Origin::Step(_) => None,
            };
        }
        for step in &self.steps {
            let mut op = Op::clone(&step.op);
            fill_in(&mut op, &|slot| filled.get(slot)?.clone())?;
            let value = run(&op).map_err(|cause| graph.0.nodes.error(step.node, cause))?;
            for (slot, tensor) in step.outputs.iter().zip(value.tensors()) {
                filled[slot] = Some(tensor.clone());
            }
        }
        let missing = || Error::invalid("graph: an output", "a tensor", "nothing");
        let output = |view: &Tensor| {
            let slot = slot_of(view).ok_or_else(missing)?;
            view_of(view, filled.get(slot).and_then(Option::as_ref).ok_or_else(missing)?)
        };
        self.outputs.iter().map(output).collect()
    }
}

/// The number of readers of each node: as an operand or as an output.
fn readers(graph: &Graph) -> Vec<usize> {
    let mut readers = vec![0; graph.nodes().len()];
    let operands = graph.nodes().iter().flat_map(|node| node.operands.iter());
    operands.for_each(|operand| readers[*operand as usize] += 1);
    graph.outputs().iter().for_each(|(_, node)| readers[*node] += 1);
    readers
}

/// The cached value under a key, or a new value, which is cached if there is a free slot.
fn kept<K: Send + Sync, V: Send + Sync + ?Sized>(
    places: &[CacheEntry<K, V>],
    is_it: impl Fn(&K) -> bool,
    key: impl Fn() -> K,
    make: impl Fn() -> Result<Arc<V>>,
) -> Result<Arc<V>> {
    for place in places {
        match place.get() {
            Some((known, value)) if is_it(known) => return Ok(Arc::clone(value)),
            Some(_) => {}
            None => {
                let made = make()?;
                // Another thread may have filled this slot with another key. Then this value is not
                // cached; the next call finds a free slot.
                let (known, value) = place.get_or_make(|| (key(), Arc::clone(&made)));
                return Ok(if is_it(known) { Arc::clone(value) } else { made });
            }
        }
    }
    make()
}

impl Node {
    /// The tensor, if the node is a constant.
    pub fn constant(&self) -> Option<&Tensor> {
        match &self.kind {
            Kind::Constant(tensor) => Some(tensor),
            _ => None,
        }
    }
}

/// An instance under construction, with the tensors of all nodes so far.
struct InstanceBuilder {
    slots: Vec<Slot>,
    steps: Vec<Step>,
    values: Vec<Vec<Tensor>>,
    /// The contents of slots so far. A large graph has few that differ.
    contents: HashMap<Contents, Arc<Contents>>,
}

impl InstanceBuilder {
    /// The tensors of a node: one, except for an op with several outputs.
    fn node(&mut self, index: usize, node: &Node, input: usize, sizes: &SymbolSizes) -> Result<Vec<Tensor>> {
        let shape = Nodes::shape(&node.dims, sizes)?;
        let one = |tensor: Result<Tensor>| tensor.map(|tensor| vec![tensor]);
        match &node.kind {
            Kind::Input => one(self.slot(node.dtype, shape, Origin::Input(input))),
            Kind::Constant(_) => one(self.slot(node.dtype, shape, Origin::Constant(index))),
            Kind::Reshape => {
                let operand = self.operand(node, 0)?;
                let operand = if operand.is_contiguous() { operand } else { self.copy(index, &operand)? };
                one(operand.reshape(shape))
            }
            Kind::Broadcast => one(self.operand(node, 0)?.broadcast_to(shape)),
            Kind::Permute(order) => one(self.operand(node, 0)?.permute(order)),
            Kind::Slice { axis, start, end, step } => {
                one(self.operand(node, 0)?.slice_step(*axis, *start, *end, *step))
            }
            Kind::Op(op) => self.op(index, node, op.op().into_owned()),
            Kind::Part(port) => {
                let whole = node.operands.first().and_then(|operand| self.values.get(*operand as usize));
                let part = whole.and_then(|values| values.get(*port)).cloned();
                one(part.ok_or_else(|| Error::invalid("graph: a part", "an output of the op", port)))
            }
        }
    }

    /// Adds the step of an op, which is over placeholders of sample sizes.
    fn op(&mut self, index: usize, node: &Node, mut op: Op) -> Result<Vec<Tensor>> {
        let operands: Vec<Tensor> =
            (0..node.operands.len()).map(|place| self.operand(node, place)).collect::<Result<_>>()?;
        let mut operands = operands.into_iter();
        op.for_each_tensor_mut(&mut |tensor| {
            if let Some(operand) = operands.next() {
                *tensor = operand;
            }
        });
        op.validate()?;
        self.push(index, op)
    }

    /// Adds a step and the slots of its outputs.
    fn push(&mut self, node: usize, op: Op) -> Result<Vec<Tensor>> {
        let origin = Origin::Step(self.steps.len());
        let first = self.slots.len();
        let outputs = op.outputs()?;
        let tensors: Vec<Tensor> =
            outputs.into_iter().map(|(dtype, shape)| self.slot(dtype, shape, origin)).collect::<Result<_>>()?;
        self.steps.push(Step { node, op: Arc::new(op), outputs: Outputs::new(first..self.slots.len()) });
        Ok(tensors)
    }

    /// Adds a step that copies the view into a contiguous tensor.
    fn copy(&mut self, node: usize, view: &Tensor) -> Result<Tensor> {
        let map = Map::new(Expr::input(0), &[view]);
        let copied = self.push(node, Op::Compute(ComputeOp::Map(map)))?;
        copied.into_iter().next().ok_or_else(|| Error::invalid("graph: a copy", "one tensor", "none"))
    }

    fn slot(&mut self, dtype: DType, shape: Shape, origin: Origin) -> Result<Tensor> {
        let tensor = placeholder(dtype, shape, self.slots.len())?;
        let contents = Contents { dtype, shape };
        let contents = Arc::clone(self.contents.entry(contents).or_insert_with(|| Arc::new(contents)));
        self.slots.push(Slot { origin, contents });
        Ok(tensor)
    }

    fn operand(&self, node: &Node, place: usize) -> Result<Tensor> {
        let values = node.operands.get(place).and_then(|operand| self.values.get(*operand as usize));
        let missing = || Error::invalid("graph: an operand", "a node that comes before", place);
        values.and_then(|values| values.first()).cloned().ok_or_else(missing)
    }
}
