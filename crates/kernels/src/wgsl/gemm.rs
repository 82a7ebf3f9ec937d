//! Matrix products by tiles, in `product.wgsl` and `tile.wgsl`: `activation(alpha · A·B + beta · C
//! + bias)`.
//!
//! A workgroup of 16 × 16 invocations computes a tile of `64 · rows` × `64 · columns` outputs. Each
//! invocation holds blocks of 4 × 4 outputs in registers. Tiles of both operands, sixteen inner
//! steps deep, go through workgroup memory; while one is multiplied, the next is loaded into
//! registers. Workgroups traverse the output in bands of eight tiles, so that consecutive
//! workgroups share operands in the cache.
//!
//! Parameters: m, n, k, tiles along m and n, batches, then offset, row stride and column stride of
//! A and of B, six dimensions of the batch with the strides of A and of B for each, offset, row and
//! column stride and six batch strides of C, offset and stride of the bias, alpha and beta in the
//! output's carrier.

use panoply_core::DType;
use panoply_core::op::compute::{Activation, Metric};

use super::prelude::{carrier, word};
use super::template::Template;

/// Inner steps of a tile.
pub(super) const TILE_DEPTH: u32 = 16;

/// The size of a workgroup's tile, in units of 64 outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tile {
    /// Units of 64 rows: 1 or 2.
    pub rows: u8,
    /// Units of 64 columns: 1 or 2.
    pub columns: u8,
    /// Double buffering: two tiles of each operand in workgroup memory. Twice the memory, half the
    /// barriers.
    pub double: bool,
    /// Whether the steps through a tile are unrolled: faster on hardware, slower to compile.
    pub unrolled: bool,
}

impl Tile {
    /// Rows of the tile.
    pub fn m(&self) -> usize {
        64 * usize::from(self.rows)
    }

    /// Columns of the tile.
    pub fn n(&self) -> usize {
        64 * usize::from(self.columns)
    }

    /// Workgroup memory of the tile in bytes.
    pub fn workgroup_bytes(&self) -> u32 {
        let single = (self.m() + self.n()) as u32 * TILE_DEPTH * 4;
        if self.double { 2 * single } else { single }
    }
}

/// The access pattern of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Load {
    /// Vectors of four along the inner dimension, which is contiguous and a multiple of four, as
    /// are all strides.
    AlongInner,
    /// Vectors of four along the outer dimension (m or n), under the same conditions.
    AlongOuter,
    /// Element by element, with strides.
    Single,
}

/// The terms of a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Accumulate {
    /// `a · b`.
    Product,
    /// `(a - b)²`.
    SquaredDifference,
}

impl Accumulate {
    /// The terms of a search's scores for this metric.
    pub fn of(metric: Metric) -> Accumulate {
        match metric {
            Metric::Euclidean => Accumulate::SquaredDifference,
            Metric::Dot | Metric::Cosine => Accumulate::Product,
        }
    }
}

/// A tensor added to the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Addend {
    /// Nothing.
    None,
    /// One number for each column.
    PerColumn,
    /// One number for each row.
    PerRow,
}

/// The epilogue of a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Epilogue {
    /// Multiply by alpha.
    pub scaled: bool,
    /// Add `beta · C`.
    pub with_c: bool,
    /// Add a bias.
    pub bias: Addend,
    /// The type of C and of the bias.
    pub addend_dtype: DType,
    /// The activation, applied last.
    pub activation: Activation,
}

impl Epilogue {
    /// No epilogue.
    pub fn none(dtype: DType) -> Epilogue {
        let (bias, activation) = (Addend::None, Activation::None);
        Epilogue { scaled: false, with_c: false, bias, addend_dtype: dtype, activation }
    }
}

/// A matrix product of f32, f16, bf16 or integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GemmKernel {
    /// The type of the left operand.
    pub a: DType,
    /// The type of the right operand, with the same carrier.
    pub b: DType,
    /// The access pattern of the left operand.
    pub load_a: Load,
    /// The access pattern of the right operand.
    pub load_b: Load,
    /// The terms of the sums.
    pub accumulate: Accumulate,
    /// The epilogue.
    pub epilogue: Epilogue,
    /// The size of a workgroup's tile.
    pub tile: Tile,
    /// Whether to store vectors of four: n is a multiple of four.
    pub vector_store: bool,
}

impl GemmKernel {
    /// The type of sums. Bytes, signed or unsigned, are accumulated in signed integers.
    fn carrier(&self) -> &'static str {
        if self.a == DType::U8 { "i32" } else { carrier(self.a) }
    }

    pub(super) fn source(&self) -> String {
        let template = Template::new(include_str!("product.wgsl")).set("KERNEL", "Product");
        let template = template.dtype("TYPE_A", self.a).dtype("TYPE_B", self.b).set("CARRIER", self.carrier());
        let template = loaded(template, [(self.a, self.load_a), (self.b, self.load_b)]);
        let template = finished(template, &self.epilogue).flag("VECTOR_STORE", self.vector_store);
        tiled(template, self.tile, self.accumulate, [self.load_a, self.load_b]).text()
    }
}

/// Sets the template values for reading a product's operands.
pub(super) fn loaded(template: Template, [a, b]: [(DType, Load); 2]) -> Template {
    let words = |(dtype, load): (DType, Load)| match load {
        Load::Single => word(dtype).to_owned(),
        _ => format!("vec4<{}>", word(dtype)),
    };
    let template = template.set("WORDS_A", words(a)).set("WORDS_B", words(b));
    template.set("LOAD_A", format!("{:?}", a.1)).set("LOAD_B", format!("{:?}", b.1))
}

/// Sets the template values of `tile.wgsl`. `order` gives for each operand the dimension that
/// adjacent invocations follow, so that they read adjacent memory.
pub(super) fn tiled(template: Template, tile: Tile, accumulate: Accumulate, order: [Load; 2]) -> Template {
    let (rows, columns) = (u32::from(tile.rows), u32::from(tile.columns));
    let copies = if tile.double { 2 } else { 1 };
    let stage = |wide: &str| if tile.double { format!("stage * (DEPTH * {wide}) + ") } else { String::new() };
    let template = template.set("ROWS", rows).set("COLUMNS", columns);
    let template = template.set("TILE_A", 16 * TILE_DEPTH * rows * copies);
    let template = template.set("TILE_B", 16 * TILE_DEPTH * columns * copies);
    let template = template.set("STAGE_A", stage("WIDE_M")).set("STAGE_B", stage("WIDE_N"));
    let template = template.flag("DOUBLE", tile.double).flag("UNROLLED", tile.unrolled);
    let template = template.set("ACCUMULATE", format!("{accumulate:?}"));
    template.set("ORDER_A", format!("{:?}", order[0])).set("ORDER_B", format!("{:?}", order[1]))
}

/// Sets the template values of `finish.wgsl`.
pub(super) fn finished(template: Template, epilogue: &Epilogue) -> Template {
    let template = template.dtype("ADDEND", epilogue.addend_dtype);
    let template = template.flag("SCALED", epilogue.scaled).flag("WITH_C", epilogue.with_c);
    template.set("BIAS", format!("{:?}", epilogue.bias)).set("ACTIVATION", format!("{:?}", epilogue.activation))
}
