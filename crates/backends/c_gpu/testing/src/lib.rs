//! Tests that every backend of the C dialect runs on its own devices. A backend has this crate as a
//! dev-dependency, and calls each function in a test of its own. If the machine has no device, the
//! functions print that they are skipped.
//!
//! [`suite`] runs the conformance suite, and the sizes in [`larger`]; [`resident`] the same cases
//! with inputs on the device; [`graphs`] random graphs; [`vectors`] published vectors of the crypto
//! domain; [`faults`] typed errors; [`convolutions`] a vendor's library; [`peers`] two devices that
//! read each other's memory; [`overlap`] several callers with ops in flight at the same time;
//! [`chaos`] engines that die under load, of any backend.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.
#![allow(missing_docs)] // Most functions are tests, and their names say what they check.

pub mod chaos;
pub mod convolutions;
pub mod faults;
pub mod graphs;
pub mod larger;
mod list;
pub mod overlap;
pub mod peers;
pub mod resident;
pub mod suite;
pub mod vectors;

pub use list::unlisted;
