//! Products of 16-bit floats on matrix units of which a warp has tiles of 16 × 16 × 16, where no library takes them.

use panoply_core::op::compute::MatMulShape;
use panoply_core::{DType, Result};
use panoply_kernels::c::MATMUL_UNITS;

use super::tiles::is_deep;
use super::{Product, WIDE_BYTES};
use crate::context::Context;
use crate::driver::{GRID_YZ_MAX, Launch};

/// The rows and columns that a tile may have, the largest first.
const TILES: [usize; 2] = [128, 64];
const THREADS: usize = 256;
/// Numbers of a slab in depth, and unused ones behind them.
const DEPTH: usize = 32;
const GAP: usize = 8;
/// Numbers of one wide load.
const WIDE: usize = WIDE_BYTES as usize / 2;

/// How a product is cut into tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Units {
    tile: usize,
    a_deep: bool,
    b_deep: bool,
}

impl Units {
    /// The tiles of a product; `None` where its type or its layout is not one of theirs.
    pub(super) fn of(product: &Product, multiprocessors: usize) -> Option<Units> {
        let MatMulShape { m, n, k, .. } = product.shape;
        let batches = product.shape.batch.elements();
        let is_narrow = matches!(product.op.a.dtype(), DType::F16 | DType::BF16);
        // Below half a tile most of what is multiplied would be zeros.
        if !is_narrow
            || m < TILES[1] / 2
            || n < TILES[1] / 2
            || k == 0
            || k > i32::MAX as usize
            || batches > GRID_YZ_MAX
        {
            return None;
        }
        let (a, b) = (&product.a, &product.b);
        let a_deep = is_deep(a, [a.row, a.col], [m, k], WIDE)?;
        let b_deep = is_deep(b, [b.col, b.row], [n, k], WIDE)?;
        let tiles = |tile: usize| m.div_ceil(tile) * n.div_ceil(tile) * batches;
        let tile = if tiles(TILES[0]) >= multiprocessors.max(1) { TILES[0] } else { TILES[1] };
        (m.div_ceil(tile) <= GRID_YZ_MAX).then_some(Units { tile, a_deep, b_deep })
    }

    /// Queues the product.
    pub(super) fn run(self, product: &Product, context: &mut Context) -> Result<()> {
        let MatMulShape { batch, m, n, .. } = product.shape;
        let kernel = product
            .kernel(MATMUL_UNITS, "matmul_units", product.c.is_some())
            .integer("TILE", self.tile as i64)
            .flag("A_DEEP", self.a_deep)
            .flag("B_DEEP", self.b_deep);
        let grid = [n.div_ceil(self.tile), m.div_ceil(self.tile), batch.elements()];
        let launch = Launch::grid(grid, THREADS).shared(self.shared_bytes());
        context.launch(&kernel, launch, &mut product.arguments())
    }

    /// Two slabs of A's rows and B's columns.
    fn shared_bytes(self) -> usize {
        2 * 2 * self.tile * (DEPTH + GAP) * 2
    }
}
