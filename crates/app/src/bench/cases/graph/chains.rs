//! Cases of chains of ops, recorded one by one as a program would write them.

use panoply::graph::Graph;
use panoply::prelude::RunGraph;
use panoply::testing::chains;
use panoply::{DType, Result};

use crate::bench::cases::case::{Amount, Case, Scale, count_name, scale_of};
use crate::bench::place::{BenchDevice, Runner};

/// Ten elementwise ops on two vectors.
pub struct ChainCase {
    pub dtype: DType,
    pub elements: usize,
}

impl Case for ChainCase {
    fn name(&self) -> String {
        format!("chain10/{}/{}", self.dtype, count_name(self.elements))
    }

    /// Two vectors are read and one is written.
    fn amount(&self) -> Amount {
        Amount::Bytes((3 * self.elements * self.dtype.size_bytes()) as f64)
    }

    fn scale(&self) -> Scale {
        scale_of(self.elements)
    }

    fn prepare(&self, place: &BenchDevice) -> Result<Runner> {
        let mut g = Graph::builder("chain10");
        let count = g.symbol("count")?;
        let (x, y) = (g.input("x", self.dtype, &[count])?, g.input("y", self.dtype, &[count])?);
        let z = chains::chain10(&mut g, x, y)?;
        g.output("z", z)?;
        let mut normals = place.normals();
        let (x, y) = (normals.tensor_of(self.dtype, [self.elements])?, normals.tensor_of(self.dtype, [self.elements])?);
        place.repeat(RunGraph::new(&g.finish()?, &[&x, &y]))
    }
}

/// The kind of chain over rows.
#[derive(Clone, Copy)]
pub enum Chain {
    /// `gelu(layer_norm(x + residual))`.
    AddLayerNormGelu,
    /// `softmax(x / 8 + mask)`.
    SoftmaxMask,
    /// The Euclidean length of each row.
    NormRows,
}

/// An op over rows with elementwise ops before and after it.
pub struct RowsCase {
    pub chain: Chain,
    pub rows: usize,
    pub columns: usize,
}

impl Case for RowsCase {
    fn name(&self) -> String {
        let chain = match self.chain {
            Chain::AddLayerNormGelu => "add_layernorm_gelu",
            Chain::SoftmaxMask => "softmax_mask",
            Chain::NormRows => "norm_rows",
        };
        format!("{chain}/f32/{}x{}", self.rows, self.columns)
    }

    fn amount(&self) -> Amount {
        let matrices = if let Chain::NormRows = self.chain { 1 } else { 3 };
        Amount::Bytes((4 * matrices * self.rows * self.columns) as f64)
    }

    fn scale(&self) -> Scale {
        scale_of(self.rows * self.columns)
    }

    fn prepare(&self, place: &BenchDevice) -> Result<Runner> {
        let mut normals = place.normals();
        let mut g = Graph::builder("rows");
        let rows = g.symbol("rows")?;
        let dims = [rows, self.columns.into()];
        let x = g.input("x", DType::F32, &dims)?;
        let first = normals.tensor([self.rows, self.columns])?;
        if let Chain::NormRows = self.chain {
            let length = chains::norm_rows(&mut g, x)?;
            g.output("length", length)?;
            return place.repeat(RunGraph::new(&g.finish()?, &[&first]));
        }
        let y = g.input("y", DType::F32, &dims)?;
        let second = normals.tensor([self.rows, self.columns])?;
        let z = match self.chain {
            Chain::SoftmaxMask => chains::softmax_mask(&mut g, x, y)?,
            _ => {
                let weight = g.constant("weight", &normals.tensor([self.columns])?)?;
                let bias = g.constant("bias", &normals.tensor([self.columns])?)?;
                chains::add_layernorm_gelu(&mut g, x, y, weight, bias)?
            }
        };
        g.output("z", z)?;
        place.repeat(RunGraph::new(&g.finish()?, &[&first, &second]))
    }
}
