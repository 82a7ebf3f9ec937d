//! Channelize: divides a band into channels of equal width.

use super::checks::{complex_only, line_len, within};
use super::fir::{RATE_MAX, check_taps};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::{AnswerTypes, Describe};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Divides lines of c64 along the last axis into channels. Channel `k` is the signal shifted down
/// by `k/channels` cycles per sample, filtered with the taps, and decimated by `channels`, keeping
/// the first sample. `[…, samples]` becomes `[…, ⌈samples/channels⌉, channels]`. Channels above the
/// middle are negative frequencies. All channels together cost one filter and a short transform (a
/// polyphase filter bank). A NaN or an infinity affects all channels of the outputs that it is a
/// term of.
#[derive(Clone, Debug)]
pub struct Channelize {
    /// The signals.
    pub input: Tensor,
    /// The low-pass filter of a channel: f32 of one dimension.
    pub taps: Tensor,
    /// Number of channels.
    pub channels: usize,
}

impl Channelize {
    /// Divides the band into this many channels.
    pub fn new(input: &Tensor, taps: &Tensor, channels: usize) -> Channelize {
        Channelize { input: input.clone(), taps: taps.clone(), channels }
    }

    /// The output's shape.
    pub fn output_shape(&self) -> Result<Shape> {
        let len = line_len(&self.input, "channelize: input")?;
        let last = self.input.shape().rank() - 1;
        self.input.shape().with_dim(last, len.div_ceil(self.channels.max(1)))?.joined(&[self.channels])
    }
}

/// Checks the taps and the number of channels of a filter bank.
pub(super) fn check_channels(taps: &Tensor, channels: usize) -> Result<()> {
    if taps.dtype() != DType::F32 {
        return Err(Error::DTypeMismatch { what: "channelize: taps", expected: DType::F32, got: taps.dtype() });
    }
    within(channels, 1, RATE_MAX, "channelize: channels")?;
    check_taps(taps, 1, channels, DType::Complex64)
}

impl Describe for Channelize {
    fn name(&self) -> &'static str {
        "channelize"
    }

    fn validate(&self) -> Result<()> {
        complex_only(&self.input, "channelize: input")?;
        check_channels(&self.taps, self.channels)?;
        self.output_shape().map(drop)
    }

    crate::parts!(input, taps);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::Tensor(DType::Complex64, self.output_shape()?))
    }

    fn work(&self) -> u64 {
        let of_sample = self.taps.elements() / self.channels.max(1) + self.channels.max(2).ilog2() as usize;
        (self.input.elements() as u64).saturating_mul(of_sample.max(1) as u64)
    }
}
