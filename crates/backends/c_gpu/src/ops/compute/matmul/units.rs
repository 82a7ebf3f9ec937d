//! Products of 16-bit floats on matrix units that multiply tiles of 16 × 16 × 16 per warp, if no
//! library supports them.

use panoply_core::op::compute::{Activation, MatMulShape};
use panoply_core::{DType, Result, Shape};
use panoply_kernels::c::{Kernel, MATMUL_UNITS, activation_number};

use super::tiles::is_deep;
use super::{Product, WIDE_BYTES, sizes};
use crate::arguments::Arguments;
use crate::context::Context;
use crate::driver::{Address, GRID_YZ_MAX, Launch};
use crate::layout::Layout;

/// The possible numbers of rows and columns of a tile, largest first.
const TILES: [usize; 2] = [128, 64];
const THREADS: usize = 256;
/// Depth of a slab in elements, and padding elements after it.
const DEPTH: usize = 32;
const GAP: usize = 8;
/// Elements per wide load.
const WIDE: usize = WIDE_BYTES as usize / 2;

/// The tiling of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Units {
    tile: usize,
    a_deep: bool,
    b_deep: bool,
}

impl Units {
    /// The tiling of a product; `None` if its type or its layout is not supported.
    pub(super) fn of(product: &Product, multiprocessors: usize) -> Option<Units> {
        let MatMulShape { m, n, k, .. } = product.shape;
        let batches = product.shape.batch.elements();
        let is_narrow = matches!(product.op.a.dtype(), DType::F16 | DType::BF16);
        // Below half a tile, most multiplications would be with zeros.
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

    /// Block memory for two slabs of A's rows and B's columns.
    const fn shared_bytes(self) -> usize {
        2 * 2 * self.tile * (DEPTH + GAP) * 2
    }
}

/// Two lists of contiguous vectors of 16-bit floats, aligned to 16 bytes.
pub(crate) struct Vectors {
    pub(crate) dtype: DType,
    pub(crate) a: Address,
    pub(crate) b: Address,
    /// The number of vectors in A and in B, and their dimension, a multiple of eight.
    pub(crate) counts: [usize; 2],
    pub(crate) dim: usize,
}

/// Queues the products of all of A's vectors with all of B's: one row of f32 for each vector of A.
pub(crate) fn products_of(vectors: &Vectors, target: Address, context: &mut Context) -> Result<()> {
    let Vectors { dtype, a, b, counts: [m, n], dim } = *vectors;
    let units = Units { tile: TILES[0], a_deep: true, b_deep: true };
    let kernel = Kernel::new(MATMUL_UNITS, "matmul_units")
        .dtype("T", dtype)
        .dtype("R", DType::F32)
        .integer("BIAS", 0)
        .integer("ACTIVATION", activation_number(Activation::None))
        .flag("HAS_C", false)
        .integer("TILE", units.tile as i64)
        .flag("A_DEEP", true)
        .flag("B_DEEP", true);
    let shape = MatMulShape { batch: Shape::new([])?, m, n, k: dim };
    let (none, single) = ([0; 2], Layout::new(&[], &[]));
    let addresses =
        Arguments::new().address(target).address(a).address(b).address(Address::NULL).address(Address::NULL);
    let mut arguments = addresses
        .sizes(&sizes(&shape, 1, 1.0, 0.0))
        .structure(&[dim as u64, 1])
        .structure(&[1, dim as u64])
        .structure(&none)
        .layout(&single)
        .layout(&single)
        .layout(&single);
    let grid = [n.div_ceil(units.tile), m.div_ceil(units.tile), 1];
    context.launch(&kernel, Launch::grid(grid, THREADS).shared(units.shared_bytes()), &mut arguments)
}
