//! Compress and Decompress.

use super::algorithm::Format;
use super::messages::Messages;
use crate::error::{Error, Result};
use crate::op::{BatchKey, CostClass, Describe};

/// Limit of a message's output if [`Decompress::limit`] sets none.
pub const OUTPUT_BYTES_DEFAULT_MAX: usize = 1 << 30;
/// Limit of the output of all messages of an op if [`Decompress::total_limit`] sets none.
pub const OUTPUT_BYTES_TOTAL_DEFAULT_MAX: usize = 4 << 30;
const MESSAGE_COST_BYTES: u64 = 512;

/// Compresses each message separately. Devices may produce different bytes; all of them decompress
/// to the message. Secret messages are refused, here and in [`Decompress`].
#[derive(Clone, Debug)]
pub struct Compress {
    /// The format.
    pub format: Format,
    /// The compression level: one of [`Format::levels`].
    pub level: i32,
    /// The messages to compress.
    pub messages: Messages,
}

/// Decompresses each message separately. A message that is not in the format, truncated, or
/// followed by anything else is [`Error::Rejected`]. One that would become longer than the limit is
/// [`Error::OutputLimit`], detected before that much memory is used.
///
/// A batch that would become longer than its total limit gives the same error, with that limit and
/// a message with which it was exceeded, not always the first. While the op runs, each thread may
/// use one message's limit in addition.
#[derive(Clone, Debug)]
pub struct Decompress {
    /// The format.
    pub format: Format,
    /// Maximal output of one message in bytes.
    pub limit_bytes: usize,
    /// Maximal output of all messages in bytes, if set; see [`Decompress::total_bytes_max`].
    pub total_limit_bytes: Option<usize>,
    /// The messages to decompress.
    pub messages: Messages,
}

impl Compress {
    /// Compresses each message at the format's usual level.
    pub fn new(format: Format, messages: impl Into<Messages>) -> Compress {
        Compress { format, level: format.level_default(), messages: messages.into() }
    }

    /// Sets the level.
    pub fn level(mut self, level: i32) -> Compress {
        self.level = level;
        self
    }
}

impl Decompress {
    /// Decompresses each message.
    pub fn new(format: Format, messages: impl Into<Messages>) -> Decompress {
        let limit_bytes = OUTPUT_BYTES_DEFAULT_MAX;
        Decompress { format, limit_bytes, total_limit_bytes: None, messages: messages.into() }
    }

    /// Sets the maximal output of each message. If it is the known length of the messages, no
    /// memory is wasted.
    pub fn limit(mut self, limit_bytes: usize) -> Decompress {
        self.limit_bytes = limit_bytes;
        self
    }

    /// Sets the maximal output of all messages together.
    pub fn total_limit(mut self, total_limit_bytes: usize) -> Decompress {
        self.total_limit_bytes = Some(total_limit_bytes);
        self
    }

    /// The effective limit of all messages together: the one that was set, else
    /// [`OUTPUT_BYTES_TOTAL_DEFAULT_MAX`], or the limit of one message if that is larger.
    pub fn total_bytes_max(&self) -> usize {
        self.total_limit_bytes.unwrap_or(OUTPUT_BYTES_TOTAL_DEFAULT_MAX.max(self.limit_bytes))
    }
}

/// Refuses secret messages: compression libraries keep copies of their input in reused memory.
fn check_no_secret(messages: &Messages) -> Result<()> {
    if messages.is_secret() {
        return Err(Error::invalid("compress or decompress: message", "no secret", "a secret part"));
    }
    Ok(())
}

impl Describe for Compress {
    fn name(&self) -> &'static str {
        "compress"
    }

    fn validate(&self) -> Result<()> {
        check_no_secret(&self.messages)?;
        let levels = self.format.levels();
        if !levels.contains(&self.level) {
            let expected = format!("{} to {} for {}", levels.start(), levels.end(), self.format.name());
            return Err(Error::invalid("compress: level", expected, self.level));
        }
        self.messages.check_lens("compress: bytes of a message", self.format.message_bytes_max())
    }

    crate::parts!(messages);

    fn work(&self) -> u64 {
        (self.messages.total_bytes() as u64).saturating_add(self.messages.count() as u64 * MESSAGE_COST_BYTES)
    }

    fn cost_class(&self) -> CostClass {
        CostClass { label: self.format.name(), variant: self.level as u8 as u64 }
    }

    fn batch_key(&self) -> Option<BatchKey> {
        Some(BatchKey::of(("compress", self.format, self.level)))
    }
}

impl Describe for Decompress {
    fn name(&self) -> &'static str {
        "decompress"
    }

    fn validate(&self) -> Result<()> {
        check_no_secret(&self.messages)?;
        self.messages.check_lens("decompress: bytes of a message", 1 << 40)
    }

    crate::parts!(messages);

    fn work(&self) -> u64 {
        (self.messages.total_bytes() as u64).saturating_add(self.messages.count() as u64 * MESSAGE_COST_BYTES)
    }

    fn cost_class(&self) -> CostClass {
        CostClass::labelled(self.format.name())
    }

    fn batch_key(&self) -> Option<BatchKey> {
        Some(BatchKey::of(("decompress", self.format)))
    }
}
