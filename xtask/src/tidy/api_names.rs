//! Finds comparisons with an API's name outside the backends. Only a backend concludes anything
//! from the name of its API; all other code reads a field of the device's description.
//!
//! Found are operators, patterns, `matches!`, `eq`, `ne` and lists with `contains`, each with a
//! constant of `Api`, with `Api::new("…")`, or of an `api` with a constant of any crate or a
//! string. Names may be passed on, listed, parsed and compared with each other:
//! `id.api == other.api`. A function that compares is not found at its callers, nor is a constant
//! under another name.

use super::report::Report;
use super::source::{Source, is_word};
use super::uses::{tokens, without_tests};

/// The crates that may compare names.
const BACKENDS: &str = "crates/backends/";
/// Methods that compare their argument with the receiver or with its elements.
const COMPARING: [&str; 4] = ["eq", "ne", "contains", "contains_key"];
/// Methods that compare a text with their argument.
const EXAMINING: [&str; 6] = ["eq", "ne", "eq_ignore_ascii_case", "contains", "starts_with", "ends_with"];
/// Methods that return the name of an API as text.
const TEXTS: [&str; 3] = ["name", "as_str", "to_string"];
/// Words before a parenthesis or bracket that is neither a call nor an index.
const KEYWORDS: [&str; 7] = ["let", "if", "in", "match", "return", "while", "else"];
/// Number of empty tokens at each end, so that neighbours of a token can be asked for.
const MARGIN: usize = 8;

/// Checks one Rust file. Code that only tests compile may compare names.
pub fn check(name: &str, text: &str, report: &mut Report) {
    let is_test = name.contains("/tests/") || name.ends_with("/tests.rs") || name.ends_with("_tests.rs");
    if !name.starts_with("crates/") || name.starts_with(BACKENDS) || is_test {
        return;
    }
    let code = with_quotes(text);
    let code_tokens = CodeTokens::of(&code);
    for at in MARGIN..code_tokens.0.len() {
        let Some(finding) = code_tokens.finding(at) else { continue };
        // A token is a part of the code.
        let offset = code_tokens.get(at).as_ptr() as usize - code.as_ptr() as usize;
        let line = code[..offset].bytes().filter(|byte| *byte == b'\n').count() + 1;
        report.fail("api-name", name, line, format!("{finding}: read a field of the device's description"));
    }
}

/// The code of a file, in which strings have their quotes and nothing between them.
fn with_quotes(text: &str) -> String {
    let Source { code, comments } = Source::scan(text);
    let is_quote = |at: usize| text.as_bytes().get(at) == Some(&b'"') && comments.as_bytes().get(at) == Some(&b' ');
    code.char_indices().map(|(at, letter)| if letter == ' ' && is_quote(at) { '"' } else { letter }).collect()
}

/// The tokens of a file, without those that only tests compile. A string is a run of quotes.
struct CodeTokens<'a>(Vec<&'a str>);

/// The tokens from `start` up to `end`, which is not included.
#[derive(Clone, Copy)]
struct Span {
    start: usize,
    end: usize,
}

impl<'a> CodeTokens<'a> {
    fn of(code: &'a str) -> CodeTokens<'a> {
        let mut padded = vec![""; MARGIN];
        padded.extend(without_tests(&tokens(code)));
        CodeTokens(padded)
    }

    fn get(&self, at: usize) -> &'a str {
        self.0.get(at).copied().unwrap_or_default()
    }

    /// Describes the comparison whose constant or API begins at a token.
    fn finding(&self, at: usize) -> Option<String> {
        if let Some(constant) = self.constant(at) {
            let mut spans = std::iter::successors(Some(constant), |span| self.around(*span));
            let is_compared = spans.any(|span| self.is_compared(span) || self.is_pattern(span));
            return is_compared.then(|| format!("compares with `Api::{}`", self.get(at + 2)));
        }
        let (span, is_text) = self.api(at)?;
        let is_compared = self.is_compared_with_constant(span) || is_text && self.is_examined(span);
        is_compared.then(|| "compares the name of an API with a constant".to_owned())
    }

    /// `Api::CUDA` or `Api::new("…")`, with the path before `Api`.
    fn constant(&self, at: usize) -> Option<Span> {
        if (self.get(at), self.get(at + 1)) != ("Api", "::") {
            return None;
        }
        let start = self.path_start(at);
        match (self.get(at + 2), self.get(at + 3), self.get(at + 4)) {
            ("new", "(", "\"") => Some(Span { start, end: self.closing(at + 3)? + 1 }),
            (word, _, _) => is_constant(word).then_some(Span { start, end: at + 3 }),
        }
    }

    /// The tuple, list, enum value or struct that a span is an element of. `None` for the argument
    /// of a function, and in a block.
    fn around(&self, span: Span) -> Option<Span> {
        let open = self.opening(span.start)?;
        let before = self.get(open - 1);
        let is_constructor = before.starts_with(|letter: char| letter.is_ascii_uppercase());
        let is_callee = before.ends_with([')', ']', '!', '>']) || before.bytes().last().is_some_and(is_word);
        let is_apart = !is_callee || KEYWORDS.contains(&before);
        let is_value = match self.get(open) {
            "{" => is_constructor && self.get(span.start - 1) == ":",
            "(" => is_constructor || is_apart,
            _ => is_apart,
        };
        let start = if is_constructor { self.path_start(open - 1) } else { open };
        Some(Span { start, end: self.closing(open)? + 1 }).filter(|_| is_value)
    }

    /// Whether an operator or a method compares a value.
    fn is_compared(&self, span: Span) -> bool {
        let (start, end) = (self.before_references(span.start), span.end);
        let is_operand = self.is_equality(start - 2) || self.is_equality(end);
        let is_argument =
            (self.get(start - 3), self.get(start - 1)) == (".", "(") && COMPARING.contains(&self.get(start - 2));
        let is_receiver = self.get(end) == "." && ["eq", "ne"].contains(&self.get(end + 1));
        let is_searched = match (self.get(span.start), self.get(end), self.get(end + 1)) {
            ("[", ".", "contains") => true,
            ("[", ".", "iter") => self.get(end + 5) == "any",
            _ => false,
        };
        is_operand || is_argument || is_receiver || is_searched
    }

    /// Whether a value is a pattern, or one of the alternatives of a pattern.
    fn is_pattern(&self, span: Span) -> bool {
        let Span { mut start, mut end } = span;
        while self.get(start - 1) == "|" && is_name(self.get(start - 2)) {
            start = self.path_start(start - 2);
        }
        while self.get(end) == "|" && is_name(self.get(end + 1)) {
            end = self.path_end(end + 1);
        }
        let is_in_matches = || self.opening(start).is_some_and(|open| self.is_matches(open));
        let is_arm = (self.get(end), self.get(end + 1)) == ("=", ">") || self.get(end) == "if";
        self.get(start - 1) == "let" || is_arm || self.get(start - 1) == "," && is_in_matches()
    }

    /// The value of an API that a token names (`id.api`, `backend.api()`, `api.name()`), and
    /// whether it is the name as text.
    fn api(&self, at: usize) -> Option<(Span, bool)> {
        let word = self.get(at);
        if word != "api" && !word.ends_with("_api") {
            return None;
        }
        let is_call = |at: usize| (self.get(at), self.get(at + 1)) == ("(", ")");
        let (mut start, mut end, mut is_text) = (at, at + 1, false);
        end += if is_call(end) { 2 } else { 0 };
        while self.get(end) == "." && TEXTS.contains(&self.get(end + 1)) && is_call(end + 2) {
            (end, is_text) = (end + 4, true);
        }
        while matches!(self.get(start - 1), "." | "::") {
            start -= 2;
            if matches!(self.get(start), ")" | "]") {
                start = self.opening(start)?;
                start -= usize::from(is_name(self.get(start - 1)));
            }
        }
        Some((Span { start, end }, is_text))
    }

    /// Whether an operator compares a value with a constant or a string. Constants of `Api` are
    /// found by themselves.
    fn is_compared_with_constant(&self, span: Span) -> bool {
        let start = self.before_references(span.start);
        let is_known = |at: usize| {
            let is_own = (self.get(at - 2), self.get(at - 1)) == ("Api", "::");
            self.get(at) == "\"" || is_constant(self.get(at)) && !is_own && self.get(at + 1) != "."
        };
        let after = self.path_end(self.after_references(span.end + 2)) - 1;
        self.is_equality(span.end) && is_known(after) || self.is_equality(start - 2) && is_known(start - 3)
    }

    /// Whether a text is matched, searched in a list of strings, or compared with one by a method.
    fn is_examined(&self, span: Span) -> bool {
        let (start, end) = (self.before_references(span.start), span.end);
        let is_matched = match (self.get(start - 2), self.get(start - 1)) {
            (_, "match") | ("\"", "=") => true,
            ("!", "(") => self.is_matches(start - 1),
            ("contains", "(") => (self.get(start - 5), self.get(start - 4)) == ("\"", "]"),
            _ => false,
        };
        let is_call = (self.get(end), self.get(end + 2)) == (".", "(") && EXAMINING.contains(&self.get(end + 1));
        is_matched || is_call && self.get(self.after_references(end + 3)) == "\""
    }

    /// Whether a parenthesis is that of `matches!` or `assert_matches!`.
    fn is_matches(&self, open: usize) -> bool {
        self.get(open - 1) == "!" && self.get(open - 2).ends_with("matches")
    }

    /// Whether `==` or `!=` stands at a token.
    fn is_equality(&self, at: usize) -> bool {
        matches!((self.get(at), self.get(at + 1)), ("=" | "!", "="))
    }

    fn before_references(&self, start: usize) -> usize {
        let back = (MARGIN..start).rev().find(|at| !matches!(self.get(*at), "&" | "*"));
        back.map_or(MARGIN, |at| at + 1)
    }

    fn after_references(&self, mut at: usize) -> usize {
        while matches!(self.get(at), "&" | "*") {
            at += 1;
        }
        at
    }

    /// The first token of a path that has a segment at `at`.
    fn path_start(&self, mut at: usize) -> usize {
        while self.get(at - 1) == "::" && is_name(self.get(at - 2)) {
            at -= 2;
        }
        at
    }

    /// The end of a path that has a segment at `at`.
    fn path_end(&self, mut at: usize) -> usize {
        while self.get(at + 1) == "::" {
            at += 2;
        }
        at + 1
    }

    /// The bracket that is open before a token.
    fn opening(&self, at: usize) -> Option<usize> {
        let mut depth = 0_usize;
        for at in (MARGIN..at).rev() {
            match self.get(at) {
                ")" | "]" | "}" => depth += 1,
                "(" | "[" | "{" if depth == 0 => return Some(at),
                "(" | "[" | "{" => depth -= 1,
                _ => {}
            }
        }
        None
    }

    /// The bracket that closes the one at a token.
    fn closing(&self, open: usize) -> Option<usize> {
        let mut depth = 0_usize;
        for at in open..self.0.len() {
            match self.get(at) {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" if depth <= 1 => return Some(at),
                ")" | "]" | "}" => depth -= 1,
                _ => {}
            }
        }
        None
    }
}

/// Whether a word is the name of a constant.
fn is_constant(word: &str) -> bool {
    let is_upper = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    word.len() > 1 && word.starts_with(|letter: char| letter.is_ascii_uppercase()) && word.bytes().all(is_upper)
}

/// Whether a token is a word.
fn is_name(token: &str) -> bool {
    token.bytes().next().is_some_and(is_word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(name: &str, text: &str) -> Vec<usize> {
        let mut report = Report::default();
        check(name, text, &mut report);
        report.findings.into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn comparisons_with_names_fail_outside_backends() {
        let text = "fn a(id: DeviceId) -> bool {\n    id.api == Api::CPU\n        || panoply::Api::CUDA != id.api\n}\n\
                    fn b(api: Api) -> u8 {\n    match api {\n        Api::QAT => 1,\n        _ => 0,\n    }\n}\n";
        assert_eq!(lines("crates/app/src/a.rs", text), [2, 3, 7]);
        assert_eq!(lines("crates/runtime/src/a.rs", "fn a() { x != panoply_core::Api::CPU }"), [1]);
        assert_eq!(lines("crates/backends/cuda/src/a.rs", text), [0; 0]);
        assert_eq!(lines("crates/app/tests/a.rs", text), [0; 0]);
        assert_eq!(lines("crates/core/src/op/tests.rs", text), [0; 0]);
        assert_eq!(lines("crates/app/src/a.rs", &format!("#[cfg(test)]\nmod tests {{ {text} }}")), [0; 0]);
    }

    #[test]
    fn names_may_be_given_and_listed() {
        let text =
            "fn a() { let api = Api::CPU; builder.only([Api::CPU, Api::CUDA]); DeviceId { api: Api::CPU, index } }";
        assert_eq!(lines("crates/app/src/a.rs", text), [0; 0]);
        assert_eq!(lines("crates/app/src/a.rs", "fn a() { Api::new(name) == api }"), [0; 0]);
    }

    /// Whether an expression is found in a function of a crate outside the backends.
    fn is_found(expression: &str) -> bool {
        let function = format!("fn a(api: Api) -> bool {{ {expression} }}");
        match lines("crates/app/src/a.rs", &function).as_slice() {
            [] => false,
            [1] => true,
            found => panic!("{expression}: {found:?}"),
        }
    }

    #[test]
    fn comparisons_in_other_words_are_found() {
        for expression in [
            "matches!(api, Api::CUDA)",
            "matches!(info, DeviceInfo { api: Api::CUDA, .. } if info.is_ready)",
            "if let Api::CUDA = api { 1 } else { 2 }",
            "let Some(panoply::Api::CUDA) = api else { return };",
            "while let (Api::CUDA, _) = next() {}",
            "[Api::CUDA].contains(&api)",
            "return [Api::CUDA].iter().any(|one| *one == api)",
            "apis.contains(&Api::CUDA)",
            "api.eq(&Api::CUDA)",
            "Api::CUDA.ne(&api)",
            "&api == &Api::CUDA",
            "&Api::CUDA == &api",
            "x == Some(Api::CUDA)",
            "(Api::CUDA, 0) == (id.api, id.index)",
            "id == DeviceId { api: Api::CUDA, index: 0 }",
            "match api { x if y => 1, Api::CUDA if x => 2 }",
            "Api::new(\"cuda\") == api",
            "api == ONNX_RUNTIME",
            "panoply_onnxruntime::ONNX_RUNTIME != backend.api()",
            "api.name() == \"cuda\"",
            "\"cuda\" == device.id.api.name()",
            "devices[0].api().to_string() != \"cuda\"",
            "match id.api.name() { \"cuda\" => 1, _ => 0 }",
            "matches!(api.name(), \"cuda\")",
            "if let \"cuda\" = api.name() { 1 } else { 2 }",
            "[\"cuda\", \"rocm\"].contains(&api.name())",
            "id.api.name().starts_with(\"cu\")",
        ] {
            assert!(is_found(expression), "{expression}");
        }
        let alternatives = "fn a() { match api {\n Api::CUDA\n | Api::ROCM => 1,\n _ => 2 } }";
        assert_eq!(lines("crates/app/src/a.rs", alternatives), [2, 3]);
        let alternatives = "fn a() { matches!(api,\n Api::CUDA |\n Api::ROCM) }";
        assert_eq!(lines("crates/app/src/a.rs", alternatives), [2, 3]);
    }

    #[test]
    fn values_and_unknown_names_are_no_comparisons() {
        for expression in [
            "match kind { Kind::A => Api::CPU, Kind::B => Api::CUDA, _ => Api::ROCM }",
            "match kind { Kind::A => { Api::CPU } Kind::B => DeviceId { api: Api::CUDA, index: 0 } }",
            "if kind == Kind { Api::CPU } else { Api::CUDA }",
            "if kind == only(Api::CPU) { Some(Api::CPU) } else { None }",
            "match x { Some(y) if listed(Api::CPU) => 1, _ => 2 }",
            "Api::NAMED.contains(api) || apis().contains(api)",
            "for api in [Api::CPU, Api::CUDA] { list.push((api, Api::CPU)) }",
            "id.api == other.api && api != *wanted",
            "identity.api == device.id.api.name()",
            "api.name() == name || names.contains(&api.name())",
            "match api { Some(api) => 1, None => 2 }",
            "// api == Api::CPU and \"api == Api::CPU\"\n\"x == Api::CPU\"",
            "let api = Api::new(\"abacus\"); let name = \"api\";",
        ] {
            assert!(!is_found(expression), "{expression}");
        }
    }

    #[test]
    fn broken_code_gives_an_answer() {
        for text in
            ["Api::", "Api::CPU", "== Api::CPU", "Api::new(\"", ")Api::CPU", "api.", ".api ==", "(|Api::CPU|", "\""]
        {
            lines("crates/app/src/a.rs", text);
        }
    }
}
