//! Cases of attention.

use panoply::DType;
use panoply::prelude::Attention;

use crate::bench::cases::case::{Amount, Case, Scale};
use crate::bench::place::{BenchDevice, Runner};

/// Self-attention of a batch of sequences.
pub struct AttentionCase {
    pub dtype: DType,
    pub batch: usize,
    pub heads: usize,
    pub length: usize,
    pub width: usize,
    pub is_causal: bool,
}

impl Case for AttentionCase {
    fn name(&self) -> String {
        let AttentionCase { dtype, batch, heads, length, width, .. } = self;
        let causal = if self.is_causal { "/causal" } else { "" };
        format!("attention/{dtype}/{batch}x{heads}x{length}x{width}{causal}")
    }

    /// The scores and the weighted values. Causal attention needs half of them.
    fn amount(&self) -> Amount {
        let all = 4.0 * (self.batch * self.heads * self.length * self.length * self.width) as f64;
        Amount::Flops(if self.is_causal { all / 2.0 } else { all })
    }

    fn scale(&self) -> Scale {
        match self.batch * self.heads * self.length {
            0..=4096 => Scale::Small,
            4097..=131_072 if self.length <= 128 => Scale::Medium,
            _ => Scale::Large,
        }
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        let (dims, mut normals) = ([self.batch, self.heads, self.length, self.width], place.normals());
        let mut next = || normals.tensor_of(self.dtype, dims);
        let op = Attention::new(&next()?, &next()?, &next()?);
        place.repeat(if self.is_causal { op.causal() } else { op })
    }
}
