//! `cargo xtask bench`: measures the runtime's own costs, then every op on every device of this
//! machine.

use anyhow::Result;

use crate::process::{Workspace, run};

/// Builds with optimisation, runs the runtime's benchmarks and then `panoply bench` with
/// `arguments`.
pub fn command(workspace: &Workspace, arguments: &[&str]) -> Result<()> {
    run(&mut workspace.cargo("build --release --package panoply-app"))?;
    run(&mut workspace.cargo("bench --package panoply-runtime --bench runtime"))?;
    run(workspace.cargo("run --release --package panoply-app -- bench").args(arguments))
}
