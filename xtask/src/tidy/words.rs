//! Finds riddles in comments: openings and phrases that name neither the thing nor the event, and
//! lines that are too long to read.
//!
//! 1. The rule reads paragraphs, so that a line break inside a phrase hides nothing. Fenced code of
//!    documentation and `code` between backticks are left out.
//! 2. An opening counts at the start of a sentence. A phrase counts everywhere, as whole words.
//! 3. The list has phrases whose every use so far was better said otherwise. A phrase that is often
//!    right does not belong there.
//! 4. A line that holds only a comment ends at [`WIDTH_MAX`]. Tables and addresses may be longer,
//!    as they cannot be broken.

use super::report::Report;
use super::source::{Source, is_word};

/// The most characters of a line that holds only a comment.
const WIDTH_MAX: usize = 100;

/// Openings of sentences, and how to say it better.
const OPENINGS: [(&str, &str); 5] = [
    ("What", "begin with the noun: the state, the result, the reason"),
    ("Whatever", "name the things, or write `for any`"),
    ("Whoever", "name the caller, the thread or the user"),
    ("So many", "write `the number of`"),
    ("So much", "write `the amount of`"),
];

/// Phrases, in lower case, and how to say it better.
const PHRASES: [(&str, &str); 22] = [
    ("nobody", "name who does not: no thread, no process, no user"),
    ("whatever", "write `for any`, `regardless of`"),
    ("whoever", "name the caller, the thread or the user"),
    ("anew", "write `again`"),
    ("is told", "name the message or the error"),
    ("are told", "name the message or the error"),
    ("that is said", "name the message or the error"),
    ("which is told", "name the message or the error"),
    ("it is none", "name the thing that is missing"),
    ("is no number", "write `NaN`"),
    ("are no number", "write `NaN`"),
    ("found out", "write `measured`, `queried` or `detected`"),
    ("comes of it", "write `the result`"),
    ("came of it", "write `the result`"),
    ("what comes of", "write `the result of`"),
    ("what came of", "write `the result of`"),
    ("than there were", "write `appends` or `one more`"),
    ("what is not", "name the things that are not"),
    ("for good", "write `permanently`, `always` or `never again`"),
    ("but for", "write `except`"),
    ("everybody", "name the users, the processes or the crates"),
    ("lest", "write `so that … not`"),
];

/// Checks the comments of one Rust file.
pub fn check(name: &str, source: &Source, report: &mut Report) {
    let paragraphs = paragraphs(source, |line, text| {
        let width = text.trim_end().chars().count();
        if width > WIDTH_MAX {
            report.fail("comment-width", name, line, format!("{width} characters, at most {WIDTH_MAX}"));
        }
    });
    report_hits(name, &paragraphs, report);
}

/// Checks the text of one document. Each row of a table is a paragraph of its own.
pub fn check_document(name: &str, text: &str, report: &mut Report) {
    let mut done = vec![Paragraph::default()];
    for (number, line) in super::pages::prose(text) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('|') || is_item(line) {
            done.push(Paragraph::default());
        }
        // A heading may be a question.
        if let Some(paragraph) = done.last_mut().filter(|_| !line.is_empty() && !line.starts_with('#')) {
            paragraph.push(number, without_bullet(line));
        }
    }
    report_hits(name, &done, report);
}

fn report_hits(name: &str, paragraphs: &[Paragraph], report: &mut Report) {
    for paragraph in paragraphs {
        for (offset, phrase, better) in paragraph.hits() {
            let line = paragraph.line_of(offset);
            report.fail("plain-words", name, line, format!("`{phrase}`: {better}"));
        }
    }
}

/// A paragraph of a comment, on one line.
#[derive(Default)]
struct Paragraph {
    text: String,
    /// Where each line of the file begins in the text, and the line's number.
    lines: Vec<(usize, usize)>,
}

impl Paragraph {
    fn push(&mut self, line: usize, text: &str) {
        if !self.text.is_empty() {
            self.text.push(' ');
        }
        self.lines.push((self.text.len(), line));
        self.text.push_str(text);
    }

    fn line_of(&self, offset: usize) -> usize {
        self.lines.iter().rev().find(|(begin, _)| *begin <= offset).map_or(0, |(_, line)| *line)
    }

    /// Returns the offset, the words and the advice for each banned opening and phrase.
    fn hits(&self) -> Vec<(usize, &'static str, &'static str)> {
        let text = without_code(&self.text);
        let lower = text.to_ascii_lowercase();
        let starts = |(phrase, better)| {
            let opens = |at: &usize| is_sentence_start(&text[..*at]);
            occurrences(&text, phrase).filter(opens).map(move |at| (at, phrase, better)).collect::<Vec<_>>()
        };
        let contains =
            |(phrase, better)| occurrences(&lower, phrase).map(move |at| (at, phrase, better)).collect::<Vec<_>>();
        let mut hits: Vec<_> = OPENINGS.into_iter().flat_map(starts).collect();
        hits.extend(PHRASES.into_iter().flat_map(contains));
        hits.sort_unstable();
        // `Whatever` at the start of a sentence is in both lists.
        hits.dedup_by_key(|(at, ..)| *at);
        hits
    }
}

/// Splits comments into paragraphs. Calls `on_line` with the number and the text of each line that
/// holds only a comment whose width is limited.
fn paragraphs(source: &Source, mut on_line: impl FnMut(usize, &str)) -> Vec<Paragraph> {
    let mut done = vec![Paragraph::default()];
    let (mut marker_before, mut in_code) = ("", false);
    for (index, (code, comment)) in source.code.lines().zip(source.comments.lines()).enumerate() {
        let (marker, text) = split_marker(comment.trim());
        let is_alone = code.trim().is_empty();
        let continues = is_alone && !marker.is_empty() && marker == marker_before;
        if !continues {
            in_code = false;
        }
        marker_before = if is_alone { marker } else { "" };
        let is_fence = text.starts_with("```");
        let is_code = in_code || is_fence;
        in_code ^= is_fence;
        let is_table = text.starts_with('|');
        if is_alone && !is_code && !is_table && !text.contains("://") {
            on_line(index + 1, comment);
        }
        if !continues || is_code || is_table || text.is_empty() || is_item(text) {
            done.push(Paragraph::default());
        }
        if let Some(paragraph) = done.last_mut().filter(|_| !is_code && !text.is_empty()) {
            paragraph.push(index + 1, without_bullet(text));
        }
    }
    done
}

/// Separates the characters that begin a comment from its text.
fn split_marker(comment: &str) -> (&str, &str) {
    let marker = ["//!", "///", "//", "/*"].into_iter().find(|marker| comment.starts_with(marker)).unwrap_or_default();
    (marker, comment[marker.len()..].trim())
}

/// Whether a line begins an item of a list or a heading.
fn is_item(text: &str) -> bool {
    without_bullet(text).len() < text.len()
}

fn without_bullet(text: &str) -> &str {
    let marks = text.trim_start_matches(|mark: char| mark.is_ascii_digit() || matches!(mark, '*' | '-' | '#' | '.'));
    match marks.strip_prefix(' ') {
        Some(rest) if marks.len() < text.len() => rest.trim_start(),
        _ => text,
    }
}

/// Blanks everything between backticks, without changing offsets.
fn without_code(text: &str) -> String {
    let mut in_code = false;
    let blank = |character: char| {
        in_code ^= character == '`';
        if in_code && character != '`' { "_".repeat(character.len_utf8()) } else { character.to_string() }
    };
    text.chars().map(blank).collect()
}

/// Returns the offsets at which a phrase stands as whole words.
fn occurrences<'a>(text: &'a str, phrase: &'a str) -> impl Iterator<Item = usize> + 'a {
    let bytes = text.as_bytes();
    text.match_indices(phrase).map(|(at, _)| at).filter(move |&at| {
        let before = at.checked_sub(1).and_then(|index| bytes.get(index));
        let after = bytes.get(at + phrase.len());
        ![before, after].into_iter().flatten().any(|&byte| is_word(byte))
    })
}

fn is_sentence_start(before: &str) -> bool {
    let before = before.trim_end();
    before.is_empty() || before.ends_with(['.', ':', '!', '?'])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the rules that a file breaks, with the line numbers.
    fn broken(text: &str) -> Vec<(&'static str, usize)> {
        let mut report = Report::default();
        check("crates/core/src/tensor.rs", &Source::scan(text), &mut report);
        report.findings.iter().map(|finding| (finding.rule, finding.line)).collect()
    }

    #[test]
    fn openings_count_at_the_start_of_a_sentence() {
        assert_eq!(broken("/// What the device has seen.\nfn a() {}\n"), [("plain-words", 1)]);
        assert_eq!(broken("//! One. Two.\n//! What is left stays.\n"), [("plain-words", 2)]);
        assert_eq!(broken("// * Lists: `a`\n// * What is left stays.\n"), [("plain-words", 2)]);
        assert_eq!(broken("let a = 1; // So many are left.\n"), [("plain-words", 1)]);
        assert_eq!(broken("// It returns what the device has.\n// Whatsoever.\n"), []);
    }

    #[test]
    fn phrases_are_found_across_lines() {
        assert_eq!(broken("// The reason is\n// told.\n"), [("plain-words", 1)]);
        assert_eq!(broken("// The reason is\n//\n// told.\n"), []);
        assert_eq!(
            broken("//! Nobody reads it, and it\n//! is read anew.\n"),
            [("plain-words", 1), ("plain-words", 2)]
        );
        assert_eq!(broken("// Whatever.\n"), [("plain-words", 1)]);
        assert_eq!(broken("// A renewal, a manewver.\n"), []);
    }

    #[test]
    fn code_and_literals_are_left_out() {
        assert_eq!(broken("/// ```\n/// // Whatever it is.\n/// ```\n/// Text.\nfn a() {}\n"), []);
        assert_eq!(broken("/// ```\n/// code\n/// ```\n/// It is made anew.\nfn a() {}\n"), [("plain-words", 4)]);
        assert_eq!(broken("// The user `nobody`.\nlet whatever = \"anew\";\n"), []);
        assert_eq!(broken("/// ```\nfn a() {}\n// It is made anew.\n"), [("plain-words", 3)]);
    }

    #[test]
    fn documents_are_text_without_code() {
        let lines = |text: &str| {
            let mut report = Report::default();
            check_document("docs/a.md", text, &mut report);
            report.findings.iter().map(|finding| finding.line).collect::<Vec<_>>()
        };
        assert_eq!(lines("# What it is\n\nThe key is\nread anew.\n\n- What is left.\n"), [4, 6]);
        assert_eq!(lines("```text\nanew\n```\n`anew`\n\n| nobody | reads |\n"), [6]);
        assert_eq!(lines("The reason is\n\ntold.\n"), Vec::<usize>::new());
    }

    #[test]
    fn long_lines_fail() {
        let long = |text: &str| format!("{text} {}\n", "é".repeat(WIDTH_MAX - text.len() - 1));
        assert_eq!(broken(&long("    ///")), []);
        assert_eq!(broken(&format!("// One.\n{}", long("    ///").replacen(' ', "  ", 1))), [("comment-width", 2)]);
        let longer = |text: &str| format!("{text}{}\n", " x".repeat(WIDTH_MAX));
        assert_eq!(broken(&longer("//! https://example.org/")), []);
        assert_eq!(broken(&longer("//! | a |")), []);
        assert_eq!(broken(&format!("/// ```\n{}/// ```\n", longer("/// let a;"))), []);
        assert_eq!(broken(&longer("let a = 1; // Code decides the width:")), []);
        assert_eq!(broken(&longer("let a = 1;")), []);
    }
}
