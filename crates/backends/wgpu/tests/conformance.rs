//! The wgpu backend against the reference: every case of the suite, on every adapter of this machine.

use panoply_conformance::{cases, check_backend};
use panoply_core::Backend;
use panoply_wgpu::WgpuBackend;

#[test]
fn every_claimed_case_agrees_with_the_reference() {
    let backend = WgpuBackend::new();
    let devices = match backend.discover() {
        Ok(devices) => devices,
        Err(absence) => {
            eprintln!("skipped: {absence}");
            return;
        }
    };
    let filter = std::env::var("PANOPLY_CASES").unwrap_or_default();
    let cases: Vec<_> = cases().into_iter().filter(|case| case.name.contains(&filter)).collect();
    for device in &devices {
        let summary = check_backend(&backend, device, &cases).unwrap();
        println!("{} ({}): {summary}", device.id, device.name);
        let mut reasons: Vec<&str> = summary.unsupported.iter().map(|(_, reason)| reason.as_str()).collect();
        reasons.sort_unstable();
        reasons.dedup();
        println!("not claimed: {}", reasons.join("; "));
        assert!(summary.failed.is_empty(), "{}: {summary}", device.id);
        assert!(summary.passed > 0);
    }
}
