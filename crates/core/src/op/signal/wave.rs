//! ModulateWave and DemodulateWave: messages that become more than one sample a symbol.

use super::checks::{complex_only, line_len, of_type, positive, tensors, within};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::{CostClass, Describe};
use crate::part::{PartMut, PartRef};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// The most samples of a symbol, and the most carriers of one.
pub const WAVE_LEN_MAX: usize = 1 << 16;

/// How a message becomes a wave of complex samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Wave {
    /// Symbols (u8) as tones, without a jump between them: symbol `s` of `m = 2^bits` turns by `spacing·(s - (m-1)/2)` each of its samples.
    /// What comes out is the tone with the most energy.
    Fsk {
        /// Bits of a symbol, 1 to 4.
        bits: usize,
        /// Samples of a symbol.
        samples: usize,
        /// Turns a sample between neighbouring tones.
        spacing: f64,
    },
    /// A real message (f32) as the size of samples, `1 + depth·m`; back from it, `(|x| - 1)/depth`.
    Am {
        /// How deep.
        depth: f64,
    },
    /// A real message (f32) as frequency: the sample turns by `deviation·m` more each time. Back from it, by how much each sample is turned from
    /// the one before it, the first from 1; within half a turn.
    Fm {
        /// Turns a sample for a message of 1.
        deviation: f64,
    },
    /// Points (c64) `[…, symbols, carriers]` as carriers side by side, with the end of each symbol once more before it: an inverse transform, scaled by
    /// `1/√carriers` both ways.
    Ofdm {
        /// How many carriers, and samples of a symbol without its prefix.
        carriers: usize,
        /// Samples of the prefix, at most as many.
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

    /// The type of a message.
    pub const fn message_dtype(&self) -> DType {
        match self {
            Wave::Fsk { .. } => DType::U8,
            Wave::Am { .. } | Wave::Fm { .. } => DType::F32,
            Wave::Ofdm { .. } => DType::Complex64,
        }
    }

    /// Samples of a symbol.
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

/// From messages to waves of c64, along the last axis, or for [`Wave::Ofdm`] the last two.
#[derive(Clone, Debug)]
pub struct ModulateWave {
    /// How.
    pub wave: Wave,
    /// The messages.
    pub input: Tensor,
}

/// From waves of c64 to messages. Samples are those of whole symbols, the first of which begins with the line.
#[derive(Clone, Debug)]
pub struct DemodulateWave {
    /// How.
    pub wave: Wave,
    /// The waves.
    pub input: Tensor,
}

impl ModulateWave {
    /// The waves of messages.
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
    /// The messages of waves.
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

    tensors!(input);

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

    tensors!(input);

    fn cost_class(&self) -> CostClass {
        CostClass::labelled(self.wave.name())
    }
}
