//! Pool2d, in `pool.wgsl`: one invocation per output element.
//!
//! Parameters: planes, height and width of input, kernel, stride and output, padding at top and
//! left, the offset.

use panoply_core::DType;
use panoply_core::op::compute::PoolKind;

use super::template::Template;

/// A pool of f32, f16 or bf16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PoolKernel {
    /// The type of the elements.
    pub dtype: DType,
    /// The reduction of a window.
    pub kind: PoolKind,
}

impl PoolKernel {
    pub(super) fn source(&self) -> String {
        let (kind, count_padding) = match self.kind {
            PoolKind::Max => ("Max", false),
            PoolKind::Average { count_padding } => ("Average", count_padding),
        };
        let template = Template::new(include_str!("pool.wgsl")).dtype("TYPE", self.dtype);
        template.set("KIND", kind).flag("COUNT_PADDING", count_padding).text()
    }
}
