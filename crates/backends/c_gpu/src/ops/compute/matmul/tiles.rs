//! Products of f32 on our own tiles: if the library's call would take longer than the product, and
//! if there is no library. Products of 16-bit floats use the tiles only if no library supports
//! them, since a library's matrix units are faster.

use panoply_core::op::compute::MatMulShape;
use panoply_core::{DType, Result};
use panoply_kernels::c::MATMUL_TILES;

use super::{Operand, Product, WIDE_BYTES};
use crate::context::Context;
use crate::driver::{GRID_YZ_MAX, Launch};

/// The possible numbers of rows of a tile, and its columns.
const ROWS: [usize; 2] = [64, 32];
const COLS: usize = 64;
const THREADS: usize = 128;
/// Steps along k of a slab per team of threads.
const RUN: usize = 8;
/// Unused elements between the rows of a slab in block memory, against bank conflicts.
const GAP: usize = 4;
/// The start and end cost of a tile, in multiplications that one multiprocessor does in that time.
/// This is the unit of the two estimates that are compared.
const TILE_PRODUCTS: usize = 150_000;
/// The time of a library call beyond a launch, in the same unit.
const CALL_PRODUCTS: usize = 950_000;
/// The speed of our tiles in percent of the library's.
const PACE_PERCENT: usize = 93;
/// Elements per wide load.
const WIDE: usize = WIDE_BYTES as usize / 4;

/// The tiling of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tiling {
    rows: usize,
    /// Whether A's rows, and B's columns, are contiguous; otherwise the other direction is.
    a_deep: bool,
    b_deep: bool,
    /// Whether our tiles are estimated to be faster than the library.
    pub(super) is_quick: bool,
}

impl Tiling {
    /// The tiling of a product; `None` if its type or its layout is not supported.
    pub(super) fn of(product: &Product, multiprocessors: usize) -> Option<Tiling> {
        let MatMulShape { m, n, k, .. } = product.shape;
        let batches = product.shape.batch.elements();
        let dtype = product.op.a.dtype();
        if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
            || k == 0
            || k > i32::MAX as usize
            || batches > GRID_YZ_MAX
        {
            return None;
        }
        let (a, b) = (&product.a, &product.b);
        let a_deep = is_deep(a, [a.row, a.col], [m, k], WIDE)?;
        let b_deep = is_deep(b, [b.col, b.row], [n, k], WIDE)?;
        let multiprocessors = multiprocessors.max(1);
        let cost = |rows: &usize| {
            let tiles = m.div_ceil(*rows) * n.div_ceil(COLS) * batches;
            tiles.div_ceil(multiprocessors).saturating_mul(rows * COLS * k + TILE_PRODUCTS)
        };
        let rows = ROWS.into_iter().filter(|rows| m.div_ceil(*rows) <= GRID_YZ_MAX).min_by_key(cost)?;
        let whole = m.saturating_mul(n).saturating_mul(k).saturating_mul(batches);
        let by_library = whole / multiprocessors / 100 * PACE_PERCENT + CALL_PRODUCTS;
        Some(Tiling { rows, a_deep, b_deep, is_quick: dtype == DType::F32 && cost(&rows) <= by_library })
    }

    /// Queues the product.
    pub(super) fn run(self, product: &Product, context: &mut Context) -> Result<()> {
        let MatMulShape { batch, m, n, .. } = product.shape;
        let kernel = product
            .kernel(MATMUL_TILES, "matmul_tiles", product.c.is_some())
            .integer("TILE_M", self.rows as i64)
            .flag("A_DEEP", self.a_deep)
            .flag("B_DEEP", self.b_deep);
        let grid = [n.div_ceil(COLS), m.div_ceil(self.rows), batch.elements()];
        let launch = Launch::grid(grid, THREADS).shared(self.shared_bytes());
        context.launch(&kernel, launch, &mut product.arguments())
    }

    /// Block memory for two slabs, and later for every team's sums.
    fn shared_bytes(self) -> usize {
        let teams = THREADS / self.rows;
        let slabs = 2 * RUN * teams * (self.rows + GAP + COLS + GAP);
        slabs.max(teams * self.rows * COLS) * 4
    }
}

/// Whether an operand is contiguous along the depth (true) or along its extent (false); `None` if
/// it cannot be loaded in wide words either way. Steps and sizes are given for the extent and for
/// the depth; a wide word has `wide` elements.
pub(super) fn is_deep(
    operand: &Operand,
    [along, deep]: [i64; 2],
    [extent, depth]: [usize; 2],
    wide: usize,
) -> Option<bool> {
    let fits = |step: i64| step % wide as i64 == 0;
    let whole = |size: usize| fits(size as i64);
    if !operand.address.is_multiple_of(u64::from(WIDE_BYTES)) || !operand.batch.iter().all(|(_, step)| fits(*step)) {
        return None;
    }
    if deep == 1 && fits(along) && whole(depth) {
        return Some(true);
    }
    (along == 1 && fits(deep) && whole(extent)).then_some(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Address;

    fn operand(row: i64, col: i64) -> Operand {
        Operand { address: Address(256), batch: vec![(2, 1 << 20)], row, col }
    }

    #[test]
    fn operands_are_contiguous_one_way_or_the_other() {
        let asked = |operand: &Operand, sizes| is_deep(operand, [operand.row, operand.col], sizes, WIDE);
        assert_eq!(asked(&operand(64, 1), [30, 64]), Some(true));
        assert_eq!(asked(&operand(1, 64), [64, 30]), Some(false));
        // A single row that repeats.
        assert_eq!(asked(&operand(0, 1), [1, 64]), Some(true));
        for (odd, sizes) in [(operand(63, 1), [30, 60]), (operand(64, 1), [30, 63]), (operand(1, 64), [63, 30])] {
            assert_eq!(asked(&odd, sizes), None, "{odd:?}");
        }
        assert_eq!(asked(&operand(128, 2), [30, 64]), None);
        assert_eq!(asked(&Operand { address: Address(260), ..operand(64, 1) }, [30, 64]), None);
        assert_eq!(asked(&Operand { batch: vec![(2, 30)], ..operand(64, 1) }, [30, 64]), None);
    }

    #[test]
    fn the_library_has_what_takes_long_or_fills_few_multiprocessors() {
        use panoply_core::op::compute::MatMul;
        use panoply_core::{Shape, Tensor};
        let of = |batches: usize, [m, n, k]: [usize; 3]| {
            // Only the shape matters, so all elements are the same one.
            let one = Tensor::zeros(DType::F32, [1, 1, 1]).unwrap();
            let whole = |rows, cols| one.broadcast_to(Shape::new([batches, rows, cols]).unwrap()).unwrap();
            let op = MatMul::new(&whole(m, k), &whole(k, n));
            let plain = |row: usize| Operand { address: Address(256), batch: Vec::new(), row: row as i64, col: 1 };
            let (shape, a, b) = (op.matmul_shape().unwrap(), plain(k), plain(n));
            let product = Product { op: &op, shape, a, b, c: None, bias: None, output: Address(256) };
            Tiling::of(&product, 132).unwrap()
        };
        let quick = [[128, 128, 128], [512, 512, 512], [64, 4096, 1024]].map(|sizes| (1, sizes, 32));
        for (batches, sizes, rows) in quick.into_iter().chain([(1, [640, 640, 640], 64), (132, [64, 64, 64], 64)]) {
            let tiling = of(batches, sizes);
            assert!(tiling.is_quick && tiling.rows == rows, "{batches} of {sizes:?}: {tiling:?}");
        }
        let long = [[768; 3], [1024; 3], [4096; 3], [32, 1024, 1024], [1, 4096, 4096]].map(|sizes| (1, sizes));
        for (batches, sizes) in long.into_iter().chain([(1000, [64, 64, 64])]) {
            assert!(!of(batches, sizes).is_quick, "{batches} of {sizes:?}");
        }
        assert_eq!(of(1, [512; 3]).shared_bytes(), 32_768);
    }
}
