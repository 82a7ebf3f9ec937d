//! Checks of 16 to 64 bits by carry-less products, and byte by byte where the CPU has none.
//!
//! A check of n bits is computed as one of 64: its polynomial is multiplied by x^(64 - n), which
//! multiplies every remainder by the same power. Bits are reflected, so the lowest bit of a number
//! is the coefficient of the highest power. There both polynomials are the same number, and so are
//! both remainders. Checks that take the highest bit of a byte first get bytes with their bits
//! reversed, and their result is reversed.
//!
//! A message is folded: its first 16 bytes, times a power of x, are a remainder that is added to
//! bytes further on. Of the last 16 bytes the remainder is found by Barrett's method, which divides
//! with two products.

/// The product of two polynomials without carries.
pub(super) trait Multiply {
    fn multiply(&self, a: u64, b: u64) -> u128;
}

/// The constants of one check.
pub(super) struct Folding {
    pub(super) bits: u32,
    /// The initial value and the value that is added at the end, reflected.
    pub(super) begin: u64,
    pub(super) end: u64,
    /// Whether bits are taken from the highest of each byte to the lowest.
    pub(super) is_turned: bool,
    /// The polynomial of degree 64, reflected, without its highest coefficient.
    pub(super) polynomial: u64,
    /// x^128 divided by the polynomial, reflected, without its highest coefficient.
    pub(super) inverse: u64,
    /// Factors of the first and of the second half of 16 bytes, to move them on by 16, 64 and 256
    /// bytes.
    pub(super) by_16: [u64; 2],
    pub(super) by_64: [u64; 2],
    pub(super) by_256: [u64; 2],
    /// The remainder of each byte times x^64.
    table: [u64; 256],
}

impl Folding {
    pub(super) const fn new(bits: u32, polynomial: u64, begin: u64, end: u64, is_turned: bool) -> Folding {
        let mut table = [0; 256];
        let mut byte = 0;
        while byte < 256 {
            table[byte] = times_x(byte as u64, polynomial, 8);
            byte += 1;
        }
        let (mut inverse, mut rest, mut at) = (0, polynomial, 0);
        while at < 64 {
            inverse |= (rest & 1) << at;
            rest = times_x(rest, polynomial, 1);
            at += 1;
        }
        Folding {
            bits,
            begin,
            end,
            is_turned,
            polynomial,
            inverse,
            by_16: moved_by(128, polynomial),
            by_64: moved_by(512, polynomial),
            by_256: moved_by(2048, polynomial),
            table,
        }
    }

    /// The check of a message whose remainder is given.
    pub(super) fn finish(&self, remainder: u64) -> u64 {
        let check = remainder ^ self.end;
        if self.is_turned { check.reverse_bits() >> (64 - self.bits) } else { check }
    }

    /// The check of a message, byte by byte.
    pub(super) fn by_bytes(&self, message: &[u8]) -> u64 {
        let remainder = message.iter().fold(self.begin, |state, byte| {
            let byte = if self.is_turned { byte.reverse_bits() } else { *byte };
            self.table[usize::from(state as u8 ^ byte)] ^ state >> 8
        });
        self.finish(remainder)
    }

    /// The check of a message, 16 bytes at a time.
    #[inline(always)]
    pub(super) fn by_products(&self, message: &[u8], unit: &impl Multiply) -> u64 {
        let (blocks, tail) = message.as_chunks::<16>();
        let Some((first, blocks)) = blocks.split_first() else {
            return self.finish(self.short(tail, unit));
        };
        let mut state = self.block(first) ^ u128::from(self.begin);
        for block in blocks {
            state = fold(state, self.by_16, unit) ^ self.block(block);
        }
        self.finish(self.last(state, tail, unit))
    }

    fn block(&self, bytes: &[u8; 16]) -> u128 {
        if self.is_turned { u128::from_be_bytes(*bytes).reverse_bits() } else { u128::from_le_bytes(*bytes) }
    }

    /// The remainder of a message of fewer than 16 bytes.
    #[inline(always)]
    pub(super) fn short(&self, message: &[u8], unit: &impl Multiply) -> u64 {
        debug_assert!(message.len() < 16);
        let Some(bits) = u32::try_from(8 * message.len()).ok().filter(|bits| *bits > 0) else {
            return self.begin;
        };
        let mut padded = [0; 16];
        padded[..message.len()].copy_from_slice(message);
        let state = self.block(&padded) ^ u128::from(self.begin);
        // The bytes of the message at the end of 16. The bytes of the initial value beyond
        // them are a part of the remainder already.
        let beyond = if bits < 64 { (state >> bits) as u64 } else { 0 };
        self.remainder(state << (128 - bits), unit) ^ beyond
    }

    /// The remainder of a folded message and of the fewer than 16 bytes behind it.
    #[inline(always)]
    pub(super) fn last(&self, state: u128, tail: &[u8], unit: &impl Multiply) -> u64 {
        debug_assert!(tail.len() < 16);
        if tail.is_empty() {
            return self.remainder(state, unit);
        }
        let bits = 8 * tail.len();
        let mut padded = [0; 16];
        padded[..tail.len()].copy_from_slice(tail);
        // The first bytes of the state are folded, one for each byte of the tail: 16 are left.
        let left = state >> bits | self.block(&padded) << (128 - bits);
        self.remainder(fold(state << (128 - bits), self.by_16, unit) ^ left, unit)
    }

    /// The remainder of 16 bytes times x^64.
    #[inline(always)]
    fn remainder(&self, state: u128, unit: &impl Multiply) -> u64 {
        // The first half, times x^128, is moved on by half a block: 8 bytes, times x^64, are left.
        let moved = unit.multiply(state as u64, self.by_16[1]);
        let (high, low) = (moved as u64 ^ (state >> 64) as u64, (moved >> 64) as u64);
        let quotient = high ^ (unit.multiply(high, self.inverse) as u64) << 1;
        (unit.multiply(quotient, self.polynomial) >> 63) as u64 ^ low
    }
}

/// Moves 16 bytes on by the distance of the factors.
#[inline(always)]
fn fold(state: u128, factors: [u64; 2], unit: &impl Multiply) -> u128 {
    unit.multiply(state as u64, factors[0]) ^ unit.multiply((state >> 64) as u64, factors[1])
}

/// Factors that move 16 bytes on by some bits: x to that power, and for the first half to 64 more.
/// Products of reflected numbers come out times x, so the powers are one lower.
const fn moved_by(bits: u32, polynomial: u64) -> [u64; 2] {
    let one = 1 << 63;
    [times_x(one, polynomial, bits + 63), times_x(one, polynomial, bits - 1)]
}

/// The remainder of a reflected polynomial times x to some power.
const fn times_x(mut value: u64, polynomial: u64, mut power: u32) -> u64 {
    while power > 0 {
        value = value >> 1 ^ polynomial & (value & 1).wrapping_neg();
        power -= 1;
    }
    value
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Products bit by bit.
    pub struct Plain;

    impl Multiply for Plain {
        fn multiply(&self, a: u64, b: u64) -> u128 {
            (0..64).filter(|bit| b >> bit & 1 == 1).fold(0, |sum, bit| sum ^ u128::from(a) << bit)
        }
    }

    #[test]
    fn products_and_bytes_agree() {
        let bytes: Vec<u8> = (0..200_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for folding in super::super::FOLDINGS {
            for len in 0..=bytes.len() {
                let message = &bytes[bytes.len() - len..];
                assert_eq!(folding.by_products(message, &Plain), folding.by_bytes(message), "{} {len}", folding.bits);
            }
        }
    }
}
