//! Kernels in WGSL, for wgpu and through it for Vulkan, Metal and DX12, or compiled directly to
//! SPIR-V.
//!
//! A kernel's text is a `.wgsl` file of this folder, with a few directives described in `template`.
//! The `.rs` file of its family has the options that become values of the template. The texts of
//! maps are generated (`map`, `map_body`).
//!
//! The contract between a kernel and its caller:
//!
//! 1. Group 0, binding 0 is a uniform buffer of 32-bit parameters in the order documented in the
//!    kernel's file; they take at most [`PARAMS_WORDS_MAX`] words. If a device takes that many
//!    words with the dispatch itself, the same text declares them so ([`with_immediates`]). Group 1
//!    holds storage buffers: the written ones come first, then those read.
//! 2. A workgroup has [`WORKGROUP_SIZE`] invocations, except for [`Kernel::Coop`], which has half,
//!    and [`Kernel::Wide`]. Workgroups are numbered along one line, which may be folded into two
//!    dimensions; workgroups beyond the end of the work do nothing.
//! 3. Elements of 8 and 16 bits are packed in 32-bit words. A kernel reads any type, computes in
//!    the type's *carrier* (f32 for f16 and bf16, i32 for i8, u32 for u8) and writes carriers;
//!    [`Kernel::Narrow`] packs them. Only [`Kernel::Map`] and the moves pack by themselves, whole
//!    words at a time, so that no two invocations write to one word.
//! 4. A buffer's size is a multiple of 16 bytes: the last vector of four may extend beyond the last
//!    element.
//! 5. NaN is detected by its bits, and elements are compared as integers, because shader compilers
//!    may assume that there is no NaN.
//! 6. Indices stay inside their buffers and loops terminate for any data: kernels run without
//!    run-time checks.

mod attention;
mod conv;
mod coop;
mod fft;
mod gemm;
mod image;
mod list;
mod map;
mod map_body;
mod moves;
mod naive;
mod pool;
mod prelude;
mod program;
mod radix;
mod rank;
mod reduce;
mod row_map;
mod rows;
mod scan;
mod search;
mod select;
mod sort;
mod template;
mod transpose;
mod wide;

pub use attention::{ATTENTION_COLUMNS, ATTENTION_ROWS, AttentionKernel};
pub use conv::{ConvKernel, ConvPass};
pub use coop::{COOP_DEPTH, COOP_STEP, COOP_TILE, CoopKernel};
pub use fft::{FftKernel, FftLine};
pub use gemm::{Accumulate, Addend, Epilogue, GemmKernel, Load, Tile};
pub use image::{ColorKernel, NormalizeKernel, ResizeKernel};
pub use list::ListKernel;
pub use map::{
    CONSTANTS_MAX as MAP_CONSTANTS_MAX, InputLayout, JOINED_HEADER_WORDS, MAP_NODES_MAX, MapKernel, map_support,
};
pub use map_body::MapBody;
pub use moves::{GatherKernel, MoveKernel};
pub use naive::NaiveGemmKernel;
pub use pool::PoolKernel;
pub use prelude::{carrier, carrier_dtype, with_immediates};
pub use program::ProgramKernel;
pub use radix::{RADIX_DIGITS, RadixKernel, RadixStep};
pub use rank::RankKernel;
pub use reduce::{ReduceForm, ReduceKernel};
pub use row_map::{ROW_MAP_CHUNKS_MAX, RowInput, RowMapFunction, RowMapKernel};
pub use rows::{RowForm, RowKernel, RowOp};
pub use scan::{ScanForm, ScanKernel};
pub use search::{NormKernel, SearchKernel};
pub use select::{SELECT_K_MAX, SelectKernel, SelectSource};
pub use sort::{SORT_BLOCK, SORT_LINE_MAX, SortKernel};
pub use transpose::TransposeKernel;
pub use wide::{WIDE_STEP, WideKernel, WideSource, WideTarget, WideTile};

/// Invocations of a workgroup.
pub const WORKGROUP_SIZE: u32 = 256;

/// The most 32-bit words of a kernel's parameters.
pub const PARAMS_WORDS_MAX: usize = 1024;

/// One kernel with its element types and options fixed. It is the key of pipeline caches, and
/// determines the source.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// A fused elementwise expression.
    Map(MapKernel),
    /// Carriers packed into elements of 8 or 16 bits.
    Narrow(panoply_core::DType),
    /// Elements copied between layouts.
    Move(MoveKernel),
    /// The last two axes exchanged, by tiles.
    Transpose(TransposeKernel),
    /// Elements selected by index.
    Gather(GatherKernel),
    /// Reductions.
    Reduce(ReduceKernel),
    /// Prefix sums and related scans.
    Scan(ScanKernel),
    /// Softmax and layer normalisation.
    Rows(RowKernel),
    /// Values weighted by the softmax of scores.
    Attention(AttentionKernel),
    /// A row function between two expressions.
    RowMap(RowMapKernel),
    /// Matrix products by tiles.
    Gemm(GemmKernel),
    /// Matrix products on matrix units.
    Coop(CoopKernel),
    /// Matrix products one output at a time, for types without vectors of four.
    NaiveGemm(NaiveGemmKernel),
    /// Convolutions as matrix products.
    Conv(ConvKernel),
    /// Matrix products, convolutions and candidates of searches on matrix units, for drivers that
    /// form the matrices themselves.
    Wide(WideKernel),
    /// The windows of a convolution as columns, for [`Kernel::Coop`].
    Columns,
    /// Conversion of images of 16-bit elements to channels-last, for [`Kernel::Wide`].
    ChannelsLast,
    /// The maximum or average of windows.
    Pool(PoolKernel),
    /// The best k of a line.
    Select(SelectKernel),
    /// Scores of all rows for a few queries, and their best k.
    Search(SearchKernel),
    /// Candidates of many queries.
    List(ListKernel),
    /// Conversions between scores and sort keys.
    Rank(RankKernel),
    /// Norms of vectors.
    Norm(NormKernel),
    /// One step of a sort.
    Sort(SortKernel),
    /// One step of a radix sort with eight bits per pass.
    Radix(RadixKernel),
    /// Resized images.
    Resize(ResizeKernel),
    /// Images scaled and shifted channel by channel.
    Normalize(NormalizeKernel),
    /// Colour conversions of images.
    Color(ColorKernel),
    /// One pass of a Fourier transform.
    Fft(FftKernel),
    /// A custom kernel of the caller. The contract above does not apply: its buffers are as long as
    /// its tensors, its groups have three dimensions, and it is compiled with bounds checks.
    Program(ProgramKernel),
}

impl Kernel {
    /// The WGSL text.
    pub fn source(&self) -> String {
        match self {
            Kernel::Map(kernel) => kernel.source(),
            Kernel::Narrow(dtype) => moves::narrow(*dtype),
            Kernel::Move(kernel) => kernel.source(),
            Kernel::Transpose(kernel) => kernel.source(),
            Kernel::Gather(kernel) => kernel.source(),
            Kernel::Reduce(kernel) => kernel.source(),
            Kernel::Scan(kernel) => kernel.source(),
            Kernel::Rows(kernel) => kernel.source(),
            Kernel::Attention(kernel) => kernel.source(),
            Kernel::RowMap(kernel) => kernel.source(),
            Kernel::Gemm(kernel) => kernel.source(),
            Kernel::Coop(kernel) => kernel.source(),
            Kernel::NaiveGemm(kernel) => kernel.source(),
            Kernel::Conv(kernel) => kernel.source(),
            Kernel::Wide(kernel) => kernel.source(),
            Kernel::Columns => conv::columns(),
            Kernel::ChannelsLast => conv::channels_last(),
            Kernel::Pool(kernel) => kernel.source(),
            Kernel::Select(kernel) => kernel.source(),
            Kernel::Search(kernel) => kernel.source(),
            Kernel::List(kernel) => kernel.source(),
            Kernel::Rank(kernel) => kernel.source(),
            Kernel::Norm(kernel) => kernel.source(),
            Kernel::Sort(kernel) => kernel.source(),
            Kernel::Radix(kernel) => kernel.source(),
            Kernel::Resize(kernel) => kernel.source(),
            Kernel::Normalize(kernel) => kernel.source(),
            Kernel::Color(kernel) => kernel.source(),
            Kernel::Fft(kernel) => kernel.source(),
            Kernel::Program(kernel) => kernel.source(),
        }
    }
}
