//! Random bytes of the system.

use crate::error::{Error, Result};

/// Random bytes of the system.
pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    match getrandom::fill(&mut bytes) {
        Ok(()) => Ok(bytes),
        Err(error) => Err(Error::NoRandomness { reason: error.to_string() }),
    }
}
