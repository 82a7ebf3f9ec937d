//! The signal domain: sampled signals. One file per op, each with the op's struct, its builder methods, its checks and
//! its output's shape; the list below is all that connects them.

use super::Value;
use super::axis;
use super::domain_ops::domain_ops;
use crate::tensor::Tensor;

mod fft;
mod ifft;

pub use fft::{Fft, half_spectrum_len};
pub use ifft::Ifft;

domain_ops! {
    /// An op of the signal domain.
    SignalOp in Signal;
    Fft => Tensor, Value::into_tensor;
    Ifft => Tensor, Value::into_tensor;
}
