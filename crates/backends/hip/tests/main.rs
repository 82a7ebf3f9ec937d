//! Every integration test of the crate that does not need a process of its own, in one program.

mod chaos;
mod conformance;
mod overlap;
mod resident;
mod test_library;
