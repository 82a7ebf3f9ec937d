//! Kernels in WGSL, for wgpu and through it for Vulkan, Metal and DX12, or compiled directly to SPIR-V.
//!
//! A kernel's text stands in a `.wgsl` file of this folder, with a few directives that `template` describes; the `.rs` file of its
//! family has the options that become values of the template. The texts of maps are generated (`map`, `map_body`).
//!
//! The contract between a kernel and whoever runs it:
//!
//! 1. Group 0, binding 0 is a uniform buffer of 32-bit parameters in the order that the kernel's file documents; they
//!    take at most [`PARAMS_WORDS_MAX`] words. Where a device takes so many words with the dispatch itself, the same text
//!    declares them so ([`with_immediates`]). Group 1 holds storage buffers: first the written ones, then those read.
//! 2. A workgroup has [`WORKGROUP_SIZE`] invocations, but for [`Kernel::Coop`], which has half, and [`Kernel::Wide`]. Workgroups are counted along one line that may be folded into two
//!    dimensions; workgroups behind the end of the work do nothing.
//! 3. Elements of 8 and 16 bits lie packed in 32-bit words. A kernel reads any type, computes in the type's *carrier*
//!    (f32 for f16 and bf16, i32 for i8, u32 for u8) and writes carriers; [`Kernel::Narrow`] packs them. Only [`Kernel::Map`]
//!    and the moves pack by themselves, whole words at a time, so that no two invocations write to one word.
//! 4. A buffer's size is a multiple of 16 bytes: the last vector of four may reach behind the last element.
//! 5. NaN is told by its bits, and orders are orders of integers: shader compilers may assume that there is no NaN.
//! 6. Indices stay inside their buffers and loops end, whatever the data: kernels run without run-time checks.

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

/// The most 32-bit words that a kernel's parameters take.
pub const PARAMS_WORDS_MAX: usize = 1024;

/// One kernel with its element types and options fixed: the key of pipeline caches and the source behind it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// A fused elementwise expression.
    Map(MapKernel),
    /// Carriers packed into elements of 8 or 16 bits.
    Narrow(panoply_core::DType),
    /// Elements in another arrangement.
    Move(MoveKernel),
    /// The last two axes exchanged, by tiles.
    Transpose(TransposeKernel),
    /// Elements picked by index.
    Gather(GatherKernel),
    /// Many elements become one.
    Reduce(ReduceKernel),
    /// Running sums and the like.
    Scan(ScanKernel),
    /// Softmax and layer normalisation.
    Rows(RowKernel),
    /// Values weighted by the softmax of scores.
    Attention(AttentionKernel),
    /// A function of lines between two expressions.
    RowMap(RowMapKernel),
    /// Matrix products by tiles.
    Gemm(GemmKernel),
    /// Matrix products on matrix units.
    Coop(CoopKernel),
    /// Matrix products one output at a time, for the types that have no vectors of four.
    NaiveGemm(NaiveGemmKernel),
    /// Convolutions as matrix products.
    Conv(ConvKernel),
    /// Matrix products, convolutions and candidates of searches on matrix units, where the driver makes the matrices.
    Wide(WideKernel),
    /// The windows of a convolution written out, for [`Kernel::Coop`].
    Columns,
    /// Images of 16-bit elements with their channels last, for [`Kernel::Wide`].
    ChannelsLast,
    /// The maximum or average of windows.
    Pool(PoolKernel),
    /// The best k of a line.
    Select(SelectKernel),
    /// Scores of all rows for a few queries, with their best k.
    Search(SearchKernel),
    /// Candidates of many queries.
    List(ListKernel),
    /// Scores as keys to sort by, and back.
    Rank(RankKernel),
    /// Lengths of vectors.
    Norm(NormKernel),
    /// One step of a sort.
    Sort(SortKernel),
    /// One step of a sort by eight bits at a time.
    Radix(RadixKernel),
    /// Images of another size.
    Resize(ResizeKernel),
    /// Images scaled and shifted channel by channel.
    Normalize(NormalizeKernel),
    /// Images in another arrangement of colours.
    Color(ColorKernel),
    /// One pass of a Fourier transform.
    Fft(FftKernel),
    /// A program of the caller's own, to which the contract above does not apply: its buffers are as long as its tensors,
    /// its groups have three dimensions, and it is compiled with checks of bounds.
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
