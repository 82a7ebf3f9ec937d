//! `RunGraph`: a recorded graph with its inputs, as one op.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::graph::{Graph, Instance};
use crate::op::{AnswerTypes, BatchKey, CostClass, Describe};
use crate::part::{Part, Value};
use crate::tensor::Tensor;

/// Runs a [`Graph`] on these inputs, in the order of the graph's inputs. The outputs are a list of
/// tensors.
///
/// The op is validated, routed, batched, retried and reported like any other. The inputs' shapes
/// determine the sizes of the symbols. Sizes that were met before need no new checks.
#[derive(Clone, Debug)]
pub struct RunGraph {
    graph: Graph,
    inputs: Vec<Tensor>,
    instance: Result<Arc<Instance>>,
}

impl RunGraph {
    /// Prepares a run of the graph on these inputs. Errors of the inputs are reported when the op
    /// is validated.
    pub fn new(graph: &Graph, inputs: &[&Tensor]) -> RunGraph {
        let inputs: Vec<Tensor> = inputs.iter().map(|input| (*input).clone()).collect();
        let instance = graph.sizes_of(&inputs).and_then(|sizes| graph.instance(&sizes));
        RunGraph { graph: graph.clone(), inputs, instance }
    }

    /// The graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The inputs, in the graph's order.
    pub fn inputs(&self) -> &[Tensor] {
        &self.inputs
    }

    /// The graph's ops for the sizes of these inputs.
    pub fn instance(&self) -> Result<&Arc<Instance>> {
        self.instance.as_ref().map_err(Clone::clone)
    }

    /// Takes the outputs out of an engine's answer.
    pub(crate) fn from_value(value: Value) -> Result<Vec<Tensor>> {
        let tensor = |part| match part {
            Part::Tensor(tensor) => Ok(tensor),
            _ => Err(Error::invalid("the engine's answer", "a list of tensors", "a part that is none")),
        };
        value.into_list()?.into_iter().map(tensor).collect()
    }
}

impl Describe for RunGraph {
    fn name(&self) -> &'static str {
        "graph"
    }

    fn validate(&self) -> Result<()> {
        self.instance().map(drop)
    }

    crate::parts!(inputs);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::ListOf(&self.instance()?.outputs))
    }

    fn can_be_node(&self) -> bool {
        false
    }

    fn may_be_empty(&self) -> bool {
        false
    }

    /// The total work of all ops.
    fn work(&self) -> u64 {
        self.instance.as_ref().map_or(0, |instance| instance.work())
    }

    /// Each graph has its own curve of time over work.
    fn cost_class(&self) -> CostClass {
        CostClass::numbered(self.graph.hash())
    }

    fn kernel_signature(&self) -> u64 {
        self.graph.hash()
    }

    /// Graphs with independent rows are joined row by row.
    fn batch_key(&self) -> Option<BatchKey> {
        self.graph.has_rows().then(|| BatchKey::of(("graph", self.graph.id())))
    }
}
