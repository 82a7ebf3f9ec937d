//! Signatures over curves, eight at a time, one in each lane of the vector registers.
//!
//! * [`number`]: one number modulo another, in the CPU's own words.
//! * [`table`]: multiples of a point, from which every lane picks its own.
//! * [`field25519`], [`ed25519`]: the field of Ed25519, and its verification.
//! * [`field_p256`], [`p256`], [`p256_sign`]: the field of P-256, ECDSA's verification, and its
//!   signing.

mod ed25519;
mod field25519;
mod field_p256;
mod number;
mod p256;
mod p256_sign;
mod table;
#[cfg(test)]
mod tests;

pub use ed25519::Ed25519Lanes;
pub use p256::P256Lanes;
pub use p256_sign::P256SignLanes;

/// Whether this CPU has the instructions for these lanes.
pub fn detected() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw")
}
