//! The model that computed a collection's vectors.
//!
//! Vectors of different models cannot be compared, even if they have the same dimension. A
//! collection therefore stores the name of its model and a hash of the model's file in its
//! manifest, and refuses another model while it has records.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Digits of the hash that are shown beside a model's name.
const DIGITS_SHOWN: usize = 12;

/// The model that computed a collection's vectors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmbeddingModel {
    /// The model's name, for people.
    pub name: String,
    /// The SHA-256 of the model's file, as hexadecimal digits. Two models are the same if their
    /// hashes are.
    pub sha256: String,
    /// The path of the model's file when it was last used. Another file with the same hash is as
    /// good.
    pub file: String,
    /// The path of the vocabulary, if it was not found beside the model's file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vocabulary: Option<String>,
}

impl fmt::Display for EmbeddingModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: String = self.sha256.chars().take(DIGITS_SHOWN).collect();
        write!(f, "`{}` (SHA-256 {shown}…)", self.name)
    }
}
