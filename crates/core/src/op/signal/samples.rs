//! ReadSamples: decodes the sample formats of radios and files.

use super::checks::{line_len, of_type};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::{CostClass, Describe};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// The encoding of a number in bytes. Integers are scaled to the range from -1 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SampleFormat {
    /// One unsigned byte; 128 is zero.
    U8,
    /// One signed byte.
    I8,
    /// Two bytes, little-endian.
    I16,
    /// Two bytes, big-endian.
    I16Be,
    /// Three bytes, little-endian.
    I24,
    /// Four bytes, little-endian.
    I32,
    /// IEEE 754 single precision, little-endian.
    F32,
}

impl SampleFormat {
    /// Every format.
    pub const ALL: [SampleFormat; 7] = [
        SampleFormat::U8,
        SampleFormat::I8,
        SampleFormat::I16,
        SampleFormat::I16Be,
        SampleFormat::I24,
        SampleFormat::I32,
        SampleFormat::F32,
    ];

    /// Number of bytes in a number.
    pub const fn size_bytes(self) -> usize {
        match self {
            SampleFormat::U8 | SampleFormat::I8 => 1,
            SampleFormat::I16 | SampleFormat::I16Be => 2,
            SampleFormat::I24 => 3,
            SampleFormat::I32 | SampleFormat::F32 => 4,
        }
    }

    /// The name used in benchmarks and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            SampleFormat::U8 => "u8",
            SampleFormat::I8 => "i8",
            SampleFormat::I16 => "i16",
            SampleFormat::I16Be => "i16be",
            SampleFormat::I24 => "i24",
            SampleFormat::I32 => "i32",
            SampleFormat::F32 => "f32",
        }
    }
}

/// Decodes the numbers of samples from bytes (u8) along the last axis: f32, or c64 of two numbers
/// each with [`ReadSamples::complex`].
#[derive(Clone, Debug)]
pub struct ReadSamples {
    /// The encoding of a number.
    pub format: SampleFormat,
    /// The bytes.
    pub input: Tensor,
    /// Whether two numbers form one complex sample.
    pub complex: bool,
}

impl ReadSamples {
    /// Decodes real samples.
    pub fn new(format: SampleFormat, input: &Tensor) -> ReadSamples {
        ReadSamples { format, input: input.clone(), complex: false }
    }

    /// Decodes complex samples.
    pub fn complex(mut self) -> ReadSamples {
        self.complex = true;
        self
    }

    /// Number of bytes in a sample.
    pub fn sample_bytes(&self) -> usize {
        self.format.size_bytes() * if self.complex { 2 } else { 1 }
    }

    /// The output's type and shape.
    pub fn output_type(&self) -> Result<(DType, Shape)> {
        let (len, each) = (line_len(&self.input, "read_samples: input")?, self.sample_bytes());
        if !len.is_multiple_of(each) {
            return Err(Error::invalid("read_samples: bytes of a line", format!("a multiple of {each}"), len));
        }
        let shape = self.input.shape().with_dim(self.input.shape().rank() - 1, len / each)?;
        Ok((if self.complex { DType::Complex64 } else { DType::F32 }, shape))
    }
}

impl Describe for ReadSamples {
    fn name(&self) -> &'static str {
        "read_samples"
    }

    fn validate(&self) -> Result<()> {
        of_type(&self.input, DType::U8, "read_samples: input")?;
        self.output_type().map(drop)
    }

    crate::parts!(input);

    fn cost_class(&self) -> CostClass {
        CostClass::labelled(self.format.name())
    }
}
