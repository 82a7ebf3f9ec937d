//! `cargo xtask check-targets`: type-checks the workspace for other kinds of machines, if a
//! toolchain for them is installed.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::process::{Workspace, find_program, run, say};

/// A kind of machine, and the packages to check for it.
struct CheckTarget {
    triple: &'static str,
    packages: &'static [&'static str],
    left_out: &'static str,
    /// The C compiler that allows all packages to be checked, if it is installed.
    c_compiler: Option<&'static str>,
}

/// Packages with C code (crypto, and what depends on it) need a C compiler for the target as well.
const C_CODE: &str = "what is built with C code (panoply-cpu-crypto, panoply-cpu and all above them): that needs a C compiler for the target";

const TARGETS: [CheckTarget; 3] = [
    CheckTarget {
        triple: "aarch64-apple-darwin",
        packages: &[
            "panoply-runtime",
            "panoply-c-gpu",
            "panoply-cuda",
            "panoply-hip",
            "panoply-opencl",
            "panoply-vulkan",
            "panoply-wgpu",
            "panoply-conformance",
            "panoply-nn",
        ],
        left_out: C_CODE,
        c_compiler: None,
    },
    CheckTarget {
        triple: "x86_64-pc-windows-gnu",
        packages: &[
            "panoply-runtime",
            "panoply-c-gpu",
            "panoply-cuda",
            "panoply-hip",
            "panoply-opencl",
            "panoply-vulkan",
            "panoply-wgpu",
            "panoply-conformance",
            "panoply-nn",
        ],
        left_out: C_CODE,
        c_compiler: Some("x86_64-w64-mingw32-gcc"),
    },
    CheckTarget {
        triple: "wasm32-unknown-unknown",
        packages: &["panoply-core", "panoply-graph", "panoply-kernels", "panoply-wgsl-gpu", "panoply-conformance"],
        left_out: "what loads libraries or starts threads, which a page in a browser cannot",
        c_compiler: None,
    },
];

/// A cargo that can check for a target.
struct Toolchain {
    cargo: PathBuf,
    /// The compiler to use, if not cargo's own.
    rustc: Option<PathBuf>,
    /// Whether the standard library is compiled from its source.
    builds_std: bool,
}

/// Checks every target, or the named ones. A target without a toolchain is reported and is not a
/// failure.
pub fn command(workspace: &Workspace, wanted: &[&str]) -> Result<()> {
    if let Some(unknown) = wanted.iter().find(|name| !TARGETS.iter().any(|target| target.triple == **name)) {
        let known = TARGETS.map(|target| target.triple).join(", ");
        bail!("`{unknown}` is none of the targets: {known}");
    }
    for target in TARGETS.iter().filter(|target| wanted.is_empty() || wanted.contains(&target.triple)) {
        match toolchain(workspace, target.triple) {
            Some(toolchain) => check(workspace, target, &toolchain)?,
            None => say(&format!(
                "skipped: {}: neither its standard library nor the source of one is installed (`rustup target add {0}`, `rustup component add \
                 rust-src`, or Debian's rustc-web, cargo-web and rust-web-src)",
                target.triple
            )),
        }
    }
    Ok(())
}

fn check(workspace: &Workspace, target: &CheckTarget, toolchain: &Toolchain) -> Result<()> {
    let mut cargo = workspace.command(&toolchain.cargo);
    cargo.args(["check", "--target", target.triple]);
    let has_c = target.c_compiler.is_some_and(|compiler| find_program(compiler).is_some());
    match has_c {
        // The package `xtask` runs only on the machine of cargo itself.
        true => cargo.args(["--workspace", "--exclude", "xtask"]),
        false => cargo.args(target.packages.iter().map(|package| format!("--package={package}"))),
    };
    cargo.arg("--target-dir").arg(workspace.target().join("targets"));
    if let Some(rustc) = &toolchain.rustc {
        cargo.env("RUSTC", rustc);
    }
    if toolchain.builds_std {
        cargo.env("RUSTC_BOOTSTRAP", "1").arg("-Zbuild-std");
    }
    run(&mut cargo)?;
    let CheckTarget { triple, packages, left_out, .. } = target;
    say(&match has_c {
        true => format!("{triple}: the whole workspace but xtask"),
        false => format!("{triple}: {} packages and what they depend on; left out: {left_out}", packages.len()),
    });
    Ok(())
}

/// Finds the first way to check for a target: this toolchain with the target's library, this
/// toolchain with the library's source, or the system's toolchain with the library's source.
fn toolchain(workspace: &Workspace, triple: &str) -> Option<Toolchain> {
    let own = std::env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from);
    let sysroot = sysroot(workspace.command("rustc"));
    if sysroot.as_ref().is_some_and(|sysroot| sysroot.join("lib/rustlib").join(triple).join("lib").is_dir()) {
        return Some(Toolchain { cargo: own, rustc: None, builds_std: false });
    }
    if sysroot.is_some_and(|sysroot| has_source(&sysroot)) {
        return Some(Toolchain { cargo: own, rustc: None, builds_std: true });
    }
    let (cargo, rustc) = (PathBuf::from("/usr/bin/cargo"), PathBuf::from("/usr/bin/rustc"));
    let is_whole = cargo.is_file() && rustc.is_file() && has_source(Path::new("/usr"));
    let is_new = || sysroot_version(&rustc).is_some_and(|version| version >= MINOR_MIN);
    (is_whole && find_program("cc").is_some() && is_new()).then_some(Toolchain {
        cargo,
        rustc: Some(rustc),
        builds_std: true,
    })
}

/// The minor version of the oldest compiler that compiles the workspace.
const MINOR_MIN: u32 = 95;

/// Returns the minor version of a compiler.
fn sysroot_version(rustc: &Path) -> Option<u32> {
    let told = Command::new(rustc).arg("--version").output().ok()?;
    String::from_utf8_lossy(&told.stdout).split('.').nth(1)?.parse().ok()
}

/// Returns the folder of a compiler's libraries.
fn sysroot(mut rustc: Command) -> Option<PathBuf> {
    let told = rustc.args(["--print", "sysroot"]).output().ok()?;
    Some(PathBuf::from(String::from_utf8_lossy(&told.stdout).trim()))
}

fn has_source(sysroot: &Path) -> bool {
    sysroot.join("lib/rustlib/src/rust/library/std/Cargo.toml").is_file()
}
