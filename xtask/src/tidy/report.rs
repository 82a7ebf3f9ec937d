//! Tidy's findings, and how they are printed.

use std::fmt::Write;

/// A broken rule or a remark.
pub struct Finding {
    /// The rule's short name.
    pub rule: &'static str,
    /// The file, from the repository's root.
    pub file: String,
    /// The line, counted from one; zero for the whole file.
    pub line: usize,
    /// The problem, in words.
    pub text: String,
    /// Whether the finding fails the check, or is only listed.
    pub fails: bool,
}

/// All findings of a run.
#[derive(Default)]
pub struct Report {
    pub findings: Vec<Finding>,
    /// The length of each source file.
    pub file_lines: Vec<usize>,
    /// The length of each function.
    pub function_lines: Vec<usize>,
}

impl Report {
    /// Adds a broken rule.
    pub fn fail(&mut self, rule: &'static str, file: &str, line: usize, text: String) {
        self.findings.push(Finding { rule, file: file.to_string(), line, text, fails: true });
    }

    /// Adds a remark.
    pub fn warn(&mut self, rule: &'static str, file: &str, line: usize, text: String) {
        self.findings.push(Finding { rule, file: file.to_string(), line, text, fails: false });
    }

    /// Returns the number of broken rules.
    pub fn failures(&self) -> usize {
        self.findings.iter().filter(|finding| finding.fails).count()
    }

    /// Formats the report for people: remarks, then failures, then sizes.
    pub fn plain(&self) -> String {
        let mut out = self.lines();
        for (name, lengths) in [("files", &self.file_lines), ("functions", &self.function_lines)] {
            let Lengths { count, median, p95, longest } = Lengths::of(lengths);
            out += &format!("{name:<9} {count:>5}, lines: median {median}, 95 % up to {p95}, longest {longest}\n");
        }
        out += &format!("{} failures, {} notes", self.failures(), self.findings.len() - self.failures());
        out
    }

    /// Formats the findings alone, a line each: remarks, then failures.
    pub fn lines(&self) -> String {
        let mut out = String::new();
        for fails in [false, true] {
            for finding in self.findings.iter().filter(|finding| finding.fails == fails) {
                let level = if fails { "FAIL" } else { "note" };
                let line = if finding.line == 0 { String::new() } else { format!(":{}", finding.line) };
                out += &format!("{level}  {:<15} {}{line}: {}\n", finding.rule, finding.file, finding.text);
            }
        }
        out
    }

    /// Formats the report for programs.
    pub fn json(&self) -> String {
        let findings: Vec<String> = self
            .findings
            .iter()
            .map(|finding| {
                let (rule, file, text) = (quoted(finding.rule), quoted(&finding.file), quoted(&finding.text));
                let (line, fails) = (finding.line, finding.fails);
                format!(r#"{{"rule":{rule},"file":{file},"line":{line},"text":{text},"fails":{fails}}}"#)
            })
            .collect();
        let sizes = |lengths| {
            let Lengths { count, median, p95, longest } = Lengths::of(lengths);
            format!(r#"{{"count":{count},"median":{median},"p95":{p95},"longest":{longest}}}"#)
        };
        format!(
            r#"{{"failures":{},"findings":[{}],"file_lines":{},"function_lines":{}}}"#,
            self.failures(),
            findings.join(","),
            sizes(&self.file_lines),
            sizes(&self.function_lines)
        )
    }
}

/// A summary of many lengths, in lines. All values are zero if there are no lengths.
#[derive(Debug, Default, PartialEq, Eq)]
struct Lengths {
    count: usize,
    median: usize,
    p95: usize,
    longest: usize,
}

impl Lengths {
    fn of(lengths: &[usize]) -> Lengths {
        let mut sorted = lengths.to_vec();
        sorted.sort_unstable();
        // The smallest length such that at least `percent` % of the lengths do not exceed it.
        let percentile = |percent: usize| {
            let rank = (sorted.len() * percent).div_ceil(100);
            sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
        };
        Lengths { count: sorted.len(), median: percentile(50), p95: percentile(95), longest: percentile(100) }
    }
}

fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            control if control < ' ' => {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\u{:04x}", control as u32);
            }
            other => out.push(other),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_summed_up() {
        assert_eq!(Lengths::of(&[]), Lengths::default());
        assert_eq!(Lengths::of(&[7]), Lengths { count: 1, median: 7, p95: 7, longest: 7 });
        let hundred: Vec<usize> = (1..=100).rev().collect();
        assert_eq!(Lengths::of(&hundred), Lengths { count: 100, median: 50, p95: 95, longest: 100 });
    }

    #[test]
    fn both_formats_name_the_finding() {
        let mut report = Report::default();
        report.fail("file-name", "a/\"b\".rs", 3, "tab\there".to_string());
        report.warn("file-length", "c.rs", 0, "301 lines".to_string());
        assert!(report.plain().contains("FAIL  file-name       a/\"b\".rs:3: tab\there\n"));
        assert!(report.plain().contains("note  file-length     c.rs: 301 lines\n"));
        assert!(report.plain().ends_with("1 failures, 1 notes"));
        let finding = r#"{"rule":"file-name","file":"a/\"b\".rs","line":3,"text":"tab\u0009here","fails":true}"#;
        assert!(report.json().contains(finding), "{}", report.json());
    }
}
