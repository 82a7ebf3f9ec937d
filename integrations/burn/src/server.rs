//! Sockets, sessions and their bounds.
//!
//! 1. A thread accepts; each session has a thread and a socket of its own, and answers messages one after the other.
//! 2. A client has [`HANDSHAKE_MAX`] to say who it is, however it cuts what it says. Beyond [`Limits::sessions_max`] a connection is closed at once.
//! 3. Whatever a session does wrong ends it, a panic included, and nothing but it; why is kept ([`Serving::endings`]).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use burn_std::{BoolStore, DeviceSettings, FloatDType, IntDType};
use panoply_core::Report;
use panoply_runtime::{RunOptions, Runtime};
use tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tungstenite::protocol::WebSocketConfig;
use tungstenite::{Message, WebSocket};

use crate::error::Error;
use crate::session::Session;
use crate::timed::Timed;
use crate::wire::{
    self, PROTOCOL_VERSION, RemoteMessage, SessionId, SessionInfo, SessionInit, SessionRefusal, TaskResponse,
    TaskResponseContent,
};

/// How long a client may take to say who it is, and how long one message to it may take.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
const SEND_MAX: Duration = Duration::from_secs(60);
/// Bytes of a first message: a credential and a few numbers.
const HANDSHAKE_BYTES_MAX: usize = 64 * 1024;
/// Endings of sessions that are kept; of more, the first go.
const ENDINGS_MAX: usize = 64;
/// Messages come as deep as they are nested, which the decoder bounds, not the stack.
const STACK_BYTES: usize = 8 << 20;

/// What a client may claim.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Clients at a time.
    pub sessions_max: usize,
    /// Bytes of a session's tensors, those that its recording will leave included.
    pub memory_bytes_max: u64,
    /// Bytes of one message. A tensor comes as one, and is copied out of it.
    pub message_bytes_max: usize,
    /// Operations that are recorded before they are run, whether or not anybody reads something.
    pub ops_max: usize,
    /// Graphs that a session keeps.
    pub graphs_max: usize,
    /// How long a client may say nothing.
    pub idle_max: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            sessions_max: 16,
            memory_bytes_max: 4 << 30,
            message_bytes_max: 256 << 20,
            ops_max: 8_192,
            graphs_max: 64,
            idle_max: Duration::from_secs(3600),
        }
    }
}

/// Serves Burn programs on a runtime.
pub struct Server {
    runtime: Arc<Runtime>,
    options: RunOptions,
    limits: Limits,
    token: Option<Vec<u8>>,
}

impl Server {
    /// On wherever the runtime sends graphs.
    pub fn new(runtime: impl Into<Arc<Runtime>>) -> Server {
        Server { runtime: runtime.into(), options: RunOptions::default(), limits: Limits::default(), token: None }
    }

    /// As these wishes say, for every graph: a device, a deadline, what to do when one fails.
    pub fn options(mut self, options: RunOptions) -> Server {
        self.options = options;
        self
    }

    /// Other bounds.
    pub fn limits(mut self, limits: Limits) -> Server {
        self.limits = limits;
        self
    }

    /// Serves only clients that present this token (`RemoteHost::with_credential`). It travels as it is: it keeps strays out, not somebody
    /// who reads the traffic.
    pub fn token(mut self, token: impl Into<Vec<u8>>) -> Server {
        self.token = Some(token.into());
        self
    }

    /// Begins to serve on a bound socket.
    pub fn spawn(self, listener: TcpListener) -> io::Result<Serving> {
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            server: self,
            tally: Arc::default(),
            sockets: Mutex::default(),
            endings: Mutex::default(),
            is_ending: AtomicBool::new(false),
        });
        let own = Arc::clone(&shared);
        let accepting =
            std::thread::Builder::new().name("panoply-burn".to_owned()).spawn(move || own.accept(&listener))?;
        Ok(Serving { address, shared, accepting: Some(accepting) })
    }

    /// Serves on a bound socket until the process ends.
    pub fn serve(self, listener: TcpListener) -> io::Result<()> {
        let mut serving = self.spawn(listener)?;
        match serving.accepting.take().map(JoinHandle::join) {
            Some(Err(_)) => Err(io::Error::other("the thread that accepts clients panicked")),
            _ => Ok(()),
        }
    }
}

/// A server at work. Dropping it ends every session.
pub struct Serving {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

impl Serving {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What was done so far, by all sessions.
    pub fn counters(&self) -> Counters {
        self.shared.tally.counters()
    }

    /// Why the last sessions ended that did not end by the client's will.
    pub fn endings(&self) -> Vec<String> {
        locked(&self.shared.endings).iter().cloned().collect()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.shared.is_ending.store(true, Ordering::SeqCst);
        // Whoever waits for clients is woken by one.
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
        let end = || locked(&self.shared.sockets).values().for_each(|socket| drop(socket.shutdown(Shutdown::Both)));
        end();
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
        // A client that was being taken on meanwhile.
        end();
    }
}

/// What a server did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Sessions that began.
    pub sessions: u64,
    /// Sessions that a panic ended.
    pub panics: u64,
    /// Operations that were taken on.
    pub ops: u64,
    /// Operations that the host ran: random numbers.
    pub host_ops: u64,
    /// Graphs that ran.
    pub graphs: u64,
    /// Graphs that had to be made first.
    pub graphs_made: u64,
    /// Graphs that ran elsewhere than they were sent.
    pub fallbacks: u64,
    /// Graphs by the device that ran them.
    pub devices: BTreeMap<String, u64>,
}

/// The counters, as sessions count.
#[derive(Default)]
pub(crate) struct Tally {
    sessions: AtomicU64,
    panics: AtomicU64,
    ops: AtomicU64,
    host_ops: AtomicU64,
    graphs: AtomicU64,
    graphs_made: AtomicU64,
    fallbacks: AtomicU64,
    devices: Mutex<BTreeMap<String, u64>>,
}

impl Tally {
    pub(crate) fn op(&self) {
        self.ops.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn host_op(&self) {
        self.host_ops.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn ran(&self, report: &Report, is_new: bool) {
        self.graphs.fetch_add(1, Ordering::Relaxed);
        self.graphs_made.fetch_add(u64::from(is_new), Ordering::Relaxed);
        self.fallbacks.fetch_add(u64::from(report.fallback.is_some()), Ordering::Relaxed);
        *locked(&self.devices).entry(report.device.to_string()).or_default() += 1;
    }

    fn counters(&self) -> Counters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counters {
            sessions: read(&self.sessions),
            panics: read(&self.panics),
            ops: read(&self.ops),
            host_ops: read(&self.host_ops),
            graphs: read(&self.graphs),
            graphs_made: read(&self.graphs_made),
            fallbacks: read(&self.fallbacks),
            devices: locked(&self.devices).clone(),
        }
    }
}

struct Shared {
    server: Server,
    tally: Arc<Tally>,
    sockets: Mutex<HashMap<u64, TcpStream>>,
    endings: Mutex<VecDeque<String>>,
    is_ending: AtomicBool,
}

impl Shared {
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for number in 0.. {
            let accepted = listener.accept();
            if self.is_ending.load(Ordering::SeqCst) {
                return;
            }
            let started = accepted.and_then(|(stream, peer)| self.start(number, stream, peer));
            if let Err(error) = started {
                self.ended(format!("a client could not be taken on: {error}"));
                // Where there are no more sockets, the next attempt fails at once, too.
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }

    fn start(self: &Arc<Self>, number: u64, stream: TcpStream, peer: SocketAddr) -> io::Result<()> {
        let limit = self.server.limits.sessions_max;
        let mut sockets = locked(&self.sockets);
        if sockets.len() >= limit {
            drop(sockets);
            self.ended(format!("{peer}: there are {limit} sessions already"));
            return Ok(());
        }
        sockets.insert(number, stream.try_clone()?);
        drop(sockets);
        let own = Arc::clone(self);
        let thread = std::thread::Builder::new().name(format!("panoply-burn-{number}")).stack_size(STACK_BYTES);
        let started = thread.spawn(move || {
            match catch_unwind(AssertUnwindSafe(|| own.session(stream))) {
                Ok(Ok(())) => {}
                Ok(Err(error)) => own.ended(format!("{peer}: {error}")),
                Err(_) => {
                    own.tally.panics.fetch_add(1, Ordering::Relaxed);
                    own.ended(format!("{peer}: the session panicked"));
                }
            }
            locked(&own.sockets).remove(&number);
        });
        if let Err(error) = started {
            locked(&self.sockets).remove(&number);
            return Err(error);
        }
        Ok(())
    }

    /// One session from its first byte to its last.
    fn session(&self, stream: TcpStream) -> Result<(), Error> {
        let limits = &self.server.limits;
        stream.set_nodelay(true).map_err(broken)?;
        let stream = Timed::new(stream, HANDSHAKE_MAX);
        let config = WebSocketConfig::default()
            .write_buffer_size(0)
            .max_message_size(Some(HANDSHAKE_BYTES_MAX))
            .max_frame_size(Some(HANDSHAKE_BYTES_MAX));
        let mut socket = tungstenite::accept_hdr_with_config(stream, only_sessions, Some(config))
            .map_err(|error| broken(error.to_string()))?;
        let Some(first) = next(&mut socket, None)? else { return Ok(()) };
        let id = match self.admit(&first) {
            Ok(id) => id,
            Err((refusal, reason)) => {
                let content = TaskResponseContent::InitRefused(refusal);
                send(&mut socket, &TaskResponse { content, id: 0 })?;
                let _ = socket.close(None);
                return Err(Error::Protocol(reason));
            }
        };
        self.tally.sessions.fetch_add(1, Ordering::Relaxed);
        let settings = DeviceSettings::with_dtypes(FloatDType::F32, IntDType::I32, BoolStore::Native);
        let info = SessionInfo { version: PROTOCOL_VERSION, settings, device_count: 1, peer_id: None };
        send(&mut socket, &TaskResponse { content: TaskResponseContent::Init(info), id: 0 })?;
        socket.set_config(|config| {
            config.max_message_size = Some(limits.message_bytes_max);
            config.max_frame_size = Some(limits.message_bytes_max);
        });
        let server = &self.server;
        let runtime = Arc::clone(&server.runtime);
        let session = Session::new(runtime, server.options.clone(), limits.clone(), Arc::clone(&self.tally));
        converse(&mut socket, session, id, limits.idle_max)
    }

    /// Whether a client is served, by its first message.
    fn admit(&self, message: &[u8]) -> Result<SessionId, (SessionRefusal, String)> {
        let unreadable =
            |reason: String| (SessionRefusal::IncompatibleProtocol { server_version: PROTOCOL_VERSION }, reason);
        let messages: Vec<RemoteMessage> =
            wire::read(message).map_err(|reason| unreadable(format!("the first message: {reason}")))?;
        let [RemoteMessage::Init(SessionInit { version, session_id, device_index, authorization })] =
            messages.as_slice()
        else {
            return Err(unreadable("the first message is no greeting".to_owned()));
        };
        if *version != PROTOCOL_VERSION {
            return Err(unreadable(format!("the client speaks version {version}, not {PROTOCOL_VERSION}")));
        }
        if !self.server.token.as_ref().is_none_or(|token| is_same(token, authorization)) {
            return Err((SessionRefusal::Unauthorized, "the client has another token".to_owned()));
        }
        if *device_index != 0 {
            return Err((
                SessionRefusal::NoSuchDevice { device_count: 1 },
                format!("there is no device {device_index}"),
            ));
        }
        Ok(*session_id)
    }

    fn ended(&self, why: String) {
        let mut endings = locked(&self.endings);
        if endings.len() == ENDINGS_MAX {
            endings.pop_front();
        }
        endings.push_back(why);
    }
}

/// Answers a client's messages until it has no more.
fn converse(
    socket: &mut WebSocket<Timed>,
    mut session: Session,
    id: SessionId,
    idle_max: Duration,
) -> Result<(), Error> {
    while let Some(message) = next(socket, Some(idle_max))? {
        let messages: Vec<RemoteMessage> =
            wire::read(&message).map_err(|reason| Error::Protocol(format!("a message: {reason}")))?;
        drop(message);
        for message in messages {
            match message {
                RemoteMessage::Task(task) => {
                    if let Some(answer) = session.task(task)? {
                        send(socket, &answer)?;
                    }
                }
                RemoteMessage::Close(own) if own == id => {
                    let _ = socket.close(None);
                    return Ok(());
                }
                RemoteMessage::Close(_) => return Err(Error::Protocol("the end of another session".to_owned())),
                RemoteMessage::Init(_) => return Err(Error::Protocol("a second greeting".to_owned())),
            }
        }
    }
    Ok(())
}

/// The next message with data in it; none where the client is gone. Each part of it, whatever it is, may take so long; `None`: what is left of the time
/// before.
fn next(socket: &mut WebSocket<Timed>, part_max: Option<Duration>) -> Result<Option<tungstenite::Bytes>, Error> {
    loop {
        if let Some(part_max) = part_max {
            socket.get_mut().within(part_max);
        }
        match socket.read() {
            Ok(Message::Binary(data)) => return Ok(Some(data)),
            Ok(Message::Close(_)) => return Ok(None),
            Ok(_) => {}
            Err(tungstenite::Error::ConnectionClosed | tungstenite::Error::AlreadyClosed) => return Ok(None),
            Err(error) => return Err(broken(error.to_string())),
        }
    }
}

fn send(socket: &mut WebSocket<Timed>, answer: &TaskResponse) -> Result<(), Error> {
    let bytes = rmp_serde::to_vec(answer).map_err(|error| Error::Protocol(format!("an answer: {error}")))?;
    socket.get_mut().within(SEND_MAX);
    socket.send(Message::Binary(bytes.into())).map_err(|error| broken(error.to_string()))
}

/// There is nothing here but sessions.
#[allow(clippy::result_large_err)] // The type is the library's.
fn only_sessions(request: &Request, response: Response) -> Result<Response, ErrorResponse> {
    if request.uri().path() == "/session" {
        return Ok(response);
    }
    let mut refusal = ErrorResponse::new(None);
    *refusal.status_mut() = tungstenite::http::StatusCode::NOT_FOUND;
    Err(refusal)
}

/// Compares without telling by its time how much is the same.
fn is_same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

fn broken(error: impl ToString) -> Error {
    Error::Protocol(format!("the connection: {}", error.to_string()))
}

fn locked<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
