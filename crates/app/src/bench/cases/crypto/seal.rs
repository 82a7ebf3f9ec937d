//! Cases of ciphers.

use panoply::crypto::{AeadAlgorithm, CipherAlgorithm, CipherMode, Decrypt, Encrypt, Key, Nonces, Open, Seal};

use super::batch::Batch;
use crate::bench::cases::case::{Amount, Case, Scale};
use crate::bench::place::{BenchDevice, Runner};

/// Sealing of messages, with detached tags.
pub struct SealCase {
    pub algorithm: AeadAlgorithm,
    pub batch: Batch,
}

/// Opening of messages.
pub struct OpenCase {
    pub algorithm: AeadAlgorithm,
    pub batch: Batch,
}

/// Encryption or decryption of messages with AES-256, without authentication.
pub struct CipherCase {
    pub mode: CipherMode,
    pub decrypt: bool,
    pub batch: Batch,
}

fn seal(algorithm: AeadAlgorithm, batch: &Batch) -> panoply::Result<Seal> {
    let key = Key::seal(algorithm, &vec![7; algorithm.key_bytes()])?;
    Ok(Seal::new(&key, Nonces::Given(batch.numbers(12)), batch.messages()?).detached())
}

impl Case for SealCase {
    fn name(&self) -> String {
        format!("seal/{}/{}", self.algorithm.name(), self.batch.name())
    }

    fn amount(&self) -> Amount {
        self.batch.amount()
    }

    fn scale(&self) -> Scale {
        self.batch.scale(matches!(self.algorithm, AeadAlgorithm::Aes256Gcm | AeadAlgorithm::ChaCha20Poly1305))
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        place.repeat(seal(self.algorithm, &self.batch)?)
    }
}

impl Case for OpenCase {
    fn name(&self) -> String {
        format!("open/{}/{}", self.algorithm.name(), self.batch.name())
    }

    fn amount(&self) -> Amount {
        self.batch.amount()
    }

    fn scale(&self) -> Scale {
        self.batch.scale(false)
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        let seal = seal(self.algorithm, &self.batch)?;
        let (key, nonces) = (seal.key().clone(), seal.nonces().clone());
        let sealed = place.run(seal).wait()?;
        let open = Open::new(&key, nonces, sealed.text);
        place.repeat(match sealed.tags {
            Some(tags) => open.tags(tags),
            None => open,
        })
    }
}

impl Case for CipherCase {
    fn name(&self) -> String {
        let verb = if self.decrypt { "decrypt" } else { "encrypt" };
        format!("{verb}/{}/{}", CipherAlgorithm::Aes256.name_in(self.mode), self.batch.name())
    }

    fn amount(&self) -> Amount {
        self.batch.amount()
    }

    fn scale(&self) -> Scale {
        self.batch.scale(false)
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        let key = Key::encrypt(CipherAlgorithm::Aes256, &[7; 32])?;
        let (vectors, messages) = (self.batch.numbers(16), self.batch.messages()?);
        match self.decrypt {
            true => place.repeat(Decrypt::new(&key, self.mode, vectors, messages)),
            false => place.repeat(Encrypt::new(&key, self.mode, vectors, messages)),
        }
    }
}
