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
/// same nonce. What was given out is not given again, also where the op was never run: an op that was cloned takes no other
/// associated data any more. One key has one session for each prefix; what else is sealed with this key under the session's prefix is
/// refused. Another key of the same bytes knows nothing of that.
///
/// Whoever keeps the key longer than the process must never count from a number that was given out before. A crash loses
/// [`Session::next`], so numbers are reserved before they are used:
///
/// 1. [`Session::reserve`] says a number; it is written to disk.
/// 2. Messages are sealed. Beyond that number they are refused, until more is reserved and written.
/// 3. After a restart, whatever its cause, [`Session::resume`] counts on from what was written last.
#[derive(Clone, Debug)]
pub struct Session {
    key: Key,
    prefix: [u8; 4],
    next: Arc<AtomicU64>,
    /// No number from here on is given out. The end of all numbers, until some are reserved.
    end: Arc<AtomicU64>,
}

impl Session {
    /// A session that counts from zero. The key must be a fresh one, or the prefix one that was never used with it.
    pub fn new(key: &Key, prefix: [u8; 4]) -> Result<Session> {
        Session::resume(key, prefix, 0)
    }

    /// A session that counts on from what [`Session::reserve`] said last, or from what [`Session::next`] said after the last message
    /// was sealed, where it is known that none came after.
    pub fn resume(key: &Key, prefix: [u8; 4], next: u64) -> Result<Session> {
        if !matches!(key.purpose(), Purpose::Seal(_)) {
            return Err(key.wrong_purpose("session: key", "a key made by Key::seal"));
        }
        if !key.claim_prefix(prefix) {
            return Err(Error::invalid("session: prefix", "one that no session of this key has had", "one in use"));
        }
        let (next, end) = (Arc::new(AtomicU64::new(next)), Arc::new(AtomicU64::new(u64::MAX)));
        Ok(Session { key: key.clone(), prefix, next, end })
    }

    /// The key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The number that the next message gets.
    pub fn next(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// Reserves the next `count` numbers, and says where they end: what to write to disk before a message is sealed, and to resume from.
    /// From the first call on, which must come before the first message, no number is given out that was not reserved.
    pub fn reserve(&self, count: u64) -> Result<u64> {
        let next = self.next();
        let end = next.checked_add(count).ok_or(Error::NoncesExhausted { left: u64::MAX - next, asked: count })?;
        let raise = |before: u64| Some(if before == u64::MAX { end } else { before.max(end) });
        match self.end.fetch_update(Ordering::AcqRel, Ordering::Acquire, raise) {
            Ok(before) if before != u64::MAX => Ok(before.max(end)),
            _ => Ok(end),
        }
    }

    /// Seals messages with the next numbers. [`Seal::first_number`] says which they are, as whoever opens them must know.
    pub fn seal(&self, messages: impl Into<Messages>) -> Result<Seal> {
        let messages = messages.into();
        let count = messages.count() as u64;
        let limit = self.end.load(Ordering::Acquire);
        let claim = |next: u64| next.checked_add(count).filter(|end| *end <= limit);
        match self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, claim) {
            Ok(first) => Ok(self.sealed(first, messages)),
            Err(next) => Err(Error::NoncesExhausted { left: limit.saturating_sub(next), asked: count }),
        }
    }

    /// Seals messages with numbers of the caller's choice, from `first` on. A number below the next one is refused: it may have been
    /// used; those that are skipped are lost.
    pub fn seal_from(&self, first: u64, messages: impl Into<Messages>) -> Result<Seal> {
        let messages = messages.into();
        let asked = messages.count() as u64;
        let limit = self.end.load(Ordering::Acquire);
        let exhausted = Error::NoncesExhausted { left: limit.saturating_sub(first), asked };
        let end = first.checked_add(asked).filter(|end| *end <= limit).ok_or(exhausted)?;
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
        Seal::of_session(&self.key, Nonces::Counted { prefix: self.prefix, first }, messages)
    }
}
