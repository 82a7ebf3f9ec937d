//! A sample of the suite on every OpenCL device of this machine: a driver for processors compiles each kernel anew for each size of
//! block, so that the whole suite would take long there. `PANOPLY_CASES=prefix` runs all cases whose names begin so, `PANOPLY_CASES=`
//! all of them.

#![allow(clippy::unwrap_used)] // A test says what it did not expect by panicking.

#[path = "../../c_gpu/tests/bench/suite.rs"]
mod suite;

use panoply_opencl::OpenClBackend;

/// Processors get every n-th case.
const SAMPLE: usize = 17;

#[test]
fn a_sample_of_cases_on_every_device() {
    suite::run(&OpenClBackend::new(), SAMPLE);
}
