//! Seal and Open: encryption with authentication.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::algorithm::AeadAlgorithm;
use super::key::{Key, Purpose};
use super::messages::Messages;
use super::nonces::{Nonces, expect_len};
use crate::bytes::Bytes;
use crate::error::{Error, Result};
use crate::op::{BatchKey, CostClass, Describe};
use crate::part::{Part, PartMut, PartRef, Value};

/// How long a tag is.
pub const TAG_BYTES: usize = 16;
/// What a message costs beside its bytes, in bytes that are sealed in the same time.
const MESSAGE_COST_BYTES: u64 = 512;

/// Encrypts and authenticates messages, each with a nonce of its own. The answer is each message's text with its tag behind it, or
/// both apart ([`Seal::detached`]).
///
/// A nonce that is used twice with one key gives both messages away: [`Session`](super::Session) counts nonces, and two equal ones in one
/// op are refused. Associated data is authenticated, not encrypted, and must be the same when the message is opened.
#[derive(Clone, Debug)]
pub struct Seal {
    key: Key,
    nonces: Nonces,
    messages: Messages,
    associated: Option<Messages>,
    detached: bool,
    in_place: bool,
    /// Where a session gave out the nonces.
    ticket: Option<Ticket>,
}

/// A session's leave to use some nonces, for one input only: whether the op that has it was ever cloned. A clone may have run already,
/// so what is authenticated cannot be altered any more.
#[derive(Debug, Default)]
struct Ticket {
    cloned: Arc<AtomicBool>,
    /// It was altered nevertheless.
    broken: bool,
}

impl Clone for Ticket {
    fn clone(&self) -> Ticket {
        self.cloned.store(true, Ordering::Relaxed);
        Ticket { cloned: Arc::clone(&self.cloned), broken: self.broken }
    }
}

/// Verifies and decrypts messages that were sealed. Nothing comes out before every tag is verified: where one is not authentic the op
/// fails with [`Error::Rejected`], and no plaintext of the batch is handed out.
#[derive(Clone, Debug)]
pub struct Open {
    key: Key,
    nonces: Nonces,
    messages: Messages,
    associated: Option<Messages>,
    tags: Option<Bytes>,
    secret: bool,
    in_place: bool,
}

/// What [`Seal`] makes.
#[derive(Clone, Debug)]
pub struct Sealed {
    /// Each message's text, with its tag behind it unless tags are apart.
    pub text: Messages,
    /// Sixteen bytes for each message, where they were asked for apart.
    pub tags: Option<Bytes>,
}

impl Seal {
    /// Seals each message with its nonce.
    pub fn new(key: &Key, nonces: impl Into<Nonces>, messages: impl Into<Messages>) -> Seal {
        let (key, nonces, messages) = (key.clone(), nonces.into(), messages.into());
        Seal { key, nonces, messages, associated: None, detached: false, in_place: false, ticket: None }
    }

    /// Seals each message with a nonce that a session gave out for it.
    pub(super) fn of_session(key: &Key, nonces: Nonces, messages: Messages) -> Seal {
        Seal { ticket: Some(Ticket::default()), ..Seal::new(key, nonces, messages) }
    }

    /// Authenticates this as well: one message for all, or one for each. To be said before an op with a session's nonces is cloned:
    /// afterwards it makes the op fail with [`Error::RepeatedNonce`].
    pub fn associated(mut self, data: impl Into<Messages>) -> Seal {
        self.associated = Some(data.into());
        if let Some(ticket) = &mut self.ticket {
            ticket.broken |= ticket.cloned.load(Ordering::Relaxed);
        }
        self
    }

    /// Tags come apart from the text, which is then as long as the message.
    pub fn detached(mut self) -> Seal {
        self.detached = true;
        self
    }

    /// Texts may take the place of their messages in memory, so that no other is needed: where tags come apart, the messages are one or packed,
    /// the op has the only handle to their buffer and the device can. An op that may do so is run once: what it was to seal is gone then.
    pub fn in_place(mut self) -> Seal {
        self.in_place = true;
        self
    }

    /// Whether texts may take the place of their messages.
    pub fn is_in_place(&self) -> bool {
        self.in_place
    }

    /// The messages, for an engine that puts texts in their place; `None` where it may not.
    pub fn messages_mut(&mut self) -> Option<&mut Messages> {
        (self.in_place && self.detached).then_some(&mut self.messages)
    }

    /// The key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The algorithm; `None` where the key is for something else.
    pub fn algorithm(&self) -> Option<AeadAlgorithm> {
        algorithm_of(&self.key)
    }

    /// The nonces.
    pub fn nonces(&self) -> &Nonces {
        &self.nonces
    }

    /// The number of the first message, where a session counts them.
    pub fn first_number(&self) -> Option<u64> {
        match self.nonces {
            Nonces::Counted { first, .. } => Some(first),
            Nonces::Given(_) => None,
        }
    }

    /// What is sealed.
    pub fn messages(&self) -> &Messages {
        &self.messages
    }

    /// The associated data: one for all, or one for each.
    pub fn associated_data(&self) -> Option<&Messages> {
        self.associated.as_ref()
    }

    /// Whether tags come apart from the text.
    pub fn is_detached(&self) -> bool {
        self.detached
    }
}

impl Open {
    /// Opens each message with its nonce. A message is a text with its tag behind it, unless [`Open::tags`] gives tags.
    pub fn new(key: &Key, nonces: impl Into<Nonces>, messages: impl Into<Messages>) -> Open {
        let (key, nonces, messages) = (key.clone(), nonces.into(), messages.into());
        Open { key, nonces, messages, associated: None, tags: None, secret: false, in_place: false }
    }

    /// What was authenticated as well: one message for all, or one for each.
    pub fn associated(mut self, data: impl Into<Messages>) -> Open {
        self.associated = Some(data.into());
        self
    }

    /// The tags, sixteen bytes for each message, where they are apart from the text.
    pub fn tags(mut self, tags: Bytes) -> Open {
        self.tags = Some(tags);
        self
    }

    /// What is opened is secret: it lies in memory that is wiped with its last handle.
    pub fn secret(mut self) -> Open {
        self.secret = true;
        self
    }

    /// What is opened may take the place of its text in memory: where tags are behind their texts, the messages are one or packed, the op has the
    /// only handle to their buffer, that is secret if the answer is to be, and the device can. Where a message is rejected all are wiped. An op that
    /// may do so is run once.
    pub fn in_place(mut self) -> Open {
        self.in_place = true;
        self
    }

    /// Whether what is opened may take the place of its text.
    pub fn is_in_place(&self) -> bool {
        self.in_place
    }

    /// The messages, for an engine that opens them in their place; `None` where it may not.
    pub fn messages_mut(&mut self) -> Option<&mut Messages> {
        let may = self.in_place && self.tags.is_none() && (!self.secret || self.messages.is_secret());
        may.then_some(&mut self.messages)
    }

    /// The key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The algorithm; `None` where the key is for something else.
    pub fn algorithm(&self) -> Option<AeadAlgorithm> {
        algorithm_of(&self.key)
    }

    /// The nonces.
    pub fn nonces(&self) -> &Nonces {
        &self.nonces
    }

    /// What is opened.
    pub fn messages(&self) -> &Messages {
        &self.messages
    }

    /// The associated data: one for all, or one for each.
    pub fn associated_data(&self) -> Option<&Messages> {
        self.associated.as_ref()
    }

    /// The tags, where they are apart from the text.
    pub fn detached_tags(&self) -> Option<&Bytes> {
        self.tags.as_ref()
    }

    /// Whether the answer lies in secret memory.
    pub fn is_secret(&self) -> bool {
        self.secret
    }
}

impl Sealed {
    /// As an engine's answer: a text without tags is as [`Messages::into_value`] has it; tags are a tensor before it.
    pub fn into_value(self) -> Result<Value> {
        let Some(tags) = self.tags else { return self.text.into_value() };
        let mut parts = vec![Part::Tensor(tags.to_tensor()?)];
        match self.text.into_value()? {
            Value::Bytes(bytes) => parts.push(Part::Tensor(bytes.to_tensor()?)),
            Value::Pair(bytes, offsets) => parts.extend([Part::Tensor(bytes), Part::Tensor(offsets)]),
            list => parts.extend(list.into_list()?),
        }
        Ok(Value::List(parts))
    }

    /// From an engine's answer.
    pub fn from_value(value: Value) -> Result<Sealed> {
        let Value::List(mut parts) = value else {
            return Ok(Sealed { text: Messages::from_value(value)?, tags: None });
        };
        let Some(Part::Tensor(tags)) = parts.first().cloned() else {
            return Ok(Sealed { text: Messages::from_value(Value::List(parts))?, tags: None });
        };
        parts.remove(0);
        let text = match parts.as_slice() {
            [Part::Tensor(bytes)] => Value::Bytes(Bytes::from_tensor(bytes)?),
            [Part::Tensor(bytes), Part::Tensor(offsets)] => Value::Pair(bytes.clone(), offsets.clone()),
            _ => Value::List(parts),
        };
        Ok(Sealed { text: Messages::from_value(text)?, tags: Some(Bytes::from_tensor(&tags)?) })
    }
}

fn algorithm_of(key: &Key) -> Option<AeadAlgorithm> {
    match key.purpose() {
        Purpose::Seal(algorithm) => Some(algorithm),
        _ => None,
    }
}

/// Refuses what seal and open have in common: the wrong sort of key, too few nonces, other counts of associated data.
fn check(key: &Key, nonces: &Nonces, messages: &Messages, associated: Option<&Messages>) -> Result<AeadAlgorithm> {
    let algorithm =
        algorithm_of(key).ok_or_else(|| key.wrong_purpose("seal or open: key", "a key made by Key::seal"))?;
    messages.check()?;
    nonces.check(messages.count())?;
    if let Some(data) = associated {
        data.check()?;
        let (one_for_all, expected, got) = (matches!(data, Messages::One(_)), messages.count(), data.count());
        if !one_for_all && expected != got {
            return Err(Error::invalid("associated data", format!("one for all, or {expected}"), got));
        }
    }
    Ok(algorithm)
}

fn work(messages: &Messages, associated: Option<&Messages>) -> u64 {
    let bytes = messages.total_bytes().saturating_add(associated.map_or(0, Messages::total_bytes)) as u64;
    bytes.saturating_add(messages.count() as u64 * MESSAGE_COST_BYTES)
}

impl Describe for Seal {
    fn name(&self) -> &'static str {
        "seal"
    }

    fn validate(&self) -> Result<()> {
        let algorithm = check(&self.key, &self.nonces, &self.messages, self.associated.as_ref())?;
        self.messages.check_lens("seal: bytes of a message", algorithm.message_bytes_max())?;
        match &self.ticket {
            Some(ticket) if ticket.broken => Err(Error::RepeatedNonce { index: 0 }),
            Some(_) => Ok(()),
            None => self.nonces.check_unclaimed(&self.key).and_then(|()| self.nonces.check_distinct()),
        }
    }

    fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        self.messages.visit(visit);
        self.key.visit(visit);
        self.nonces.visit(visit);
        self.associated.iter().for_each(|data| data.visit(visit));
    }

    fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        self.messages.visit_mut(visit);
        self.key.visit_mut(visit);
        self.nonces.visit_mut(visit);
        self.associated.iter_mut().for_each(|data| data.visit_mut(visit));
    }

    fn work(&self) -> u64 {
        work(&self.messages, self.associated.as_ref())
    }

    fn cost_class(&self) -> CostClass {
        CostClass::labelled(self.key.purpose().algorithm())
    }

    fn batch_key(&self) -> Option<BatchKey> {
        (!self.in_place).then(|| BatchKey::of(("seal", self.key.number(), self.detached)))
    }

    fn is_repeatable(&self) -> bool {
        !self.in_place
    }
}

impl Describe for Open {
    fn name(&self) -> &'static str {
        "open"
    }

    fn validate(&self) -> Result<()> {
        let algorithm = check(&self.key, &self.nonces, &self.messages, self.associated.as_ref())?;
        let tag = match &self.tags {
            Some(tags) => expect_len("open: tags", TAG_BYTES, self.messages.count(), tags.len()).map(|()| 0)?,
            None => TAG_BYTES,
        };
        if let Some(index) = self.messages.lens().position(|len| len < tag) {
            return Err(Error::Rejected { op: "open", index });
        }
        self.messages.check_lens("open: bytes of a message", algorithm.message_bytes_max() + tag as u64)
    }

    fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        self.messages.visit(visit);
        self.key.visit(visit);
        self.nonces.visit(visit);
        self.associated.iter().for_each(|data| data.visit(visit));
        self.tags.iter().for_each(|tags| visit(tags.into()));
    }

    fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        self.messages.visit_mut(visit);
        self.key.visit_mut(visit);
        self.nonces.visit_mut(visit);
        self.associated.iter_mut().for_each(|data| data.visit_mut(visit));
        self.tags.iter_mut().for_each(|tags| visit(tags.into()));
    }

    fn work(&self) -> u64 {
        work(&self.messages, self.associated.as_ref())
    }

    fn cost_class(&self) -> CostClass {
        CostClass::labelled(self.key.purpose().algorithm())
    }

    fn batch_key(&self) -> Option<BatchKey> {
        (!self.in_place).then(|| BatchKey::of(("open", self.key.number(), self.tags.is_some(), self.secret)))
    }

    fn is_repeatable(&self) -> bool {
        !self.in_place
    }
}
