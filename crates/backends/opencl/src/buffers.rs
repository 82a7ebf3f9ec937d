//! The memory of one opened device. OpenCL's buffers have no addresses, so each gets a number: the
//! upper part of an [`Address`]. The lower part is the offset in bytes.
//!
//! Small allocations share one buffer, so that a table in memory can refer to the allocations of
//! many ops.
//!
//! Pinned host memory to which kernels write words (complaints) is represented by a device buffer
//! with the same bytes: the words that a launch names are copied to it before the kernel, and back
//! after it.

use std::collections::{BTreeMap, HashMap};

use panoply_c_gpu::driver::Address;

use crate::calls::{Buffer, ClResult, Context};

/// The buffers of one device.
#[derive(Default)]
pub(crate) struct Buffers {
    /// The buffers by number, starting at 1: number 0 is the null address.
    slots: Vec<Option<BufferSlot>>,
    free: Vec<u32>,
    bytes: u64,
    /// Pinned host memory by start address.
    pinned: BTreeMap<usize, PinnedMemory>,
    shared: Option<SharedBuffer>,
}

/// The buffer that small allocations share. Returned parts are reused for allocations of the same
/// size; there are few different sizes.
struct SharedBuffer {
    number: u32,
    bytes: usize,
    /// Number of bytes from the start that were ever lent.
    used: usize,
    sizes: HashMap<usize, usize>,
    free: HashMap<usize, Vec<usize>>,
}

/// Alignment of parts of the shared buffer.
const SHARED_ALIGN_BYTES: usize = 512;

struct BufferSlot {
    buffer: Buffer,
    bytes: usize,
    /// The host memory that the buffer represents.
    host: Option<usize>,
}

struct PinnedMemory {
    bytes: usize,
    /// Keeps the memory in place, if the driver supports this.
    _kept: Option<Buffer>,
    /// The number of the buffer that represents this memory, once a kernel has used it.
    number: Option<u32>,
}

impl Buffers {
    /// Size of all buffers.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes over a buffer and returns its address.
    pub(crate) fn insert(&mut self, buffer: Buffer, bytes: usize) -> Address {
        Address::of_buffer(self.place(BufferSlot { buffer, bytes, host: None }), 0)
    }

    /// Takes over a buffer in host memory, which is not counted in `bytes`.
    pub(crate) fn insert_lent(&mut self, buffer: Buffer) -> Address {
        Address::of_buffer(self.place(BufferSlot { buffer, bytes: 0, host: None }), 0)
    }

    /// Takes over the buffer that small allocations share from now on.
    pub(crate) fn share(&mut self, buffer: Buffer, bytes: usize) {
        let number = self.place(BufferSlot { buffer, bytes, host: None });
        self.shared = Some(SharedBuffer { number, bytes, used: 0, sizes: HashMap::new(), free: HashMap::new() });
    }

    /// The start of the shared buffer.
    pub(crate) fn shared(&self) -> Option<Address> {
        self.shared.as_ref().map(|shared| Address::of_buffer(shared.number, 0))
    }

    /// A part of the shared buffer; `None` if there is no such buffer, or no room in it.
    pub(crate) fn part(&mut self, bytes: usize) -> Option<Address> {
        let shared = self.shared.as_mut()?;
        let size = bytes.max(1).next_multiple_of(SHARED_ALIGN_BYTES);
        let offset = match shared.free.get_mut(&size).and_then(Vec::pop) {
            Some(offset) => offset,
            None => {
                let offset = shared.used;
                shared.used = offset.checked_add(size).filter(|end| *end <= shared.bytes)?;
                offset
            }
        };
        shared.sizes.insert(offset, size);
        Some(Address::of_buffer(shared.number, offset as u64))
    }

    fn place(&mut self, slot: BufferSlot) -> u32 {
        self.bytes += slot.bytes as u64;
        match self.free.pop() {
            Some(number) => {
                self.slots[number as usize - 1] = Some(slot);
                number
            }
            None => {
                self.slots.push(Some(slot));
                self.slots.len() as u32
            }
        }
    }

    /// Releases the allocation that begins at this address. Unknown addresses are ignored.
    pub(crate) fn remove(&mut self, address: Address) {
        let (number, offset) = address.in_buffer();
        if let Some(shared) = self.shared.as_mut().filter(|shared| shared.number == number) {
            if let Some(size) = shared.sizes.remove(&(offset as usize)) {
                shared.free.entry(size).or_default().push(offset as usize);
            }
            return;
        }
        let slot = (number as usize).checked_sub(1).and_then(|index| self.slots.get_mut(index)?.take());
        if let Some(slot) = slot {
            self.bytes -= slot.bytes as u64;
            self.free.push(number);
        }
    }

    fn slot(&self, address: Address) -> Option<(&BufferSlot, usize)> {
        let (number, offset) = address.in_buffer();
        let slot = self.slots.get((number as usize).checked_sub(1)?)?.as_ref()?;
        Some((slot, offset as usize))
    }

    /// The buffer of an address, and the offset in it.
    pub(crate) fn find(&self, address: Address) -> Option<(&Buffer, usize)> {
        self.slot(address).map(|(slot, offset)| (&slot.buffer, offset))
    }

    /// The host memory that an address represents.
    pub(crate) fn host_of(&self, address: Address) -> Option<*mut u8> {
        let (slot, offset) = self.slot(address)?;
        slot.host.map(|start| (start + offset) as *mut u8)
    }

    /// Remembers host memory and holds the buffer that keeps it in place.
    pub(crate) fn pin(&mut self, start: *const u8, bytes: usize, kept: Option<Buffer>) {
        self.pinned.insert(start as usize, PinnedMemory { bytes, _kept: kept, number: None });
    }

    pub(crate) fn unpin(&mut self, start: *const u8) {
        if let Some(number) = self.pinned.remove(&(start as usize)).and_then(|pinned| pinned.number) {
            self.remove(Address::of_buffer(number, 0));
        }
    }

    /// Whether a host byte is in pinned memory.
    pub(crate) fn is_pinned(&self, byte: *const u8) -> bool {
        let before = self.pinned.range(..=byte as usize).next_back();
        before.is_some_and(|(start, pinned)| (byte as usize) < start + pinned.bytes)
    }

    /// The address that represents a byte of pinned memory, with a new buffer if necessary. `None`
    /// if the byte is not pinned.
    pub(crate) fn pinned_address(&mut self, byte: *const u8, context: &Context) -> Option<ClResult<Address>> {
        let (start, pinned) = self.pinned.range(..=byte as usize).next_back()?;
        let (start, bytes, number) = (*start, pinned.bytes, pinned.number);
        let offset = (byte as usize - start) as u64;
        if offset >= bytes as u64 {
            return None;
        }
        if let Some(number) = number {
            return Some(Ok(Address::of_buffer(number, offset)));
        }
        let buffer = match context.buffer(bytes) {
            Ok(buffer) => buffer,
            Err(code) => return Some(Err(code)),
        };
        let number = self.place(BufferSlot { buffer, bytes, host: Some(start) });
        if let Some(pinned) = self.pinned.get_mut(&start) {
            pinned.number = Some(number);
        }
        Some(Ok(Address::of_buffer(number, offset)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_memory_is_known_by_its_bytes() {
        let mut buffers = Buffers::default();
        let memory = [0_u8; 64];
        let at = |offset: usize| memory.as_ptr().wrapping_add(offset);
        buffers.pin(at(16), 32, None);
        assert_eq!([0, 15, 16, 47, 48].map(|offset| buffers.is_pinned(at(offset))), [false, false, true, true, false]);
        buffers.unpin(at(16));
        assert!(!buffers.is_pinned(at(16)));
        assert!(buffers.find(Address::NULL).is_none() && buffers.find(Address::of_buffer(7, 0)).is_none());
        buffers.remove(Address::of_buffer(7, 0));
        assert_eq!(buffers.bytes(), 0);
    }
}
