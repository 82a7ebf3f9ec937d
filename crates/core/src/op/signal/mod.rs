//! The signal domain: sampled signals. One file per op, each with the op's struct, its builder methods, its checks and
//! its output's shape; `list` connects them.

use super::axis;

mod fft;
mod ifft;

pub use super::list::SignalOp;
pub use fft::{Fft, half_spectrum_len};
pub use ifft::Ifft;
