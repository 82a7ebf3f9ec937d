//! RSA keys: AWS-LC's, with batches in lanes if the CPU has them.
//!
//! * [`der`]: the numbers of a key.
//! * [`encoding`]: the number for a digest.
//!
//! AWS-LC reads every key first: a key that it refuses is refused. It also does everything that
//! the lanes do not accept, or cannot verify.

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der, PublicKeyX509Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{self as library, ParsedPublicKey};
use panoply_core::locked::SecretBox;
use panoply_core::once::OnceBox;
use panoply_core::op::crypto::{HashAlgorithm, RsaPadding};
use zeroize::Zeroizing;

use crate::failure::Failure;
use crate::hash::hash as hash_into;
use crate::lanes::{RSA_LANES, RsaPrivate, RsaPrivateParts, RsaPublic, detected_for_rsa};
use crate::random::fill_random;

mod der;
mod encoding;

use encoding::DIGEST_BYTES_MAX;

/// Number of messages that are signed or verified together.
pub const RSA_GROUP: usize = RSA_LANES;
/// A group in lanes takes about as long as this many messages one by one.
pub const RSA_GROUP_COST: usize = 4;

/// How digests become numbers.
#[derive(Clone, Copy)]
pub struct Encoding {
    /// The padding.
    pub padding: RsaPadding,
    /// The hash of the messages.
    pub hash: HashAlgorithm,
}

/// A private key.
pub struct RsaSigningKey {
    key: library::RsaKeyPair,
    library: &'static dyn library::RsaEncoding,
    encoding: Encoding,
    /// Made when a batch first needs them.
    lanes: OnceBox<SecretBox<Option<RsaPrivate>>>,
}

/// A public key.
pub struct RsaVerifyingKey {
    encoding: Encoding,
    /// Made when a batch first needs them.
    lanes: OnceBox<Option<RsaPublic>>,
}

impl RsaSigningKey {
    /// Takes PKCS#8; `None` if it is malformed or weak.
    pub fn new(pkcs8: &[u8], encoding: Encoding, library: &'static dyn library::RsaEncoding) -> Option<RsaSigningKey> {
        let key = library::RsaKeyPair::from_pkcs8(pkcs8).ok()?;
        Some(RsaSigningKey { key, library, encoding, lanes: OnceBox::new() })
    }

    /// Length of its signatures.
    pub fn bytes(&self) -> usize {
        self.key.public_modulus_len()
    }

    /// Writes the signature of a message.
    pub fn sign(&self, message: &[u8], out: &mut [u8]) -> Result<(), Failure> {
        self.key.sign(self.library, &SystemRandom::new(), message, out).map_err(|_| Failure::Rejected)
    }

    /// Whether groups are processed in lanes.
    pub fn has_lanes(&self) -> bool {
        self.lanes().is_some()
    }

    /// Writes the signatures of up to [`RSA_GROUP`] messages, one after the other. If some fail,
    /// the first is returned.
    pub fn sign_group(&self, messages: &[&[u8]], out: &mut [u8]) -> Result<(), (usize, Failure)> {
        let bytes = self.bytes();
        let mut right = [false; RSA_GROUP];
        if let Some(lanes) = self.lanes().filter(|_| is_worth(messages.len())) {
            let numbers = self.numbers(messages, lanes.public().bits()).map_err(|failure| (0, failure))?;
            let numbers: Vec<&[u8]> = numbers.chunks_exact(bytes).collect();
            right = lanes.raise(&numbers, out);
        }
        let each = messages.iter().zip(out.chunks_exact_mut(bytes)).enumerate();
        for (index, (message, out)) in each.filter(|(index, _)| !right[*index]) {
            self.sign(message, out).map_err(|failure| (index, failure))?;
        }
        Ok(())
    }

    /// The encoded numbers to sign, one after the other.
    fn numbers(&self, messages: &[&[u8]], bits: usize) -> Result<Zeroizing<Vec<u8>>, Failure> {
        let Encoding { padding, hash } = self.encoding;
        let (bytes, len) = (self.bytes(), hash.digest_bytes());
        let mut salts = [0; RSA_GROUP * DIGEST_BYTES_MAX];
        if padding == RsaPadding::Pss && !fill_random(&mut salts[..messages.len() * len]) {
            return Err(Failure::Rejected);
        }
        let mut numbers = Zeroizing::new(vec![0; messages.len() * bytes]);
        let mut digest = Zeroizing::new([0; DIGEST_BYTES_MAX]);
        let digest = &mut digest[..len];
        for ((message, number), salt) in messages.iter().zip(numbers.chunks_exact_mut(bytes)).zip(salts.chunks(len)) {
            hash_into(hash, message, digest);
            match padding {
                RsaPadding::Pkcs1 => encoding::write_pkcs1(hash, digest, number),
                RsaPadding::Pss => encoding::write_pss(hash, digest, salt, bits, number),
            }
        }
        Ok(numbers)
    }

    fn lanes(&self) -> Option<&RsaPrivate> {
        let made = || SecretBox::new(if detected_for_rsa() { self.new_lanes() } else { None });
        self.lanes.get_or_make(made).as_ref()
    }

    fn new_lanes(&self) -> Option<RsaPrivate> {
        let pkcs8: Pkcs8V1Der<'_> = self.key.as_der().ok()?;
        let [modulus, exponent, p, q, d_p, d_q, coefficient] = der::private_numbers(pkcs8.as_ref())?;
        let (exponent, primes, exponents) = (der::small(exponent)?, [p, q], [d_p, d_q]);
        RsaPrivate::new(&RsaPrivateParts { modulus, exponent, primes, exponents, coefficient })
    }
}

impl RsaVerifyingKey {
    /// For a key of the library.
    pub fn new(encoding: Encoding) -> RsaVerifyingKey {
        RsaVerifyingKey { encoding, lanes: OnceBox::new() }
    }

    /// Whether groups are processed in lanes.
    pub fn has_lanes(&self, key: &ParsedPublicKey) -> bool {
        self.lanes(key).is_some()
    }

    /// Returns for each of up to [`RSA_GROUP`] signatures whether it is valid for its message.
    pub fn verify_group(&self, key: &ParsedPublicKey, messages: &[&[u8]], signatures: &[&[u8]]) -> [bool; RSA_GROUP] {
        let mut verdicts = [false; RSA_GROUP];
        let Some(lanes) = self.lanes(key).filter(|_| is_worth(messages.len())) else {
            for ((message, signature), verdict) in messages.iter().zip(signatures).zip(&mut verdicts) {
                *verdict = key.verify_sig(message, signature).is_ok();
            }
            return verdicts;
        };
        let bytes = lanes.bytes();
        // Other signatures are invalid for every message.
        let taken: Vec<usize> = (0..messages.len()).filter(|index| lanes.takes(signatures[*index])).collect();
        let numbers: Vec<&[u8]> = taken.iter().map(|index| signatures[*index]).collect();
        let mut powers = vec![0; numbers.len() * bytes];
        lanes.raise(&numbers, &mut powers);
        for (index, number) in taken.into_iter().zip(powers.chunks_exact_mut(bytes)) {
            verdicts[index] = self.is_number_of(messages[index], lanes.bits(), number);
        }
        verdicts
    }

    fn is_number_of(&self, message: &[u8], bits: usize, number: &mut [u8]) -> bool {
        let Encoding { padding, hash } = self.encoding;
        let mut digest = [0; DIGEST_BYTES_MAX];
        let digest = &mut digest[..hash.digest_bytes()];
        hash_into(hash, message, digest);
        match padding {
            RsaPadding::Pkcs1 => encoding::is_pkcs1(hash, digest, number),
            RsaPadding::Pss => encoding::is_pss(hash, digest, bits, number),
        }
    }

    fn lanes(&self, key: &ParsedPublicKey) -> Option<&RsaPublic> {
        let new = || {
            let der: PublicKeyX509Der<'_> = key.as_der().ok()?;
            let [modulus, exponent] = der::public_numbers(der.as_ref())?;
            RsaPublic::new(modulus, der::small(exponent)?)
        };
        self.lanes.get_or_make(|| if detected_for_rsa() { new() } else { None }).as_ref()
    }
}

/// Whether a group of this many messages is worth the lanes.
fn is_worth(messages: usize) -> bool {
    messages > RSA_GROUP_COST
}

/// Whether groups on this many threads are faster for this many messages.
pub fn is_sooner_in_groups(messages: usize, threads: usize) -> bool {
    let threads = threads.max(1);
    let groups = messages.div_ceil(RSA_GROUP);
    is_worth(messages) && groups.div_ceil(threads) * RSA_GROUP_COST <= messages.div_ceil(threads)
}

#[cfg(all(test, unix))]
#[allow(clippy::unwrap_used)] // A failed unwrap is a failed test.
mod tests {
    use panoply_core::op::crypto::{RsaBits, SignatureAlgorithm};

    use super::*;

    /// Regression: a thread of the parent held the lock of the blinding numbers during the fork, so
    /// the lock is never released in the child.
    #[test]
    fn a_forked_process_signs_without_the_locks_of_its_parent() {
        let (padding, hash) = (RsaPadding::Pkcs1, HashAlgorithm::Sha256);
        let made = crate::signature::generate(SignatureAlgorithm::Rsa { bits: RsaBits::Bits2048, padding, hash });
        let (encoding, library) = (Encoding { padding, hash }, &library::RSA_PKCS1_SHA256);
        let key = RsaSigningKey::new(&made.unwrap().pkcs8, encoding, library).unwrap();
        let Some(lanes) = key.lanes() else {
            println!("skipped: this CPU has no lanes for RSA");
            return;
        };
        let (messages, mut out) = ([b"message".as_slice(); RSA_GROUP], vec![0; RSA_GROUP * key.bytes()]);
        key.sign_group(&messages, &mut out).unwrap();
        let held = lanes.hold_blindings();
        // SAFETY: the child uses only its own data, and ends without destructors.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: `alarm` changes no memory. If the child waits for the lock, the signal ends
            // it.
            unsafe { libc::alarm(60) };
            let mut again = vec![0; out.len()];
            let signed = key.sign_group(&messages, &mut again).is_ok() && again == out;
            // SAFETY: ends this process at once.
            unsafe { libc::_exit(i32::from(!signed)) };
        }
        let mut status = -1;
        // SAFETY: `child` is the process forked above, and `status` is writable.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        drop(held);
    }
}
