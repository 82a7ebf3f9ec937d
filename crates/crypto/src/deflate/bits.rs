//! A writer of bits, the lowest first.

/// Writes bits to memory of which every write takes eight bytes.
pub struct Bits {
    place: *mut u8,
    held: u64,
    /// How many bits are held: fewer than eight between writes.
    count: u32,
}

impl Bits {
    /// Goes on at `place`, with `held` in the lowest `count` bits, fewer than eight.
    pub fn new(place: *mut u8, held: u64, count: u32) -> Bits {
        Bits { place, held, count }
    }

    /// Writes up to 56 bits, of which all above the lowest `count` are zero.
    ///
    /// # Safety
    /// There must be eight bytes at the writer's place.
    #[inline(always)]
    pub unsafe fn put(&mut self, bits: u64, count: u32) {
        self.held |= bits << self.count;
        self.count += count;
        // SAFETY: the caller's.
        unsafe { self.place.cast::<u64>().write_unaligned(self.held.to_le()) };
        let whole = self.count >> 3;
        // SAFETY: those are seven bytes at most, of the eight.
        self.place = unsafe { self.place.add(whole as usize) };
        // All but the sign of 63 at most.
        self.held >>= self.count & 56;
        self.count &= 7;
    }

    /// Where it is, what it holds, and how many bits of that.
    pub fn state(&self) -> (*mut u8, u64, u32) {
        (self.place, self.held, self.count)
    }
}
