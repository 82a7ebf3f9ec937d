//! Layers as plain structs with sizes and a name. [`Layer::forward`] records a layer into a
//! [`Net`]. Its parameters are named by the layer's name and PyTorch's name of the parameter, so
//! parameter files can be exchanged with PyTorch in both directions.

mod attention;
mod conv;
pub(crate) mod norm;
mod recurrent;
mod simple;

use panoply_core::graph::NodeId;

use crate::error::Result;
use crate::net::Net;

pub use attention::MultiHeadAttention;
pub use conv::{AvgPool2d, Conv2d, ConvTranspose2d, GlobalAvgPool2d, MaxPool2d};
pub use norm::{BatchNorm, LayerNorm};
pub use recurrent::{Gru, Lstm};
pub use simple::{Dropout, Embedding, Flatten, Linear, Relu};

/// A function of one tensor that may have parameters.
pub trait Layer: Send + Sync {
    /// Records the layer for the input `x` and returns its output.
    fn forward(&self, net: &mut Net, x: NodeId) -> Result<NodeId>;
}

/// Layers in sequence. Each layer has a name; the name of the sequence is put in front of it,
/// unless it is empty.
pub struct Sequential {
    name: String,
    layers: Vec<Box<dyn Layer>>,
}

impl Sequential {
    /// An empty sequence.
    pub fn new(name: &str) -> Sequential {
        Sequential { name: name.to_owned(), layers: Vec::new() }
    }

    /// Adds a layer at the end.
    pub fn with(mut self, layer: impl Layer + 'static) -> Sequential {
        self.layers.push(Box::new(layer));
        self
    }
}

impl Layer for Sequential {
    fn forward(&self, net: &mut Net, x: NodeId) -> Result<NodeId> {
        let all = |net: &mut Net| self.layers.iter().try_fold(x, |x, layer| layer.forward(net, x));
        if self.name.is_empty() { all(net) } else { net.layer(&self.name, all) }
    }
}

/// A closure is a layer without parameters of its own.
impl<F: Fn(&mut Net, NodeId) -> Result<NodeId> + Send + Sync> Layer for F {
    fn forward(&self, net: &mut Net, x: NodeId) -> Result<NodeId> {
        self(net, x)
    }
}
