//! Linear layers, embeddings, dropout, and functions without parameters.

use panoply_core::graph::{Dim, NodeId};
use panoply_core::op::compute::{Gather, MatMul};

use super::Layer;
use crate::error::{Error, Result};
use crate::net::{Mode, Net};
use crate::parameters::Init;

/// `x · weightᵀ + bias` along the last dimension. Parameters: `weight` (`outputs × inputs`),
/// `bias`.
#[derive(Clone, Debug)]
pub struct Linear {
    /// The layer's name.
    pub name: String,
    /// Number of features of the input.
    pub inputs: usize,
    /// Number of features of the output.
    pub outputs: usize,
    /// Whether the layer has a bias.
    pub bias: bool,
}

impl Linear {
    /// A linear layer with a bias.
    pub fn new(name: &str, inputs: usize, outputs: usize) -> Linear {
        Linear { name: name.to_owned(), inputs, outputs, bias: true }
    }

    /// Removes the bias.
    pub fn without_bias(mut self) -> Linear {
        self.bias = false;
        self
    }
}

impl Layer for Linear {
    fn forward(&self, net: &mut Net, x: NodeId) -> Result<NodeId> {
        net.layer(&self.name, |net| {
            let rank = net.dims(x)?.len();
            net.expect_features(x, rank.saturating_sub(1), self.inputs)?;
            let init = Init::fan_in(self.inputs);
            let weight = net.parameter("weight", &[self.outputs, self.inputs], init)?;
            let (x, weight) = (net.narrow(x)?, net.narrow(weight)?);
            let y = net.op(&[x, weight], |t| MatMul::new(&t[0], &t[1]).transpose_b())?;
            if !self.bias {
                return Ok(y);
            }
            let bias = net.parameter("bias", &[self.outputs], init)?;
            let bias = net.narrow(bias)?;
            Ok(net.add(y, bias)?)
        })
    }
}

/// Looks up a row of a table for each index. Parameter: `weight` (`count × features`).
#[derive(Clone, Debug)]
pub struct Embedding {
    /// The layer's name.
    pub name: String,
    /// Number of rows of the table.
    pub count: usize,
    /// Number of features of a row.
    pub features: usize,
}

impl Embedding {
    /// An embedding with a table of `count` rows.
    pub fn new(name: &str, count: usize, features: usize) -> Embedding {
        Embedding { name: name.to_owned(), count, features }
    }
}

impl Layer for Embedding {
    fn forward(&self, net: &mut Net, x: NodeId) -> Result<NodeId> {
        net.layer(&self.name, |net| {
            let weight = net.parameter("weight", &[self.count, self.features], Init::Normal(1.0))?;
            Ok(net.op(&[weight, x], |t| Gather::new(&t[0], &t[1], 0))?)
        })
    }
}

/// In training, sets elements to zero at random and scales the others up. The random numbers depend
/// on the step's seed and the layer's path alone, so they are the same on every device.
#[derive(Clone, Debug)]
pub struct Dropout {
    /// The layer's name, which makes its random numbers independent of those of other layers.
    pub name: String,
    /// The probability that an element becomes zero.
    pub probability: f64,
}

impl Dropout {
    /// A dropout layer with this probability.
    pub fn new(name: &str, probability: f64) -> Dropout {
        Dropout { name: name.to_owned(), probability }
    }
}

impl Layer for Dropout {
    fn forward(&self, net: &mut Net, x: NodeId) -> Result<NodeId> {
        net.layer(&self.name, |net| {
            if !(0.0..1.0).contains(&self.probability) {
                return Err(Error::invalid("dropout: probability", "at least 0 and below 1", self.probability));
            }
            if net.mode() == Mode::Use || self.probability == 0.0 {
                return Ok(x);
            }
            let keep = 1.0 - self.probability;
            let (dtype, dims) = net.type_of(x)?;
            let dims = dims.to_vec();
            let mask = net.mask(&dims, dtype, keep, "mask")?;
            Ok(net.map(&[x, mask], |v| v[1].clone().select(v[0].clone() * (1.0 / keep), 0.0))?)
        })
    }
}

/// `max(x, 0)`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Relu;

impl Layer for Relu {
    fn forward(&self, net: &mut Net, x: NodeId) -> Result<NodeId> {
        Ok(net.relu(x)?)
    }
}

/// Merges all dimensions but the first into one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flatten;

impl Layer for Flatten {
    fn forward(&self, net: &mut Net, x: NodeId) -> Result<NodeId> {
        let dims = net.dims(x)?;
        let Some((rows, rest)) = dims.split_first() else { return Ok(x) };
        let rest = rest.iter().fold(Dim::fixed(1), |product, dim| product * *dim);
        Ok(net.reshape(x, &[*rows, rest])?)
    }
}
