//! Expanded keys. Each key is expanded once; the result is stored with the key and dropped with its
//! last handle.

use panoply_core::Result;
use panoply_core::locked::SecretBox;
use panoply_core::once::OnceBox;
use panoply_core::op::crypto::{Key, Purpose};

use crate::aead::AeadKey;
use crate::cipher::CipherKey;
use crate::hash::HmacKey;
use crate::signature::{PrivateKey, PublicKey};

/// The expanded forms of one key: for engines that use lanes, and for those that leave everything
/// to AWS-LC.
#[derive(Default)]
struct CachedForms {
    wide: OnceBox<ProtectedKey>,
    plain: OnceBox<ProtectedKey>,
}

/// An expanded key. The memory of a secret one is kept out of swap.
enum ProtectedKey {
    Secret(SecretBox<ExpandedKey>),
    Public(Box<ExpandedKey>),
}

impl ProtectedKey {
    fn new(key: &Key, expanded: ExpandedKey) -> ProtectedKey {
        if key.material().is_secret() {
            ProtectedKey::Secret(SecretBox::new(expanded))
        } else {
            ProtectedKey::Public(Box::new(expanded))
        }
    }

    fn get(&self) -> &ExpandedKey {
        match self {
            ProtectedKey::Secret(expanded) => expanded,
            ProtectedKey::Public(expanded) => expanded,
        }
    }
}

/// A key in the form that the functions of this crate take.
#[allow(clippy::large_enum_variant)] // There are few, each in memory of its own.
pub enum ExpandedKey {
    /// For `Seal` and `Open`.
    Aead(AeadKey),
    /// For `Encrypt` and `Decrypt`.
    Cipher(CipherKey),
    /// For `Hmac`, and `Verify` of its tags.
    Hmac(HmacKey),
    /// For `Sign`.
    Private(PrivateKey),
    /// For `Verify`.
    Public(PublicKey),
}

impl ExpandedKey {
    /// The expanded key, expanded now unless it already was. A malformed key is the caller's error,
    /// and is not stored. `wide` includes the values for lanes; without it, only AWS-LC has the
    /// key, even if another engine has expanded it with lanes.
    pub fn of(key: &Key, wide: bool) -> Result<&ExpandedKey> {
        let kept = key.expanded(|| Ok(CachedForms::default()))?;
        // HMAC has no lanes.
        let is_wide = wide && !matches!(key.purpose(), Purpose::Hmac(_));
        let slot = if is_wide { &kept.wide } else { &kept.plain };
        if slot.get().is_none() {
            let expanded = ExpandedKey::new(key, is_wide)?.ok_or_else(|| key.invalid())?;
            // If another thread was faster, its equal result is kept.
            let _ = slot.set(ProtectedKey::new(key, expanded));
        }
        slot.get().map(ProtectedKey::get).ok_or_else(|| key.invalid())
    }

    /// Expands a key. `None` for a malformed key, and for a key of `Hkdf`: nothing can be stored
    /// for it, since the salt comes first.
    fn new(key: &Key, wide: bool) -> Result<Option<ExpandedKey>> {
        let material = key.material().as_slice()?;
        Ok(match key.purpose() {
            Purpose::Seal(algorithm) => AeadKey::with_lanes(algorithm, material, wide).map(ExpandedKey::Aead),
            Purpose::Encrypt(algorithm) => CipherKey::with_lanes(algorithm, material, wide).map(ExpandedKey::Cipher),
            Purpose::Hmac(algorithm) => Some(ExpandedKey::Hmac(HmacKey::new(algorithm, material))),
            Purpose::Sign(algorithm) => PrivateKey::with_lanes(algorithm, material, wide).map(ExpandedKey::Private),
            Purpose::Verify(algorithm) => PublicKey::new(algorithm, material).map(ExpandedKey::Public),
            Purpose::Hkdf(_) => None,
        })
    }
}
