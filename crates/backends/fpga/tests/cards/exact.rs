//! Every core of the simulated card must match the reference bit for bit, with the documented
//! latency, also while the streams pause.

use std::time::Duration;

use panoply_fpga::card::Card;
use panoply_fpga::card::simulated::SimulatedCard;
use panoply_fpga::driver::{CardAnswer, Driver};
use panoply_fpga::map::*;

use super::{Random, reference, simulation};

/// A packet for a core: the configuration, the payload, and the number of units for the latency.
struct Trial {
    core: CoreKind,
    registers: Vec<(Register, u32)>,
    taps: Vec<i64>,
    code: u32,
    payload: Vec<u8>,
    units: u32,
}

fn trials() -> Vec<Trial> {
    let mut random = Random(7);
    let mut trials = Vec::new();
    let plain = |core, payload: Vec<u8>, units| Trial {
        core,
        registers: Vec::new(),
        taps: Vec::new(),
        code: 0,
        payload,
        units,
    };
    for beats in [1, 2, 33] {
        trials.push(plain(CoreKind::Affine, random.bytes(8 * beats), 0));
    }
    for bytes in [1, 7, 8, 9, 64, 1001_usize] {
        trials.push(plain(CoreKind::Crc32, random.bytes(bytes), bytes.div_ceil(8) as u32));
    }
    for len in [1, 63, 64, 65, 300] {
        let taps = random.samples(build::FIR_TAPS as usize);
        let registers = std::iter::once((FIR_TAP_INDEX, 0)).chain(taps.iter().map(|tap| (FIR_TAP_VALUE, *tap as u32)));
        let payload = random.samples(len).iter().flat_map(|x| x.to_le_bytes()).collect();
        trials.push(Trial { registers: registers.collect(), taps, ..plain(CoreKind::Fir, payload, 0) });
    }
    for frames in [1, 2, 5] {
        let parts = random.samples(2 * frames * build::FFT_SIZE as usize);
        trials.push(plain(CoreKind::Fft, parts.iter().flat_map(|x| (*x as i32).to_le_bytes()).collect(), 0));
    }
    for steps in [1, 6, 63, 64, 65, 1006, build::VITERBI_STEPS_MAX as usize] {
        for ends in [0, VITERBI_BEST_END, VITERBI_ANY_START | VITERBI_BEST_END] {
            let code = 0o171 | 0o133 << 8 | ends;
            // Soft bits and hard bits.
            let mut payload = random.bytes(2 * steps);
            if ends == VITERBI_BEST_END {
                payload.iter_mut().for_each(|soft| *soft = if *soft < 128 { 0 } else { 255 });
            }
            let registers = vec![(VITERBI_CODE, code)];
            trials.push(Trial { registers, code, ..plain(CoreKind::Viterbi, payload, steps as u32) });
        }
    }
    trials
}

fn run(driver: &mut Driver, trial: &Trial, bytes: usize) -> CardAnswer {
    driver.set_up(trial.core, &trial.registers).unwrap();
    driver.start(&trial.payload, bytes).unwrap();
    let answer = driver.finish(Duration::from_secs(5)).unwrap().unwrap();
    driver.confirm().unwrap();
    answer
}

#[test]
fn every_core_answers_as_the_reference_after_the_stated_clocks() {
    let Some(simulation) = simulation() else { return };
    let mut driver = Driver::open(Box::new(SimulatedCard::new(&simulation).unwrap())).unwrap();
    for trial in trials() {
        let expected = reference::answer(trial.core, &trial.payload, &trial.taps, trial.code);
        let CardAnswer { clocks, payload } = run(&mut driver, &trial, expected.len());
        let what = format!("{} of {} bytes", trial.core.name(), trial.payload.len());
        assert!(payload == expected, "{what}");
        assert_eq!(clocks, trial.core.latency().clocks(trial.units), "{what}");
    }
}

#[test]
fn the_answers_are_the_same_while_the_streams_pause() {
    let Some(simulation) = simulation() else { return };
    for seed in [1, 0x2545_f491, 77_777] {
        let mut card = SimulatedCard::new(&simulation).unwrap();
        card.stall(seed);
        let mut driver = Driver::open(Box::new(card)).unwrap();
        for trial in trials().iter().filter(|trial| trial.payload.len() < 3000) {
            let expected = reference::answer(trial.core, &trial.payload, &trial.taps, trial.code);
            assert!(run(&mut driver, trial, expected.len()).payload == expected, "{}", trial.core.name());
        }
    }
}

#[test]
fn packets_that_wait_in_the_ring_are_answered_in_order() {
    let Some(simulation) = simulation() else { return };
    let mut driver = Driver::open(Box::new(SimulatedCard::new(&simulation).unwrap())).unwrap();
    driver.set_up(CoreKind::Crc32, &[]).unwrap();
    let messages: Vec<Vec<u8>> = (1..40).map(|len| Random(len).bytes(len as usize * 13)).collect();
    let mut answers = Vec::new();
    let mut left = messages.iter();
    while answers.len() < messages.len() {
        while driver.has_room() {
            let Some(message) = left.next() else { break };
            driver.start(message, 8).unwrap();
        }
        answers.extend(driver.finish(Duration::from_secs(5)).unwrap());
    }
    for (message, answer) in messages.iter().zip(&answers) {
        assert_eq!(answer.payload, u64::from(reference::crc32(message)).to_le_bytes());
    }
    driver.confirm().unwrap();
}

#[test]
fn an_interrupt_is_raised_by_an_answer_and_lowered_by_its_acknowledgement() {
    let Some(simulation) = simulation() else { return };
    let mut card = SimulatedCard::new(&simulation).unwrap();
    card.write(CONTROL, CoreKind::Affine as u32 | 1 << CONTROL_INTERRUPT_BIT).unwrap();
    assert!(!card.interrupt());
    let header = u64::from(PACKET_MAGIC) << 48 | 8;
    card.start([header.to_le_bytes(), [1; 8]].concat(), 16).unwrap();
    assert_eq!(card.run(16, 100), 16);
    assert!(card.interrupt());
    let answers = card.read(ANSWERS).unwrap();
    card.write(ACKNOWLEDGED, answers).unwrap();
    assert!(!card.interrupt());
    assert_eq!(answers, 1);
}

#[test]
fn every_register_of_the_map_reads_as_described() {
    let Some(simulation) = simulation() else { return };
    let mut card = SimulatedCard::new(&simulation).unwrap();
    for register in REGISTERS.iter().filter(|register| register.access == Access::ReadWrite) {
        if *register != CONTROL {
            card.write(*register, 0x0000_1234).unwrap();
            assert_eq!(card.read(*register).unwrap(), 0x1234, "{}", register.name);
        }
    }
    for register in REGISTERS.iter().filter(|register| register.access == Access::Read && **register != CYCLES) {
        let before = card.read(*register).unwrap();
        card.write(*register, !before).unwrap();
        assert_eq!(card.read(*register).unwrap(), before, "{} can be written", register.name);
    }
    let first = card.read(CYCLES).unwrap();
    assert!(card.read(CYCLES).unwrap() > first);
}
