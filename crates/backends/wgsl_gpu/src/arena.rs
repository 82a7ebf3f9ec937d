//! The arena: one buffer that is cut into slots, each for one small tensor.
//!
//! Kernels that see the whole of it run many small maps in one dispatch ([`crate::joined`]). Two things lie in it: small
//! tensors that came from the host, and what such kernels made. Whatever else is made has a block of its own: the API
//! forbids that one dispatch reads a buffer through one binding and writes it through another.

use std::cell::RefCell;
use std::rc::Rc;

use crate::driver::Driver;
use crate::joined::Place;

/// The bytes of a slot: a tensor that needs more has a block of its own.
pub const SLOT_BYTES: usize = 4096;
/// The most bytes of an arena.
const ARENA_BYTES_MAX: u64 = 64 << 20;
/// An arena of fewer slots is not worth having.
const SLOTS_MIN: u64 = 16;
/// Places are counted in these.
const VECTOR_BYTES: usize = 16;

/// The buffer, and which of its slots are free. It belongs to one thread, like everything that holds a slot.
pub struct Arena<D: Driver> {
    /// Unique among this process' blocks.
    pub(crate) id: u64,
    pub(crate) buffer: D::Buffer,
    slots: u32,
    /// The slot that came back last is given out first.
    free: RefCell<Vec<u32>>,
}

impl<D: Driver> Arena<D> {
    /// The bytes of an arena where so many are allowed; nothing where they are too few.
    pub fn bytes_within(limit: u64) -> Option<u64> {
        let slots = limit.min(ARENA_BYTES_MAX) / SLOT_BYTES as u64;
        (slots >= SLOTS_MIN).then_some(slots * SLOT_BYTES as u64)
    }

    pub fn new(id: u64, buffer: D::Buffer, bytes: u64) -> Rc<Arena<D>> {
        let slots = (bytes / SLOT_BYTES as u64) as u32;
        Rc::new(Arena { id, buffer, slots, free: RefCell::new((0..slots).rev().collect()) })
    }

    /// A slot, with whatever its last user left; nothing where all are lent.
    pub fn lend(self: &Rc<Arena<D>>) -> Option<Slot<D>> {
        let number = self.free.borrow_mut().pop()?;
        Some(Slot { number, arena: Rc::clone(self) })
    }

    /// All its bytes.
    pub fn bytes(&self) -> u64 {
        u64::from(self.slots) * SLOT_BYTES as u64
    }

    /// The bytes that are lent, and those that are not.
    pub fn lent_and_free_bytes(&self) -> (u64, u64) {
        let free = self.free.borrow().len() as u64 * SLOT_BYTES as u64;
        (self.bytes() - free, free)
    }
}

/// A part of an arena on loan. Dropping it gives it back.
pub struct Slot<D: Driver> {
    number: u32,
    arena: Rc<Arena<D>>,
}

impl<D: Driver> Slot<D> {
    /// The arena.
    pub fn arena(&self) -> &Rc<Arena<D>> {
        &self.arena
    }

    /// The first byte, counted from the arena's start.
    pub fn start(&self) -> usize {
        self.number as usize * SLOT_BYTES
    }

    /// The place of a vector that begins so many bytes behind the slot's start.
    pub fn place(&self, bytes: usize) -> Place {
        Place { slot: self.number, vector: ((self.start() + bytes) / VECTOR_BYTES) as u32 }
    }
}

impl<D: Driver> Drop for Slot<D> {
    fn drop(&mut self) {
        self.arena.free.borrow_mut().push(self.number);
    }
}
