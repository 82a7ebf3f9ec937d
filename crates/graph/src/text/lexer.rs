//! Splits a line into words, numbers and signs.

/// A number in the text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum NumberToken {
    Whole(u64),
    Real(f64),
}

/// Reals from here on may not represent the text's integer exactly.
const EXACT_REALS_END: f64 = 1e15;

impl NumberToken {
    pub(super) fn real(self) -> f64 {
        match self {
            NumberToken::Whole(whole) => whole as f64,
            NumberToken::Real(real) => real,
        }
    }

    /// The number, if it is a non-negative integer and exact.
    pub(super) fn whole(self) -> Option<u64> {
        match self {
            NumberToken::Whole(whole) => Some(whole),
            NumberToken::Real(real) => {
                (real >= 0.0 && real.fract() == 0.0 && real < EXACT_REALS_END).then_some(real as u64)
            }
        }
    }
}

/// A line being read, from the left.
pub(super) struct LineLexer<'a> {
    rest: &'a str,
}

impl<'a> LineLexer<'a> {
    /// A line without its comment.
    pub(super) fn new(text: &'a str) -> LineLexer<'a> {
        LineLexer { rest: text.split('#').next().unwrap_or("").trim() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The rest of the line, for messages.
    pub(super) fn rest(&self) -> String {
        if self.rest.is_empty() { "the end of the line".to_owned() } else { format!("{:?}", clipped(self.rest)) }
    }

    /// The next name: letters, digits, `_`, `.`, `-` and, at its beginning, `%`.
    pub(super) fn name(&mut self) -> Option<&'a str> {
        let is_letter = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '.' | '-' | '%');
        let end = self.rest.find(|letter| !is_letter(letter)).unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(end);
        self.rest = rest.trim_start();
        (!name.is_empty()).then_some(name)
    }

    /// The next number as f64.
    pub(super) fn number(&mut self) -> Option<f64> {
        self.numeral().map(NumberToken::real)
    }

    /// The next number. A 64-bit integer keeps all of its digits.
    pub(super) fn numeral(&mut self) -> Option<NumberToken> {
        let is_part = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-' | '+');
        let end = self.rest.find(|letter| !is_part(letter)).unwrap_or(self.rest.len());
        let digits = &self.rest[..end];
        let number = match digits.parse() {
            Ok(whole) => NumberToken::Whole(whole),
            Err(_) => NumberToken::Real(digits.parse().ok()?),
        };
        self.rest = self.rest[end..].trim_start();
        Some(number)
    }

    /// The next integer.
    pub(super) fn size(&mut self) -> Option<usize> {
        let end = self.rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(self.rest.len());
        let size = self.rest[..end].parse().ok()?;
        self.rest = self.rest[end..].trim_start();
        Some(size)
    }

    /// Whether a sign is next.
    pub(super) fn is_next(&self, sign: &str) -> bool {
        self.rest.starts_with(sign)
    }

    /// Skips a sign if it is next.
    pub(super) fn takes(&mut self, sign: &str) -> bool {
        match self.rest.strip_prefix(sign) {
            Some(rest) => {
                self.rest = rest.trim_start();
                true
            }
            None => false,
        }
    }

    /// Everything up to a sign, which is skipped.
    pub(super) fn until(&mut self, sign: &str) -> Option<&'a str> {
        let (before, after) = self.rest.split_once(sign)?;
        self.rest = after.trim_start();
        Some(before.trim())
    }
}

/// The part of a text that a message shows.
pub(super) fn clipped(text: &str) -> String {
    text.chars().take(60).collect()
}
