//! A case of a small network with 784, 512, 256 and 10 neurons.

use panoply::graph::Graph;
use panoply::prelude::RunGraph;
use panoply::{DType, Result};

use crate::bench::cases::case::{Amount, Case, Scale};
use crate::bench::place::{BenchDevice, Runner};

const LAYERS: [usize; 4] = [784, 512, 256, 10];

/// Inference on a batch of images of 28 × 28 pixels.
pub struct MlpCase {
    pub dtype: DType,
    pub batch: usize,
}

impl Case for MlpCase {
    fn name(&self) -> String {
        format!("nn/mlp/infer/{}/b{}", self.dtype, self.batch)
    }

    fn amount(&self) -> Amount {
        let products: usize = LAYERS.windows(2).map(|pair| pair[0] * pair[1]).sum();
        Amount::Flops((2 * self.batch * products) as f64)
    }

    fn scale(&self) -> Scale {
        match (self.batch, self.dtype) {
            (4096, _) => Scale::Medium,
            (_, DType::F32) => Scale::Small,
            _ => Scale::Medium,
        }
    }

    fn prepare(&self, place: &BenchDevice) -> Result<Runner> {
        let mut normals = place.normals();
        let mut g = Graph::builder("mlp");
        let batch = g.symbol("batch")?;
        let mut x = g.input("x", self.dtype, &[batch, LAYERS[0].into()])?;
        for (layer, pair) in LAYERS.windows(2).enumerate() {
            let w = g.constant(&format!("w{layer}"), &normals.tensor_of(self.dtype, [pair[0], pair[1]])?)?;
            let bias = g.constant(&format!("b{layer}"), &normals.tensor_of(self.dtype, [pair[1]])?)?;
            x = g.linear(x, w, bias)?;
            x = if layer + 2 < LAYERS.len() { g.relu(x)? } else { x };
        }
        g.output("y", x)?;
        let images = normals.tensor_of(self.dtype, [self.batch, LAYERS[0]])?;
        place.repeat(RunGraph::new(&g.finish()?, &[&images]))
    }
}
