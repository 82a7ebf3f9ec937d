//! Products of floats with few rows or few columns, on a kernel that reads the other operand once:
//! a library's preparations take longer than such a product, and tiles would be mostly empty.

use panoply_core::op::compute::MatMulShape;
use panoply_core::{DType, Result};
use panoply_kernels::c::MATMUL_THIN;

use super::{Product, WIDE_BYTES, tiles};
use crate::context::Context;
use crate::driver::{GRID_YZ_MAX, Launch};

/// Maximum number of multiplications. Larger products make up for the library's preparations.
const PRODUCTS_MAX: usize = 1 << 24;
/// Maximum number of rows, and of columns.
const ROWS_MAX: usize = 8;
const COLS_MAX: usize = 16;
const THREADS: usize = 256;
/// Maximum positions along the wide operand per block, if that operand is not contiguous along the
/// depth.
const TILE_MAX: usize = 16;
/// Positions per warp if the operand is contiguous along the depth, and there are enough positions
/// for every multiprocessor.
const PER_WARP: usize = 4;
/// Minimum lanes of a warp: lanes with adjacent words must be in one warp.
const LANES_MIN: usize = 8;
/// Positions along a tall operand per block; and the minimum rows of the thin operand for which
/// eight lanes share a position, instead of a warp.
const TALL_PLACES: usize = THREADS / 8 * 2;
const TALL_ROWS_MIN: usize = 3;
/// Maximum depth for tall operands: beyond it a warp has enough work at each position.
const TALL_DEPTH_MAX: usize = 512;
/// Maximum number of sums for which each sum has a warp, if the right operand is not loaded in wide
/// words.
const NARROW_SUMS_MAX: usize = 1024;

/// The partition of a thin product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ThinSplit {
    /// Capacity for the thin operand's rows: a power of two, or a multiple of four if the other
    /// operand is tall.
    rows: usize,
    /// Whether the right operand is the thin one.
    swapped: bool,
    /// Whether the wide operand is contiguous along the depth.
    deep: bool,
    /// Whether only a few lanes share a position of the wide operand.
    tall: bool,
    /// Whether each sum has a warp, and operands are read element by element.
    narrow: bool,
    /// Positions along the wide operand: per warp and step if the operand is contiguous along the
    /// depth, else per block.
    places: usize,
}

impl ThinSplit {
    /// The partition of a product; `None` if the product is not thin, is too long, or has a type or
    /// layout that cannot be loaded in wide words.
    pub(super) fn of(product: &Product, multiprocessors: usize, warp_lanes: usize) -> Option<ThinSplit> {
        let MatMulShape { m, n, k, .. } = product.shape;
        let batches = product.shape.batch.elements();
        let dtype = product.op.a.dtype();
        let products = m.saturating_mul(n).saturating_mul(k).saturating_mul(batches);
        if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
            || warp_lanes < LANES_MIN
            || k == 0
            || products > PRODUCTS_MAX
            || batches > GRID_YZ_MAX
        {
            return None;
        }
        let wide = WIDE_BYTES as usize / dtype.size_bytes();
        let cut = |thin: usize, swapped: bool, extent: usize, deep: bool| {
            let many = extent >= TALL_PLACES / 4 * multiprocessors;
            let tall = deep && many && thin >= TALL_ROWS_MIN && k <= TALL_DEPTH_MAX;
            let enough = extent >= PER_WARP * (THREADS / warp_lanes) * multiprocessors;
            let fills = |tile: &usize| extent / tile >= multiprocessors;
            let places = match deep {
                true if enough => PER_WARP,
                true => 1,
                false => [TILE_MAX, TILE_MAX / 2].into_iter().find(fills).unwrap_or(wide),
            };
            let rows = if tall { thin.next_multiple_of(4) } else { thin.next_power_of_two() };
            ThinSplit { rows, swapped, deep, tall, narrow: false, places }
        };
        let (a, b) = (&product.a, &product.b);
        let by_rows = (m <= ROWS_MAX)
            .then(|| tiles::is_deep(b, [b.col, b.row], [n, k], wide))
            .flatten()
            .map(|deep| cut(m, false, n, deep));
        let narrow = ThinSplit { rows: 1, swapped: false, deep: false, tall: false, narrow: true, places: 1 };
        let is_narrow = (m <= ROWS_MAX || n <= COLS_MAX) && m * n <= NARROW_SUMS_MAX;
        by_rows.or_else(|| is_narrow.then_some(narrow)).or_else(|| {
            let deep = (n <= COLS_MAX).then(|| tiles::is_deep(a, [a.row, a.col], [m, k], wide)).flatten()?;
            Some(cut(n, true, m, deep))
        })
    }

    /// Queues the product.
    pub(super) fn run(self, product: &Product, context: &mut Context) -> Result<()> {
        let MatMulShape { batch, m, n, .. } = product.shape;
        let extent = if self.swapped { m } else { n };
        let kernel = product
            .kernel(MATMUL_THIN, "matmul_thin", product.c.is_some())
            .integer("ROWS", self.rows as i64)
            .integer(if self.deep { "COLS" } else { "TILE" }, self.places as i64)
            .flag("SWAPPED", self.swapped)
            .flag("TALL", self.tall)
            .flag("DEEP", self.deep)
            .flag("NARROW", self.narrow);
        let warps = THREADS / context.warp_lanes();
        let blocks = match self {
            ThinSplit { narrow: true, .. } => (m * n).div_ceil(warps),
            ThinSplit { tall: true, .. } => extent.div_ceil(TALL_PLACES),
            ThinSplit { deep: true, .. } => extent.div_ceil(warps * self.places),
            ThinSplit { deep: false, .. } => extent.div_ceil(self.places),
        };
        let launch = Launch::grid([blocks, 1, batch.elements()], THREADS);
        context.launch(&kernel, launch, &mut product.arguments())
    }
}

#[cfg(test)]
mod tests {
    use panoply_core::op::compute::MatMul;
    use panoply_core::{Shape, Tensor};

    use super::super::Operand;
    use super::*;
    use crate::driver::Address;

    fn of(dtype: DType, [m, n, k]: [usize; 3], a_step: [i64; 2], b_step: [i64; 2]) -> Option<ThinSplit> {
        // Only the shape matters, so all elements are the same one.
        let one = Tensor::zeros(dtype, [1, 1]).unwrap();
        let whole = |rows, cols| one.broadcast_to(Shape::new([rows, cols]).unwrap()).unwrap();
        let op = MatMul::new(&whole(m, k), &whole(k, n));
        let operand = |[row, col]: [i64; 2]| Operand { address: Address(256), batch: Vec::new(), row, col };
        let (shape, a, b) = (op.matmul_shape().unwrap(), operand(a_step), operand(b_step));
        ThinSplit::of(&Product { op: &op, shape, a, b, c: None, bias: None, output: Address(256) }, 132, 32)
    }

    #[test]
    fn few_rows_or_few_columns_are_thin() {
        let thin =
            |rows, swapped, deep, places| Some(ThinSplit { rows, swapped, deep, tall: false, narrow: false, places });
        let tall = |rows| Some(ThinSplit { rows, swapped: true, deep: true, tall: true, narrow: false, places: 1 });
        let narrow = Some(ThinSplit { rows: 1, swapped: false, deep: false, tall: false, narrow: true, places: 1 });
        assert_eq!(of(DType::F16, [1, 512, 784], [784, 1], [512, 1]), thin(1, false, false, 8));
        assert_eq!(of(DType::F32, [1, 512, 784], [784, 1], [512, 1]), thin(1, false, false, 4));
        assert_eq!(of(DType::F32, [1, 4096, 784], [784, 1], [4096, 1]), thin(1, false, false, 16));
        assert_eq!(of(DType::F16, [3, 512, 784], [784, 1], [1, 784]), thin(4, false, true, 1));
        // Rows of ten columns are not whole words, so the other operand is read in words, or
        // elements are read if there are few sums.
        assert_eq!(of(DType::F16, [256, 10, 256], [256, 1], [10, 1]), thin(16, true, true, 1));
        assert_eq!(of(DType::F16, [1, 10, 256], [256, 1], [10, 1]), narrow);
        assert_eq!(of(DType::F32, [64, 10, 256], [1, 64], [10, 1]), narrow);
        assert_eq!(of(DType::F16, [4096, 10, 256], [256, 1], [10, 1]), tall(12));
        assert_eq!(of(DType::F16, [8192, 2, 256], [256, 1], [2, 1]), thin(2, true, true, 4));
        assert_eq!(of(DType::F32, [128, 12, 30], [1, 128], [12, 1]), thin(16, true, false, 4));
        for (dtype, sizes) in [(DType::F16, [9, 17, 64]), (DType::F64, [1, 64, 64]), (DType::F32, [1, 8192, 8192])] {
            assert_eq!(of(dtype, sizes, [sizes[2] as i64, 1], [sizes[1] as i64, 1]), None, "{dtype} {sizes:?}");
        }
    }
}
