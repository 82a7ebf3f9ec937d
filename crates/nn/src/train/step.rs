//! A training step as graphs. Forward, backward and the optimiser's step are one graph, or the
//! gradients and the optimiser's step are two graphs if several batches or devices share a step.

use panoply_core::DType;
use panoply_core::expr::Expr;
use panoply_core::graph::{Dim, Graph, GraphBuilder, NodeId};

use crate::error::{Error, Result};
use crate::grad::{GradientGraph, differentiate};
use crate::net::{Recording, Role};
use crate::optim::{Clip, HYPER, Optimiser, ParameterStep, square_norm};

/// The role of an input of a step's graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InputRole {
    /// The data tensor with this index, in the order of recording.
    Data(usize),
    /// The parameter or buffer with this index.
    Value(usize),
    /// The parameter or buffer with this index before the step.
    Before(usize),
    /// The u32 seed of the masks.
    Seed,
    /// The loss scale.
    Scale,
    /// The learning rate and Adam's corrections.
    Hyper,
    /// The weight of this batch in a sum of gradients.
    Weight,
    /// The gradients so far: the index of the trained parameter, and the index of the replica.
    Gradient(usize, usize),
    /// The optimiser's tensor with this index.
    State(usize),
}

/// The role of an output of a step's graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OutputRole {
    /// The named output of the network with this index; the loss is the first.
    Named(usize),
    /// The parameter or buffer with this index.
    Value(usize),
    /// The gradients of the trained parameter with this index.
    Gradient(usize),
    /// The optimiser's tensor with this index.
    State(usize),
    /// The norm of all gradients. If it is infinite or NaN, gradients were not finite, and a scaled
    /// step was skipped.
    Norm,
}

/// A graph with the roles of its inputs and outputs.
#[derive(Clone, Debug)]
pub(crate) struct StepGraph {
    pub(crate) graph: Graph,
    pub(crate) given: Vec<InputRole>,
    pub(crate) made: Vec<OutputRole>,
}

/// The indices of the specs of all trained parameters.
pub(crate) fn trained(recording: &Recording) -> Vec<usize> {
    recording.specs.iter().enumerate().filter(|(_, spec)| spec.trained).map(|(index, _)| index).collect()
}

/// Forward, backward and the optimiser's step as one graph.
pub(crate) fn whole(recording: &Recording, optimiser: &Optimiser, scaled: bool) -> Result<StepGraph> {
    let mut step = Recorder::new(recording, scaled)?;
    let gradients = step.unscaled()?;
    let hyper = step.input("hyper", &[HYPER.into()], InputRole::Hyper)?;
    let buffers = step.named()?;
    let parameters: Vec<NodeId> = step.trained.iter().map(|spec| step.node_of(*spec)).collect::<Result<_>>()?;
    let squares = step.apply(optimiser, hyper, &parameters, &gradients, scaled)?;
    for (spec, new) in buffers {
        let old = step.node_of(spec)?;
        step.buffer(spec, new, old, squares.filter(|_| scaled))?;
    }
    step.finish()
}

/// Forward and backward as one graph. The gradients are multiplied by the weight of the batch and
/// added to the sums so far.
pub(crate) fn gradients(recording: &Recording, scaled: bool) -> Result<StepGraph> {
    let mut step = Recorder::new(recording, scaled)?;
    let gradients = step.unscaled()?;
    let weight = step.input("batch_weight", &[], InputRole::Weight)?;
    for (spec, new) in step.named()? {
        step.output(new, OutputRole::Value(spec))?;
    }
    for (place, gradient) in gradients.into_iter().enumerate() {
        let dims = step.g.type_of(gradient)?.1.to_vec();
        let before = step.input(&format!("sum.{place}"), &dims, InputRole::Gradient(place, 0))?;
        let sum = step.g.map(&[before, gradient, weight], |v| v[0].clone() + v[1].clone() * v[2].clone())?;
        step.output(sum, OutputRole::Gradient(place))?;
    }
    step.finish()
}

/// The optimiser's step with the sum of the gradients of `replicas` replicas.
pub(crate) fn application(
    recording: &Recording,
    optimiser: &Optimiser,
    scaled: bool,
    replicas: usize,
) -> Result<StepGraph> {
    let mut step = Recorder::empty(recording);
    let hyper = step.input("hyper", &[HYPER.into()], InputRole::Hyper)?;
    let mut parameters = Vec::new();
    let mut gradients = Vec::new();
    for (place, spec) in step.trained.clone().into_iter().enumerate() {
        let dims: Vec<Dim> = recording.specs[spec].dims.iter().map(|size| Dim::fixed(*size)).collect();
        parameters.push(step.input(&format!("value.{spec}"), &dims, InputRole::Value(spec))?);
        let mut sum = step.input(&format!("sum.{place}.0"), &dims, InputRole::Gradient(place, 0))?;
        for replica in 1..replicas {
            let next = step.input(&format!("sum.{place}.{replica}"), &dims, InputRole::Gradient(place, replica))?;
            sum = step.g.add(sum, next)?;
        }
        gradients.push(sum);
    }
    let squares = step.apply(optimiser, hyper, &parameters, &gradients, scaled)?;
    // If a step can be skipped, a skipped step restores the buffers to their old values.
    for spec in recording.updates.iter().filter(|_| scaled) {
        let dims: Vec<Dim> = recording.specs[*spec].dims.iter().map(|size| Dim::fixed(*size)).collect();
        let new = step.input(&format!("value.{spec}"), &dims, InputRole::Value(*spec))?;
        let old = step.input(&format!("before.{spec}"), &dims, InputRole::Before(*spec))?;
        step.buffer(*spec, new, old, squares)?;
    }
    step.finish()
}

/// A step's graph under construction.
struct Recorder<'a> {
    g: GraphBuilder,
    recording: &'a Recording,
    trained: Vec<usize>,
    values: Vec<NodeId>,
    found: Vec<NodeId>,
    scale: Option<NodeId>,
    given: Vec<InputRole>,
    made: Vec<OutputRole>,
}

impl<'a> Recorder<'a> {
    fn new(recording: &'a Recording, scaled: bool) -> Result<Recorder<'a>> {
        let graph = &recording.graph;
        let trained = trained(recording);
        let inputs: Vec<usize> = trained.iter().map(|spec| input_of(recording, *spec)).collect::<Result<_>>()?;
        let loss = graph.outputs()[0].1;
        let made = differentiate(graph, loss, &inputs, &recording.segments, scaled.then_some("loss_scale"))?;
        let GradientGraph { builder, values, gradients, factor } = made;
        let mut data = 0;
        let mut given: Vec<InputRole> = Vec::new();
        for role in &recording.roles {
            given.push(match role {
                Role::Data(_) => {
                    data += 1;
                    InputRole::Data(data - 1)
                }
                Role::Value(spec) => InputRole::Value(*spec),
                Role::Seed => InputRole::Seed,
            });
        }
        given.extend(factor.map(|_| InputRole::Scale));
        let made = Vec::new();
        Ok(Recorder { g: builder, recording, trained, values, found: gradients, scale: factor, given, made })
    }

    fn empty(recording: &'a Recording) -> Recorder<'a> {
        let (values, found, given, made) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let g = Graph::builder(recording.graph.name());
        Recorder { g, recording, trained: trained(recording), values, found, scale: None, given, made }
    }

    fn input(&mut self, name: &str, dims: &[Dim], given: InputRole) -> Result<NodeId> {
        let node = self.g.input(name, DType::F32, dims)?;
        self.given.push(given);
        Ok(node)
    }

    fn output(&mut self, node: NodeId, made: OutputRole) -> Result<()> {
        self.g.output(&format!("out.{}", self.made.len()), node)?;
        self.made.push(made);
        Ok(())
    }

    fn node_of(&self, spec: usize) -> Result<NodeId> {
        Ok(self.values[input_of(self.recording, spec)?])
    }

    /// The gradients in f32, divided by the loss scale.
    fn unscaled(&mut self) -> Result<Vec<NodeId>> {
        let Some(scale) = self.scale else { return Ok(self.found.clone()) };
        let found = self.found.clone();
        let without = |gradient| Ok(self.g.map(&[gradient, scale], |v| v[0].clone() / v[1].clone())?);
        found.into_iter().map(without).collect()
    }

    /// Adds the network's named outputs. Returns the buffers after this step.
    fn named(&mut self) -> Result<Vec<(usize, NodeId)>> {
        let recording = self.recording;
        let mut buffers = Vec::new();
        for (place, (_, node)) in recording.graph.outputs().iter().enumerate() {
            match place.checked_sub(recording.named) {
                None => self.output(self.values[*node], OutputRole::Named(place))?,
                Some(update) => buffers.push((recording.updates[update], self.values[*node])),
            }
        }
        Ok(buffers)
    }

    /// Outputs a buffer after this step. The buffer keeps its old value if the gradients
    /// (`squares`, their sum of squares) or its new value are not finite.
    fn buffer(&mut self, spec: usize, new: NodeId, old: NodeId, squares: Option<NodeId>) -> Result<()> {
        let new = match squares {
            Some(squares) => self.g.map(&[squares, new, old], |v| {
                is_finite(&v[0]).and(is_finite(&v[1])).select(v[1].clone(), v[2].clone())
            })?,
            None => new,
        };
        self.output(new, OutputRole::Value(spec))
    }

    /// Outputs every parameter and its state after the step, and returns the sum of the squared
    /// gradients. If gradients are scaled and one of them is not finite, all values stay unchanged.
    fn apply(
        &mut self,
        optimiser: &Optimiser,
        hyper: NodeId,
        parameters: &[NodeId],
        gradients: &[NodeId],
        scaled: bool,
    ) -> Result<Option<NodeId>> {
        optimiser.check()?;
        let mut numbers = [hyper; HYPER];
        for (place, number) in numbers.iter_mut().enumerate() {
            let one = self.g.slice(hyper, 0, place, place + 1, 1)?;
            *number = self.g.reshape(one, &[])?;
        }
        let squares = match scaled || matches!(optimiser.clip, Clip::Norm(_)) {
            true => Some(square_norm(&mut self.g, gradients)?),
            false => None,
        };
        for (place, (parameter, gradient)) in parameters.iter().zip(gradients).enumerate() {
            let gradient = match (optimiser.clip, squares) {
                (Clip::Norm(limit), Some(squares)) => self.g.map(&[*gradient, squares], |v| {
                    let factor = (Expr::constant(limit) / (v[1].clone().sqrt() + 1e-6)).min(1.0);
                    v[0].clone() * factor
                })?,
                (Clip::Value(limit), _) => self.g.map(&[*gradient], |v| v[0].clone().clamp(-limit, limit))?,
                _ => *gradient,
            };
            let dims = self.g.type_of(*parameter)?.1.to_vec();
            let count = optimiser.state_count();
            let state: Vec<NodeId> = (0..count)
                .map(|kind| {
                    let number = place * count + kind;
                    self.input(&format!("state.{number}"), &dims, InputRole::State(number))
                })
                .collect::<Result<_>>()?;
            let inputs = ParameterStep { parameter: *parameter, gradient, state: &state, hyper: numbers };
            let (new, kept) = optimiser.step(&mut self.g, &inputs)?;
            let guarded = |step: &mut Self, new: NodeId, old: NodeId| match squares.filter(|_| scaled) {
                Some(squares) => {
                    step.g.map(&[squares, new, old], |v| is_finite(&v[0]).select(v[1].clone(), v[2].clone()))
                }
                None => Ok(new),
            };
            let new = guarded(self, new, *parameter)?;
            self.output(new, OutputRole::Value(self.trained[place]))?;
            for (kind, (new, old)) in kept.into_iter().zip(&state).enumerate() {
                let new = guarded(self, new, *old)?;
                self.output(new, OutputRole::State(place * count + kind))?;
            }
        }
        if let Some(squares) = squares {
            let norm = self.g.sqrt(squares)?;
            self.output(norm, OutputRole::Norm)?;
        }
        Ok(squares)
    }

    fn finish(self) -> Result<StepGraph> {
        let Recorder { g, given, made, .. } = self;
        Ok(StepGraph { graph: g.finish()?, given, made })
    }
}

/// One for a finite number, else zero: infinity minus infinity and NaN minus NaN are NaN.
fn is_finite(number: &Expr) -> Expr {
    (number.clone() - number.clone()).eq(0.0)
}

/// The node of the graph that is the input for a spec.
fn input_of(recording: &Recording, spec: usize) -> Result<usize> {
    let place = recording.roles.iter().position(|role| *role == Role::Value(spec));
    let node = place.and_then(|place| recording.graph.inputs().get(place)).copied();
    node.ok_or_else(|| Error::invalid("training: a parameter", "an input of the graph", spec))
}
