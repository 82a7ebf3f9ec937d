//! The repository's own tooling: `cargo xtask <command>`.
//!
//! The package uses little more than the standard library, because every command has to wait for
//! its build. Each command is one module; [`process`] runs other programs, and [`steps`] runs a
//! list of checks and prints a summary.

mod artifacts;
mod audit;
mod bench;
mod book;
mod bundle;
mod check;
mod dist;
mod figures;
mod kernels;
mod loom;
mod package;
mod process;
mod rounds;
mod setup;
mod steps;
mod targets;
mod tidy;
mod valgrind;

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::process::Workspace;

const USAGE: &str = "\
Usage: cargo xtask <command>

  test [--all] [--keep-going]
                        set up, then run every check; --all runs the long tests with many rounds, where `test` runs a few;
                        stops at the first failure unless told to keep going
  setup                 check the tools and packages that the tests need, and install what can be installed
  tidy [--json]         sizes, layering, circles of files, names of APIs, unsafe without a reason, unfinished work, riddles in comments, names in documents that do not exist
  book                  the pages of docs/ as a book, if mdbook is installed; fails on dead links and pages without a line in SUMMARY.md
  valgrind [FILTER]...  under memcheck: unit tests of the core crate, the lock-free parts, and the CPU backend's team and memory;
                        with filters, the CPU backend's unit tests that match them
  audit [CHECK]...      licences, advisories, bans and sources of the dependencies (needs cargo-deny)
  check-targets [TARGET]...
                        type-check for macOS, Windows and WebAssembly, where a toolchain for them is installed
  check-kernels [ARCHITECTURE]... [--every N]
                        compile every kernel of the HIP backend for AMD's GPUs, where a clang for them and HIP's headers are installed
  bundle                a folder with the command, the conformance tests and a script, for a host without Rust
  dist                  an archive for people without Rust: the stripped command, manual pages, completions, licences, a checksum
  package               pack every published crate, and type-check it from its archive
  bench [ARGUMENT]...   the benchmarks of the runtime and of pipelines, then `panoply bench` with the arguments given
  figures [FILE]...     the speed targets, as ratios, beside docs/figures.jsonl: measured on this CPU, or read
                        from what `sh run.sh figures` of the bundle printed; fails where one fell by more than a tenth;
                        --record keeps the new ratios, --rounds N takes turns with the peers so often [default: 3]
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match dispatch(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(arguments: &[&str]) -> Result<()> {
    let workspace = Workspace::find()?;
    match arguments {
        ["test", options @ ..] => check::command(&workspace, &check::Options::parse(options)?),
        ["setup"] => setup::command(&workspace),
        ["tidy"] => tidy::command(&workspace, tidy::Format::Plain),
        ["tidy", "--json"] => tidy::command(&workspace, tidy::Format::Json),
        ["book"] => book::command(&workspace),
        ["valgrind", filters @ ..] => valgrind::command(&workspace, filters),
        ["audit", checks @ ..] => audit::command(&workspace, checks),
        ["check-targets", wanted @ ..] => targets::command(&workspace, wanted),
        ["check-kernels", rest @ ..] => kernels::command(&workspace, rest),
        ["bundle"] => bundle::command(&workspace),
        ["dist"] => dist::command(&workspace),
        ["package"] => package::command(&workspace),
        ["bench", rest @ ..] => bench::command(&workspace, rest),
        ["figures", rest @ ..] => figures::command(&workspace, &figures::Options::parse(rest)?),
        ["help" | "--help" | "-h"] => {
            process::say(USAGE.trim_end());
            Ok(())
        }
        [] => bail!("a command is missing\n\n{USAGE}"),
        _ => bail!("`{}` is not understood\n\n{USAGE}", arguments.join(" ")),
    }
}
