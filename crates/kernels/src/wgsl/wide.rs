//! Products of f16 or bf16 on a device's matrix units, in `wide_product.wgsl`, for drivers that
//! turn matrices declared as f32 into 16-bit matrices: `activation(alpha · A·B + beta · C + bias)`,
//! convolutions, and candidates of a search.
//!
//! Parameters and buffers of products are those of [`super::gemm`], those of candidates are those
//! of [`super::list`]. Those of convolutions are in `wide_window_params.wgsl`. Images of a
//! convolution are channels-last, with channels in whole groups of eight
//! ([`super::Kernel::ChannelsLast`]).

use panoply_core::DType;
use panoply_core::op::compute::Metric;

use super::gemm::{Epilogue, Load, finished};
use super::select::scored;
use super::template::Template;

/// Elements read at once. Operands' strides, offsets and contiguous lengths are multiples of it.
pub const WIDE_STEP: usize = 8;
/// Rows and columns of a matrix.
const MATRIX: usize = 16;
/// Vectors of four in workgroup memory for the sums of a subgroup while they are stored.
const SUMS: usize = 144;

/// The distribution of a workgroup's tile over its subgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WideTile {
    /// Subgroups along the rows and the columns of the tile.
    pub subgroups: [u8; 2],
    /// Matrices of a subgroup along its rows.
    pub rows: u8,
    /// Pairs of matrices of a subgroup along its columns.
    pub pairs: u8,
    /// Inner steps: a multiple of sixteen.
    pub depth: u8,
    /// Double buffering: two tiles of each operand in workgroup memory. Twice the memory, half the
    /// barriers.
    pub double: bool,
    /// Whether fetched data is stored to workgroup memory at the start of the next tile instead of
    /// the end of this one. The stores, and the loads that they wait for, then overlap with a
    /// tile's products. Requires `double`.
    pub early: bool,
}

impl WideTile {
    /// Rows of the tile.
    pub fn m(&self) -> usize {
        usize::from(self.subgroups[0]) * usize::from(self.rows) * MATRIX
    }

    /// Columns of the tile.
    pub fn n(&self) -> usize {
        usize::from(self.subgroups[1]) * usize::from(self.pairs) * 2 * MATRIX
    }

    fn invocations(&self) -> usize {
        usize::from(self.subgroups[0]) * usize::from(self.subgroups[1]) * 32
    }

    /// Whether a workgroup of this shape works: all invocations fetch the same number of whole
    /// groups of eight, and one fetch of all invocations covers whole lines.
    pub fn is_sound(&self) -> bool {
        let (depth, invocations) = (usize::from(self.depth), self.invocations());
        let shared = |length: usize| {
            let lines = [length / WIDE_STEP, depth / WIDE_STEP];
            (length * depth / WIDE_STEP).is_multiple_of(invocations.max(1))
                && lines.iter().all(|eights| *eights > 0 && invocations.is_multiple_of(*eights))
        };
        (32..=1024).contains(&invocations)
            && (self.double || !self.early)
            && depth > 0
            && depth.is_multiple_of(MATRIX)
            && self.rows > 0
            && self.pairs > 0
            && shared(self.m())
            && shared(self.n())
    }

    /// The most bytes of workgroup memory of a kernel with this tile.
    pub fn workgroup_bytes(&self) -> u32 {
        let most = |length| {
            stage_eights(length, self.depth, Load::AlongInner).max(stage_eights(length, self.depth, Load::AlongOuter))
        };
        // Searches also keep a limit for each row.
        self.eights(most(self.m()) + most(self.n())) as u32 * 16 + self.m() as u32 * 4
    }

    fn eights(&self, stage: usize) -> usize {
        let stages = if self.double { 2 } else { 1 };
        (stage * stages).max(self.invocations() / 32 * SUMS)
    }
}

/// The right operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WideSource {
    /// A matrix.
    Matrix(Load),
    /// The windows of images.
    Windows,
}

/// The use of the sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WideTarget {
    /// Outputs of a product.
    Sums {
        /// The epilogue.
        epilogue: Epilogue,
        /// Whether to write elements, four at a time: n, or the positions of an image, are a
        /// multiple of four. Otherwise carriers are written.
        packed: bool,
    },
    /// Candidates of queries. The queries are A.
    Lists {
        /// The metric of the scores.
        metric: Metric,
        /// Whether only rows whose bit is set are candidates.
        filtered: bool,
    },
}

/// A product on matrix units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WideKernel {
    /// f16 or bf16.
    pub dtype: DType,
    /// The access pattern of the left operand.
    pub load_a: Load,
    /// The right operand.
    pub b: WideSource,
    /// The use of the sums.
    pub target: WideTarget,
    /// Whether all tiles are whole: m, n and k are multiples of the tile's sizes. Not for windows.
    pub whole: bool,
    /// The size of a workgroup's tile.
    pub tile: WideTile,
}

impl WideKernel {
    pub(super) fn source(&self) -> String {
        let tile = &self.tile;
        let (load_b, name_b) = match self.b {
            WideSource::Matrix(load) => (load, format!("{load:?}")),
            WideSource::Windows => (Load::AlongInner, "Windows".to_owned()),
        };
        let template = Template::new(include_str!("wide_product.wgsl")).dtype("TYPE", self.dtype);
        let template = match self.target {
            WideTarget::Sums { epilogue, packed } => finished(template, &epilogue).flag("PACKED", packed),
            WideTarget::Lists { metric, filtered } => {
                let template = scored(template.set("KERNEL", "Lists"), metric, true).flag("LISTS", true);
                template.set("CARRIER", "f32").flag("FILTERED", filtered)
            }
        };
        let (m, n, depth) = (tile.m(), tile.n(), usize::from(tile.depth));
        let (stage_a, stage_b) = (stage_eights(m, tile.depth, self.load_a), stage_eights(n, tile.depth, load_b));
        let eights = tile.eights(stage_a + stage_b);
        let template = template.set("LOAD_A", format!("{:?}", self.load_a)).set("LOAD_B", name_b);
        let template = template
            .flag("WHOLE", self.whole)
            .flag("DOUBLE", tile.double)
            .flag("EARLY", tile.early)
            .set("DEPTH", depth);
        let template = template.set("INVOCATIONS", tile.invocations()).set("SUBGROUPS_N", tile.subgroups[1]);
        let template = template.set("ROWS", tile.rows).set("PAIRS", tile.pairs).set("SLICES", depth / MATRIX);
        let template = template.set("TILE_M", m).set("TILE_N", n).set("TILE", eights);
        let template = template.set("FIRST_B", stage_a).set("STAGE_EIGHTS", stage_a + stage_b);
        let fetches = |length: usize| length * depth / WIDE_STEP / tile.invocations();
        let template = template.set("FETCHES_A", fetches(m)).set("FETCHES_B", fetches(n));
        let ([line_a, eights_a], [line_b, eights_b]) = (line(m, depth, self.load_a), line(n, depth, load_b));
        let template = template.set("LINE_A", line_a).set("EIGHTS_A", eights_a);
        template.set("LINE_B", line_b).set("EIGHTS_B", eights_b).text()
    }
}

/// The line stride of a tile in groups of eight, one more than the line's length, and the line's
/// length.
fn line(length: usize, depth: usize, load: Load) -> [usize; 2] {
    let eights = if load == Load::AlongInner { depth } else { length } / WIDE_STEP;
    [eights + 1, eights]
}

/// Size of an operand's tile in groups of eight.
fn stage_eights(length: usize, depth: u8, load: Load) -> usize {
    let depth = usize::from(depth);
    let lines = if load == Load::AlongInner { length } else { depth };
    lines * line(length, depth, load)[0]
}
