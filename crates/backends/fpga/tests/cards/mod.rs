//! Tests of cards: simulated cards bit for bit, cards behind XDMA and XRT as far as possible
//! without hardware, and faulty cards.
#![allow(unsafe_code)] // Test libraries are loaded, and registers are mapped.
#![allow(clippy::unwrap_used)] // Tests panic on unexpected results.

mod adversary;
mod exact;
mod reference;
mod runtime;
mod scripted;
mod xdma;
mod xrt;

use std::sync::{Arc, LazyLock};

use panoply_fpga::VerilatorCard;
use panoply_fpga::card::simulated::Simulation;
use panoply_fpga::card::simulated::build::NoSimulation;

/// The simulation, built once. Prints a message and returns `None` if Verilator is not installed.
fn simulation() -> Option<Arc<Simulation>> {
    static SIMULATION: LazyLock<Result<Arc<Simulation>, NoSimulation>> =
        LazyLock::new(|| VerilatorCard::default().simulation());
    match &*SIMULATION {
        Ok(simulation) => Some(simulation.clone()),
        Err(NoSimulation::ProgramMissing { program }) => {
            println!("skipped: {program} is not installed");
            None
        }
        Err(error) => panic!("the simulation is not made: {error}"),
    }
}

/// Pseudo-random numbers.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 ^ self.0 >> 29
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| (self.next() >> 24) as u8).collect()
    }

    /// 24-bit integers, including the extremes.
    fn samples(&mut self, count: usize) -> Vec<i64> {
        let one = |random: &mut Random| match random.next() >> 40 & 3 {
            0 => -(1 << 23),
            1 => (1 << 23) - 1,
            _ => (random.next() >> 20 & 0xff_ffff) as i64 - (1 << 23),
        };
        (0..count).map(|_| one(self)).collect()
    }
}
