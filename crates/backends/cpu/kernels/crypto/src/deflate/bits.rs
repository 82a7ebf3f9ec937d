//! A bit writer, lowest bit first.

/// Writes bits to memory; each write stores eight bytes.
pub struct Bits {
    place: *mut u8,
    held: u64,
    /// Number of buffered bits: fewer than eight between writes.
    count: u32,
}

impl Bits {
    /// Continues at `place` with `held` in the lowest `count` bits; `count` is below eight.
    pub fn new(place: *mut u8, held: u64, count: u32) -> Bits {
        Bits { place, held, count }
    }

    /// Writes up to 56 bits; all bits above the lowest `count` must be zero.
    ///
    /// # Safety
    /// There must be eight bytes at the writer's place.
    #[inline(always)]
    pub unsafe fn put(&mut self, bits: u64, count: u32) {
        self.held |= bits << self.count;
        self.count += count;
        // SAFETY: guaranteed by the caller.
        unsafe { self.place.cast::<u64>().write_unaligned(self.held.to_le()) };
        let whole = self.count >> 3;
        // SAFETY: at most seven of the eight bytes are complete.
        self.place = unsafe { self.place.add(whole as usize) };
        // The shift is a multiple of eight, at most 56.
        self.held >>= self.count & 56;
        self.count &= 7;
    }

    /// The current position, the buffered bits, and their number.
    pub fn state(&self) -> (*mut u8, u64, u32) {
        (self.place, self.held, self.count)
    }
}
