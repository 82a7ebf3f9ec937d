//! Authenticated encryption (AEAD).

use aws_lc_rs::aead::{
    AES_128_GCM, AES_192_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use panoply_core::op::crypto::{AeadAlgorithm, NonceBytes, TAG_BYTES};
use zeroize::Zeroize;

use crate::failure::Failure;
use crate::lanes::{ChaChaLanes, GCM_BYTES_MAX, GcmLanes, KEYED_LANES, TagKeys};

/// Shorter messages are faster with the library's functions.
const LANES_BYTES_MIN: usize = 512;
/// Maximal number of messages that are prepared together.
pub const PREPARED_MAX: usize = KEYED_LANES;
/// From this number on, the keys of the tags are made faster together.
const PREPARED_MIN: usize = 3;
/// If messages are longer than this on average, preparation hardly counts, and threads share the
/// messages out one by one.
const PREPARED_BYTES_MAX: usize = 64 << 10;

/// An expanded key.
pub struct AeadKey {
    library: LessSafeKey,
    lanes: Option<ChaChaLanes>,
    gcm: Option<GcmLanes>,
}

impl AeadKey {
    /// Uses lanes if the CPU has them. `None` if the material has the wrong length.
    pub fn new(algorithm: AeadAlgorithm, material: &[u8]) -> Option<AeadKey> {
        AeadKey::with_lanes(algorithm, material, true)
    }

    /// With or without lanes; without, only AWS-LC gets the key.
    pub fn with_lanes(algorithm: AeadAlgorithm, material: &[u8], wide: bool) -> Option<AeadKey> {
        let is_chacha = algorithm == AeadAlgorithm::ChaCha20Poly1305;
        let lanes = (wide && is_chacha).then(|| ChaChaLanes::new(material)).flatten();
        let library = LessSafeKey::new(UnboundKey::new(library(algorithm), material).ok()?);
        let gcm = if is_chacha || !wide { None } else { GcmLanes::new(material) };
        Some(AeadKey { library, lanes, gcm })
    }

    /// Precomputes for at most [`PREPARED_MAX`] messages, given their nonces and lengths. `wide`,
    /// here and below, uses vector registers of 512 bits if the CPU has them.
    pub fn prepare(&self, messages: impl Iterator<Item = (NonceBytes, usize)>, wide: bool) -> PreparedKey<'_> {
        let lanes = self.lanes.as_ref().filter(|_| wide);
        let (mut nonces, mut long) = ([[0; 12]; PREPARED_MAX], 0);
        if lanes.is_some() {
            for (place, (nonce, len)) in nonces.iter_mut().zip(messages) {
                *place = nonce;
                long += usize::from(len >= LANES_BYTES_MIN);
            }
        }
        let tag_keys = lanes.filter(|_| long >= PREPARED_MIN).map(|lanes| lanes.tag_keys(&nonces));
        PreparedKey { library: &self.library, lanes, tag_keys, gcm: self.gcm.as_ref().filter(|_| wide) }
    }

    /// Number of messages that are best prepared together, for `count` messages with `bytes` bytes
    /// in total.
    pub fn together(&self, count: usize, bytes: usize, wide: bool) -> usize {
        let in_lanes = wide && (self.lanes.is_some() || self.gcm.is_some());
        let pays = in_lanes && bytes <= count.saturating_mul(PREPARED_BYTES_MAX);
        if pays { PREPARED_MAX } else { 1 }
    }

    /// Whether [`AeadKey::prepare`] reads the messages' nonces and lengths.
    pub fn is_prepared_for_messages(&self, wide: bool) -> bool {
        wide && self.lanes.is_some()
    }

    /// Seals `message` into `text`, which has the same length, and the 16-byte `tag`.
    pub fn seal(
        &self,
        nonce: &NonceBytes,
        associated: &[u8],
        message: &[u8],
        text: &mut [u8],
        tag: &mut [u8],
        wide: bool,
    ) -> Result<(), Failure> {
        self.prepare(std::iter::empty(), wide).seal(0, nonce, associated, message, text, tag)
    }

    /// Opens `text` into `message`, which has the same length. If the tag is wrong, `message` is
    /// wiped.
    pub fn open(
        &self,
        nonce: &NonceBytes,
        associated: &[u8],
        text: &[u8],
        tag: &[u8],
        message: &mut [u8],
        wide: bool,
    ) -> Result<(), Failure> {
        self.prepare(std::iter::empty(), wide).open(0, nonce, associated, text, tag, message)
    }
}

impl AeadKey {
    /// Seals a message in place; the 16-byte `tag` is separate.
    pub fn seal_in_place(
        &self,
        nonce: &NonceBytes,
        associated: &[u8],
        message: &mut [u8],
        tag: &mut [u8],
    ) -> Result<(), Failure> {
        self.prepare(std::iter::empty(), true).seal_in_place(0, nonce, associated, message, tag)
    }

    /// Opens a text with its tag behind it, in place, and returns the length of the message. If the
    /// tag is wrong, everything is wiped.
    pub fn open_in_place(&self, nonce: &NonceBytes, associated: &[u8], text: &mut [u8]) -> Result<usize, Failure> {
        self.prepare(std::iter::empty(), true).open_in_place(0, nonce, associated, text)
    }
}

/// A key with the precomputed values of some messages.
pub struct PreparedKey<'a> {
    library: &'a LessSafeKey,
    lanes: Option<&'a ChaChaLanes>,
    tag_keys: Option<TagKeys>,
    gcm: Option<&'a GcmLanes>,
}

impl PreparedKey<'_> {
    /// The lanes, if the message is long enough for them.
    fn lanes(&self, len: usize) -> Option<&ChaChaLanes> {
        self.lanes.filter(|_| len >= LANES_BYTES_MIN)
    }

    /// Seals the message that was prepared at this index, as [`AeadKey::seal`] does.
    #[inline]
    pub fn seal(
        &self,
        place: usize,
        nonce: &NonceBytes,
        associated: &[u8],
        message: &[u8],
        text: &mut [u8],
        tag: &mut [u8],
    ) -> Result<(), Failure> {
        if let Some(lanes) = self.lanes(message.len()) {
            if text.len() != message.len() || tag.len() != TAG_BYTES {
                return Err(Failure::Rejected);
            }
            let key = self.tag_keys.as_ref().and_then(|keys| keys.get(place));
            tag.copy_from_slice(&lanes.seal(nonce, associated, message, text, key));
            return Ok(());
        }
        if let Some(lanes) = fitting(self.gcm, message.len(), associated) {
            if text.len() != message.len() || tag.len() != TAG_BYTES {
                return Err(Failure::Rejected);
            }
            tag.copy_from_slice(&lanes.seal(nonce, associated, message, text));
            return Ok(());
        }
        let (nonce, associated) = (Nonce::assume_unique_for_key(*nonce), Aad::from(associated));
        self.library
            .seal_out_of_place_scatter(nonce, associated, message, text, &[], tag)
            .map_err(|_| Failure::Rejected)
    }

    /// Like [`AeadKey::seal_in_place`], for a prepared message.
    #[inline]
    pub fn seal_in_place(
        &self,
        place: usize,
        nonce: &NonceBytes,
        associated: &[u8],
        message: &mut [u8],
        tag: &mut [u8],
    ) -> Result<(), Failure> {
        let (chacha, gcm) = (self.lanes(message.len()), fitting(self.gcm, message.len(), associated));
        let Some(tag) = <&mut [u8; TAG_BYTES]>::try_from(tag).ok() else { return Err(Failure::Rejected) };
        *tag = match (chacha, gcm) {
            (Some(lanes), _) => {
                let key = self.tag_keys.as_ref().and_then(|keys| keys.get(place));
                lanes.seal_in_place(nonce, associated, message, key)
            }
            (None, Some(lanes)) => lanes.seal_in_place(nonce, associated, message),
            (None, None) => {
                let (nonce, associated) = (Nonce::assume_unique_for_key(*nonce), Aad::from(associated));
                let made = self.library.seal_in_place_separate_tag(nonce, associated, message);
                made.ok().and_then(|made| made.as_ref().first_chunk().copied()).ok_or(Failure::Rejected)?
            }
        };
        Ok(())
    }

    /// Like [`AeadKey::open_in_place`], for a prepared message.
    #[inline]
    pub fn open_in_place(
        &self,
        place: usize,
        nonce: &NonceBytes,
        associated: &[u8],
        text: &mut [u8],
    ) -> Result<usize, Failure> {
        let chacha = self.lanes(text.len().saturating_sub(TAG_BYTES));
        let gcm = fitting(self.gcm, text.len(), associated);
        let lanes = if chacha.is_some() || gcm.is_some() { text.split_last_chunk_mut::<TAG_BYTES>() } else { None };
        let opened = if let Some((message, tag)) = lanes {
            let made = match (chacha, gcm) {
                (Some(lanes), _) => {
                    let key = self.tag_keys.as_ref().and_then(|keys| keys.get(place));
                    Some(lanes.open_in_place(nonce, associated, message, key))
                }
                (None, lanes) => lanes.map(|lanes| lanes.open_in_place(nonce, associated, message)),
            };
            made.filter(|made| verify_slices_are_equal(made, tag).is_ok()).map(|_| message.len())
        } else {
            let (nonce, associated) = (Nonce::assume_unique_for_key(*nonce), Aad::from(associated));
            self.library.open_in_place(nonce, associated, text).ok().map(|message| message.len())
        };
        opened.ok_or_else(|| {
            text.zeroize();
            Failure::Rejected
        })
    }

    /// Opens the message that was prepared at this index, as [`AeadKey::open`] does.
    pub fn open(
        &self,
        place: usize,
        nonce: &NonceBytes,
        associated: &[u8],
        text: &[u8],
        tag: &[u8],
        message: &mut [u8],
    ) -> Result<(), Failure> {
        let key = self.tag_keys.as_ref().and_then(|keys| keys.get(place));
        let is_authentic = match (self.lanes(text.len()), fitting(self.gcm, text.len(), associated)) {
            (Some(lanes), _) => {
                message.len() == text.len()
                    && verify_slices_are_equal(&lanes.open(nonce, associated, text, message, key), tag).is_ok()
            }
            (None, Some(lanes)) => {
                message.len() == text.len()
                    && verify_slices_are_equal(&lanes.open(nonce, associated, text, message), tag).is_ok()
            }
            (None, None) => {
                let (nonce, associated) = (Nonce::assume_unique_for_key(*nonce), Aad::from(associated));
                self.library.open_separate_gather(nonce, associated, text, tag, message).is_ok()
            }
        };
        if is_authentic {
            return Ok(());
        }
        message.zeroize();
        Err(Failure::Rejected)
    }
}

/// The GCM lanes, if message and associated data do not exceed their counters.
fn fitting<'a>(lanes: Option<&'a GcmLanes>, len: usize, associated: &[u8]) -> Option<&'a GcmLanes> {
    lanes.filter(|_| len.max(associated.len()) <= GCM_BYTES_MAX)
}

fn library(algorithm: AeadAlgorithm) -> &'static Algorithm {
    match algorithm {
        AeadAlgorithm::Aes128Gcm => &AES_128_GCM,
        AeadAlgorithm::Aes192Gcm => &AES_192_GCM,
        AeadAlgorithm::Aes256Gcm => &AES_256_GCM,
        AeadAlgorithm::ChaCha20Poly1305 => &CHACHA20_POLY1305,
    }
}
