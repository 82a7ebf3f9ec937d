//! Several messages at a time in the lanes of one thread's vector registers, where the CPU has AVX-512: SHA-2, of which one message alone
//! leaves most of the CPU idle unless there are instructions for it, and AES whose blocks wait for each other (CBC) or do not (CTR). And sixteen blocks of one message
//! of AES-GCM or ChaCha20-Poly1305, eight numbers of RSA under one key, and signatures over curves, of which one alone cannot use vectors.
//!
//! Where the instructions are not there, or messages too few or too different, the callers use the library's functions.

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

/// Messages that are chained side by side: an instruction takes as long as the others need to begin.
pub const CHAINED_LANES: usize = 8;
/// And where there are registers of four blocks.
pub const CHAINED_LANES_WIDE: usize = 16;

/// Whether this CPU has what the lanes of AES need.
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
