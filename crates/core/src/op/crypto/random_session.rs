//! Sessions with random nonces, for programs that fork or whose machine is resumed from snapshots.

use super::key::{Key, Purpose};
use super::messages::Messages;
use super::nonces::{NONCE_BYTES, Nonces};
use super::seal::Seal;
use crate::bytes::Bytes;
use crate::error::{Error, Result};
use crate::process::Process;

/// Maximal number of nonces drawn for one key. With this many nonces of 96 bits, two are equal with
/// a probability of 2^-33, the bound of NIST SP 800-38D.
pub const DRAWN_MAX: u64 = 1 << 32;

/// Fills bytes with randomness; false if there is none. It must draw from the system at each call:
/// a library's random state in memory is copied by snapshots. `panoply::crypto::random_session` has
/// such a source.
pub type RandomSource = fn(&mut [u8]) -> bool;

/// Seals with nonces of 96 bits that are drawn for each message when the op is made.
///
/// The only state is the number of nonces drawn, so a copy of the process draws other nonces: in a
/// fork, and in a virtual machine that is resumed from a snapshot, provided that the system's
/// randomness differs there. Linux reseeds after a snapshot if the hypervisor reports it (VMGENID,
/// Linux 5.18); otherwise, end the session before the snapshot.
///
/// The nonces must be sent with the texts: [`Seal::nonces`] has them, for
/// [`Open::new`](super::Open::new). One key has at most [`DRAWN_MAX`] of them, counted over all
/// copies of the process, which do not know of each other. A key has random sessions or counting
/// ones, not both.
#[derive(Clone, Debug)]
pub struct RandomSession {
    key: Key,
    source: RandomSource,
}

impl RandomSession {
    /// A session that draws from this source.
    pub fn new(key: &Key, source: RandomSource) -> Result<RandomSession> {
        if !matches!(key.purpose(), Purpose::Seal(_)) {
            return Err(key.wrong_purpose("random session: key", "a key made by Key::seal"));
        }
        if !key.claim_random()? {
            let expected = "a key whose nonces no session counts: a random one may be equal to a counted one";
            return Err(Error::invalid("random session: key", expected, "a key with a counting session"));
        }
        Ok(RandomSession { key: key.clone(), source })
    }

    /// The key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Seals messages, each with a fresh random nonce. Fails in the child if a signal handler forks
    /// meanwhile, since the parent may have the same nonces; the child may seal again.
    pub fn seal(&self, messages: impl Into<Messages>) -> Result<Seal> {
        let (process, messages) = (Process::current(), messages.into());
        messages.check()?;
        self.key.claim_drawn(messages.count() as u64, DRAWN_MAX)?;
        let mut nonces = vec![0; messages.count() * NONCE_BYTES];
        if !(self.source)(&mut nonces) {
            return Err(Error::invalid("random session", "the system's randomness", "none"));
        }
        if !process.is_current() {
            return Err(Error::invalid("random session", "the same process throughout the call", "a fork meanwhile"));
        }
        Ok(Seal::of_session(&self.key, Nonces::Given(Bytes::from_vec(nonces)), messages, process))
    }
}
