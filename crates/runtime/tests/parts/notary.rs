//! A backend of a foreign crate: its devices keep sessions, and stamp messages with them. A test
//! observes and controls it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use panoply_core::op::{BatchKey, CostClass};
use panoply_core::sink::Sink;
use panoply_core::{
    Absence, Api, Backend, Bytes, Describe, DeviceId, DeviceInfo, DeviceKind, Engine, Error, FinishedOp, Health, Item,
    MemoryStats, Object, ObjectTable, Op, OpenOptions, Operation, PartMut, PartRef, Result, Support, Value,
};

pub const NOTARY: Api = Api::new("notary");

/// The state through which a test observes and controls all devices.
#[derive(Debug, Default)]
pub struct Office {
    pub runs: AtomicU64,
    pub sessions: AtomicU64,
    pub opened: AtomicU64,
    /// The next op finds its device lost.
    pub lose_next: AtomicBool,
    /// The next op fails, and the device goes on.
    pub fail_next: AtomicBool,
    /// Whether making a session fails.
    pub refuse_sessions: AtomicBool,
    /// How making a session breaks the engine, and how many times.
    pub sessions_break: Mutex<Option<(Break, u32)>>,
    /// Number of sessions that were made.
    pub made: AtomicU64,
    /// How long making a session takes.
    pub session_ms: AtomicU64,
    /// Number of additional one-millisecond naps in each poll of an engine that runs a `Count` op.
    pub poll_naps: AtomicU64,
    /// Whether devices are not found.
    pub absent: AtomicBool,
    /// Whether opening a device fails.
    pub refuse_open: AtomicBool,
    /// How often ops were asked about themselves by threads that they dislike.
    pub provoked: AtomicU32,
    pub ran_on: Mutex<Vec<DeviceId>>,
}

/// How a recipe can break its engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Break {
    /// The engine panics.
    Panic,
    /// The device is lost.
    Lose,
    /// The call does not return for this many milliseconds.
    Block(u64),
    /// The engine never answers.
    Forget,
}

pub struct Notary {
    pub devices: u32,
    pub office: Arc<Office>,
}

/// Makes a session with a key.
#[derive(Clone, Debug)]
pub struct OpenSession {
    pub key: Bytes,
    pub with_recipe: bool,
}

/// Stamps a message with a session's key.
#[derive(Clone, Debug)]
pub struct Stamp {
    pub session: Object,
    pub message: Bytes,
    pub repeatable: bool,
}

/// Sends numbers into a sink, then ends with their count. With a key it sends sessions instead of
/// numbers.
#[derive(Clone, Debug)]
pub struct Count {
    pub up_to: u8,
    pub sink: Sink,
    pub key: Option<Bytes>,
}

/// Returns the session that it names.
#[derive(Clone, Debug)]
pub struct Echo(pub Object);

impl Describe for OpenSession {
    fn name(&self) -> &'static str {
        "open_session"
    }
    fn validate(&self) -> Result<()> {
        if self.key.is_empty() { Err(Error::invalid("open_session", "a key", "none")) } else { Ok(()) }
    }
    fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        visit((&self.key).into());
    }
    fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        visit((&mut self.key).into());
    }
    fn batch_key(&self) -> Option<BatchKey> {
        Some(BatchKey::of("open_session"))
    }
}

impl Describe for Stamp {
    fn name(&self) -> &'static str {
        "stamp"
    }
    fn validate(&self) -> Result<()> {
        Ok(())
    }
    fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        visit((&self.session).into());
        visit((&self.message).into());
    }
    fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        visit((&mut self.session).into());
        visit((&mut self.message).into());
    }
    fn is_repeatable(&self) -> bool {
        self.repeatable
    }
    fn cost_class(&self) -> CostClass {
        CostClass::labelled(if self.repeatable { "again" } else { "once" })
    }
}

impl Describe for Count {
    fn name(&self) -> &'static str {
        "count"
    }
    fn validate(&self) -> Result<()> {
        Ok(())
    }
    fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        visit((&self.sink).into());
        self.key.iter().for_each(|key| visit(key.into()));
    }
    fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        visit((&mut self.sink).into());
        self.key.iter_mut().for_each(|key| visit(key.into()));
    }
}

impl Describe for Echo {
    fn name(&self) -> &'static str {
        "echo"
    }
    fn validate(&self) -> Result<()> {
        Ok(())
    }
    fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        visit((&self.0).into());
    }
    fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        visit((&mut self.0).into());
    }
}

impl Operation for Echo {
    type Output = Object;
    fn into_op(self) -> Result<Op> {
        Op::extension(self)
    }
    fn output(value: Value) -> Result<Object> {
        value.into_object()
    }
}

impl Operation for OpenSession {
    type Output = Object;
    fn into_op(self) -> Result<Op> {
        Op::extension_with_secrets(self)
    }
    fn output(value: Value) -> Result<Object> {
        value.into_object()
    }
}

impl Operation for Stamp {
    type Output = Bytes;
    fn into_op(self) -> Result<Op> {
        Op::extension(self)
    }
    fn output(value: Value) -> Result<Bytes> {
        value.into_bytes()
    }
}

impl Operation for Count {
    type Output = Bytes;
    fn into_op(self) -> Result<Op> {
        Op::extension_with_secrets(self)
    }
    fn output(value: Value) -> Result<Bytes> {
        value.into_bytes()
    }
}

fn knows(op: &Op) -> bool {
    let Op::Extension(op) = op else { return false };
    op.downcast_ref::<OpenSession>().is_some()
        || op.downcast_ref::<Stamp>().is_some()
        || op.downcast_ref::<Count>().is_some()
        || op.downcast_ref::<Echo>().is_some()
        || op.downcast_ref::<Moody>().is_some()
}

impl Backend for Notary {
    fn api(&self) -> Api {
        NOTARY
    }

    fn discover(&self) -> Result<Vec<DeviceInfo>, Absence> {
        if self.office.absent.load(Ordering::Relaxed) {
            return Ok(Vec::new());
        }
        let device = |index| {
            let id = DeviceId { api: NOTARY, index };
            let mut info = DeviceInfo::new(id, format!("notary {index}"), DeviceKind::CryptoAccelerator);
            info.shares_host_memory = true;
            info
        };
        Ok((0..self.devices).map(device).collect())
    }

    fn supports(&self, _device: &DeviceInfo, op: &Op) -> Support {
        if knows(op) { Support::Yes } else { Support::unknown(op) }
    }

    fn open(&self, device: &DeviceInfo, _options: &OpenOptions) -> Result<Box<dyn Engine>> {
        if self.office.refuse_open.load(Ordering::Relaxed) {
            return Err(Error::DeviceUnavailable { device: device.id, reason: "the test says so".to_owned() });
        }
        self.office.opened.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(Desk {
            info: device.clone(),
            office: Arc::clone(&self.office),
            sessions: ObjectTable::new(device.id),
            counting: Vec::new(),
            finished: Vec::new(),
            forgotten: 0,
            lost: false,
        }))
    }
}

/// The questions to which an op reacts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Says {
    Name,
    Parts,
    Key,
    Copy,
    /// The call of its destructor.
    Goodbye,
}

/// An op that panics, or does not return for a while, when a thread whose name starts with `thread`
/// asks it one question.
#[derive(Debug)]
pub struct Moody {
    pub thread: &'static str,
    pub dislikes: Says,
    pub block_ms: u64,
    pub office: Arc<Office>,
}

impl Moody {
    fn asked(&self, for_what: Says) {
        let here = std::thread::current();
        if for_what == self.dislikes && here.name().is_some_and(|name| name.starts_with(self.thread)) {
            self.office.provoked.fetch_add(1, Ordering::Relaxed);
            if self.block_ms == 0 {
                std::panic::resume_unwind(Box::new("a moody op"));
            }
            std::thread::sleep(Duration::from_millis(self.block_ms));
        }
    }
}

impl Drop for Moody {
    fn drop(&mut self) {
        self.asked(Says::Goodbye);
    }
}

impl Clone for Moody {
    fn clone(&self) -> Moody {
        self.asked(Says::Copy);
        Moody {
            thread: self.thread,
            dislikes: self.dislikes,
            block_ms: self.block_ms,
            office: Arc::clone(&self.office),
        }
    }
}

impl Describe for Moody {
    fn name(&self) -> &'static str {
        self.asked(Says::Name);
        "moody"
    }
    fn validate(&self) -> Result<()> {
        Ok(())
    }
    fn for_each_part(&self, _visit: &mut dyn FnMut(PartRef<'_>)) {
        self.asked(Says::Parts);
    }
    fn for_each_part_mut(&mut self, _visit: &mut dyn FnMut(PartMut<'_>)) {}
    fn batch_key(&self) -> Option<BatchKey> {
        self.asked(Says::Key);
        None
    }
}

impl Operation for Moody {
    type Output = Bytes;
    fn into_op(self) -> Result<Op> {
        Op::extension(self)
    }
    fn output(value: Value) -> Result<Bytes> {
        value.into_bytes()
    }
}

/// A session's key. It counts in the office's number of sessions.
struct Session {
    key: zeroize::Zeroizing<Vec<u8>>,
    office: Arc<Office>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.office.sessions.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Desk {
    info: DeviceInfo,
    office: Arc<Office>,
    sessions: ObjectTable<Session>,
    counting: Vec<(Item, u8)>,
    finished: Vec<FinishedOp>,
    /// Number of items that are never answered.
    forgotten: usize,
    lost: bool,
}

impl Desk {
    fn run(&mut self, op: &Op) -> Result<Value> {
        self.office.ran_on.lock().unwrap().push(self.info.id);
        self.office.runs.fetch_add(1, Ordering::Relaxed);
        self.lost |= self.office.lose_next.swap(false, Ordering::Relaxed);
        if self.lost {
            return Err(Error::DeviceLost { device: self.info.id, reason: "the test says so".to_owned() });
        }
        if self.office.fail_next.swap(false, Ordering::Relaxed) {
            return Err(Error::DeviceFault { device: self.info.id, reason: "the test says so".to_owned() });
        }
        let Op::Extension(extension) = op else { return Err(Support::unknown(op).refusal(op)) };
        if extension.downcast_ref::<Moody>().is_some() {
            return Ok(Value::Bytes(Bytes::from_vec(vec![1])));
        }
        if let Some(Echo(session)) = extension.downcast_ref::<Echo>() {
            return self.sessions.get_mut(session).map(|_| Value::Object(session.clone()));
        }
        if let Some(open) = extension.downcast_ref::<OpenSession>() {
            return self.open_session(open, op).map(Value::Object);
        }
        let Some(stamp) = extension.downcast_ref::<Stamp>() else { return Err(Support::unknown(op).refusal(op)) };
        let key = &self.sessions.get_mut(&stamp.session)?.key;
        let stamped = stamp.message.as_slice()?.iter().zip(key.iter().cycle()).map(|(byte, key)| byte ^ key);
        Ok(Value::Bytes(Bytes::from_vec(stamped.collect())))
    }

    fn open_session(&mut self, open: &OpenSession, op: &Op) -> Result<Object> {
        let device = self.info.id;
        std::thread::sleep(Duration::from_millis(self.office.session_ms.load(Ordering::Relaxed)));
        if self.office.refuse_sessions.load(Ordering::Relaxed) {
            return Err(Error::DeviceFault { device, reason: "no more sessions".to_owned() });
        }
        match self.next_break() {
            Some(Break::Panic) => std::panic::resume_unwind(Box::new("a session breaks the engine")),
            Some(Break::Lose) => {
                self.lost = true;
                return Err(Error::DeviceLost { device, reason: "a session loses the device".to_owned() });
            }
            Some(Break::Block(ms)) => std::thread::sleep(Duration::from_millis(ms)),
            Some(Break::Forget) => self.forgotten += 1,
            None => {}
        }
        self.office.sessions.fetch_add(1, Ordering::Relaxed);
        self.office.made.fetch_add(1, Ordering::Relaxed);
        let key = zeroize::Zeroizing::new(open.key.as_slice()?.to_vec());
        let session = Session { key, office: Arc::clone(&self.office) };
        self.sessions.insert("session", session, open.with_recipe.then_some(op))
    }

    fn next_break(&self) -> Option<Break> {
        let mut breaks = self.office.sessions_break.lock().unwrap();
        let (kind, left) = breaks.take()?;
        *breaks = (left > 1).then_some((kind, left - 1));
        Some(kind)
    }

    /// Sends as many numbers, or sessions, as the sinks take.
    fn count_on(&mut self) {
        let mut going_on = Vec::new();
        for (item, mut next) in std::mem::take(&mut self.counting) {
            let Op::Extension(extension) = &item.op else { continue };
            let Some(Count { up_to, sink, key }) = extension.downcast_ref::<Count>() else { continue };
            while next < *up_to && !sink.is_closed() {
                let value = match key {
                    None => Value::Bytes(Bytes::from_vec(vec![next])),
                    Some(key) => {
                        let open = OpenSession { key: key.clone(), with_recipe: true };
                        let op = open.clone().into_op().unwrap();
                        Value::Object(self.open_session(&open, &op).unwrap())
                    }
                };
                if sink.try_send(value).is_err() {
                    break;
                }
                next += 1;
            }
            if next == *up_to || sink.is_closed() {
                self.finished.push(FinishedOp::alone(item, Ok(Value::Bytes(Bytes::from_vec(vec![next])))));
            } else {
                going_on.push((item, next));
            }
        }
        self.counting = going_on;
    }
}

impl Engine for Desk {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn submit(&mut self, batch: &mut Vec<Item>) {
        self.sessions.collect();
        for item in batch.drain(..) {
            match &item.op {
                Op::Extension(op) if op.downcast_ref::<Count>().is_some() => self.counting.push((item, 0)),
                op => {
                    let (result, before) = (self.run(op), self.forgotten);
                    if before == self.forgotten && before == 0 {
                        self.finished.push(FinishedOp::alone(item, result));
                    }
                }
            }
        }
    }

    fn poll(&mut self, finished: &mut Vec<FinishedOp>, wait_max: Duration) -> usize {
        self.sessions.collect();
        self.count_on();
        if self.finished.is_empty() && !self.counting.is_empty() {
            std::thread::sleep(wait_max.min(Duration::from_millis(1)));
            (0..self.office.poll_naps.load(Ordering::Relaxed))
                .for_each(|_| std::thread::sleep(Duration::from_millis(1)));
        }
        finished.append(&mut self.finished);
        self.counting.len() + self.forgotten
    }

    fn memory(&mut self) -> MemoryStats {
        MemoryStats::default()
    }

    fn health(&mut self) -> Health {
        self.sessions.collect();
        Health::default()
    }
}
