//! The layers of the architecture, as data: which crate may depend on which.

use super::manifest::{Dependency, Manifest};
use super::report::Report;

/// A layer, and the layers that it may use. Tests (`dev-dependencies`) may use any layer.
const LAYERS: &[(&str, &[&str])] = &[
    ("app", &["panoply"]),
    (
        "panoply",
        &[
            "vector",
            "radio",
            "store",
            "arrays",
            "nn",
            "pipeline",
            "inputs",
            "models",
            "serve",
            "runtime",
            "placement",
            "backends",
            "whole_model",
            "kernels",
            "simulated",
            "graph",
            "core",
        ],
    ),
    ("radio", &["runtime", "core"]),
    ("vector", &["store", "runtime", "core"]),
    ("store", &["runtime", "core"]),
    ("arrays", &["nn", "runtime", "core"]),
    ("nn", &["pipeline", "runtime", "core"]),
    ("serve", &["models", "inputs", "runtime", "lockfree", "core"]),
    // The steps of recurrent layers, as pure functions over slices: these kernels know no backend.
    ("models", &["cpu_kernels", "runtime", "core"]),
    ("inputs", &["core"]),
    ("pipeline", &["runtime", "lockfree", "core"]),
    ("runtime", &["lockfree", "placement", "core"]),
    ("lockfree", &["core"]),
    ("placement", &["core"]),
    (
        "backends",
        &["cpu_kernels", "c_gpu", "wgsl_gpu", "whole_model", "sensors", "kernels", "graph", "placement", "core"],
    ),
    ("cpu_kernels", &["cpu_kernels", "core"]),
    ("c_gpu", &["kernels", "graph", "placement", "core"]),
    ("wgsl_gpu", &["sensors", "kernels", "graph", "core"]),
    ("whole_model", &["core"]),
    ("sensors", &["core"]),
    ("graph", &["core"]),
    ("kernels", &["core"]),
    ("conformance", &["simulated", "core"]),
    ("gpu_testing", &["c_gpu", "wgsl_gpu", "conformance", "runtime", "backends", "kernels", "core"]),
    ("simulated", &["core"]),
    ("counting_allocator", &[]),
    ("core", &[]),
    ("xtask", &[]),
];

/// Folders among the backends that hold code shared by several backends. They are separate layers.
const SHARED_BY_BACKENDS: [&str; 4] = ["c_gpu", "sensors", "wgsl_gpu", "whole_model"];

/// Crates that only programs may use: a library has typed errors and does not parse command lines.
const PROGRAMS_ONLY: [&str; 2] = ["anyhow", "clap"];
const PROGRAMS: [&str; 2] = ["app", "xtask"];

/// Checks every dependency between the repository's packages.
pub fn check(manifests: &[Manifest], report: &mut Report) {
    for manifest in manifests.iter().filter(|manifest| !manifest.package.is_empty()) {
        // Examples, fuzz targets and similar packages are outside the layers and may use anything.
        let Some(layer) = layer_of(&manifest.file) else { continue };
        let Some((_, allowed)) = LAYERS.iter().find(|(name, _)| *name == layer) else {
            report.fail("layers", &manifest.file, 0, format!("the layer `{layer}` is not in the table of layers"));
            continue;
        };
        for dependency in &manifest.dependencies {
            check_dependency(manifests, manifest, layer, allowed, dependency, report);
        }
    }
}

fn check_dependency(
    manifests: &[Manifest],
    manifest: &Manifest,
    layer: &str,
    allowed: &[&str],
    dependency: &Dependency,
    report: &mut Report,
) {
    let name = dependency.package.as_str();
    if PROGRAMS_ONLY.contains(&name) && !PROGRAMS.contains(&layer) {
        report.fail("layers", &manifest.file, dependency.line, format!("`{name}` is for programs only"));
    }
    let Some(target) = manifests.iter().find(|other| other.package == name) else { return };
    let target_layer = layer_of(&target.file);
    if !target_layer.is_some_and(|target_layer| allowed.contains(&target_layer)) {
        let text = format!("`{layer}` must not depend on `{name}`; it may use: {}", allowed.join(", "));
        report.fail("layers", &manifest.file, dependency.line, text);
    }
}

/// Returns the layer of a manifest's package: `crates/<layer>/…`, code or tests shared by backends,
/// the CPU's kernels, or `xtask`.
fn layer_of(file: &str) -> Option<&str> {
    let mut parts = file.split('/');
    match parts.next()? {
        "crates" => match (parts.next()?, parts.next(), parts.next()) {
            ("backends", Some("cpu"), Some("kernels")) => Some("cpu_kernels"),
            ("backends", Some(_), Some("testing")) => Some("gpu_testing"),
            ("backends", Some(shared), _) if SHARED_BY_BACKENDS.contains(&shared) => Some(shared),
            (layer, ..) => Some(layer),
        },
        "xtask" => Some("xtask"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks a repository of packages, each given by its folder, its name and its dependencies.
    fn broken(packages: &[(&str, &str, &[&str])]) -> Vec<String> {
        let manifests: Vec<Manifest> = packages
            .iter()
            .map(|(folder, package, dependencies)| Manifest {
                file: format!("{folder}/Cargo.toml"),
                package: package.to_string(),
                dependencies: dependencies
                    .iter()
                    .map(|name| Dependency { package: name.to_string(), line: 1 })
                    .collect(),
            })
            .collect();
        let mut report = Report::default();
        check(&manifests, &mut report);
        report.findings.into_iter().map(|finding| format!("{}: {}", finding.file, finding.text)).collect()
    }

    #[test]
    fn the_planned_arrows_are_allowed() {
        let found = broken(&[
            ("crates/core", "panoply-core", &["half"]),
            ("crates/kernels", "panoply-kernels", &["panoply-core"]),
            ("crates/lockfree", "panoply-lockfree", &["panoply-core"]),
            ("crates/placement", "panoply-placement", &["panoply-core"]),
            ("crates/runtime", "panoply-runtime", &["panoply-core", "panoply-lockfree", "panoply-placement"]),
            ("crates/pipeline", "panoply-pipeline", &["panoply-runtime", "panoply-lockfree"]),
            ("crates/backends/cpu", "panoply-cpu", &["panoply-core", "panoply-kernels"]),
            ("crates/backends/c_gpu", "panoply-c-gpu", &["panoply-core", "panoply-kernels"]),
            ("crates/backends/cuda", "panoply-cuda", &["panoply-core", "panoply-c-gpu"]),
            ("crates/backends/c_gpu/testing", "panoply-c-gpu-testing", &["panoply-c-gpu", "panoply-cpu"]),
            ("crates/simulated", "panoply-simulated", &["panoply-core"]),
            ("crates/conformance", "panoply-conformance", &["panoply-core", "panoply-simulated"]),
            ("crates/vector", "panoply-vector", &["panoply-runtime"]),
            ("crates/panoply", "panoply", &["panoply-cpu", "panoply-simulated", "panoply-vector", "panoply-core"]),
            ("crates/app", "panoply-app", &["panoply", "clap", "anyhow"]),
            ("examples", "examples", &["panoply", "panoply-cpu", "anyhow"]),
            ("xtask", "xtask", &["anyhow"]),
        ]);
        assert_eq!(found, [] as [&str; 0]);
    }

    #[test]
    fn arrows_the_other_way_are_broken() {
        let core = ("crates/core", "panoply-core", &[] as &[&str]);
        let cpu = ("crates/backends/cpu", "panoply-cpu", &[] as &[&str]);
        let found = broken(&[core, cpu, ("crates/runtime", "panoply-runtime", &["panoply-core", "panoply-cpu"])]);
        let may_use = "it may use: lockfree, placement, core";
        assert_eq!(
            found,
            [format!("crates/runtime/Cargo.toml: `runtime` must not depend on `panoply-cpu`; {may_use}")]
        );
        let runtime = ("crates/runtime", "panoply-runtime", &[] as &[&str]);
        let found = broken(&[runtime, ("crates/lockfree", "panoply-lockfree", &["panoply-runtime"])]);
        assert_eq!(found.len(), 1, "the lock-free parts know no runtime");
        let found = broken(&[cpu, ("crates/backends/cuda", "panoply-cuda", &["panoply-cpu"])]);
        assert_eq!(found.len(), 1, "backends do not know each other");
        let found = broken(&[cpu, ("crates/backends/c_gpu", "panoply-c-gpu", &["panoply-cpu"])]);
        assert_eq!(found.len(), 1, "what backends share knows none of them");
        let found = broken(&[core, ("crates/app", "panoply-app", &["panoply-core"])]);
        assert_eq!(found.len(), 1, "the app uses the façade");
        let found = broken(&[("examples", "examples", &[]), ("crates/core", "panoply-core", &["examples"])]);
        assert_eq!(found.len(), 1, "nothing depends on examples");
    }

    #[test]
    fn a_new_layer_must_be_entered_in_the_table() {
        assert_eq!(broken(&[("crates/extra", "panoply-extra", &[])]).len(), 1);
    }

    #[test]
    fn libraries_do_not_use_what_belongs_to_programs() {
        let found = broken(&[("crates/core", "panoply-core", &["anyhow"])]);
        assert_eq!(found, ["crates/core/Cargo.toml: `anyhow` is for programs only"]);
    }
}
