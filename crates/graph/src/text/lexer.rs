//! The words of one line.

/// A line being read, from the left.
pub(super) struct Line<'a> {
    rest: &'a str,
}

impl<'a> Line<'a> {
    /// A line without its comment.
    pub(super) fn new(text: &'a str) -> Line<'a> {
        Line { rest: text.split('#').next().unwrap_or("").trim() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// What is left, for messages.
    pub(super) fn rest(&self) -> String {
        if self.rest.is_empty() { "the end of the line".to_owned() } else { format!("{:?}", clipped(self.rest)) }
    }

    /// The next name: letters, digits, `_`, `.`, `-` and, at its front, `%`.
    pub(super) fn name(&mut self) -> Option<&'a str> {
        let is_letter = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '.' | '-' | '%');
        let end = self.rest.find(|letter| !is_letter(letter)).unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(end);
        self.rest = rest.trim_start();
        (!name.is_empty()).then_some(name)
    }

    /// The next number.
    pub(super) fn number(&mut self) -> Option<f64> {
        let is_part = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-' | '+');
        let end = self.rest.find(|letter| !is_part(letter)).unwrap_or(self.rest.len());
        let number = self.rest[..end].parse().ok()?;
        self.rest = self.rest[end..].trim_start();
        Some(number)
    }

    /// The next whole number.
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

    /// Passes over a sign, where it is next.
    pub(super) fn takes(&mut self, sign: &str) -> bool {
        match self.rest.strip_prefix(sign) {
            Some(rest) => {
                self.rest = rest.trim_start();
                true
            }
            None => false,
        }
    }

    /// Everything up to a sign, which is passed over.
    pub(super) fn until(&mut self, sign: &str) -> Option<&'a str> {
        let (before, after) = self.rest.split_once(sign)?;
        self.rest = after.trim_start();
        Some(before.trim())
    }
}

/// As much of a text as a message shows.
pub(super) fn clipped(text: &str) -> String {
    text.chars().take(60).collect()
}
