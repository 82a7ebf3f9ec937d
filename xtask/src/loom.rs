//! Tests of the lock-free code under every interleaving that loom finds.
//!
//! The tests live in modules behind `cfg(loom)` whose path contains `loom`. They are built in a
//! separate target folder, because `--cfg loom` changes every crate.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::process::{Workspace, capture, run};
use crate::steps::Outcome;
use crate::tidy::{Source, rust_files};

/// The packages that may have loom tests, and their folders.
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
/// modules but no test is found in them.
fn step(workspace: &Workspace, preemptions_max: Option<&str>) -> Result<Outcome> {
    let mut packages = Vec::new();
    for (package, folder) in PACKAGES {
        if has_loom_module(&workspace.root.join(folder))? {
            packages.extend(["--package", package]);
        }
    }
    if packages.is_empty() {
        return Ok(Outcome::Skipped("no module is behind cfg(loom)".to_string()));
    }
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

fn has_loom_module(folder: &Path) -> Result<bool> {
    for path in rust_files(folder)? {
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        if opens_loom_module(&Source::scan(&text).code) {
            return Ok(true);
        }
    }
    Ok(false)
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
    fn code_that_is_only_prepared_for_loom_does_not_count() {
        assert!(!opens_loom_module("#[cfg(loom)]\nuse loom::sync::Arc;\nmod other;\n"));
        assert!(!opens_loom_module("#[cfg(not(loom))]\nmod plain;\n"));
        assert!(!opens_loom_module("#[cfg(test)]\nmod tests;\n"));
    }
}
