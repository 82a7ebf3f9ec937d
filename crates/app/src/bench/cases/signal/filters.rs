//! Cases of filters.

use panoply::DType;
use panoply::signal::{Band, Convolve, Fir, Iir, Prototype, recursive};

use crate::bench::cases::case::{Amount, Case, Scale, count_name, f32s, scale_of};
use crate::bench::place::{BenchDevice, Runner};

/// One long signal through a FIR filter with real taps.
pub struct FirCase {
    pub dtype: DType,
    pub samples: usize,
    pub taps: usize,
}

/// Signals through an IIR low-pass filter with four sections.
pub struct IirCase {
    pub lines: usize,
    pub len: usize,
}

/// Cross-correlation of a signal of complex samples with a pattern.
pub struct CorrelateCase {
    pub samples: usize,
    pub pattern: usize,
}

impl Case for FirCase {
    fn name(&self) -> String {
        format!("fir/{}/{}/t{}", self.dtype.name(), count_name(self.samples), self.taps)
    }

    /// Each sample is read once and written once.
    fn amount(&self) -> Amount {
        f32s(2 * self.samples * self.dtype.size_bytes() / 4)
    }

    fn scale(&self) -> Scale {
        scale_of(self.samples)
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        let mut normals = place.normals();
        let input = normals.tensor_of(self.dtype, [self.samples])?;
        place.repeat(Fir::new(&input, &normals.tensor_of(DType::F32, [self.taps])?))
    }
}

impl Case for IirCase {
    fn name(&self) -> String {
        match self.lines {
            1 => format!("iir/f32/{}/order8", count_name(self.len)),
            lines => format!("iir/f32/{lines}x{}/order8", self.len),
        }
    }

    fn amount(&self) -> Amount {
        f32s(2 * self.lines * self.len)
    }

    fn scale(&self) -> Scale {
        scale_of(self.lines * self.len)
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        let input = place.normals().tensor_of(DType::F32, [self.lines, self.len])?;
        place.repeat(Iir::new(&input, recursive(Prototype::Butterworth, 8, Band::LowPass(0.2))?))
    }
}

impl Case for CorrelateCase {
    fn name(&self) -> String {
        format!("correlate/c64/{}/t{}", count_name(self.samples), self.pattern)
    }

    fn amount(&self) -> Amount {
        f32s(4 * self.samples)
    }

    fn scale(&self) -> Scale {
        scale_of(self.samples)
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        let mut normals = place.normals();
        let input = normals.tensor_of(DType::Complex64, [self.samples])?;
        place.repeat(Convolve::correlation(&input, &normals.tensor_of(DType::Complex64, [self.pattern])?))
    }
}
