//! Layers as plain structs: sizes and a name, nothing else. [`Layer::forward`] records one into a [`Net`]; its parameters get
//! PyTorch's names behind the layer's own, so files go both ways.

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
    /// Records the layer.
    fn forward(&self, net: &mut Net, x: NodeId) -> Result<NodeId>;
}

/// Layers one after the other. Each has its own name; a name of its own goes before them, unless it is empty.
pub struct Sequential {
    name: String,
    layers: Vec<Box<dyn Layer>>,
}

impl Sequential {
    /// No layers yet.
    pub fn new(name: &str) -> Sequential {
        Sequential { name: name.to_owned(), layers: Vec::new() }
    }

    /// With one more layer at the end.
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
