//! The conformance suite on the devices of one backend: every case that a device claims, and graphs
//! of random structure.
//!
//! Hardware runs every case. A software driver takes a second to compile a kernel, so it runs every
//! n-th case, and only if there is no hardware. The backend's own variable selects cases:
//! `PANOPLY_VULKAN_CASES=all` runs all cases on every device, `PANOPLY_VULKAN_CASES=matmul/` the
//! cases whose names contain `matmul/`. `PANOPLY_CASES=matmul/` runs the cases whose names begin
//! with it.

use panoply_conformance::{Case, Seeds, Summary, cases, check_backend, devices, discovered, wrong_domains};
use panoply_core::{Backend, DeviceInfo, DeviceKind};

/// Engines that share the cases of one device.
const ENGINES: usize = 2;

/// A backend and the extent of the suite on its devices.
pub struct Suite<'a> {
    pub backend: &'a dyn Backend,
    /// A software driver runs every n-th case.
    pub sample: usize,
    /// The environment variable that selects cases of this backend.
    pub cases_variable: &'static str,
}

impl Suite<'_> {
    /// Runs the cases on every device, and expects that a device runs each case that it claims.
    pub fn check_cases(&self) {
        let devices = discovered(self.backend);
        let chosen = CaseSelection::by_environment(self.cases_variable);
        let has_hardware = devices.iter().any(|device| device.kind != DeviceKind::SoftwareGpu);
        for device in &devices {
            let is_software = device.kind == DeviceKind::SoftwareGpu;
            if is_software && has_hardware && !chosen.on_software {
                println!("skipped: {} {}: there is hardware", device.id, device.name);
                continue;
            }
            assert_eq!(wrong_domains(self.backend, device), [], "{}", device.id);
            let cases = chosen.cases(if is_software { self.sample } else { 1 });
            assert!(!cases.is_empty(), "no case has that name");
            let Summary { passed, failed, unsupported } = check(self.backend, device, &cases);
            println!("{} {}: {passed} passed, {} unsupported", device.id, device.name, unsupported.len());
            for (name, reason) in &unsupported {
                println!("  unsupported: {name}: {reason}");
            }
            assert!(failed.is_empty(), "{}: {} failed: {failed:#?}", device.id, failed.len());
            assert_eq!(passed + unsupported.len(), cases.len(), "{}: not all cases ran", device.id);
            assert!(passed > 0 || chosen.all, "{}: nothing ran", device.id);
        }
    }

    /// Runs graphs of the suite's ops on the first device. Devices do not claim all element types,
    /// so some graphs are unsupported.
    pub fn check_suite_graphs(&self) {
        let Some(device) = devices(self.backend).into_iter().next() else { return };
        let seeds = Seeds::or_asked(16, 16);
        let summary = panoply_conformance::check_suite_graphs(self.backend, &device, seeds).unwrap();
        println!("{} {}: {} passed, {} unsupported", device.id, device.name, summary.passed, summary.unsupported.len());
        assert!(summary.failed.is_empty(), "PANOPLY_SEED={}: {summary}", seeds.first);
        assert!((summary.passed + summary.unsupported.len()) as u64 > seeds.count, "not all graphs ran");
        assert!(summary.passed > summary.unsupported.len(), "{:?}", summary.unsupported);
    }

    /// Runs random graphs on the first device. Each structure has kernels of its own, which a
    /// software driver compiles in a second each, so the graphs share a few structures.
    /// `PANOPLY_GRAPHS=n` runs n different structures and `PANOPLY_SEED=s` starts at another seed.
    /// With `PANOPLY_DEVICE=required` a missing GPU is a failure.
    pub fn check_random_graphs(&self) {
        let Some(device) = devices(self.backend).into_iter().next() else { return };
        let seeds = Seeds::or_asked(120, 12);
        let summary = panoply_conformance::check_graphs(self.backend, &device, seeds).unwrap();
        assert!(summary.failed.is_empty(), "PANOPLY_SEED={}: {summary}", seeds.first);
        assert_eq!(summary.passed as u64 + summary.unsupported.len() as u64, seeds.count);
        assert!(summary.passed > 0, "{:?}", summary.unsupported);
    }
}

/// The cases that the environment selects.
struct CaseSelection {
    /// Whether all cases are run, and not a sample.
    all: bool,
    /// Whether software drivers run cases even if there is hardware.
    on_software: bool,
    /// Part of the names of the cases.
    part: String,
    /// Start of the names of the cases.
    prefix: String,
}

impl CaseSelection {
    fn by_environment(cases_variable: &str) -> CaseSelection {
        let variable = |name: &str| std::env::var(name).ok();
        let (part, prefix) = (variable(cases_variable), variable("PANOPLY_CASES"));
        let (on_software, all) = (part.is_some(), part.is_some() || prefix.is_some());
        let part = part.filter(|part| part != "all").unwrap_or_default();
        CaseSelection { all, on_software, part, prefix: prefix.unwrap_or_default() }
    }

    fn cases(&self, step: usize) -> Vec<Case> {
        let step = if self.all { 1 } else { step };
        let wanted = |case: &Case| case.name.contains(&self.part) && case.name.starts_with(&self.prefix);
        cases().into_iter().filter(wanted).step_by(step).collect()
    }
}

/// Runs the cases on a few engines at once, and sums up their results.
fn check(backend: &dyn Backend, device: &DeviceInfo, cases: &[Case]) -> Summary {
    let shares: Vec<Vec<Case>> =
        (0..ENGINES).map(|share| cases.iter().skip(share).step_by(ENGINES).cloned().collect()).collect();
    let summaries: Vec<Summary> = std::thread::scope(|scope| {
        let run = |share: &'_ Vec<Case>| check_backend(backend, device, share).unwrap();
        let workers: Vec<_> = shares.iter().map(|share| scope.spawn(move || run(share))).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    let passed = summaries.iter().map(|summary| summary.passed).sum();
    let failed = summaries.iter().flat_map(|summary| summary.failed.clone()).collect();
    let unsupported = summaries.into_iter().flat_map(|summary| summary.unsupported).collect();
    Summary { passed, failed, unsupported }
}
