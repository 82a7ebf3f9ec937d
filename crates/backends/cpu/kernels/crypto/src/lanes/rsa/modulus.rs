//! Sums, products and powers modulo a number, of eight numbers at a time. Products are in
//! Montgomery form: divided by R = 2^(bits of the limbs).
//!
//! Numbers need not be less than the modulus N: they are below 8 N, and each product is below 3 N,
//! since R is at least 4096 N.

use zeroize::Zeroizing;

use super::arithmetic::Kind;
use super::kernel::{self, Constants};
use super::limbs::{self, BLOCK, LIMB_BITS, Limbs};
use super::numbers::{LANES, Numbers, Vector};

/// Bits of an exponent that are processed together.
const WINDOW_BITS: usize = 5;
/// Bits by which R is longer than N.
const SPARE_BITS: usize = 12;

/// A modulus with its precomputed constants.
pub(super) struct Modulus {
    pub(super) n: Limbs,
    constants: Constants,
    /// R² modulo N, in each lane.
    square: Numbers,
}

/// A secret exponent.
pub(super) struct SecretExponent(Zeroizing<Vec<u8>>);

impl Modulus {
    /// A modulus of `len` limbs. `None` if the CPU lacks the instructions, and for a modulus that
    /// is even, one, or too long.
    pub(super) fn new(kind: Kind, bytes: &[u8], len: usize) -> Option<Modulus> {
        let n = limbs::from_bytes(bytes, len)?;
        let fits = limbs::bits(&n) > 1 && limbs::bits(&n) + SPARE_BITS <= len * LIMB_BITS && n[0] % 2 == 1;
        (fits && len.is_multiple_of(2 * BLOCK)).then_some(())?;
        let inverse = limbs::negative_inverse(&n);
        // N times this inverse is -1 modulo 2^(bits of a block): the part above, plus one.
        let mut above = Zeroizing::new(limbs::product(&inverse, &n, BLOCK + len)[BLOCK..].to_vec());
        let mut carry = 1;
        for limb in above.iter_mut() {
            carry += *limb;
            *limb = carry & limbs::LIMB_MASK;
            carry >>= LIMB_BITS;
        }
        let operands = |limbs: &[u64]| Zeroizing::new(limbs.iter().map(|limb| kind.operand(*limb)).collect());
        let constants = Constants::new(kind, operands(&n), operands(&above), operands(&inverse))?;
        let square = Numbers::alike(kind, &limbs::power_of_two(2 * len * LIMB_BITS, &n));
        Some(Modulus { n, constants, square })
    }

    /// The kind of multiplication.
    pub(super) fn kind(&self) -> Kind {
        self.constants.kind()
    }

    /// Number of limbs of its numbers.
    pub(super) fn len(&self) -> usize {
        self.n.len()
    }

    /// Its bit length.
    pub(super) fn bits(&self) -> usize {
        limbs::bits(&self.n)
    }

    /// Memory for products.
    pub(super) fn columns(&self) -> Numbers {
        Numbers::zero(2 * self.len())
    }

    /// R^`times` modulo N.
    pub(super) fn power_of_r(&self, times: usize) -> Numbers {
        Numbers::alike(self.kind(), &limbs::power_of_two(times * self.len() * LIMB_BITS, &self.n))
    }

    /// `a b / R`.
    pub(super) fn multiply(&self, a: &mut [Vector], b: &[Vector], columns: &mut Numbers) {
        assert!(a.len() == self.len() && b.len() == self.len() && columns.len() == 2 * self.len());
        // SAFETY: the lengths were asserted.
        unsafe { kernel::multiply(a, b, columns, &self.constants) }
    }

    /// `a a / R`.
    pub(super) fn square(&self, a: &mut [Vector], columns: &mut Numbers) {
        assert!(a.len() == self.len() && columns.len() == 2 * self.len());
        // SAFETY: as above.
        unsafe { kernel::square(a, columns, &self.constants) }
    }

    /// Converts to Montgomery form: `a R`, of numbers below R.
    pub(super) fn enter(&self, a: &mut [Vector], columns: &mut Numbers) {
        self.multiply(a, &self.square, columns);
    }

    /// Converts back: `a / R`.
    pub(super) fn leave(&self, a: &mut [Vector], columns: &mut Numbers) {
        let mut one = Numbers::zero(self.len());
        one[0] = Vector([self.kind().operand(1); LANES]);
        self.multiply(a, &one, columns);
    }

    /// `a + b`; the sum must be below 8 N.
    pub(super) fn add(&self, a: &mut [Vector], b: &[Vector]) {
        assert!(a.len() == self.len() && b.len() == self.len());
        // SAFETY: as above.
        unsafe { kernel::add(a, b, &self.constants) }
    }

    /// `a - b + 4 N`; both must be below 4 N.
    pub(super) fn subtract(&self, a: &mut [Vector], b: &[Vector]) {
        assert!(a.len() == self.len() && b.len() == self.len());
        // SAFETY: as above.
        unsafe { kernel::subtract(a, b, &self.constants) }
    }

    /// The power of numbers below R to a public odd exponent greater than one.
    pub(super) fn raise_public(&self, a: &mut [Vector], exponent: u64, columns: &mut Numbers) {
        let plain = Numbers::extended(a, a.len());
        self.enter(a, columns);
        let base = Numbers::extended(a, a.len());
        for bit in (1..exponent.ilog2()).rev() {
            self.square(a, columns);
            if exponent >> bit & 1 == 1 {
                self.multiply(a, &base, columns);
            }
        }
        self.square(a, columns);
        // The lowest bit is one, and the plain number also converts back from Montgomery form.
        self.multiply(a, &plain, columns);
    }

    /// A secret exponent of at most as many bits as the modulus; `None` if it has more.
    pub(super) fn secret_exponent(&self, exponent: &[u64]) -> Option<SecretExponent> {
        let windows = limbs::windows(exponent, self.bits(), WINDOW_BITS);
        (limbs::bits(exponent) <= self.bits()).then_some(SecretExponent(windows))
    }

    /// The power of numbers in Montgomery form, like the result. The time is the same for every
    /// exponent.
    pub(super) fn raise(&self, a: &mut [Vector], exponent: &SecretExponent, columns: &mut Numbers) {
        let len = self.len();
        assert!(a.len() == len);
        let mut table = Numbers::zero(len << WINDOW_BITS);
        table[..len].copy_from_slice(&self.power_of_r_one());
        table[len..2 * len].copy_from_slice(a);
        for entry in 2..1 << WINDOW_BITS {
            let (below, rest) = table.split_at_mut(entry * len);
            let power = &mut rest[..len];
            power.copy_from_slice(&below[entry / 2 * len..][..len]);
            self.square(power, columns);
            if entry % 2 == 1 {
                self.multiply(power, &below[len..2 * len], columns);
            }
        }
        let mut factor = Numbers::zero(len);
        let select = |digit: u8, to: &mut [Vector]| {
            // SAFETY: a modulus exists only if the CPU has AVX-512 F. The table has an entry of
            // `len` limbs for each digit.
            unsafe { kernel::select(to, &table, digit) }
        };
        let Some((first, digits)) = exponent.0.split_first() else { return };
        select(*first, a);
        for digit in digits {
            for _ in 0..WINDOW_BITS {
                self.square(a, columns);
            }
            select(*digit, &mut factor);
            self.multiply(a, &factor, columns);
        }
    }

    /// One in Montgomery form.
    fn power_of_r_one(&self) -> Numbers {
        let mut one = Numbers::zero(self.len());
        one[0] = Vector([self.kind().operand(1); LANES]);
        self.enter(&mut one, &mut self.columns());
        one
    }
}
