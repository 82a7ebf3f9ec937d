//! Reads the dependencies in a `Cargo.toml`.
//!
//! Only the part of TOML that manifests use is supported (tables, dotted keys, inline tables on one
//! line). This saves every user of `cargo xtask` the build of a full parser.

/// A package's name and its dependencies.
#[derive(Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The manifest's path from the repository's root.
    pub file: String,
    /// Empty for a workspace without a package.
    pub package: String,
    /// Every dependency outside `dev-dependencies`.
    pub dependencies: Vec<Dependency>,
}

/// A dependency.
#[derive(Debug, PartialEq, Eq)]
pub struct Dependency {
    /// The package's real name, even if the manifest renames it.
    pub package: String,
    /// The line that names it, counted from one.
    pub line: usize,
}

impl Manifest {
    /// Reads a manifest. Lines that are not understood are ignored.
    pub fn parse(file: &str, text: &str) -> Manifest {
        let mut manifest = Manifest { file: file.to_string(), package: String::new(), dependencies: Vec::new() };
        let mut table = Table::Other;
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.starts_with('[') {
                table = Table::of(line);
                if let Table::OneDependency(package) = &table {
                    manifest.dependencies.push(Dependency { package: package.clone(), line: index + 1 });
                }
                continue;
            }
            let Some((key, value)) = line.split_once('=').map(|(key, value)| (key.trim(), value.trim())) else {
                continue;
            };
            match &table {
                Table::Package if key == "name" => manifest.package = unquoted(value).to_string(),
                Table::Dependencies if !key.starts_with('#') => {
                    let alias = unquoted(key.split('.').next().unwrap_or(key));
                    let package = renamed(value).unwrap_or(alias).to_string();
                    manifest.dependencies.push(Dependency { package, line: index + 1 });
                }
                Table::OneDependency(_) if key == "package" => {
                    if let Some(dependency) = manifest.dependencies.last_mut() {
                        dependency.package = unquoted(value).to_string();
                    }
                }
                _ => {}
            }
        }
        manifest
    }
}

enum Table {
    /// `[package]`
    Package,
    /// `[dependencies]`, `[build-dependencies]`, `[target.….dependencies]`
    Dependencies,
    /// `[dependencies.name]`
    OneDependency(String),
    Other,
}

impl Table {
    fn of(header: &str) -> Table {
        let name = header.trim_start_matches('[').split(']').next().unwrap_or_default().trim();
        if name == "package" {
            return Table::Package;
        }
        // Dependencies that a workspace declares for its members are not used by any package yet.
        if name.starts_with("workspace") {
            return Table::Other;
        }
        let kinds = ["dependencies", "build-dependencies"];
        let last = name.rsplit('.').next().unwrap_or(name);
        if kinds.contains(&last) {
            return Table::Dependencies;
        }
        let before_last = name.rsplit('.').nth(1).unwrap_or_default();
        if kinds.contains(&before_last) { Table::OneDependency(unquoted(last).to_string()) } else { Table::Other }
    }
}

/// The real name in `{ package = "name", … }`.
fn renamed(value: &str) -> Option<&str> {
    let (_, rest) = value.strip_prefix('{')?.split_once("package")?;
    let rest = rest.trim_start().strip_prefix('=')?;
    Some(unquoted(rest.split([',', '}']).next()?.trim()))
}

fn unquoted(text: &str) -> &str {
    let quote = |character| character == '"' || character == '\'';
    match text.strip_prefix(quote) {
        Some(rest) => rest.split(quote).next().unwrap_or(rest),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        Manifest::parse("Cargo.toml", text).dependencies.into_iter().map(|dependency| dependency.package).collect()
    }

    #[test]
    fn the_package_and_its_dependencies_are_read() {
        let text = "[package]\nname = \"panoply-cpu\" # why\n\n[dependencies]\npanoply-core.workspace = true\n";
        let manifest = Manifest::parse("crates/backends/cpu/Cargo.toml", text);
        assert_eq!(manifest.package, "panoply-cpu");
        assert_eq!(manifest.dependencies, [Dependency { package: "panoply-core".to_string(), line: 5 }]);
    }

    #[test]
    fn every_way_to_write_a_dependency() {
        assert_eq!(names("[dependencies]\na = \"1\"\n\"b\" = { version = \"1\" }\n# c = \"1\"\n"), ["a", "b"]);
        assert_eq!(names("[dependencies]\nshort = { version = \"1\", package = \"long-name\" }\n"), ["long-name"]);
        assert_eq!(names("[dependencies.a]\nversion = \"1\"\n[dependencies.b]\npackage = \"c\"\n"), ["a", "c"]);
        assert_eq!(names("[target.'cfg(loom)'.dependencies]\nloom.workspace = true\n"), ["loom"]);
        assert_eq!(names("[target.x86_64-unknown-linux-gnu.build-dependencies]\ncc = \"1\"\n"), ["cc"]);
    }

    #[test]
    fn tests_and_workspaces_do_not_count() {
        assert_eq!(names("[dev-dependencies]\na = \"1\"\n[workspace.dependencies]\nb = \"1\"\n"), [] as [&str; 0]);
        assert_eq!(names("[dev-dependencies.a]\nversion = \"1\"\n[features]\ndefault = [\"cpu\"]\n"), [] as [&str; 0]);
    }
}
