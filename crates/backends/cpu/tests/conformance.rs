//! The CPU backend against the reference, every case of the suite, on every device of this machine.

use panoply_conformance::{Seeds, cases, check_backend, check_graphs, run_one, vectors};
use panoply_core::{Backend, OpenOptions};
use panoply_cpu::CpuBackend;

#[test]
fn every_case_agrees_with_the_reference() {
    let backend = CpuBackend::new();
    let devices = backend.discover().unwrap();
    let cases = cases();
    for device in &devices {
        let summary = check_backend(&backend, device, &cases).unwrap();
        assert!(summary.failed.is_empty(), "{}: {summary}", device.id);
        assert!(summary.unsupported.is_empty(), "the CPU runs everything: {:?}", summary.unsupported);
        assert_eq!(summary.passed, cases.len());
    }
}

#[test]
fn published_vectors_give_what_they_must() {
    let backend = CpuBackend::new();
    for device in &backend.discover().unwrap() {
        let mut engine = backend.open(device, &OpenOptions::default()).unwrap();
        let summary = vectors::check(&|op| backend.supports(device, op), &mut |op| run_one(engine.as_mut(), op));
        assert!(summary.failed.is_empty() && summary.unsupported.is_empty(), "{}: {summary}", device.id);
        assert!(summary.passed > 5000, "{summary}");
    }
}

#[test]
fn random_graphs_give_the_same_answer_fused_unfused_and_by_the_reference() {
    let backend = CpuBackend::new();
    let device = &backend.discover().unwrap()[0];
    // `PANOPLY_GRAPHS=n` runs n of them.
    let seeds = Seeds::or_asked(4000, 4000);
    let summary = check_graphs(&backend, device, seeds).unwrap();
    assert!(summary.failed.is_empty(), "{summary}");
    assert_eq!((summary.passed as u64, summary.unsupported.len()), (seeds.count, 0));
}
