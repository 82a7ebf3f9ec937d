//! Cases of signatures over messages of 32 bytes.

use panoply::Error;
use panoply::crypto::{EcdsaEncoding, Key, KeyPair, RsaBits, RsaPadding, Sign, SignatureAlgorithm, Verify};

use super::batch::Batch;
use crate::bench::cases::case::{Amount, Case, Scale};
use crate::bench::place::{BenchDevice, Runner};

/// The kind of signature.
#[derive(Clone, Copy)]
pub enum Kind {
    Rsa2048,
    Rsa4096,
    P256,
    P384,
    Ed25519,
}

impl Kind {
    fn algorithm(self) -> SignatureAlgorithm {
        match self {
            Kind::Rsa2048 => SignatureAlgorithm::rsa(RsaBits::Bits2048, RsaPadding::Pkcs1),
            Kind::Rsa4096 => SignatureAlgorithm::rsa(RsaBits::Bits4096, RsaPadding::Pkcs1),
            Kind::P256 => SignatureAlgorithm::EcdsaP256(EcdsaEncoding::Der),
            Kind::P384 => SignatureAlgorithm::EcdsaP384(EcdsaEncoding::Der),
            Kind::Ed25519 => SignatureAlgorithm::Ed25519,
        }
    }

    fn batch(self) -> Batch {
        Batch { count: if matches!(self, Kind::Rsa4096) { 16 } else { 64 }, len: 32 }
    }

    fn name(self, verb: &str, batch: Batch) -> String {
        format!("{verb}/{}/{}", self.algorithm().name(), batch.name())
    }

    fn sign(self, batch: Batch) -> panoply::Result<(Sign, Key)> {
        let pair = KeyPair::generate(self.algorithm()).ok_or_else(|| missing("no randomness for a key"))?;
        let private = Key::sign(self.algorithm(), pair.private.as_slice()?)?;
        let public = Key::verify(self.algorithm(), pair.public.as_slice()?)?;
        Ok((Sign::new(&private, batch.messages()?), public))
    }
}

/// Signing of messages: the usual number, or enough for a device with thousands of threads.
pub struct SignCase {
    pub kind: Kind,
    pub is_many: bool,
}

/// Verification of signatures: the usual number, or enough for a device with thousands of threads.
pub struct VerifyCase {
    pub kind: Kind,
    pub is_many: bool,
}

const MANY: Batch = Batch { count: 100_000, len: 32 };

impl Kind {
    fn batch_of(self, is_many: bool) -> Batch {
        if is_many { MANY } else { self.batch() }
    }

    fn scale_of(self, is_many: bool) -> Scale {
        let is_usual = matches!(self, Kind::P256 | Kind::Ed25519);
        if is_many { Scale::Huge } else { self.batch().scale(is_usual) }
    }
}

impl Case for SignCase {
    fn name(&self) -> String {
        self.kind.name("sign", self.kind.batch_of(self.is_many))
    }

    fn amount(&self) -> Amount {
        Amount::Queries(self.kind.batch_of(self.is_many).count as f64)
    }

    fn scale(&self) -> Scale {
        self.kind.scale_of(self.is_many)
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        place.repeat(self.kind.sign(self.kind.batch_of(self.is_many))?.0)
    }
}

impl Case for VerifyCase {
    fn name(&self) -> String {
        self.kind.name("verify", self.kind.batch_of(self.is_many))
    }

    fn amount(&self) -> Amount {
        Amount::Queries(self.kind.batch_of(self.is_many).count as f64)
    }

    fn scale(&self) -> Scale {
        self.kind.scale_of(self.is_many)
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        let (sign, public) = self.kind.sign(self.kind.batch_of(self.is_many))?;
        let messages = sign.messages().clone();
        place.repeat(Verify::new(&public, messages, place.made(sign)?))
    }
}

/// The error of a case that lacks something it needs.
fn missing(what: &str) -> Error {
    Error::Unsupported { op: "bench", reason: what.to_owned() }
}
