//! `cargo xtask bundle`: everything that a host with a GPU and no Rust needs, in one folder: the `panoply` command, the
//! conformance and unit tests of every GPU backend, and a script that runs them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::process::{Workspace, run, say};

/// The backends whose conformance tests travel.
const BACKENDS: &[&str] = &["cuda", "wgpu"];
const SCRIPT: &str = include_str!("bundle.sh");

/// Builds with optimisation and fills `target/bundle`.
pub fn command(workspace: &Workspace) -> Result<()> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace.root.join("target"), PathBuf::from);
    let folder = target.join("bundle");
    fs::create_dir_all(&folder).with_context(|| format!("{} cannot be created", folder.display()))?;
    run(&mut workspace.cargo("build --release --package panoply-app"))?;
    place(&target.join("release").join("panoply"), &folder.join("panoply"))?;
    for backend in BACKENDS {
        let manifest = workspace.root.join("crates/backends").join(backend).join("Cargo.toml");
        if manifest.exists() {
            let package = format!("panoply-{backend}");
            let conformance = build_tests(workspace, &package, "--test conformance")?;
            place(&conformance, &folder.join(format!("conformance-{backend}")))?;
            if manifest.with_file_name("tests").join("resident.rs").exists() {
                let resident = build_tests(workspace, &package, "--test resident")?;
                place(&resident, &folder.join(format!("resident-{backend}")))?;
            }
            let units = build_tests(workspace, &package, "--lib")?;
            place(&units, &folder.join(format!("units-{backend}")))?;
        }
    }
    let script = folder.join("run.sh");
    fs::write(&script, SCRIPT).with_context(|| format!("{} cannot be written", script.display()))?;
    let peers = workspace.root.join("docs/peers");
    for peer in fs::read_dir(&peers).with_context(|| format!("{} cannot be read", peers.display()))? {
        let path = peer?.path();
        if let Some(name) = path.file_name() {
            fs::copy(&path, folder.join(name)).with_context(|| format!("{} cannot be copied", path.display()))?;
        }
    }
    say(&format!("{}: copy it to the host and run `sh run.sh` there", folder.display()));
    Ok(())
}

/// Builds some of a package's tests and finds the program that cargo made of them.
fn build_tests(workspace: &Workspace, package: &str, which: &str) -> Result<PathBuf> {
    let mut cargo = workspace.cargo(&format!("test --release --no-run {which} --package"));
    let output = cargo.arg(package).output().context("cargo cannot be run")?;
    let told = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("the tests of {package} do not build:\n{told}");
    }
    let path = told.lines().filter_map(|line| line.trim().strip_prefix("Executable ")).next_back();
    let path = path.and_then(|line| line.split_once('(')).map(|(_, path)| path.trim_end_matches(')'));
    let path = path.with_context(|| format!("cargo does not say where the tests of {package} are:\n{told}"))?;
    Ok(workspace.root.join(path))
}

/// Copies a program without its symbols, where `strip` is installed.
fn place(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("{} cannot be copied", from.display()))?;
    let stripped = Command::new("strip").arg(to).status();
    if !stripped.is_ok_and(|status| status.success()) {
        say("`strip` is not installed: the programs keep their symbols");
    }
    Ok(())
}
