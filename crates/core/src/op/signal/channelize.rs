//! Channelize: a band cut into channels of equal width.

use super::checks::{complex_only, line_len, tensors, within};
use super::fir::{RATE_MAX, check_taps};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::Describe;
use crate::part::{PartMut, PartRef};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Cuts lines of c64 along the last axis into channels: channel `k` is the signal turned back by `k/channels` cycles a sample, filtered with the taps, of which
/// one sample of `channels` is kept, the first among them. `[…, samples]` becomes `[…, ⌈samples/channels⌉, channels]`; channels above the half
/// are negative frequencies. All channels together cost one filter and a short transform (a polyphase filter bank). NaN and infinity spoil
/// all channels of the samples that they are a term of.
#[derive(Clone, Debug)]
pub struct Channelize {
    /// The signals.
    pub input: Tensor,
    /// The low-pass filter of a channel: f32 of one dimension.
    pub taps: Tensor,
    /// How many channels.
    pub channels: usize,
}

impl Channelize {
    /// So many channels.
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

/// Checks a bank of filters.
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

    tensors!(input, taps);

    fn work(&self) -> u64 {
        let of_sample = self.taps.elements() / self.channels.max(1) + self.channels.max(2).ilog2() as usize;
        (self.input.elements() as u64).saturating_mul(of_sample.max(1) as u64)
    }
}
