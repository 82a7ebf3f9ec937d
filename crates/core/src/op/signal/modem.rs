//! Modulate and Demodulate: between symbols and points of the complex plane.

use std::f32::consts::TAU;
use std::sync::Arc;

use crate::dtype::{Complex64, DType};
use crate::error::{Error, Result};
use crate::op::{AnswerTypes, CostClass, Describe};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// The points of symbols. The named constellations are Gray-coded, so that neighbours differ in one
/// bit, and have a mean power of 1.
///
/// In a square constellation the higher half of a symbol's bits selects the real part, the lower
/// half the imaginary part.
#[derive(Clone, Debug, PartialEq)]
pub enum Constellation {
    /// One bit per symbol.
    Bpsk,
    /// Two bits per symbol.
    Qpsk,
    /// Three bits per symbol, on a circle.
    Psk8,
    /// Four bits per symbol.
    Qam16,
    /// Six bits per symbol.
    Qam64,
    /// Eight bits per symbol.
    Qam256,
    /// Custom points: 2, 4, 8 … or 256. Made by [`Constellation::custom`].
    Custom(Arc<[Complex64]>),
}

impl Constellation {
    /// The named constellations.
    pub const ALL: [Constellation; 6] = [
        Constellation::Bpsk,
        Constellation::Qpsk,
        Constellation::Psk8,
        Constellation::Qam16,
        Constellation::Qam64,
        Constellation::Qam256,
    ];

    /// Makes a constellation of custom points, beginning with that of symbol 0. The points are
    /// finite, and their number is a power of two from 2 to 256.
    pub fn custom(points: &[Complex64]) -> Result<Constellation> {
        let constellation = Constellation::Custom(points.into());
        constellation.check()?;
        Ok(constellation)
    }

    /// The name used in benchmarks and metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Constellation::Bpsk => "bpsk",
            Constellation::Qpsk => "qpsk",
            Constellation::Psk8 => "psk8",
            Constellation::Qam16 => "qam16",
            Constellation::Qam64 => "qam64",
            Constellation::Qam256 => "qam256",
            Constellation::Custom(_) => "custom",
        }
    }

    /// Number of bits in a symbol.
    pub fn bits(&self) -> usize {
        match self {
            Constellation::Bpsk => 1,
            Constellation::Qpsk => 2,
            Constellation::Psk8 => 3,
            Constellation::Qam16 => 4,
            Constellation::Qam64 => 6,
            Constellation::Qam256 => 8,
            Constellation::Custom(points) => points.len().max(1).ilog2() as usize,
        }
    }

    /// Half the distance between neighbours in a square constellation; 1 for all others.
    pub fn unit(&self) -> f32 {
        match self {
            Constellation::Qpsk | Constellation::Qam16 | Constellation::Qam64 | Constellation::Qam256 => {
                let side = (1_u32 << (self.bits() / 2)) as f64;
                (1.5 / (side * side - 1.0)).sqrt() as f32
            }
            _ => 1.0,
        }
    }

    /// The point of each symbol.
    pub fn points(&self) -> Vec<Complex64> {
        match self {
            Constellation::Custom(points) => points.to_vec(),
            Constellation::Bpsk => vec![Complex64::new(-1.0, 0.0), Complex64::new(1.0, 0.0)],
            Constellation::Psk8 => {
                (0..8).map(|symbol| Complex64::from_polar(1.0, TAU * level_of(symbol) as f32 / 8.0)).collect()
            }
            square => {
                let (half, unit) = (square.bits() / 2, square.unit());
                let last = (1 << half) - 1;
                let place = |bits: usize| unit * (2.0 * level_of(bits) as f32 - last as f32);
                (0..1 << (2 * half)).map(|symbol| Complex64::new(place(symbol >> half), place(symbol & last))).collect()
            }
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        let Constellation::Custom(points) = self else { return Ok(()) };
        if !(2..=256).contains(&points.len()) || !points.len().is_power_of_two() {
            let expected = "a power of two of them, from 2 to 256";
            return Err(Error::invalid("constellation: points", expected, points.len()));
        }
        match points.iter().find(|point| !(point.re.is_finite() && point.im.is_finite())) {
            Some(point) => Err(Error::invalid("constellation: points", "finite numbers", point)),
            None => Ok(()),
        }
    }
}

/// The level of a Gray code.
fn level_of(gray: usize) -> usize {
    gray ^ gray >> 1 ^ gray >> 2 ^ gray >> 3 ^ gray >> 4 ^ gray >> 5 ^ gray >> 6 ^ gray >> 7
}

/// The kind of a demodulator's output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Decision {
    /// The symbol with the nearest point, as u8.
    Hard,
    /// For each bit, the highest first, the log-likelihood ratio of 0 over 1, as f32.
    Soft {
        /// The variance of the noise, of the real and imaginary parts together.
        noise: f32,
    },
}

/// Maps symbols to points: from u8 to c64 of the same shape. A symbol without a point is an error.
#[derive(Clone, Debug)]
pub struct Modulate {
    /// The points.
    pub constellation: Constellation,
    /// The symbols.
    pub input: Tensor,
}

/// Maps received points, c64 of any shape, to symbols or bits. [`Decision::Hard`] gives u8 of the
/// same shape. [`Decision::Soft`] gives f32 with one more axis, the bits. Soft decisions use the
/// nearest point for each value of a bit (max-log). For a NaN the hard decision is unspecified, and
/// the soft bits of that symbol alone are NaN or infinite.
#[derive(Clone, Debug)]
pub struct Demodulate {
    /// The points.
    pub constellation: Constellation,
    /// The received points.
    pub input: Tensor,
    /// The kind of output.
    pub decision: Decision,
}

impl Modulate {
    /// Maps symbols to points.
    pub fn new(constellation: Constellation, input: &Tensor) -> Modulate {
        Modulate { constellation, input: input.clone() }
    }
}

impl Demodulate {
    /// Decides for the nearest symbols.
    pub fn hard(constellation: Constellation, input: &Tensor) -> Demodulate {
        Demodulate { constellation, input: input.clone(), decision: Decision::Hard }
    }

    /// Computes the log-likelihood ratios of the bits, for noise of this variance.
    pub fn soft(constellation: Constellation, input: &Tensor, noise: f32) -> Demodulate {
        Demodulate { constellation, input: input.clone(), decision: Decision::Soft { noise } }
    }

    /// The output's type and shape.
    pub fn output_type(&self) -> Result<(DType, Shape)> {
        match self.decision {
            Decision::Hard => Ok((DType::U8, *self.input.shape())),
            Decision::Soft { .. } => {
                let mut dims = self.input.shape().to_vec();
                dims.push(self.constellation.bits());
                Ok((DType::F32, Shape::new(dims)?))
            }
        }
    }
}

impl Describe for Modulate {
    fn name(&self) -> &'static str {
        "modulate"
    }

    fn validate(&self) -> Result<()> {
        self.constellation.check()?;
        match self.input.dtype() {
            DType::U8 => Ok(()),
            got => Err(Error::DTypeMismatch { what: "modulate: input", expected: DType::U8, got }),
        }
    }

    crate::parts!(input);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::Tensor(DType::Complex64, *self.input.shape()))
    }
}

impl Describe for Demodulate {
    fn name(&self) -> &'static str {
        "demodulate"
    }

    fn validate(&self) -> Result<()> {
        self.constellation.check()?;
        if self.input.dtype() != DType::Complex64 {
            let (expected, got) = (DType::Complex64, self.input.dtype());
            return Err(Error::DTypeMismatch { what: "demodulate: input", expected, got });
        }
        match self.decision {
            Decision::Soft { noise } if !(noise > 0.0 && noise.is_finite() && (1.0 / noise).is_finite()) => {
                Err(Error::invalid("demodulate: variance of the noise", "a positive finite number", noise))
            }
            _ => self.output_type().map(drop),
        }
    }

    crate::parts!(input);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        let (dtype, shape) = self.output_type()?;
        Ok(AnswerTypes::Tensor(dtype, shape))
    }

    fn cost_class(&self) -> CostClass {
        CostClass::labelled(self.constellation.name())
    }
}
