//! The CPU backend against the reference: every case of the suite, on every device of this machine.

use panoply_conformance::{
    Seeds, cases, check_backend, check_graphs, check_suite_graphs, few_or_all, run_one, vectors, wrong_domains,
};
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
        assert_eq!(wrong_domains(&backend, device), []);
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
    let seeds = few_or_all(Seeds::or_asked(1500, 1500), Seeds::or_asked(100_000, 100_000));
    let summary = check_graphs(&backend, device, seeds).unwrap();
    assert!(summary.failed.is_empty(), "{summary}");
    assert_eq!((summary.passed as u64, summary.unsupported.len()), (seeds.count, 0));
}

#[test]
fn graphs_of_every_op_of_the_suite_give_the_same_answers_again_and_again() {
    let backend = CpuBackend::new();
    let device = &backend.discover().unwrap()[0];
    let seeds = few_or_all(Seeds::or_asked(400, 400), Seeds::or_asked(4000, 4000));
    let summary = check_suite_graphs(&backend, device, seeds).unwrap();
    assert!(summary.failed.is_empty(), "{summary}");
    assert!(summary.passed as u64 > seeds.count && summary.unsupported.is_empty(), "{:?}", summary.unsupported);
}

/// Random ops of every kind. `PANOPLY_OPS=n` runs n of them, `PANOPLY_SEED=s` uses another seed,
/// and `PANOPLY_DEVICE=required` fails without a device.
#[test]
fn random_ops_agree_with_the_reference() {
    panoply_conformance::run_ops(&CpuBackend::new(), 3000);
}
