//! Products of f16 on a device's matrix units, summed up in f32: `activation(alpha · A·B + beta · C + bias)`.
//!
//! The kernel is `coop_product.wgsl`. Parameters and buffers are those of [`super::gemm`].

use super::gemm::{Epilogue, Load, finished};
use super::template::Template;

/// Rows and columns of a workgroup's tile.
pub const COOP_TILE: usize = 128;
/// Steps of the inner dimension in a tile.
pub const COOP_DEPTH: usize = 32;
/// Elements that are read at once: both operands' strides, offsets and contiguous lengths are multiples of it.
pub const COOP_STEP: usize = 8;
/// Matrices of a subgroup along each dimension, of 16 × 16.
const MATRICES: usize = 4;
/// Vectors of four from one line of a tile to the next: two more than a line has, so that banks of memory take turns.
const LONG_LINE: usize = COOP_TILE / 4 + 2;
const SHORT_LINE: usize = COOP_DEPTH / 4 + 2;

/// A product of f16 on matrix units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CoopKernel {
    /// Whether the left operand is contiguous along the inner dimension ([`Load::AlongInner`]) or along its rows.
    pub load_a: Load,
    /// The same of the right operand.
    pub load_b: Load,
    /// What happens to the sums.
    pub epilogue: Epilogue,
    /// Stores vectors of four: n is a multiple of four.
    pub vector_store: bool,
    /// All tiles are whole: m and n are multiples of [`COOP_TILE`], and k of [`COOP_DEPTH`].
    pub whole: bool,
}

impl CoopKernel {
    /// Workgroup memory that a kernel takes, in bytes.
    pub fn workgroup_bytes() -> u32 {
        let tile = (COOP_TILE * SHORT_LINE).max(COOP_DEPTH * LONG_LINE);
        (2 * tile * 8 + 4 * 16 * 16 * MATRICES * 4) as u32
    }

    pub(super) fn source(&self) -> String {
        // Sums go to memory as they are.
        let direct = self.whole && self.epilogue == Epilogue::none(self.epilogue.addend_dtype);
        let template = finished(Template::new(include_str!("coop_product.wgsl")), &self.epilogue);
        let template = template.flag("DIRECT", direct).flag("VECTOR_OUT", self.vector_store && !direct);
        let template = template.flag("VECTOR_STORE", self.vector_store).flag("WHOLE", self.whole);
        let template = template.set("LOAD_A", format!("{:?}", self.load_a)).set("LOAD_B", format!("{:?}", self.load_b));
        let ([line_a, eights_a, tile_a], [line_b, eights_b, tile_b]) = (lines(self.load_a), lines(self.load_b));
        let template = template.set("LINE_A", line_a).set("EIGHTS_A", eights_a).set("TILE_A", tile_a);
        template.set("LINE_B", line_b).set("EIGHTS_B", eights_b).set("TILE_B", tile_b).text()
    }
}

/// Vectors of four from a line of a tile to the next, eights in a line, and vectors of four in all.
fn lines(load: Load) -> [usize; 3] {
    match load {
        Load::AlongInner => [SHORT_LINE, COOP_DEPTH / COOP_STEP, COOP_TILE * SHORT_LINE],
        _ => [LONG_LINE, COOP_TILE / COOP_STEP, COOP_DEPTH * LONG_LINE],
    }
}
