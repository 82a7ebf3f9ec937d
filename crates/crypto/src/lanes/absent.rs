//! The lanes of a CPU that has none.

use panoply_core::op::crypto::HashAlgorithm;

use super::CHAINED_LANES;
use crate::cipher::Block;

/// No value of it is ever made.
pub enum AesLanes {}

impl AesLanes {
    /// The CPU lacks the instructions.
    pub fn new(_: &[u8]) -> Option<AesLanes> {
        None
    }

    /// Never called.
    pub fn encrypt_chained(
        &self,
        _: &mut [Block; CHAINED_LANES],
        _: &[&[u8]; CHAINED_LANES],
        _: &mut [&mut [u8]; CHAINED_LANES],
    ) -> usize {
        match *self {}
    }

    /// Never called.
    pub fn decrypt_chained(&self, _: &[u8], _: &mut [u8]) -> usize {
        match *self {}
    }

    /// Never called.
    pub fn apply_counted(&self, _: u128, _: &[u8], _: &mut [u8]) -> usize {
        match *self {}
    }
}

/// None is hashed.
///
/// # Safety
/// Has no requirements.
pub unsafe fn hash_alike(_: HashAlgorithm, _: &[&[u8]], _: &mut [u8]) -> usize {
    0
}
