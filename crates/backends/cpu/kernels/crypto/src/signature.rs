//! Signatures.

use aws_lc_rs::encoding::AsDer;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeySize, PublicEncryptingKey};
use aws_lc_rs::signature::{self as library, KeyPair, ParsedPublicKey};
use panoply_core::op::crypto::{EcdsaEncoding, HashAlgorithm, RsaBits, RsaPadding, SignatureAlgorithm};
use panoply_core::process::Process;
use zeroize::Zeroize;

use crate::edwards::{encoded_point, is_public_key};
use crate::failure::Failure;
use crate::rsa::{Encoding, RSA_GROUP, RsaSigningKey, RsaVerifyingKey};
use crate::signature_lanes::{SignLanes, VerifyLanes};

/// A private key.
#[allow(clippy::large_enum_variant)] // There are few, each in memory of its own.
pub enum PrivateKey {
    /// RSA.
    Rsa(RsaSigningKey),
    /// ECDSA, with its curve and encoding.
    Ecdsa(EcdsaKey),
    /// Ed25519.
    Ed25519(library::Ed25519KeyPair),
}

/// An ECDSA private key.
pub struct EcdsaKey(library::EcdsaKeyPair, SignLanes);

/// A public key.
pub struct PublicKey {
    key: ParsedPublicKey,
    rsa: Option<RsaVerifyingKey>,
    lanes: VerifyLanes,
}

/// A new key pair.
pub struct NewKeyPair {
    /// The private key, in PKCS#8.
    pub pkcs8: Vec<u8>,
    /// The public key, as `Key::verify` takes it.
    pub public: Vec<u8>,
}

impl PrivateKey {
    /// Takes PKCS#8; `None` if it is malformed, weak, or of another algorithm or length.
    pub fn new(algorithm: SignatureAlgorithm, pkcs8: &[u8]) -> Option<PrivateKey> {
        PrivateKey::with_lanes(algorithm, pkcs8, true)
    }

    /// With lanes for curves (if the CPU has them), or without. Those of RSA are made when a batch
    /// first needs them.
    pub fn with_lanes(algorithm: SignatureAlgorithm, pkcs8: &[u8], wide: bool) -> Option<PrivateKey> {
        Some(match algorithm {
            SignatureAlgorithm::Rsa { bits, padding, hash } => {
                let key = RsaSigningKey::new(pkcs8, Encoding { padding, hash }, rsa_encoding(padding, hash))?;
                let fits = key.bytes() == bits.bytes();
                fits.then_some(PrivateKey::Rsa(key))?
            }
            SignatureAlgorithm::EcdsaP256(_) | SignatureAlgorithm::EcdsaP384(_) => {
                let key = library::EcdsaKeyPair::from_pkcs8(ecdsa_signing(algorithm)?, pkcs8).ok()?;
                let lanes = if wide { SignLanes::new(algorithm, &key) } else { SignLanes::none() };
                PrivateKey::Ecdsa(EcdsaKey(key, lanes))
            }
            SignatureAlgorithm::Ed25519 => {
                PrivateKey::Ed25519(library::Ed25519KeyPair::from_pkcs8_maybe_unchecked(pkcs8).ok()?)
            }
        })
    }

    /// Writes the signature of a message, and returns its length.
    pub fn sign(&self, message: &[u8], out: &mut [u8]) -> Result<usize, Failure> {
        let random = SystemRandom::new();
        let made = match self {
            PrivateKey::Rsa(key) => {
                let out = out.get_mut(..key.bytes()).ok_or(Failure::Rejected)?;
                key.sign(message, out)?;
                return Ok(out.len());
            }
            PrivateKey::Ecdsa(key) => key.0.sign(&random, message),
            PrivateKey::Ed25519(key) => key.try_sign(message),
        };
        let made = made.map_err(|_| Failure::Rejected)?;
        let signature = made.as_ref();
        out.get_mut(..signature.len()).ok_or(Failure::Rejected)?.copy_from_slice(signature);
        Ok(signature.len())
    }

    /// The uncompressed point of an ECDSA key; `None` for others.
    pub fn point(&self) -> Option<&[u8]> {
        match self {
            PrivateKey::Ecdsa(EcdsaKey(key, _)) => Some(key.public_key().as_ref()),
            PrivateKey::Rsa(..) | PrivateKey::Ed25519(_) => None,
        }
    }

    /// Number of signatures that should be made together.
    pub fn together(&self) -> usize {
        match self {
            PrivateKey::Ecdsa(EcdsaKey(_, lanes)) => lanes.together(),
            PrivateKey::Rsa(..) | PrivateKey::Ed25519(_) => 1,
        }
    }

    /// Writes the signatures of messages, each into `each` bytes of `out`, and their lengths.
    /// `wide` makes several at a time if the CPU can. If some fail, the first is returned.
    pub fn sign_many(
        &self,
        messages: &[&[u8]],
        out: &mut [u8],
        each: usize,
        lens: &mut [usize],
        wide: bool,
    ) -> Result<(), (usize, Failure)> {
        let (made, lanes) = match self {
            PrivateKey::Ecdsa(EcdsaKey(_, lanes)) if wide => (lanes.sign(messages), Some(lanes)),
            _ => (Vec::new(), None),
        };
        for (place, ((message, out), len)) in messages.iter().zip(out.chunks_exact_mut(each)).zip(lens).enumerate() {
            let encoded = lanes.zip(made.get(place)).and_then(|(lanes, made)| lanes.encode(made, out));
            *len = encoded.map_or_else(|| self.sign(message, out), Ok).map_err(|failure| (place, failure))?;
        }
        Ok(())
    }
}

impl PublicKey {
    /// Takes the forms that `Key::verify` takes; `None` if it is malformed, weak, or of another
    /// algorithm or length.
    pub fn new(algorithm: SignatureAlgorithm, public: &[u8]) -> Option<PublicKey> {
        let key = ParsedPublicKey::new(verification(algorithm), public).ok()?;
        let mut rsa = None;
        if let SignatureAlgorithm::Rsa { bits, padding, hash } = algorithm {
            let modulus = PublicEncryptingKey::from_der(key.as_der().ok()?.as_ref()).ok()?;
            (modulus.key_size_bytes() == bits.bytes()).then_some(())?;
            rsa = Some(RsaVerifyingKey::new(Encoding { padding, hash }));
        }
        if !is_uncompressed(algorithm, public) {
            return None;
        }
        if algorithm == SignatureAlgorithm::Ed25519 {
            is_public_key(encoded_point(public)?).then_some(())?;
        }
        Some(PublicKey { key, rsa, lanes: VerifyLanes::new(algorithm, public) })
    }

    /// Whether the signature is valid for the message.
    pub fn verify(&self, message: &[u8], signature: &[u8]) -> bool {
        self.key.verify_sig(message, signature).is_ok()
    }

    /// Whether groups of signatures are verified in lanes: this is an RSA key, and the CPU has the
    /// lanes.
    pub fn has_groups(&self) -> bool {
        self.rsa.as_ref().is_some_and(|rsa| rsa.has_lanes(&self.key))
    }

    /// Verifies a group of signatures; all false if the key is not an RSA key.
    pub fn verify_group(&self, messages: &[&[u8]], signatures: &[&[u8]]) -> [bool; RSA_GROUP] {
        self.rsa.as_ref().map_or([false; RSA_GROUP], |rsa| rsa.verify_group(&self.key, messages, signatures))
    }

    /// Number of signatures that should be verified together.
    pub fn together(&self) -> usize {
        self.lanes.together()
    }

    /// Prepares for `count` more signatures.
    pub fn prepare(&self, count: usize) {
        self.lanes.prepare(count);
    }

    /// Verifies many signatures; one byte for each: 1 if it is valid. Several at a time if the CPU
    /// can, once [`prepare`](Self::prepare) was called.
    pub fn verify_many(&self, messages: &[&[u8]], signatures: &[&[u8]], out: &mut [u8]) {
        for (place, found) in self.lanes.verify(messages, signatures).into_iter().enumerate() {
            let verdict = found.unwrap_or_else(|| self.verify(messages[place], signatures[place]));
            out[place] = u8::from(verdict);
        }
    }
}

/// The bytes before the point in a SubjectPublicKeyInfo of P-256 and of P-384.
const P256_PREFIX: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce,
    0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
const P384_PREFIX: [u8; 23] = [
    0x30, 0x76, 0x30, 0x10, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x05, 0x2b, 0x81, 0x04, 0x00,
    0x22, 0x03, 0x62, 0x00,
];
/// The byte before the coordinates of an uncompressed point. Compressed points begin with 2 or 3,
/// hybrid ones with 6 or 7.
const UNCOMPRESSED: u8 = 4;

/// Whether an ECDSA key has both coordinates, bare or in a SubjectPublicKeyInfo that names the
/// curve. The library also accepts compressed and hybrid points, which would give one key several
/// forms. Other algorithms have no points.
fn is_uncompressed(algorithm: SignatureAlgorithm, public: &[u8]) -> bool {
    let (prefix, bytes) = match algorithm {
        SignatureAlgorithm::EcdsaP256(_) => (&P256_PREFIX[..], 32),
        SignatureAlgorithm::EcdsaP384(_) => (&P384_PREFIX[..], 48),
        SignatureAlgorithm::Rsa { .. } | SignatureAlgorithm::Ed25519 => return true,
    };
    let point = public.strip_prefix(prefix).unwrap_or(public);
    point.first() == Some(&UNCOMPRESSED) && point.len() == 1 + 2 * bytes
}

/// A new key pair from AWS-LC's generator, which the system's randomness seeds; `None` if there is
/// none. RSA takes up to seconds.
///
/// A child that a signal handler has forked meanwhile also gets `None`, because its parent may have
/// the same pair; or the library ends it in the middle of a draw.
pub fn generate(algorithm: SignatureAlgorithm) -> Option<NewKeyPair> {
    let process = Process::current();
    let mut made = generate_anywhere(algorithm)?;
    if !process.is_current() {
        made.pkcs8.zeroize();
        return None;
    }
    Some(made)
}

fn generate_anywhere(algorithm: SignatureAlgorithm) -> Option<NewKeyPair> {
    let (pkcs8, public) = match algorithm {
        SignatureAlgorithm::Rsa { bits, .. } => {
            let size = match bits {
                RsaBits::Bits2048 => KeySize::Rsa2048,
                RsaBits::Bits3072 => KeySize::Rsa3072,
                RsaBits::Bits4096 => KeySize::Rsa4096,
            };
            let key = library::RsaKeyPair::generate(size).ok()?;
            (key.as_der().ok()?.as_ref().to_vec(), key.public_key().as_ref().to_vec())
        }
        SignatureAlgorithm::EcdsaP256(_) | SignatureAlgorithm::EcdsaP384(_) => {
            let key = library::EcdsaKeyPair::generate(ecdsa_signing(algorithm)?).ok()?;
            (key.to_pkcs8v1().ok()?.as_ref().to_vec(), key.public_key().as_ref().to_vec())
        }
        SignatureAlgorithm::Ed25519 => {
            let key = library::Ed25519KeyPair::generate().ok()?;
            (key.to_pkcs8v1().ok()?.as_ref().to_vec(), key.public_key().as_ref().to_vec())
        }
    };
    Some(NewKeyPair { pkcs8, public })
}

fn rsa_encoding(padding: RsaPadding, hash: HashAlgorithm) -> &'static dyn library::RsaEncoding {
    match (padding, hash) {
        (RsaPadding::Pkcs1, HashAlgorithm::Sha256) => &library::RSA_PKCS1_SHA256,
        (RsaPadding::Pkcs1, HashAlgorithm::Sha384) => &library::RSA_PKCS1_SHA384,
        (RsaPadding::Pkcs1, HashAlgorithm::Sha512) => &library::RSA_PKCS1_SHA512,
        (RsaPadding::Pss, HashAlgorithm::Sha256) => &library::RSA_PSS_SHA256,
        (RsaPadding::Pss, HashAlgorithm::Sha384) => &library::RSA_PSS_SHA384,
        (RsaPadding::Pss, HashAlgorithm::Sha512) => &library::RSA_PSS_SHA512,
    }
}

fn ecdsa_signing(algorithm: SignatureAlgorithm) -> Option<&'static library::EcdsaSigningAlgorithm> {
    match algorithm {
        SignatureAlgorithm::EcdsaP256(EcdsaEncoding::Fixed) => Some(&library::ECDSA_P256_SHA256_FIXED_SIGNING),
        SignatureAlgorithm::EcdsaP256(EcdsaEncoding::Der) => Some(&library::ECDSA_P256_SHA256_ASN1_SIGNING),
        SignatureAlgorithm::EcdsaP384(EcdsaEncoding::Fixed) => Some(&library::ECDSA_P384_SHA384_FIXED_SIGNING),
        SignatureAlgorithm::EcdsaP384(EcdsaEncoding::Der) => Some(&library::ECDSA_P384_SHA384_ASN1_SIGNING),
        SignatureAlgorithm::Rsa { .. } | SignatureAlgorithm::Ed25519 => None,
    }
}

fn verification(algorithm: SignatureAlgorithm) -> &'static dyn library::VerificationAlgorithm {
    match algorithm {
        SignatureAlgorithm::Rsa { padding, hash, .. } => match (padding, hash) {
            (RsaPadding::Pkcs1, HashAlgorithm::Sha256) => &library::RSA_PKCS1_2048_8192_SHA256,
            (RsaPadding::Pkcs1, HashAlgorithm::Sha384) => &library::RSA_PKCS1_2048_8192_SHA384,
            (RsaPadding::Pkcs1, HashAlgorithm::Sha512) => &library::RSA_PKCS1_2048_8192_SHA512,
            (RsaPadding::Pss, HashAlgorithm::Sha256) => &library::RSA_PSS_2048_8192_SHA256,
            (RsaPadding::Pss, HashAlgorithm::Sha384) => &library::RSA_PSS_2048_8192_SHA384,
            (RsaPadding::Pss, HashAlgorithm::Sha512) => &library::RSA_PSS_2048_8192_SHA512,
        },
        SignatureAlgorithm::EcdsaP256(EcdsaEncoding::Fixed) => &library::ECDSA_P256_SHA256_FIXED,
        SignatureAlgorithm::EcdsaP256(EcdsaEncoding::Der) => &library::ECDSA_P256_SHA256_ASN1,
        SignatureAlgorithm::EcdsaP384(EcdsaEncoding::Fixed) => &library::ECDSA_P384_SHA384_FIXED,
        SignatureAlgorithm::EcdsaP384(EcdsaEncoding::Der) => &library::ECDSA_P384_SHA384_ASN1,
        SignatureAlgorithm::Ed25519 => &library::ED25519,
    }
}
