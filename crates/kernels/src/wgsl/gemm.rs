//! Matrix products by tiles, in `product.wgsl` and `tile.wgsl`: `activation(alpha · A·B + beta · C + bias)`.
//!
//! A workgroup of 16 × 16 invocations makes a tile of `64 · rows` × `64 · columns` outputs; an invocation holds blocks of
//! 4 × 4 of them in registers. Tiles of both operands, sixteen steps of the inner dimension deep, go through workgroup
//! memory; while one is multiplied the next is on its way into registers. Workgroups walk the output in bands of eight
//! tiles, so that neighbours in time share operands in the cache.
//!
//! Parameters: m, n, k, tiles along m and n, batches, then offset, row stride and column stride of A and of B, six
//! dimensions of the batch with the strides of A and of B for each, offset, row and column stride and six batch strides of
//! C, offset and stride of the bias, alpha and beta in the output's carrier.

use panoply_core::DType;
use panoply_core::op::compute::{Activation, Metric};

use super::prelude::{carrier, word};
use super::template::Template;

/// How many steps of the inner dimension a tile is deep.
pub(super) const TILE_DEPTH: u32 = 16;

/// The size of a workgroup's tile, in units of 64 outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tile {
    /// 64 rows each: 1 or 2.
    pub rows: u8,
    /// 64 columns each: 1 or 2.
    pub columns: u8,
    /// Two tiles of each operand in workgroup memory: twice the memory, half the barriers.
    pub double: bool,
    /// The steps through a tile are written out: faster on hardware, slower to compile.
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

    /// Bytes of workgroup memory that the tile takes.
    pub fn workgroup_bytes(&self) -> u32 {
        let single = (self.m() + self.n()) as u32 * TILE_DEPTH * 4;
        if self.double { 2 * single } else { single }
    }
}

/// How an operand is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Load {
    /// Vectors of four along the inner dimension, which is contiguous and a multiple of four, as are all strides.
    AlongInner,
    /// Vectors of four along the outer dimension (m or n), under the same conditions.
    AlongOuter,
    /// Element by element, by strides.
    Single,
}

/// How products are added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Accumulate {
    /// `a · b`.
    Product,
    /// `(a - b)²`.
    SquaredDifference,
}

impl Accumulate {
    /// What the scores of a search under this metric are made of.
    pub fn of(metric: Metric) -> Accumulate {
        match metric {
            Metric::Euclidean => Accumulate::SquaredDifference,
            Metric::Dot | Metric::Cosine => Accumulate::Product,
        }
    }
}

/// A tensor that is added to the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Addend {
    /// Nothing.
    None,
    /// One number for each column.
    PerColumn,
    /// One number for each row.
    PerRow,
}

/// What happens to a sum before it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Epilogue {
    /// Multiplied by alpha.
    pub scaled: bool,
    /// With `beta · C`.
    pub with_c: bool,
    /// With a bias.
    pub bias: Addend,
    /// The type of C and of the bias.
    pub addend_dtype: DType,
    /// Applied last.
    pub activation: Activation,
}

impl Epilogue {
    /// Nothing at all.
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
    /// How the left operand is read.
    pub load_a: Load,
    /// How the right operand is read.
    pub load_b: Load,
    /// How products are added up.
    pub accumulate: Accumulate,
    /// What happens to the sums.
    pub epilogue: Epilogue,
    /// The size of a workgroup's tile.
    pub tile: Tile,
    /// Stores vectors of four: n is a multiple of four.
    pub vector_store: bool,
}

impl GemmKernel {
    /// What sums are kept in. Bytes of either sort are added up as signed integers.
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

/// How a product's operands are read.
pub(super) fn loaded(template: Template, [a, b]: [(DType, Load); 2]) -> Template {
    let words = |(dtype, load): (DType, Load)| match load {
        Load::Single => word(dtype).to_owned(),
        _ => format!("vec4<{}>", word(dtype)),
    };
    let template = template.set("WORDS_A", words(a)).set("WORDS_B", words(b));
    template.set("LOAD_A", format!("{:?}", a.1)).set("LOAD_B", format!("{:?}", b.1))
}

/// The values of `tile.wgsl`. `order` says which neighbours of each operand lie along the inner dimension, so that
/// neighbouring invocations read neighbouring memory.
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

/// The values of `finish.wgsl`.
pub(super) fn finished(template: Template, epilogue: &Epilogue) -> Template {
    let template = template.dtype("ADDEND", epilogue.addend_dtype);
    let template = template.flag("SCALED", epilogue.scaled).flag("WITH_C", epilogue.with_c);
    template.set("BIAS", format!("{:?}", epilogue.bias)).set("ACTIVATION", format!("{:?}", epilogue.activation))
}
