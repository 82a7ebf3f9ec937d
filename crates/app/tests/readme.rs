//! The commands of the README run as written, in order, in one folder.
#![allow(clippy::unwrap_used)] // A test that cannot go on should say where.
#![cfg(unix)] // The commands are a shell's.

use std::path::Path;
use std::process::{Command, Output};

const README: &str = include_str!("../../../README.md");
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The start of a command that runs this binary without installing it.
const BY_CARGO: &str = "cargo run --release --bin panoply -- ";

/// Commands that the test does not run, by their first words, and why. Each must be in the README.
const NOT_RUN: [(&str, &str); 12] = [
    ("cargo install", "builds the whole command again"),
    ("cargo xtask dist", "builds the whole command again"),
    ("cargo xtask test", "runs this test, among others"),
    ("cargo run --release -p panoply --example", "builds the crate again; the examples are built with the tests"),
    ("cargo run --release -p own-backend", "has its own tests"),
    ("cargo test -p own-domain", "is a test itself"),
    ("panoply bench", "measures for a minute"),
    ("python3 -m pip", "needs the network"),
    ("unzip", "needs the files of the line before"),
    ("panoply embed minilm", "needs the model that was fetched"),
    ("panoply vectors search packages --text", "needs the model that was fetched"),
    ("panoply vectors search notes", "needs the model that was fetched"),
];

#[test]
fn the_commands_run_as_written() {
    let folder = std::env::temp_dir().join(format!("panoply-readme-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(folder.join("bin")).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_panoply"), folder.join("bin/panoply")).unwrap();
    // The commands run in the folder of the README, and write there. Only the data is linked.
    std::os::unix::fs::symlink(Path::new(ROOT).join("crates"), folder.join("crates")).unwrap();
    let commands = commands();
    let mut count = 0;
    for line in commands.iter().filter(|line| not_run(line).is_none()) {
        let output = run(&folder, &line.replace(BY_CARGO, "panoply "));
        let (out, error) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{line}\n{out}\n{error}");
        assert!(!line.contains("upside-down") || out.contains("0.9999"), "{line}\n{out}");
        count += 1;
    }
    assert!(count >= 10, "{count} of {commands:?} ran");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn the_commands_that_do_not_run_are_listed_exactly() {
    let commands = commands();
    for (start, reason) in NOT_RUN {
        assert!(commands.iter().any(|line| line.starts_with(start)), "the README has no `{start}` ({reason})");
    }
}

/// Returns the commands of the README: the lines of its shell blocks without comments, and the
/// commands in its tables.
fn commands() -> Vec<String> {
    let (mut commands, mut is_shell) = (Vec::new(), false);
    for line in README.lines() {
        if let Some(language) = line.strip_prefix("```") {
            is_shell = language == "sh";
        } else if is_shell {
            let code = line.split(" #").next().unwrap_or(line).trim();
            commands.extend((!code.is_empty() && !code.starts_with('#')).then(|| code.to_owned()));
        } else if line.starts_with('|') {
            let spans = line.split('`').skip(1).step_by(2);
            commands.extend(spans.filter(|span| is_command(span)).map(str::to_owned));
        }
    }
    commands
}

fn is_command(span: &str) -> bool {
    ["panoply ", "cargo "].iter().any(|program| span.starts_with(program))
}

fn not_run(line: &str) -> Option<&'static str> {
    NOT_RUN.iter().find(|(start, _)| line.starts_with(start)).map(|(_, reason)| *reason)
}

fn run(folder: &Path, line: &str) -> Output {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("sh");
    command.arg("-ec").arg(line).current_dir(folder).env("PATH", format!("{}:{path}", folder.join("bin").display()));
    command.env("PANOPLY_CACHE", folder.join("cache")).env("XDG_STATE_HOME", folder.join("state"));
    command.env_remove("PANOPLY_CONFIG").env_remove("PANOPLY_STORE_KEY").env_remove("PANOPLY_STORE_PASSPHRASE");
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
