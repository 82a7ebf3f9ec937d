//! The algorithms of the domain, by their usual names, with their sizes in bytes.

/// Authenticated encryption (AEAD).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AeadAlgorithm {
    /// AES-128-GCM.
    Aes128Gcm,
    /// AES-192-GCM.
    Aes192Gcm,
    /// AES-256-GCM.
    Aes256Gcm,
    /// ChaCha20-Poly1305 of RFC 8439.
    ChaCha20Poly1305,
}

impl AeadAlgorithm {
    /// Every algorithm.
    pub const ALL: [AeadAlgorithm; 4] =
        [AeadAlgorithm::Aes128Gcm, AeadAlgorithm::Aes192Gcm, AeadAlgorithm::Aes256Gcm, AeadAlgorithm::ChaCha20Poly1305];

    /// The usual name.
    pub const fn name(self) -> &'static str {
        match self {
            AeadAlgorithm::Aes128Gcm => "aes-128-gcm",
            AeadAlgorithm::Aes192Gcm => "aes-192-gcm",
            AeadAlgorithm::Aes256Gcm => "aes-256-gcm",
            AeadAlgorithm::ChaCha20Poly1305 => "chacha20-poly1305",
        }
    }

    /// Length of a key in bytes.
    pub const fn key_bytes(self) -> usize {
        match self {
            AeadAlgorithm::Aes128Gcm => 16,
            AeadAlgorithm::Aes192Gcm => 24,
            AeadAlgorithm::Aes256Gcm | AeadAlgorithm::ChaCha20Poly1305 => 32,
        }
    }

    /// Maximal length of a message: the block counter has 32 bits, and its first one or two values
    /// are reserved.
    pub const fn message_bytes_max(self) -> u64 {
        match self {
            AeadAlgorithm::ChaCha20Poly1305 => (1 << 38) - 64,
            _ => (1 << 36) - 32,
        }
    }
}

/// Block ciphers without authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CipherAlgorithm {
    /// AES with a key of 16 bytes.
    Aes128,
    /// AES with a key of 24 bytes.
    Aes192,
    /// AES with a key of 32 bytes.
    Aes256,
}

impl CipherAlgorithm {
    /// Every algorithm.
    pub const ALL: [CipherAlgorithm; 3] = [CipherAlgorithm::Aes128, CipherAlgorithm::Aes192, CipherAlgorithm::Aes256];

    /// The usual name.
    pub const fn name(self) -> &'static str {
        match self {
            CipherAlgorithm::Aes128 => "aes-128",
            CipherAlgorithm::Aes192 => "aes-192",
            CipherAlgorithm::Aes256 => "aes-256",
        }
    }

    /// Length of a key in bytes.
    pub const fn key_bytes(self) -> usize {
        match self {
            CipherAlgorithm::Aes128 => 16,
            CipherAlgorithm::Aes192 => 24,
            CipherAlgorithm::Aes256 => 32,
        }
    }

    /// The usual name, with the mode.
    pub const fn name_in(self, mode: CipherMode) -> &'static str {
        match (self, mode) {
            (CipherAlgorithm::Aes128, CipherMode::Ctr) => "aes-128-ctr",
            (CipherAlgorithm::Aes192, CipherMode::Ctr) => "aes-192-ctr",
            (CipherAlgorithm::Aes256, CipherMode::Ctr) => "aes-256-ctr",
            (CipherAlgorithm::Aes128, _) => "aes-128-cbc",
            (CipherAlgorithm::Aes192, _) => "aes-192-cbc",
            (CipherAlgorithm::Aes256, _) => "aes-256-cbc",
        }
    }
}

/// The mode of operation of a block cipher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CipherMode {
    /// Cipher block chaining with PKCS#7 padding, which adds one to sixteen bytes.
    Cbc,
    /// Cipher block chaining of whole blocks.
    CbcUnpadded,
    /// Counter mode. The counter has 128 bits, big-endian, and starts with the initialisation
    /// vector.
    Ctr,
}

/// SHA-2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HashAlgorithm {
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

impl HashAlgorithm {
    /// Every algorithm.
    pub const ALL: [HashAlgorithm; 3] = [HashAlgorithm::Sha256, HashAlgorithm::Sha384, HashAlgorithm::Sha512];

    /// The usual name.
    pub const fn name(self) -> &'static str {
        match self {
            HashAlgorithm::Sha256 => "sha256",
            HashAlgorithm::Sha384 => "sha384",
            HashAlgorithm::Sha512 => "sha512",
        }
    }

    /// Length of a digest in bytes.
    pub const fn digest_bytes(self) -> usize {
        match self {
            HashAlgorithm::Sha256 => 32,
            HashAlgorithm::Sha384 => 48,
            HashAlgorithm::Sha512 => 64,
        }
    }
}

/// Bit length of an RSA modulus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RsaBits {
    /// 2048 bits.
    Bits2048,
    /// 3072 bits.
    Bits3072,
    /// 4096 bits.
    Bits4096,
}

impl RsaBits {
    /// Length of a signature in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            RsaBits::Bits2048 => 256,
            RsaBits::Bits3072 => 384,
            RsaBits::Bits4096 => 512,
        }
    }
}

/// The padding of an RSA signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RsaPadding {
    /// PKCS#1 v1.5.
    Pkcs1,
    /// PSS, with a salt as long as the digest.
    Pss,
}

/// The encoding of the two numbers of an ECDSA signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EcdsaEncoding {
    /// One after the other, each as long as the curve's order.
    Fixed,
    /// As a sequence in ASN.1 DER.
    Der,
}

/// Signature algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SignatureAlgorithm {
    /// RSA.
    Rsa {
        /// The key length.
        bits: RsaBits,
        /// The padding of the digest.
        padding: RsaPadding,
        /// The hash of the message.
        hash: HashAlgorithm,
    },
    /// ECDSA on the curve P-256, with SHA-256.
    EcdsaP256(EcdsaEncoding),
    /// ECDSA on the curve P-384, with SHA-384.
    EcdsaP384(EcdsaEncoding),
    /// Ed25519.
    Ed25519,
}

impl SignatureAlgorithm {
    /// RSA with this padding and SHA-256.
    pub const fn rsa(bits: RsaBits, padding: RsaPadding) -> SignatureAlgorithm {
        SignatureAlgorithm::Rsa { bits, padding, hash: HashAlgorithm::Sha256 }
    }

    /// The usual name of the key's kind.
    pub const fn name(self) -> &'static str {
        match self {
            SignatureAlgorithm::Rsa { bits: RsaBits::Bits2048, .. } => "rsa-2048",
            SignatureAlgorithm::Rsa { bits: RsaBits::Bits3072, .. } => "rsa-3072",
            SignatureAlgorithm::Rsa { bits: RsaBits::Bits4096, .. } => "rsa-4096",
            SignatureAlgorithm::EcdsaP256(_) => "ecdsa-p256",
            SignatureAlgorithm::EcdsaP384(_) => "ecdsa-p384",
            SignatureAlgorithm::Ed25519 => "ed25519",
        }
    }

    /// Maximal length of a signature. ECDSA signatures in DER may be shorter; all others have this
    /// length.
    pub const fn signature_bytes_max(self) -> usize {
        match self {
            SignatureAlgorithm::Rsa { bits, .. } => bits.bytes(),
            SignatureAlgorithm::EcdsaP256(EcdsaEncoding::Fixed) | SignatureAlgorithm::Ed25519 => 64,
            SignatureAlgorithm::EcdsaP256(EcdsaEncoding::Der) => 72,
            SignatureAlgorithm::EcdsaP384(EcdsaEncoding::Fixed) => 96,
            SignatureAlgorithm::EcdsaP384(EcdsaEncoding::Der) => 104,
        }
    }

    /// The cost of one signature, as a number of bytes that are hashed in the same time.
    pub const fn sign_cost_bytes(self) -> u64 {
        match self {
            SignatureAlgorithm::Rsa { bits: RsaBits::Bits2048, .. } => 450_000,
            SignatureAlgorithm::Rsa { bits: RsaBits::Bits3072, .. } => 1_200_000,
            SignatureAlgorithm::Rsa { bits: RsaBits::Bits4096, .. } => 2_400_000,
            SignatureAlgorithm::EcdsaP256(_) => 27_000,
            SignatureAlgorithm::EcdsaP384(_) => 110_000,
            SignatureAlgorithm::Ed25519 => 12_000,
        }
    }

    /// The cost of verifying one signature, as a number of bytes that are hashed in the same time.
    pub const fn verify_cost_bytes(self) -> u64 {
        match self {
            SignatureAlgorithm::Rsa { bits: RsaBits::Bits2048, .. } => 24_000,
            SignatureAlgorithm::Rsa { bits: RsaBits::Bits3072, .. } => 50_000,
            SignatureAlgorithm::Rsa { bits: RsaBits::Bits4096, .. } => 96_000,
            SignatureAlgorithm::EcdsaP256(_) => 96_000,
            SignatureAlgorithm::EcdsaP384(_) => 330_000,
            SignatureAlgorithm::Ed25519 => 55_000,
        }
    }
}

/// Formats of compressed data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// DEFLATE of RFC 1951, without header or checksum.
    Deflate,
    /// DEFLATE in a zlib stream.
    Zlib,
    /// DEFLATE in gzip members.
    Gzip,
    /// One LZ4 block, without its length.
    Lz4Block,
    /// LZ4 frames.
    Lz4Frame,
    /// Zstandard frames.
    Zstd,
}

impl Format {
    /// Every format.
    pub const ALL: [Format; 6] =
        [Format::Deflate, Format::Zlib, Format::Gzip, Format::Lz4Block, Format::Lz4Frame, Format::Zstd];

    /// The usual name.
    pub const fn name(self) -> &'static str {
        match self {
            Format::Deflate => "deflate",
            Format::Zlib => "zlib",
            Format::Gzip => "gzip",
            Format::Lz4Block => "lz4-block",
            Format::Lz4Frame => "lz4-frame",
            Format::Zstd => "zstd",
        }
    }

    /// The levels, from the fastest to the smallest output.
    pub const fn levels(self) -> std::ops::RangeInclusive<i32> {
        match self {
            Format::Deflate | Format::Zlib | Format::Gzip => 0..=12,
            Format::Lz4Block | Format::Lz4Frame => 1..=1,
            Format::Zstd => -7..=22,
        }
    }

    /// The usual level.
    pub const fn level_default(self) -> i32 {
        match self {
            Format::Deflate | Format::Zlib | Format::Gzip => 6,
            Format::Lz4Block | Format::Lz4Frame => 1,
            Format::Zstd => 3,
        }
    }

    /// Maximal length of a message that can be compressed at once.
    pub const fn message_bytes_max(self) -> u64 {
        match self {
            Format::Lz4Block => 0x7e00_0000,
            _ => 1 << 40,
        }
    }
}
