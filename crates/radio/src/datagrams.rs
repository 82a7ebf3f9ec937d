//! Samples received and sent as UDP datagrams, as networked radios use them.
//!
//! 1. One thread takes datagrams from the socket and puts them into a queue of `depth` places; it
//!    never waits for the reader.
//! 2. If the queue is full, the datagram is dropped and counted ([`Losses::overruns`]). A datagram
//!    without a whole number of samples is counted as malformed.
//! 3. Datagrams that the system dropped before that thread received them are counted if the system
//!    reports them ([`Losses::dropped_by_system`]).
//! 4. The iterator ends after a silence, or when [`Datagrams::stopper`] ends it; dropping it ends
//!    the thread.
//! 5. A fork of the process has no such thread: there the iterator gives one error and ends, and is
//!    dropped at once.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use num_complex::Complex32;
use panoply_core::op::signal::SampleFormat;
use panoply_core::process::Process;
use panoply_core::{Error, Result, Tensor};

/// Maximal number of waiting datagrams.
pub const WAITING_MAX: usize = 1 << 16;
/// Maximal length of a datagram in bytes.
const DATAGRAM_BYTES_MAX: usize = 1 << 16;
/// Interval at which the thread checks whether it shall end.
const GLANCE: Duration = Duration::from_millis(20);
/// Bytes of a sent datagram: it fits an Ethernet frame.
const SENT_BYTES: usize = 1440;

/// Counts of received and lost datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Number of received datagrams.
    pub received: u64,
    /// Number of those that were dropped because the queue was full.
    pub overruns: u64,
    /// Number of those that were dropped because they had no whole number of samples.
    pub malformed: u64,
    /// Number dropped by the system before they were received; `None` if the system does not report
    /// it.
    pub dropped_by_system: Option<u64>,
}

#[derive(Default)]
struct DatagramState {
    received: AtomicU64,
    overruns: AtomicU64,
    malformed: AtomicU64,
    stop: AtomicBool,
}

/// Ends a source of datagrams from another thread.
#[derive(Clone)]
pub struct Stopper(Arc<DatagramState>);

impl Stopper {
    /// Stops receiving; waiting datagrams are still read.
    pub fn stop(&self) {
        self.0.stop.store(true, Ordering::Release);
    }
}

/// Complex samples of one format from a socket: an iterator of tensors, one for each datagram.
pub struct Datagrams {
    shared: Arc<DatagramState>,
    /// Not touched in a fork, where the thread may hold its locks forever. Taken once the fork was
    /// reported.
    waiting: Option<Receiver<Vec<u8>>>,
    thread: Option<JoinHandle<()>>,
    process: Process,
    address: SocketAddr,
    format: SampleFormat,
    silence_max: Duration,
}

impl Datagrams {
    /// Receives at this address, with a queue of `depth` unread datagrams. The iterator ends after
    /// the given silence.
    pub fn receive(
        at: impl ToSocketAddrs,
        format: SampleFormat,
        depth: usize,
        silence_max: Duration,
    ) -> io::Result<Datagrams> {
        if !(1..=WAITING_MAX).contains(&depth) {
            let text = format!("datagrams that may wait: expected 1 to {WAITING_MAX}, got {depth}");
            return Err(io::Error::new(ErrorKind::InvalidInput, text));
        }
        let socket = UdpSocket::bind(at)?;
        socket.set_read_timeout(Some(GLANCE))?;
        let (address, shared) = (socket.local_addr()?, Arc::new(DatagramState::default()));
        let (sender, waiting) = sync_channel(depth);
        let (own, frame) = (Arc::clone(&shared), 2 * format.size_bytes());
        let thread = std::thread::Builder::new()
            .name("panoply-datagrams".to_owned())
            .spawn(move || receive(&socket, frame, &own, &sender))?;
        let (waiting, thread, process) = (Some(waiting), Some(thread), Process::current());
        Ok(Datagrams { shared, waiting, thread, process, address, format, silence_max })
    }

    /// The address that it receives at.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The counts so far.
    pub fn losses(&self) -> Losses {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Losses {
            received: count(&self.shared.received),
            overruns: count(&self.shared.overruns),
            malformed: count(&self.shared.malformed),
            dropped_by_system: dropped_by_system(self.address),
        }
    }

    /// A handle that ends it from another thread.
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.shared))
    }

    fn samples(&self, bytes: &[u8]) -> Result<Tensor> {
        let mut numbers = vec![0.0; bytes.len() / self.format.size_bytes()];
        self.format.read(bytes, &mut numbers);
        let pairs = numbers.as_chunks::<2>().0.iter().map(|[re, im]| Complex32::new(*re, *im));
        Tensor::from_vec(pairs.collect::<Vec<_>>(), [numbers.len() / 2])
    }
}

impl Iterator for Datagrams {
    type Item = Result<Tensor>;

    fn next(&mut self) -> Option<Result<Tensor>> {
        if !self.process.is_current() {
            // Only once: later calls report the end.
            std::mem::forget(self.waiting.take()?);
            let (made_in, called_in) = (self.process.id(), std::process::id());
            return Some(Err(Error::Forked { what: "the source of datagrams", made_in, called_in }));
        }
        let begin = Instant::now();
        loop {
            match self.waiting.as_ref()?.recv_timeout(GLANCE) {
                Ok(bytes) => return Some(self.samples(&bytes)),
                Err(RecvTimeoutError::Timeout) if begin.elapsed() < self.silence_max => (),
                Err(_) => return None,
            }
        }
    }
}

impl Drop for Datagrams {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // The thread and its shared data belong to the parent: they stay in memory.
            std::mem::forget((Arc::clone(&self.shared), self.waiting.take(), self.thread.take()));
            return;
        }
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // The thread does not panic, and an error could not be reported here.
        }
    }
}

fn receive(socket: &UdpSocket, frame: usize, shared: &DatagramState, sender: &SyncSender<Vec<u8>>) {
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    while !shared.stop.load(Ordering::Acquire) {
        // A timeout, or an error caused by another host, is no reason to end.
        let Ok(len) = socket.recv(&mut buffer) else { continue };
        shared.received.fetch_add(1, Ordering::Relaxed);
        if len == 0 || !len.is_multiple_of(frame) {
            shared.malformed.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        match sender.try_send(buffer[..len].to_vec()) {
            Ok(()) => (),
            Err(TrySendError::Full(_)) => drop(shared.overruns.fetch_add(1, Ordering::Relaxed)),
            Err(TrySendError::Disconnected(_)) => return,
        }
    }
}

/// The system's count of dropped datagrams for the socket of this address.
fn dropped_by_system(address: SocketAddr) -> Option<u64> {
    let table = std::fs::read_to_string(if address.is_ipv4() { "/proc/net/udp" } else { "/proc/net/udp6" }).ok()?;
    let port = format!(":{:04X}", address.port());
    let is_own = |line: &&str| line.split_whitespace().nth(1).is_some_and(|local| local.ends_with(&port));
    table.lines().find(is_own)?.split_whitespace().last()?.parse().ok()
}

/// A sink that sends complex samples as datagrams.
pub struct DatagramSink {
    socket: UdpSocket,
    format: SampleFormat,
}

impl DatagramSink {
    /// A sink that sends to this address.
    pub fn new(to: impl ToSocketAddrs, format: SampleFormat) -> io::Result<DatagramSink> {
        let to = to.to_socket_addrs()?.next().ok_or_else(|| io::Error::from(ErrorKind::AddrNotAvailable))?;
        let socket = UdpSocket::bind(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
        socket.connect(to)?;
        Ok(DatagramSink { socket, format })
    }

    /// Sends c64 samples, in as many datagrams as they need.
    pub fn send(&self, samples: &Tensor) -> Result<()> {
        let samples = samples.contiguous()?;
        let each = SENT_BYTES / (2 * self.format.size_bytes());
        for part in samples.as_slice::<Complex32>()?.chunks(each) {
            let mut bytes = Vec::with_capacity(SENT_BYTES);
            self.format.write(bytemuck::cast_slice(part), &mut bytes);
            let sent = self.socket.send(&bytes);
            sent.map_err(|error| Error::invalid("datagram", "a network that takes it", error))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(depth: usize) -> Datagrams {
        Datagrams::receive("127.0.0.1:0", SampleFormat::I16, depth, Duration::from_millis(200)).unwrap()
    }

    #[test]
    fn what_is_sent_arrives() {
        let mut source = received(16);
        let sink = DatagramSink::new(source.address(), SampleFormat::I16).unwrap();
        let sent: Vec<Complex32> = (0..700).map(|at| Complex32::new(at as f32 / 1024.0, -0.5)).collect();
        sink.send(&Tensor::from_slice(&sent, [700]).unwrap()).unwrap();
        let mut got = Vec::new();
        while got.len() < 700 {
            got.extend_from_slice(source.next().unwrap().unwrap().as_slice::<Complex32>().unwrap());
        }
        assert_eq!(got, sent);
        source.stopper().stop();
        assert!(source.next().is_none());
        assert_eq!((source.losses().overruns, source.losses().malformed), (0, 0));
    }

    #[test]
    fn a_flood_is_counted_and_takes_no_memory() {
        let source = received(4);
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(source.address()).unwrap();
        let mut seen = Losses::default();
        for round in 0..200 {
            (0..50).for_each(|_| drop(socket.send(&[0; 64])));
            socket.send(&[0; 3]).unwrap();
            std::thread::sleep(Duration::from_millis(2));
            seen = source.losses();
            if round > 3 && seen.overruns > 0 && seen.malformed > 0 {
                break;
            }
        }
        assert!(seen.overruns > 0 && seen.malformed > 0, "{seen:?}");
        // The rest of the flood is received before the waiting datagrams are counted.
        std::thread::sleep(Duration::from_millis(500));
        let waiting = source.count() as u64;
        assert!(waiting <= 4, "{waiting}");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for depth in [0, WAITING_MAX + 1] {
            assert!(Datagrams::receive("127.0.0.1:0", SampleFormat::I8, depth, Duration::ZERO).is_err());
        }
        assert!(Datagrams::receive("203.0.113.1:1", SampleFormat::I8, 4, Duration::ZERO).is_err());
    }
}
