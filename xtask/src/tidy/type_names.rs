//! Finds names of types that do not say what the type is.
//!
//! 1. A type is a noun. A bare participle (`Made`, `Found`) says only that something happened; the
//!    list holds those that stood in the tree and were renamed.
//! 2. Different things have different names. A name that is defined in more than [`PLACES_MAX`]
//!    places outside of tests is qualified: `AesBlock`, `ResidualBlock`.
//! 3. Associated types do not count: the trait gives them their name and their meaning.

use std::collections::BTreeMap;

use super::report::Report;
use super::source::Source;
use super::uses::{tokens, without_tests};

/// The most places outside of tests that may define a type of the same name.
const PLACES_MAX: usize = 8;

/// Names that mean the same in each file, and the number of places that may define them. Lower the
/// number when a place is renamed.
const COMMON_NAMES: [(&str, usize); 3] = [("Kind", 12), ("Result", 10), ("State", 20)];

/// Participles that are no name for a type.
#[rustfmt::skip]
const PARTICIPLES: [&str; 96] = [
    "Added", "Announced", "Answered", "Awaited", "Brought", "Built", "Captured", "Checked", "Chosen", "Claimed",
    "Compiled", "Compressed", "Counted", "Declared", "Decompressed", "Delivered", "Described", "Done", "Doomed",
    "Drawn", "Emulated", "Encoded", "Ended", "Examined", "Exhausted", "Expanded", "Expected", "Failed", "Filled",
    "Finished", "Found", "Framed", "Gated", "Gathered", "Generated", "Given", "Gone", "Hashed", "Held", "Hooked",
    "Identified", "Inlined", "Interrupted", "Joined", "Kept", "Known", "Landed", "Learned", "Left", "Lent", "Limited",
    "Loaded", "Logged", "Lost", "Lowered", "Made", "Mapped", "Masked", "Measured", "Mixed", "Moved", "Noted", "Opened",
    "Owned", "Padded", "Picked", "Placed", "Planned", "Pooled", "Prepared", "Pretended", "Published", "Queued",
    "Ranked", "Received", "Recorded", "Recovered", "Registered", "Remade", "Repeated", "Retired", "Salvaged", "Saved",
    "Seen", "Selected", "Sent", "Shown", "Spent", "Started", "Stored", "Taken", "Told", "Tried", "Turned", "Wanted",
    "Written",
];

/// Checks all Rust files of the repository, given with their text.
pub fn check(files: &[(String, String)], report: &mut Report) {
    let mut places: BTreeMap<String, Vec<(&str, usize)>> = BTreeMap::new();
    for (file, text) in files {
        let code = Source::scan(text).code;
        let all = tokens(&code);
        for (name, line) in definitions(&code, &all) {
            if PARTICIPLES.contains(&name) {
                let text = format!("`{name}` is a participle: name the type for the thing, with a noun");
                report.fail("type-name", file, line, text);
            }
        }
        if !is_test(file) {
            for (name, line) in definitions(&code, &without_tests(&all)) {
                places.entry(name.to_owned()).or_default().push((file, line));
            }
        }
    }
    for (name, places) in &places {
        let allowed = COMMON_NAMES.iter().find(|(common, _)| common == name).map_or(PLACES_MAX, |(_, count)| *count);
        if let Some((file, line)) = places.last().filter(|_| places.len() > allowed) {
            let text = format!("{} places define a type `{name}`, at most {allowed}: qualify the name", places.len());
            report.fail("type-name", file, *line, text);
        }
    }
}

fn is_test(file: &str) -> bool {
    let folders = ["/tests/", "/benches/", "/examples/"];
    folders.iter().any(|folder| file.contains(folder)) || file.ends_with("/tests.rs") || file.ends_with("_tests.rs")
}

/// The kind of the item whose block opens next.
#[derive(Clone, Copy, PartialEq)]
enum Item {
    /// An `impl` or a trait, whose types are associated types.
    Associating,
    /// Any other item.
    Other,
}

/// Returns the names of the types that are defined by tokens of `code`, with their lines.
fn definitions<'a>(code: &str, tokens: &[&'a str]) -> Vec<(&'a str, usize)> {
    let mut found = Vec::new();
    let (mut blocks, mut item) = (Vec::new(), None);
    let (mut depth, mut is_after_path) = (0_usize, false);
    for pair in tokens.windows(2) {
        let (token, next) = (pair[0], pair[1]);
        match token {
            "{" => {
                blocks.push((item.take().unwrap_or(Item::Other), depth));
                depth = 0;
            }
            "}" => {
                depth = blocks.pop().map_or(0, |(_, depth)| depth);
                item = None;
            }
            "(" | "[" => depth += 1,
            ")" | "]" => depth = depth.saturating_sub(1),
            // The semicolon of `[u8; 4]` ends nothing.
            ";" if depth == 0 => item = None,
            // `impl` also stands in types of functions, whose blocks are theirs.
            "fn" => item = Some(Item::Other),
            "impl" => item = item.or(Some(Item::Associating)),
            _ => {}
        }
        let is_type = matches!(token, "struct" | "enum" | "union" | "trait" | "type");
        let is_associated = token == "type" && blocks.last().is_some_and(|(kind, _)| *kind == Item::Associating);
        if is_type && !is_after_path && next.starts_with(|first: char| first.is_ascii_uppercase()) {
            item = Some(if token == "trait" { Item::Associating } else { Item::Other });
            if !is_associated {
                found.push((next, line_of(code, next)));
            }
        }
        is_after_path = matches!(token, "." | "::");
    }
    found
}

/// Returns the line of a token, which is a part of the code.
fn line_of(code: &str, token: &str) -> usize {
    let offset = token.as_ptr() as usize - code.as_ptr() as usize;
    code[..offset].bytes().filter(|byte| *byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the files and the lines of the findings.
    fn broken(files: &[(String, String)]) -> Vec<(String, usize)> {
        let mut report = Report::default();
        check(files, &mut report);
        report.findings.into_iter().map(|finding| (finding.file, finding.line)).collect()
    }

    fn lines(text: &str) -> Vec<usize> {
        broken(&[("crates/a/src/b.rs".to_owned(), text.to_owned())]).into_iter().map(|(_, line)| line).collect()
    }

    /// One file for each place that defines `Block`.
    fn blocks(count: usize, folder: &str) -> Vec<(String, String)> {
        (0..count).map(|index| (format!("crates/a/{folder}/b{index}.rs"), "struct Block;\n".to_owned())).collect()
    }

    #[test]
    fn participles_fail_as_types() {
        assert_eq!(
            lines("struct Made;\npub(crate) enum Found<T> { A(T) }\ntype Told = u8;\ntrait Kept {}\n"),
            [1, 2, 3, 4]
        );
        assert_eq!(lines("fn a() -> impl Fn() {\n    struct Held;\n}\n"), [2]);
        assert_eq!(lines("#[cfg(test)]\nmod tests {\n    struct Seen;\n}\n"), [3]);
    }

    #[test]
    fn other_names_pass() {
        assert_eq!(lines("struct MadeKey;\nstruct Fused;\nstruct Expression;\n"), []);
        assert_eq!(lines("enum Step { Made, Found(u8) }\nconst MADE: Step = Step::Made;\n"), []);
        assert_eq!(lines("// struct Made;\nlet text = \"struct Found;\";\n"), []);
    }

    #[test]
    fn associated_types_pass() {
        assert_eq!(lines("impl<T> Pool for Blocks<T> {\n    type Made = T;\n}\n"), []);
        assert_eq!(lines("trait Pool {\n    type Made;\n    fn a() {\n        struct Made;\n    }\n}\n"), [4]);
        assert_eq!(lines("impl Pool for [u8; 4] {\n    type Made = u8;\n}\n"), []);
        let file = |index| (format!("crates/a/src/b{index}.rs"), "impl A for B { type Block = u8; }\n".to_owned());
        assert_eq!(broken(&(0..20).map(file).collect::<Vec<_>>()), []);
    }

    #[test]
    fn a_name_of_many_types_fails() {
        assert_eq!(broken(&blocks(PLACES_MAX, "src")), []);
        assert_eq!(broken(&blocks(PLACES_MAX + 1, "src")), [(format!("crates/a/src/b{PLACES_MAX}.rs"), 1)]);
        assert_eq!(broken(&blocks(PLACES_MAX + 1, "tests")), []);
        let many = "mod a { struct Block; }\n".repeat(PLACES_MAX + 1);
        assert_eq!(lines(&many), [PLACES_MAX + 1]);
        assert_eq!(lines(&format!("#[cfg(test)]\nmod tests {{\n{many}}}\n")), []);
    }

    #[test]
    fn common_names_have_a_number_of_their_own() {
        let (name, allowed) = COMMON_NAMES[0];
        let text = |count: usize| format!("mod a {{ enum {name} {{}} }}\n").repeat(count);
        assert_eq!(lines(&text(allowed)), []);
        assert_eq!(lines(&text(allowed + 1)), [allowed + 1]);
    }
}
