//! Checks that `docs/environment.md` lists exactly the variables that the library and the command
//! read.
//!
//! A variable is a string literal `PANOPLY_…` in code that is not a test. Settings such as
//! `PANOPLY_LIMITS_QUEUE_DEPTH_MAX` have no literals: the page describes their form.

use std::collections::BTreeSet;

use super::report::Report;
use super::source::Source;

const PAGE: &str = "docs/environment.md";
/// Literals of this form that are no environment variables: macros of kernels in C.
const MACROS: [&str; 4] = ["PANOPLY_CUDA", "PANOPLY_HIP", "PANOPLY_HOST", "PANOPLY_OPENCL"];
/// Folders and files of tests and of the tooling that runs them. `CONTRIBUTING.md` lists their
/// variables.
const LEFT_OUT: [&str; 9] = [
    "/tests/",
    "/testing/",
    "/benches/",
    "/examples/",
    "/test-library/",
    "tests.rs",
    "crates/conformance/",
    "fuzz/",
    "xtask/",
];

/// Compares the page with all Rust sources. Each source is a file's name and its text.
pub fn check(page: &str, sources: &[(String, String)], report: &mut Report) {
    let test_modules = test_modules(sources);
    let is_test = |name: &str| {
        LEFT_OUT.iter().any(|part| name.contains(part)) || test_modules.iter().any(|module| name.starts_with(module))
    };
    let mut read = BTreeSet::new();
    for (name, text) in sources.iter().filter(|(name, _)| !is_test(name)) {
        for (line, variable) in variables(text) {
            if !listed(page).contains(variable) {
                report.fail("environment", name, line, format!("{variable} has no line in {PAGE}"));
            }
            read.insert(variable);
        }
    }
    for variable in listed(page).difference(&read) {
        report.fail("environment", PAGE, 0, format!("no code outside of tests reads {variable}"));
    }
}

/// Returns the variables in the first cells of the page's tables.
fn listed(page: &str) -> BTreeSet<&str> {
    let cells = page.lines().filter_map(|line| line.strip_prefix("| ")?.split('|').next());
    let names = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let names = names.map(|name| name.split('=').next().unwrap_or(name));
    names.filter(|name| is_variable(name)).collect()
}

/// Returns the literals of a file that are names of variables, with their lines. The text behind
/// the first module of tests is left out.
fn variables(text: &str) -> Vec<(usize, &str)> {
    let source = Source::scan(text);
    let end = tests_begin(&source.code).unwrap_or(text.len());
    let mut found = Vec::new();
    for (at, _) in text[..end].match_indices("\"PANOPLY_") {
        let name = text[at + 1..].split('"').next().unwrap_or_default();
        let is_literal = source.comments.as_bytes().get(at) == Some(&b' ');
        if is_literal && is_variable(name) && !MACROS.contains(&name) {
            found.push((text[..at].lines().count(), name));
        }
    }
    found
}

/// Returns the offset of the first module of tests that stands in the file itself.
fn tests_begin(code: &str) -> Option<usize> {
    let (mut at, mut attributes, mut is_test) = (0, 0, false);
    for line in code.lines() {
        if line.starts_with("#[") {
            // Further attributes may stand between the condition and the module.
            (attributes, is_test) =
                if is_test { (attributes, true) } else { (at, line.starts_with("#[cfg(") && line.contains("test")) };
        } else if is_test && line.starts_with("mod ") && line.trim_end().ends_with('{') {
            return Some(attributes);
        } else {
            is_test = false;
        }
        at += line.len() + 1;
    }
    None
}

fn is_variable(name: &str) -> bool {
    let is_word = |c: char| c == '_' || c.is_ascii_uppercase() || c.is_ascii_digit();
    name.strip_prefix("PANOPLY_").is_some_and(|rest| !rest.is_empty()) && name.chars().all(is_word)
}

/// Returns the paths of modules that are compiled for tests alone, without their endings.
fn test_modules(sources: &[(String, String)]) -> Vec<String> {
    let mut modules = Vec::new();
    for (name, text) in sources {
        let (folder, file) = name.rsplit_once('/').unwrap_or(("", name));
        let folder = match file {
            "lib.rs" | "mod.rs" | "main.rs" => folder.to_string(),
            _ => name.trim_end_matches(".rs").to_string(),
        };
        for (attribute, item) in text.lines().zip(text.lines().skip(1)) {
            let is_test = attribute.trim_start().starts_with("#[cfg(") && attribute.contains("test");
            let module = item.trim().strip_suffix(';').and_then(|item| item.rsplit_once("mod "));
            if let Some((_, module)) = module.filter(|_| is_test) {
                modules.extend([format!("{folder}/{module}.rs"), format!("{folder}/{module}/")]);
            }
        }
    }
    modules
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns where the page differs from a crate with this file.
    fn broken(page: &str, name: &str, text: &str) -> Vec<String> {
        let lib = "#[cfg(test)]\nmod simulation;\nmod device;\n".to_string();
        let sources = [("crates/a/src/lib.rs".to_string(), lib), (name.to_string(), text.to_string())];
        let mut report = Report::default();
        check(page, &sources, &mut report);
        report
            .findings
            .into_iter()
            .map(|finding| format!("{}:{} {}", finding.file, finding.line, finding.text))
            .collect()
    }

    const PAGE_TEXT: &str = "| variable | effect |\n| --- | --- |\n| `PANOPLY_A=1`, `HOME` | `PANOPLY_B` |\n";

    #[test]
    fn the_page_has_exactly_the_variables_of_the_code() {
        let read = "// \"PANOPLY_C\"\nconst A: &str = \"PANOPLY_A\";\nlet b = \"PANOPLY_\";\n";
        assert_eq!(broken(PAGE_TEXT, "crates/a/src/device.rs", read), [""; 0]);
        let more = format!("{read}let b = \"PANOPLY_B\";\n");
        let missing = "crates/a/src/device.rs:4 PANOPLY_B has no line in docs/environment.md";
        assert_eq!(broken(PAGE_TEXT, "crates/a/src/device.rs", &more), [missing]);
        let unread = "docs/environment.md:0 no code outside of tests reads PANOPLY_A";
        assert_eq!(broken(PAGE_TEXT, "crates/a/src/device.rs", ""), [unread]);
    }

    #[test]
    fn tests_read_variables_of_their_own() {
        let read = "let a = \"PANOPLY_A\";\n";
        for attribute in ["#[cfg(test)]", "#[cfg(all(test, unix))] // Signals.", "#[cfg(test)]\n#[allow(a)]"] {
            let inner = format!("{read}{attribute}\nmod tests {{\n    let b = \"PANOPLY_B\";\n}}\n");
            assert_eq!(broken(PAGE_TEXT, "crates/a/src/device.rs", &inner), [""; 0]);
        }
        for name in ["crates/a/src/simulation/mod.rs", "crates/a/src/simulation.rs", "crates/a/tests/x.rs"] {
            assert_eq!(broken("", name, read), [""; 0], "{name}");
        }
        assert_eq!(broken("", "crates/a/src/simulations.rs", read).len(), 1);
    }
}
