//! Keys derived from keys, and messages sealed with them: all through the runtime's ops.
//!
//! A message sealed by [`seal_once`] has a key of its own, derived with 32 random bytes that are
//! stored in front of it. The label separates the uses, so that a message sealed for one use is
//! never accepted for another.

use panoply_core::Bytes;
use panoply_core::op::crypto::{AeadAlgorithm, HashAlgorithm, Hkdf, Key, Nonces, Open, Seal};
use panoply_runtime::Runtime;

use crate::error::Result;
use crate::key::KEY_BYTES;
use crate::randomness::random;

/// Length of the random bytes that a key is derived with.
pub(crate) const SALT_BYTES: usize = 32;

/// The use of a derived key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Label {
    /// Checks whether a master key is the right one.
    Check,
    /// Seals the root keys.
    Keyring,
    /// Seals the state or content of a head.
    State,
    /// Seals records of the catalog.
    Catalog,
    /// Secret of an object, from which the keys of its extents are derived.
    Object,
    /// Seals the chunks of an extent.
    Extent,
    /// Seals the owner record of an extent.
    Owner,
    /// Seals frames of a growing file.
    Frames,
}

impl Label {
    const fn text(self) -> &'static [u8] {
        match self {
            Label::Check => b"panoply store 1 check\0",
            Label::Keyring => b"panoply store 1 keyring\0",
            Label::State => b"panoply store 1 state\0",
            Label::Catalog => b"panoply store 1 catalog\0",
            Label::Object => b"panoply store 1 object\0",
            Label::Extent => b"panoply store 1 extent\0",
            Label::Owner => b"panoply store 1 owner\0",
            Label::Frames => b"panoply store 1 frames\0",
        }
    }
}

/// Derives 32 secret bytes. For each label the parts have fixed lengths, so two different lists of
/// parts never concatenate to the same text.
pub(crate) fn derive(runtime: &Runtime, secret: &Key, label: Label, parts: &[&[u8]]) -> Result<Bytes> {
    let info: Vec<u8> = [label.text()].iter().chain(parts).flat_map(|part| part.iter().copied()).collect();
    Ok(runtime.run(Hkdf::new(secret, info, KEY_BYTES)).wait()?.into_one()?)
}

/// Derives a key for AES-256-GCM.
pub(crate) fn derive_seal(runtime: &Runtime, secret: &Key, label: Label, parts: &[&[u8]]) -> Result<Key> {
    let bytes = derive(runtime, secret, label, parts)?;
    Ok(Key::seal(AeadAlgorithm::Aes256Gcm, bytes.as_slice()?)?)
}

/// Derives a key that other keys are derived from.
pub(crate) fn derive_secret(runtime: &Runtime, secret: &Key, label: Label, parts: &[&[u8]]) -> Result<Key> {
    let bytes = derive(runtime, secret, label, parts)?;
    Ok(Key::hkdf(HashAlgorithm::Sha256, bytes.as_slice()?)?)
}

/// Seals a message with a key of its own. The result is salt, text and tag.
pub(crate) fn seal_once(
    runtime: &Runtime,
    secret: &Key,
    label: Label,
    associated: &[u8],
    message: Bytes,
) -> Result<Vec<u8>> {
    let salt = random::<SALT_BYTES>()?;
    let key = derive_seal(runtime, secret, label, &[&salt])?;
    let seal = Seal::new(&key, first_nonce(), message).associated(associated.to_vec());
    let sealed = runtime.run(seal).wait()?.text.into_one()?;
    Ok([&salt, sealed.as_slice()?].concat())
}

/// Opens a message of [`seal_once`]. `None` if it is not authentic.
pub(crate) fn open_once(
    runtime: &Runtime,
    secret: &Key,
    label: Label,
    associated: &[u8],
    sealed: &[u8],
) -> Result<Option<Bytes>> {
    let Some((salt, text)) = sealed.split_at_checked(SALT_BYTES) else { return Ok(None) };
    let key = derive_seal(runtime, secret, label, &[salt])?;
    let open = Open::new(&key, first_nonce(), text.to_vec()).associated(associated.to_vec()).secret();
    match runtime.run(open).wait() {
        Ok(opened) => Ok(Some(opened.into_one()?)),
        Err(panoply_core::Error::Rejected { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn first_nonce() -> Nonces {
    Nonces::Counted { prefix: *b"once", first: 0 }
}
