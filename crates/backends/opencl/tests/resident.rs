//! A sample of the suite's cases with their inputs on every device of this machine; all of them where `PANOPLY_CASES` names them.

#![allow(clippy::unwrap_used)] // A test says what it did not expect by panicking.

#[path = "../../c_gpu/tests/bench/resident.rs"]
mod resident;

use panoply_opencl::OpenClBackend;

/// A processor's driver compiles kernels for a tenth of a second each.
const SAMPLE: usize = 397;

#[test]
fn a_sample_of_cases_on_every_gpu_and_processor() {
    resident::run(&OpenClBackend::new(), SAMPLE);
}
