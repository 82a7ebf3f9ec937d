//! Multi-head attention.

use panoply_core::graph::NodeId;
use panoply_core::op::compute::Attention;

use super::{Layer, Linear};
use crate::error::{Error, Result};
use crate::net::Net;
use crate::parameters::Init;

/// Self-attention of `batch × sequence × features`. Parameters: `in_proj_weight`, `in_proj_bias`,
/// `out_proj.weight`, `out_proj.bias`.
#[derive(Clone, Debug)]
pub struct MultiHeadAttention {
    /// The layer's name.
    pub name: String,
    /// Number of features of the input and of the output.
    pub features: usize,
    /// Number of heads; it must divide the number of features.
    pub heads: usize,
    /// Whether each position attends only to itself and to earlier positions.
    pub is_causal: bool,
}

impl MultiHeadAttention {
    /// Attention in which every position attends to every other.
    pub fn new(name: &str, features: usize, heads: usize) -> MultiHeadAttention {
        MultiHeadAttention { name: name.to_owned(), features, heads, is_causal: false }
    }

    /// Makes the attention causal: each position attends only to itself and to earlier positions.
    pub fn causal(mut self) -> MultiHeadAttention {
        self.is_causal = true;
        self
    }
}

impl Layer for MultiHeadAttention {
    fn forward(&self, net: &mut Net, x: NodeId) -> Result<NodeId> {
        net.layer(&self.name, |net| {
            let (features, heads) = (self.features, self.heads);
            if heads == 0 || !features.is_multiple_of(heads) {
                let expected = format!("heads that divide the {features} features");
                return Err(Error::invalid("attention: heads", expected, heads));
            }
            let dims = net.expect_features(x, 2, features)?;
            let (batch, length, each) = (dims[0], dims[1], features / heads);
            // Xavier's initialisation of the three stacked matrices as one.
            let init = Init::Uniform((6.0 / (4 * features) as f32).sqrt());
            let weight = net.parameter("in_proj_weight", &[3 * features, features], init)?;
            let bias = net.parameter("in_proj_bias", &[3 * features], Init::Constant(0.0))?;
            let [x, weight, bias] = [x, weight, bias].map(|node| net.narrow(node));
            let packed =
                net.op(&[x?, weight?], |t| panoply_core::op::compute::MatMul::new(&t[0], &t[1]).transpose_b())?;
            let packed = net.add(packed, bias?)?;
            let packed = net.reshape(packed, &[batch, length, 3.into(), heads.into(), each.into()])?;
            let mut parts = [packed; 3];
            for (place, part) in parts.iter_mut().enumerate() {
                let one = net.slice(packed, 2, place, place + 1, 1)?;
                let one = net.reshape(one, &[batch, length, heads.into(), each.into()])?;
                *part = net.permute(one, &[0, 2, 1, 3])?;
            }
            let seen = net.op(&parts, |t| {
                let attention = Attention::new(&t[0], &t[1], &t[2]);
                if self.is_causal { attention.causal() } else { attention }
            })?;
            let seen = net.permute(seen, &[0, 2, 1, 3])?;
            let seen = net.reshape(seen, &[batch, length, features.into()])?;
            Linear::new("out_proj", features, features).forward(net, seen)
        })
    }
}
