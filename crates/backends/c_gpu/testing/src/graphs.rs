//! Random graphs, and graphs of the suite's own ops, on the devices of a backend: each runs several
//! times on other inputs, and all answers are looked at again at the end.
//!
//! `PANOPLY_GRAPHS=n` runs n different ones of each kind, `PANOPLY_SEED=s` from another seed. With
//! `PANOPLY_DEVICE=required` a missing device is a failure.

use panoply_conformance::{Seeds, Summary, check_graphs, check_suite_graphs, devices};
use panoply_core::{Backend, DeviceInfo};

/// Runs `seeds.count` random graphs on each device. A graph whose types a device lacks (some have
/// no f64) counts as unsupported.
pub fn random(backend: &dyn Backend, count: u64, structures: u64) {
    let seeds = Seeds::or_asked(count, structures);
    for device in devices(backend) {
        let summary = check_graphs(backend, &device, seeds).unwrap();
        told(&device, "random graphs", &summary, seeds);
        let others: Vec<_> = summary.unsupported.iter().filter(|(_, reason)| !reason.contains("f64")).collect();
        assert!(others.is_empty() && summary.passed > summary.unsupported.len(), "{:?}", summary.unsupported);
    }
}

/// Graphs of the suite's ops on each device. Devices do not claim all element types.
pub fn of_the_suite(backend: &dyn Backend, count: u64) {
    let seeds = Seeds::or_asked(count, count);
    for device in devices(backend) {
        let summary = check_suite_graphs(backend, &device, seeds).unwrap();
        told(&device, "graphs of the suite's ops", &summary, seeds);
        assert!(summary.passed > summary.unsupported.len(), "{:?}", summary.unsupported);
    }
}

fn told(device: &DeviceInfo, what: &str, summary: &Summary, seeds: Seeds) {
    let Summary { passed, failed, unsupported } = summary;
    println!("{}: {what} from seed {}: {passed} passed, {} unsupported", device.id, seeds.first, unsupported.len());
    assert!(failed.is_empty(), "{} with PANOPLY_SEED={}: {summary}", device.id, seeds.first);
    assert!((passed + unsupported.len()) as u64 >= seeds.count, "not all graphs ran");
}
