//! Private-key operations: powers modulo the two primes, combined by the Chinese remainder theorem.
//!
//! 1. Numbers are blinded: multiplied by random numbers B, so that a sender of messages does not
//!    know the base of the power. The results are multiplied by B^-d.
//! 2. B^-d is computed by the same steps as a signature, with the exponents p - 1 - dP and q - 1 -
//!    dQ. Both B and B^-d are squared after each use. They are drawn again after [`BLINDED_MAX`]
//!    uses, and in another process, which may be a fork of one that uses them too.
//! 3. No signature is released unless its public power gives the original number: a fault in one
//!    of the two powers would reveal the primes.

use std::sync::{Mutex, MutexGuard, TryLockError};

use super::arithmetic::Kind;
use super::limbs::{self, LIMB_BITS, LIMB_MASK, Limbs};
use super::modulus::{Modulus, SecretExponent};
use super::numbers::{LANES, Numbers, Vector};
use super::public::{BYTES_MAX, RsaPublic};
use crate::random::fill_random;
use panoply_core::process::Process;

/// Maximal number of uses of a blinding pair.
const BLINDED_MAX: usize = 32;
/// Maximal number of attempts to take the lock of the free pairs.
const LOCK_TRIES_MAX: usize = 1000;

/// The numbers of a private key, big-endian.
pub struct RsaPrivateParts<'a> {
    /// The modulus.
    pub modulus: &'a [u8],
    /// The public exponent.
    pub exponent: u64,
    /// The primes p and q.
    pub primes: [&'a [u8]; 2],
    /// d modulo p - 1 and q - 1.
    pub exponents: [&'a [u8]; 2],
    /// The inverse of q modulo p.
    pub coefficient: &'a [u8],
}

/// A private key. Wiped when dropped.
pub struct RsaPrivate {
    public: RsaPublic,
    primes: [RsaPrime; 2],
    /// dP and dQ.
    exponents: [SecretExponent; 2],
    /// p - 1 - dP and q - 1 - dQ.
    complements: [SecretExponent; 2],
    /// The inverse of q modulo p.
    coefficient: Numbers,
    /// q in the Montgomery form of the modulus.
    second: Numbers,
    /// Pairs that no thread is using.
    blindings: Mutex<Vec<Blinding>>,
}

/// Random numbers B and B^-d, both in Montgomery form.
struct Blinding {
    number: Numbers,
    inverse: Numbers,
    uses: usize,
    process: Process,
}

/// One of the two primes.
pub struct RsaPrime {
    modulus: Modulus,
    /// R³: the upper half of a number is multiplied by R³, the lower half by R².
    cube: Numbers,
}

impl RsaPrime {
    /// A prime for numbers of twice `limbs` limbs.
    fn with_limbs(kind: Kind, bytes: &[u8], limbs: usize) -> Option<RsaPrime> {
        crate::lanes::entries::enter();
        let modulus = Modulus::new(kind, bytes, limbs)?;
        let cube = modulus.power_of_r(3);
        Some(RsaPrime { modulus, cube })
    }

    /// A prime of at most 2048 bits, to compute powers directly. `None` if the CPU lacks the
    /// instructions, and if it is even, one, or longer.
    pub fn new(bytes: &[u8]) -> Option<RsaPrime> {
        RsaPrime::with_kind(Kind::detected()?, bytes)
    }

    /// The same for each kind of arithmetic that this CPU has, with its name: to test all of them.
    pub fn of_each_level(bytes: &[u8]) -> Vec<(&'static str, RsaPrime)> {
        let kinds = [("doubles of AVX-512", Kind::Doubles), ("integers of IFMA", Kind::Integers)];
        let there = kinds.into_iter().filter(|(_, kind)| kind.is_there());
        there.filter_map(|(name, kind)| Some((name, RsaPrime::with_kind(kind, bytes)?))).collect()
    }

    /// The same, with this kind of multiplication.
    pub(super) fn with_kind(kind: Kind, bytes: &[u8]) -> Option<RsaPrime> {
        [20, 30, 40].iter().find_map(|limbs| RsaPrime::with_limbs(kind, bytes, *limbs))
    }

    /// Raises up to eight numbers, each as long as the prime, to an exponent that is not longer.
    /// The results are written one after the other. Returns false if a number is too long.
    pub fn raise(&self, numbers: &[&[u8]], exponent: &[u8], out: &mut [u8]) -> bool {
        let bytes = self.modulus.bits().div_ceil(8);
        let exponent =
            limbs::from_bytes(exponent, self.modulus.len()).and_then(|limbs| self.modulus.secret_exponent(&limbs));
        let fit = numbers.len() <= LANES && numbers.iter().all(|number| number.len() == bytes);
        let Some(exponent) = exponent.filter(|_| fit) else { return false };
        let (mut powers, mut columns) =
            (Numbers::from_bytes(self.modulus.kind(), numbers, self.modulus.len()), self.modulus.columns());
        self.modulus.enter(&mut powers, &mut columns);
        self.modulus.raise(&mut powers, &exponent, &mut columns);
        self.modulus.leave(&mut powers, &mut columns);
        for (lane, out) in out.chunks_exact_mut(bytes).enumerate().take(numbers.len()) {
            powers.write(self.modulus.kind(), lane, &self.modulus.n, out);
        }
        true
    }

    /// The power of a number of twice as many limbs, in Montgomery form.
    fn power(&self, number: &[Vector], exponent: &SecretExponent, columns: &mut Numbers) -> Numbers {
        let (low, high) = number.split_at(self.modulus.len());
        let (mut base, mut above) = (Numbers::extended(low, low.len()), Numbers::extended(high, high.len()));
        self.modulus.enter(&mut base, columns);
        self.modulus.multiply(&mut above, &self.cube, columns);
        self.modulus.add(&mut base, &above);
        self.modulus.raise(&mut base, exponent, columns);
        base
    }

    /// The prime minus one minus `exponent`.
    fn complement(&self, exponent: &[u64]) -> Limbs {
        let mut out = limbs::zero(exponent.len());
        let mut borrow = -1_i64;
        for ((out, n), exponent) in out.iter_mut().zip(self.modulus.n.iter()).zip(exponent) {
            borrow += *n as i64 - *exponent as i64;
            *out = borrow as u64 & LIMB_MASK;
            borrow >>= LIMB_BITS;
        }
        out
    }
}

impl RsaPrivate {
    /// Takes the numbers of a key that the library accepts. `None` if the CPU lacks the
    /// instructions, and for a key that is left to the library, such as one whose primes have
    /// clearly different lengths.
    pub fn new(parts: &RsaPrivateParts<'_>) -> Option<RsaPrivate> {
        RsaPrivate::with_kind(Kind::detected()?, parts)
    }

    /// The same, with this kind of multiplication.
    pub(super) fn with_kind(kind: Kind, parts: &RsaPrivateParts<'_>) -> Option<RsaPrivate> {
        let public = RsaPublic::with_kind(kind, parts.modulus, parts.exponent)?;
        let len = public.modulus.len() / 2;
        let [p, q] = parts.primes.map(|prime| RsaPrime::with_limbs(kind, prime, len));
        let primes = [p?, q?];
        let [d_p, d_q] = parts.exponents.map(|exponent| limbs::from_bytes(exponent, len));
        let plain = [d_p?, d_q?];
        let complements = [0, 1].map(|prime| primes[prime].complement(&plain[prime]));
        let windows = |exponents: &[Limbs; 2]| {
            let [p, q] = [0, 1].map(|prime| primes[prime].modulus.secret_exponent(&exponents[prime]));
            Some([p?, q?])
        };
        let (exponents, complements) = (windows(&plain)?, windows(&complements)?);
        let coefficient = limbs::from_bytes(parts.coefficient, len)?;
        (limbs::bits(&coefficient) <= primes[0].modulus.bits()).then_some(())?;
        let mut second = Numbers::extended(&Numbers::alike(kind, &primes[1].modulus.n), 2 * len);
        public.modulus.enter(&mut second, &mut public.modulus.columns());
        let (coefficient, blindings) = (Numbers::alike(kind, &coefficient), Mutex::default());
        Some(RsaPrivate { public, primes, exponents, complements, coefficient, second, blindings })
    }

    /// The public key.
    pub fn public(&self) -> &RsaPublic {
        &self.public
    }

    /// Raises up to eight numbers that the public key takes to the private exponent. The results
    /// are written one after the other. Returns for each whether it was verified; the others are
    /// zero.
    pub fn raise(&self, numbers: &[&[u8]], out: &mut [u8]) -> [bool; LANES] {
        let bytes = self.public.bytes();
        assert!(numbers.len() <= LANES && numbers.iter().all(|number| number.len() == bytes));
        let mut right = [false; LANES];
        out.fill(0);
        let Some(mut blinding) = self.blinding() else { return right };
        let modulus = &self.public.modulus;
        let (mut powers, mut columns) =
            (Numbers::from_bytes(modulus.kind(), numbers, modulus.len()), modulus.columns());
        modulus.multiply(&mut powers, &blinding.number, &mut columns);
        let mut powers = self.signed(&powers, &self.exponents);
        modulus.multiply(&mut powers, &blinding.inverse, &mut columns);
        modulus.square(&mut blinding.number, &mut columns);
        modulus.square(&mut blinding.inverse, &mut columns);
        blinding.uses += 1;
        let mut checked = Numbers::extended(&powers, powers.len());
        self.public.raise_numbers(&mut checked);
        let mut again = [0; BYTES_MAX];
        for (lane, (number, out)) in numbers.iter().zip(out.chunks_exact_mut(bytes)).enumerate() {
            checked.write(modulus.kind(), lane, &modulus.n, &mut again[..bytes]);
            right[lane] = again[..bytes] == **number;
            if right[lane] {
                powers.write(modulus.kind(), lane, &modulus.n, out);
            }
        }
        // A pair that a fault has spoiled is not reused.
        if right[..numbers.len()].iter().all(|right| *right)
            && let Some(mut free) = self.free_blindings()
        {
            free.push(blinding);
        }
        right
    }

    /// Raises numbers to both exponents modulo the primes, and combines the results.
    fn signed(&self, numbers: &[Vector], exponents: &[SecretExponent; 2]) -> Numbers {
        let [p, q] = &self.primes;
        let (mut columns, mut wide) = (p.modulus.columns(), self.public.modulus.columns());
        let mut first = p.power(numbers, &exponents[0], &mut columns);
        let mut second = q.power(numbers, &exponents[1], &mut columns);
        q.modulus.leave(&mut second, &mut columns);
        let mut both = Numbers::extended(&second, second.len());
        p.modulus.enter(&mut both, &mut columns);
        // second + q ((first - second) / q modulo p)
        p.modulus.subtract(&mut first, &both);
        p.modulus.multiply(&mut first, &self.coefficient, &mut columns);
        let mut answer = Numbers::extended(&first, wide.len() / 2);
        self.public.modulus.multiply(&mut answer, &self.second, &mut wide);
        self.public.modulus.add(&mut answer, &Numbers::extended(&second, wide.len() / 2));
        answer
    }

    /// A pair that no other thread uses; `None` if there is no randomness, or the key is invalid.
    fn blinding(&self) -> Option<Blinding> {
        let taken = self.free_blindings().and_then(|mut free| free.pop());
        let is_fresh = |pair: &Blinding| pair.uses < BLINDED_MAX && pair.process.is_current();
        taken.filter(is_fresh).or_else(|| self.new_blinding())
    }

    /// The free pairs. `None` if their lock cannot be had: in a fork, a thread that does not exist
    /// there may hold it for ever.
    fn free_blindings(&self) -> Option<MutexGuard<'_, Vec<Blinding>>> {
        for _ in 0..LOCK_TRIES_MAX {
            match self.blindings.try_lock() {
                Ok(free) => return Some(free),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            }
        }
        None
    }

    /// Holds the lock of the free pairs, as another thread may while this process forks.
    #[cfg(all(test, unix))]
    pub fn hold_blindings(&self) -> impl Sized + '_ {
        self.blindings.lock()
    }

    fn new_blinding(&self) -> Option<Blinding> {
        // Before the numbers are drawn: a fork meanwhile copies them.
        let process = Process::current();
        let (modulus, bytes) = (&self.public.modulus, self.public.bytes());
        let mut random = zeroize::Zeroizing::new(vec![0; LANES * bytes]);
        fill_random(&mut random).then_some(())?;
        // One bit less than the modulus, so that the numbers are below it.
        let mask = ((1_u16 << ((modulus.bits() - 1) % 8)) - 1) as u8;
        random.chunks_exact_mut(bytes).for_each(|number| number[0] &= mask);
        let random: Vec<&[u8]> = random.chunks_exact(bytes).collect();
        let mut columns = modulus.columns();
        let mut number = Numbers::from_bytes(modulus.kind(), &random, modulus.len());
        let mut inverse = self.signed(&number, &self.complements);
        modulus.enter(&mut number, &mut columns);
        // The inverse to the public exponent, times the number, must be one.
        let mut checked = Numbers::extended(&inverse, inverse.len());
        self.public.raise_numbers(&mut checked);
        modulus.multiply(&mut checked, &number, &mut columns);
        let mut one = vec![0; bytes];
        let is_one = |lane: usize| {
            checked.write(modulus.kind(), lane, &modulus.n, &mut one);
            one.last() == Some(&1) && one[..bytes - 1].iter().all(|byte| *byte == 0)
        };
        (0..LANES).all(is_one).then_some(())?;
        modulus.enter(&mut inverse, &mut columns);
        Some(Blinding { number, inverse, uses: 0, process })
    }
}
