//! `cargo xtask package`: packs every published crate as `cargo publish` would, unpacks all of them
//! outside of the repository's folders, and type-checks them there against each other. So a crate
//! that reads a file outside of its own folder, or depends on a path without a version, is found
//! before it is published.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tinyjson::JsonValue;

use crate::artifacts::{field, text};
use crate::process::{Workspace, capture, run, say};

/// A crate of the workspace that may be published.
struct PublishedCrate {
    name: String,
    version: String,
}

impl PublishedCrate {
    /// The folder into which its archive is unpacked.
    fn folder(&self) -> String {
        format!("{}-{}", self.name, self.version)
    }
}

/// Packs, unpacks and checks.
pub fn command(workspace: &Workspace) -> Result<()> {
    let metadata = capture(&mut workspace.cargo("metadata --no-deps --format-version 1"))?;
    let (published, private) = sort(&metadata).context("`cargo metadata` names no packages")?;
    let mut package = workspace.cargo("package --workspace --no-verify --allow-dirty --quiet");
    package.args(private.iter().flat_map(|name| ["--exclude", name.as_str()]));
    run(&mut package)?;
    let folder = unpack(workspace, &published)?;
    fs::copy(workspace.root.join("Cargo.lock"), folder.join("Cargo.lock")).context("Cargo.lock cannot be copied")?;
    let mut check = workspace.cargo("check --workspace --offline --quiet");
    check.current_dir(&folder).arg("--target-dir").arg(workspace.target());
    run(&mut check)?;
    say(&format!("{} crates were packed, and type-check from their archives", published.len()));
    Ok(())
}

/// Sorts the workspace's packages into those that are published and the names of those that are
/// not.
fn sort(metadata: &str) -> Option<(Vec<PublishedCrate>, Vec<String>)> {
    let metadata: JsonValue = metadata.parse().ok()?;
    let JsonValue::Array(packages) = field(&metadata, "packages")? else { return None };
    let (mut published, mut private) = (Vec::new(), Vec::new());
    for package in packages {
        let name = text(field(package, "name")?)?.to_owned();
        let version = text(field(package, "version")?)?.to_owned();
        match field(package, "publish")? {
            JsonValue::Array(registries) if registries.is_empty() => private.push(name),
            _ => published.push(PublishedCrate { name, version }),
        }
    }
    Some((published, private))
}

/// Unpacks the archives into one folder, which becomes a workspace in which each crate stands for
/// the one that would be downloaded.
fn unpack(workspace: &Workspace, published: &[PublishedCrate]) -> Result<PathBuf> {
    let archives = workspace.target().join("package");
    let folder = archives.join("unpacked");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("{} cannot be removed", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("{} cannot be created", folder.display()))?;
    for package in published {
        let archive = archives.join(format!("{}.crate", package.folder()));
        if !archive.is_file() {
            bail!("cargo made no {}", archive.display());
        }
        run(workspace.command("tar").arg("-xzf").arg(archive).arg("-C").arg(&folder))?;
    }
    write_manifest(&folder.join("Cargo.toml"), published)?;
    Ok(folder)
}

fn write_manifest(path: &Path, published: &[PublishedCrate]) -> Result<()> {
    let members: Vec<String> = published.iter().map(|package| format!("{:?}", package.folder())).collect();
    let patches = published.iter().map(|package| format!("{} = {{ path = {:?} }}\n", package.name, package.folder()));
    let text = format!(
        "[workspace]\nresolver = \"3\"\nmembers = [{}]\n\n[patch.crates-io]\n{}",
        members.join(", "),
        patches.collect::<String>()
    );
    fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_packages_are_told_from_published_ones() {
        let metadata = r#"{"packages":[{"name":"a","version":"1.2.3","publish":null},{"name":"b","version":"0.1.0","publish":[]}]}"#;
        let (published, private) = sort(metadata).unwrap();
        let published: Vec<String> = published.iter().map(PublishedCrate::folder).collect();
        assert_eq!((published, private), (vec!["a-1.2.3".to_owned()], vec!["b".to_owned()]));
    }
}
