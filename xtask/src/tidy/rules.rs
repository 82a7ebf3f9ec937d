//! The rules that look at one file at a time.

use super::functions::functions;
use super::report::Report;
use super::source::{Source, words};
use super::words as plain_words;

/// A longer file is listed.
const FILE_LINES_AIM: usize = 300;
/// A longer file fails.
const FILE_LINES_MAX: usize = 600;
/// A longer function fails.
const FUNCTION_LINES_MAX: usize = 70;
/// The most lines of code between an `unsafe` and the comment that justifies it.
const UNSAFE_DISTANCE_LINES_MAX: usize = 5;

/// File names that say nothing about the contents.
const EMPTY_NAMES: [&str; 5] = ["utils", "base", "common", "helpers", "manager"];
/// Files whose `//!` states the contract of a whole crate or module.
const MODULE_ROOTS: [&str; 3] = ["lib.rs", "mod.rs", "main.rs"];
/// The crates that may depend on features: users choose features in the façade, which passes on the
/// domains of the CPU backend.
const FEATURE_CRATES: [&str; 2] = ["crates/panoply/", "crates/backends/cpu/"];

/// The kind of a file, from its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Rust.
    Rust,
    /// A package's `Cargo.toml`.
    Manifest,
    /// Another language that the project is written in.
    Script,
    /// A file that is not checked.
    Other,
}

impl Kind {
    /// Returns the kind of the file with this name.
    pub fn of(name: &str) -> Kind {
        match name.rsplit_once('.') {
            Some((_, "rs")) => Kind::Rust,
            _ if name == "Cargo.toml" || name.ends_with("/Cargo.toml") => Kind::Manifest,
            Some((_, "py" | "sh" | "wgsl" | "c" | "h")) => Kind::Script,
            _ => Kind::Other,
        }
    }
}

/// Applies every rule that fits the file. `name` is its path from the root, with `/` as the
/// separator.
pub fn check(name: &str, kind: Kind, text: &str, report: &mut Report) {
    match kind {
        Kind::Rust => {
            let source = Source::scan(text);
            size(name, text, report);
            function_lengths(name, &source, report);
            empty_name(name, report);
            module_documentation(name, text, report);
            unsafe_without_reason(name, &source, report);
            feature_outside_facade(name, &source, report);
            unfinished(name, &source.code, &source.comments, report);
            plain_words::check(name, &source, report);
        }
        Kind::Script => {
            size(name, text, report);
            unfinished(name, "", text, report);
        }
        Kind::Manifest => unfinished(name, "", text, report),
        Kind::Other => {}
    }
}

fn size(name: &str, text: &str, report: &mut Report) {
    let lines = text.lines().count();
    report.file_lines.push(lines);
    if lines > FILE_LINES_MAX {
        report.fail("file-length", name, 0, format!("{lines} lines, at most {FILE_LINES_MAX}"));
    } else if lines > FILE_LINES_AIM {
        report.warn("file-length", name, 0, format!("{lines} lines, aim at {FILE_LINES_AIM}"));
    }
}

fn function_lengths(name: &str, source: &Source, report: &mut Report) {
    for function in functions(&source.code) {
        report.function_lines.push(function.lines);
        if function.lines > FUNCTION_LINES_MAX {
            let text = format!("`{}` has {} lines, at most {FUNCTION_LINES_MAX}", function.name, function.lines);
            report.fail("function-length", name, function.line, text);
        }
    }
}

fn empty_name(name: &str, report: &mut Report) {
    let stems = name.split('/').map(|part| part.strip_suffix(".rs").unwrap_or(part));
    for stem in stems.filter(|stem| EMPTY_NAMES.contains(stem)) {
        report.fail("file-name", name, 0, format!("`{stem}` does not say what is inside"));
    }
}

fn module_documentation(name: &str, text: &str, report: &mut Report) {
    // Attributes of the whole file may come before its documentation.
    let first = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with("#!["));
    if first.is_none_or(|line| line.starts_with("//!")) {
        return;
    }
    let file = name.rsplit('/').next().unwrap_or(name);
    if MODULE_ROOTS.contains(&file) {
        report.fail("module-doc", name, 1, "does not open with `//!`".to_string());
    } else {
        report.warn("module-doc", name, 1, "does not open with `//!`".to_string());
    }
}

/// Clippy checks only code that it compiles. This rule also checks macros and other targets' code.
fn unsafe_without_reason(name: &str, source: &Source, report: &mut Report) {
    let code: Vec<&str> = source.code.lines().collect();
    let comments: Vec<&str> = source.comments.lines().collect();
    for (offset, _) in words(&source.code).filter(|&(_, word)| word == "unsafe") {
        let after = source.code[offset + "unsafe".len()..].trim_start();
        let what = match () {
            () if after.starts_with('{') => "block",
            () if after.starts_with("impl") => "impl",
            () => continue,
        };
        let index = line_index(&source.code, offset);
        if !has_reason(&code, &comments, index) {
            report.fail("unsafe-reason", name, index + 1, format!("unsafe {what} without `SAFETY:` above it"));
        }
    }
}

/// Looks for the reason on the line itself and above it, across comments of any length and a few
/// lines of code.
fn has_reason(code: &[&str], comments: &[&str], index: usize) -> bool {
    let mut code_lines = 0;
    for line in (0..=index).rev() {
        if comments.get(line).is_some_and(|comment| comment.contains("SAFETY:")) {
            return true;
        }
        if line < index && code.get(line).is_some_and(|code| !code.trim().is_empty()) {
            code_lines += 1;
        }
        if code_lines > UNSAFE_DISTANCE_LINES_MAX {
            return false;
        }
    }
    false
}

fn feature_outside_facade(name: &str, source: &Source, report: &mut Report) {
    if FEATURE_CRATES.iter().any(|folder| name.starts_with(folder)) {
        return;
    }
    for (offset, word) in words(&source.code).filter(|&(_, word)| word == "cfg" || word == "cfg_attr") {
        let after = source.code[offset + word.len()..].trim_start_matches('!');
        if after.starts_with('(') && words(parenthesised(after)).any(|(_, word)| word == "feature") {
            let line = line_index(&source.code, offset) + 1;
            report.fail("feature", name, line, format!("features are chosen in {} only", FEATURE_CRATES.join(" and ")));
        }
    }
}

/// Returns the text up to the parenthesis that closes the first one.
fn parenthesised(text: &str) -> &str {
    let mut depth = 0_usize;
    for (offset, byte) in text.bytes().enumerate() {
        match byte {
            b'(' => depth += 1,
            b')' => depth = depth.saturating_sub(1),
            _ => continue,
        }
        if depth == 0 {
            return &text[..offset];
        }
    }
    text
}

fn unfinished(name: &str, code: &str, comments: &str, report: &mut Report) {
    let in_code = words(code).filter(|&(offset, word)| {
        matches!(word, "todo" | "unimplemented") && code[offset + word.len()..].starts_with('!')
    });
    let in_comments = words(comments).filter(|&(_, word)| matches!(word, "TODO" | "FIXME"));
    let found = in_code.map(|found| (code, found)).chain(in_comments.map(|found| (comments, found)));
    for (text, (offset, word)) in found {
        report.fail("unfinished", name, line_index(text, offset) + 1, format!("`{word}`"));
    }
}

fn line_index(text: &str, offset: usize) -> usize {
    text[..offset].bytes().filter(|&byte| byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the rules that a file breaks, with the line numbers.
    fn broken(name: &str, text: &str) -> Vec<(&'static str, usize)> {
        let mut report = Report::default();
        check(name, Kind::of(name), text, &mut report);
        report.findings.iter().filter(|finding| finding.fails).map(|finding| (finding.rule, finding.line)).collect()
    }

    fn rust(text: &str) -> Vec<(&'static str, usize)> {
        broken("crates/core/src/tensor.rs", text)
    }

    #[test]
    fn long_files_and_functions_fail() {
        let long = "\n".repeat(FILE_LINES_MAX + 1);
        assert_eq!(rust(&long), [("file-length", 0)]);
        assert_eq!(rust(&"\n".repeat(FILE_LINES_MAX)), []);
        let function = |lines: usize| format!("//! Doc.\nfn long() {{{}}}\n", "\n".repeat(lines - 1));
        assert_eq!(rust(&function(FUNCTION_LINES_MAX)), []);
        assert_eq!(rust(&function(FUNCTION_LINES_MAX + 1)), [("function-length", 2)]);
    }

    #[test]
    fn file_lengths_between_aim_and_limit_are_only_listed() {
        let mut report = Report::default();
        check("a.rs", Kind::Rust, &"\n".repeat(FILE_LINES_AIM + 1), &mut report);
        assert_eq!(report.findings.len(), 1);
        assert_eq!(report.failures(), 0);
    }

    #[test]
    fn names_that_say_nothing_fail() {
        assert_eq!(broken("crates/core/src/utils.rs", "//! Doc."), [("file-name", 0)]);
        assert_eq!(broken("crates/core/tests/common/mod.rs", "//! Doc."), [("file-name", 0)]);
        assert_eq!(broken("crates/core/src/database.rs", "//! Doc."), []);
    }

    #[test]
    fn module_roots_need_documentation() {
        assert_eq!(broken("crates/core/src/lib.rs", "pub mod a;\n"), [("module-doc", 1)]);
        assert_eq!(broken("crates/core/src/op/mod.rs", "// Not documentation.\n"), [("module-doc", 1)]);
        assert_eq!(broken("crates/core/src/lib.rs", "#![allow(unused)]\n//! Doc.\npub mod a;\n"), []);
        assert_eq!(broken("crates/core/src/tensor.rs", "pub struct A;\n"), []);
    }

    #[test]
    fn unsafe_needs_a_reason() {
        assert_eq!(rust("fn a() {\n    unsafe { b() }\n}\n"), [("unsafe-reason", 2)]);
        assert_eq!(rust("unsafe impl Send for A {}\n"), [("unsafe-reason", 1)]);
        assert_eq!(rust("// SAFETY: b is fine.\nlet x =\n    unsafe { b() };\n"), []);
        assert_eq!(
            rust("// SAFETY: the reason is long,\n// and goes on\n// for some lines.\nunsafe impl Send for A {}\n"),
            []
        );
        assert_eq!(rust("let x = unsafe { b() }; // SAFETY: b is fine.\n"), []);
    }

    #[test]
    fn a_reason_far_away_or_in_a_string_does_not_count() {
        let far = format!("// SAFETY: for something else.\n{}unsafe {{ b() }}\n", "a();\n".repeat(6));
        assert_eq!(rust(&far), [("unsafe-reason", 8)]);
        assert_eq!(rust("let s = \"SAFETY: no\";\nunsafe { b() }\n"), [("unsafe-reason", 2)]);
    }

    #[test]
    fn unsafe_functions_are_not_blocks() {
        assert_eq!(rust("/// # Safety\nunsafe fn a() {}\ntype F = unsafe extern \"C\" fn();\n"), []);
    }

    #[test]
    fn features_belong_to_the_facade() {
        let text = "#[cfg(all(test, feature = \"cpu\"))]\nmod a;\n";
        assert_eq!(rust(text), [("feature", 1)]);
        assert_eq!(rust("if cfg!(feature = \"cpu\") {}"), [("feature", 1)]);
        assert_eq!(broken("crates/panoply/src/lib.rs", &format!("//! Doc.\n{text}")), []);
        assert_eq!(rust("#[cfg(target_feature = \"avx2\")]\nfn a() {}\n"), []);
        assert_eq!(rust("#[cfg(test)]\nmod a;\nlet feature = 1;\n"), []);
    }

    #[test]
    fn unfinished_work_fails() {
        let macro_call = ["to", "do!()"].concat();
        let marker = ["# FIX", "ME later"].concat();
        assert_eq!(rust(&format!("fn a() {{\n    {macro_call}\n}}\n")), [("unfinished", 2)]);
        assert_eq!(broken("fixtures/a.py", &marker), [("unfinished", 1)]);
        assert_eq!(rust("let todo = \"TODO\"; // A todo list.\n"), []);
    }
}
