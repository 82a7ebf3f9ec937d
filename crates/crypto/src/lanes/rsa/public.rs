//! What a public key does.

use super::arithmetic::Kind;
use super::limbs;
use super::modulus::Modulus;
use super::numbers::{LANES, Numbers};

/// Limbs of a modulus, which are twice those of its primes.
const LIMBS: [usize; 3] = [40, 60, 80];
const BITS_MAX: usize = 4096;
/// How long numbers are at most.
pub(super) const BYTES_MAX: usize = BITS_MAX / 8;

/// A public key.
pub struct RsaPublic {
    pub(super) modulus: Modulus,
    exponent: u64,
    /// The modulus, the highest byte first.
    bytes: Vec<u8>,
}

impl RsaPublic {
    /// From the modulus, the highest byte first. `None` where the CPU lacks the instructions, and for a key that is left to the library: of more than 4096
    /// bits, even, or with an even exponent, or of one.
    pub fn new(modulus: &[u8], exponent: u64) -> Option<RsaPublic> {
        RsaPublic::with_kind(Kind::detected()?, modulus, exponent)
    }

    /// The same, with limbs multiplied in this way.
    pub(super) fn with_kind(kind: Kind, modulus: &[u8], exponent: u64) -> Option<RsaPublic> {
        (exponent % 2 == 1 && exponent > 1).then_some(())?;
        let modulus = LIMBS.iter().find_map(|limbs| Modulus::new(kind, modulus, *limbs))?;
        (modulus.bits() <= BITS_MAX).then_some(())?;
        let mut bytes = vec![0; modulus.bits().div_ceil(8)];
        limbs::to_bytes(&modulus.n, &mut bytes);
        Some(RsaPublic { modulus, exponent, bytes })
    }

    /// How long its numbers are.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// How many bits the modulus has.
    pub fn bits(&self) -> usize {
        self.modulus.bits()
    }

    /// Whether a number is as long as the modulus, and less.
    pub fn takes(&self, number: &[u8]) -> bool {
        number.len() == self.bytes.len() && number < &self.bytes[..]
    }

    /// Raises up to eight numbers that it takes. The answers are written one behind the other.
    pub fn raise(&self, numbers: &[&[u8]], out: &mut [u8]) {
        assert!(numbers.len() <= LANES && numbers.iter().all(|number| number.len() == self.bytes()));
        let mut powers = Numbers::from_bytes(self.modulus.kind(), numbers, self.modulus.len());
        self.raise_numbers(&mut powers);
        for (lane, out) in out.chunks_exact_mut(self.bytes()).enumerate().take(numbers.len()) {
            powers.write(self.modulus.kind(), lane, &self.modulus.n, out);
        }
    }

    /// The same in lanes.
    pub(super) fn raise_numbers(&self, numbers: &mut Numbers) {
        self.modulus.raise_public(numbers, self.exponent, &mut self.modulus.columns());
    }
}
