//! The FPGA backend: cores in standard Verilog (`rtl/`) on cards behind XDMA or XRT, or simulated
//! by Verilator.
//!
//! * [`map`] is the only description of the registers, the cores and their latencies.
//! * [`card`] is the interface of a card: registers, packets, answers and bitstreams.
//!   [`card::xdma`], [`card::xrt`] and [`card::simulated`] implement it. The layers above treat
//!   them alike.
//! * [`driver`] identifies a card, frames packets, and detects cards that return wrong data, stop
//!   answering or were reset.
//! * [`fixed`] converts lines of floats to integers for a core, and back.
//! * [`Bitstreams`] says which bitstream is loaded onto which card.
//! * `ops` converts ops to packets, `engine` runs them, [`FpgaBackend`] finds cards and opens them.
//!
//! No build needs Verilator or a vendor's library: both are searched at run time. `docs/fpga.md`
//! explains how to add a core.

// Registers are mapped memory, and XRT and the simulation are C libraries. Every `unsafe` block
// states why it is sound.
#![allow(unsafe_code)]

mod backend;
mod bitstreams;
pub mod card;
pub mod driver;
mod engine;
pub mod fixed;
pub mod map;
mod ops;

pub use backend::{Find, FoundCard, FpgaBackend, SIMULATED, VerilatorCard, Xdma, XrtCards};
pub use bitstreams::{Bitstreams, CardName};
pub use ops::affine::Affine;
