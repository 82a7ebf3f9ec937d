//! `cargo xtask bench`: measures the costs of the runtime and of pipelines, then every op on every
//! device of this machine.

use anyhow::Result;

use crate::process::{Workspace, run};

/// The benchmarks that run before `panoply bench`.
const BENCHES: [&str; 2] = ["runtime", "pipelines"];

/// Builds with optimisation, runs the benchmarks and then `panoply bench` with `arguments`.
pub fn command(workspace: &Workspace, arguments: &[&str]) -> Result<()> {
    run(&mut workspace.cargo("build --release --package panoply-app"))?;
    for bench in BENCHES {
        run(&mut workspace.cargo(&format!("bench --workspace --bench {bench}")))?;
    }
    run(workspace.cargo("run --release --package panoply-app -- bench").args(arguments))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// Benchmarks of data sets that fill a disk for minutes: `docs/performance.md` says how to run
    /// them.
    const BY_HAND: [&str; 1] = ["vectors"];

    #[test]
    fn every_benchmark_of_the_workspace_runs() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
        let mut found = Vec::new();
        for package in fs::read_dir(crates).expect("the folder can be read").flatten() {
            let Ok(manifest) = fs::read_to_string(package.path().join("Cargo.toml")) else { continue };
            let benches = manifest.split("[[bench]]").skip(1).filter_map(|bench| bench.split('"').nth(1));
            found.extend(benches.map(str::to_owned));
        }
        found.sort_unstable();
        let mut known: Vec<&str> = BENCHES.into_iter().chain(BY_HAND).collect();
        known.sort_unstable();
        assert_eq!(found, known);
    }
}
