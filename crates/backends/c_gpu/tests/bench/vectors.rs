//! Published vectors of the crypto domain on the devices of a backend: every one of an op that it runs.

use panoply_c_gpu::GpuBackend;
use panoply_conformance::{run_one, vectors};
use panoply_core::{Op, OpenOptions};

/// Vectors of ciphers and hashes, at the least.
const PASSED_MIN: usize = 900;

pub fn run(backend: &dyn GpuBackend) {
    let devices = match backend.discover() {
        Ok(devices) => devices,
        Err(absence) => return println!("skipped: {absence}"),
    };
    for device in devices {
        let mut engine = backend.open_engine(&device, &OpenOptions::default()).unwrap();
        let supports = |op: &Op| backend.supports(&device, op);
        let summary = vectors::check(&supports, &mut |op| run_one(&mut engine, op));
        println!("{}: {} passed, {} unsupported", device.id, summary.passed, summary.unsupported.len());
        assert!(summary.failed.is_empty(), "{} failed: {:#?}", device.id, summary.failed);
        assert!(summary.passed >= PASSED_MIN, "{summary}");
    }
}
