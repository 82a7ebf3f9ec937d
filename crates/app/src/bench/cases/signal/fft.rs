//! Fourier transforms.

use panoply::DType;
use panoply::prelude::Fft;

use super::{Amount, Case, Place, Runner, Scale, f32s, scale_of};

/// The spectra of lines of complex numbers.
pub struct FftCase {
    pub lines: usize,
    pub len: usize,
}

impl Case for FftCase {
    fn name(&self) -> String {
        format!("fft/c64/{}x{}", self.lines, self.len)
    }

    /// The spectrum is as large as the signal, and a complex number is two f32.
    fn amount(&self) -> Amount {
        f32s(4 * self.lines * self.len)
    }

    fn scale(&self) -> Scale {
        scale_of(self.lines * self.len)
    }

    fn prepare(&self, place: &Place) -> panoply::Result<Runner> {
        place.repeat(Fft::new(&place.normals().tensor_of(DType::Complex64, [self.lines, self.len])?))
    }
}
