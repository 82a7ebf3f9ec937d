//! The FPGA backend: cores in ordinary Verilog (`rtl/`) on cards behind XDMA or XRT, and simulated by Verilator.
//!
//! * [`map`] is the one description of the registers, the cores and their latencies.
//! * [`card`] is what a card can do: registers, packets in, answers out, bitstreams. [`card::xdma`], [`card::xrt`] and [`card::simulated`] are
//!   the three that there are, and nothing above them differs.
//! * [`driver`] identifies a card, frames packets, and finds out when a card lies, falls silent or was reset.
//! * [`fixed`] turns lines of floating point into integers that a core takes, and back.
//! * `ops` goes from an op to packets, `engine` runs them, [`FpgaBackend`] finds cards and opens them.
//!
//! No build needs Verilator or a vendor's library: both are looked for when the program runs. `docs/fpga.md` says how to add a core.

// Registers are mapped memory, and XRT and the simulation are C libraries; every block says why it holds.
#![allow(unsafe_code)]

mod backend;
pub mod card;
pub mod driver;
mod engine;
pub mod fixed;
pub mod map;
mod ops;

pub use backend::{Find, Found, FpgaBackend, SIMULATED, Simulated, Xdma, XrtCards};
pub use ops::affine::Affine;
