//! Cards behind XRT. The bitstream (`.xclbin`) contains the kernel `panoply` with the registers,
//! and the data movers `panoply_in` and `panoply_out` between memory and its streams. Each mover
//! takes a buffer and a number of bytes.
//!
//! Each slot of the ring has a run and a buffer for both directions. Buffers are created on first
//! use and reused.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Card, CardError, Completion, RING_PACKETS};
use crate::map::Register;

pub mod calls;

use calls::{Buffer, Device, Kernel, Run, RunState, Xrt};

/// The sleep between two polls.
const SLEEP: Duration = Duration::from_micros(50);

/// One direction of a ring slot.
struct Lane {
    run: Run,
    buffer: Option<(usize, Buffer)>,
}

/// A packet in flight.
struct PacketInFlight {
    place: usize,
    answer_bytes: usize,
}

/// One card behind XRT. The order of the fields matters for dropping: runs and buffers before
/// kernels, and the device last.
pub struct XrtCard {
    lanes: Vec<(Lane, Lane)>,
    ring: VecDeque<PacketInFlight>,
    next_place: usize,
    kernels: Option<[Kernel; 3]>,
    device: Device,
    completion: Completion,
}

impl XrtCard {
    /// Opens a card by its number, and loads a bitstream if one is given.
    pub fn open(
        xrt: &Arc<Xrt>,
        number: u32,
        bitstream: Option<&Path>,
        completion: Completion,
    ) -> Result<XrtCard, CardError> {
        let device = Device::open(xrt, number)?;
        let (lanes, ring) = (Vec::new(), VecDeque::new());
        let mut card = XrtCard { lanes, ring, next_place: 0, kernels: None, device, completion };
        match bitstream {
            Some(bitstream) => card.load(bitstream)?,
            None => card.open_kernels()?,
        }
        Ok(card)
    }

    fn open_kernels(&mut self) -> Result<(), CardError> {
        let registers = self.device.kernel("panoply", true)?;
        let (to_card, from_card) =
            (self.device.kernel("panoply_in", false)?, self.device.kernel("panoply_out", false)?);
        for _ in 0..RING_PACKETS {
            let lane = |kernel: &Kernel| Ok::<_, CardError>(Lane { run: kernel.run()?, buffer: None });
            self.lanes.push((lane(&to_card)?, lane(&from_card)?));
        }
        self.kernels = Some([registers, to_card, from_card]);
        Ok(())
    }

    fn kernels(&self) -> Result<&[Kernel; 3], CardError> {
        self.kernels.as_ref().ok_or(CardError::Bitstream { reason: "the last one failed to load".to_owned() })
    }

    /// Starts one direction of a slot with a buffer of at least `bytes` bytes. With a packet the
    /// direction is to the card, and the buffer is filled first.
    fn move_bytes(&mut self, place: usize, bytes: usize, packet: Option<&[u8]>) -> Result<(), CardError> {
        let kernels = self.kernels.as_ref().ok_or(CardError::Gone)?;
        let (to_card, from_card) = self.lanes.get_mut(place).ok_or(CardError::RingFull)?;
        let (lane, kernel) = if packet.is_some() { (to_card, &kernels[1]) } else { (from_card, &kernels[2]) };
        if lane.buffer.as_ref().is_none_or(|(size, _)| *size < bytes) {
            let size = bytes.next_power_of_two();
            lane.buffer = None;
            lane.buffer = Some((size, self.device.buffer(size, kernel, 0)?));
        }
        let Some((_, buffer)) = &lane.buffer else { return Err(CardError::RingFull) };
        packet.map_or(Ok(()), |packet| buffer.upload(packet))?;
        lane.run.start(buffer, bytes)
    }

    /// Waits for a data mover to finish.
    fn wait(&self, run: &Run, wait_max: Duration) -> RunState {
        // XRT's timeouts are in milliseconds, so shorter waits are polled.
        if self.completion == Completion::Interrupt && wait_max >= Duration::from_millis(1) {
            return run.wait(wait_max);
        }
        let began = Instant::now();
        loop {
            match run.state() {
                RunState::UnderWay if began.elapsed() < wait_max => std::thread::sleep(SLEEP),
                state => return state,
            }
        }
    }
}

impl Card for XrtCard {
    fn read(&mut self, register: Register) -> Result<u32, CardError> {
        self.kernels()?[0].read(register.offset)
    }

    fn write(&mut self, register: Register, value: u32) -> Result<(), CardError> {
        self.kernels()?[0].write(register.offset, value)
    }

    fn start(&mut self, packet: Vec<u8>, answer_bytes: usize) -> Result<(), CardError> {
        if self.ring.len() >= RING_PACKETS {
            return Err(CardError::RingFull);
        }
        let place = self.next_place;
        self.move_bytes(place, answer_bytes, None)?;
        self.move_bytes(place, packet.len(), Some(&packet))?;
        self.next_place = (place + 1) % RING_PACKETS;
        self.ring.push_back(PacketInFlight { place, answer_bytes });
        Ok(())
    }

    fn finish(&mut self, wait_max: Duration) -> Result<Option<Vec<u8>>, CardError> {
        let Some(PacketInFlight { place, answer_bytes }) = self.ring.front() else { return Ok(None) };
        let Some((_, lane)) = self.lanes.get(*place) else { return Ok(None) };
        match (self.wait(&lane.run, wait_max), &lane.buffer) {
            (RunState::Done, Some((_, buffer))) => {
                let mut answer = vec![0; *answer_bytes];
                buffer.download(&mut answer)?;
                self.ring.pop_front();
                Ok(Some(answer))
            }
            (RunState::Failed(state), _) => Err(CardError::system("panoply_out", format!("it ended in state {state}"))),
            _ => Ok(None),
        }
    }

    fn load(&mut self, bitstream: &Path) -> Result<(), CardError> {
        if !self.ring.is_empty() {
            return Err(CardError::Bitstream { reason: "packets are under way".to_owned() });
        }
        self.lanes.clear();
        self.kernels = None;
        self.next_place = 0;
        self.device.load(bitstream)?;
        self.open_kernels()
    }
}
