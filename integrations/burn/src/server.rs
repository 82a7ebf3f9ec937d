//! Sockets, sessions and their bounds.
//!
//! 1. One thread accepts clients. Each session has its own thread and socket, and answers messages
//!    one after the other.
//! 2. A client has [`HANDSHAKE_MAX`] to identify itself, even if it sends its greeting in many
//!    small pieces. Beyond [`Limits::sessions_max`] a connection is closed at once.
//! 3. Any error in a session, including a panic, ends that session only. The reason is kept
//!    ([`Serving::endings`]).

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
use crate::timed::TimedStream;
use crate::wire::{
    self, PROTOCOL_VERSION, RemoteMessage, SessionId, SessionInfo, SessionInit, SessionRefusal, TaskResponse,
    TaskResponseContent,
};

/// The longest time for a client's greeting, and for sending one message to a client.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
const SEND_MAX: Duration = Duration::from_secs(60);
/// The most bytes of the first message: a credential and a few numbers.
const HANDSHAKE_BYTES_MAX: usize = 64 * 1024;
/// The number of session endings that are kept; the oldest are dropped first.
const ENDINGS_MAX: usize = 64;
/// Nested messages are decoded recursively. The decoder bounds the depth, and this stack is large
/// enough for it.
const STACK_BYTES: usize = 8 << 20;

/// The most that a client may use.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The most clients at a time.
    pub sessions_max: usize,
    /// The most bytes of a session's tensors, including the pending results of its recording.
    pub memory_bytes_max: u64,
    /// The most bytes of one message. A tensor is sent as one message and copied out of it.
    pub message_bytes_max: usize,
    /// The most recorded operations before they are run, even if no tensor is read.
    pub ops_max: usize,
    /// The most graphs that a session keeps.
    pub graphs_max: usize,
    /// The longest time without a message from a client.
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
    /// Makes a server. The runtime chooses the device of each graph.
    pub fn new(runtime: impl Into<Arc<Runtime>>) -> Server {
        Server { runtime: runtime.into(), options: RunOptions::default(), limits: Limits::default(), token: None }
    }

    /// Sets the run options of every graph: a device, a deadline, the reaction to failures.
    pub fn options(mut self, options: RunOptions) -> Server {
        self.options = options;
        self
    }

    /// Sets the limits.
    pub fn limits(mut self, limits: Limits) -> Server {
        self.limits = limits;
        self
    }

    /// Serves only clients that present this token (`RemoteHost::with_credential`). The token is
    /// sent unencrypted: it keeps out stray clients, but not an attacker who reads the traffic.
    pub fn token(mut self, token: impl Into<Vec<u8>>) -> Server {
        self.token = Some(token.into());
        self
    }

    /// Starts to serve on a bound socket.
    pub fn spawn(self, listener: TcpListener) -> io::Result<Serving> {
        let address = listener.local_addr()?;
        let shared = Arc::new(ServerState {
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

/// A running server. Dropping it ends every session.
pub struct Serving {
    address: SocketAddr,
    shared: Arc<ServerState>,
    accepting: Option<JoinHandle<()>>,
}

impl Serving {
    /// Returns the address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the counters of all sessions so far.
    pub fn counters(&self) -> Counters {
        self.shared.tally.counters()
    }

    /// Returns the reasons of the last sessions that were not ended by their client.
    pub fn endings(&self) -> Vec<String> {
        locked(&self.shared.endings).iter().cloned().collect()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.shared.is_ending.store(true, Ordering::SeqCst);
        // Connects once, to wake the thread that waits for clients.
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
        let end = || locked(&self.shared.sockets).values().for_each(|socket| drop(socket.shutdown(Shutdown::Both)));
        end();
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
        // Ends a client that was accepted in the meantime.
        end();
    }
}

/// The work of a server so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Started sessions.
    pub sessions: u64,
    /// Sessions that ended in a panic.
    pub panics: u64,
    /// Received operations.
    pub ops: u64,
    /// Operations that the host ran: random numbers.
    pub host_ops: u64,
    /// Graphs that ran.
    pub graphs: u64,
    /// Graphs that had to be made before they ran.
    pub graphs_made: u64,
    /// Graphs that ran on another device than they were sent to.
    pub fallbacks: u64,
    /// The number of graphs by the device that ran them.
    pub devices: BTreeMap<String, u64>,
}

/// The counters while sessions update them.
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

struct ServerState {
    server: Server,
    tally: Arc<Tally>,
    sockets: Mutex<HashMap<u64, TcpStream>>,
    endings: Mutex<VecDeque<String>>,
    is_ending: AtomicBool,
}

impl ServerState {
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for number in 0.. {
            let accepted = listener.accept();
            if self.is_ending.load(Ordering::SeqCst) {
                return;
            }
            let started = accepted.and_then(|(stream, peer)| self.start(number, stream, peer));
            if let Err(error) = started {
                self.ended(format!("a client could not be taken on: {error}"));
                // If the process is out of sockets, the next attempt would fail at once as well.
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

    /// Runs one session from its first byte to its last.
    fn session(&self, stream: TcpStream) -> Result<(), Error> {
        let limits = &self.server.limits;
        stream.set_nodelay(true).map_err(broken)?;
        let stream = TimedStream::new(stream, HANDSHAKE_MAX);
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

    /// Decides from its first message whether a client is served.
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

/// Answers a client's messages until it closes the session.
fn converse(
    socket: &mut WebSocket<TimedStream>,
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

/// Returns the next message with data, or `None` if the client is gone. `part_max` limits the time
/// for each part of a message, of any kind. With `None`, the time that is left from before applies.
fn next(socket: &mut WebSocket<TimedStream>, part_max: Option<Duration>) -> Result<Option<tungstenite::Bytes>, Error> {
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

fn send(socket: &mut WebSocket<TimedStream>, answer: &TaskResponse) -> Result<(), Error> {
    let bytes = rmp_serde::to_vec(answer).map_err(|error| Error::Protocol(format!("an answer: {error}")))?;
    socket.get_mut().within(SEND_MAX);
    socket.send(Message::Binary(bytes.into())).map_err(|error| broken(error.to_string()))
}

/// Accepts the path `/session` only.
#[allow(clippy::result_large_err)] // The library defines the type.
fn only_sessions(request: &Request, response: Response) -> Result<Response, ErrorResponse> {
    if request.uri().path() == "/session" {
        return Ok(response);
    }
    let mut refusal = ErrorResponse::new(None);
    *refusal.status_mut() = tungstenite::http::StatusCode::NOT_FOUND;
    Err(refusal)
}

/// Compares in constant time, so that the duration does not show how many bytes are equal.
fn is_same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

fn broken(error: impl ToString) -> Error {
    Error::Protocol(format!("the connection: {}", error.to_string()))
}

fn locked<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
