//! The numbers of RSA and ECDSA keys. AWS-LC decides whether a key is well-formed and fits its
//! algorithm. Only accepted keys are parsed here.

use panoply_core::Result;
use panoply_core::op::crypto::{Key, Purpose, SignatureAlgorithm};
use panoply_cpu_crypto::signature::{PrivateKey, PublicKey};
use zeroize::Zeroizing;

use crate::der::{DerReader, padded};

/// An elliptic curve over a prime field: y² = x³ + a x + b, with a base point of order n.
pub(crate) struct Curve {
    /// Size of the curve's numbers.
    pub(crate) bytes: usize,
    xg: [u8; 48],
    yg: [u8; 48],
    pub(crate) n: [u8; 48],
    q: [u8; 48],
    a: [u8; 48],
    b: [u8; 48],
}

impl Curve {
    /// The base point, its order, the prime of the field and both coefficients.
    pub(crate) fn numbers(&self) -> [&[u8]; 6] {
        [&self.xg, &self.yg, &self.n, &self.q, &self.a, &self.b].map(|number| &number[..self.bytes])
    }

    /// The order of the base point.
    pub(crate) fn order(&self) -> &[u8] {
        &self.n[..self.bytes]
    }

    /// The curve of an algorithm.
    pub(crate) fn of(algorithm: SignatureAlgorithm) -> Option<&'static Curve> {
        match algorithm {
            SignatureAlgorithm::EcdsaP256(_) => Some(&P256),
            SignatureAlgorithm::EcdsaP384(_) => Some(&P384),
            _ => None,
        }
    }
}

/// Converts hexadecimal digits to bytes, with trailing zeros.
const fn hex(digits: &str) -> [u8; 48] {
    let (digits, mut bytes, mut at) = (digits.as_bytes(), [0; 48], 0);
    while at < digits.len() {
        let digit = digits[at];
        bytes[at / 2] = bytes[at / 2] << 4 | if digit <= b'9' { digit - b'0' } else { digit - b'a' + 10 };
        at += 1;
    }
    bytes
}

static P256: Curve = Curve {
    bytes: 32,
    xg: hex("6b17d1f2e12c4247f8bce6e563a440f277037d812deb33a0f4a13945d898c296"),
    yg: hex("4fe342e2fe1a7f9b8ee7eb4a7c0f9e162bce33576b315ececbb6406837bf51f5"),
    n: hex("ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551"),
    q: hex("ffffffff00000001000000000000000000000000ffffffffffffffffffffffff"),
    a: hex("ffffffff00000001000000000000000000000000fffffffffffffffffffffffc"),
    b: hex("5ac635d8aa3a93e7b3ebbd55769886bc651d06b0cc53b0f63bce3c3e27d2604b"),
};

static P384: Curve = Curve {
    bytes: 48,
    xg: hex("aa87ca22be8b05378eb1c71ef320ad746e1d3b628ba79b9859f741e082542a385502f25dbf55296c3a545e3872760ab7"),
    yg: hex("3617de4a96262c6f5d9e98bf9292dc29f8f41dbd289a147ce9da3113b5f0b8c00a60b1ce1d7e819d7a431d7c90ea0e5f"),
    n: hex("ffffffffffffffffffffffffffffffffffffffffffffffffc7634d81f4372ddf581a0db248b0a77aecec196accc52973"),
    q: hex("fffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffeffffffff0000000000000000ffffffff"),
    a: hex("fffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffeffffffff0000000000000000fffffffc"),
    b: hex("b3312fa7e23ee7e4988e056be3f82d19181d9c6efe8141120314088f5013875ac656398d8a2ed19d2a85c8edd3ec2aef"),
};

/// The numbers of an RSA public key.
pub(crate) struct RsaPublic {
    pub(crate) modulus: Vec<u8>,
    pub(crate) exponent: Vec<u8>,
}

impl RsaPublic {
    /// Size of the modulus.
    pub(crate) fn bytes(&self) -> usize {
        self.modulus.len()
    }
}

/// The numbers of an RSA private key: primes, exponents and coefficient, each half as long as the
/// modulus.
pub(crate) struct RsaPrivate {
    pub(crate) public: RsaPublic,
    parts: [Zeroizing<Vec<u8>>; 5],
}

impl RsaPrivate {
    pub(crate) fn bytes(&self) -> usize {
        self.public.bytes()
    }

    pub(crate) fn parts(&self) -> [&[u8]; 5] {
        self.parts.each_ref().map(|part| &part[..])
    }
}

/// A key for `Sign`.
pub(crate) enum Signing {
    Rsa(RsaPrivate),
    /// The private number, and both coordinates of the public point, which verifies the signatures.
    Ecdsa {
        private: Zeroizing<Vec<u8>>,
        point: Vec<u8>,
    },
}

/// A key for `Verify`: an RSA key, or both coordinates of a point.
pub(crate) enum Verifying {
    Rsa(RsaPublic),
    Ecdsa(Vec<u8>),
}

impl Signing {
    pub(crate) fn of(key: &Key) -> Result<Signing> {
        let Purpose::Sign(algorithm) = key.purpose() else { return Err(key.invalid()) };
        let material = key.material().as_slice()?;
        let read = || {
            let key = PrivateKey::with_lanes(algorithm, material, false)?;
            match Curve::of(algorithm) {
                None => rsa_private(material).map(Signing::Rsa),
                Some(curve) => {
                    let (private, point) = (ecdsa_private(material, curve.bytes)?, point(key.point()?, curve.bytes)?);
                    Some(Signing::Ecdsa { private, point })
                }
            }
        };
        read().ok_or_else(|| key.invalid())
    }
}

impl Verifying {
    pub(crate) fn of(key: &Key) -> Result<Verifying> {
        let Purpose::Verify(algorithm) = key.purpose() else { return Err(key.invalid()) };
        let material = key.material().as_slice()?;
        let read = || {
            PublicKey::new(algorithm, material)?;
            match Curve::of(algorithm) {
                None => rsa_public(material).map(Verifying::Rsa),
                Some(curve) => point(material, curve.bytes).map(Verifying::Ecdsa),
            }
        };
        read().ok_or_else(|| key.invalid())
    }
}

/// The key inside PKCS#8, after version and algorithm.
fn wrapped(pkcs8: &[u8]) -> Option<DerReader<'_>> {
    let mut outer = DerReader(pkcs8).sequence()?;
    outer.number()?;
    outer.sequence()?;
    outer.octets().map(DerReader)
}

fn rsa_private(pkcs8: &[u8]) -> Option<RsaPrivate> {
    let mut inner = wrapped(pkcs8)?.sequence()?;
    inner.number()?;
    let (modulus, exponent) = (whole_bytes(inner.number()?)?.to_vec(), inner.number()?.to_vec());
    inner.number()?;
    let half = modulus.len() / 2;
    let mut part = || Some(Zeroizing::new(padded(inner.number()?, half)?));
    let parts = [part()?, part()?, part()?, part()?, part()?];
    Some(RsaPrivate { public: RsaPublic { modulus, exponent }, parts })
}

/// Accepts only a modulus that uses all bits of its bytes, as the paddings here require.
fn whole_bytes(modulus: &[u8]) -> Option<&[u8]> {
    modulus.first().is_some_and(|byte| *byte >= 0x80).then_some(modulus)
}

fn ecdsa_private(pkcs8: &[u8], bytes: usize) -> Option<Zeroizing<Vec<u8>>> {
    let mut inner = wrapped(pkcs8)?.sequence()?;
    inner.number()?;
    padded(inner.octets()?, bytes).map(Zeroizing::new)
}

/// Parses a SubjectPublicKeyInfo, or the bare RSAPublicKey.
fn rsa_public(material: &[u8]) -> Option<RsaPublic> {
    let mut outer = DerReader(material).sequence()?;
    let mut numbers = outer;
    if outer.sequence().is_some() {
        numbers = DerReader(outer.bits()?).sequence()?;
    }
    Some(RsaPublic { modulus: whole_bytes(numbers.number()?)?.to_vec(), exponent: numbers.number()?.to_vec() })
}

/// Parses a SubjectPublicKeyInfo, or the bare uncompressed point.
fn point(material: &[u8], bytes: usize) -> Option<Vec<u8>> {
    let bare = |point: &[u8]| Some(point.strip_prefix(&[4])?.to_vec()).filter(|pair| pair.len() == 2 * bytes);
    if let Some(pair) = bare(material) {
        return Some(pair);
    }
    let mut outer = DerReader(material).sequence()?;
    outer.sequence()?;
    bare(outer.bits()?)
}
