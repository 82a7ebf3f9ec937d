//! Drives a card: identifies it, configures its cores, frames packets, and detects cards that
//! return wrong data, stop answering or were reset.
//!
//! 1. All data from a card is checked: identification, version and parameters must be valid, and
//!    each answer must carry its packet's tag. Before an op's answers count, the card must still
//!    hold this session's number and have counted as many packets as were answered.
//! 2. A reset in the middle of a pass erases the configuration. The session's number reveals the
//!    reset, and the answers are discarded.
//! 3. Cores are configured only while no packet is in flight.
//! 4. After an error the card is not used any more. Opening it again starts with a reset.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use crate::card::{Card, CardError, PACKET_BYTES_MAX, RING_PACKETS};
use crate::map::*;

/// How long a reset of the card may take.
const RESET_TIME_MAX: Duration = Duration::from_millis(200);
/// Minimum time to wait for a card before it counts as silent, even if its last answer is long ago:
/// the driver's thread itself may have been delayed.
const WAIT_MIN: Duration = Duration::from_millis(20);
/// Maximum number of taps that a card's filter may report.
const FIR_TAPS_MAX: u32 = 1024;
/// Maximum number of steps that a card's decoder may report.
const VITERBI_STEPS_LIMIT: u32 = 1 << 20;

/// The cores of a card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Bit mask of the kinds of cores.
    pub cores: u32,
    /// Number of the filter's taps, and bits of its samples.
    pub fir: Option<(u32, u32)>,
    /// Number of the transform's samples, and bits of each part.
    pub fft: Option<(u32, u32)>,
    /// Maximum number of steps in a frame.
    pub viterbi: Option<u32>,
}

impl Identity {
    /// Reads and checks a card's identification.
    pub fn of(card: &mut dyn Card) -> Result<Identity, CardError> {
        match card.read(IDENT)? {
            IDENT_VALUE => {}
            u32::MAX => return Err(CardError::Gone),
            got => return Err(CardError::NotOurs { got }),
        }
        let got = card.read(VERSION)?;
        if got >> 16 != VERSION_VALUE >> 16 {
            return Err(CardError::Version { expected: VERSION_VALUE, got });
        }
        let cores = card.read(CORES)?;
        let has = |kind: CoreKind| cores >> kind as u32 & 1 == 1;
        let mut ask = |register: Register, valid: &dyn Fn(u32) -> bool, expected: &str| match card.read(register)? {
            got if valid(got) => Ok(got),
            got => Err(CardError::Impossible { register: register.name, expected: expected.to_owned(), got }),
        };
        let mut identity = Identity { cores, ..Identity::default() };
        if has(CoreKind::Fir) {
            let taps = ask(FIR_TAPS, &|taps| (1..=FIR_TAPS_MAX).contains(&taps), "1 to 1024")?;
            identity.fir = Some((taps, ask(FIR_WIDTH, &|width| (2..=24).contains(&width), "2 to 24")?));
        }
        if has(CoreKind::Fft) {
            let is_size = |size: u32| size.is_power_of_two() && (4..=128).contains(&size);
            let size = ask(FFT_SIZE, &is_size, "a power of two from 4 to 128")?;
            identity.fft = Some((size, ask(FFT_WIDTH, &|width| (2..=24).contains(&width), "2 to 24")?));
        }
        if has(CoreKind::Viterbi) {
            let valid = |steps: u32| (64..=VITERBI_STEPS_LIMIT).contains(&steps);
            identity.viterbi = Some(ask(VITERBI_STEPS_MAX, &valid, "64 to 1048576")?);
        }
        Ok(identity)
    }

    /// Whether the card has a core of this kind.
    pub fn has(&self, kind: CoreKind) -> bool {
        self.cores >> kind as u32 & 1 == 1
    }

    /// The cores as text for a device's list of features, such as `fir:64x24` and `crc32`.
    pub fn features(&self) -> Vec<String> {
        let each = CoreKind::ALL.into_iter().filter(|kind| self.has(*kind));
        each.map(|kind| {
            let mut text = kind.name().to_owned();
            let parameters = match kind {
                CoreKind::Fir => self.fir,
                CoreKind::Fft => self.fft,
                CoreKind::Viterbi => self.viterbi.map(|steps| (steps, 1)),
                CoreKind::Affine | CoreKind::Crc32 => None,
            };
            if let Some((first, second)) = parameters {
                let _ = write!(text, ":{first}x{second}");
            }
            text
        })
        .collect()
    }

    /// Parses the texts of [`Identity::features`]. Unknown texts are ignored.
    pub fn from_features(features: &[String]) -> Identity {
        let mut identity = Identity::default();
        for feature in features {
            let (name, parameters) = feature.split_once(':').unwrap_or((feature, ""));
            let Some(kind) = CoreKind::ALL.into_iter().find(|kind| kind.name() == name) else { continue };
            let pair = parameters.split_once('x').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
            identity.cores |= 1 << kind as u32;
            match kind {
                CoreKind::Fir => identity.fir = pair,
                CoreKind::Fft => identity.fft = pair,
                CoreKind::Viterbi => identity.viterbi = pair.map(|(steps, _): (u32, u32)| steps),
                CoreKind::Affine | CoreKind::Crc32 => {}
            }
        }
        identity
    }
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardAnswer {
    /// Clocks from the first beat of the packet's payload to the first beat of the answer's
    /// payload, counted by the card.
    pub clocks: u32,
    /// The core's output.
    pub payload: Vec<u8>,
}

/// A packet in flight.
struct ExpectedAnswer {
    header: u64,
    bytes: usize,
}

/// A card in use.
pub struct Driver {
    card: Box<dyn Card>,
    identity: Identity,
    session: u32,
    tag: u16,
    /// Number of packets answered since the reset.
    answered: u32,
    under_way: VecDeque<ExpectedAnswer>,
    /// Time of the last activity of the card.
    heard: Instant,
    /// How long the driver has waited for the card since then.
    waited: Duration,
    silence_max: Duration,
}

impl Driver {
    /// Identifies a card, resets it and starts a session.
    pub fn open(mut card: Box<dyn Card>) -> Result<Driver, CardError> {
        let identity = Identity::of(&mut *card)?;
        reset(&mut *card)?;
        // Each session has a new number, so that the remains of earlier sessions are recognised.
        let session = (RandomState::new().hash_one(Instant::now()) as u32).clamp(1, u32::MAX - 1);
        card.write(SESSION, session)?;
        let got = card.read(SESSION)?;
        if got != session {
            let expected = format!("{session:#x}, which was written");
            return Err(CardError::Impossible { register: SESSION.name, expected, got });
        }
        let (heard, silence_max) = (Instant::now(), card.silence_max());
        let (under_way, tag) = (VecDeque::new(), (session >> 7) as u16);
        Ok(Driver { card, identity, session, tag, answered: 0, under_way, heard, waited: Duration::ZERO, silence_max })
    }

    /// Sets the time after which the card counts as silent.
    pub fn set_silence_max(&mut self, silence_max: Duration) {
        self.silence_max = silence_max;
    }

    /// The cores of the card.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Selects a core and writes its registers. No packet may be in flight.
    pub fn set_up(&mut self, core: CoreKind, registers: &[(Register, u32)]) -> Result<(), CardError> {
        if !self.under_way.is_empty() {
            return Err(CardError::RingFull);
        }
        self.card.write(CONTROL, core as u32)?;
        registers.iter().try_for_each(|(register, value)| self.card.write(*register, *value))
    }

    /// Whether another packet can be started.
    pub fn has_room(&self) -> bool {
        self.under_way.len() < RING_PACKETS
    }

    /// Number of packets in flight.
    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// Starts a packet whose answer has `answer_bytes` bytes, rounded up to whole beats.
    pub fn start(&mut self, payload: &[u8], answer_bytes: usize) -> Result<(), CardError> {
        for got in [payload.len(), answer_bytes] {
            if got == 0 || got > PACKET_BYTES_MAX {
                return Err(CardError::PacketSize { got });
            }
        }
        self.tag = self.tag.wrapping_add(1);
        let header = |magic: u32, low: usize| u64::from(magic) << 48 | u64::from(self.tag) << 32 | low as u64;
        let mut packet = header(PACKET_MAGIC, payload.len()).to_le_bytes().to_vec();
        packet.extend_from_slice(payload);
        packet.resize(packet.len().next_multiple_of(BEAT_BYTES), 0);
        let bytes = BEAT_BYTES + answer_bytes.next_multiple_of(BEAT_BYTES);
        let expected = ExpectedAnswer { header: header(ANSWER_MAGIC, 0), bytes };
        self.card.start(packet, bytes)?;
        if self.under_way.is_empty() {
            (self.heard, self.waited) = (Instant::now(), Duration::ZERO);
        }
        self.under_way.push_back(expected);
        Ok(())
    }

    /// Returns the answer to the oldest packet. `None` if it does not arrive within `wait_max`, an
    /// error if the card has been silent for too long.
    pub fn finish(&mut self, wait_max: Duration) -> Result<Option<CardAnswer>, CardError> {
        let Some(expected) = self.under_way.front() else { return Ok(None) };
        let left = self.silence_max.saturating_sub(self.heard.elapsed()).max(WAIT_MIN);
        let began = Instant::now();
        let answer = self.card.finish(wait_max.min(left))?;
        self.waited += began.elapsed();
        let Some(answer) = answer else { return self.silent() };
        let answer = opened(expected, answer)?;
        self.under_way.pop_front();
        self.answered = self.answered.wrapping_add(1);
        (self.heard, self.waited) = (Instant::now(), Duration::ZERO);
        Ok(Some(answer))
    }

    /// Returns `None`, or an error if the card has been silent for too long.
    fn silent(&mut self) -> Result<Option<CardAnswer>, CardError> {
        if self.heard.elapsed() < self.silence_max || self.waited < WAIT_MIN.min(self.silence_max) {
            return Ok(None);
        }
        // The card may still report a more precise error.
        self.check()?;
        Err(CardError::Silent { after: self.silence_max })
    }

    /// Checks that the card still has this session's configuration.
    pub fn check(&mut self) -> Result<(), CardError> {
        match self.card.read(SESSION)? {
            session if session == self.session => {}
            u32::MAX => return Err(CardError::Gone),
            _ => return Err(CardError::Reset),
        }
        match self.card.read(STATUS)? {
            u32::MAX => Err(CardError::Gone),
            status if status & STATUS_BROKEN != 0 => Err(CardError::Broken),
            _ => Ok(()),
        }
    }

    /// Checks that the answers so far are valid: the session still exists, and the card has counted
    /// every packet. No packet may be in flight.
    pub fn confirm(&mut self) -> Result<(), CardError> {
        self.check()?;
        let got = self.card.read(PACKETS_OUT)?;
        match got == self.answered {
            true => Ok(()),
            false => Err(CardError::Miscounted { expected: self.answered, got }),
        }
    }
}

fn reset(card: &mut dyn Card) -> Result<(), CardError> {
    card.write(CONTROL, 1 << CONTROL_RESET_BIT)?;
    let began = Instant::now();
    for register in [SESSION, ANSWERS, PACKETS_OUT] {
        while card.read(register)? != 0 {
            if began.elapsed() > RESET_TIME_MAX {
                let (expected, got) = ("0 after a reset".to_owned(), card.read(register)?);
                return Err(CardError::Impossible { register: register.name, expected, got });
            }
            std::thread::yield_now();
        }
    }
    card.write(CONTROL, 0)
}

fn opened(expected: &ExpectedAnswer, mut answer: Vec<u8>) -> Result<CardAnswer, CardError> {
    let short = CardError::Short { expected: expected.bytes, got: answer.len() };
    let Some(header) = answer.first_chunk::<BEAT_BYTES>().filter(|_| answer.len() == expected.bytes) else {
        return Err(short);
    };
    let got = u64::from_le_bytes(*header);
    if got >> 32 != expected.header >> 32 {
        return Err(CardError::Garbled { expected: expected.header, got });
    }
    answer.drain(..BEAT_BYTES);
    Ok(CardAnswer { clocks: got as u32, payload: answer })
}
