//! Cases of the crypto domain. Rates count the messages' bytes once.

mod compress;
mod hash;
mod seal;
mod sign;

use panoply::crypto::{AeadAlgorithm, Messages};
use panoply::op::crypto::{CipherMode, Format, HashAlgorithm};
use panoply::{Bytes, Error};

use super::{Amount, BenchDevice, Case, Runner, Scale};
use compress::{CompressCase, DecompressCase, DecompressManyCase};
use hash::HashCase;
use seal::{CipherCase, OpenCase, SealCase};
use sign::{Kind, SignCase, VerifyCase};

const KI: usize = 1 << 10;
const MI: usize = 1 << 20;
const SHORT: Batch = Batch { count: 10_000, len: KI };
const LONG: Batch = Batch { count: 1000, len: 16 * KI };
/// Enough messages for a device with its own memory.
const MANY: Batch = Batch { count: 65_536, len: 16 * KI };

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

/// Messages of one length.
#[derive(Clone, Copy)]
pub struct Batch {
    count: usize,
    len: usize,
}

const fn one(len: usize) -> Batch {
    Batch { count: 1, len }
}

impl Batch {
    fn name(&self) -> String {
        let len = match self.len {
            len if len.is_multiple_of(MI) => format!("{}MiB", len / MI),
            len if len.is_multiple_of(KI) => format!("{}KiB", len / KI),
            len => format!("{len}B"),
        };
        if self.count == 1 { len } else { format!("{}x{len}", self.count) }
    }

    fn amount(&self) -> Amount {
        Amount::Bytes((self.count * self.len) as f64)
    }

    /// The scale of a batch. The short set has the batches of the usual algorithms.
    fn scale(&self, is_usual: bool) -> Scale {
        match self.count {
            count if count == MANY.count => Scale::Huge,
            count if is_usual && count > 1 => Scale::Medium,
            _ => Scale::Large,
        }
    }

    /// Makes the messages: one message, or many in one buffer.
    fn messages(&self) -> panoply::Result<Messages> {
        let bytes = Bytes::from_vec(vec![3; self.count * self.len]);
        if self.count == 1 { Ok(bytes.into()) } else { Messages::split(bytes, self.len) }
    }

    /// Makes `len_each` bytes for each message; they begin with the message's number, so that no
    /// two are alike.
    fn numbers(&self, len_each: usize) -> Bytes {
        let mut numbers = vec![0; len_each * self.count];
        for (number, bytes) in (0_u64..).zip(numbers.chunks_mut(len_each)) {
            bytes[..8].copy_from_slice(&number.to_le_bytes());
        }
        Bytes::from_vec(numbers)
    }
}

/// The error of a case that lacks something it needs.
fn missing(what: &str) -> Error {
    Error::Unsupported { op: "bench", reason: what.to_owned() }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use panoply::Runtime;
    use panoply::testing::{Script, virtual_backend};

    use super::*;

    /// Verifying and decompressing are measured even on a device that neither signs nor compresses.
    #[test]
    fn inputs_are_made_where_the_device_cannot_make_them() {
        let script = Script::new().without("sign").without("compress");
        let backend = virtual_backend().unwrap().device(script);
        let runtime = Runtime::builder().only([]).backend(Arc::new(backend)).without_profile().build().unwrap();
        let device = runtime.devices().next().unwrap().clone();
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
