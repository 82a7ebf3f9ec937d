//! Keys: secret bytes, and the one algorithm that they are for.
//!
//! 1. A key's material lies in memory that is wiped with its last handle, and is shown to engines as a secret part.
//! 2. A key belongs to no device. An engine of the host that first meets a key expands it, and what comes of it lies with the key
//!    ([`Key::expanded`]) and is dropped with the last handle, also where no op comes after. So the router is free to choose, and an op
//!    that is run again elsewhere needs nothing there.
//! 3. Two keys of the same bytes are two keys: ops are joined where callers share the handle.

use std::any::Any;
use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use super::algorithm::{AeadAlgorithm, CipherAlgorithm, HashAlgorithm, SignatureAlgorithm};
use crate::bytes::Bytes;
use crate::error::{Error, Result};
use crate::part::{PartMut, PartRef};

/// The longest material of a key: far more than RSA with 4096 bits takes.
pub const KEY_BYTES_MAX: usize = 16 << 10;
/// The most sessions that one key may have had.
const SESSIONS_MAX: usize = 1 << 16;

static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

/// What a key may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// `Seal` and `Open`.
    Seal(AeadAlgorithm),
    /// `Encrypt` and `Decrypt`.
    Encrypt(CipherAlgorithm),
    /// `Hmac`, and `Verify` of its tags.
    Hmac(HashAlgorithm),
    /// `Hkdf`.
    Hkdf(HashAlgorithm),
    /// `Sign`.
    Sign(SignatureAlgorithm),
    /// `Verify`; such a key is public.
    Verify(SignatureAlgorithm),
}

impl Purpose {
    /// The algorithm's name.
    pub const fn algorithm(self) -> &'static str {
        match self {
            Purpose::Seal(algorithm) => algorithm.name(),
            Purpose::Encrypt(algorithm) => algorithm.name(),
            Purpose::Hmac(hash) | Purpose::Hkdf(hash) => hash.name(),
            Purpose::Sign(algorithm) | Purpose::Verify(algorithm) => algorithm.name(),
        }
    }
}

/// A key. Cloning shares it; its material is wiped with the last handle.
#[derive(Clone)]
pub struct Key {
    identity: Arc<Identity>,
    purpose: Purpose,
    material: Bytes,
}

/// A handle that does not keep the key alive.
#[derive(Clone)]
pub struct WeakKey(Weak<Identity>);

struct Identity {
    number: u64,
    /// What was made of the material: dropped, and so wiped, with the last handle.
    expanded: OnceLock<Box<dyn Any + Send + Sync>>,
    /// Whether there was a session. Without one the prefixes are not looked at.
    has_sessions: AtomicBool,
    /// The prefixes of nonces that sessions count under.
    prefixes: Mutex<HashSet<[u8; 4]>>,
}

impl Key {
    /// A key for [`Seal`](super::Seal) and [`Open`](super::Open). The bytes are copied; the caller's own are the caller's to wipe.
    pub fn seal(algorithm: AeadAlgorithm, material: &[u8]) -> Result<Key> {
        Key::of_len(Purpose::Seal(algorithm), material, algorithm.key_bytes())
    }

    /// A key for [`Encrypt`](super::Encrypt) and [`Decrypt`](super::Decrypt).
    pub fn encrypt(algorithm: CipherAlgorithm, material: &[u8]) -> Result<Key> {
        Key::of_len(Purpose::Encrypt(algorithm), material, algorithm.key_bytes())
    }

    /// A key for [`Hmac`](super::Hmac), of any length but none.
    pub fn hmac(hash: HashAlgorithm, material: &[u8]) -> Result<Key> {
        Key::bounded(Purpose::Hmac(hash), material)
    }

    /// The secret from which [`Hkdf`](super::Hkdf) derives keys, of any length but none.
    pub fn hkdf(hash: HashAlgorithm, material: &[u8]) -> Result<Key> {
        Key::bounded(Purpose::Hkdf(hash), material)
    }

    /// A private key for [`Sign`](super::Sign), in PKCS#8 (DER). Whether it is one of this algorithm and length is found when it is first
    /// used: [`Error::InvalidKey`].
    pub fn sign(algorithm: SignatureAlgorithm, pkcs8: &[u8]) -> Result<Key> {
        Key::bounded(Purpose::Sign(algorithm), pkcs8)
    }

    /// A public key for [`Verify`](super::Verify): a SubjectPublicKeyInfo (DER), an RSAPublicKey (DER), a point of the curve (not compressed),
    /// or the 32 bytes of Ed25519. Whether it is one of this algorithm and length is found when it is first used.
    pub fn verify(algorithm: SignatureAlgorithm, public: &[u8]) -> Result<Key> {
        Key::bounded(Purpose::Verify(algorithm), public)
    }

    /// What it is for.
    pub fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// The material, secret but for public keys.
    pub fn material(&self) -> &Bytes {
        &self.material
    }

    /// What an engine of the host made of the key: now, by `expand`, where it was not made before. It is dropped with the key's last
    /// handle. All callers must ask for one type; whoever asks for another gets [`Error::InvalidKey`]. What `expand` refuses is not kept.
    pub fn expanded<T: Any + Send + Sync>(&self, expand: impl FnOnce() -> Result<T>) -> Result<&T> {
        let slot = &self.identity.expanded;
        if slot.get().is_none() {
            // Where another thread was faster its own is kept, which is the same.
            let _ = slot.set(Box::new(expand()?));
        }
        slot.get().and_then(|kept| kept.downcast_ref()).ok_or_else(|| self.invalid())
    }

    /// Its number, unique in the process.
    pub fn number(&self) -> u64 {
        self.identity.number
    }

    /// A handle that does not keep the key alive.
    pub fn downgrade(&self) -> WeakKey {
        WeakKey(Arc::downgrade(&self.identity))
    }

    /// The error of an engine that finds the material malformed, weak, or of another algorithm or length.
    pub fn invalid(&self) -> Error {
        Error::InvalidKey { algorithm: self.purpose.algorithm() }
    }

    /// Takes a prefix of nonces for a session. False where one has it already, or where there were too many.
    pub(super) fn claim_prefix(&self, prefix: [u8; 4]) -> bool {
        let mut prefixes = self.identity.prefixes.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let claimed = prefixes.len() < SESSIONS_MAX && prefixes.insert(prefix);
        if claimed {
            self.identity.has_sessions.store(true, Ordering::Release);
        }
        claimed
    }

    /// The first of these prefixes that a session of the key counts under.
    pub(super) fn position_of_claimed(&self, mut prefixes: impl Iterator<Item = [u8; 4]>) -> Option<usize> {
        if !self.identity.has_sessions.load(Ordering::Acquire) {
            return None;
        }
        let claimed = self.identity.prefixes.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        prefixes.position(|prefix| claimed.contains(&prefix))
    }

    pub(super) fn visit(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        visit((&self.material).into());
    }

    pub(super) fn visit_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        visit((&mut self.material).into());
    }

    pub(super) fn wrong_purpose(&self, what: &'static str, expected: &'static str) -> Error {
        Error::invalid(what, expected, format!("{self:?}"))
    }

    fn of_len(purpose: Purpose, material: &[u8], expected: usize) -> Result<Key> {
        if material.len() != expected {
            return Err(Error::invalid("key", format!("{expected} bytes for {}", purpose.algorithm()), material.len()));
        }
        Key::bounded(purpose, material)
    }

    fn bounded(purpose: Purpose, material: &[u8]) -> Result<Key> {
        if material.is_empty() || material.len() > KEY_BYTES_MAX {
            let expected = format!("1 to {KEY_BYTES_MAX} bytes for {}", purpose.algorithm());
            return Err(Error::invalid("key", expected, material.len()));
        }
        let material = match purpose {
            Purpose::Verify(_) => Bytes::copy_of(material)?,
            _ => Bytes::secret(material.to_vec())?,
        };
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        let (expanded, has_sessions, prefixes) = (OnceLock::new(), AtomicBool::new(false), Mutex::default());
        let identity = Arc::new(Identity { number, expanded, has_sessions, prefixes });
        Ok(Key { identity, purpose, material })
    }
}

impl WeakKey {
    /// Whether a handle to the key is alive.
    pub fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({:?}, number {})", self.purpose, self.number())
    }
}
