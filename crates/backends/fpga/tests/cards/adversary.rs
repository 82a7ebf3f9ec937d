//! Faulty cards: wrong registers, answers that are too short, too long or of another packet, resets
//! in the middle, and silence. Each must cause a typed error and never a wrong value.

use std::time::{Duration, Instant};

use panoply_conformance::run_one;
use panoply_core::op::signal::{Checksum, Crc};
use panoply_core::{Api, Backend, Bytes, Engine, Error, Operation};
use panoply_fpga::FpgaBackend;
use panoply_fpga::card::simulated::SimulatedCard;
use panoply_fpga::card::{Card, CardError, PACKET_BYTES_MAX};
use panoply_fpga::driver::{Driver, Identity};
use panoply_fpga::map::*;

use super::scripted::{Fault, ScriptedCard, ScriptedCards};
use super::{reference, simulation};

#[test]
fn a_card_that_says_what_cannot_be_is_not_opened() {
    let lies = [
        (IDENT, 0, "identification"),
        (IDENT, u32::MAX, "gone"),
        (VERSION, 0x0002_0000, "version"),
        (FIR_TAPS, 0, "FIR_TAPS"),
        (FIR_TAPS, u32::MAX, "FIR_TAPS"),
        (FIR_WIDTH, 64, "FIR_WIDTH"),
        (FFT_SIZE, 63, "FFT_SIZE"),
        (FFT_SIZE, 1 << 31, "FFT_SIZE"),
        (FFT_WIDTH, 1, "FFT_WIDTH"),
        (VITERBI_STEPS_MAX, u32::MAX, "VITERBI_STEPS_MAX"),
        (SESSION, 5, "SESSION"),
        (ANSWERS, 9, "ANSWERS"),
    ];
    for (register, value, word) in lies {
        let card = ScriptedCard::new(Fault::Lies(register, value));
        let error = Driver::open(Box::new(card)).map(drop).unwrap_err().to_string();
        assert!(error.contains(word), "{}: {error}", register.name);
    }
}

#[test]
fn cores_that_are_not_known_are_left_alone() {
    let driver = Driver::open(Box::new(ScriptedCard::new(Fault::Lies(CORES, 0xffff_ffe2)))).unwrap();
    assert_eq!(driver.identity().features(), ["crc32"]);
    let identity = Identity::of(&mut ScriptedCard::new(Fault::None)).unwrap();
    assert_eq!(Identity::from_features(&identity.features()), identity);
}

fn engine(fault: Fault) -> Box<dyn Engine> {
    let cards = ScriptedCards { fault, faulty_openings: 1, openings: Default::default() };
    let backend = FpgaBackend::of(Api::FPGA, vec![Box::new(cards)]);
    let device = backend.discover().unwrap().remove(0);
    backend.open(&device, &Default::default()).unwrap()
}

fn checks(count: usize) -> panoply_core::Op {
    let messages: Vec<Bytes> = (0..count).map(|at| Bytes::from_vec(vec![at as u8; 100 + at])).collect();
    Crc::new(Checksum::Crc32, messages).into_op().unwrap()
}

#[test]
fn whatever_goes_wrong_in_the_middle_loses_the_card_and_hands_nothing_out() {
    let faults = [
        (Fault::Short(3), "ended after 8 of 16 bytes"),
        (Fault::Long(3), "ended after 24 of 16 bytes"),
        (Fault::Tag(3), "header"),
        (Fault::Silent(3), "has not answered"),
        (Fault::Reset(3), "was reset"),
        (Fault::Reset(9), "was reset"),
        (Fault::ResetAndSilent(3), "was reset"),
        (Fault::Gone(3), "gone from the bus"),
        (Fault::Broken(3), "lost track"),
        (Fault::Lies(PACKETS_OUT, 0), "counts 0 packets"),
    ];
    for (fault, word) in faults {
        let mut engine = engine(fault);
        let began = Instant::now();
        match run_one(&mut *engine, checks(10)) {
            Err(Error::DeviceLost { reason, .. }) => assert!(reason.contains(word), "{fault:?}: {reason}"),
            other => panic!("{fault:?}: {other:?}"),
        }
        assert!(began.elapsed() < Duration::from_secs(2), "{fault:?}");
        // Later ops fail immediately, and the health report contains the error.
        assert!(matches!(run_one(&mut *engine, checks(1)), Err(Error::DeviceLost { .. })), "{fault:?}");
        assert!(matches!(engine.health().fault, Some(Error::DeviceLost { .. })), "{fault:?}");
    }
}

#[test]
fn a_reset_between_ops_is_found_before_the_next_answer_counts() {
    let mut engine = engine(Fault::Reset(10));
    run_one(&mut *engine, checks(10)).unwrap();
    assert!(matches!(run_one(&mut *engine, checks(1)), Err(Error::DeviceLost { .. })));
}

#[test]
fn the_driver_bounds_what_is_under_way() {
    let mut driver = Driver::open(Box::new(ScriptedCard::new(Fault::None))).unwrap();
    driver.set_up(CoreKind::Affine, &[]).unwrap();
    for got in [0, PACKET_BYTES_MAX + 1] {
        assert_eq!(driver.start(&vec![0; got], 8), Err(CardError::PacketSize { got }));
    }
    driver.start(&[0; 8], 8).unwrap();
    assert_eq!(driver.set_up(CoreKind::Crc32, &[]), Err(CardError::RingFull));
}

/// A simulated card that the test can access while a driver uses it.
struct SharedCard(std::rc::Rc<std::cell::RefCell<SimulatedCard>>);

impl Card for SharedCard {
    fn read(&mut self, register: Register) -> Result<u32, CardError> {
        self.0.borrow_mut().read(register)
    }
    fn write(&mut self, register: Register, value: u32) -> Result<(), CardError> {
        self.0.borrow_mut().write(register, value)
    }
    fn start(&mut self, packet: Vec<u8>, answer_bytes: usize) -> Result<(), CardError> {
        self.0.borrow_mut().start(packet, answer_bytes)
    }
    fn finish(&mut self, wait_max: Duration) -> Result<Option<Vec<u8>>, CardError> {
        self.0.borrow_mut().finish(wait_max)
    }
    fn load(&mut self, bitstream: &std::path::Path) -> Result<(), CardError> {
        self.0.borrow_mut().load(bitstream)
    }
}

#[test]
fn a_simulated_card_that_is_reset_or_dies_in_the_middle_of_a_packet_is_noticed() {
    let Some(simulation) = simulation() else { return };
    for (kills, expected) in [(false, CardError::Reset), (true, CardError::Gone)] {
        let card = std::rc::Rc::new(std::cell::RefCell::new(SimulatedCard::new(&simulation).unwrap()));
        let mut driver = Driver::open(Box::new(SharedCard(card.clone()))).unwrap();
        driver.set_silence_max(Duration::from_millis(50));
        driver.set_up(CoreKind::Fft, &[]).unwrap();
        driver.start(&[1; 8 * 640], 8 * 640).unwrap();
        // In the middle of the answer.
        card.borrow_mut().run(64, 100_000);
        if kills {
            card.borrow_mut().kill()
        } else {
            card.borrow_mut().reset()
        }
        let began = Instant::now();
        let error = loop {
            match driver.finish(Duration::from_millis(10)) {
                Ok(None) => assert!(began.elapsed() < Duration::from_secs(2)),
                Ok(Some(_)) => panic!("an answer came of a card that was reset"),
                Err(error) => break error,
            }
        };
        assert_eq!(error, expected);
    }
}

#[test]
fn a_header_that_is_wrong_breaks_the_stream_until_a_reset() {
    let Some(simulation) = simulation() else { return };
    for header in [0_u64, u64::from(PACKET_MAGIC) << 48, 0xffff_0000_0000_0008] {
        let mut card = SimulatedCard::new(&simulation).unwrap();
        card.start([header, 0, 0, 0].map(u64::to_le_bytes).concat(), 16).unwrap();
        assert_eq!(card.finish(Duration::from_millis(1)).unwrap(), None, "{header:#x}");
        assert_eq!(card.read(STATUS).unwrap() & STATUS_BROKEN, STATUS_BROKEN, "{header:#x}");
        card.write(CONTROL, 1 << CONTROL_RESET_BIT).unwrap();
        card.write(CONTROL, 0).unwrap();
        assert_eq!(card.read(STATUS).unwrap(), 0);
    }
    // A core that does not exist.
    let mut card = SimulatedCard::new(&simulation).unwrap();
    card.write(CONTROL, 9).unwrap();
    card.start([u64::from(PACKET_MAGIC) << 48 | 8, 0].map(u64::to_le_bytes).concat(), 16).unwrap();
    assert_eq!(card.finish(Duration::from_millis(1)).unwrap(), None);
    assert_eq!(card.read(STATUS).unwrap() & STATUS_BROKEN, STATUS_BROKEN);
}

#[test]
fn what_an_earlier_session_left_in_the_streams_is_thrown_away() {
    let Some(simulation) = simulation() else { return };
    let mut card = SimulatedCard::new(&simulation).unwrap();
    card.write(CONTROL, CoreKind::Crc32 as u32).unwrap();
    // The rest of this packet never arrives.
    card.start([u64::from(PACKET_MAGIC) << 48 | 8000, 1].map(u64::to_le_bytes).concat(), 16).unwrap();
    card.run(16, 50);
    let shared = std::rc::Rc::new(std::cell::RefCell::new(card));
    let mut driver = Driver::open(Box::new(SharedCard(shared))).unwrap();
    driver.set_up(CoreKind::Crc32, &[]).unwrap();
    driver.start(b"123456789", 8).unwrap();
    let answer = driver.finish(Duration::from_secs(1)).unwrap().unwrap();
    assert_eq!(answer.payload[..4], 0xcbf4_3926_u32.to_le_bytes());
    assert_eq!(reference::crc32(b"123456789"), 0xcbf4_3926);
    driver.confirm().unwrap();
}
