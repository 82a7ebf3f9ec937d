//! `cargo xtask tidy`: checks rules that the compiler and clippy do not cover.
//!
//! Tidy shows how the code's sizes drift, and fails on hard limits. Every rule works on the text of
//! the files, after [`Source`] has separated code from comments and literals. The rules therefore
//! also see code that this machine's build leaves out.

mod api_names;
mod circles;
mod commands;
mod documents;
mod environment;
mod error_page;
mod functions;
mod layers;
mod manifest;
mod pages;
mod report;
mod rules;
mod source;
mod test_files;
mod type_names;
mod uses;
mod words;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use self::report::Report;
pub use self::source::Source;
use crate::process::{Workspace, say};
use crate::steps::Outcome;

/// Folders without sources of the project.
const FOLDERS_LEFT_OUT: [&str; 4] = ["target", "dist", ".git", "node_modules"];

/// The output format of the report.
#[derive(Clone, Copy)]
pub enum Format {
    /// For people.
    Plain,
    /// For programs: one JSON object.
    Json,
}

/// Prints the report, and fails if a hard limit is exceeded.
pub fn command(workspace: &Workspace, format: Format) -> Result<()> {
    let report = examine(&workspace.root)?;
    say(&match format {
        Format::Plain => report.plain(),
        Format::Json => report.json(),
    });
    match report.failures() {
        0 => Ok(()),
        count => bail!("tidy: {count} broken rule{}", if count == 1 { "" } else { "s" }),
    }
}

/// Checks the documents as a book, and nothing else.
pub fn documents_command(workspace: &Workspace) -> Result<()> {
    let mut report = Report::default();
    let names = names_of(&workspace.root, &files_below(&workspace.root)?);
    pages::check(&names, |name| read_file(&workspace.root, name), &mut report)?;
    match report.failures() {
        0 => Ok(()),
        count => bail!("{}\n{count} faults in documents", report.lines()),
    }
}

/// Runs tidy as a step of `cargo xtask test`.
pub fn step(workspace: &Workspace) -> Result<Outcome> {
    command(workspace, Format::Plain)?;
    Ok(Outcome::Passed)
}

/// Returns every Rust file below `folder`, sorted.
pub fn rust_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = files_below(folder)?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    Ok(files)
}

fn examine(root: &Path) -> Result<Report> {
    let mut report = Report::default();
    let (mut manifests, mut sources) = (Vec::new(), Vec::new());
    let files = files_below(root)?;
    let names = names_of(root, &files);
    for (path, name) in files.iter().zip(&names) {
        let kind = rules::Kind::of(name);
        if kind == rules::Kind::Other {
            continue;
        }
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
        if kind == rules::Kind::Manifest {
            manifests.push(manifest::Manifest::parse(name, &text));
            let read =
                |name: &str| std::fs::read_to_string(root.join(name)).with_context(|| format!("cannot read {name}"));
            test_files::check(name, &text, &names, read, &mut report)?;
        }
        rules::check(name, kind, &text, &mut report);
        if kind == rules::Kind::Rust {
            api_names::check(name, &text, &mut report);
            sources.push((name.clone(), text));
        }
    }
    let domains = circles::domains(&sources, &mut report);
    for folder in manifests.iter().filter_map(|manifest| manifest.file.strip_suffix("/Cargo.toml")) {
        circles::check(folder, &sources, &domains, &mut report);
    }
    layers::check(&manifests, &mut report);
    type_names::check(&sources, &mut report);
    check_documents(root, &names, &manifests, &mut report)?;
    error_page::check(&read_file(root, error_page::PAGE)?, &read_file(root, error_page::ERRORS)?, &mut report);
    environment::check(&read_file(root, "docs/environment.md")?, &sources, &mut report);
    Ok(report)
}

/// Returns the paths from the root, with `/` as the separator.
fn names_of(root: &Path, files: &[PathBuf]) -> Vec<String> {
    let name_of = |path: &PathBuf| path.strip_prefix(root).unwrap_or(path).to_string_lossy().replace('\\', "/");
    files.iter().map(name_of).collect()
}

fn check_documents(root: &Path, names: &[String], manifests: &[manifest::Manifest], report: &mut Report) -> Result<()> {
    let read = |name: &str| read_file(root, name);
    let packages = manifests.iter().map(|manifest| manifest.package.clone()).collect();
    let commands = commands::Commands::new(crate::USAGE, packages, names.to_vec(), read)?;
    for name in names.iter().filter(|name| documents::is_document(name)) {
        documents::check(name, &read(name)?, names, &commands, report);
    }
    pages::check(names, read, report)
}

fn read_file(root: &Path, name: &str) -> Result<String> {
    std::fs::read_to_string(root.join(name)).with_context(|| format!("cannot read {name}"))
}

fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
        for entry in entries {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() && !FOLDERS_LEFT_OUT.iter().any(|left_out| entry.file_name() == *left_out) {
                folders.push(entry.path());
            } else if kind.is_file() {
                files.push(entry.path());
            }
        }
    }
    files.sort();
    Ok(files)
}
