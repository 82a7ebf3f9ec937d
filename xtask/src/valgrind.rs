//! Runs unit tests under valgrind's memcheck, which finds reads of uninitialised or freed memory,
//! out-of-bounds writes and leaks.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::artifacts::test_programs;
use crate::process::{Workspace, capture, find_program, run};
use crate::steps::Outcome;

/// The tests to run: the crate whose library tests are built, the filters that select tests (all
/// tests if empty), and the tests to skip.
struct TestSelection<'a> {
    library: &'static str,
    filters: &'a [&'a str],
    skipped: &'a [&'a str],
}

/// Skips a graph of 100,000 nodes, which takes a minute under memcheck and runs only safe code, and
/// a fork whose child ends at once: memcheck counts what the child did not free, and changes its
/// exit code.
const CORE: TestSelection<'static> = TestSelection {
    library: "panoply_core",
    filters: &[],
    skipped: &["a_graph_of_many_nodes_is_recorded_and_instantiated", "a_fork_waits_for_no_thread_of_its_parent"],
};
const LOCKFREE: TestSelection<'static> =
    TestSelection { library: "panoply_lockfree", filters: &["queue::", "slot::", "sleeper::"], skipped: &[] };
const RUNTIME: TestSelection<'static> =
    TestSelection { library: "panoply_runtime", filters: &["flights::"], skipped: &[] };
const CPU: TestSelection<'static> =
    TestSelection { library: "panoply_cpu_machine", filters: &["team", "memory"], skipped: &[] };

/// The number of cases that property tests draw here. Memcheck makes each case about thirty times
/// slower.
const PROPERTY_CASES: &str = "8";

/// Runs every target. With `filters`, runs the tests of the CPU backend's threads and memory that
/// match them. Fails if valgrind is missing, because the user asked for valgrind by name.
pub fn command(workspace: &Workspace, filters: &[&str]) -> Result<()> {
    if find_program("valgrind").is_none() {
        bail!("valgrind is not installed; on Debian: apt-get install valgrind");
    }
    let targets =
        if filters.is_empty() { vec![CORE, LOCKFREE, RUNTIME, CPU] } else { vec![TestSelection { filters, ..CPU }] };
    memcheck(workspace, &targets).map(drop)
}

/// Runs the tests of the core crate, of the lock-free parts and of the runtime's table of flights.
/// Skipped if valgrind is missing.
pub fn short_step(workspace: &Workspace) -> Result<Outcome> {
    step(workspace, &[CORE, LOCKFREE, RUNTIME])
}

/// Runs every target. Skipped if valgrind is missing.
pub fn whole_step(workspace: &Workspace) -> Result<Outcome> {
    step(workspace, &[CORE, LOCKFREE, RUNTIME, CPU])
}

fn step(workspace: &Workspace, targets: &[TestSelection<'_>]) -> Result<Outcome> {
    if find_program("valgrind").is_none() {
        return Ok(Outcome::Skipped("valgrind is not installed".to_string()));
    }
    memcheck(workspace, targets)
}

fn memcheck(workspace: &Workspace, targets: &[TestSelection<'_>]) -> Result<Outcome> {
    // Builds the whole workspace, as for the tests, so that no crate is built twice with different
    // features.
    let messages = capture(&mut workspace.cargo("test --workspace --lib --no-run --message-format=json"))?;
    let programs = test_programs(&messages);
    for target in targets {
        let program = programs.iter().find(|program| program.target == target.library);
        let binary = &program.with_context(|| format!("cargo named no test program for {}", target.library))?.path;
        every_filter_matches(workspace, binary, target)?;
        let mut command = workspace.command("valgrind");
        command
            .args(["--quiet", "--error-exitcode=99", "--leak-check=full"])
            .args(["--show-leak-kinds=definite", "--errors-for-leak-kinds=definite"])
            // Without fair scheduling, a spinning thread would starve the thread that it waits for.
            .arg("--fair-sched=yes")
            .arg(binary)
            .args(["--test-threads=1"])
            .args(target.filters)
            .args(target.skipped.iter().flat_map(|name| ["--skip", *name]))
            .env("PROPTEST_CASES", PROPERTY_CASES)
            // Memcheck does not support AVX-512.
            .env("PANOPLY_SIMD", "avx2");
        run(&mut command)?;
    }
    Ok(Outcome::Passed)
}

/// Fails if a filter matches no test: such a run would pass without doing anything.
fn every_filter_matches(workspace: &Workspace, binary: &Path, target: &TestSelection<'_>) -> Result<()> {
    let names = capture(workspace.command(binary).arg("--list"))?;
    let tests: Vec<&str> = names.lines().filter_map(|line| line.strip_suffix(": test")).collect();
    if tests.is_empty() {
        bail!("{} has no unit tests", target.library);
    }
    match target.filters.iter().chain(target.skipped).find(|filter| !tests.iter().any(|test| test.contains(**filter))) {
        Some(filter) => bail!("no unit test of {} matches `{filter}`", target.library),
        None => Ok(()),
    }
}
