//! Several messages at a time in the lanes of one thread's vector registers, if the CPU has
//! AVX-512.
//!
//! * SHA-2, AES-CBC and AES-CTR over several messages: a single message leaves most of the CPU
//!   idle.
//! * Sixteen blocks of one message of AES-GCM or ChaCha20-Poly1305.
//! * Eight RSA numbers under one key, and signatures over curves: a single one cannot use vectors.
//!
//! All of this is written by hand in this project and has not been audited by others;
//! `docs/crypto.md` describes its tests. A `State` that is not wide never enters it.
//!
//! If the CPU lacks the instructions, or messages are too few or too different, the callers use
//! the library's functions.

#[cfg(target_arch = "x86_64")]
mod aes;
#[cfg(target_arch = "x86_64")]
mod chacha;
#[cfg(target_arch = "x86_64")]
mod constants;
#[cfg(target_arch = "x86_64")]
mod crossed;
#[cfg(target_arch = "x86_64")]
mod curves;
mod entries;
#[cfg(target_arch = "x86_64")]
mod gcm;
#[cfg(target_arch = "x86_64")]
mod poly1305;
#[cfg(target_arch = "x86_64")]
mod rsa;
#[cfg(target_arch = "x86_64")]
mod sha256;
#[cfg(target_arch = "x86_64")]
mod sha512;
#[cfg(target_arch = "x86_64")]
mod sha_lanes;

#[cfg(not(target_arch = "x86_64"))]
mod absent;

#[cfg(not(target_arch = "x86_64"))]
pub use absent::{
    AesLanes, ChaChaLanes, Ed25519Lanes, GCM_BYTES_MAX, GcmLanes, HASHED_LANES, KEYED_LANES, P256Lanes, P256SignLanes,
    RSA_LANES, RsaPrime, RsaPrivate, RsaPrivateParts, RsaPublic, TagKey, TagKeys, detected_for_chacha,
    detected_for_curves, detected_for_gcm, detected_for_hash, detected_for_rsa, detected_for_rsa_integers, hash_alike,
};
#[cfg(target_arch = "x86_64")]
pub use {
    aes::AesLanes, chacha::ChaChaLanes, chacha::KEYED_LANES, chacha::TagKey, chacha::TagKeys,
    chacha::detected_for_chacha, curves::Ed25519Lanes, curves::P256Lanes, curves::P256SignLanes,
    curves::detected as detected_for_curves, gcm::GCM_BYTES_MAX, gcm::GcmLanes, gcm::detected_for_gcm, rsa::RSA_LANES,
    rsa::RsaPrime, rsa::RsaPrivate, rsa::RsaPrivateParts, rsa::RsaPublic, rsa::detected_for_rsa,
    rsa::detected_for_rsa_integers, sha_lanes::HASHED_LANES, sha_lanes::detected_for_hash, sha_lanes::hash_alike,
};

pub use entries::entries;

/// Messages that are encrypted in parallel: an instruction's latency covers the others' issue.
pub const CHAINED_LANES: usize = 8;
/// The same with registers of four blocks.
pub const CHAINED_LANES_WIDE: usize = 16;

/// Whether this CPU has the instructions for the AES lanes.
pub fn detected() -> bool {
    #[cfg(target_arch = "x86_64")]
    let there = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("vaes")
        && is_x86_feature_detected!("aes");
    #[cfg(not(target_arch = "x86_64"))]
    let there = false;
    there
}
