//! LSTM and GRU over sequences of a fixed length, unrolled step by step into the graph.

use panoply_core::expr::Expr;
use panoply_core::graph::{Dim, NodeId};
use panoply_core::op::compute::MatMul;
use panoply_core::{DType, Tensor};

use super::Layer;
use crate::error::{Error, Result};
use crate::net::Net;
use crate::parameters::Init;

/// The longest sequence that is unrolled.
pub const SEQUENCE_MAX: usize = 1024;

/// A long short-term memory over `batch × sequence × inputs`. The output is
/// `batch × sequence × hidden`, or the last position alone. Parameters of layer `n`:
/// `weight_ih_ln`, `weight_hh_ln`, `bias_ih_ln`, `bias_hh_ln`, with the gates in PyTorch's order
/// (input, forget, cell, output).
#[derive(Clone, Debug)]
pub struct Lstm {
    /// The layer's name.
    pub name: String,
    /// Number of features of the input.
    pub inputs: usize,
    /// Number of features of the state.
    pub hidden: usize,
    /// Number of stacked layers.
    pub layers: usize,
    /// Whether only the state of the last position is returned.
    pub last_only: bool,
}

/// A gated recurrent unit. Sizes and outputs are those of [`Lstm`]; the gates are in PyTorch's
/// order (reset, update, new).
#[derive(Clone, Debug)]
pub struct Gru {
    /// The layer's name.
    pub name: String,
    /// Number of features of the input.
    pub inputs: usize,
    /// Number of features of the state.
    pub hidden: usize,
    /// Number of stacked layers.
    pub layers: usize,
    /// Whether only the state of the last position is returned.
    pub last_only: bool,
}

macro_rules! builders {
    ($name:ident) => {
        impl $name {
            /// One layer that returns the states of all positions.
            pub fn new(name: &str, inputs: usize, hidden: usize) -> $name {
                $name { name: name.to_owned(), inputs, hidden, layers: 1, last_only: false }
            }

            /// Sets the number of stacked layers.
            pub fn layers(mut self, layers: usize) -> $name {
                self.layers = layers;
                self
            }

            /// Returns the state of the last position alone, as `batch × hidden`.
            pub fn last_only(mut self) -> $name {
                self.last_only = true;
                self
            }
        }
    };
}
builders!(Lstm);
builders!(Gru);

impl Layer for Lstm {
    fn forward(&self, net: &mut Net, x: NodeId) -> Result<NodeId> {
        let sizes = Sizes { inputs: self.inputs, hidden: self.hidden, layers: self.layers, gates: 4 };
        net.layer(&self.name, |net| {
            sizes.unrolled(net, x, self.last_only, |net, step| {
                let CellInputs { given, recurrent, state, memory } = step;
                let sum = net.add(given, recurrent)?;
                let [input, forget, cell, output] = gates(net, sum, sizes.hidden)?;
                let memory = net.map(&[forget, memory, input, cell], |v| {
                    v[0].clone().sigmoid() * v[1].clone() + v[2].clone().sigmoid() * v[3].clone().tanh()
                })?;
                let _ = state;
                let state = net.map(&[output, memory], |v| v[0].clone().sigmoid() * v[1].clone().tanh())?;
                Ok((state, memory))
            })
        })
    }
}

impl Layer for Gru {
    fn forward(&self, net: &mut Net, x: NodeId) -> Result<NodeId> {
        let sizes = Sizes { inputs: self.inputs, hidden: self.hidden, layers: self.layers, gates: 3 };
        net.layer(&self.name, |net| {
            sizes.unrolled(net, x, self.last_only, |net, step| {
                let CellInputs { given, recurrent, state, memory } = step;
                let [reset, update, new] = gates(net, given, sizes.hidden)?;
                let [by_reset, by_update, by_new] = gates(net, recurrent, sizes.hidden)?;
                let all = [reset, update, new, by_reset, by_update, by_new, state];
                let state = net.map(&all, |v: &[Expr]| {
                    let reset = (v[0].clone() + v[3].clone()).sigmoid();
                    let update = (v[1].clone() + v[4].clone()).sigmoid();
                    let new = (v[2].clone() + reset * v[5].clone()).tanh();
                    (1.0 - update.clone()) * new + update * v[6].clone()
                })?;
                Ok((state, memory))
            })
        })
    }
}

/// The inputs of one step of a cell: the gates' sums from the input and from the state, the state,
/// and the memory.
struct CellInputs {
    given: NodeId,
    recurrent: NodeId,
    state: NodeId,
    memory: NodeId,
}

#[derive(Clone, Copy)]
struct Sizes {
    inputs: usize,
    hidden: usize,
    layers: usize,
    gates: usize,
}

impl Sizes {
    fn unrolled(
        self,
        net: &mut Net,
        x: NodeId,
        last_only: bool,
        cell: impl Fn(&mut Net, CellInputs) -> Result<(NodeId, NodeId)>,
    ) -> Result<NodeId> {
        let dims = net.expect_features(x, 2, self.inputs)?;
        let length = dims[1].as_fixed().filter(|length| (1..=SEQUENCE_MAX).contains(length));
        let length = length.ok_or_else(|| {
            Error::invalid("input", format!("a sequence of 1 to {SEQUENCE_MAX} places, as a number"), "another")
        })?;
        let mut x = net.narrow(x)?;
        let mut states = Vec::new();
        for layer in 0..self.layers.max(1) {
            let inputs = if layer == 0 { self.inputs } else { self.hidden };
            let init = Init::fan_in(self.hidden);
            let gated = self.gates * self.hidden;
            let mut parameter = |name: &str, dims: &[usize]| {
                let node = net.parameter(&format!("{name}_l{layer}"), dims, init)?;
                net.narrow(node)
            };
            let by_input = parameter("weight_ih", &[gated, inputs])?;
            let by_state = parameter("weight_hh", &[gated, self.hidden])?;
            let (bias, state_bias) = (parameter("bias_ih", &[gated])?, parameter("bias_hh", &[gated])?);
            // One matrix product covers the inputs of all positions.
            let sums = net.op(&[x, by_input], |t| MatMul::new(&t[0], &t[1]).transpose_b())?;
            let sums = net.add(sums, bias)?;
            let zero = net.unnamed_constant(&Tensor::zeros(DType::F32, [])?)?;
            let zero = net.narrow(zero)?;
            let mut state = net.broadcast(zero, &[dims[0], self.hidden.into()])?;
            let mut memory = state;
            states.clear();
            for place in 0..length {
                let given = net.slice(sums, 1, place, place + 1, 1)?;
                let given = net.reshape(given, &[dims[0], gated.into()])?;
                let recurrent = net.op(&[state, by_state], |t| MatMul::new(&t[0], &t[1]).transpose_b())?;
                let recurrent = net.add(recurrent, state_bias)?;
                (state, memory) = cell(net, CellInputs { given, recurrent, state, memory })?;
                states.push(state);
            }
            if layer + 1 < self.layers.max(1) || !last_only {
                x = stacked(net, &states, dims[0], self.hidden)?;
            }
        }
        match (last_only, states.last()) {
            (true, Some(last)) => Ok(*last),
            _ => Ok(x),
        }
    }
}

/// Splits `batch × (gates · hidden)` into one node for each gate.
fn gates<const N: usize>(net: &mut Net, sums: NodeId, hidden: usize) -> Result<[NodeId; N]> {
    let batch = net.dims(sums)?[0];
    let whole = net.reshape(sums, &[batch, N.into(), hidden.into()])?;
    let mut parts = [whole; N];
    for (gate, part) in parts.iter_mut().enumerate() {
        let one = net.slice(whole, 1, gate, gate + 1, 1)?;
        *part = net.reshape(one, &[batch, hidden.into()])?;
    }
    Ok(parts)
}

/// Stacks the states of all positions to `batch × sequence × hidden`.
fn stacked(net: &mut Net, states: &[NodeId], batch: Dim, hidden: usize) -> Result<NodeId> {
    let mut whole = None;
    for (place, state) in states.iter().enumerate() {
        let state = net.reshape(*state, &[batch, 1.into(), hidden.into()])?;
        let here: Vec<f32> = (0..states.len()).map(|other| f32::from(u8::from(other == place))).collect();
        let here = net.unnamed_constant(&Tensor::from_vec(here, [states.len(), 1])?)?;
        let here = net.narrow(here)?;
        whole = Some(match whole {
            Some(whole) => net.map(&[here, state, whole], |v| v[0].clone().select(v[1].clone(), v[2].clone()))?,
            None => net.map(&[here, state], |v| v[0].clone().select(v[1].clone(), 0.0))?,
        });
    }
    whole.ok_or_else(|| Error::invalid("sequence", "at least one place", "none"))
}
