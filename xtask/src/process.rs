//! Runs other programs in the repository's root.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The repository, in which programs are started.
pub struct Workspace {
    /// The folder with the workspace's `Cargo.toml`.
    pub root: PathBuf,
}

impl Workspace {
    /// Finds the repository in which `cargo xtask` started this program, or in which this program
    /// was built.
    pub fn find() -> Result<Workspace> {
        let package = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let root = Path::new(&package).parent().context("the xtask package has no parent folder")?;
        Ok(Workspace { root: root.to_path_buf() })
    }

    /// Returns a command for `program` that runs in the repository's root.
    ///
    /// The variables that `cargo run` sets about this program's own package are removed: build
    /// scripts that watch these variables would otherwise run again each time.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root);
        for (name, _) in std::env::vars_os() {
            let own = name.to_string_lossy();
            if own.starts_with("CARGO_PKG_") || own.starts_with("CARGO_MANIFEST_") {
                command.env_remove(&name);
            }
        }
        // A CI run builds everything once, so it skips the incremental data that would speed up the
        // next build.
        if std::env::var_os("CI").is_some() && std::env::var_os("CARGO_INCREMENTAL").is_none() {
            command.env("CARGO_INCREMENTAL", "0");
        }
        command
    }

    /// The folder that cargo builds into.
    pub fn target(&self) -> PathBuf {
        // Cargo runs in the root, so a relative folder is relative to it.
        self.root.join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
    }

    /// Returns a command for the cargo that started this program, with `arguments` split at spaces.
    pub fn cargo(&self, arguments: &str) -> Command {
        let mut command = self.command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(arguments.split_whitespace());
        command
    }
}

/// Prints the command, runs it with this program's own input and output, and fails if the command
/// fails.
pub fn run(command: &mut Command) -> Result<()> {
    let line = command_line(command);
    say(&format!("$ {line}"));
    let status = command.status().with_context(|| format!("cannot start `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed: {status}");
    }
    Ok(())
}

/// Prints the command, runs it and returns its standard output.
pub fn capture(command: &mut Command) -> Result<String> {
    let line = command_line(command);
    say(&format!("$ {line}"));
    let output = command.stderr(Stdio::inherit()).output().with_context(|| format!("cannot start `{line}`"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("`{line}` failed: {}\n{text}", output.status);
    }
    Ok(text)
}

/// Whether the command starts and succeeds. Its output is discarded.
pub fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Finds a program in the search path.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let paths = std::env::var_os("PATH")?;
    let file = format!("{name}{}", std::env::consts::EXE_SUFFIX);
    std::env::split_paths(&paths).map(|folder| folder.join(&file)).find(|path| path.is_file())
}

/// Prints one line. A reader that has closed the pipe (`| head`) is not an error.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn command_line(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let variables = command.get_envs().filter_map(|(name, value)| {
        let (name, value) = (name.to_string_lossy(), value?.to_string_lossy());
        Some(if value.contains(' ') { format!("{name}=\"{value}\"") } else { format!("{name}={value}") })
    });
    let words = std::iter::once(program).chain(command.get_args()).map(|word| word.to_string_lossy().into_owned());
    variables.chain(words).collect::<Vec<_>>().join(" ")
}
