//! Normalisation layers. They compute in f32 for any element type of the network.

use panoply_core::expr::Expr;
use panoply_core::graph::{Dim, NodeId};
use panoply_core::op::compute::{LayerNorm as LayerNormOp, Reduce};

use super::Layer;
use crate::error::{Error, Result};
use crate::net::{Mode, Net};
use crate::parameters::Init;

/// Normalises each channel to mean zero and variance one over the batch. The input is
/// `batch × channels` or images. Parameters: `weight`, `bias`; buffers: `running_mean`,
/// `running_var`, which replace the batch's mean and variance in inference.
#[derive(Clone, Debug)]
pub struct BatchNorm {
    /// The layer's name.
    pub name: String,
    /// Number of channels.
    pub channels: usize,
    /// Added to the variance.
    pub epsilon: f64,
    /// The share of a batch's mean and variance in the new values of the buffers.
    pub momentum: f64,
}

impl BatchNorm {
    /// A batch norm with PyTorch's epsilon (1e-5) and momentum (0.1).
    pub fn new(name: &str, channels: usize) -> BatchNorm {
        BatchNorm { name: name.to_owned(), channels, epsilon: 1e-5, momentum: 0.1 }
    }
}

impl Layer for BatchNorm {
    fn forward(&self, net: &mut Net, x: NodeId) -> Result<NodeId> {
        net.layer(&self.name, |net| {
            let dims = net.expect_features(x, 1, self.channels)?;
            let x = net.wide(x)?;
            let axes: Vec<usize> = (0..dims.len()).filter(|axis| *axis != 1).collect();
            let mut across = vec![Dim::fixed(1); dims.len() - 1];
            across[0] = self.channels.into();
            let each = [self.channels];
            let weight = net.parameter("weight", &each, Init::Constant(1.0))?;
            let bias = net.parameter("bias", &each, Init::Constant(0.0))?;
            let running_mean = net.buffer("running_mean", &each, Init::Constant(0.0))?;
            let running_var = net.buffer("running_var", &each, Init::Constant(1.0))?;
            let (mean, variance) = match net.mode() {
                Mode::Use => (net.reshape(running_mean, &across)?, net.reshape(running_var, &across)?),
                Mode::Train => {
                    // Reduce within each image first. The elementwise ops before that reduction can
                    // then be fused into it.
                    let mean_of = |net: &mut Net, x: NodeId| -> Result<NodeId> {
                        let mut mean = x;
                        for part in [&axes[1..], &axes[..1]].into_iter().filter(|part| !part.is_empty()) {
                            mean = net.op(&[mean], |t| Reduce::mean(&t[0]).axes(part).keep_dims())?;
                        }
                        Ok(mean)
                    };
                    let mean = mean_of(net, x)?;
                    let squares = net.map(&[x, mean], squared_distance)?;
                    let variance = mean_of(net, squares)?;
                    let counted: Vec<Dim> = axes.iter().map(|axis| dims[*axis]).collect();
                    self.update(net, mean, variance, &counted, (running_mean, running_var))?;
                    (mean, variance)
                }
            };
            let (weight, bias) = (net.reshape(weight, &across)?, net.reshape(bias, &across)?);
            Ok(net.map(&[x, mean, variance, weight, bias], |v| normalised(v, self.epsilon))?)
        })
    }
}

/// The squared distance of an element (`v[0]`) from a mean (`v[1]`).
pub(crate) fn squared_distance(v: &[Expr]) -> Expr {
    let centred = v[0].clone() - v[1].clone();
    centred.clone() * centred
}

/// The batch norm of an element, given its mean and variance, a weight and a bias. The gradient of
/// this expression has a rule of its own in `grad/norm.rs`.
pub(crate) fn normalised(v: &[Expr], epsilon: f64) -> Expr {
    let scale = (v[2].clone() + epsilon).rsqrt() * v[3].clone();
    (v[0].clone() - v[1].clone()) * scale + v[4].clone()
}

impl BatchNorm {
    /// Updates the buffers. The running variance uses the unbiased variance of the batch.
    fn update(
        &self,
        net: &mut Net,
        mean: NodeId,
        variance: NodeId,
        counted: &[Dim],
        (running_mean, running_var): (NodeId, NodeId),
    ) -> Result<()> {
        if !(0.0..=1.0).contains(&self.momentum) {
            return Err(Error::invalid("batch norm: momentum", "0 to 1", self.momentum));
        }
        let each = [self.channels.into()];
        let (mean, variance) = (net.reshape(mean, &each)?, net.reshape(variance, &each)?);
        let count = net.count(counted)?;
        let own = self.momentum;
        let new_mean = net.map(&[running_mean, mean], |v| v[0].clone() * (1.0 - own) + v[1].clone() * own)?;
        let new_var = net.map(&[running_var, variance, count], |v| {
            let unbiased = v[1].clone() * (v[2].clone() / (v[2].clone() - 1.0).max(1.0));
            v[0].clone() * (1.0 - own) + unbiased * own
        })?;
        net.update("running_mean", new_mean)?;
        net.update("running_var", new_var)
    }
}

/// Normalises the last dimension to mean zero and variance one. Parameters: `weight`, `bias`.
#[derive(Clone, Debug)]
pub struct LayerNorm {
    /// The layer's name.
    pub name: String,
    /// Size of the last dimension.
    pub features: usize,
    /// Added to the variance.
    pub epsilon: f64,
    /// Whether the layer divides by the root mean square only: it subtracts no mean and has no
    /// bias.
    pub is_rms: bool,
}

impl LayerNorm {
    /// A layer norm with PyTorch's epsilon, 1e-5.
    pub fn new(name: &str, features: usize) -> LayerNorm {
        LayerNorm { name: name.to_owned(), features, epsilon: 1e-5, is_rms: false }
    }

    /// A norm by the root mean square only.
    pub fn rms(name: &str, features: usize) -> LayerNorm {
        LayerNorm { is_rms: true, ..LayerNorm::new(name, features) }
    }
}

impl Layer for LayerNorm {
    fn forward(&self, net: &mut Net, x: NodeId) -> Result<NodeId> {
        net.layer(&self.name, |net| {
            let rank = net.dims(x)?.len();
            net.expect_features(x, rank.saturating_sub(1), self.features)?;
            let x = net.wide(x)?;
            let weight = net.parameter("weight", &[self.features], Init::Constant(1.0))?;
            if self.is_rms {
                return Ok(net.op(&[x, weight], |t| LayerNormOp::new(&t[0]).weight(&t[1]).epsilon(self.epsilon).rms())?);
            }
            let bias = net.parameter("bias", &[self.features], Init::Constant(0.0))?;
            Ok(net
                .op(&[x, weight, bias], |t| LayerNormOp::new(&t[0]).weight(&t[1]).bias(&t[2]).epsilon(self.epsilon))?)
        })
    }
}
