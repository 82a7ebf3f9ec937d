//! What drives a card: identifies it, sets its cores up, frames packets, and notices when the card lies, falls silent or was reset.
//!
//! 1. Nothing that a card says is believed unchecked: identification, version and parameters must be possible, each answer must carry its packet's
//!    tag, and before an op's answers count the card must still hold this session's number and count as many packets as were answered.
//! 2. A reset in the middle of a pass loses what was set up. It is found by the session's number, and the answers are thrown away.
//! 3. Cores are set up only while nothing is under way.
//! 4. After an error nothing more is done with the card; whoever opens it again begins with a reset.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use crate::card::{Card, CardError, PACKET_BYTES_MAX, RING_PACKETS};
use crate::map::*;

/// How long a card may take to be reset.
const RESET_TIME_MAX: Duration = Duration::from_millis(200);
/// How long a card is waited for at the least before it counts as silent, however long ago it was heard: whoever drives it may have been held up.
const WAIT_MIN: Duration = Duration::from_millis(20);
/// The most taps that a card's filter can claim to have.
const FIR_TAPS_MAX: u32 = 1024;
/// The most steps that a card's decoder can claim to take.
const VITERBI_STEPS_LIMIT: u32 = 1 << 20;

/// What is on a card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The cores, a bit for each kind.
    pub cores: u32,
    /// The filter's taps and the bits of its samples.
    pub fir: Option<(u32, u32)>,
    /// The transform's samples and the bits of their parts.
    pub fft: Option<(u32, u32)>,
    /// The most steps of a frame.
    pub viterbi: Option<u32>,
}

impl Identity {
    /// Asks a card.
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

    /// The cores in words, for a device's list of features: `fir:64x24`, `crc32`.
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

    /// What [`Identity::features`] was made of. Words that are none of its own are passed over.
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

/// One answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Clocks from the packet's first payload beat to the answer's first, as the card counts them.
    pub clocks: u32,
    /// What the core gave.
    pub payload: Vec<u8>,
}

/// A packet under way.
struct Expected {
    header: u64,
    bytes: usize,
}

/// A card in use.
pub struct Driver {
    card: Box<dyn Card>,
    identity: Identity,
    session: u32,
    tag: u16,
    /// Packets answered since the reset.
    answered: u32,
    under_way: VecDeque<Expected>,
    /// When the card last did something.
    heard: Instant,
    /// How long it was waited for since.
    waited: Duration,
    silence_max: Duration,
}

impl Driver {
    /// Identifies a card, resets it and begins a session.
    pub fn open(mut card: Box<dyn Card>) -> Result<Driver, CardError> {
        let identity = Identity::of(&mut *card)?;
        reset(&mut *card)?;
        // Another number for each session, so that what an earlier one left behind is recognised.
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

    /// Lets the card be silent for so long.
    pub fn set_silence_max(&mut self, silence_max: Duration) {
        self.silence_max = silence_max;
    }

    /// What is on the card.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Chooses a core and writes its registers. Nothing may be under way.
    pub fn set_up(&mut self, core: CoreKind, registers: &[(Register, u32)]) -> Result<(), CardError> {
        if !self.under_way.is_empty() {
            return Err(CardError::RingFull);
        }
        self.card.write(CONTROL, core as u32)?;
        registers.iter().try_for_each(|(register, value)| self.card.write(*register, *value))
    }

    /// Whether another packet may be started.
    pub fn has_room(&self) -> bool {
        self.under_way.len() < RING_PACKETS
    }

    /// Packets under way.
    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// Starts a packet whose answer has so many bytes, a multiple of a beat's.
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
        let expected = Expected { header: header(ANSWER_MAGIC, 0), bytes };
        self.card.start(packet, bytes)?;
        if self.under_way.is_empty() {
            (self.heard, self.waited) = (Instant::now(), Duration::ZERO);
        }
        self.under_way.push_back(expected);
        Ok(())
    }

    /// The oldest packet's answer, where it comes within this time. An error where the card has been silent for too long.
    pub fn finish(&mut self, wait_max: Duration) -> Result<Option<Answer>, CardError> {
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

    /// Nothing, or why that is too little.
    fn silent(&mut self) -> Result<Option<Answer>, CardError> {
        if self.heard.elapsed() < self.silence_max || self.waited < WAIT_MIN.min(self.silence_max) {
            return Ok(None);
        }
        // The card may still say why.
        self.check()?;
        Err(CardError::Silent { after: self.silence_max })
    }

    /// Whether the card is still as this session set it up.
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

    /// Whether what was answered so far counts: nothing is under way, the session holds, and the card has counted every packet.
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

fn opened(expected: &Expected, mut answer: Vec<u8>) -> Result<Answer, CardError> {
    let short = CardError::Short { expected: expected.bytes, got: answer.len() };
    let Some(header) = answer.first_chunk::<BEAT_BYTES>().filter(|_| answer.len() == expected.bytes) else {
        return Err(short);
    };
    let got = u64::from_le_bytes(*header);
    if got >> 32 != expected.header >> 32 {
        return Err(CardError::Garbled { expected: expected.header, got });
    }
    answer.drain(..BEAT_BYTES);
    Ok(Answer { clocks: got as u32, payload: answer })
}
