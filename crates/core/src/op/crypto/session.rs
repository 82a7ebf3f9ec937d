//! Sessions: a key with a counter of nonces that never gives one twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::key::{Key, Purpose};
use super::messages::Messages;
use super::nonces::Nonces;
use super::seal::{Open, Seal};
use crate::error::{Error, Result};

/// Seals with nonces that are counted: a prefix of the session's own and a number of 64 bits. Clones share the counter.
///
/// Nonces are given out when the op is made, not when it runs: an op that a fallback runs again seals the same message with the
/// same nonce. What was given out is not given again, also where the op was never run. One key has one session for each prefix;
/// what else is sealed with the key and nonces of the caller's own must stay away from the session's prefix.
#[derive(Clone, Debug)]
pub struct Session {
    key: Key,
    prefix: [u8; 4],
    next: Arc<AtomicU64>,
}

impl Session {
    /// A session that counts from zero. The key must be a fresh one, or the prefix one that was never used with it.
    pub fn new(key: &Key, prefix: [u8; 4]) -> Result<Session> {
        Session::resume(key, prefix, 0)
    }

    /// A session that counts on from what [`Session::next`] said when the key was last used.
    pub fn resume(key: &Key, prefix: [u8; 4], next: u64) -> Result<Session> {
        if !matches!(key.purpose(), Purpose::Seal(_)) {
            return Err(key.wrong_purpose("session: key", "a key made by Key::seal"));
        }
        if !key.claim_prefix(prefix) {
            return Err(Error::invalid("session: prefix", "one that no session of this key has had", "one in use"));
        }
        Ok(Session { key: key.clone(), prefix, next: Arc::new(AtomicU64::new(next)) })
    }

    /// The key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The number that the next message gets.
    pub fn next(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// Seals messages with the next numbers. [`Seal::first_number`] says which they are, as whoever opens them must know.
    pub fn seal(&self, messages: impl Into<Messages>) -> Result<Seal> {
        let messages = messages.into();
        let count = messages.count() as u64;
        let reserve = |next: u64| next.checked_add(count);
        match self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, reserve) {
            Ok(first) => Ok(self.sealed(first, messages)),
            Err(next) => Err(Error::NoncesExhausted { left: u64::MAX - next, asked: count }),
        }
    }

    /// Seals messages with numbers of the caller's choice, from `first` on. A number below the next one is refused: it may have been
    /// used; those that are skipped are lost.
    pub fn seal_from(&self, first: u64, messages: impl Into<Messages>) -> Result<Seal> {
        let messages = messages.into();
        let asked = messages.count() as u64;
        let end = first.checked_add(asked).ok_or(Error::NoncesExhausted { left: u64::MAX - first, asked })?;
        let claim = |next: u64| (next <= first).then_some(end);
        match self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, claim) {
            Ok(_) => Ok(self.sealed(first, messages)),
            Err(_) => Err(Error::RepeatedNonce { index: 0 }),
        }
    }

    /// Opens messages that were sealed with the numbers from `first` on.
    pub fn open(&self, first: u64, messages: impl Into<Messages>) -> Open {
        Open::new(&self.key, Nonces::Counted { prefix: self.prefix, first }, messages)
    }

    fn sealed(&self, first: u64, messages: Messages) -> Seal {
        Seal::new(&self.key, Nonces::Counted { prefix: self.prefix, first }, messages)
    }
}
