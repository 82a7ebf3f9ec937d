//! Every case of the suite that the simulated card claims, against the reference. Without Verilator
//! the test is skipped, and prints the reason.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::collections::BTreeMap;

use panoply_conformance::{cases, check_backend, wrong_domains};
use panoply_core::{Absence, Backend};
use panoply_fpga::FpgaBackend;

#[test]
fn every_case_that_the_simulated_card_claims() {
    let backend = FpgaBackend::simulated();
    let device = match backend.discover() {
        Ok(mut devices) => devices.remove(0),
        Err(Absence::NoDevice { reason }) if reason.ends_with("is not installed") => {
            return println!("skipped: {reason}");
        }
        Err(absence) => panic!("{absence}"),
    };
    let wanted = std::env::var("PANOPLY_CASES").unwrap_or_default();
    let mut ours = cases();
    ours.retain(|case| case.name.starts_with(&wanted));
    let summary = check_backend(&backend, &device, &ours).unwrap();
    assert!(summary.failed.is_empty(), "{summary}");
    assert_eq!(wrong_domains(&backend, &device), []);
    println!("{summary}");
    if wanted.is_empty() {
        let mut claimed: BTreeMap<&str, usize> = BTreeMap::new();
        let is_claimed = |name: &str| summary.unsupported.iter().all(|(other, _)| other != name);
        for case in ours.iter().filter(|case| backend.supports(&device, &case.op).is_yes()) {
            assert!(is_claimed(&case.name));
            *claimed.entry(case.name.split('/').next().unwrap()).or_default() += 1;
        }
        println!("{claimed:?}");
        for (op, least) in [("crc", 10), ("fft", 4), ("fir", 30), ("ifft", 2), ("viterbi", 100)] {
            assert!(claimed.get(op).is_some_and(|count| *count >= least), "{op}: {claimed:?}");
        }
        assert!(summary.unsupported.iter().all(|(_, reason)| !reason.is_empty()));
    }
}
