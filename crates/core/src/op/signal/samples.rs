//! ReadSamples: decodes the sample formats of radios and files. [`SampleFormat`] converts numbers
//! from and to bytes.

use super::checks::{line_len, of_type};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::{AnswerTypes, CostClass, Describe};
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

    /// Reads the numbers in `bytes`. `numbers` must have room for all of them.
    #[inline]
    pub fn read(self, bytes: &[u8], numbers: &mut [f32]) {
        fn each<const N: usize>(bytes: &[u8], numbers: &mut [f32], read: impl Fn([u8; N]) -> f32) {
            numbers.iter_mut().zip(bytes.as_chunks::<N>().0).for_each(|(number, bytes)| *number = read(*bytes));
        }
        match self {
            SampleFormat::U8 => each(bytes, numbers, |[byte]| (f32::from(byte) - 128.0) / 128.0),
            SampleFormat::I8 => each(bytes, numbers, |[byte]| f32::from(byte as i8) / 128.0),
            SampleFormat::I16 => each(bytes, numbers, |bytes| f32::from(i16::from_le_bytes(bytes)) / 32_768.0),
            SampleFormat::I16Be => each(bytes, numbers, |bytes| f32::from(i16::from_be_bytes(bytes)) / 32_768.0),
            SampleFormat::I24 => each(bytes, numbers, |[low, middle, high]| {
                (i32::from_le_bytes([0, low, middle, high]) >> 8) as f32 / 8_388_608.0
            }),
            SampleFormat::I32 => each(bytes, numbers, |bytes| i32::from_le_bytes(bytes) as f32 / 2_147_483_648.0),
            SampleFormat::F32 => each(bytes, numbers, f32::from_le_bytes),
        }
    }

    /// Appends numbers to `bytes`. Values out of range are clamped to the integer's range; NaN
    /// becomes 0.
    #[inline]
    pub fn write(self, numbers: &[f32], bytes: &mut Vec<u8>) {
        for number in numbers {
            match self {
                SampleFormat::U8 => bytes.push((number * 128.0 + 128.0).round() as u8),
                SampleFormat::I8 => bytes.push((number * 128.0).round() as i8 as u8),
                SampleFormat::I16 => bytes.extend(((number * 32_768.0).round() as i16).to_le_bytes()),
                SampleFormat::I16Be => bytes.extend(((number * 32_768.0).round() as i16).to_be_bytes()),
                SampleFormat::I24 => {
                    let wide = (f64::from(*number) * 8_388_608.0).round().clamp(-8_388_608.0, 8_388_607.0) as i32;
                    bytes.extend(&wide.to_le_bytes()[..3]);
                }
                SampleFormat::I32 => {
                    bytes.extend(((f64::from(*number) * 2_147_483_648.0).round() as i32).to_le_bytes());
                }
                SampleFormat::F32 => bytes.extend(number.to_le_bytes()),
            }
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

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        let (dtype, shape) = self.output_type()?;
        Ok(AnswerTypes::Tensor(dtype, shape))
    }

    fn cost_class(&self) -> CostClass {
        CostClass::labelled(self.format.name())
    }
}
