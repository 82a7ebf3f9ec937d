//! Measures the length of functions.

use super::source::{is_word, words};

/// A function with a body.
#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    pub name: String,
    /// The line of the `fn` keyword, counted from one.
    pub line: usize,
    /// Lines from the `fn` keyword to the closing brace, both included.
    pub lines: usize,
}

/// Returns every function of blanked code (see [`super::Source`]), including nested ones.
/// Declarations without a body and function pointers are left out.
pub fn functions(code: &str) -> Vec<Function> {
    let bytes = code.as_bytes();
    let line_starts: Vec<usize> =
        std::iter::once(0).chain(code.match_indices('\n').map(|(offset, _)| offset + 1)).collect();
    let line_of = |offset: usize| line_starts.partition_point(|&start| start <= offset);
    words(code)
        .filter(|&(_, word)| word == "fn")
        .filter_map(|(start, _)| {
            let (name, after_name) = name_after(code, start + 2)?;
            let open = body_start(bytes, after_name)?;
            let close = matching_brace(bytes, open)?;
            let line = line_of(start);
            Some(Function { name: name.to_string(), line, lines: line_of(close) - line + 1 })
        })
        .collect()
}

/// Returns the name after the keyword (`name`, `r#name`, or `$name` in a macro), and the offset of
/// its end.
fn name_after(code: &str, from: usize) -> Option<(&str, usize)> {
    let start = from + (code[from..].len() - code[from..].trim_start().len());
    let prefix = code[start..].starts_with('$') as usize + 2 * (code[start..].starts_with("r#") as usize);
    let length = code[start + prefix..].bytes().take_while(|&byte| is_word(byte)).count();
    let end = start + prefix + length;
    (length > 0).then(|| (&code[start..end], end))
}

/// Returns the offset of the brace that opens the body, or `None` if the declaration has no body.
/// Braces inside the signature (const expressions) always stand within brackets.
fn body_start(code: &[u8], from: usize) -> Option<usize> {
    let mut depth = 0_usize;
    let mut at = from;
    while at < code.len() {
        match code[at] {
            b'(' | b'[' | b'<' => depth += 1,
            b'>' if matches!(code[at - 1], b'-' | b'=') => {}
            b')' | b']' | b'>' => depth = depth.saturating_sub(1),
            b'{' if depth == 0 => return Some(at),
            b'{' => at = matching_brace(code, at)?,
            b';' if depth == 0 => return None,
            b'}' => return None,
            _ => {}
        }
        at += 1;
    }
    None
}

fn matching_brace(code: &[u8], open: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (offset, byte) in code[open..].iter().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => continue,
        }
        if depth == 0 {
            return Some(open + offset);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::Source;

    fn lengths(text: &str) -> Vec<(String, usize, usize)> {
        let found = functions(&Source::scan(text).code);
        found.into_iter().map(|function| (function.name, function.line, function.lines)).collect()
    }

    fn one(name: &str, line: usize, lines: usize) -> (String, usize, usize) {
        (name.to_string(), line, lines)
    }

    #[test]
    fn a_function_reaches_to_its_closing_brace() {
        assert_eq!(
            lengths("fn a() {}\n\npub fn b(\n    x: u8,\n) -> u8 {\n    x\n}\n"),
            [one("a", 1, 1), one("b", 3, 5)]
        );
    }

    #[test]
    fn braces_in_literals_and_comments_do_not_count() {
        let text = "fn a() {\n    // }\n    let b = \"}\";\n    let c = '}';\n    let d: &'static str = r#\"}\"#;\n}\nfn e() {}";
        assert_eq!(lengths(text), [one("a", 1, 6), one("e", 7, 1)]);
    }

    #[test]
    fn nested_functions_and_closures() {
        let text = "fn outer() {\n    fn inner() {\n    }\n    let c = || { 1 };\n}\n";
        assert_eq!(lengths(text), [one("outer", 1, 5), one("inner", 2, 2)]);
    }

    #[test]
    fn declarations_and_pointers_have_no_body() {
        assert_eq!(lengths("trait T {\n    fn a(&self);\n    fn b(&self) {}\n}\n"), [one("b", 3, 1)]);
        assert_eq!(lengths("type F = fn(u8) -> u8;\nstruct S { f: fn() }\n"), []);
    }

    #[test]
    fn signatures_with_arrows_arrays_and_const_expressions() {
        let text =
            "fn a<F: Fn(u8) -> Vec<Vec<u8>>, const N: usize>(f: F) -> [u8; { N + 1 }]\nwhere\n    F: Send,\n{\n}\n";
        assert_eq!(lengths(text), [one("a", 1, 5)]);
        assert_eq!(lengths("fn b(x: [u8; 3]) -> M<{ 1 }> {\n}\n"), [one("b", 1, 2)]);
    }

    #[test]
    fn functions_in_macros_are_seen() {
        assert_eq!(lengths("macro_rules! m { ($n:ident) => {\n    fn $n() {\n    }\n} }\n"), [one("$n", 2, 2)]);
    }

    #[test]
    fn broken_code_gives_an_answer() {
        assert_eq!(lengths("fn a() {"), []);
        assert_eq!(lengths("fn"), []);
        assert_eq!(lengths("fn a() } fn b() {}"), [one("b", 1, 1)]);
    }
}
