//! The wgpu backend against the reference: the shared suite ([`panoply_wgsl_gpu_testing::suite`])
//! on the adapters of this machine. `PANOPLY_WGPU_CASES` selects its cases.

use panoply_conformance::print_op_names;
use panoply_wgpu::WgpuBackend;
use panoply_wgsl_gpu_testing::suite::Suite;

/// A software adapter runs every n-th case.
const SAMPLE: usize = 29;

fn with_suite(check: impl FnOnce(Suite<'_>)) {
    check(Suite { backend: &WgpuBackend::new(), sample: SAMPLE, cases_variable: "PANOPLY_WGPU_CASES" });
}

/// For scripts that check the ops side by side.
#[test]
fn list_of_ops() {
    print_op_names();
}

#[test]
fn every_claimed_case_on_every_gpu() {
    with_suite(|suite| suite.check_cases());
}

#[test]
fn suite_graphs_on_the_first_adapter() {
    with_suite(|suite| suite.check_suite_graphs());
}

#[test]
fn random_graphs_on_the_first_adapter() {
    with_suite(|suite| suite.check_random_graphs());
}

/// Random ops of every kind. `PANOPLY_OPS=n` runs n of them and `PANOPLY_SEED=s` starts at another
/// seed. With `PANOPLY_DEVICE=required` a missing GPU is a failure.
#[test]
fn random_ops_on_every_device() {
    panoply_conformance::run_ops(&WgpuBackend::new(), 80);
}
