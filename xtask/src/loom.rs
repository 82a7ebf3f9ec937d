//! Tests of the lock-free code under every interleaving that loom finds.
//!
//! The tests live in modules behind `cfg(loom)` whose path contains `loom`. They are built in a
//! separate target folder, because `--cfg loom` changes every crate.

use anyhow::{Context, Result, bail, ensure};

use crate::process::{Workspace, capture, run};
use crate::steps::Outcome;
use crate::tidy::{Source, rust_files};

/// The packages that may have loom tests, and their folders. A loom test in another folder would
/// never run, so the step fails if one has a module behind `cfg(loom)`.
const PACKAGES: [(&str, &str); 2] = [("panoply-core", "crates/core"), ("panoply-lockfree", "crates/lockfree")];

/// The number of preemptions in one schedule for [`short_step`]. A schedule that breaks something
/// rarely needs more, and every further one multiplies the schedules.
const PREEMPTIONS_MAX: &str = "3";

/// Runs the loom tests over every schedule with few preemptions.
pub fn short_step(workspace: &Workspace) -> Result<Outcome> {
    step(workspace, Some(PREEMPTIONS_MAX))
}

/// Runs the loom tests over every schedule, except for tests that have a bound of their own.
pub fn whole_step(workspace: &Workspace) -> Result<Outcome> {
    step(workspace, None)
}

/// Runs the loom tests. Skipped only if no module is behind `cfg(loom)`. Fails if there are such
/// modules but no test is found in them, or if one is outside the folders of [`PACKAGES`].
fn step(workspace: &Workspace, preemptions_max: Option<&str>) -> Result<Outcome> {
    let packages = packages_of(&files_with_modules(workspace)?)?;
    if packages.is_empty() {
        return Ok(Outcome::Skipped("no module is behind cfg(loom)".to_string()));
    }
    let packages: Vec<&str> = packages.into_iter().flat_map(|package| ["--package", package]).collect();
    let flags = format!("{} --cfg loom", std::env::var("RUSTFLAGS").unwrap_or_default());
    let test = |last: &[&str]| {
        let mut command = workspace.cargo("test --release --lib --target-dir target/loom");
        command.env("RUSTFLAGS", flags.trim()).args(&packages).arg("loom").args(last);
        if let Some(bound) = preemptions_max
            && std::env::var_os("LOOM_MAX_PREEMPTIONS").is_none()
        {
            command.env("LOOM_MAX_PREEMPTIONS", bound);
        }
        command
    };
    let names = capture(&mut test(&["--", "--list"]))?;
    if !names.lines().any(|line| line.ends_with(": test")) {
        bail!("there are modules behind cfg(loom), but no test whose path contains `loom`");
    }
    run(&mut test(&[]))?;
    Ok(Outcome::Passed)
}

/// Returns every file of the workspace with a module behind `cfg(loom)`, as a path from its root.
fn files_with_modules(workspace: &Workspace) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for path in rust_files(&workspace.root)? {
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        // Most files do not have the word.
        if text.contains("loom") && opens_loom_module(&Source::scan(&text).code) {
            let name = path.strip_prefix(&workspace.root).unwrap_or(&path);
            names.push(name.to_string_lossy().replace('\\', "/"));
        }
    }
    Ok(names)
}

/// Returns the packages that these files belong to. Fails if a file is in none of [`PACKAGES`].
fn packages_of(files: &[String]) -> Result<Vec<&'static str>> {
    let is_in = |file: &str, folder: &str| file.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'));
    for file in files {
        let is_known = PACKAGES.iter().any(|(_, folder)| is_in(file, folder));
        ensure!(
            is_known,
            "{file} has a module behind cfg(loom), but its package is not in PACKAGES of xtask/src/loom.rs"
        );
    }
    let has_module = |folder: &str| files.iter().any(|file| is_in(file, folder));
    Ok(PACKAGES.iter().filter(|(_, folder)| has_module(folder)).map(|(package, _)| *package).collect())
}

/// Whether a `mod` follows an attribute that requires loom. `not(loom)` and `use` lines do not
/// count: they belong to code that is merely prepared for loom.
fn opens_loom_module(code: &str) -> bool {
    let mut behind_loom = false;
    for line in code.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if line.starts_with("#[") {
            behind_loom |= line.starts_with("#[cfg(") && line.contains("loom") && !line.contains("not(loom)");
        } else if behind_loom && line.split_whitespace().any(|word| word == "mod") {
            return true;
        } else {
            behind_loom = false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_module_behind_loom_is_found() {
        assert!(opens_loom_module("#[cfg(loom)]\nmod loom_tests {\n}\n"));
        assert!(opens_loom_module("#[cfg(all(test, loom))]\n#[allow(unused)]\n\npub(crate) mod loom;\n"));
    }

    #[test]
    fn a_module_outside_the_known_packages_fails() {
        let packages = |files: &[&str]| packages_of(&files.iter().map(|file| (*file).to_owned()).collect::<Vec<_>>());
        assert_eq!(packages(&[]).unwrap(), [""; 0]);
        assert_eq!(packages(&["crates/lockfree/src/bell.rs"]).unwrap(), ["panoply-lockfree"]);
        let both = ["crates/lockfree/src/slot.rs", "crates/core/src/lease.rs", "crates/lockfree/src/bell.rs"];
        assert_eq!(packages(&both).unwrap(), ["panoply-core", "panoply-lockfree"]);
        for other in ["crates/runtime/src/relay.rs", "crates/core_extra/src/lib.rs", "examples/a/src/lib.rs"] {
            let error = packages(&["crates/core/src/lease.rs", other]).unwrap_err().to_string();
            assert!(error.starts_with(other), "{error}");
        }
    }

    #[test]
    fn code_that_is_only_prepared_for_loom_does_not_count() {
        assert!(!opens_loom_module("#[cfg(loom)]\nuse loom::sync::Arc;\nmod other;\n"));
        assert!(!opens_loom_module("#[cfg(not(loom))]\nmod plain;\n"));
        assert!(!opens_loom_module("#[cfg(test)]\nmod tests;\n"));
    }
}
