//! Cards behind the XDMA driver: `/dev/xdma0_user` maps the registers, `_h2c_0` accepts packets,
//! `_c2h_0` returns answers, and `_events_0` reports interrupts.
//!
//! Reading and writing the streams blocks, so each stream has a thread with a bounded queue. A read
//! starts only after the card has reported the beginning of its answer, so a card that stops
//! answering leaves no thread blocked in a read. A card that stops in the middle of an answer
//! blocks one thread until the XDMA driver's own timeout.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

use memmap2::{MmapOptions, MmapRaw};
use panoply_core::PciAddress;

use super::{Card, CardError, Completion, RING_PACKETS};
use crate::map::{ACKNOWLEDGED, ANSWERS, CONTROL, CONTROL_INTERRUPT_BIT, CONTROL_RESET_BIT, Register};

/// Size of the register map.
const MAP_BYTES: usize = 4096;
/// Number of register polls before the driver starts to sleep between polls.
const SPINS: u32 = 200;
/// The sleep between two polls, and the longest single wait for an interrupt.
const SLEEP: Duration = Duration::from_micros(50);
const INTERRUPT_WAIT_MAX: Duration = Duration::from_millis(10);

/// Numbers of the cards with nodes in this folder.
pub fn numbers(folder: &Path) -> Vec<u32> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let number = |name: &str| name.strip_prefix("xdma")?.strip_suffix("_user")?.parse().ok();
    let mut numbers: Vec<u32> = entries.filter_map(|entry| number(&entry.file_name().to_string_lossy())).collect();
    numbers.sort_unstable();
    numbers
}

/// The address of card `number` on the PCI bus, by a folder laid out like `/sys`.
pub fn address(system: &Path, number: u32) -> Option<PciAddress> {
    let device = std::fs::read_link(system.join(format!("class/xdma/xdma{number}_user/device"))).ok()?;
    device.file_name()?.to_str()?.parse().ok()
}

/// The result of a stream's thread.
enum StreamResult {
    /// A packet could not be written.
    NotWritten(CardError),
    /// An answer was read, or reading it failed.
    Read(Result<Vec<u8>, CardError>),
}

/// One card behind XDMA.
pub struct XdmaCard {
    registers: MmapRaw,
    events: Option<File>,
    packets: SyncSender<Vec<u8>>,
    reads: SyncSender<usize>,
    moved: Receiver<StreamResult>,
    /// Expected size of each answer in flight.
    ring: VecDeque<usize>,
    /// Whether the oldest answer is being read.
    is_reading: bool,
    /// Number of answers whose reading has started since the card's reset.
    begun: u32,
}

impl XdmaCard {
    /// Opens card `number` with its nodes in `folder`.
    pub fn open(folder: &Path, number: u32, completion: Completion) -> Result<XdmaCard, CardError> {
        let node = |name: &str| folder.join(format!("xdma{number}_{name}"));
        let registers = mapped(&node("user"))?;
        let (to_card, from_card) = (opened(&node("h2c_0"), true)?, opened(&node("c2h_0"), false)?);
        let events = match completion {
            Completion::Interrupt => opened(&node("events_0"), false).ok(),
            Completion::Polling => None,
        };
        let (tell, moved) = channel();
        let packets = spawned("xdma-to-card", writer(to_card, tell.clone()))?;
        let reads = spawned("xdma-from-card", reader(from_card, tell))?;
        let ring = VecDeque::new();
        Ok(XdmaCard { registers, events, packets, reads, moved, ring, is_reading: false, begun: 0 })
    }

    fn place(&self, register: Register) -> Result<*mut u32, CardError> {
        let offset = register.offset as usize;
        let fits = offset.is_multiple_of(4) && offset + 4 <= MAP_BYTES;
        // SAFETY: the offset lies within the mapping of `MAP_BYTES` bytes.
        fits.then(|| unsafe { self.registers.as_mut_ptr().add(offset).cast() })
            .ok_or_else(|| CardError::system(register.name, "it lies outside the map"))
    }

    /// Starts to read the oldest answer if the card has begun it. Returns whether it did.
    fn begin_read(&mut self) -> Result<bool, CardError> {
        let answers = self.read(ANSWERS)?;
        if answers == u32::MAX {
            return Err(CardError::Gone);
        }
        let has_begun = answers != self.begun;
        let Some(bytes) = self.ring.front().copied().filter(|_| has_begun) else { return Ok(false) };
        self.begun = self.begun.wrapping_add(1);
        self.is_reading = true;
        self.write(ACKNOWLEDGED, self.begun)?;
        self.reads
            .try_send(bytes)
            .map_err(|_| CardError::system("the stream from the card", "its thread has ended"))?;
        Ok(true)
    }

    /// Waits at most `wait_max` for the card to begin an answer.
    fn wait(&self, wait_max: Duration, spins: &mut u32) {
        *spins += 1;
        match &self.events {
            Some(events) => wait_for_event(events, wait_max.min(INTERRUPT_WAIT_MAX)),
            None if *spins > SPINS => std::thread::sleep(SLEEP.min(wait_max)),
            None => std::thread::yield_now(),
        }
    }

    fn took(&mut self, moved: StreamResult) -> Result<Vec<u8>, CardError> {
        match moved {
            StreamResult::NotWritten(error) => Err(error),
            StreamResult::Read(answer) => {
                self.is_reading = false;
                self.ring.pop_front();
                answer
            }
        }
    }
}

impl Card for XdmaCard {
    fn read(&mut self, register: Register) -> Result<u32, CardError> {
        // SAFETY: the register is aligned and mapped as long as `self` lives. The access is a
        // single volatile read.
        Ok(unsafe { self.place(register)?.read_volatile() })
    }

    fn write(&mut self, register: Register, mut value: u32) -> Result<(), CardError> {
        if register == CONTROL && value & (1 << CONTROL_RESET_BIT) != 0 {
            self.begun = 0;
        } else if register == CONTROL && self.events.is_some() {
            value |= 1 << CONTROL_INTERRUPT_BIT;
        }
        // SAFETY: as above, and the mapping is writable.
        unsafe { self.place(register)?.write_volatile(value) };
        Ok(())
    }

    fn start(&mut self, packet: Vec<u8>, answer_bytes: usize) -> Result<(), CardError> {
        if self.ring.len() >= RING_PACKETS {
            return Err(CardError::RingFull);
        }
        // The queue has as many slots as the ring. It is full only if its thread is blocked or has
        // ended.
        self.packets.try_send(packet).map_err(|_| CardError::RingFull)?;
        self.ring.push_back(answer_bytes);
        Ok(())
    }

    fn finish(&mut self, wait_max: Duration) -> Result<Option<Vec<u8>>, CardError> {
        let (began, mut spins) = (Instant::now(), 0);
        while !self.ring.is_empty() {
            let left = wait_max.saturating_sub(began.elapsed());
            let moved = match self.is_reading {
                true => self.moved.recv_timeout(left).map_err(|error| error == RecvTimeoutError::Disconnected),
                false => self.moved.try_recv().map_err(|_| false),
            };
            match moved {
                Ok(moved) => return self.took(moved).map(Some),
                Err(true) => return Err(CardError::system("the card's streams", "their threads have ended")),
                Err(false) if !self.is_reading && self.begin_read()? => continue,
                Err(false) if left.is_zero() => return Ok(None),
                Err(false) if !self.is_reading => self.wait(left, &mut spins),
                Err(false) => {}
            }
        }
        Ok(None)
    }

    fn load(&mut self, _bitstream: &Path) -> Result<(), CardError> {
        let reason = "XDMA loads none: write it to the board's flash or over JTAG, and rescan the bus (docs/fpga.md)";
        Err(CardError::Bitstream { reason: reason.to_owned() })
    }
}

fn opened(node: &Path, writes: bool) -> Result<File, CardError> {
    let file = OpenOptions::new().read(!writes).write(writes).open(node);
    file.map_err(|error| CardError::system(node.display().to_string(), error))
}

fn mapped(node: &Path) -> Result<MmapRaw, CardError> {
    let failed = |error: std::io::Error| CardError::system(node.display().to_string(), error);
    let file = OpenOptions::new().read(true).write(true).open(node).map_err(failed)?;
    let data = file.metadata().map_err(failed)?;
    // A device node has no length. A regular file that is too short would end the process at its
    // first access.
    if data.is_file() && data.len() < MAP_BYTES as u64 {
        return Err(failed(ErrorKind::UnexpectedEof.into()));
    }
    MmapOptions::new().len(MAP_BYTES).map_raw(&file).map_err(failed)
}

/// Starts a thread that processes a queue with as many slots as the ring.
fn spawned<T: Send + 'static>(
    name: &str,
    mut each: impl FnMut(T) -> bool + Send + 'static,
) -> Result<SyncSender<T>, CardError> {
    let (sender, receiver) = sync_channel(RING_PACKETS);
    let run = move || while receiver.recv().is_ok_and(&mut each) {};
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    thread.map(|_| sender).map_err(|error| CardError::system(name, error))
}

fn writer(mut stream: File, tell: Sender<StreamResult>) -> impl FnMut(Vec<u8>) -> bool {
    move |packet| match stream.write_all(&packet) {
        Ok(()) => true,
        Err(error) => {
            let _ = tell.send(StreamResult::NotWritten(CardError::system("the stream to the card", error)));
            false
        }
    }
}

fn reader(mut stream: File, tell: Sender<StreamResult>) -> impl FnMut(usize) -> bool {
    move |bytes| tell.send(StreamResult::Read(read_whole(&mut stream, bytes))).is_ok()
}

/// Reads an answer of `bytes` bytes. The driver returns it in one piece or in several, and zero
/// bytes at the end of the stream.
fn read_whole(stream: &mut File, bytes: usize) -> Result<Vec<u8>, CardError> {
    let (mut answer, mut got) = (vec![0; bytes], 0);
    while got < bytes {
        match stream.read(&mut answer[got..]) {
            Ok(0) => return Err(CardError::Short { expected: bytes, got }),
            Ok(more) => got += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(CardError::system("the stream from the card", error)),
        }
    }
    Ok(answer)
}

/// Waits at most `wait_max` for an interrupt, and reads its count.
#[cfg(unix)]
fn wait_for_event(events: &File, wait_max: Duration) {
    use std::os::fd::AsRawFd;
    let milliseconds = i32::try_from(wait_max.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
    let mut poll = libc::pollfd { fd: events.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the call gets one entry, which outlives it, with an open file.
    let ready = unsafe { libc::poll(&mut poll, 1, milliseconds) };
    if ready == 1 && poll.revents & libc::POLLIN != 0 {
        let mut file = events;
        let _ = file.read(&mut [0; 4]);
    } else if ready == 1 {
        // The node is broken. The register still reports answers.
        std::thread::sleep(SLEEP.min(wait_max));
    }
}

#[cfg(not(unix))]
fn wait_for_event(_events: &File, wait_max: Duration) {
    std::thread::sleep(SLEEP.min(wait_max));
}

/// The folder of the device nodes on a real machine.
pub fn device_folder() -> PathBuf {
    PathBuf::from("/dev")
}
