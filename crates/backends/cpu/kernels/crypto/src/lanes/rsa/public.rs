//! Public-key operations.

use super::arithmetic::Kind;
use super::limbs;
use super::modulus::Modulus;
use super::numbers::{LANES, Numbers};

/// Limbs of a modulus, which are twice those of its primes.
const LIMBS: [usize; 3] = [40, 60, 80];
const BITS_MAX: usize = 4096;
/// Maximal length of numbers in bytes.
pub(super) const BYTES_MAX: usize = BITS_MAX / 8;

/// A public key.
pub struct RsaPublic {
    pub(super) modulus: Modulus,
    exponent: u64,
    /// The modulus, big-endian.
    bytes: Vec<u8>,
}

impl RsaPublic {
    /// Takes the modulus, big-endian. `None` if the CPU lacks the instructions, and for a key that
    /// is left to the library: of more than 4096 bits, even, or with an exponent that is even or
    /// one.
    pub fn new(modulus: &[u8], exponent: u64) -> Option<RsaPublic> {
        RsaPublic::with_kind(Kind::detected()?, modulus, exponent)
    }

    /// The same, with this kind of multiplication.
    pub(super) fn with_kind(kind: Kind, modulus: &[u8], exponent: u64) -> Option<RsaPublic> {
        crate::lanes::entries::enter();
        (exponent % 2 == 1 && exponent > 1).then_some(())?;
        let modulus = LIMBS.iter().find_map(|limbs| Modulus::new(kind, modulus, *limbs))?;
        (modulus.bits() <= BITS_MAX).then_some(())?;
        let mut bytes = vec![0; modulus.bits().div_ceil(8)];
        limbs::to_bytes(&modulus.n, &mut bytes);
        Some(RsaPublic { modulus, exponent, bytes })
    }

    /// Length of its numbers in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Bit length of the modulus.
    pub fn bits(&self) -> usize {
        self.modulus.bits()
    }

    /// Whether a number has the length of the modulus and is below it.
    pub fn takes(&self, number: &[u8]) -> bool {
        number.len() == self.bytes.len() && number < &self.bytes[..]
    }

    /// Raises up to eight numbers accepted by `takes`. The results are written one
    /// after the other.
    pub fn raise(&self, numbers: &[&[u8]], out: &mut [u8]) {
        assert!(numbers.len() <= LANES && numbers.iter().all(|number| number.len() == self.bytes()));
        let mut powers = Numbers::from_bytes(self.modulus.kind(), numbers, self.modulus.len());
        self.raise_numbers(&mut powers);
        for (lane, out) in out.chunks_exact_mut(self.bytes()).enumerate().take(numbers.len()) {
            powers.write(self.modulus.kind(), lane, &self.modulus.n, out);
        }
    }

    /// The same for numbers in lanes.
    pub(super) fn raise_numbers(&self, numbers: &mut Numbers) {
        self.modulus.raise_public(numbers, self.exponent, &mut self.modulus.columns());
    }
}
