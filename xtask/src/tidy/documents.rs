//! Checks that documents name only files and commands that exist.
//!
//! Checked are words in backticks and the lines of shell blocks. A path may be relative to the root
//! or to any folder above the file (`router/links.rs`). The part after a placeholder such as `<op>`
//! is not checked. Commands are checked by [`super::commands`].

use super::commands::Commands;
use super::report::Report;

/// Words with these endings are treated as paths of the repository.
const ENDINGS: [&str; 9] = [".rs", ".md", ".py", ".sh", ".c", ".h", ".wgsl", ".npy", ".txt"];
/// Files that belong to users or to the bundle.
const OUTSIDE: [&str; 2] = ["panoply.toml", "run.sh"];

/// Whether a file is a document whose names are checked.
pub fn is_document(name: &str) -> bool {
    name.ends_with(".md") && (!name.contains('/') || name.starts_with("docs/") || name.starts_with("crates/app/data/"))
}

/// Checks one document against the names of all files, relative to the root.
pub fn check(name: &str, text: &str, files: &[String], commands: &Commands, report: &mut Report) {
    for (span, line) in spans(text) {
        if let Some(problem) = commands.problem_of(span) {
            report.fail("document-command", name, line, problem);
        }
        for word in span.split_whitespace() {
            let word = word.trim_matches(['"', '\'', '@', ',', ';', ':', '(', ')']);
            let word = word.trim_start_matches("../");
            if is_path(word, files) && !exists(word, files) {
                report.fail("document-path", name, line, format!("`{word}` does not exist"));
            }
        }
    }
}

/// Returns words in backticks, and lines of shell blocks without their comments, each with its line
/// number.
fn spans(text: &str) -> Vec<(&str, usize)> {
    let mut spans = Vec::new();
    let (mut fenced, mut shell) = (false, false);
    for (line, number) in text.lines().zip(1..) {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            shell = !fenced && matches!(language.trim(), "sh" | "bash" | "shell");
            fenced = !fenced;
        } else if shell {
            let end = line.find(" #").or(line.starts_with('#').then_some(0));
            spans.push((line[..end.unwrap_or(line.len())].trim(), number));
        } else if !fenced {
            spans.extend(line.split('`').skip(1).step_by(2).map(|span| (span, number)));
        }
    }
    spans
}

fn is_path(word: &str, files: &[String]) -> bool {
    let outside = ["/", "~", "target/", "http", "-"].iter().any(|start| word.starts_with(start));
    if outside || OUTSIDE.contains(&word) || word.contains("::") || word.contains("//") {
        return false;
    }
    let named = word.strip_suffix('/').unwrap_or(word);
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./{},<>*".contains(c);
    let first = named.split('/').next().unwrap_or_default();
    let in_a_folder = named.contains('/') && is_top(first, files);
    let has_ending = ENDINGS.iter().any(|ending| named.len() > ending.len() && named.ends_with(ending));
    word.chars().all(plain) && (in_a_folder || has_ending || (word.ends_with('/') && !named.is_empty()))
}

/// Whether this is a crate, or a folder at the root.
fn is_top(folder: &str, files: &[String]) -> bool {
    let starts = |name: &String| {
        let rest = name.strip_prefix("crates/").unwrap_or(name);
        [name.as_str(), rest].iter().any(|name| name.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/')))
    };
    !folder.is_empty() && files.iter().any(starts)
}

/// Whether a file or folder has this path, or a path that ends with it. Braces stand for several
/// paths.
fn exists(word: &str, files: &[String]) -> bool {
    if let Some((before, rest)) = word.split_once('{')
        && let Some((choices, after)) = rest.split_once('}')
    {
        return choices.split(',').all(|choice| exists(&format!("{before}{choice}{after}"), files));
    }
    let known = word.find(['<', '*']).map_or(word, |end| word[..end].rsplit_once('/').map_or("", |(folder, _)| folder));
    let known = known.trim_end_matches('/');
    let ends_in = |name: &str| name == known || name.strip_suffix(known).is_some_and(|rest| rest.ends_with('/'));
    let holds = |name: &String| ends_in(name) || name.match_indices('/').any(|(end, _)| ends_in(&name[..end]));
    known.is_empty() || files.iter().any(holds)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> Vec<String> {
        ["README.md", "crates/core/src/op/mod.rs", "crates/core/src/lib.rs", "docs/peers/join.py", "data/a.npy"]
            .map(str::to_owned)
            .to_vec()
    }

    fn wrong(text: &str) -> Vec<String> {
        let mut report = Report::default();
        check("README.md", text, &files(), &Commands::default(), &mut report);
        report.findings.into_iter().map(|finding| format!("{}: {}", finding.line, finding.text)).collect()
    }

    #[test]
    fn paths_that_exist_are_fine_from_any_folder() {
        assert!(
            wrong("`crates/core/src/lib.rs` `op/mod.rs` `core/src/{lib,op/mod}.rs` `src/op/` `op/<domain>/x.rs`")
                .is_empty()
        );
        assert!(
            wrong("`../../core/src/lib.rs` `add/f32/64` `Fft/Ifft` `panoply.toml` `/etc/x.rs` `target/bundle/` `a::b` `i8/u8` `lib.rs`")
                .is_empty()
        );
        assert!(wrong("```sh\npython3 docs/peers/join.py ours.jsonl > out.jsonl # see x.py\n```\n").is_empty());
        assert!(wrong("```rust\nlet path = `docs/missing.md`;\n```\n").is_empty());
    }

    #[test]
    fn paths_that_do_not_exist_are_found() {
        assert_eq!(wrong("see\n`core/src/gone.rs`"), ["2: `core/src/gone.rs` does not exist"]);
        assert_eq!(wrong("`gone.py` and `nowhere/`").len(), 2);
        assert_eq!(wrong("`core/src/{lib,gone}.rs`").len(), 1);
        assert_eq!(wrong("```sh\nimport @data/b.npy\n```\n"), ["2: `data/b.npy` does not exist"]);
    }

    #[test]
    fn documents_are_known_by_their_place() {
        assert!(is_document("README.md") && is_document("docs/performance.md"));
        assert!(!is_document("crates/core/README.md") && !is_document("docs/figures.jsonl"));
    }
}
