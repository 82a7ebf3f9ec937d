//! The abacus in Panoply: the device is found, conforms, is routed to, health-checked and learned
//! about like every other device.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::sync::Arc;

use own_backend::{ABACUS, AbacusBackend, CountBytes, OpenCounter};
use panoply::backend::Backend;
use panoply::op::compute::Sort;
use panoply::{Bytes, DeviceId, RunOptions, Runtime, Tensor};
use panoply_conformance::{cases, check_backend, wrong_domains};

const DEVICE: DeviceId = DeviceId { api: ABACUS, index: 0 };

fn runtime() -> Runtime {
    Runtime::builder().backend(Arc::new(AbacusBackend)).without_profile().build().unwrap()
}

#[test]
fn it_passes_the_conformance_suite_as_far_as_it_claims() {
    let device = AbacusBackend.discover().unwrap().remove(0);
    let summary = check_backend(&AbacusBackend, &device, &cases()).unwrap();
    assert!(summary.failed.is_empty(), "{summary}");
    assert!(summary.passed >= 10, "{summary}");
    assert_eq!(wrong_domains(&AbacusBackend, &device), []);
}

#[test]
fn it_is_listed_and_examined_beside_the_others() {
    let runtime = runtime();
    assert!(runtime.devices().any(|device| device.id == DEVICE));
    assert!(runtime.backends().iter().any(|backend| backend.api == ABACUS && backend.devices.is_ok()));
    let numbers = Tensor::from_vec((0..5000_u16).rev().map(f32::from).collect(), [5000]).unwrap();
    let outcome = runtime.run_with(Sort::new(&numbers), RunOptions::require(DEVICE)).with_report().wait().unwrap();
    assert_eq!(outcome.report.device, DEVICE);
    assert_eq!(outcome.output.as_slice::<f32>().unwrap()[..3], [0.0, 1.0, 2.0]);
    let worker = runtime.workers().into_iter().find(|worker| worker.device == DEVICE).unwrap();
    assert_eq!((worker.counters.completed, worker.counters.failed), (1, 0));
    assert_eq!(worker.health.vitals.temperature_celsius, Some(21.0));
}

#[test]
fn the_router_learns_about_it_and_takes_part_of_the_work_there() {
    let runtime = runtime();
    let numbers = Tensor::from_vec((0..20_000_u16).rev().map(f32::from).collect(), [20_000]).unwrap();
    let pending: Vec<_> = (0..300).map(|_| runtime.run(Sort::new(&numbers)).with_report()).collect();
    let devices: Vec<DeviceId> = pending.into_iter().map(|op| op.wait().unwrap().report.device).collect();
    assert!(devices.contains(&DEVICE), "{devices:?}");
    let profile = runtime.profile();
    let own = profile.devices.iter().find(|device| device.identity.api == "abacus").unwrap();
    assert!(own.ops.iter().any(|op| op.op == "sort"));
}

#[test]
fn its_own_ops_and_objects_work_through_the_runtime() {
    let runtime = runtime();
    let counter = runtime.run(OpenCounter).wait().unwrap();
    for round in 1..=3 {
        let message = Bytes::from_vec(b"abacus".to_vec());
        let sums = runtime.run(CountBytes { counter: counter.clone(), message }).wait().unwrap();
        assert_eq!(sums.as_slice::<u32>().unwrap()[usize::from(b'a')], 2 * round);
    }
}

/// Runs the command that includes the abacus, and returns its output.
fn command(arguments: &[&str]) -> String {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_panoply-abacus")).args(arguments).output().unwrap();
    let (out, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {out}{errors}");
    out.into_owned()
}

#[test]
fn the_command_lists_it_explains_it_and_measures_it() {
    assert!(command(&["devices"]).contains("Example abacus"));
    let measured =
        command(&["bench", "sort/f32/16Mi", "--api", "abacus", "--json", "--seconds", "0.05", "--repeats", "2"]);
    assert!(measured.contains("abacus:0"), "{measured}");
}
