//! Signatures of messages of 32 bytes.

use panoply::crypto::{EcdsaEncoding, Key, KeyPair, RsaBits, RsaPadding, Sign, SignatureAlgorithm, Verify};

use super::{Amount, Batch, Case, Place, Runner, Scale, missing};

/// Which signatures.
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

    fn name(self, verb: &str) -> String {
        format!("{verb}/{}/{}", self.algorithm().name(), self.batch().name())
    }

    fn sign(self) -> panoply::Result<(Sign, Key)> {
        let pair = KeyPair::generate(self.algorithm()).ok_or_else(|| missing("no randomness for a key"))?;
        let private = Key::sign(self.algorithm(), pair.private.as_slice()?)?;
        let public = Key::verify(self.algorithm(), pair.public.as_slice()?)?;
        Ok((Sign::new(&private, self.batch().messages()?), public))
    }
}

/// Messages signed.
pub struct SignCase {
    pub kind: Kind,
}

/// Signatures verified.
pub struct VerifyCase {
    pub kind: Kind,
}

impl Case for SignCase {
    fn name(&self) -> String {
        self.kind.name("sign")
    }

    fn amount(&self) -> Amount {
        Amount::Queries(self.kind.batch().count as f64)
    }

    fn scale(&self) -> Scale {
        self.kind.batch().scale(matches!(self.kind, Kind::P256 | Kind::Ed25519))
    }

    fn prepare(&self, place: &Place) -> panoply::Result<Runner> {
        place.repeat(self.kind.sign()?.0)
    }
}

impl Case for VerifyCase {
    fn name(&self) -> String {
        self.kind.name("verify")
    }

    fn amount(&self) -> Amount {
        Amount::Queries(self.kind.batch().count as f64)
    }

    fn scale(&self) -> Scale {
        self.kind.batch().scale(matches!(self.kind, Kind::P256 | Kind::Ed25519))
    }

    fn prepare(&self, place: &Place) -> panoply::Result<Runner> {
        let (sign, public) = self.kind.sign()?;
        let messages = sign.messages().clone();
        place.repeat(Verify::new(&public, messages, place.run(sign).wait()?))
    }
}
