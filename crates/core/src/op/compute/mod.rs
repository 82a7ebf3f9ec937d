//! The compute domain: arithmetic on tensors. Each op has a file with its struct, builder methods,
//! checks and output shape. `list` connects the ops.

use super::axis;

mod activation;
mod attention;
mod color_convert;
mod conv2d;
mod conv2d_backward;
mod conv_shape;
mod gather;
mod kernel;
mod layernorm;
mod map;
mod matmul;
mod normalize;
mod pool2d;
mod reduce;
mod resize;
mod row_map;
mod scan;
mod search;
mod softmax;
mod sort;
mod topk;
mod transfer;
mod transpose;

pub use super::list::ComputeOp;
pub use activation::Activation;
pub use attention::{Attention, AttentionShape};
pub use color_convert::{ColorConvert, ColorFormat, ColorRange, ColorStandard};
pub use conv_shape::{ConvOptions, ConvProduct, ConvShape};
pub use conv2d::Conv2d;
pub use conv2d_backward::{Conv2dBackwardInput, Conv2dBackwardWeight};
pub use gather::Gather;
pub use kernel::{
    KERNEL_BLOCK_BYTES_MAX, KERNEL_BLOCK_THREADS_MAX, KERNEL_NAME_BYTES_MAX, KERNEL_PARAMETERS_MAX,
    KERNEL_SOURCE_BYTES_MAX, Kernel, KernelBuilder, KernelCall, KernelOutput, KernelProgram, KernelSource, LaunchSize,
    Scalar, ScalarType,
};
pub use layernorm::LayerNorm;
pub use map::Map;
pub use matmul::{MatMul, MatMulShape, Precision};
pub use normalize::Normalize;
pub use pool2d::{Pool2d, PoolKind, PoolShape};
pub use reduce::{Reduce, Reduction};
pub use resize::{ImageLayout, RESIZE_ROW_ELEMENTS_MAX, Resize, ResizeMode};
pub use row_map::{RowFunction, RowMap};
pub use scan::{Scan, ScanKind};
pub use search::{Metric, Neighbors, Search};
pub use softmax::Softmax;
pub use sort::{ArgSort, Sort, SortPairs};
pub use topk::TopK;
pub use transfer::Transfer;
pub use transpose::Transpose;
