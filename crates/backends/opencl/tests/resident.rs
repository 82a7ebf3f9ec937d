//! A sample of the suite's cases with resident inputs, on every device of this machine; all cases
//! that `PANOPLY_CASES` names, if it is set.

#![allow(clippy::unwrap_used)] // A test panics on an unexpected value.

use panoply_c_gpu_testing::resident;
use panoply_opencl::OpenClBackend;

/// A processor's driver needs a tenth of a second to compile each kernel, so the sample is small.
const SAMPLE: usize = 397;

#[test]
fn a_sample_of_cases_on_every_gpu_and_processor() {
    resident::run(&OpenClBackend::new(), SAMPLE);
}
