//! The licences of the crates that the command contains, as one text.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use tinyjson::JsonValue;

use crate::process::{Workspace, capture};

/// A crate from a registry.
#[derive(Debug)]
struct Dependency {
    name: String,
    version: String,
    licence: String,
    /// The texts of its licence files.
    texts: Vec<String>,
}

/// Lists every crate that the command is built from, with its licence, and prints each licence
/// text once, below the crates that it covers. Fails if a crate names no licence.
pub fn of_dependencies(workspace: &Workspace) -> Result<String> {
    let tree =
        capture(&mut workspace.cargo("tree --locked --package panoply-app --edges normal --prefix none --format {p}"))?;
    let used: BTreeSet<(String, String)> = tree.lines().filter_map(name_and_version).collect();
    let metadata: JsonValue = capture(&mut workspace.cargo("metadata --locked --format-version 1"))?
        .parse()
        .context("`cargo metadata` printed no JSON")?;
    let packages = list(&metadata, "packages").context("`cargo metadata` lists no packages")?;
    let mut dependencies = Vec::new();
    for package in packages {
        let own = text(package, "source").is_none();
        let name = text(package, "name").context("a package has no name")?;
        let version = text(package, "version").context("a package has no version")?;
        if own || !used.contains(&(name.to_owned(), version.to_owned())) {
            continue;
        }
        let Some(licence) = text(package, "license") else { bail!("{name} {version} names no licence") };
        let folder = Path::new(text(package, "manifest_path").unwrap_or_default()).parent();
        let texts = folder.map(licence_texts).transpose()?.unwrap_or_default();
        dependencies.push(Dependency { name: name.into(), version: version.into(), licence: licence.into(), texts });
    }
    dependencies.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    Ok(document(&dependencies))
}

fn document(dependencies: &[Dependency]) -> String {
    let mut document = String::from("The command `panoply` contains these crates:\n\n");
    let mut by_text: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for dependency in dependencies {
        let title = format!("{} {}", dependency.name, dependency.version);
        let note = if dependency.texts.is_empty() { " (no licence file in the package)" } else { "" };
        document.push_str(&format!("{title}: {}{note}\n", dependency.licence));
        for text in &dependency.texts {
            by_text.entry(text).or_default().push(title.clone());
        }
    }
    for (text, names) in by_text {
        document.push_str(&format!("\n{}\n{}\n\n{}\n", "-".repeat(80), names.join(", "), text.trim_end()));
    }
    document
}

/// Reads the files of a package's folder whose names begin as licences do.
fn licence_texts(folder: &Path) -> Result<Vec<String>> {
    let mut texts = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("{} cannot be read", folder.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        if path.is_file() && ["LICENSE", "LICENCE", "COPYING", "NOTICE"].iter().any(|start| name.starts_with(start)) {
            let text = fs::read(&path).with_context(|| format!("{} cannot be read", path.display()))?;
            texts.push(String::from_utf8_lossy(&text).replace("\r\n", "\n"));
        }
    }
    texts.sort();
    texts.dedup();
    Ok(texts)
}

/// Splits `serde v1.0.228 (proc-macro)` into the name and the version.
fn name_and_version(line: &str) -> Option<(String, String)> {
    let mut words = line.split_whitespace();
    let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
    Some((name.to_owned(), version.to_owned()))
}

fn list<'a>(value: &'a JsonValue, name: &str) -> Option<&'a Vec<JsonValue>> {
    match value {
        JsonValue::Object(fields) => fields.get(name)?.get(),
        _ => None,
    }
}

fn text<'a>(value: &'a JsonValue, name: &str) -> Option<&'a str> {
    match value {
        JsonValue::Object(fields) => fields.get(name)?.get::<String>().map(String::as_str),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_tree_have_a_name_and_a_version() {
        let read = |line| name_and_version(line).map(|(name, version)| format!("{name} {version}"));
        assert_eq!(read("serde_derive v1.0.228 (proc-macro)").as_deref(), Some("serde_derive 1.0.228"));
        assert_eq!(read("serde v1.0.228 (*)").as_deref(), Some("serde 1.0.228"));
        assert_eq!(read(""), None);
    }

    #[test]
    fn a_text_that_two_crates_share_is_printed_once() {
        let crate_of = |name: &str, texts: &[&str]| Dependency {
            name: name.to_owned(),
            version: "1.0.0".to_owned(),
            licence: "MIT".to_owned(),
            texts: texts.iter().map(|text| (*text).to_owned()).collect(),
        };
        let text = document(&[crate_of("a", &["Permission"]), crate_of("b", &["Permission"]), crate_of("c", &[])]);
        assert_eq!(text.matches("Permission").count(), 1);
        assert!(text.contains("a 1.0.0, b 1.0.0\n"));
        assert!(text.contains("c 1.0.0: MIT (no licence file in the package)\n"));
    }
}
