//! `cargo xtask test`: everything that must pass before a change lands.

use anyhow::Result;

use crate::process::{Workspace, run, say, succeeds};
use crate::steps::{self, Outcome, Step};
use crate::{loom, setup, tidy, valgrind};

/// Runs every check in order, cheapest first.
pub fn everything(workspace: &Workspace, keep_going: bool) -> Result<()> {
    let steps = [
        Step { name: "setup", work: setup::step },
        Step { name: "format", work: format },
        Step { name: "clippy", work: clippy },
        Step { name: "tidy", work: tidy::step },
        Step { name: "tests", work: tests },
        Step { name: "doctests", work: doctests },
        Step { name: "loom", work: loom::step },
        Step { name: "valgrind", work: valgrind::short_step },
    ];
    steps::run(workspace, &steps, keep_going)
}

fn format(workspace: &Workspace) -> Result<Outcome> {
    run(&mut workspace.cargo("fmt --all --check"))?;
    Ok(Outcome::Passed)
}

fn clippy(workspace: &Workspace) -> Result<Outcome> {
    run(&mut workspace.cargo("clippy --workspace --all-targets -- -D warnings"))?;
    Ok(Outcome::Passed)
}

/// Runs unit and integration tests. Benchmarks are left out: they are measured elsewhere, and
/// `cargo test` would run each of them.
fn tests(workspace: &Workspace) -> Result<Outcome> {
    if succeeds(&mut workspace.cargo("nextest --version")) {
        run(&mut workspace.cargo("nextest run --workspace"))?;
    } else {
        say("cargo-nextest is not installed: using `cargo test`");
        run(&mut workspace.cargo("test --workspace --lib --bins --tests --examples --no-fail-fast"))?;
    }
    Ok(Outcome::Passed)
}

fn doctests(workspace: &Workspace) -> Result<Outcome> {
    run(&mut workspace.cargo("test --doc --workspace"))?;
    Ok(Outcome::Passed)
}
