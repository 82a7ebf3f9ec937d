//! The compute domain: arithmetic on tensors. One file per op, each with the op's struct, its builder methods, its
//! checks and its output's shape; the list below is all that connects them.

use super::Value;
use super::axis;
use super::domain_ops::domain_ops;
use crate::tensor::Tensor;

mod activation;
mod color_convert;
mod conv2d;
mod conv2d_backward;
mod conv_shape;
mod gather;
mod layernorm;
mod map;
mod matmul;
mod normalize;
mod pool2d;
mod reduce;
mod resize;
mod scan;
mod search;
mod softmax;
mod sort;
mod topk;
mod transfer;
mod transpose;

pub use activation::Activation;
pub use color_convert::{ColorConvert, ColorFormat, ColorRange, ColorStandard};
pub use conv_shape::{ConvOptions, ConvShape};
pub use conv2d::Conv2d;
pub use conv2d_backward::{Conv2dBackwardInput, Conv2dBackwardWeight};
pub use gather::Gather;
pub use layernorm::LayerNorm;
pub use map::Map;
pub use matmul::{MatMul, MatMulShape, Precision};
pub use normalize::Normalize;
pub use pool2d::{Pool2d, PoolKind, PoolShape};
pub use reduce::{Reduce, Reduction};
pub use resize::{ImageLayout, RESIZE_ROW_ELEMENTS_MAX, Resize, ResizeMode};
pub use scan::{Scan, ScanKind};
pub use search::{Metric, Neighbors, Search};
pub use softmax::Softmax;
pub use sort::{ArgSort, Sort, SortPairs};
pub use topk::TopK;
pub use transfer::Transfer;
pub use transpose::Transpose;

domain_ops! {
    /// An op of the compute domain.
    ComputeOp in Compute;
    ArgSort => Tensor, Value::into_tensor;
    ColorConvert => Tensor, Value::into_tensor;
    Conv2d => Tensor, Value::into_tensor;
    Conv2dBackwardInput => Tensor, Value::into_tensor;
    Conv2dBackwardWeight => Tensor, Value::into_tensor;
    Gather => Tensor, Value::into_tensor;
    LayerNorm => Tensor, Value::into_tensor;
    Map => Tensor, Value::into_tensor;
    MatMul => Tensor, Value::into_tensor;
    Normalize => Tensor, Value::into_tensor;
    Pool2d => Tensor, Value::into_tensor;
    Reduce => Tensor, Value::into_tensor;
    Resize => Tensor, Value::into_tensor;
    Scan => Tensor, Value::into_tensor;
    Search => Neighbors, Neighbors::from_value;
    Softmax => Tensor, Value::into_tensor;
    Sort => Tensor, Value::into_tensor;
    SortPairs => (Tensor, Tensor), Value::into_pair;
    TopK => (Tensor, Tensor), Value::into_pair;
    Transfer => Tensor, Value::into_tensor;
    Transpose => Tensor, Value::into_tensor;
}
