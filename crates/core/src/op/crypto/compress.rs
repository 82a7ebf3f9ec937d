//! Compress and Decompress.

use super::algorithm::Format;
use super::messages::Messages;
use crate::error::{Error, Result};
use crate::op::{BatchKey, CostClass, Describe};
use crate::part::{PartMut, PartRef};

/// What a message may become where [`Decompress::limit`] says nothing else.
pub const OUTPUT_BYTES_DEFAULT_MAX: usize = 1 << 30;
/// What all messages of an op may become together where [`Decompress::total_limit`] says nothing else.
pub const OUTPUT_BYTES_TOTAL_DEFAULT_MAX: usize = 4 << 30;
const MESSAGE_COST_BYTES: u64 = 512;

/// Compresses each message by itself. Devices may give different bytes; all of them decompress to the message. Secret messages are
/// refused, here and in [`Decompress`].
#[derive(Clone, Debug)]
pub struct Compress {
    /// The format.
    pub format: Format,
    /// How hard to try: one of [`Format::levels`].
    pub level: i32,
    /// What is compressed.
    pub messages: Messages,
}

/// Decompresses each message by itself. A message that is not in the format, cut short, or followed by anything else is
/// [`Error::Rejected`]; one that would become longer than the limit is [`Error::OutputLimit`], found before that much memory is used.
///
/// So is a batch that would become longer than its own limit: the error then has that limit, and names a message with which it was
/// exceeded, not always the first. While it runs, each thread may use one message's limit beside.
#[derive(Clone, Debug)]
pub struct Decompress {
    /// The format.
    pub format: Format,
    /// The most bytes that one message may become.
    pub limit_bytes: usize,
    /// The most bytes that all messages may become together, where it was said; see [`Decompress::total_bytes_max`].
    pub total_limit_bytes: Option<usize>,
    /// What is decompressed.
    pub messages: Messages,
}

impl Compress {
    /// Compresses each message at the format's usual level.
    pub fn new(format: Format, messages: impl Into<Messages>) -> Compress {
        Compress { format, level: format.level_default(), messages: messages.into() }
    }

    /// At this level.
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

    /// No message may become longer than this. Where it is the length that messages are known to have, no memory is wasted.
    pub fn limit(mut self, limit_bytes: usize) -> Decompress {
        self.limit_bytes = limit_bytes;
        self
    }

    /// All messages together may not become longer than this.
    pub fn total_limit(mut self, total_limit_bytes: usize) -> Decompress {
        self.total_limit_bytes = Some(total_limit_bytes);
        self
    }

    /// The most bytes that all messages may become together: what was said, else [`OUTPUT_BYTES_TOTAL_DEFAULT_MAX`], or the limit of one
    /// message where that is more.
    pub fn total_bytes_max(&self) -> usize {
        self.total_limit_bytes.unwrap_or(OUTPUT_BYTES_TOTAL_DEFAULT_MAX.max(self.limit_bytes))
    }
}

/// Libraries that compress keep what they have seen in memory that they use again.
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

    fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        self.messages.visit(visit);
    }

    fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        self.messages.visit_mut(visit);
    }

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

    fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        self.messages.visit(visit);
    }

    fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        self.messages.visit_mut(visit);
    }

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
