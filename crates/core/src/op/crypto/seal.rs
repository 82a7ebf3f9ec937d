//! Seal and Open: authenticated encryption.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::algorithm::AeadAlgorithm;
use super::key::{Key, Purpose};
use super::messages::Messages;
use super::nonces::{Nonces, expect_len};
use crate::bytes::Bytes;
use crate::error::{Error, Result};
use crate::op::{BatchKey, CostClass, Describe};
use crate::part::{Part, PartMut, PartRef, Parts, Value};
use crate::process::Process;

/// Length of a tag in bytes.
pub const TAG_BYTES: usize = 16;
/// The fixed cost of a message, as a number of bytes that are sealed in the same time.
const MESSAGE_COST_BYTES: u64 = 512;

/// Encrypts and authenticates messages, each with a nonce of its own. The output is each message's
/// text with its tag behind it, or both separately ([`Seal::detached`]).
///
/// A nonce that is used twice with one key reveals both messages: [`Session`](super::Session)
/// counts nonces, and two equal ones in one op are refused. Associated data is authenticated but
/// not encrypted, and must be the same when the message is opened.
#[derive(Clone, Debug)]
pub struct Seal {
    key: Key,
    nonces: Nonces,
    messages: Messages,
    associated: Option<Messages>,
    detached: bool,
    in_place: bool,
    /// Whether texts have overwritten the messages.
    overwritten: bool,
    /// Set if a session gave out the nonces.
    ticket: Option<Ticket>,
}

/// A session's permission to use some nonces for one input only.
///
/// 1. The input is fixed once the op was cloned or validated: a clone may have run already, and so
///    may the op itself. Other associated data is refused from then on.
/// 2. The messages, the nonces and the key never change. Equal copies elsewhere may replace them,
///    see [`Ticket::watched`].
/// 3. A fork copies everything, so the op runs only in the process for which the nonces were drawn.
#[derive(Debug)]
struct Ticket {
    fixed: Arc<AtomicBool>,
    process: Process,
    /// Whether the op was altered.
    broken: bool,
}

impl Ticket {
    fn new(process: Process) -> Ticket {
        Ticket { fixed: Arc::default(), process, broken: false }
    }

    /// Fixes the input. Refuses an op that was altered, or that a fork has copied into another
    /// process.
    fn check(&self) -> Result<()> {
        // Before the process is checked, so that a fork in between alters nothing either.
        self.fixed.store(true, Ordering::Relaxed);
        if self.broken {
            return Err(Error::RepeatedNonce { index: 0 });
        }
        if self.process.is_current() {
            return Ok(());
        }
        let got = format!("one of process {}, of which this is a fork", self.process.id());
        Err(Error::invalid("seal: nonces of a session", "nonces that were given out in this process", got))
    }

    /// Lets `visit` replace a part of the op, and breaks the ticket if the new part is not equal.
    /// Bytes that are fetched from a device cannot be compared; they must have the same length.
    fn watched(ticket: &mut Option<Ticket>, part: PartMut<'_>, visit: &mut dyn FnMut(PartMut<'_>)) {
        match (ticket, part) {
            (Some(ticket), PartMut::Bytes(bytes)) => {
                // While there is a second handle, the bytes cannot be written in place.
                let before = bytes.clone();
                // A visitor that panics may have replaced them before.
                let was_broken = std::mem::replace(&mut ticket.broken, true);
                visit(PartMut::Bytes(bytes));
                ticket.broken = was_broken || !may_replace(&before, bytes);
            }
            (_, part) => visit(part),
        }
    }
}

impl Clone for Ticket {
    fn clone(&self) -> Ticket {
        self.fixed.store(true, Ordering::Relaxed);
        Ticket { fixed: Arc::clone(&self.fixed), ..*self }
    }
}

/// Whether the bytes are equal, or may have been fetched from a device.
fn may_replace(before: &Bytes, after: &Bytes) -> bool {
    match (before.as_slice(), after.as_slice()) {
        (Ok(before), Ok(after)) if before.len() != after.len() => false,
        (Ok(before), Ok(after)) if before.as_ptr() == after.as_ptr() => true,
        // Keys are among the parts, so the time must not depend on the place of a difference.
        (Ok(before), Ok(after)) => before.iter().zip(after).fold(0, |sum, (one, other)| sum | (one ^ other)) == 0,
        (Ok(_), Err(_)) => false,
        (Err(_), _) => before.len() == after.len(),
    }
}

/// Verifies and decrypts sealed messages. Every tag is verified before any output: if one message
/// is not authentic, the op fails with [`Error::Rejected`], and no plaintext of the batch is handed
/// out.
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

/// Output of [`Seal`].
#[derive(Clone, Debug)]
pub struct SealedMessages {
    /// Each message's text, with its tag behind it unless tags are separate.
    pub text: Messages,
    /// Sixteen bytes for each message, if tags are separate.
    pub tags: Option<Bytes>,
}

impl Seal {
    /// Seals each message with its nonce.
    pub fn new(key: &Key, nonces: impl Into<Nonces>, messages: impl Into<Messages>) -> Seal {
        let (key, nonces, messages) = (key.clone(), nonces.into(), messages.into());
        let (associated, detached, in_place) = (None, false, false);
        Seal { key, nonces, messages, associated, detached, in_place, overwritten: false, ticket: None }
    }

    /// Seals each message with a nonce that a session gave out for it, in this process.
    pub(super) fn of_session(key: &Key, nonces: Nonces, messages: Messages, process: Process) -> Seal {
        Seal { ticket: Some(Ticket::new(process)), ..Seal::new(key, nonces, messages) }
    }

    /// Authenticates `data` as well: one message for all (by itself or in a list of one), or one
    /// for each. Set it before an op with a session's nonces is cloned or validated: later it makes
    /// the op fail with [`Error::RepeatedNonce`].
    pub fn associated(mut self, data: impl Into<Messages>) -> Seal {
        self.associated = Some(one_for_all(data.into()));
        if let Some(ticket) = &mut self.ticket {
            ticket.broken |= ticket.fixed.load(Ordering::Relaxed);
        }
        self
    }

    /// Returns tags separately; the text then has the message's length.
    pub fn detached(mut self) -> Seal {
        self.detached = true;
        self
    }

    /// Permits the texts to overwrite their messages, so that no other memory is needed. This
    /// requires separate tags, one message or packed ones, the only handle to their buffer, and a
    /// device that can do it. Such an op can run only once: its messages are gone then.
    pub fn in_place(mut self) -> Seal {
        self.in_place = true;
        self
    }

    /// Whether texts may overwrite their messages.
    pub fn is_in_place(&self) -> bool {
        self.in_place
    }

    /// For an engine that works in place: lets `seal` overwrite the messages with their texts.
    /// `None` if the engine may not, or if others hold the messages' memory; then nothing has
    /// changed.
    ///
    /// This happens once: afterwards the op's messages have their old lengths, and validating the
    /// op fails with [`Error::RepeatedNonce`].
    pub fn overwrite<R>(&mut self, seal: impl FnOnce(&Seal, &mut Messages) -> R) -> Option<R> {
        let may = self.in_place && self.detached && !self.overwritten && self.messages.get_mut().is_some();
        if !may {
            return None;
        }
        self.overwritten = true;
        let mut messages = std::mem::replace(&mut self.messages, Messages::One(Bytes::from_vec(Vec::new())));
        let made = seal(self, &mut messages);
        self.messages = messages;
        Some(made)
    }

    /// Refuses an op that may seal another input with its nonces than before: its texts overwrote
    /// its messages, it was altered although a session counts its nonces, or a fork copied it. The
    /// part of validating that an engine must repeat before it runs the op.
    pub fn check_unaltered(&self) -> Result<()> {
        match &self.ticket {
            _ if self.overwritten => Err(Error::RepeatedNonce { index: 0 }),
            Some(ticket) => ticket.check(),
            None => Ok(()),
        }
    }

    /// The key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The algorithm; `None` if the key is for something else.
    pub fn algorithm(&self) -> Option<AeadAlgorithm> {
        algorithm_of(&self.key)
    }

    /// The nonces.
    pub fn nonces(&self) -> &Nonces {
        &self.nonces
    }

    /// The number of the first message, if a session counts them.
    pub fn first_number(&self) -> Option<u64> {
        match self.nonces {
            Nonces::Counted { first, .. } => Some(first),
            Nonces::Given(_) => None,
        }
    }

    /// The messages to seal.
    pub fn messages(&self) -> &Messages {
        &self.messages
    }

    /// The associated data: one for all, or one for each.
    pub fn associated_data(&self) -> Option<&Messages> {
        self.associated.as_ref()
    }

    /// Whether tags are separate from the text.
    pub fn is_detached(&self) -> bool {
        self.detached
    }
}

impl Open {
    /// Opens each message with its nonce. A message is a text with its tag behind it, unless
    /// [`Open::tags`] gives the tags.
    pub fn new(key: &Key, nonces: impl Into<Nonces>, messages: impl Into<Messages>) -> Open {
        let (key, nonces, messages) = (key.clone(), nonces.into(), messages.into());
        Open { key, nonces, messages, associated: None, tags: None, secret: false, in_place: false }
    }

    /// The associated data: one message for all (by itself or in a list of one), or one for each.
    pub fn associated(mut self, data: impl Into<Messages>) -> Open {
        self.associated = Some(one_for_all(data.into()));
        self
    }

    /// The tags, sixteen bytes for each message, if they are separate from the text.
    pub fn tags(mut self, tags: Bytes) -> Open {
        self.tags = Some(tags);
        self
    }

    /// Marks the plaintext as secret: it lies in memory that is wiped with its last handle.
    pub fn secret(mut self) -> Open {
        self.secret = true;
        self
    }

    /// Permits the plaintext to overwrite its text. This requires tags behind their texts, one
    /// message or packed ones, the only handle to their buffer, secret memory if the plaintext is
    /// secret, and a device that can do it. If a message is rejected, all are wiped. Such an op can
    /// run only once.
    pub fn in_place(mut self) -> Open {
        self.in_place = true;
        self
    }

    /// Whether the plaintext may overwrite its text.
    pub fn is_in_place(&self) -> bool {
        self.in_place
    }

    /// The messages, for an engine that works in place; `None` if it may not.
    pub fn messages_mut(&mut self) -> Option<&mut Messages> {
        let may = self.in_place && self.tags.is_none() && (!self.secret || self.messages.is_secret());
        may.then_some(&mut self.messages)
    }

    /// The key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The algorithm; `None` if the key is for something else.
    pub fn algorithm(&self) -> Option<AeadAlgorithm> {
        algorithm_of(&self.key)
    }

    /// The nonces.
    pub fn nonces(&self) -> &Nonces {
        &self.nonces
    }

    /// The messages to open.
    pub fn messages(&self) -> &Messages {
        &self.messages
    }

    /// The associated data: one for all, or one for each.
    pub fn associated_data(&self) -> Option<&Messages> {
        self.associated.as_ref()
    }

    /// The tags, if they are separate from the text.
    pub fn detached_tags(&self) -> Option<&Bytes> {
        self.tags.as_ref()
    }

    /// Whether the output lies in secret memory.
    pub fn is_secret(&self) -> bool {
        self.secret
    }
}

impl SealedMessages {
    /// Converts to an engine's output: a text without separate tags as [`Messages::into_value`]
    /// does; separate tags are a tensor before it.
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

    /// Converts from an engine's output.
    pub fn from_value(value: Value) -> Result<SealedMessages> {
        let Value::List(mut parts) = value else {
            return Ok(SealedMessages { text: Messages::from_value(value)?, tags: None });
        };
        let Some(Part::Tensor(tags)) = parts.first().cloned() else {
            return Ok(SealedMessages { text: Messages::from_value(Value::List(parts))?, tags: None });
        };
        parts.remove(0);
        let text = match parts.as_slice() {
            [Part::Tensor(bytes)] => Value::Bytes(Bytes::from_tensor(bytes)?),
            [Part::Tensor(bytes), Part::Tensor(offsets)] => Value::Pair(bytes.clone(), offsets.clone()),
            _ => Value::List(parts),
        };
        Ok(SealedMessages { text: Messages::from_value(text)?, tags: Some(Bytes::from_tensor(&tags)?) })
    }
}

fn algorithm_of(key: &Key) -> Option<AeadAlgorithm> {
    match key.purpose() {
        Purpose::Seal(algorithm) => Some(algorithm),
        _ => None,
    }
}

/// Unwraps a list of one: it is equivalent to a single message.
fn one_for_all(data: Messages) -> Messages {
    match data.count() {
        1 => data.get(0).map_or(data, Messages::One),
        _ => data,
    }
}

/// The common checks of seal and open: the key's purpose, the number of nonces, and the number of
/// associated data.
fn check(key: &Key, nonces: &Nonces, messages: &Messages, associated: Option<&Messages>) -> Result<AeadAlgorithm> {
    let algorithm =
        algorithm_of(key).ok_or_else(|| key.wrong_purpose("seal or open: key", "a key made by Key::seal"))?;
    messages.check()?;
    nonces.check(messages.count())?;
    if let Some(data) = associated {
        data.check()?;
        let (one_for_all, expected, got) = (matches!(data, Messages::One(_)), messages.count(), data.count());
        if !one_for_all && expected != got {
            return Err(Error::invalid(
                "associated data",
                format!("one for all messages, or one for each of {expected}"),
                got,
            ));
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
        self.check_unaltered()?;
        if self.ticket.is_none() {
            self.nonces.check_unclaimed(&self.key)?;
        }
        self.nonces.check_distinct()
    }

    fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        self.messages.visit(visit);
        self.key.visit(visit);
        self.nonces.visit(visit);
        self.associated.iter().for_each(|data| data.visit(visit));
    }

    fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        let Seal { messages, key, nonces, associated, ticket, .. } = self;
        let visit = &mut |part: PartMut<'_>| Ticket::watched(ticket, part, visit);
        messages.visit_mut(visit);
        key.visit_mut(visit);
        nonces.visit_mut(visit);
        associated.iter_mut().for_each(|data| data.visit_mut(visit));
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

    crate::parts!(messages, key, nonces, associated, tags);

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
