//! Cases of the signal domain.

mod fft;

use super::{Amount, Case, MI, Place, Runner, Scale, f32s, scale_of};
use fft::FftCase;

/// Every case of the domain.
pub const CASES: &[&dyn Case] = &[
    &FftCase { lines: 1024, len: 1024 },
    &FftCase { lines: 4096, len: 1024 },
    &FftCase { lines: 1, len: MI },
    &FftCase { lines: 65_536, len: 1024 },
    &FftCase { lines: 16_384, len: 4096 },
    &FftCase { lines: 64, len: MI },
];
