//! Keys: secret bytes with the one algorithm that they are for.
//!
//! 1. A key's material lies in memory that is wiped with its last handle. Engines get it as a
//!    secret part.
//! 2. A key belongs to no device. The first engine of the host that uses a key expands it. The
//!    expanded form is stored with the key ([`Key::expanded`]) and dropped with its last handle,
//!    even if no further op comes. So the router is free to choose a device, and an op that is run
//!    again elsewhere needs no preparation there.
//! 3. Two keys with the same bytes are two keys: ops are batched only if callers share the handle.

use std::any::Any;
use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use super::algorithm::{AeadAlgorithm, CipherAlgorithm, HashAlgorithm, SignatureAlgorithm};
use crate::bytes::Bytes;
use crate::error::{Error, Result};
use crate::locked::LockedPages;
use crate::once::OnceBox;
use crate::part::{PartMut, PartRef, Parts};
use crate::process::Process;

/// Maximal length of a key's material: far more than RSA with 4096 bits needs.
pub const KEY_BYTES_MAX: usize = 16 << 10;
/// Maximal number of sessions of a key.
const SESSIONS_MAX: usize = 1 << 16;

static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

/// The permitted use of a key.
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
    /// `Verify`; the key is public.
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

/// A key. Clones share it; its material is wiped with the last handle.
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
    /// The process that made the key. Claims are known only to that process.
    process: Process,
    /// The expanded material: dropped, and so wiped, with the last handle.
    expanded: OnceBox<ExpandedForm>,
    /// Whether the key ever had a session. If not, the prefixes are not checked.
    has_sessions: AtomicBool,
    /// The nonce prefixes that sessions count under.
    prefixes: Mutex<HashSet<[u8; 4]>>,
    /// Whether random nonces are drawn for the key. Decided under the lock of `prefixes`.
    is_random: AtomicBool,
    /// Number of random nonces drawn.
    drawn: AtomicU64,
}

/// The expanded form of a key's material.
struct ExpandedForm {
    made: Box<dyn Any + Send + Sync>,
    #[allow(dead_code)]
    // Held only for its destructor, which runs last: the expanded form is wiped while its memory is
    // locked.
    locked: Option<LockedPages>,
}

impl ExpandedForm {
    fn new<T: Any + Send + Sync>(made: T, is_secret: bool) -> ExpandedForm {
        let made = Box::new(made);
        let lock = || LockedPages::new((&raw const *made).cast(), size_of::<T>());
        let locked = is_secret.then(lock).flatten();
        ExpandedForm { made, locked }
    }
}

impl Key {
    /// A key for [`Seal`](super::Seal) and [`Open`](super::Open). The bytes are copied; the caller
    /// must wipe his own copy.
    pub fn seal(algorithm: AeadAlgorithm, material: &[u8]) -> Result<Key> {
        Key::of_len(Purpose::Seal(algorithm), material, algorithm.key_bytes())
    }

    /// A key for [`Encrypt`](super::Encrypt) and [`Decrypt`](super::Decrypt).
    pub fn encrypt(algorithm: CipherAlgorithm, material: &[u8]) -> Result<Key> {
        Key::of_len(Purpose::Encrypt(algorithm), material, algorithm.key_bytes())
    }

    /// A key for [`Hmac`](super::Hmac), of any length except zero.
    pub fn hmac(hash: HashAlgorithm, material: &[u8]) -> Result<Key> {
        Key::bounded(Purpose::Hmac(hash), material)
    }

    /// The secret from which [`Hkdf`](super::Hkdf) derives keys, of any length except zero.
    pub fn hkdf(hash: HashAlgorithm, material: &[u8]) -> Result<Key> {
        Key::bounded(Purpose::Hkdf(hash), material)
    }

    /// A private key for [`Sign`](super::Sign), in PKCS#8 (DER). Its algorithm and length are
    /// checked on first use: [`Error::InvalidKey`].
    pub fn sign(algorithm: SignatureAlgorithm, pkcs8: &[u8]) -> Result<Key> {
        Key::bounded(Purpose::Sign(algorithm), pkcs8)
    }

    /// A public key for [`Verify`](super::Verify): a SubjectPublicKeyInfo (DER), an RSAPublicKey
    /// (DER), an uncompressed point of the curve (bare or in a SubjectPublicKeyInfo), or the 32
    /// bytes of Ed25519. Its algorithm and length are checked on first use.
    pub fn verify(algorithm: SignatureAlgorithm, public: &[u8]) -> Result<Key> {
        Key::bounded(Purpose::Verify(algorithm), public)
    }

    /// The permitted use.
    pub fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// The material; secret, except for public keys.
    pub fn material(&self) -> &Bytes {
        &self.material
    }

    /// The form that an engine of the host expands the key to: made now by `expand`, unless it
    /// exists. It is dropped with the key's last handle. All callers must use one type; another
    /// type gets [`Error::InvalidKey`]. An error of `expand` is not stored.
    pub fn expanded<T: Any + Send + Sync>(&self, expand: impl FnOnce() -> Result<T>) -> Result<&T> {
        let slot = &self.identity.expanded;
        if slot.get().is_none() {
            // If another thread was faster, its equal result is kept.
            let _ = slot.set(ExpandedForm::new(expand()?, self.material.is_secret()));
        }
        slot.get().and_then(|kept| kept.made.downcast_ref()).ok_or_else(|| self.invalid())
    }

    /// The key's number, unique in the process.
    pub fn number(&self) -> u64 {
        self.identity.number
    }

    /// A handle that does not keep the key alive.
    pub fn downgrade(&self) -> WeakKey {
        WeakKey(Arc::downgrade(&self.identity))
    }

    /// The error for material that is malformed, weak, or of another algorithm or length.
    pub fn invalid(&self) -> Error {
        Error::InvalidKey { algorithm: self.purpose.algorithm() }
    }

    /// The process that made the key.
    pub(super) fn process(&self) -> Process {
        self.identity.process
    }

    /// Fails in a fork of the process that made the key: both processes have the same claims, and
    /// neither knows the later claims of the other.
    pub(super) fn check_process(&self, what: &'static str) -> Result<()> {
        if self.identity.process.is_current() {
            return Ok(());
        }
        let expected = "a key that this process made; after a fork, make it again of its bytes, and give each process prefixes of its own";
        let got = format!("one of process {}, of which this is a fork", self.identity.process.id());
        Err(Error::invalid(what, expected, got))
    }

    /// Claims the key for random nonces. Returns false if a session counts nonces for it: some
    /// could be equal.
    ///
    /// In a fork, a thread that no longer exists may hold the lock of the prefixes, and the parent
    /// may count under the key by now. So the parent's key is refused, unless it was claimed for
    /// random nonces before.
    pub(super) fn claim_random(&self) -> Result<bool> {
        if self.is_random() {
            return Ok(true);
        }
        self.check_process("random session: key")?;
        let prefixes = self.identity.prefixes.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let is_free = prefixes.is_empty();
        if is_free {
            self.identity.is_random.store(true, Ordering::Release);
            // A fork before the store has claimed a copy, while the parent may count.
            if let Err(error) = self.check_process("random session: key") {
                self.identity.is_random.store(false, Ordering::Release);
                return Err(error);
            }
        }
        Ok(is_free)
    }

    /// Counts random nonces, up to `limit` in total.
    pub(super) fn claim_drawn(&self, count: u64, limit: u64) -> Result<()> {
        let claim = |drawn: u64| drawn.checked_add(count).filter(|sum| *sum <= limit);
        match self.identity.drawn.fetch_update(Ordering::AcqRel, Ordering::Acquire, claim) {
            Ok(_) => Ok(()),
            Err(drawn) => Err(Error::NoncesExhausted { left: limit.saturating_sub(drawn), asked: count }),
        }
    }

    /// Whether random nonces are drawn for the key.
    pub(super) fn is_random(&self) -> bool {
        self.identity.is_random.load(Ordering::Acquire)
    }

    /// Claims a nonce prefix for a session. Returns false if a session already has it, if there are
    /// too many sessions, or if the key has random nonces.
    pub(super) fn claim_prefix(&self, prefix: [u8; 4]) -> bool {
        let mut prefixes = self.identity.prefixes.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let claimed = !self.is_random() && prefixes.len() < SESSIONS_MAX && prefixes.insert(prefix);
        if claimed {
            self.identity.has_sessions.store(true, Ordering::Release);
        }
        claimed
    }

    /// The index of the first of these prefixes that a session of the key counts under. In a fork,
    /// a key with sessions is refused: the lock may be held forever, and the parent may have
    /// claimed more prefixes.
    pub(super) fn position_of_claimed(&self, mut prefixes: impl Iterator<Item = [u8; 4]>) -> Result<Option<usize>> {
        if !self.identity.has_sessions.load(Ordering::Acquire) {
            return Ok(None);
        }
        self.check_process("seal: key")?;
        let claimed = self.identity.prefixes.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        Ok(prefixes.position(|prefix| claimed.contains(&prefix)))
    }

    /// Holds the lock of the prefixes, as another thread may while this process forks.
    #[cfg(all(test, unix))]
    pub(super) fn hold_prefixes(&self) -> impl Sized + '_ {
        self.identity.prefixes.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
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
        let (expanded, has_sessions, prefixes) = (OnceBox::new(), AtomicBool::new(false), Mutex::default());
        let (process, is_random, drawn) = (Process::current(), AtomicBool::new(false), AtomicU64::new(0));
        let identity = Arc::new(Identity { number, process, expanded, has_sessions, prefixes, is_random, drawn });
        Ok(Key { identity, purpose, material })
    }
}

impl Parts for Key {
    fn visit(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        visit((&self.material).into());
    }

    fn visit_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        visit((&mut self.material).into());
    }
}

impl WeakKey {
    /// Whether a handle to the key exists.
    pub fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({:?}, number {})", self.purpose, self.number())
    }
}
