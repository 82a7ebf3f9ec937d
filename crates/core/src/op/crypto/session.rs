//! Sessions: a key with a nonce counter that never gives out a nonce twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::key::{Key, Purpose};
use super::messages::Messages;
use super::nonces::Nonces;
use super::seal::{Open, Seal};
use crate::error::{Error, Result};

/// Seals with counted nonces: the session's prefix and a number of 64 bits. Clones share the
/// counter.
///
/// Nonces are given out when the op is made, not when it runs: an op that a fallback runs again
/// seals the same message with the same nonce. A nonce is never given out again, even if its op was
/// never run; therefore an op that was cloned accepts no other associated data. One key has one
/// session for each prefix; any other op of this key under the session's prefix is refused. A
/// second key with the same bytes is not covered by these checks.
///
/// If a key lives longer than the process, the next process must never count from a number that was
/// given out before. A crash loses [`Session::next`], so numbers are reserved before they are used:
///
/// 1. [`Session::reserve`] returns a number; write it to disk.
/// 2. Messages are sealed. Beyond that number they are refused, until more is reserved and written.
/// 3. After a restart of any cause, [`Session::resume`] continues from the number that was written
///    last.
///
/// A fork copies the counter. A session works only in the process that made its key: in a forked
/// process [`Session::seal`], [`Session::seal_from`], [`Session::reserve`] and new sessions under
/// the same key are refused, and so are ops that the session made before the fork. This holds for a
/// fork at any moment: the process is checked after the numbers are drawn as well as before, and
/// again when the op runs. The child must make the
/// key again from its bytes, with a prefix that no other process uses.
///
/// A virtual machine that is resumed from a snapshot cannot be distinguished from the one that
/// continued: both count from the same number, and two messages under one nonce reveal both and
/// permit forged tags. So if machines are snapshotted or cloned while a session lives, use
/// [`RandomSession`](super::RandomSession), or end every session before the snapshot and begin with
/// a new key after it. The same holds for a disk that is restored to an earlier state, from which
/// [`Session::resume`] reads a number that is too low.
#[derive(Clone, Debug)]
pub struct Session {
    key: Key,
    prefix: [u8; 4],
    next: Arc<AtomicU64>,
    /// The end of the numbers that may be given out: `u64::MAX` until some are reserved.
    end: Arc<AtomicU64>,
}

impl Session {
    /// A session that counts from zero. The key must be new, or the prefix must never have been
    /// used with it.
    pub fn new(key: &Key, prefix: [u8; 4]) -> Result<Session> {
        Session::resume(key, prefix, 0)
    }

    /// A session that continues from the last number that [`Session::reserve`] returned, or from
    /// [`Session::next`] after the last message was sealed, if it is certain that none followed.
    pub fn resume(key: &Key, prefix: [u8; 4], next: u64) -> Result<Session> {
        if !matches!(key.purpose(), Purpose::Seal(_)) {
            return Err(key.wrong_purpose("session: key", "a key made by Key::seal"));
        }
        key.check_process("session: key")?;
        if key.is_random() {
            let expected = "a key without random nonces: one of them may be equal to a counted one";
            return Err(Error::invalid("session: key", expected, "a key of a random session"));
        }
        if !key.claim_prefix(prefix) {
            return Err(Error::invalid("session: prefix", "one that no session of this key has had", "one in use"));
        }
        let (next, end) = (Arc::new(AtomicU64::new(next)), Arc::new(AtomicU64::new(u64::MAX)));
        key.check_process("session: key")?;
        Ok(Session { key: key.clone(), prefix, next, end })
    }

    /// The key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The number of the next message.
    pub fn next(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// Reserves the next `count` numbers, and returns their end: write it to disk before sealing a
    /// message, and resume from it. From the first call on, which must come before the first
    /// message, only reserved numbers are given out.
    pub fn reserve(&self, count: u64) -> Result<u64> {
        self.check_process()?;
        let next = self.next();
        let end = next.checked_add(count).ok_or(Error::NoncesExhausted { left: u64::MAX - next, asked: count })?;
        let raise = |before: u64| Some(if before == u64::MAX { end } else { before.max(end) });
        let before = self.end.fetch_update(Ordering::AcqRel, Ordering::Acquire, raise);
        self.check_process()?;
        match before {
            Ok(before) if before != u64::MAX => Ok(before.max(end)),
            _ => Ok(end),
        }
    }

    /// Seals messages with the next numbers. [`Seal::first_number`] has the first, which is needed
    /// to open them.
    pub fn seal(&self, messages: impl Into<Messages>) -> Result<Seal> {
        self.check_process()?;
        let messages = messages.into();
        let count = messages.count() as u64;
        let limit = self.end.load(Ordering::Acquire);
        let claim = |next: u64| next.checked_add(count).filter(|end| *end <= limit);
        match self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, claim) {
            Ok(first) => self.sealed(first, messages),
            Err(next) => Err(Error::NoncesExhausted { left: limit.saturating_sub(next), asked: count }),
        }
    }

    /// Seals messages with numbers chosen by the caller, from `first` on. A number below the next
    /// one is refused, since it may have been used; skipped numbers are lost.
    pub fn seal_from(&self, first: u64, messages: impl Into<Messages>) -> Result<Seal> {
        self.check_process()?;
        let messages = messages.into();
        let asked = messages.count() as u64;
        let limit = self.end.load(Ordering::Acquire);
        let exhausted = Error::NoncesExhausted { left: limit.saturating_sub(first), asked };
        let end = first.checked_add(asked).filter(|end| *end <= limit).ok_or(exhausted)?;
        let claim = |next: u64| (next <= first).then_some(end);
        match self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, claim) {
            Ok(_) => self.sealed(first, messages),
            Err(_) => Err(Error::RepeatedNonce { index: 0 }),
        }
    }

    /// Opens messages that were sealed with the numbers from `first` on.
    pub fn open(&self, first: u64, messages: impl Into<Messages>) -> Open {
        Open::new(&self.key, Nonces::Counted { prefix: self.prefix, first }, messages)
    }

    /// Fails in a forked process: the parent gives out the same numbers.
    fn check_process(&self) -> Result<()> {
        let process = self.key.process();
        if process.is_current() {
            return Ok(());
        }
        let expected = "the process that made its key; after a fork, make the key again of its bytes and a session with a prefix of its own, or a RandomSession";
        let got = format!("process {}, a fork of process {}", std::process::id(), process.id());
        Err(Error::invalid("session", expected, got))
    }

    /// The op for drawn numbers. A signal handler may have forked since the process was checked:
    /// the child has drawn from a copy of the counter, so the op must not leave it.
    fn sealed(&self, first: u64, messages: Messages) -> Result<Seal> {
        self.check_process()?;
        let nonces = Nonces::Counted { prefix: self.prefix, first };
        Ok(Seal::of_session(&self.key, nonces, messages, self.key.process()))
    }
}
