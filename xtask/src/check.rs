//! `cargo xtask test`: everything that must pass before a change lands.
//!
//! Long tests take their number of rounds from an environment variable, and run few rounds without
//! it. `--all` sets all these variables, so nothing runs in one of the two commands alone.

use anyhow::{Result, bail};

use crate::process::{Workspace, run, say, succeeds};
use crate::rounds::LONG_TESTS;
use crate::steps::{self, Outcome, Step};
use crate::{loom, setup, tidy, valgrind};

/// The manifest of the library whose features are checked.
const LIBRARY: &str = "crates/panoply/Cargo.toml";
/// Features that are checked together without any other: the libraries without a backend.
const LIBRARIES: &str = "store,vector,signal,nn,ml";

/// The options of the command line.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Runs the long tests with many rounds.
    all: bool,
    /// Runs the remaining steps after a failure.
    keep_going: bool,
}

impl Options {
    /// Parses the arguments of `cargo xtask test`.
    pub fn parse(arguments: &[&str]) -> Result<Options> {
        let mut options = Options::default();
        for argument in arguments {
            match *argument {
                "--all" => options.all = true,
                "--keep-going" => options.keep_going = true,
                other => bail!("`test` has no option `{other}`"),
            }
        }
        Ok(options)
    }
}

/// Runs every check in order, cheapest first.
pub fn command(workspace: &Workspace, options: &Options) -> Result<()> {
    let all = options.all;
    let steps = [
        Step { name: "setup", work: setup::step },
        Step { name: "format", work: format },
        Step { name: "clippy", work: clippy },
        Step { name: "features", work: features },
        Step { name: "tidy", work: tidy::step },
        Step { name: "tests", work: if all { all_tests } else { tests } },
        Step { name: "doctests", work: doctests },
        Step { name: "loom", work: if all { loom::whole_step } else { loom::short_step } },
        Step { name: "valgrind", work: if all { valgrind::whole_step } else { valgrind::short_step } },
    ];
    steps::run(workspace, &steps, options.keep_going)
}

fn format(workspace: &Workspace) -> Result<Outcome> {
    run(&mut workspace.cargo("fmt --all --check"))?;
    Ok(Outcome::Passed)
}

fn clippy(workspace: &Workspace) -> Result<Outcome> {
    run(&mut workspace.cargo("clippy --workspace --all-targets -- -D warnings"))?;
    Ok(Outcome::Passed)
}

/// Checks the library with few features, as programs choose them: without any, and with each alone.
/// The other steps build the workspace with all its features together, which hides what one feature
/// lacks without the others.
fn features(workspace: &Workspace) -> Result<Outcome> {
    let manifest = std::fs::read_to_string(workspace.root.join(LIBRARY))?;
    let names = feature_names(&manifest);
    if names.is_empty() {
        bail!("{LIBRARY} has no features");
    }
    for features in ["", LIBRARIES].into_iter().chain(names) {
        let mut command = workspace.cargo("check --quiet -p panoply --no-default-features");
        if !features.is_empty() {
            command.args(["--features", features]);
        }
        run(&mut command)?;
    }
    Ok(Outcome::Passed)
}

/// The names in the table `[features]` of a manifest, without `default`.
fn feature_names(manifest: &str) -> Vec<&str> {
    let lines = manifest.lines().map(str::trim).skip_while(|line| *line != "[features]").skip(1);
    let table = lines.take_while(|line| !line.starts_with('['));
    let names = table.filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('='));
    names.map(|(name, _)| name.trim()).filter(|name| *name != "default").collect()
}

fn tests(workspace: &Workspace) -> Result<Outcome> {
    run_tests(workspace, &[])
}

fn all_tests(workspace: &Workspace) -> Result<Outcome> {
    run_tests(workspace, &LONG_TESTS)
}

/// Runs unit and integration tests. Benchmarks are left out: they are measured elsewhere, and
/// `cargo test` would run each of them.
fn run_tests(workspace: &Workspace, variables: &[(&str, &str)]) -> Result<Outcome> {
    let has_nextest = succeeds(&mut workspace.cargo("nextest --version"));
    let mut command = if has_nextest {
        let profile = if variables.is_empty() { "" } else { " --profile all" };
        workspace.cargo(&format!("nextest run --workspace{profile}"))
    } else {
        say("cargo-nextest is not installed: using `cargo test`");
        workspace.cargo("test --workspace --lib --bins --tests --examples --no-fail-fast")
    };
    command.envs(variables.iter().copied().filter(|(name, _)| std::env::var_os(name).is_none()));
    run(&mut command)?;
    Ok(Outcome::Passed)
}

fn doctests(workspace: &Workspace) -> Result<Outcome> {
    run(&mut workspace.cargo("test --doc --workspace"))?;
    Ok(Outcome::Passed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_feature_of_the_library_is_found() {
        let text = "[package]\nname = \"a\"\n\n[features]\ndefault = [\"one\"]\n# Off.\none = []\n\ntwo = [\"dep:b\"]\n[dependencies]\nb = \"1\"\n";
        assert_eq!(feature_names(text), ["one", "two"]);
        let names = feature_names(include_str!("../../crates/panoply/Cargo.toml"));
        assert!(names.len() >= 18 && names.contains(&"openvino") && names.contains(&"arrays"), "{names:?}");
    }

    #[test]
    fn options_are_parsed_in_any_order() {
        let both = Options { all: true, keep_going: true };
        assert_eq!(Options::parse(&["--keep-going", "--all"]).unwrap(), both);
        assert_eq!(Options::parse(&[]).unwrap(), Options::default());
        assert!(Options::parse(&["--everything"]).is_err());
    }
}
