//! A card that computes with the reference and fails on command.

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use panoply_core::Absence;
use panoply_fpga::card::{Card, CardError, RING_PACKETS};
use panoply_fpga::map::*;
use panoply_fpga::{Find, FoundCard};

use super::reference;

/// The fault. The number is the count of answers before the fault.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    None,
    /// A register reads another value.
    Lies(Register, u32),
    /// An answer lacks its last beat.
    Short(u32),
    /// An answer has an extra beat.
    Long(u32),
    /// An answer has another packet's tag.
    Tag(u32),
    /// No answer arrives.
    Silent(u32),
    /// The card is reset, but continues to answer.
    Reset(u32),
    /// The card is reset and loses its packets in flight.
    ResetAndSilent(u32),
    /// The card disappears from the bus.
    Gone(u32),
    /// The card refuses a header.
    Broken(u32),
}

/// The scripted card.
pub struct ScriptedCard {
    registers: HashMap<u32, u32>,
    taps: Vec<i64>,
    answers: VecDeque<Vec<u8>>,
    given: u32,
    fault: Fault,
}

impl ScriptedCard {
    pub fn new(fault: Fault) -> ScriptedCard {
        let fixed = [
            (IDENT, IDENT_VALUE),
            (VERSION, VERSION_VALUE),
            (CORES, 0x1f),
            (FIR_TAPS, build::FIR_TAPS),
            (FIR_WIDTH, build::FIR_WIDTH),
            (FFT_SIZE, build::FFT_SIZE),
            (FFT_WIDTH, build::FFT_WIDTH),
            (VITERBI_STEPS_MAX, build::VITERBI_STEPS_MAX),
        ];
        let registers = fixed.into_iter().map(|(register, value)| (register.offset, value)).collect();
        ScriptedCard { registers, taps: vec![0; build::FIR_TAPS as usize], answers: VecDeque::new(), given: 0, fault }
    }

    fn get(&self, register: Register) -> u32 {
        self.registers.get(&register.offset).copied().unwrap_or(0)
    }

    fn reset(&mut self) {
        for register in [SESSION, ANSWERS, ACKNOWLEDGED, PACKETS_OUT, VITERBI_CODE, STATUS] {
            self.registers.insert(register.offset, 0);
        }
    }

    fn core(&self) -> CoreKind {
        CoreKind::ALL[(self.get(CONTROL) & 15) as usize]
    }

    /// Whether the fault affects the current answer.
    fn is_due(&self, after: u32) -> bool {
        self.given >= after
    }

    /// Applies the fault to an answer. `None` if no answer is given.
    fn spoilt(&mut self, mut answer: Vec<u8>) -> Option<Vec<u8>> {
        match self.fault {
            Fault::Short(after) if self.is_due(after) => answer.truncate(answer.len() - 8),
            Fault::Long(after) if self.is_due(after) => answer.extend([0; 8]),
            Fault::Tag(after) if self.is_due(after) => answer[4] ^= 1,
            Fault::Reset(after) if self.is_due(after) => self.reset(),
            Fault::Silent(after) | Fault::ResetAndSilent(after) | Fault::Broken(after) if self.is_due(after) => {
                if matches!(self.fault, Fault::ResetAndSilent(_)) {
                    self.reset();
                }
                return None;
            }
            _ => {}
        }
        Some(answer)
    }
}

impl Card for ScriptedCard {
    fn read(&mut self, register: Register) -> Result<u32, CardError> {
        Ok(match self.fault {
            Fault::Lies(liar, value) if liar == register => value,
            Fault::Gone(after) if self.is_due(after) => u32::MAX,
            Fault::Broken(after) if self.is_due(after) && register == STATUS => STATUS_BROKEN,
            _ => self.get(register),
        })
    }

    fn write(&mut self, register: Register, value: u32) -> Result<(), CardError> {
        self.registers.insert(register.offset, value);
        if register == CONTROL && value >> CONTROL_RESET_BIT & 1 == 1 {
            self.reset();
        }
        if register == FIR_TAP_VALUE {
            let index = self.get(FIR_TAP_INDEX);
            self.taps[index as usize] = i64::from(value as i32);
            self.registers.insert(FIR_TAP_INDEX.offset, index + 1);
        }
        Ok(())
    }

    fn start(&mut self, packet: Vec<u8>, answer_bytes: usize) -> Result<(), CardError> {
        assert!(self.answers.len() < RING_PACKETS, "the driver overfills the ring");
        let (tag, bytes) = reference::header(*packet.first_chunk().unwrap());
        let payload = &packet[8..8 + bytes];
        let answer =
            reference::framed(tag, &reference::answer(self.core(), payload, &self.taps, self.get(VITERBI_CODE)));
        assert_eq!(answer.len(), answer_bytes, "the driver expects another answer");
        self.answers.push_back(answer);
        Ok(())
    }

    fn finish(&mut self, wait_max: Duration) -> Result<Option<Vec<u8>>, CardError> {
        let Some(answer) = self.answers.pop_front() else { return Ok(None) };
        let Some(answer) = self.spoilt(answer) else {
            self.answers.push_front(Vec::new());
            std::thread::sleep(wait_max);
            return Ok(None);
        };
        self.given += 1;
        let counted = self.get(PACKETS_OUT) + 1;
        self.registers.insert(PACKETS_OUT.offset, counted);
        Ok(Some(answer))
    }

    fn load(&mut self, _bitstream: &Path) -> Result<(), CardError> {
        Err(CardError::Bitstream { reason: "it is scripted".to_owned() })
    }

    fn silence_max(&self) -> Duration {
        Duration::from_millis(30)
    }
}

/// Finds one scripted card. The fault occurs in its first `faulty_openings` openings, not counting
/// the one for identification.
pub struct ScriptedCards {
    pub fault: Fault,
    pub faulty_openings: u32,
    pub openings: Arc<AtomicU32>,
}

impl Find for ScriptedCards {
    fn find(&self) -> Result<Vec<FoundCard>, Absence> {
        Ok(vec![FoundCard { number: 0, name: "scripted card".to_owned(), address: None }])
    }

    fn open(&self, _number: u32, _bitstream: Option<&Path>) -> Result<Box<dyn Card>, CardError> {
        let opening = self.openings.fetch_add(1, Ordering::Relaxed);
        let is_faulty = opening > 0 && opening <= self.faulty_openings;
        Ok(Box::new(ScriptedCard::new(if is_faulty { self.fault } else { Fault::None })))
    }
}
