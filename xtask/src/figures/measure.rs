//! Measures the figures of this machine's CPU. Our runs and the peers' alternate, so that both meet
//! the same load.

use std::process::{Command, Stdio};
use std::thread::available_parallelism;

use anyhow::{Context, Result};

use super::asked;
use super::rows::Rows;
use crate::process::{Workspace, capture, run, say};

/// Seconds for each case in each round.
const SECONDS: &str = "0.5";
/// The variable that names another Python, for example of a virtual environment.
const PYTHON_VARIABLE: &str = "PANOPLY_PYTHON";

/// Returns the rows of each round.
pub fn cpu(workspace: &Workspace, rounds: usize) -> Result<Vec<Rows>> {
    run(&mut workspace.cargo("build --release --package panoply-app"))?;
    let cases = asked::cpu_cases();
    let threads = available_parallelism().map_or(1, usize::from).to_string();
    let python = std::env::var(PYTHON_VARIABLE).unwrap_or_else(|_| "python3".to_owned());
    let mut all = Vec::new();
    for _ in 0..rounds {
        let mut rows = Rows::default();
        rows.add(&format!("{{\"machine\":\"{}\",\"api\":\"cpu\"}}", machine()));
        let mut ours = workspace.command(workspace.target().join("release/panoply"));
        ours.args(["bench", "--api", "cpu", "--json", "--seconds", SECONDS]).args(&cases);
        rows.add(&capture(&mut ours)?);
        let mut peers = workspace.command(&python);
        peers.args(["docs/peers/cpu_peers.py", "--threads", &threads, "--seconds", SECONDS]).args(&cases);
        rows.add(&attempt(&mut peers)?);
        let mut runtime =
            workspace.cargo("bench --package panoply-runtime --bench runtime -- --json ops decisions pools");
        rows.add(&capture(&mut runtime)?);
        let mut pipelines = workspace.cargo("bench --workspace --bench pipelines -- --json");
        rows.add(&capture(&mut pipelines)?);
        all.push(rows);
    }
    Ok(all)
}

/// Returns a command's output. If the command fails, a message says so, and its figures are
/// missing.
fn attempt(command: &mut Command) -> Result<String> {
    let output = command.stderr(Stdio::piped()).output().context("Python cannot be started")?;
    if !output.status.success() {
        let told = String::from_utf8_lossy(&output.stderr);
        let why = told.lines().last().unwrap_or_default();
        say(&format!("the peers were not all measured: {why} (docs/performance.md says what to install)"));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the class of this machine. Figures of different classes are not compared.
fn machine() -> String {
    let cpus = available_parallelism().map_or(1, usize::from);
    format!("{}-{}-{cpus}", std::env::consts::ARCH, vector_level())
}

#[cfg(target_arch = "x86_64")]
fn vector_level() -> &'static str {
    match () {
        () if std::arch::is_x86_feature_detected!("avx512f") => "avx512",
        () if std::arch::is_x86_feature_detected!("avx2") => "avx2",
        () => "sse",
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn vector_level() -> &'static str {
    "plain"
}
