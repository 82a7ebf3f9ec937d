//! Messages on the device, and the tables that describe them to kernels; `messages.h` is the
//! kernels' side.

use panoply_core::op::crypto::{Messages, NONCE_BYTES, Nonces};
use panoply_core::{Buffer, Bytes, Error, Result};

use crate::arguments::Arguments;
use crate::context::Context;
use crate::driver::Address;

/// Words per row of the table.
const ROW_WORDS: usize = 8;
/// Alignment of each message of a list.
const ALIGN_BYTES: usize = 16;

/// Messages in one block of device memory.
pub(crate) struct DeviceMessages {
    pub(crate) address: Address,
    places: Places,
    /// Whether all or some of them were on the device already.
    pub(crate) is_resident: bool,
}

/// Offset and length of each message.
enum Places {
    /// All have the same length and are contiguous.
    Even {
        count: usize,
        len: usize,
    },
    Each(Vec<(usize, usize)>),
}

impl Places {
    /// The messages between consecutive offsets, relative to the first offset.
    fn between(offsets: &[usize]) -> Places {
        let (count, first) = (offsets.len().saturating_sub(1), offsets.first().copied().unwrap_or(0));
        let len = offsets.get(1).map_or(0, |second| second - first);
        // There may be a million messages: this reads each offset once, many at a time, and
        // allocates nothing.
        match are_even(offsets, first, len) {
            true => Places::Even { count, len },
            false => Places::Each(offsets.windows(2).map(|pair| (pair[0] - first, pair[1] - pair[0])).collect()),
        }
    }

    fn len(&self) -> usize {
        match self {
            Places::Even { count, .. } => *count,
            Places::Each(places) => places.len(),
        }
    }

    /// Total bytes of all messages.
    fn bytes(&self) -> usize {
        match self {
            Places::Even { count, len } => count * len,
            Places::Each(places) => places.iter().map(|(_, len)| len).sum(),
        }
    }

    fn get(&self, index: usize) -> Option<(usize, usize)> {
        match self {
            Places::Even { count, len } => (index < *count).then(|| (index * len, *len)),
            Places::Each(places) => places.get(index).copied(),
        }
    }

    fn iter(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    /// The distance between messages, if all have the same length and distance and the first begins
    /// at offset 0.
    fn even_step(&self) -> Option<usize> {
        match self {
            Places::Even { len, .. } => Some(*len),
            Places::Each(places) => {
                let (first, second) = (places.first().copied().unwrap_or_default(), places.get(1));
                let step = second.map_or(0, |second| second.0.wrapping_sub(first.0));
                let is_even = |(index, place): (usize, &(usize, usize))| *place == (step.wrapping_mul(index), first.1);
                places.iter().enumerate().all(is_even).then_some(step)
            }
        }
    }
}

/// Whether offsets increase by `step` from `first` on. The offsets of a chunk are compared without
/// branches.
fn are_even(offsets: &[usize], first: usize, step: usize) -> bool {
    const CHUNK: usize = 1024;
    offsets.chunks(CHUNK).enumerate().all(|(number, chunk)| {
        let mut expected = first.wrapping_add(step.wrapping_mul(number * CHUNK));
        let differences = chunk.iter().fold(0, |differences, offset| {
            let difference = offset ^ expected;
            expected = expected.wrapping_add(step);
            differences | difference
        });
        differences == 0
    })
}

impl DeviceMessages {
    /// Brings messages to the device if they are not there.
    pub(crate) fn new(messages: &Messages, context: &mut Context) -> Result<DeviceMessages> {
        match messages {
            Messages::One(bytes) => {
                let (address, is_resident) = place(bytes, context)?;
                let places = Places::Even { count: 1, len: bytes.len() };
                Ok(DeviceMessages { address, places, is_resident })
            }
            Messages::Packed(packed) => {
                let offsets = packed.offsets();
                let (first, end) = (offsets[0], offsets[offsets.len() - 1]);
                let (address, is_resident) = place(&packed.bytes().slice(first, end)?, context)?;
                Ok(DeviceMessages { address, places: Places::between(offsets), is_resident })
            }
            Messages::List(list) => listed(list, context),
        }
    }

    /// `count` contiguous messages of length `len`, written by kernels.
    pub(crate) fn written(address: Address, count: usize, len: usize) -> DeviceMessages {
        DeviceMessages { address, places: Places::Even { count, len }, is_resident: true }
    }

    pub(crate) fn count(&self) -> usize {
        self.places.len()
    }

    /// The lengths of the messages.
    pub(crate) fn lens(&self) -> impl Iterator<Item = usize> + '_ {
        self.places.iter().map(|(_, len)| len)
    }

    /// Total bytes of all messages.
    pub(crate) fn bytes(&self) -> usize {
        self.places.bytes()
    }
}

/// The device address of bytes, and whether they were on the device already.
pub(crate) fn place(bytes: &Bytes, context: &mut Context) -> Result<(Address, bool)> {
    let tensor = bytes.to_tensor()?;
    if !bytes.is_secret() {
        return Ok((context.input_wiped(&tensor)?, context.owns(&tensor)));
    }
    let slice = bytes.as_slice()?;
    let address = context.secret_scratch(slice.len())?;
    context.place_secret(address, slice.len(), |target| target.copy_from_slice(slice))?;
    Ok((address, false))
}

/// Places the messages of a list one after another.
fn listed(list: &[Bytes], context: &mut Context) -> Result<DeviceMessages> {
    let mut places = Vec::with_capacity(list.len());
    let mut end = 0_usize;
    for bytes in list {
        places.push((end, bytes.len()));
        end = end.saturating_add(bytes.len().next_multiple_of(ALIGN_BYTES));
    }
    let is_resident = list.iter().any(|bytes| matches!(bytes.buffer(), Buffer::Device(_)));
    let is_secret = list.iter().any(Bytes::is_secret);
    let address = context.secret_scratch(end)?;
    if is_resident {
        for (bytes, (start, _)) in list.iter().zip(&places) {
            match bytes.as_slice() {
                Ok(slice) if bytes.is_secret() => {
                    context.place_secret(address + *start, slice.len(), |target| target.copy_from_slice(slice))?;
                }
                _ => context.place(address + *start, &bytes.to_tensor()?)?,
            }
        }
        return Ok(DeviceMessages { address, places: Places::Each(places), is_resident });
    }
    let slices = list.iter().map(Bytes::as_slice).collect::<Result<Vec<_>>>()?;
    let fill = |target: &mut [u8]| {
        for (slice, (start, len)) in slices.iter().zip(&places) {
            target[*start..start + len].copy_from_slice(slice);
            target[start + len..(start + len).next_multiple_of(ALIGN_BYTES)].fill(0);
        }
    };
    match is_secret {
        true => context.place_secret(address, end, fill)?,
        false => context.place_filled(address, end, fill)?,
    }
    Ok(DeviceMessages { address, places: Places::Each(places), is_resident })
}

/// Places the nonces on the device, twelve bytes per message.
pub(crate) fn place_nonces(nonces: &Nonces, count: usize, context: &mut Context) -> Result<Address> {
    match nonces {
        Nonces::Given(bytes) => Ok(place(bytes, context)?.0),
        Nonces::Counted { .. } => {
            let list = nonces.list(count)?;
            let address = context.scratch(count * NONCE_BYTES)?;
            context.place_filled(address, count * NONCE_BYTES, |target| target.copy_from_slice(list.as_flattened()))?;
            Ok(address)
        }
    }
}

/// Places a key's bytes on the device, in words.
pub(crate) fn place_key(material: &Bytes, context: &mut Context) -> Result<Address> {
    place_secrets(&[material.as_slice()?], context)
}

/// Places secrets on the device, concatenated.
pub(crate) fn place_secrets(parts: &[&[u8]], context: &mut Context) -> Result<Address> {
    let bytes = parts.iter().map(|part| part.len()).sum();
    let address = context.secret_scratch(bytes)?;
    let fill = |mut target: &mut [u8]| {
        for part in parts {
            let (own, rest) = target.split_at_mut(part.len());
            own.copy_from_slice(part);
            target = rest;
        }
    };
    context.place_secret(address, bytes, fill)?;
    Ok(address)
}

/// Places bytes that the host has made on the device.
pub(crate) fn place_plain(bytes: &[u8], context: &mut Context) -> Result<Address> {
    let address = context.scratch(bytes.len())?;
    context.place_filled(address, bytes.len(), |target| target.copy_from_slice(bytes))?;
    Ok(address)
}

/// The description of the messages for each kernel of an op.
pub(crate) struct Batch {
    rows: Address,
    words: [u64; 9],
    /// Total units of work, total hashed blocks, and the most hashed blocks of a single message.
    pub(crate) units: usize,
    pub(crate) blocks: usize,
    pub(crate) blocks_max: usize,
    offsets: Offsets,
}

/// Offset of each answer, and the end of the last.
enum Offsets {
    /// All answers have the same length.
    Even {
        count: usize,
        len: usize,
    },
    Each(Vec<usize>),
}

/// The parameters of the work on each message.
pub(crate) struct Terms<'a> {
    /// Bytes at the end of a message that are not part of its text.
    pub(crate) behind: usize,
    /// Bytes per unit of work.
    pub(crate) unit_bytes: usize,
    /// The length of the answer to a text of a given length.
    pub(crate) answer_len: &'a dyn Fn(usize) -> usize,
    /// The associated data that is hashed with a message: one for all, or one each.
    pub(crate) data: Option<&'a DeviceMessages>,
}

/// Bytes per hashed block.
pub(crate) const HASHED_BYTES: usize = 16;

impl Batch {
    pub(crate) fn new(messages: &DeviceMessages, terms: &Terms<'_>, context: &mut Context) -> Result<Batch> {
        let count = messages.count();
        let data_of = |index: usize| match terms.data {
            None => (0, 0),
            Some(data) => data.places.get(if data.count() == 1 { 0 } else { index }).unwrap_or_default(),
        };
        let hashed = |text: usize, data: usize| data.div_ceil(HASHED_BYTES) + text.div_ceil(HASHED_BYTES) + 1;
        let too_long = || out_of_memory(usize::MAX);
        if let Some([source_step, data_step]) = even_steps(messages, terms) {
            let (len, data_len) = (messages.places.get(0).unwrap_or_default().1, data_of(0).1);
            let text = len.saturating_sub(terms.behind);
            let (answer, units) = ((terms.answer_len)(text), text.div_ceil(terms.unit_bytes));
            let blocks = if count > 0 { hashed(text, data_len) } else { 0 };
            answer.checked_mul(count).ok_or_else(too_long)?;
            let words = [count, text, source_step, answer, data_len, data_step, units, blocks, 1];
            let words = if count > 0 { words } else { [0, 0, 0, 0, 0, 0, 0, 0, 1] };
            return Ok(Batch {
                rows: Address::NULL,
                words: words.map(|word| word as u64),
                units: units * count,
                blocks: blocks * count,
                blocks_max: blocks,
                offsets: Offsets::Even { count, len: answer },
            });
        }
        let (mut offsets, mut end) = (Vec::with_capacity(count + 1), 0_usize);
        let (mut units, mut blocks, mut blocks_max) = (0, 0, 0);
        offsets.push(0);
        let mut rows: Vec<[u64; ROW_WORDS]> = Vec::new();
        rows.try_reserve_exact(count + 1).map_err(|_| out_of_memory(count * ROW_WORDS * 8))?;
        for (index, (start, len)) in messages.places.iter().enumerate() {
            let (data, data_len) = data_of(index);
            let text = len.saturating_sub(terms.behind);
            let row = [start, end, text, data, data_len, units, blocks, 0];
            rows.push(row.map(|value| value as u64));
            let hashed = hashed(text, data_len);
            units += text.div_ceil(terms.unit_bytes);
            blocks += hashed;
            blocks_max = blocks_max.max(hashed);
            end = end.checked_add((terms.answer_len)(text)).ok_or_else(too_long)?;
            offsets.push(end);
        }
        let words = [count as u64, 0, 0, 0, 0, 0, 0, 0, 0];
        rows.push([0, 0, 0, 0, 0, units as u64, blocks as u64, 0]);
        let rows = place_rows(&rows, context)?;
        Ok(Batch { rows, words, units, blocks, blocks_max, offsets: Offsets::Each(offsets) })
    }

    /// Number of messages.
    pub(crate) fn count(&self) -> usize {
        match &self.offsets {
            Offsets::Even { count, .. } => *count,
            Offsets::Each(offsets) => offsets.len() - 1,
        }
    }

    /// Total bytes of all answers.
    pub(crate) fn answer_bytes(&self) -> usize {
        match &self.offsets {
            Offsets::Even { count, len } => count * len,
            Offsets::Each(offsets) => offsets[offsets.len() - 1],
        }
    }

    /// Offset of each answer, and the end of the last.
    pub(crate) fn into_offsets(self) -> Vec<usize> {
        match self.offsets {
            Offsets::Even { count, len } => (0..=count).map(|index| index * len).collect(),
            Offsets::Each(offsets) => offsets,
        }
    }

    /// Address of the table.
    pub(crate) fn rows(&self) -> Address {
        self.rows
    }

    /// Adds the kernels' `batch` structure.
    pub(crate) fn add_to(&self, arguments: Arguments) -> Arguments {
        arguments.structure(&self.words)
    }
}

/// The distances between messages and between their associated data, if all have the same length
/// and are at equal distances from offset 0 on.
fn even_steps(messages: &DeviceMessages, terms: &Terms<'_>) -> Option<[usize; 2]> {
    let data_step = match terms.data {
        Some(data) if data.count() > 1 => data.places.even_step()?,
        // Data common to all messages must begin at offset 0.
        Some(data) if data.places.get(0).is_some_and(|(start, _)| start > 0) => return None,
        _ => 0,
    };
    Some([messages.places.even_step()?, data_step])
}

fn place_rows(rows: &[[u64; ROW_WORDS]], context: &mut Context) -> Result<Address> {
    place_plain(bytemuck::cast_slice(rows.as_flattened()), context)
}

fn out_of_memory(asked: usize) -> Error {
    Error::OutOfMemory { place: "the host".to_owned(), asked: asked as u64, free: 0, largest: 0 }
}
