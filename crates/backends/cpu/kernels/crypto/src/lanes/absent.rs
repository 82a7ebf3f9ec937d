//! The interface of the lanes for a CPU without them: nothing can be constructed.

use panoply_core::op::crypto::HashAlgorithm;

use crate::cipher::AesBlock;

/// Never constructed.
pub enum AesLanes {}

impl AesLanes {
    /// The CPU lacks the instructions.
    pub fn new(_: &[u8]) -> Option<AesLanes> {
        None
    }

    /// Never called.
    pub fn has_wide_chains(&self) -> bool {
        match *self {}
    }

    /// Never called.
    pub fn encrypt_chained<const N: usize>(
        &self,
        _: &mut [AesBlock; N],
        _: &[&[u8]; N],
        _: &mut [&mut [u8]; N],
    ) -> usize {
        match *self {}
    }

    /// Never called.
    pub fn decrypt_chained(&self, _: &AesBlock, _: &[u8], _: &mut [u8]) -> bool {
        match *self {}
    }

    /// Never called.
    pub fn apply_counted(&self, _: u128, _: &[u8], _: &mut [u8]) -> bool {
        match *self {}
    }
}

/// Keys are made one by one.
pub const KEYED_LANES: usize = 1;

/// Never constructed.
pub enum TagKey {}

/// Never constructed.
pub enum TagKeys {}

impl TagKeys {
    /// Never called.
    pub fn get(&self, _: usize) -> Option<&TagKey> {
        match *self {}
    }
}

/// Never constructed.
pub enum ChaChaLanes {}

/// The CPU lacks the instructions.
pub fn detected_for_chacha() -> bool {
    false
}

impl ChaChaLanes {
    /// The CPU lacks the instructions.
    pub fn new(_: &[u8]) -> Option<ChaChaLanes> {
        None
    }

    /// Never called.
    pub fn without_wide_products(self) -> ChaChaLanes {
        match self {}
    }

    /// Never called.
    pub fn tag_keys(&self, _: &[[u8; 12]]) -> TagKeys {
        match *self {}
    }

    /// Never called.
    pub fn seal(&self, _: &[u8; 12], _: &[u8], _: &[u8], _: &mut [u8], _: Option<&TagKey>) -> [u8; 16] {
        match *self {}
    }

    /// Never called.
    pub fn open(&self, _: &[u8; 12], _: &[u8], _: &[u8], _: &mut [u8], _: Option<&TagKey>) -> [u8; 16] {
        match *self {}
    }

    /// Never called.
    pub fn seal_in_place(&self, _: &[u8; 12], _: &[u8], _: &mut [u8], _: Option<&TagKey>) -> [u8; 16] {
        match *self {}
    }

    /// Never called.
    pub fn open_in_place(&self, _: &[u8; 12], _: &[u8], _: &mut [u8], _: Option<&TagKey>) -> [u8; 16] {
        match *self {}
    }
}

/// No message is short enough.
pub const GCM_BYTES_MAX: usize = 0;

/// Never constructed.
pub enum GcmLanes {}

/// The CPU lacks the instructions.
pub fn detected_for_gcm() -> bool {
    false
}

impl GcmLanes {
    /// The CPU lacks the instructions.
    pub fn new(_: &[u8]) -> Option<GcmLanes> {
        None
    }

    /// Never called.
    pub fn seal(&self, _: &[u8; 12], _: &[u8], _: &[u8], _: &mut [u8]) -> [u8; 16] {
        match *self {}
    }

    /// Never called.
    pub fn open(&self, _: &[u8; 12], _: &[u8], _: &[u8], _: &mut [u8]) -> [u8; 16] {
        match *self {}
    }

    /// Never called.
    pub fn seal_in_place(&self, _: &[u8; 12], _: &[u8], _: &mut [u8]) -> [u8; 16] {
        match *self {}
    }

    /// Never called.
    pub fn open_in_place(&self, _: &[u8; 12], _: &[u8], _: &mut [u8]) -> [u8; 16] {
        match *self {}
    }
}

/// Never constructed.
pub enum Ed25519Lanes {}

impl Ed25519Lanes {
    /// The CPU lacks the instructions.
    pub fn new(_: &[u8; 32]) -> Option<Ed25519Lanes> {
        None
    }

    /// Never called.
    pub fn verify(&self, _: &[&[u8]], _: &[&[u8]], _: &mut [Option<bool>]) {
        match *self {}
    }
}

/// Never constructed.
pub enum P256Lanes {}

impl P256Lanes {
    /// The CPU lacks the instructions.
    pub fn new(_: &[u8; 64]) -> Option<P256Lanes> {
        None
    }

    /// Never called.
    pub fn verify(&self, _: &[[u8; 32]], _: &[Option<[u8; 64]>], _: &mut [Option<bool>]) {
        match *self {}
    }
}

/// Never constructed.
pub enum P256SignLanes {}

impl P256SignLanes {
    /// The CPU lacks the instructions.
    pub fn new(_: &[u8; 32]) -> Option<P256SignLanes> {
        None
    }

    /// Never called.
    pub fn sign(&self, _: &[[u8; 32]], _: &[[u8; 32]], _: &mut [[u8; 64]]) {
        match *self {}
    }
}

/// The CPU lacks the instructions.
pub fn detected_for_curves() -> bool {
    false
}

/// Nothing is hashed in lanes.
pub const HASHED_LANES: usize = 1;

/// The CPU lacks the instructions.
pub fn detected_for_hash() -> bool {
    false
}

/// Hashes nothing.
///
/// # Safety
/// None.
pub unsafe fn hash_alike(_: HashAlgorithm, _: &[&[u8]], _: &mut [u8]) -> usize {
    0
}

/// Nothing is exponentiated in lanes.
pub const RSA_LANES: usize = 8;

/// The CPU lacks the instructions.
pub fn detected_for_rsa() -> bool {
    false
}

/// The CPU lacks the instructions.
pub fn detected_for_rsa_integers() -> bool {
    false
}

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

/// Never constructed.
pub enum RsaPrivate {}

impl RsaPrivate {
    /// The CPU lacks the instructions.
    pub fn new(_: &RsaPrivateParts<'_>) -> Option<RsaPrivate> {
        None
    }

    /// Never called.
    pub fn public(&self) -> &RsaPublic {
        match *self {}
    }

    /// Never called.
    pub fn raise(&self, _: &[&[u8]], _: &mut [u8]) -> [bool; RSA_LANES] {
        match *self {}
    }
}

/// Never constructed.
pub enum RsaPublic {}

impl RsaPublic {
    /// The CPU lacks the instructions.
    pub fn new(_: &[u8], _: u64) -> Option<RsaPublic> {
        None
    }

    /// Never called.
    pub fn bytes(&self) -> usize {
        match *self {}
    }

    /// Never called.
    pub fn bits(&self) -> usize {
        match *self {}
    }

    /// Never called.
    pub fn takes(&self, _: &[u8]) -> bool {
        match *self {}
    }

    /// Never called.
    pub fn raise(&self, _: &[&[u8]], _: &mut [u8]) {
        match *self {}
    }
}

/// Never constructed.
pub enum RsaPrime {}

impl RsaPrime {
    /// No levels.
    pub fn of_each_level(_: &[u8]) -> Vec<(&'static str, RsaPrime)> {
        Vec::new()
    }

    /// The CPU lacks the instructions.
    pub fn new(_: &[u8]) -> Option<RsaPrime> {
        None
    }

    /// Never called.
    pub fn raise(&self, _: &[&[u8]], _: &[u8], _: &mut [u8]) -> bool {
        match *self {}
    }
}
