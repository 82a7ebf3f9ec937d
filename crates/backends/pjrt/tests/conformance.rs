//! Every case of the suite, random graphs and resident values, on every device that a plugin shows.
//! `PANOPLY_PJRT_PLUGINS` names plugins. `PANOPLY_CASES=prefix` runs the cases whose names begin
//! with the prefix. With `PANOPLY_DEVICE=required` a missing device is a failure.

#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use panoply_conformance::{Case, Seeds, cases, check_backend, check_graphs, devices, wrong_domains};
use panoply_core::DeviceInfo;
use panoply_pjrt::PjrtBackend;

/// Processors run every n-th case unless `PANOPLY_CASES` is set: their programs are compiled one by
/// one, which takes long.
const SAMPLE: usize = 53;

fn on_devices(test: impl Fn(&PjrtBackend, &DeviceInfo)) {
    let backend = PjrtBackend::new();
    devices(&backend).iter().for_each(|device| test(&backend, device));
}

fn chosen(device: &DeviceInfo) -> Vec<Case> {
    let all = cases();
    match std::env::var("PANOPLY_CASES") {
        Ok(prefix) => all.into_iter().filter(|case| case.name.starts_with(&prefix)).collect(),
        Err(_) if device.runs_on_cores => all.into_iter().step_by(SAMPLE).collect(),
        Err(_) => all,
    }
}

#[test]
fn cases_agree_on_every_device() {
    on_devices(|backend, device| {
        let summary = check_backend(backend, device, &chosen(device)).unwrap();
        println!("{} {}: {summary}", device.id, device.name);
        assert!(summary.failed.is_empty() && summary.passed > 0, "{} failed", summary.failed.len());
        assert_eq!(wrong_domains(backend, device), []);
    });
}

#[test]
fn random_graphs_agree_on_every_device() {
    on_devices(|backend, device| {
        let summary = check_graphs(backend, device, Seeds::or_asked(40, 40)).unwrap();
        println!("{} {}: {summary}", device.id, device.name);
        assert!(summary.failed.is_empty() && summary.passed > 0, "{} failed", summary.failed.len());
    });
}

/// Random ops of every kind. `PANOPLY_OPS=n` runs n of them, and `PANOPLY_SEED=s` starts at another
/// seed.
#[test]
fn random_ops_agree_on_every_device() {
    panoply_conformance::run_ops(&PjrtBackend::new(), 40);
}
