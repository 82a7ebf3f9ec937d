//! Published test vectors of the crypto domain, for any engine: Wycheproof's, and vectors from
//! independent libraries (`vectors/*.py` make the files).
//!
//! Each vector is one op. A valid vector must give the bytes in the file, or be accepted. An
//! invalid vector must be refused. An "acceptable" vector may do either.

use panoply_core::op::crypto::*;
use panoply_core::{Bytes, Error, Op, Operation, Result, Support, Value};

use crate::check::Summary;
use crate::reference::sha256;

mod text;

use text::{Vector, vectors};

/// Runs an op on the engine that is checked.
pub type RunOp<'a> = &'a mut dyn FnMut(Op) -> Result<Value>;

/// Checks every vector of the ops that are supported.
pub fn check(supports: &dyn Fn(&Op) -> Support, run: RunOp<'_>) -> Summary {
    let mut checker = Checker { supports, run, summary: Summary::default() };
    for (file, text, each) in FILES {
        for vector in vectors(text) {
            checker.check(file, &vector, *each);
        }
    }
    checker.summary
}

type VectorCheck = fn(&mut Checker<'_>, &Vector<'_>) -> Result<Verdict>;

const FILES: &[(&str, &str, VectorCheck)] = &[
    ("aead", include_str!("../../vectors/aead.txt"), aead),
    ("cbc", include_str!("../../vectors/cbc.txt"), cbc),
    ("ctr", include_str!("../../vectors/ctr.txt"), ctr),
    ("hash", include_str!("../../vectors/hash.txt"), hash),
    ("hmac", include_str!("../../vectors/hmac.txt"), hmac),
    ("hkdf", include_str!("../../vectors/hkdf.txt"), hkdf),
    ("signature", include_str!("../../vectors/signature.txt"), signature),
    ("signing", include_str!("../../vectors/signing.txt"), signing),
    ("compressed", include_str!("../../vectors/compressed.txt"), compressed),
];

struct Checker<'a> {
    supports: &'a dyn Fn(&Op) -> Support,
    run: RunOp<'a>,
    summary: Summary,
}

/// The engine's answer to a vector.
enum Verdict {
    /// It was accepted, with the bytes that the file has.
    Valid,
    /// It was refused, as bad input is.
    Invalid,
    /// It gave other bytes, or failed for another reason.
    Wrong(String),
    /// The engine does not run such an op.
    Unsupported(String),
}

impl Checker<'_> {
    fn check(&mut self, file: &str, vector: &Vector<'_>, each: VectorCheck) {
        let name = format!("vectors/{file}/{}/{}", vector.algorithm, vector.number);
        let verdict = match each(self, vector) {
            Err(error @ (Error::Rejected { .. } | Error::InvalidArgument { .. } | Error::InvalidKey { .. })) => {
                // The error that refuses a valid vector goes into the summary.
                if vector.verdict == "valid" { Verdict::Wrong(error.to_string()) } else { Verdict::Invalid }
            }
            Err(Error::Unsupported { reason, .. }) => Verdict::Unsupported(reason),
            Err(error) => Verdict::Wrong(error.to_string()),
            Ok(verdict) => verdict,
        };
        match (vector.verdict, verdict) {
            ("valid", Verdict::Valid) | ("invalid", Verdict::Invalid) => self.summary.passed += 1,
            ("acceptable", Verdict::Valid | Verdict::Invalid) => self.summary.passed += 1,
            (_, Verdict::Unsupported(reason)) => self.summary.unsupported.push((name, reason)),
            (_, Verdict::Wrong(what)) => self.summary.failed.push((name, what)),
            (expected, Verdict::Valid) => {
                self.summary.failed.push((name, format!("expected {expected}, was accepted")))
            }
            (expected, Verdict::Invalid) => {
                self.summary.failed.push((name, format!("expected {expected}, was refused")))
            }
        }
    }

    fn run<O: Operation>(&mut self, op: O) -> Result<O::Output> {
        let op = op.into_op()?;
        if let Support::No(reason) = (self.supports)(&op) {
            return Err(Error::Unsupported { op: "vector", reason });
        }
        O::output((self.run)(op)?)
    }
}

/// Valid if both are equal.
fn same(what: &str, expected: &[u8], got: &Messages) -> Result<Verdict> {
    let got = got.clone().into_one()?;
    Ok(match got.as_slice()? == expected {
        true => Verdict::Valid,
        false => Verdict::Wrong(format!("{what}: other bytes than expected")),
    })
}

fn bytes(bytes: &[u8]) -> Bytes {
    Bytes::from_vec(bytes.to_vec())
}

fn aead(checker: &mut Checker<'_>, vector: &Vector<'_>) -> Result<Verdict> {
    let algorithm = AeadAlgorithm::ALL.into_iter().find(|known| known.name() == vector.algorithm);
    let Some(algorithm) = algorithm else { return Ok(Verdict::Wrong("an unknown algorithm".to_owned())) };
    let [key, nonce, associated, message, text, tag] = vector.fields();
    let (key, nonces) = (Key::seal(algorithm, &key)?, Nonces::Given(bytes(&nonce)));
    let attached = bytes(&[&text[..], &tag].concat());
    let open = Open::new(&key, nonces.clone(), attached).associated(bytes(&associated));
    let opened = checker.run(open)?;
    let apart = Open::new(&key, nonces.clone(), bytes(&text)).tags(bytes(&tag)).associated(bytes(&associated));
    if let Verdict::Wrong(what) = same("open with tags apart", &message, &checker.run(apart.secret())?)? {
        return Ok(Verdict::Wrong(what));
    }
    let seal = Seal::new(&key, nonces, bytes(&message)).associated(bytes(&associated)).detached();
    let sealed = checker.run(seal)?;
    let made = sealed.text.into_one()?;
    if made.as_slice()? != text || sealed.tags.as_ref().map(Bytes::as_slice).transpose()? != Some(&tag[..]) {
        return Ok(Verdict::Wrong("seal: other bytes than expected".to_owned()));
    }
    same("open", &message, &opened)
}

fn cipher_key(vector: &Vector<'_>, key: &[u8]) -> Result<Key> {
    let named = |known: &CipherAlgorithm| vector.algorithm.starts_with(known.name());
    let algorithm = CipherAlgorithm::ALL.into_iter().find(named);
    Key::encrypt(algorithm.unwrap_or_else(|| panic!("an unknown cipher: {vector:?}")), key)
}

fn cbc(checker: &mut Checker<'_>, vector: &Vector<'_>) -> Result<Verdict> {
    let [key, start, message, text] = vector.fields();
    let key = cipher_key(vector, &key)?;
    let decrypted = checker.run(Decrypt::new(&key, CipherMode::Cbc, bytes(&start), bytes(&text)))?;
    let encrypted = checker.run(Encrypt::new(&key, CipherMode::Cbc, bytes(&start), bytes(&message)))?;
    match same("encrypt", &text, &encrypted)? {
        Verdict::Valid => same("decrypt", &message, &decrypted),
        wrong => Ok(wrong),
    }
}

fn ctr(checker: &mut Checker<'_>, vector: &Vector<'_>) -> Result<Verdict> {
    let [key, start, message, text] = vector.fields();
    let key = cipher_key(vector, &key)?;
    let encrypted = checker.run(Encrypt::new(&key, CipherMode::Ctr, bytes(&start), bytes(&message)))?;
    let decrypted = checker.run(Decrypt::new(&key, CipherMode::Ctr, bytes(&start), bytes(&text)))?;
    match same("encrypt", &text, &encrypted)? {
        Verdict::Valid => same("decrypt", &message, &decrypted),
        wrong => Ok(wrong),
    }
}

fn hash_named(name: &str) -> HashAlgorithm {
    let known = HashAlgorithm::ALL.into_iter().find(|known| name.ends_with(known.name()));
    known.unwrap_or_else(|| panic!("an unknown hash: {name}"))
}

fn hash(checker: &mut Checker<'_>, vector: &Vector<'_>) -> Result<Verdict> {
    let [message, digest] = vector.fields();
    same("hash", &digest, &checker.run(Hash::new(hash_named(vector.algorithm), bytes(&message)))?)
}

fn hmac(checker: &mut Checker<'_>, vector: &Vector<'_>) -> Result<Verdict> {
    let [key, message, tag] = vector.fields();
    let key = Key::hmac(hash_named(vector.algorithm), &key)?;
    let verified = checker.run(Verify::new(&key, bytes(&message), bytes(&tag)))? == [true];
    let made = checker.run(Hmac::new(&key, bytes(&message)))?;
    match (same("hmac", &tag, &made)?, verified) {
        (Verdict::Valid, true) => Ok(Verdict::Valid),
        (Verdict::Wrong(_), false) => Ok(Verdict::Invalid),
        _ => Ok(Verdict::Wrong("hmac and verify do not agree".to_owned())),
    }
}

fn hkdf(checker: &mut Checker<'_>, vector: &Vector<'_>) -> Result<Verdict> {
    let ([secret, salt, info, expected], len) = ([0, 1, 2, 4].map(|index| vector.field(index)), vector.number_at(3));
    let key = Key::hkdf(hash_named(vector.algorithm), &secret)?;
    let derived = checker.run(Hkdf::new(&key, bytes(&info), len).salt(bytes(&salt)))?;
    same("hkdf", &expected, &derived)
}

fn signature_algorithm(name: &str) -> SignatureAlgorithm {
    let parts: Vec<&str> = name.split('-').collect();
    let unknown = || -> ! { panic!("an unknown signature: {name}") };
    let encoding = |word: &str| match word {
        "der" => EcdsaEncoding::Der,
        "fixed" => EcdsaEncoding::Fixed,
        _ => unknown(),
    };
    match parts.as_slice() {
        ["ecdsa", "p256", word] => SignatureAlgorithm::EcdsaP256(encoding(word)),
        ["ecdsa", "p384", word] => SignatureAlgorithm::EcdsaP384(encoding(word)),
        ["rsa", bits, padding, hash] => SignatureAlgorithm::Rsa {
            bits: match *bits {
                "2048" => RsaBits::Bits2048,
                "3072" => RsaBits::Bits3072,
                "4096" => RsaBits::Bits4096,
                _ => unknown(),
            },
            padding: match *padding {
                "pss" => RsaPadding::Pss,
                "pkcs1" => RsaPadding::Pkcs1,
                _ => unknown(),
            },
            hash: hash_named(hash),
        },
        ["ed25519"] => SignatureAlgorithm::Ed25519,
        _ => unknown(),
    }
}

fn signature(checker: &mut Checker<'_>, vector: &Vector<'_>) -> Result<Verdict> {
    let [message, signature] = vector.fields();
    let key = Key::verify(signature_algorithm(vector.algorithm), &vector.key())?;
    let verdicts = checker.run(Verify::new(&key, bytes(&message), bytes(&signature)))?;
    Ok(if verdicts == [true] { Verdict::Valid } else { Verdict::Invalid })
}

/// The signature of a deterministic algorithm must equal the file's. Any other signature must
/// verify, for this message only. Ed25519 counts as random: devices may hedge the nonce, and their
/// signatures then differ from RFC 8032's. Engines that must not do so are checked by
/// [`are_as_published`].
fn signing(checker: &mut Checker<'_>, vector: &Vector<'_>) -> Result<Verdict> {
    let algorithm = signature_algorithm(vector.algorithm);
    let [public, message, expected] = vector.fields();
    let (private, public) = (Key::sign(algorithm, &vector.key())?, Key::verify(algorithm, &public)?);
    let made = checker.run(Sign::new(&private, bytes(&message)))?;
    let is_random = ["pss", "ecdsa", "ed25519"].iter().any(|random| vector.algorithm.contains(random));
    if !is_random && let Verdict::Wrong(what) = same("sign", &expected, &made)? {
        return Ok(Verdict::Wrong(what));
    }
    let other = [&message[..], &[1]].concat();
    let (made, expected) = (made.into_one()?, bytes(&expected));
    let messages: Vec<Bytes> = vec![bytes(&message), bytes(&message), bytes(&other), bytes(&other)];
    let verdicts = checker.run(Verify::new(&public, messages, vec![made.clone(), expected.clone(), made, expected]))?;
    Ok(match verdicts == [true, true, false, false] {
        true => Verdict::Valid,
        false => Verdict::Wrong(format!("expected two signatures that verify and two that do not, got {verdicts:?}")),
    })
}

/// Whether every Ed25519 signature is the one that RFC 8032 prescribes. For engines that promise
/// this.
pub fn are_as_published(run: RunOp<'_>) -> Result<bool> {
    let mut count = 0;
    for vector in vectors(include_str!("../../vectors/signing.txt")).filter(|vector| vector.algorithm == "ed25519") {
        let [_, message, expected] = vector.fields();
        let private = Key::sign(SignatureAlgorithm::Ed25519, &vector.key())?;
        let made = Sign::output(run(Sign::new(&private, bytes(&message)).into_op()?)?)?;
        if !matches!(same("sign", &expected, &made)?, Verdict::Valid) {
            return Ok(false);
        }
        count += 1;
    }
    Ok(count > 0)
}

fn compressed(checker: &mut Checker<'_>, vector: &Vector<'_>) -> Result<Verdict> {
    let format = Format::ALL.into_iter().find(|known| known.name() == vector.algorithm);
    let Some(format) = format else { return Ok(Verdict::Wrong("an unknown format".to_owned())) };
    let [packed, digest] = vector.fields();
    let message = checker.run(Decompress::new(format, bytes(&packed)).limit(1 << 20))?.into_one()?;
    let got = sha256(message.as_slice()?);
    Ok(if got[..] == digest[..] { Verdict::Valid } else { Verdict::Wrong("other bytes than expected".to_owned()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_nobody_knows_is_not_taken_for_another() {
        for name in ["ed25518", "ecdsa-p256-ber", "rsa-1024-pss-sha256", "rsa-2048-oaep-sha256", "rsa-2048-pss-sha1"] {
            assert!(std::panic::catch_unwind(|| signature_algorithm(name)).is_err(), "{name}");
        }
        assert!(std::panic::catch_unwind(|| hash_named("md5")).is_err());
        for vector in vectors("[aes-512-cbc]\n1 valid 00\n") {
            assert!(std::panic::catch_unwind(|| cipher_key(&vector, &[0; 16]).map(drop)).is_err());
        }
        assert_eq!(signature_algorithm("ed25519"), SignatureAlgorithm::Ed25519);
    }
}
