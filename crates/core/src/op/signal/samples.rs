//! ReadSamples: samples as radios and files have them.

use super::checks::{line_len, of_type, tensors};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::{CostClass, Describe};
use crate::part::{PartMut, PartRef};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// How a number of a sample lies in bytes. Integers stand for numbers from -1 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SampleFormat {
    /// One byte, of which 128 stands for zero.
    U8,
    /// One byte with its sign.
    I8,
    /// Two bytes, the lower first.
    I16,
    /// Two bytes, the higher first.
    I16Be,
    /// Three bytes, the lowest first.
    I24,
    /// Four bytes, the lowest first.
    I32,
    /// IEEE 754 single precision, the lowest byte first.
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

    /// Bytes of a number.
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

/// The numbers of samples that lie in bytes (u8) along the last axis: f32, or with [`ReadSamples::complex`] c64, of which each has two.
#[derive(Clone, Debug)]
pub struct ReadSamples {
    /// How they lie.
    pub format: SampleFormat,
    /// The bytes.
    pub input: Tensor,
    /// Whether two numbers are one sample.
    pub complex: bool,
}

impl ReadSamples {
    /// Real samples.
    pub fn new(format: SampleFormat, input: &Tensor) -> ReadSamples {
        ReadSamples { format, input: input.clone(), complex: false }
    }

    /// Complex samples.
    pub fn complex(mut self) -> ReadSamples {
        self.complex = true;
        self
    }

    /// Bytes of a sample.
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

    tensors!(input);

    fn cost_class(&self) -> CostClass {
        CostClass::labelled(self.format.name())
    }
}
