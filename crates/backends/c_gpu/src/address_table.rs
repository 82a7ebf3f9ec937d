//! Tables of addresses from which one launch reads the memory of many tensors.

use panoply_core::{Buffer, Result, Tensor};

use crate::context::Context;
use crate::driver::Address;

/// Alignment of tensors that are uploaded together from the host.
const ALIGN_BYTES: usize = 256;

/// Addresses for a kernel, together with the host tensors among them: one upload brings both to the
/// device.
#[derive(Default)]
pub(crate) struct Table {
    words: Vec<u64>,
    /// The words that refer to uploaded host tensors, with those tensors.
    from_host: Vec<(usize, Tensor)>,
    host_bytes: usize,
}

/// A table on the device.
pub(crate) struct DeviceTable {
    /// The base from which the table's words count.
    pub(crate) base: Address,
    pub(crate) table: Address,
    pub(crate) words: Vec<u64>,
}

impl Table {
    pub(crate) fn push(&mut self, address: Address) {
        self.words.push(address.0);
    }

    /// Adds the address of a tensor's first element. A host tensor will be uploaded without gaps.
    pub(crate) fn push_input(&mut self, tensor: &Tensor, context: &mut Context) -> Result<()> {
        if let Buffer::Device(_) = tensor.buffer() {
            self.words.push(context.view(tensor)?.address.0);
            return Ok(());
        }
        let tensor = tensor.contiguous()?;
        let end = self.host_bytes + tensor.as_bytes()?.len();
        self.from_host.push((self.words.len(), tensor));
        self.words.push(self.host_bytes as u64);
        self.host_bytes = end.next_multiple_of(ALIGN_BYTES);
        Ok(())
    }

    /// Uploads the table and its host tensors. `None` if the device has no addresses, and an
    /// allocation is outside the buffer that tables can refer to.
    pub(crate) fn upload(self, context: &mut Context) -> Result<Option<DeviceTable>> {
        let Table { mut words, from_host, host_bytes } = self;
        let bytes = host_bytes + size_of_val(words.as_slice());
        let start = context.scratch(bytes)?;
        let mut parts = Vec::with_capacity(from_host.len());
        for (place, tensor) in &from_host {
            parts.push((words[*place] as usize, tensor.as_bytes()?));
            words[*place] += start.0;
        }
        let base = match context.driver.properties().pointers {
            true => Address::NULL,
            false => {
                let Some(base) = context.driver.shared_buffer() else { return Ok(None) };
                let (buffer, _) = base.in_buffer();
                for word in &mut words {
                    let (number, offset) = Address(*word).in_buffer();
                    if number != buffer {
                        return Ok(None);
                    }
                    *word = offset;
                }
                base
            }
        };
        context.place_filled(start, bytes, |pinned| {
            for (begin, part) in parts {
                pinned[begin..begin + part.len()].copy_from_slice(part);
            }
            pinned[host_bytes..].copy_from_slice(bytemuck::cast_slice(&words));
        })?;
        Ok(Some(DeviceTable { base, table: start + host_bytes, words }))
    }
}
