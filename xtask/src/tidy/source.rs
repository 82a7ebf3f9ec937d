//! Separates Rust code from comments and literals, without parsing it.

/// A Rust file, split into code and comments. Both texts have the file's length and line breaks;
/// all other parts are blanked. An offset or a line number therefore means the same position in
/// both texts.
pub struct Source {
    /// The code, with comments, strings and character literals blanked.
    pub code: String,
    /// The comments, documentation included, with everything else blanked.
    pub comments: String,
}

impl Source {
    /// Splits a file. Text that is not Rust gives some result, never a panic.
    pub fn scan(text: &str) -> Source {
        let mut scanner = Scanner { text: text.as_bytes(), at: 0, code: Vec::new(), comments: Vec::new() };
        while scanner.at < scanner.text.len() {
            scanner.step();
        }
        let readable = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Source { code: readable(scanner.code), comments: readable(scanner.comments) }
    }
}

/// Returns the words (identifiers, keywords, numbers) of blanked code with their offsets.
pub fn words(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let bytes = code.as_bytes();
        while at < bytes.len() && !is_word(bytes[at]) {
            at += 1;
        }
        let start = at;
        while at < bytes.len() && is_word(bytes[at]) {
            at += 1;
        }
        (start < at).then(|| (start, &code[start..at]))
    })
}

/// Whether a byte can be part of an identifier. Every byte beyond ASCII counts.
pub fn is_word(byte: u8) -> bool {
    byte == b'_' || byte.is_ascii_alphanumeric() || !byte.is_ascii()
}

#[derive(Clone, Copy, PartialEq)]
enum Part {
    Code,
    Comment,
    Literal,
}

struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
    code: Vec<u8>,
    comments: Vec<u8>,
}

impl Scanner<'_> {
    fn step(&mut self) {
        let at = self.at;
        match (self.text[at], self.byte(at + 1)) {
            (b'/', Some(b'/')) => self.take(Part::Comment, self.line_end(at)),
            (b'/', Some(b'*')) => self.take(Part::Comment, self.block_comment_end(at)),
            (b'"', _) => self.take(Part::Literal, self.string_end(at)),
            (b'\'', _) => match self.char_end(at) {
                Some(end) => self.take(Part::Literal, end),
                None => self.take(Part::Code, at + 1),
            },
            (byte, _) if is_word(byte) => {
                let end = (at..self.text.len()).find(|&index| !is_word(self.text[index])).unwrap_or(self.text.len());
                match self.raw_string_end(at, end) {
                    Some(end) => self.take(Part::Literal, end),
                    None => self.take(Part::Code, end),
                }
            }
            _ => self.take(Part::Code, at + 1),
        }
    }

    fn byte(&self, at: usize) -> Option<u8> {
        self.text.get(at).copied()
    }

    /// Copies the text up to `end` to the output that it belongs to, and blanks it in the other.
    fn take(&mut self, part: Part, end: usize) {
        let end = end.min(self.text.len());
        for &byte in &self.text[self.at..end] {
            let blank = if byte == b'\n' { b'\n' } else { b' ' };
            self.code.push(if part == Part::Code { byte } else { blank });
            self.comments.push(if part == Part::Comment { byte } else { blank });
        }
        self.at = end;
    }

    fn line_end(&self, start: usize) -> usize {
        (start..self.text.len()).find(|&at| self.text[at] == b'\n').unwrap_or(self.text.len())
    }

    /// Returns the end of a block comment. Block comments nest.
    fn block_comment_end(&self, start: usize) -> usize {
        let mut depth = 0;
        let mut at = start;
        while at < self.text.len() {
            match (self.text[at], self.byte(at + 1)) {
                (b'/', Some(b'*')) => (depth, at) = (depth + 1, at + 2),
                (b'*', Some(b'/')) => (depth, at) = (depth - 1, at + 2),
                _ => at += 1,
            }
            if depth == 0 {
                break;
            }
        }
        at
    }

    fn string_end(&self, start: usize) -> usize {
        let mut at = start + 1;
        while let Some(byte) = self.byte(at) {
            match byte {
                b'\\' => at += 2,
                b'"' => return at + 1,
                _ => at += 1,
            }
        }
        at
    }

    /// Returns the end of a character literal, or `None` for a lifetime or a label.
    fn char_end(&self, start: usize) -> Option<usize> {
        let first = self.byte(start + 1)?;
        if first == b'\\' {
            let close = (start + 3..self.text.len()).find(|&at| self.text[at] == b'\'');
            return close.map(|at| at + 1);
        }
        let width = match first {
            0..0x80 => 1,
            0x80..0xe0 => 2,
            0xe0..0xf0 => 3,
            _ => 4,
        };
        (self.byte(start + 1 + width) == Some(b'\'')).then_some(start + 2 + width)
    }

    /// Returns the end of a raw string whose prefix is the word from `start` to `prefix_end`.
    fn raw_string_end(&self, start: usize, prefix_end: usize) -> Option<usize> {
        if !matches!(&self.text[start..prefix_end], b"r" | b"br" | b"cr") {
            return None;
        }
        let hashes = self.text[prefix_end..].iter().take_while(|&&byte| byte == b'#').count();
        let open = prefix_end + hashes;
        if self.byte(open) != Some(b'"') {
            return None;
        }
        let closes = |at: &usize| {
            self.text[*at] == b'"'
                && self.text[at + 1..].iter().take(hashes).filter(|&&byte| byte == b'#').count() == hashes
        };
        Some((open + 1..self.text.len()).find(closes).map_or(self.text.len(), |at| at + 1 + hashes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        let source = Source::scan(text);
        assert_eq!(source.code.len(), text.len());
        assert_eq!(source.comments.len(), text.len());
        assert_eq!(source.code.lines().count(), text.lines().count());
        source.code.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    fn comments(text: &str) -> String {
        Source::scan(text).comments.trim().to_string()
    }

    #[test]
    fn comments_are_separated_from_code() {
        assert_eq!(code("let a = 1; // b {\nlet c;"), "let a = 1; let c;");
        assert_eq!(comments("let a = 1; // b {\nlet c;"), "// b {");
        assert_eq!(code("a /* { /* nested } */ still */ b"), "a b");
        assert_eq!(code("/* never closed {"), "");
        assert_eq!(code("a / b"), "a / b");
    }

    #[test]
    fn strings_are_blanked_with_their_escapes() {
        assert_eq!(code(r#"f("a } \" // no comment", 1)"#), "f( , 1)");
        assert_eq!(code("f(b\"{\\\\\", c\"}\")"), "f(b , c )");
        assert_eq!(code("\"two\nlines {\" x"), "x");
        assert_eq!(code("\"never closed \\"), "");
    }

    #[test]
    fn raw_strings_end_at_their_own_hashes() {
        assert_eq!(code("f(r\"\\\", 1)"), "f( , 1)");
        assert_eq!(code("f(r##\"a \"# { \"##, br#\"}\"#)"), "f( , )");
        assert_eq!(code("r#fn r#type"), "r#fn r#type");
        assert_eq!(code("bar r"), "bar r");
    }

    #[test]
    fn characters_are_told_from_lifetimes() {
        assert_eq!(code("m('{', '\\'', '\\u{7d}', b'}', '§', '\"')"), "m( , , , b , , )");
        assert_eq!(code("fn f<'a>(x: &'a str, y: &'static str) {}"), "fn f<'a>(x: &'a str, y: &'static str) {}");
        assert_eq!(code("'outer: loop { break 'outer; }"), "'outer: loop { break 'outer; }");
        assert_eq!(code("'"), "'");
    }

    #[test]
    fn words_carry_their_offsets() {
        let found: Vec<_> = words("unsafe{a_1}").collect();
        assert_eq!(found, [(0, "unsafe"), (7, "a_1")]);
    }
}
