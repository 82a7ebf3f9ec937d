//! Attention by tiles, in `attention.wgsl`.
//!
//! Parameters: total heads of queries, tiles of [`ATTENTION_ROWS`] queries, parts of
//! [`ATTENTION_COLUMNS`] columns, queries, keys, elements of a query and of a value, 1 for a causal
//! mask, the scale; offset and row stride of queries, keys and values; offset, row and column
//! stride of the mask; then `rank` dimensions of the heads, with the strides of all four tensors
//! for each.

use panoply_core::DType;

use super::template::Template;

/// Queries per workgroup.
pub const ATTENTION_ROWS: usize = 64;
/// Columns of the values per workgroup.
pub const ATTENTION_COLUMNS: usize = 64;

/// Attention of f32, f16 or bf16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionKernel {
    /// The type of queries, keys and values.
    pub dtype: DType,
    /// The type of the mask, if there is one.
    pub mask: Option<DType>,
    /// Number of dimensions of the heads.
    pub rank: u8,
}

impl AttentionKernel {
    pub(super) fn source(&self) -> String {
        let template = Template::new(include_str!("attention.wgsl")).dtype("TYPE", self.dtype);
        let template = template.dtype("MASK", self.mask.unwrap_or(DType::F32)).flag("MASKED", self.mask.is_some());
        template.set("RANK", self.rank).text()
    }
}
