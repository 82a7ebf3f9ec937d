//! Cases of hashes.

use panoply::crypto::{Hash, HashAlgorithm};

use super::batch::Batch;
use crate::bench::cases::case::{Amount, Case, Scale};
use crate::bench::place::{BenchDevice, Runner};

/// Hashes of a batch of messages.
pub struct HashCase {
    pub algorithm: HashAlgorithm,
    pub batch: Batch,
}

impl Case for HashCase {
    fn name(&self) -> String {
        format!("hash/{}/{}", self.algorithm.name(), self.batch.name())
    }

    fn amount(&self) -> Amount {
        self.batch.amount()
    }

    fn scale(&self) -> Scale {
        self.batch.scale(self.algorithm == HashAlgorithm::Sha256)
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        place.repeat(Hash::new(self.algorithm, self.batch.messages()?))
    }
}
