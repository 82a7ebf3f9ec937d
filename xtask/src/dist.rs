//! `cargo xtask dist`: makes the archive that a visitor downloads instead of compiling: the
//! stripped command, its manual pages and completions, and the licences of all that it contains,
//! with a checksum beside it.
//!
//! The archive is `target/dist/panoply-VERSION-TARGET.tar.xz`. It needs `tar`, `xz` and
//! `sha256sum`.

mod licences;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::process::{Workspace, capture, find_program, run, say};

const PROGRAMS: [&str; 3] = ["tar", "xz", "sha256sum"];
/// Files of the repository that go into the archive as they are.
const FILES: [&str; 4] = ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"];
const SHELLS: [(&str, &str); 3] = [("bash", "panoply.bash"), ("zsh", "_panoply"), ("fish", "panoply.fish")];

/// Builds the command and fills `target/dist`.
pub fn command(workspace: &Workspace) -> Result<()> {
    if let Some(missing) = PROGRAMS.iter().find(|name| find_program(name).is_none()) {
        bail!("`{missing}` is not installed; on Debian: apt-get install tar xz-utils coreutils");
    }
    let name = format!("panoply-{}-{}", env!("CARGO_PKG_VERSION"), host(workspace)?);
    let dist = workspace.target().join("dist");
    let folder = dist.join(&name);
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("{} cannot be removed", folder.display()))?;
    }
    for subfolder in ["man/man1", "completions"] {
        let path = folder.join(subfolder);
        fs::create_dir_all(&path).with_context(|| format!("{} cannot be created", path.display()))?;
    }
    run(&mut workspace.cargo("build --release --locked --package panoply-app"))?;
    let program = folder.join("panoply");
    copy(&workspace.target().join("release/panoply"), &program)?;
    if find_program("strip").is_some() {
        run(workspace.command("strip").arg(&program))?;
    }
    for file in FILES {
        copy(&workspace.root.join(file), &folder.join(file))?;
    }
    write(&folder.join("LICENSES-OF-DEPENDENCIES.txt"), &licences::of_dependencies(workspace)?)?;
    let pages = write_pages(workspace, &program, &folder)?;
    let archive = pack(workspace, &dist, &name)?;
    report(&archive, &program, pages)
}

/// Writes the manual pages of the command and of every subcommand, and the completions. Returns
/// the number of manual pages.
fn write_pages(workspace: &Workspace, program: &Path, folder: &Path) -> Result<usize> {
    let print = |arguments: &[&str]| capture(workspace.command(program).args(arguments));
    let main = print(&["man"])?;
    let commands = subcommands(&print(&["--help"])?);
    if commands.is_empty() {
        bail!("`panoply --help` lists no commands");
    }
    let man = folder.join("man/man1");
    write(&man.join("panoply.1"), &main)?;
    for command in &commands {
        write(&man.join(format!("panoply-{command}.1")), &print(&["man", command])?)?;
    }
    for (shell, file) in SHELLS {
        write(&folder.join("completions").join(file), &print(&["completions", shell])?)?;
    }
    Ok(1 + commands.len())
}

/// Reads the names of the commands from the output of `--help`: the first words of the indented
/// lines below `Commands:`. `help` has no manual page.
fn subcommands(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| !line.starts_with("Commands:")).skip(1);
    let names = lines.take_while(|line| line.starts_with("  ")).filter_map(|line| {
        let name = line.strip_prefix("  ")?;
        if name.starts_with(' ') { None } else { name.split_whitespace().next() }
    });
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

/// Packs the folder, writes the checksum beside the archive, and returns the archive's path.
fn pack(workspace: &Workspace, dist: &Path, name: &str) -> Result<PathBuf> {
    let archive = format!("{name}.tar.xz");
    let mut tar = workspace.command("tar");
    tar.current_dir(dist).args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "-cJf", &archive, name]);
    run(&mut tar)?;
    let mut sum = workspace.command("sha256sum");
    let sum = capture(sum.current_dir(dist).arg(&archive))?;
    write(&dist.join(format!("{archive}.sha256")), &sum)?;
    Ok(dist.join(archive))
}

fn report(archive: &Path, program: &Path, pages: usize) -> Result<()> {
    let mib = |path: &Path| -> Result<f64> {
        let metadata = fs::metadata(path).with_context(|| format!("{} cannot be read", path.display()))?;
        Ok(metadata.len() as f64 / f64::from(1 << 20))
    };
    say(&format!("{}: {:.1} MiB, with its checksum beside it", archive.display(), mib(archive)?));
    say(&format!("the command has {:.1} MiB, and {pages} manual pages", mib(program)?));
    Ok(())
}

/// The target that rustc compiles for.
fn host(workspace: &Workspace) -> Result<String> {
    let version = capture(workspace.command("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("`rustc -vV` names no host")?.to_owned())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("{} cannot be copied to {}", from.display(), to.display()))?;
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_read_from_the_help() {
        let help = "Does work\n\nUsage: panoply <COMMAND>\n\nCommands:\n  devices  Lists devices\n           and reasons\n  \
                    bench    Measures\n  help     Prints this\n\nOptions:\n  -h, --help\n";
        assert_eq!(subcommands(help), ["devices", "bench"]);
        assert!(subcommands("Usage: panoply\n").is_empty());
    }
}
