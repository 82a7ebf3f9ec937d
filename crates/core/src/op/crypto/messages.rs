//! Messages: the inputs and outputs of the domain's ops.

use std::sync::Arc;

use crate::bytes::Bytes;
use crate::error::{Error, Result};
use crate::part::{Part, PartMut, PartRef, Parts, Value};

/// Maximal number of messages of one op.
pub const MESSAGES_MAX: usize = 1 << 24;

/// One message, or a batch that is one op. The output has the same form as the input.
#[derive(Clone, Debug)]
pub enum Messages {
    /// One message.
    One(Bytes),
    /// Messages in separate buffers.
    List(Arc<[Bytes]>),
    /// Messages one after the other in one buffer: the cheapest form for thousands of messages.
    Packed(PackedMessages),
}

/// Messages in one buffer.
#[derive(Clone, Debug)]
pub struct PackedMessages {
    bytes: Bytes,
    offsets: Arc<[usize]>,
}

impl PackedMessages {
    /// The buffer.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Start of each message, and the end of the last.
    pub fn offsets(&self) -> &[usize] {
        &self.offsets
    }

    fn count(&self) -> usize {
        self.offsets.len() - 1
    }
}

impl Messages {
    /// Messages in one buffer. Message `i` lies between `offsets[i]` and `offsets[i + 1]`; offsets
    /// must ascend (equal ones are permitted).
    pub fn packed(bytes: Bytes, offsets: impl Into<Arc<[usize]>>) -> Result<Messages> {
        let offsets = offsets.into();
        let Some(&end) = offsets.last() else {
            return Err(Error::invalid("offsets of messages", "one more than there are messages", "none"));
        };
        if end > bytes.len() {
            return Err(Error::OutOfBounds { what: "last offset of messages", limit: bytes.len(), got: end });
        }
        if let Some(at) = offsets.windows(2).position(|pair| pair[0] > pair[1]) {
            let got = format!("{} before {}", offsets[at], offsets[at + 1]);
            return Err(Error::invalid("offsets of messages", "offsets that do not descend", got));
        }
        Messages::Packed(PackedMessages { bytes, offsets }).checked()
    }

    /// Messages of equal length in one buffer; the last one may be shorter.
    pub fn split(bytes: Bytes, len_each: usize) -> Result<Messages> {
        if len_each == 0 {
            return Err(Error::invalid("length of messages", "at least 1", 0));
        }
        let count = bytes.len().div_ceil(len_each);
        if count > MESSAGES_MAX {
            return Err(Error::OutOfBounds { what: "number of messages", limit: MESSAGES_MAX, got: count });
        }
        let offsets: Vec<usize> = (0..=count).map(|index| bytes.len().min(index * len_each)).collect();
        Messages::packed(bytes, offsets)
    }

    /// Number of messages.
    pub fn count(&self) -> usize {
        match self {
            Messages::One(_) => 1,
            Messages::List(list) => list.len(),
            Messages::Packed(packed) => packed.count(),
        }
    }

    /// Bytes of all messages.
    pub fn total_bytes(&self) -> usize {
        match self {
            Messages::One(bytes) => bytes.len(),
            Messages::List(list) => list.iter().fold(0, |sum, bytes| sum.saturating_add(bytes.len())),
            Messages::Packed(PackedMessages { offsets, .. }) => offsets[offsets.len() - 1] - offsets[0],
        }
    }

    /// Length of a message; zero if there is no such index.
    pub fn len_of(&self, index: usize) -> usize {
        match self {
            Messages::One(bytes) if index == 0 => bytes.len(),
            Messages::List(list) => list.get(index).map_or(0, Bytes::len),
            Messages::Packed(PackedMessages { offsets, .. }) if index + 1 < offsets.len() => {
                offsets[index + 1] - offsets[index]
            }
            _ => 0,
        }
    }

    /// The lengths of all messages.
    pub fn lens(&self) -> impl Iterator<Item = usize> {
        (0..self.count()).map(|index| self.len_of(index))
    }

    /// One message, as a view of its buffer.
    pub fn get(&self, index: usize) -> Result<Bytes> {
        let absent = || Error::OutOfBounds { what: "message", limit: self.count().saturating_sub(1), got: index };
        match self {
            Messages::One(bytes) if index == 0 => Ok(bytes.clone()),
            Messages::List(list) => list.get(index).cloned().ok_or_else(absent),
            Messages::Packed(PackedMessages { bytes, offsets }) if index + 1 < offsets.len() => {
                bytes.slice(offsets[index], offsets[index + 1])
            }
            _ => Err(absent()),
        }
    }

    /// The bytes of all messages, if they are on the host.
    pub fn slices(&self) -> Result<Vec<&[u8]>> {
        match self {
            Messages::One(bytes) => Ok(vec![bytes.as_slice()?]),
            Messages::List(list) => list.iter().map(Bytes::as_slice).collect(),
            Messages::Packed(PackedMessages { bytes, offsets }) => {
                let bytes = bytes.as_slice()?;
                Ok(offsets.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect())
            }
        }
    }

    /// Mutable bytes of one message or of packed ones, and the messages' offsets in them. `None`
    /// unless this is the only handle to the buffer (see [`Bytes::get_mut`]).
    pub fn get_mut(&mut self) -> Option<(&mut [u8], Vec<usize>)> {
        match self {
            Messages::One(bytes) => {
                let len = bytes.len();
                bytes.get_mut().map(|bytes| (bytes, vec![0, len]))
            }
            Messages::List(_) => None,
            Messages::Packed(PackedMessages { bytes, offsets }) => {
                bytes.get_mut().map(|bytes| (bytes, offsets.to_vec()))
            }
        }
    }

    /// The only message; fails if there are more or none.
    pub fn into_one(self) -> Result<Bytes> {
        match self.count() {
            1 => self.get(0),
            count => Err(Error::invalid("messages", "one", count)),
        }
    }

    /// Each message as a view.
    pub fn into_list(self) -> Result<Vec<Bytes>> {
        (0..self.count()).map(|index| self.get(index)).collect()
    }

    /// Whether any message is secret.
    pub fn is_secret(&self) -> bool {
        match self {
            Messages::One(bytes) | Messages::Packed(PackedMessages { bytes, .. }) => bytes.is_secret(),
            Messages::List(list) => list.iter().any(Bytes::is_secret),
        }
    }

    /// The outputs of an op, which lie one after the other in a buffer, in the form of the op's own
    /// messages.
    pub fn like(&self, bytes: Bytes, offsets: Vec<usize>) -> Result<Messages> {
        match (self, Messages::packed(bytes, offsets)?) {
            (Messages::One(_), packed) => Ok(Messages::One(packed.into_one()?)),
            (Messages::List(_), packed) => Ok(Messages::List(packed.into_list()?.into())),
            (Messages::Packed(_), packed) => Ok(packed),
        }
    }

    /// Converts to an engine's output.
    pub fn into_value(self) -> Result<Value> {
        Ok(match self {
            Messages::One(bytes) => Value::Bytes(bytes),
            Messages::List(list) => Value::List(list.iter().cloned().map(Part::Bytes).collect()),
            Messages::Packed(PackedMessages { bytes, offsets }) => {
                Value::Pair(bytes.to_tensor()?, written(&offsets).to_tensor()?)
            }
        })
    }

    /// Converts from an engine's output.
    pub fn from_value(value: Value) -> Result<Messages> {
        match value {
            Value::Bytes(bytes) => Ok(Messages::One(bytes)),
            Value::Pair(bytes, offsets) => {
                Messages::packed(Bytes::from_tensor(&bytes)?, read(&Bytes::from_tensor(&offsets)?)?)
            }
            other => {
                let bytes = other.into_list()?.into_iter().map(|part| match part {
                    Part::Bytes(bytes) => Ok(bytes),
                    other => Err(Error::invalid("the engine's answer", "bytes", format!("{other:?}"))),
                });
                Ok(Messages::List(bytes.collect::<Result<_>>()?))
            }
        }
    }

    /// The messages, unless there are more than an op may have.
    pub(super) fn checked(self) -> Result<Messages> {
        self.check().map(|()| self)
    }

    pub(in crate::op) fn check(&self) -> Result<()> {
        match self.count() {
            count if count > MESSAGES_MAX => {
                Err(Error::OutOfBounds { what: "number of messages", limit: MESSAGES_MAX, got: count })
            }
            _ => Ok(()),
        }
    }

    /// Refuses messages longer than `limit`.
    pub(super) fn check_lens(&self, what: &'static str, limit: u64) -> Result<()> {
        self.check()?;
        match self.lens().find(|len| *len as u64 > limit) {
            Some(got) => Err(Error::OutOfBounds { what, limit: usize::try_from(limit).unwrap_or(usize::MAX), got }),
            None => Ok(()),
        }
    }
}

impl Parts for Messages {
    fn visit(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        match self {
            Messages::One(bytes) | Messages::Packed(PackedMessages { bytes, .. }) => visit(bytes.into()),
            Messages::List(list) => list.iter().for_each(|bytes| visit(bytes.into())),
        }
    }

    fn visit_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        match self {
            Messages::One(bytes) | Messages::Packed(PackedMessages { bytes, .. }) => visit(bytes.into()),
            Messages::List(list) => Arc::make_mut(list).iter_mut().for_each(|bytes| visit(bytes.into())),
        }
    }
}

impl From<Bytes> for Messages {
    fn from(bytes: Bytes) -> Messages {
        Messages::One(bytes)
    }
}

impl From<Vec<u8>> for Messages {
    fn from(bytes: Vec<u8>) -> Messages {
        Messages::One(bytes.into())
    }
}

impl From<Vec<Bytes>> for Messages {
    fn from(list: Vec<Bytes>) -> Messages {
        Messages::List(list.into())
    }
}

/// Offsets as bytes, eight for each, little-endian.
fn written(offsets: &[usize]) -> Bytes {
    Bytes::from_vec(offsets.iter().flat_map(|offset| (*offset as u64).to_le_bytes()).collect())
}

fn read(bytes: &Bytes) -> Result<Vec<usize>> {
    let (words, rest) = bytes.as_slice()?.as_chunks::<8>();
    let offsets: Option<Vec<usize>> =
        words.iter().map(|word| usize::try_from(u64::from_le_bytes(*word)).ok()).collect();
    offsets
        .filter(|_| rest.is_empty())
        .ok_or_else(|| Error::invalid("the engine's answer", "offsets of eight bytes", bytes.len()))
}
