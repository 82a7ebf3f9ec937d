//! Cases of the crypto domain. Rates count the messages' bytes once.

mod batch;
mod compress;
mod hash;
mod seal;
mod sign;

use panoply::crypto::AeadAlgorithm;
use panoply::op::crypto::{CipherMode, Format, HashAlgorithm};

use crate::bench::cases::case::{Case, MI};
use batch::{KI, LONG, MANY, SHORT, one};
use compress::{CompressCase, DecompressCase, DecompressManyCase};
use hash::HashCase;
use seal::{CipherCase, OpenCase, SealCase};
use sign::{Kind, SignCase, VerifyCase};

/// Every case of the domain.
pub const CASES: &[&dyn Case] = &[
    &SealCase { algorithm: AeadAlgorithm::Aes256Gcm, batch: one(16) },
    &SealCase { algorithm: AeadAlgorithm::Aes256Gcm, batch: one(256) },
    &SealCase { algorithm: AeadAlgorithm::Aes256Gcm, batch: one(KI) },
    &SealCase { algorithm: AeadAlgorithm::Aes256Gcm, batch: one(16 * KI) },
    &SealCase { algorithm: AeadAlgorithm::Aes256Gcm, batch: one(MI) },
    &SealCase { algorithm: AeadAlgorithm::Aes256Gcm, batch: SHORT },
    &SealCase { algorithm: AeadAlgorithm::Aes256Gcm, batch: LONG },
    &OpenCase { algorithm: AeadAlgorithm::Aes256Gcm, batch: one(16 * KI) },
    &OpenCase { algorithm: AeadAlgorithm::Aes256Gcm, batch: SHORT },
    &OpenCase { algorithm: AeadAlgorithm::Aes256Gcm, batch: LONG },
    &SealCase { algorithm: AeadAlgorithm::Aes256Gcm, batch: MANY },
    &OpenCase { algorithm: AeadAlgorithm::Aes256Gcm, batch: MANY },
    &SealCase { algorithm: AeadAlgorithm::Aes128Gcm, batch: one(16 * KI) },
    &SealCase { algorithm: AeadAlgorithm::Aes128Gcm, batch: one(MI) },
    &SealCase { algorithm: AeadAlgorithm::Aes128Gcm, batch: SHORT },
    &SealCase { algorithm: AeadAlgorithm::Aes128Gcm, batch: LONG },
    &SealCase { algorithm: AeadAlgorithm::Aes128Gcm, batch: MANY },
    &OpenCase { algorithm: AeadAlgorithm::Aes128Gcm, batch: MANY },
    &SealCase { algorithm: AeadAlgorithm::Aes192Gcm, batch: one(16 * KI) },
    &SealCase { algorithm: AeadAlgorithm::Aes192Gcm, batch: SHORT },
    &SealCase { algorithm: AeadAlgorithm::ChaCha20Poly1305, batch: one(KI) },
    &SealCase { algorithm: AeadAlgorithm::ChaCha20Poly1305, batch: one(16 * KI) },
    &SealCase { algorithm: AeadAlgorithm::ChaCha20Poly1305, batch: one(MI) },
    &SealCase { algorithm: AeadAlgorithm::ChaCha20Poly1305, batch: SHORT },
    &SealCase { algorithm: AeadAlgorithm::ChaCha20Poly1305, batch: LONG },
    &SealCase { algorithm: AeadAlgorithm::ChaCha20Poly1305, batch: MANY },
    &OpenCase { algorithm: AeadAlgorithm::ChaCha20Poly1305, batch: MANY },
    &CipherCase { mode: CipherMode::CbcUnpadded, decrypt: false, batch: one(16 * KI) },
    &CipherCase { mode: CipherMode::CbcUnpadded, decrypt: false, batch: SHORT },
    &CipherCase { mode: CipherMode::CbcUnpadded, decrypt: false, batch: LONG },
    &CipherCase { mode: CipherMode::CbcUnpadded, decrypt: false, batch: MANY },
    &CipherCase { mode: CipherMode::CbcUnpadded, decrypt: true, batch: one(16 * KI) },
    &CipherCase { mode: CipherMode::CbcUnpadded, decrypt: true, batch: SHORT },
    &CipherCase { mode: CipherMode::CbcUnpadded, decrypt: true, batch: LONG },
    &CipherCase { mode: CipherMode::CbcUnpadded, decrypt: true, batch: MANY },
    &CipherCase { mode: CipherMode::Ctr, decrypt: false, batch: one(16 * KI) },
    &CipherCase { mode: CipherMode::Ctr, decrypt: false, batch: one(MI) },
    &CipherCase { mode: CipherMode::Ctr, decrypt: false, batch: SHORT },
    &CipherCase { mode: CipherMode::Ctr, decrypt: false, batch: LONG },
    &CipherCase { mode: CipherMode::Ctr, decrypt: false, batch: MANY },
    &CipherCase { mode: CipherMode::Ctr, decrypt: true, batch: MANY },
    &HashCase { algorithm: HashAlgorithm::Sha256, batch: one(16) },
    &HashCase { algorithm: HashAlgorithm::Sha256, batch: one(256) },
    &HashCase { algorithm: HashAlgorithm::Sha256, batch: one(KI) },
    &HashCase { algorithm: HashAlgorithm::Sha256, batch: one(16 * KI) },
    &HashCase { algorithm: HashAlgorithm::Sha256, batch: one(MI) },
    &HashCase { algorithm: HashAlgorithm::Sha256, batch: SHORT },
    &HashCase { algorithm: HashAlgorithm::Sha256, batch: LONG },
    &HashCase { algorithm: HashAlgorithm::Sha256, batch: MANY },
    &HashCase { algorithm: HashAlgorithm::Sha384, batch: one(16 * KI) },
    &HashCase { algorithm: HashAlgorithm::Sha384, batch: SHORT },
    &HashCase { algorithm: HashAlgorithm::Sha384, batch: MANY },
    &HashCase { algorithm: HashAlgorithm::Sha512, batch: one(16 * KI) },
    &HashCase { algorithm: HashAlgorithm::Sha512, batch: one(MI) },
    &HashCase { algorithm: HashAlgorithm::Sha512, batch: SHORT },
    &HashCase { algorithm: HashAlgorithm::Sha512, batch: LONG },
    &HashCase { algorithm: HashAlgorithm::Sha512, batch: MANY },
    &SignCase { kind: Kind::Rsa2048, is_many: false },
    &VerifyCase { kind: Kind::Rsa2048, is_many: false },
    &SignCase { kind: Kind::Rsa4096, is_many: false },
    &VerifyCase { kind: Kind::Rsa4096, is_many: false },
    &SignCase { kind: Kind::P256, is_many: false },
    &SignCase { kind: Kind::P256, is_many: true },
    &VerifyCase { kind: Kind::P256, is_many: false },
    &VerifyCase { kind: Kind::P256, is_many: true },
    &SignCase { kind: Kind::P384, is_many: false },
    &VerifyCase { kind: Kind::P384, is_many: false },
    &SignCase { kind: Kind::Ed25519, is_many: false },
    &SignCase { kind: Kind::Ed25519, is_many: true },
    &VerifyCase { kind: Kind::Ed25519, is_many: false },
    &VerifyCase { kind: Kind::Ed25519, is_many: true },
    &CompressCase { name: "deflate1", format: Format::Deflate, level: 1, in_blocks: false },
    &CompressCase { name: "deflate1", format: Format::Deflate, level: 1, in_blocks: true },
    &CompressCase { name: "deflate6", format: Format::Deflate, level: 6, in_blocks: false },
    &CompressCase { name: "deflate6", format: Format::Deflate, level: 6, in_blocks: true },
    &CompressCase { name: "lz4", format: Format::Lz4Block, level: 1, in_blocks: false },
    &CompressCase { name: "lz4", format: Format::Lz4Block, level: 1, in_blocks: true },
    &CompressCase { name: "zstd1", format: Format::Zstd, level: 1, in_blocks: false },
    &CompressCase { name: "zstd1", format: Format::Zstd, level: 1, in_blocks: true },
    &CompressCase { name: "zstd3", format: Format::Zstd, level: 3, in_blocks: false },
    &CompressCase { name: "zstd3", format: Format::Zstd, level: 3, in_blocks: true },
    &DecompressCase { name: "deflate1", format: Format::Deflate, level: 1, in_blocks: false },
    &DecompressCase { name: "deflate1", format: Format::Deflate, level: 1, in_blocks: true },
    &DecompressCase { name: "deflate6", format: Format::Deflate, level: 6, in_blocks: false },
    &DecompressCase { name: "deflate6", format: Format::Deflate, level: 6, in_blocks: true },
    &DecompressCase { name: "lz4", format: Format::Lz4Block, level: 1, in_blocks: false },
    &DecompressCase { name: "lz4", format: Format::Lz4Block, level: 1, in_blocks: true },
    &DecompressManyCase { name: "lz4", format: Format::Lz4Block, level: 1, blocks: 16_384 },
    &DecompressManyCase { name: "deflate1", format: Format::Deflate, level: 1, blocks: 16_384 },
    &DecompressCase { name: "zstd1", format: Format::Zstd, level: 1, in_blocks: false },
    &DecompressCase { name: "zstd1", format: Format::Zstd, level: 1, in_blocks: true },
    &DecompressCase { name: "zstd3", format: Format::Zstd, level: 3, in_blocks: false },
    &DecompressCase { name: "zstd3", format: Format::Zstd, level: 3, in_blocks: true },
];

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use panoply::testing::{Script, virtual_backend};
    use panoply::{Error, Runtime};

    use super::*;
    use crate::bench::place::BenchDevice;

    /// Verifying and decompressing are measured even on a device that neither signs nor compresses.
    #[test]
    fn inputs_are_made_where_the_device_cannot_make_them() {
        let script = Script::new().without("sign").without("compress");
        let backend = virtual_backend().unwrap().device(script);
        let runtime = Runtime::builder().only([]).backend(Arc::new(backend)).without_profile().build().unwrap();
        let device = runtime.devices().next().unwrap();
        let place = BenchDevice { runtime: Arc::new(runtime), device };
        let cases: [&dyn Case; 5] = [
            &VerifyCase { kind: Kind::Rsa2048, is_many: false },
            &VerifyCase { kind: Kind::P256, is_many: false },
            &VerifyCase { kind: Kind::Ed25519, is_many: false },
            &DecompressCase { name: "lz4", format: Format::Lz4Block, level: 1, in_blocks: true },
            &DecompressManyCase { name: "deflate1", format: Format::Deflate, level: 1, blocks: 3 },
        ];
        for case in cases {
            case.prepare(&place).and_then(|run| run()).unwrap_or_else(|error| panic!("{}: {error}", case.name()));
        }
        let sign = SignCase { kind: Kind::P256, is_many: false };
        let refused = sign.prepare(&place).and_then(|run| run());
        assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
    }
}
