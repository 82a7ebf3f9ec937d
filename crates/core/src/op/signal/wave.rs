//! ModulateWave and DemodulateWave: modulation with more than one sample per symbol, or of a real
//! message.

use super::checks::{complex_only, line_len, of_type, positive, within};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::{AnswerTypes, CostClass, Describe};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// The most samples of a symbol, and the most carriers of a symbol.
pub const WAVE_LEN_MAX: usize = 1 << 16;

/// The modulation of complex samples by a message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Wave {
    /// Symbols (u8) as tones with continuous phase: the frequency of symbol `s` of `m = 2^bits` is
    /// `spacing·(s - (m-1)/2)` cycles per sample. The demodulator chooses the tone with the most
    /// energy.
    Fsk {
        /// Number of bits in a symbol, 1 to 4.
        bits: usize,
        /// Number of samples per symbol.
        samples: usize,
        /// Distance of neighbouring tones in cycles per sample.
        spacing: f64,
    },
    /// A real message (f32) as the amplitude, `1 + depth·m`. The demodulator computes
    /// `(|x| - 1)/depth`.
    Am {
        /// Modulation depth.
        depth: f64,
    },
    /// A real message (f32) as the frequency, `deviation·m` cycles per sample. The demodulator
    /// measures the angle between each sample and the one before it, within half a cycle. The first
    /// sample is compared with 1.
    Fm {
        /// Cycles per sample for a message of 1.
        deviation: f64,
    },
    /// Points (c64) `[…, symbols, carriers]` as parallel carriers, with a cyclic prefix before each
    /// symbol: an inverse transform, scaled by `1/√carriers` in both directions.
    Ofdm {
        /// Number of carriers, and of samples of a symbol without its prefix.
        carriers: usize,
        /// Number of samples of the prefix, at most the number of carriers.
        prefix: usize,
    },
}

impl Wave {
    /// The name used in benchmarks and metrics.
    pub const fn name(&self) -> &'static str {
        match self {
            Wave::Fsk { .. } => "fsk",
            Wave::Am { .. } => "am",
            Wave::Fm { .. } => "fm",
            Wave::Ofdm { .. } => "ofdm",
        }
    }

    /// Element type of a message.
    pub const fn message_dtype(&self) -> DType {
        match self {
            Wave::Fsk { .. } => DType::U8,
            Wave::Am { .. } | Wave::Fm { .. } => DType::F32,
            Wave::Ofdm { .. } => DType::Complex64,
        }
    }

    /// Number of samples per symbol.
    pub const fn symbol_samples(&self) -> usize {
        match self {
            Wave::Fsk { samples, .. } => *samples,
            Wave::Am { .. } | Wave::Fm { .. } => 1,
            Wave::Ofdm { carriers, prefix } => *carriers + *prefix,
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        match *self {
            Wave::Fsk { bits, samples, spacing } => {
                within(bits, 1, 4, "fsk: bits of a symbol")?;
                within(samples, 1, WAVE_LEN_MAX, "fsk: samples of a symbol")?;
                positive(spacing, "fsk: spacing of tones")
            }
            Wave::Am { depth } => positive(depth, "am: depth"),
            Wave::Fm { deviation } => positive(deviation, "fm: deviation"),
            Wave::Ofdm { carriers, prefix } => {
                within(carriers, 1, WAVE_LEN_MAX, "ofdm: carriers")?;
                within(prefix, 0, carriers, "ofdm: samples of the prefix")
            }
        }
    }
}

/// Modulates messages to waves of c64, along the last axis, or along the last two for
/// [`Wave::Ofdm`].
#[derive(Clone, Debug)]
pub struct ModulateWave {
    /// The modulation.
    pub wave: Wave,
    /// The messages.
    pub input: Tensor,
}

/// Demodulates waves of c64 to messages. A line consists of whole symbols.
#[derive(Clone, Debug)]
pub struct DemodulateWave {
    /// The modulation.
    pub wave: Wave,
    /// The waves.
    pub input: Tensor,
}

impl ModulateWave {
    /// Modulates messages.
    pub fn new(wave: Wave, input: &Tensor) -> ModulateWave {
        ModulateWave { wave, input: input.clone() }
    }

    /// The output's shape.
    pub fn output_shape(&self) -> Result<Shape> {
        let len = line_len(&self.input, "modulate_wave: input")?;
        let (dims, last) = (self.input.shape(), self.input.shape().rank() - 1);
        let (symbols, line) = match self.wave {
            Wave::Ofdm { carriers, .. } => {
                if dims.rank() < 2 {
                    let what = "modulate_wave: symbols of carriers";
                    return Err(Error::RankMismatch { what, expected: "at least 2".into(), got: dims.rank() });
                }
                if len != carriers {
                    let expected = dims.with_dim(last, carriers)?.to_vec();
                    return Err(Error::ShapeMismatch { what: "modulate_wave: input", expected, got: dims.to_vec() });
                }
                (dims[last - 1], Shape::new(&dims[..last])?)
            }
            _ => (len, *dims),
        };
        let samples = symbols.checked_mul(self.wave.symbol_samples()).ok_or_else(|| Error::SizeOverflow {
            what: "modulate_wave: output",
            got: vec![symbols, self.wave.symbol_samples()],
            limit: isize::MAX as usize,
        })?;
        line.with_dim(line.rank() - 1, samples)
    }
}

impl DemodulateWave {
    /// Demodulates waves.
    pub fn new(wave: Wave, input: &Tensor) -> DemodulateWave {
        DemodulateWave { wave, input: input.clone() }
    }

    /// The output's shape.
    pub fn output_shape(&self) -> Result<Shape> {
        let (len, samples) = (line_len(&self.input, "demodulate_wave: input")?, self.wave.symbol_samples().max(1));
        if !len.is_multiple_of(samples) {
            let expected = format!("a multiple of {samples}, the samples of a symbol");
            return Err(Error::invalid("demodulate_wave: samples of a line", expected, len));
        }
        let shape = self.input.shape().with_dim(self.input.shape().rank() - 1, len / samples)?;
        match self.wave {
            Wave::Ofdm { carriers, .. } => shape.joined(&[carriers]),
            _ => Ok(shape),
        }
    }
}

impl Describe for ModulateWave {
    fn name(&self) -> &'static str {
        "modulate_wave"
    }

    fn validate(&self) -> Result<()> {
        self.wave.check()?;
        of_type(&self.input, self.wave.message_dtype(), "modulate_wave: input")?;
        self.output_shape().map(drop)
    }

    crate::parts!(input);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::Tensor(DType::Complex64, self.output_shape()?))
    }

    fn work(&self) -> u64 {
        (self.input.elements() as u64).saturating_mul(self.wave.symbol_samples().max(1) as u64)
    }

    fn cost_class(&self) -> CostClass {
        CostClass::labelled(self.wave.name())
    }
}

impl Describe for DemodulateWave {
    fn name(&self) -> &'static str {
        "demodulate_wave"
    }

    fn validate(&self) -> Result<()> {
        self.wave.check()?;
        complex_only(&self.input, "demodulate_wave: input")?;
        self.output_shape().map(drop)
    }

    crate::parts!(input);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::Tensor(self.wave.message_dtype(), self.output_shape()?))
    }

    fn cost_class(&self) -> CostClass {
        CostClass::labelled(self.wave.name())
    }
}
