//! `cargo xtask audit`: checks the dependencies' licences, advisories, bans and sources against
//! `deny.toml`.

use anyhow::{Result, bail};

use crate::process::{Workspace, run, succeeds};

/// Runs cargo-deny. Without `checks` it runs all four; the advisories need the network.
pub fn command(workspace: &Workspace, checks: &[&str]) -> Result<()> {
    if !succeeds(&mut workspace.cargo("deny --version")) {
        bail!("cargo-deny is not installed; install it with `cargo install cargo-deny --locked`");
    }
    let all = ["licenses", "advisories", "bans", "sources"];
    let checks = if checks.is_empty() { &all } else { checks };
    run(workspace.cargo("deny check").args(checks))
}
