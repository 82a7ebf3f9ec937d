//! The arena: one buffer that is cut into slots, each for one small tensor.
//!
//! Kernels that see the whole arena run many small maps in one dispatch ([`crate::joined`]). The
//! arena holds small tensors that came from the host, and the outputs of such kernels. All other
//! outputs have a block of their own: the API forbids one dispatch to read a buffer through one
//! binding and write it through another.

use std::cell::RefCell;
use std::rc::Rc;

use crate::driver::Driver;
use crate::joined::ArenaPosition;

/// Size of a slot: a larger tensor has a block of its own.
pub const SLOT_BYTES: usize = 4096;
/// The largest size of an arena.
const ARENA_BYTES_MAX: u64 = 64 << 20;
/// The fewest slots that are worth an arena.
const SLOTS_MIN: u64 = 16;
/// The unit of a `ArenaPosition`.
const VECTOR_BYTES: usize = 16;

/// The buffer and its free slots. It belongs to one thread, like everything that holds a slot.
pub struct Arena<D: Driver> {
    /// Unique among this process' blocks.
    pub(crate) id: u64,
    pub(crate) buffer: D::Buffer,
    slots: u32,
    /// A stack: the slot that came back last is lent first.
    free: RefCell<Vec<u32>>,
}

impl<D: Driver> Arena<D> {
    /// Size in bytes of an arena within `limit`; `None` if that is too small.
    pub fn bytes_within(limit: u64) -> Option<u64> {
        let slots = limit.min(ARENA_BYTES_MAX) / SLOT_BYTES as u64;
        (slots >= SLOTS_MIN).then_some(slots * SLOT_BYTES as u64)
    }

    pub fn new(id: u64, buffer: D::Buffer, bytes: u64) -> Rc<Arena<D>> {
        let slots = (bytes / SLOT_BYTES as u64) as u32;
        Rc::new(Arena { id, buffer, slots, free: RefCell::new((0..slots).rev().collect()) })
    }

    /// Lends a slot with the old contents of its last user; `None` if all slots are lent.
    pub fn lend(self: &Rc<Arena<D>>) -> Option<ArenaSlot<D>> {
        let number = self.free.borrow_mut().pop()?;
        Some(ArenaSlot { number, arena: Rc::clone(self) })
    }

    /// Size of the arena in bytes.
    pub fn bytes(&self) -> u64 {
        u64::from(self.slots) * SLOT_BYTES as u64
    }

    /// Number of lent bytes and of free bytes.
    pub fn lent_and_free_bytes(&self) -> (u64, u64) {
        let free = self.free.borrow().len() as u64 * SLOT_BYTES as u64;
        (self.bytes() - free, free)
    }
}

/// A part of an arena on loan. Dropping the slot gives it back.
pub struct ArenaSlot<D: Driver> {
    number: u32,
    arena: Rc<Arena<D>>,
}

impl<D: Driver> ArenaSlot<D> {
    /// The arena.
    pub fn arena(&self) -> &Rc<Arena<D>> {
        &self.arena
    }

    /// Offset of the first byte from the arena's start.
    pub fn start(&self) -> usize {
        self.number as usize * SLOT_BYTES
    }

    /// The place of a vector that begins `bytes` bytes after the slot's start.
    pub fn place(&self, bytes: usize) -> ArenaPosition {
        ArenaPosition { slot: self.number, vector: ((self.start() + bytes) / VECTOR_BYTES) as u32 }
    }
}

impl<D: Driver> Drop for ArenaSlot<D> {
    fn drop(&mut self) {
        self.arena.free.borrow_mut().push(self.number);
    }
}
