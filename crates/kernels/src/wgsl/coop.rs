//! Products of f16 on a device's matrix units, accumulated in f32: `activation(alpha · A·B + beta ·
//! C + bias)`.
//!
//! The kernel is `coop_product.wgsl`. Parameters and buffers are those of [`super::gemm`].

use super::gemm::{Epilogue, Load, finished};
use super::template::Template;

/// Rows and columns of a workgroup's tile.
pub const COOP_TILE: usize = 128;
/// Inner steps of a tile.
pub const COOP_DEPTH: usize = 32;
/// Elements read at once. Both operands' strides, offsets and contiguous lengths are multiples of
/// it.
pub const COOP_STEP: usize = 8;
/// Matrices of 16 × 16 per subgroup along each dimension.
const MATRICES: usize = 4;
/// The stride between lines of a tile, in vectors of four. It is two more than a line's length, to
/// avoid bank conflicts.
const LONG_LINE: usize = COOP_TILE / 4 + 2;
const SHORT_LINE: usize = COOP_DEPTH / 4 + 2;

/// A product of f16 on matrix units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CoopKernel {
    /// The contiguous dimension of the left operand: the inner one ([`Load::AlongInner`]) or its
    /// rows.
    pub load_a: Load,
    /// The contiguous dimension of the right operand.
    pub load_b: Load,
    /// The epilogue.
    pub epilogue: Epilogue,
    /// Whether to store vectors of four: n is a multiple of four.
    pub vector_store: bool,
    /// Whether all tiles are whole: m and n are multiples of [`COOP_TILE`], and k of
    /// [`COOP_DEPTH`].
    pub whole: bool,
}

impl CoopKernel {
    /// Workgroup memory of a kernel in bytes.
    pub fn workgroup_bytes() -> u32 {
        let tile = (COOP_TILE * SHORT_LINE).max(COOP_DEPTH * LONG_LINE);
        (2 * tile * 8 + 4 * 16 * 16 * MATRICES * 4) as u32
    }

    pub(super) fn source(&self) -> String {
        // Sums are stored without an epilogue.
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

/// The line stride of a tile in vectors of four, the groups of eight per line, and the vectors of
/// four in total.
fn lines(load: Load) -> [usize; 3] {
    match load {
        Load::AlongInner => [SHORT_LINE, COOP_DEPTH / COOP_STEP, COOP_TILE * SHORT_LINE],
        _ => [LONG_LINE, COOP_TILE / COOP_STEP, COOP_DEPTH * LONG_LINE],
    }
}
