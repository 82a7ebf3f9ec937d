//! `cargo xtask bundle`: puts everything that a host with a GPU and without Rust needs into one
//! folder: the `panoply` command, the conformance and unit tests of every GPU backend, the tests of
//! collections over all of them, and a script that runs them.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::artifacts::test_programs;
use crate::process::{Workspace, capture, run, say};

/// The backends whose tests go into the bundle.
const BACKENDS: &[&str] = &["cuda", "hip", "vulkan", "wgpu", "opencl"];
/// The library that the HIP backend's tests load: HIP's functions on top of CUDA.
const HIP_TEST_LIBRARY: &str = "libpanoply_hip_test_library.so";
/// The name of the façade's tests, of which the script runs those of collections.
const FACADE_TESTS: &str = "vectors-tests";
const SCRIPT: &str = include_str!("bundle.sh");

/// Builds with optimisation and fills `target/bundle`.
pub fn command(workspace: &Workspace) -> Result<()> {
    let folder = workspace.target().join("bundle");
    fs::create_dir_all(&folder).with_context(|| format!("{} cannot be created", folder.display()))?;
    run(&mut workspace.cargo("build --release --package panoply-app --features panoply-app/wgpu"))?;
    place(&workspace.target().join("release/panoply"), &folder.join("panoply"))?;
    place_tests(workspace, &folder)?;
    place(&workspace.target().join("release/deps").join(HIP_TEST_LIBRARY), &folder.join(HIP_TEST_LIBRARY))?;
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

/// Builds the backends' tests. The command's package is named as well, so that dependencies have
/// the same features as for the command and are not compiled twice.
fn place_tests(workspace: &Workspace, folder: &Path) -> Result<()> {
    let mut cargo = workspace
        .cargo("test --release --no-run --message-format=json --lib --package panoply-app --features panoply-app/wgpu");
    cargo.args(BACKENDS.iter().map(|backend| format!("--package=panoply-{backend}")));
    cargo.args(["--package=panoply", "--test=main"]);
    let programs = test_programs(&capture(&mut cargo)?);
    let Some(facade) = programs.iter().find(|program| program.package == "panoply" && program.target == "main") else {
        bail!("cargo named no integration tests of panoply");
    };
    place(&facade.path, &folder.join(FACADE_TESTS))?;
    for backend in BACKENDS {
        let package = format!("panoply-{backend}");
        let library = package.replace('-', "_");
        let own: Vec<_> = programs.iter().filter(|program| program.package == package).collect();
        if !own.iter().any(|program| program.target == "main") {
            bail!("cargo named no integration tests of {package}");
        }
        for program in own {
            let name = if program.target == library { "units" } else { "tests" };
            place(&program.path, &folder.join(format!("{name}-{backend}")))?;
        }
    }
    Ok(())
}

/// Copies a program, and removes its symbols if `strip` is installed.
fn place(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("{} cannot be copied", from.display()))?;
    let stripped = Command::new("strip").arg(to).status();
    if !stripped.is_ok_and(|status| status.success()) {
        say("`strip` is not installed: the programs keep their symbols");
    }
    Ok(())
}
