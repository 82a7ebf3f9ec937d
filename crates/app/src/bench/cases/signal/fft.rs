//! Cases of Fourier transforms.

use panoply::DType;
use panoply::prelude::{Fft, Ifft};

use crate::bench::cases::case::{Amount, Case, Scale, f32s, scale_of};
use crate::bench::place::{BenchDevice, Runner};

/// The spectra of complex signals, one per line.
pub struct FftCase {
    pub lines: usize,
    pub len: usize,
}

/// The half spectra of real signals, one per line.
pub struct RealFftCase {
    pub lines: usize,
    pub len: usize,
}

/// The inverse transforms of spectra, one per line.
pub struct IfftCase {
    pub lines: usize,
    pub len: usize,
}

impl Case for FftCase {
    fn name(&self) -> String {
        format!("fft/c64/{}x{}", self.lines, self.len)
    }

    /// The spectrum is as large as the signal, and a complex element is two f32.
    fn amount(&self) -> Amount {
        f32s(4 * self.lines * self.len)
    }

    fn scale(&self) -> Scale {
        scale_of(self.lines * self.len)
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        place.repeat(Fft::new(&place.normals().tensor_of(DType::Complex64, [self.lines, self.len])?))
    }
}

impl Case for RealFftCase {
    fn name(&self) -> String {
        format!("fft/f32/{}x{}", self.lines, self.len)
    }

    /// The half spectrum is as large as the signal.
    fn amount(&self) -> Amount {
        f32s(2 * self.lines * self.len)
    }

    fn scale(&self) -> Scale {
        scale_of(self.lines * self.len)
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        place.repeat(Fft::new(&place.normals().tensor_of(DType::F32, [self.lines, self.len])?))
    }
}

impl Case for IfftCase {
    fn name(&self) -> String {
        format!("ifft/c64/{}x{}", self.lines, self.len)
    }

    fn amount(&self) -> Amount {
        f32s(4 * self.lines * self.len)
    }

    fn scale(&self) -> Scale {
        scale_of(self.lines * self.len)
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        place.repeat(Ifft::new(&place.normals().tensor_of(DType::Complex64, [self.lines, self.len])?))
    }
}
