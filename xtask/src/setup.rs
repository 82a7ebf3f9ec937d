//! `cargo xtask setup`: checks and installs the tools and system packages that the tests need.
//!
//! Missing parts of the toolchain are an error, because no check can run without them. A missing
//! system package is not an error: the tests that need it report themselves as skipped, and this
//! step lists these tests and how to get the package.

use std::path::Path;

use anyhow::{Result, bail};

use crate::process::{Workspace, find_program, run, say, succeeds};
use crate::steps::{self, Outcome, Step};

const SYSTEM_PACKAGES: &str = include_str!("../system-packages.txt");
const LIBRARY_FOLDERS: [&str; 5] = ["/lib", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/local/lib64"];

/// Runs the setup step alone.
pub fn command(workspace: &Workspace) -> Result<()> {
    steps::run(workspace, &[Step { name: "setup", work: step }], false)
}

/// Checks the toolchain and the system packages, and installs missing ones if possible.
pub fn step(workspace: &Workspace) -> Result<Outcome> {
    toolchain_component(workspace, "rustfmt", "fmt --version")?;
    toolchain_component(workspace, "clippy", "clippy --version")?;
    for (program, answer, without) in [
        ("cargo-nextest", succeeds(&mut workspace.cargo("nextest --version")), "tests run with `cargo test`"),
        ("valgrind", find_program("valgrind").is_some(), "the valgrind step is skipped"),
    ] {
        say(&if answer { format!("{program}: found") } else { format!("{program}: not installed, {without}") });
    }
    system_packages(workspace)
}

fn toolchain_component(workspace: &Workspace, component: &str, probe: &str) -> Result<()> {
    if succeeds(&mut workspace.cargo(probe)) {
        say(&format!("{component}: found"));
        return Ok(());
    }
    if find_program("rustup").is_none() {
        bail!("{component} is not installed, and neither is rustup, which could add it");
    }
    run(workspace.command("rustup").args(["component", "add", component]))
}

/// One line of `system-packages.txt`.
#[derive(Debug, PartialEq, Eq)]
struct SystemPackage<'a> {
    debian_name: &'a str,
    evidence: &'a str,
    tests: &'a str,
}

impl SystemPackage<'_> {
    fn is_present(&self) -> bool {
        if self.evidence.starts_with('/') {
            Path::new(self.evidence).exists()
        } else if self.evidence.contains(".so") {
            library_exists(self.evidence)
        } else {
            find_program(self.evidence).is_some()
        }
    }
}

fn system_packages(workspace: &Workspace) -> Result<Outcome> {
    let packages = parse_packages(SYSTEM_PACKAGES)?;
    let mut missing: Vec<_> = packages.iter().filter(|package| !package.is_present()).collect();
    let can_install = find_program("apt-get").is_some() && is_root(workspace);
    if !missing.is_empty() && can_install {
        install(workspace, &missing);
        missing.retain(|package| !package.is_present());
    }
    say(&format!("system packages: {} needed, {} missing", packages.len(), missing.len()));
    if missing.is_empty() {
        return Ok(Outcome::Passed);
    }
    for package in &missing {
        say(&format!("  {}: without it these tests are skipped: {}", package.debian_name, package.tests));
    }
    let names = debian_names(&missing).join(" ");
    say(&format!("  to install them: apt-get install --no-install-recommends {names}"));
    Ok(Outcome::Partly(format!("missing packages: {names}")))
}

/// Tries to install the packages. A failure is not an error here; the caller checks what is still
/// missing.
fn install(workspace: &Workspace, missing: &[&SystemPackage<'_>]) {
    let attempt = || {
        let mut command = workspace.command("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive");
        // Another installation may be in progress: waits for its lock instead of giving up.
        command.args(["-o", "DPkg::Lock::Timeout=120", "install", "-y", "--no-install-recommends"]);
        run(command.args(debian_names(missing)))
    };
    if attempt().is_err() {
        // The package lists of a fresh machine are empty or stale.
        let retried = run(workspace.command("apt-get").arg("update")).and_then(|()| attempt());
        if let Err(error) = retried {
            say(&format!("packages could not be installed: {error:#}"));
        }
    }
}

fn debian_names<'a>(packages: &[&SystemPackage<'a>]) -> Vec<&'a str> {
    packages.iter().map(|package| package.debian_name).collect()
}

fn is_root(workspace: &Workspace) -> bool {
    workspace.command("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

/// Looks in the system's library folders and in their direct subfolders, which Debian uses for each
/// architecture.
fn library_exists(file: &str) -> bool {
    LIBRARY_FOLDERS.iter().any(|folder| {
        let subfolders = std::fs::read_dir(folder).into_iter().flatten().flatten();
        Path::new(folder).join(file).exists() || subfolders.into_iter().any(|entry| entry.path().join(file).exists())
    })
}

fn parse_packages(text: &str) -> Result<Vec<SystemPackage<'_>>> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| match line.split('|').map(str::trim).collect::<Vec<_>>()[..] {
            [debian_name, evidence, tests] => Ok(SystemPackage { debian_name, evidence, tests }),
            _ => bail!("system-packages.txt: `{line}` does not have three columns"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_package_list_of_this_repository_can_be_read() {
        assert!(parse_packages(SYSTEM_PACKAGES).is_ok());
    }

    #[test]
    fn a_package_has_a_name_evidence_and_tests() {
        let packages =
            parse_packages("# a comment\n\nlibvulkan1 | libvulkan.so.1 | Vulkan discovery\n").expect("valid");
        let expected =
            SystemPackage { debian_name: "libvulkan1", evidence: "libvulkan.so.1", tests: "Vulkan discovery" };
        assert_eq!(packages, [expected]);
        assert!(parse_packages("libvulkan1 | libvulkan.so.1").is_err());
    }

    #[test]
    fn evidence_is_a_path_a_library_or_a_program() {
        let package = |evidence| SystemPackage { debian_name: "any", evidence, tests: "none" };
        assert!(package(env!("CARGO_MANIFEST_DIR")).is_present());
        assert!(!package("/no/such/file").is_present());
        assert!(!package("libdoes-not-exist.so.9").is_present());
        assert!(!package("program-that-does-not-exist").is_present());
    }
}
