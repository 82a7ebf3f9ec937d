//! Finds test files that no test program contains. Where `autotests` is off, cargo does not look
//! for them, and a forgotten `mod` line would hide every test of a file.

use super::report::Report;

/// Checks the files in `tests/` beside a manifest. `names` are all files, and `read` returns the
/// text of one.
pub fn check<E>(
    file: &str,
    manifest: &str,
    names: &[String],
    read: impl Fn(&str) -> Result<String, E>,
    report: &mut Report,
) -> Result<(), E> {
    if !manifest.lines().any(|line| line == "autotests = false") {
        return Ok(());
    }
    let folder = file.replace("Cargo.toml", "tests/");
    let stem = |name: &str| -> Option<String> {
        let stem = name.strip_prefix(&folder)?.strip_suffix(".rs")?;
        (!stem.contains('/')).then(|| stem.to_owned())
    };
    let mut modules = Vec::new();
    for name in names.iter().filter(|name| stem(name).is_some()) {
        modules.extend(read(name)?.lines().map(str::to_owned).filter(|line| line.contains("mod ")));
    }
    for name in names {
        let Some(stem) = stem(name) else { continue };
        let is_program = manifest.lines().any(|line| line == format!("name = \"{stem}\""));
        if !is_program && !modules.iter().any(|line| line.ends_with(&format!("mod {stem};"))) {
            report.fail("test-file", name, 0, format!("no test program contains it: add `mod {stem};` to `main.rs`"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_no_program_contains_is_found() {
        let files = [
            ("crates/a/tests/main.rs", "//! Doc.\n\nmod lines;\nmod support;\n"),
            ("crates/a/tests/lines.rs", "#[test]\nfn test() {}\n"),
            ("crates/a/tests/forks.rs", "mod support;\n"),
            ("crates/a/tests/forgotten.rs", "#[test]\nfn test() {}\n"),
            ("crates/a/tests/lines/inner.rs", ""),
            ("crates/b/tests/other.rs", ""),
        ];
        let names = files.map(|(name, _)| name.to_owned());
        let read = |name: &str| files.iter().find(|file| file.0 == name).map(|file| file.1.to_owned()).ok_or(());
        let found = |manifest: &str| {
            let mut report = Report::default();
            assert_eq!(check("crates/a/Cargo.toml", manifest, &names, read, &mut report), Ok(()));
            report.findings.into_iter().map(|finding| finding.file).collect::<Vec<_>>()
        };
        let programs = "[[test]]\nname = \"main\"\n\n[[test]]\nname = \"forks\"\n";
        assert_eq!(found(&format!("autotests = false\n{programs}")), ["crates/a/tests/forgotten.rs"]);
        assert_eq!(found(programs), Vec::<String>::new());
    }
}
