//! `cargo xtask book`: checks the pages of `docs/`, and builds them as a book with mdBook.
//!
//! The check is tidy's, of documents alone. It needs no other program, so it also runs where mdBook
//! is not installed. A warning of mdBook fails the command.

use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::process::{Workspace, find_program, say};
use crate::tidy;

/// The first page of the book, as `book.toml` places it.
const FIRST_PAGE: &str = "target/book/index.html";

/// Checks all documents, then builds the book if `mdbook` is in the search path.
pub fn command(workspace: &Workspace) -> Result<()> {
    tidy::documents_command(workspace)?;
    let Some(program) = find_program("mdbook") else {
        say(
            "the pages are in order; no book was built, because mdbook is not installed: `cargo install mdbook --locked`",
        );
        return Ok(());
    };
    let mut command = workspace.command(program);
    let output = command.arg("build").stdin(Stdio::null()).output().context("cannot start mdbook")?;
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    say(text.trim_end());
    if !output.status.success() {
        bail!("mdbook failed: {}", output.status);
    }
    match warnings(&text) {
        0 => say(&format!("the book: {FIRST_PAGE}")),
        count => bail!("mdbook printed {count} warnings; mend the pages that they name"),
    }
    Ok(())
}

/// Counts the lines of mdBook's log that are warnings or errors.
fn warnings(log: &str) -> usize {
    let is_warning = |line: &&str| ["WARN", "ERROR"].iter().any(|level| line.contains(level));
    log.lines().filter(is_warning).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_counted() {
        let clean = "2026-11-19 [INFO] (mdbook::book): Book building has started\n INFO Running the html backend\n";
        assert_eq!(warnings(clean), 0);
        assert_eq!(warnings("[WARN] (mdbook): unclosed HTML tag\n WARN a link\nERROR x\n"), 3);
    }
}
