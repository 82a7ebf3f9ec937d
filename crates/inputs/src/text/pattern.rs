//! Patterns for cutting text: the subset of regular expressions that tokenizer files use.
//!
//! Alternatives, groups, sets, `\s`, `\S`, `\d`, `\p{L}`, `\p{N}`, `\p{M}`, `.`, `?`, `*`, `+`,
//! `{m,n}` on single characters, `?` on groups, `(?i:…)` and `(?!…)`. Everything else is refused by
//! name. The matcher backtracks, so its number of steps is bounded.

use unicode_normalization::char::is_combining_mark;

use crate::error::{Error, Result};

/// The longest pattern in bytes, and the deepest nesting of groups.
const PATTERN_BYTES_MAX: usize = 4096;
const DEPTH_MAX: usize = 16;
/// The most steps for a text: a number per character, plus a minimum for short texts.
const STEPS_PER_CHAR_MAX: u64 = 256;
const STEPS_MIN: u64 = 1 << 16;

/// A parsed pattern.
#[derive(Clone, Debug)]
pub(super) struct Pattern(Alternatives);

type Alternatives = Vec<Vec<Repeat>>;

#[derive(Clone, Debug)]
struct Repeat {
    item: Item,
    min: usize,
    max: usize,
}

#[derive(Clone, Debug)]
enum Item {
    One(CharacterSet),
    Group(Alternatives),
    /// Matches the empty string if the alternatives do not match here (negative look-ahead).
    NotAhead(Alternatives),
}

#[derive(Clone, Debug)]
struct CharacterSet {
    parts: Vec<ClassPart>,
    inverted: bool,
    /// Whether letter case is ignored.
    folded: bool,
}

#[derive(Clone, Copy, Debug)]
enum ClassPart {
    Range(char, char),
    Class(Class, bool),
}

#[derive(Clone, Copy, Debug)]
enum Class {
    Space,
    Letter,
    Number,
    Digit,
    Mark,
    Line,
}

impl Class {
    fn has(self, c: char) -> bool {
        match self {
            Class::Space => c.is_whitespace(),
            Class::Letter => is_letter(c),
            Class::Number => c.is_numeric(),
            Class::Digit => c.is_ascii_digit(),
            Class::Mark => is_combining_mark(c),
            Class::Line => c == '\n',
        }
    }
}

/// Unicode's general category L. The standard library's alphabetic characters include numerals,
/// marks and circled letters too.
fn is_letter(c: char) -> bool {
    let circled = matches!(c, '\u{24b6}'..='\u{24e9}' | '\u{1f130}'..='\u{1f149}' | '\u{1f150}'..='\u{1f169}'
        | '\u{1f170}'..='\u{1f189}');
    c.is_alphabetic() && !c.is_numeric() && !is_combining_mark(c) && !circled
}

impl CharacterSet {
    fn has(&self, c: char) -> bool {
        let has = |c: char| {
            self.parts.iter().any(|part| match *part {
                ClassPart::Range(low, high) => (low..=high).contains(&c),
                ClassPart::Class(class, inverted) => class.has(c) != inverted,
            })
        };
        let found = has(c) || (self.folded && (c.to_lowercase().any(has) || c.to_uppercase().any(has)));
        found != self.inverted
    }
}

impl Pattern {
    /// Parses a pattern.
    pub fn read(text: &str) -> Result<Pattern> {
        if text.len() > PATTERN_BYTES_MAX {
            let (what, limit) = ("the bytes of a pattern", PATTERN_BYTES_MAX as u64);
            return Err(Error::Limit { what, limit, got: text.len() as u64 });
        }
        let mut reader = PatternReader { chars: text.chars().collect(), at: 0, folded: false };
        let alternatives = reader.alternatives(0)?;
        match reader.peek() {
            None => Ok(Pattern(alternatives)),
            Some(_) => Err(reader.refused("a bracket that nothing opens")),
        }
    }

    /// A pattern that matches exactly this text.
    pub fn literal(text: &str) -> Pattern {
        let one = |c| Repeat {
            item: Item::One(CharacterSet { parts: vec![ClassPart::Range(c, c)], inverted: false, folded: false }),
            min: 1,
            max: 1,
        };
        Pattern(vec![text.chars().map(one).collect()])
    }

    /// The pieces of a text, in order, each with a flag for whether the pattern matches it. Empty
    /// pieces are omitted.
    pub fn cut(&self, text: &str) -> Result<Vec<(String, bool)>> {
        let chars: Vec<char> = text.chars().collect();
        let mut matcher = Matcher { chars: &chars, left: chars.len() as u64 * STEPS_PER_CHAR_MAX + STEPS_MIN };
        let (mut pieces, mut start, mut at) = (Vec::new(), 0, 0);
        while at < chars.len() {
            match matcher.alternatives(&self.0, at)? {
                Some(end) if end > at => {
                    if start < at {
                        pieces.push((chars[start..at].iter().collect(), false));
                    }
                    pieces.push((chars[at..end].iter().collect(), true));
                    (start, at) = (end, end);
                }
                _ => at += 1,
            }
        }
        if start < chars.len() {
            pieces.push((chars[start..].iter().collect(), false));
        }
        Ok(pieces)
    }
}

struct Matcher<'a> {
    chars: &'a [char],
    left: u64,
}

/// The remaining items of a pattern after a group: linked lists, the innermost first.
#[derive(Clone, Copy)]
struct PatternRest<'a> {
    items: &'a [Repeat],
    then: Option<&'a PatternRest<'a>>,
}

impl Matcher<'_> {
    fn alternatives(&mut self, alternatives: &Alternatives, at: usize) -> Result<Option<usize>> {
        for items in alternatives {
            if let Some(end) = self.rest(PatternRest { items, then: None }, at)? {
                return Ok(Some(end));
            }
        }
        Ok(None)
    }

    /// The end of a match of the remaining items, starting at `at`.
    fn rest(&mut self, rest: PatternRest<'_>, at: usize) -> Result<Option<usize>> {
        self.step(1)?;
        let Some((repeat, items)) = rest.items.split_first() else {
            return match rest.then {
                Some(outer) => self.rest(*outer, at),
                None => Ok(Some(at)),
            };
        };
        let behind = PatternRest { items, ..rest };
        match &repeat.item {
            Item::One(set) => self.one(set, repeat, behind, at),
            Item::NotAhead(alternatives) => match self.alternatives(alternatives, at)? {
                Some(_) => Ok(None),
                None => self.rest(behind, at),
            },
            Item::Group(alternatives) => {
                for items in alternatives {
                    let inner = PatternRest { items, then: Some(&behind) };
                    if let Some(end) = self.rest(inner, at)? {
                        return Ok(Some(end));
                    }
                }
                if repeat.min == 0 { self.rest(behind, at) } else { Ok(None) }
            }
        }
    }

    /// Matches as many characters of a set as possible, and backtracks until the rest fits.
    fn one(
        &mut self,
        set: &CharacterSet,
        repeat: &Repeat,
        behind: PatternRest<'_>,
        at: usize,
    ) -> Result<Option<usize>> {
        let most = self.chars[at..].iter().take(repeat.max).take_while(|c| set.has(**c)).count();
        self.step(most as u64)?;
        for count in (repeat.min..=most).rev() {
            if let Some(end) = self.rest(behind, at + count)? {
                return Ok(Some(end));
            }
        }
        Ok(None)
    }

    fn step(&mut self, steps: u64) -> Result<()> {
        let left = self.left.checked_sub(steps);
        self.left = left.ok_or(Error::Limit {
            what: "the steps of a pattern for each character",
            limit: STEPS_PER_CHAR_MAX,
            got: STEPS_PER_CHAR_MAX + 1,
        })?;
        Ok(())
    }
}

struct PatternReader {
    chars: Vec<char>,
    at: usize,
    folded: bool,
}

impl PatternReader {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        self.at += 1;
        self.chars.get(self.at - 1).copied()
    }

    fn takes(&mut self, text: &str) -> bool {
        let fits = self.chars[self.at.min(self.chars.len())..].iter().copied().zip(text.chars());
        let fits = fits.filter(|(own, wanted)| own == wanted).count() == text.chars().count();
        self.at += if fits { text.chars().count() } else { 0 };
        fits
    }

    fn refused(&self, what: &str) -> Error {
        Error::unsupported(format!("{what} in a tokenizer's pattern (character {})", self.at))
    }

    fn alternatives(&mut self, depth: usize) -> Result<Alternatives> {
        if depth > DEPTH_MAX {
            return Err(self.refused("groups so deep"));
        }
        let mut alternatives = vec![Vec::new()];
        while let Some(c) = self.peek() {
            match c {
                ')' => break,
                '|' => {
                    self.at += 1;
                    alternatives.push(Vec::new());
                }
                _ => {
                    let item = self.item(depth)?;
                    let repeat = self.repeat(item)?;
                    alternatives.last_mut().unwrap_or(&mut Vec::new()).push(repeat);
                }
            }
        }
        Ok(alternatives)
    }

    fn item(&mut self, depth: usize) -> Result<Item> {
        match self.next() {
            Some('(') => self.group(depth),
            Some('[') => self.set().map(Item::One),
            Some('\\') => {
                let part = self.escaped()?;
                Ok(self.single(part))
            }
            Some('.') => Ok(self.single(ClassPart::Class(Class::Line, true))),
            Some(c @ ('^' | '$' | '*' | '+' | '?' | '{')) => Err(self.refused(&format!("the sign {c:?}"))),
            Some(c) => Ok(self.single(ClassPart::Range(c, c))),
            None => Err(self.refused("an end")),
        }
    }

    fn single(&self, part: ClassPart) -> Item {
        Item::One(CharacterSet { parts: vec![part], inverted: false, folded: self.folded })
    }

    fn group(&mut self, depth: usize) -> Result<Item> {
        let (outer, mut is_ahead) = (self.folded, false);
        if self.takes("?!") {
            is_ahead = true;
        } else if self.takes("?i:") {
            self.folded = true;
        } else if !self.takes("?:") && self.peek() == Some('?') {
            return Err(self.refused("a group of this kind"));
        }
        let alternatives = self.alternatives(depth + 1)?;
        self.folded = outer;
        match self.next() {
            Some(')') if is_ahead => Ok(Item::NotAhead(alternatives)),
            Some(')') => Ok(Item::Group(alternatives)),
            _ => Err(self.refused("a group without an end")),
        }
    }

    fn set(&mut self) -> Result<CharacterSet> {
        let inverted = self.takes("^");
        let mut parts = Vec::new();
        loop {
            let part = match self.next() {
                Some(']') if !parts.is_empty() => return Ok(CharacterSet { parts, inverted, folded: self.folded }),
                Some('[') => return Err(self.refused("a set within a set")),
                Some('&') if self.peek() == Some('&') => return Err(self.refused("an intersection of sets")),
                Some('\\') => self.escaped()?,
                Some(c) => ClassPart::Range(c, c),
                None => return Err(self.refused("a set without an end")),
            };
            let is_range = self.peek() == Some('-') && self.chars.get(self.at + 1).is_some_and(|c| *c != ']');
            let (ClassPart::Range(low, _), true) = (part, is_range) else {
                parts.push(part);
                continue;
            };
            self.at += 1;
            let high = match self.next() {
                Some('\\') => self.escaped()?,
                Some(c) => ClassPart::Range(c, c),
                None => return Err(self.refused("a set without an end")),
            };
            match high {
                ClassPart::Range(high, _) if low <= high => parts.push(ClassPart::Range(low, high)),
                _ => return Err(self.refused("a range without an end")),
            }
        }
    }

    fn escaped(&mut self) -> Result<ClassPart> {
        let plain = |c| Ok(ClassPart::Range(c, c));
        match self.next() {
            Some('s') => Ok(ClassPart::Class(Class::Space, false)),
            Some('S') => Ok(ClassPart::Class(Class::Space, true)),
            Some('d') => Ok(ClassPart::Class(Class::Digit, false)),
            Some('r') => plain('\r'),
            Some('n') => plain('\n'),
            Some('t') => plain('\t'),
            Some('p') if self.takes("{L}") => Ok(ClassPart::Class(Class::Letter, false)),
            Some('p') if self.takes("{N}") => Ok(ClassPart::Class(Class::Number, false)),
            Some('p') if self.takes("{M}") => Ok(ClassPart::Class(Class::Mark, false)),
            Some(c) if c.is_ascii_alphanumeric() => Err(self.refused(&format!("the class \\{c}"))),
            Some(c) => plain(c),
            None => Err(self.refused("an end")),
        }
    }

    fn repeat(&mut self, item: Item) -> Result<Repeat> {
        let (min, max) = match self.peek() {
            Some('?') => (0, 1),
            Some('*') => (0, usize::MAX),
            Some('+') => (1, usize::MAX),
            Some('{') => {
                self.at += 1;
                let bounds = self.bounds()?;
                return self.repeated(item, bounds);
            }
            _ => return Ok(Repeat { item, min: 1, max: 1 }),
        };
        self.at += 1;
        self.repeated(item, (min, max))
    }

    fn repeated(&mut self, item: Item, (min, max): (usize, usize)) -> Result<Repeat> {
        if matches!(self.peek(), Some('?' | '+' | '*')) {
            return Err(self.refused("a repetition that is not greedy"));
        }
        match item {
            Item::One(_) => {}
            Item::Group(_) if (min, max) == (0, 1) => {}
            _ => return Err(self.refused("a group that is repeated")),
        }
        Ok(Repeat { item, min, max })
    }

    /// Parses `m}`, `m,}` or `m,n}`.
    fn bounds(&mut self) -> Result<(usize, usize)> {
        let min = self.number().ok_or_else(|| self.refused("a repetition of this kind"))?;
        let max = match self.takes(",") {
            true => self.number().unwrap_or(usize::MAX),
            false => min,
        };
        if self.next() != Some('}') || min > max {
            return Err(self.refused("a repetition of this kind"));
        }
        Ok((min, max))
    }

    fn number(&mut self) -> Option<usize> {
        let digits: String = self.chars.get(self.at..)?.iter().take_while(|c| c.is_ascii_digit()).take(6).collect();
        self.at += digits.len();
        digits.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(pattern: &str, text: &str) -> Vec<String> {
        let cut = Pattern::read(pattern).unwrap().cut(text).unwrap();
        cut.into_iter().map(|(piece, found)| if found { piece } else { format!("!{piece}") }).collect()
    }

    #[test]
    fn the_pattern_of_gpt2_cuts_words_and_keeps_spaces() {
        let pattern = super::super::split::BYTE_LEVEL_PATTERN;
        assert_eq!(
            pieces(pattern, "It's  5 o’clock!\n\n x"),
            ["It", "'s", " ", " 5", " o", "’", "clock", "!", "\n\n", " x"]
        );
        assert_eq!(pieces(pattern, "a  "), ["a", "  "]);
    }

    #[test]
    fn groups_sets_and_counts() {
        assert_eq!(
            pieces(r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}", "DON'T 12345"),
            ["DON", "'T", "! ", "123", "45"]
        );
        assert_eq!(pieces(r"[a-c\d]+(?:xy)?", "abcxz1xyx"), ["abc", "!xz", "1xy", "!x"]);
        assert_eq!(pieces(r"a{2,}", "aaab a"), ["aaa", "!b a"]);
    }

    #[test]
    fn what_is_not_known_is_named() {
        for (pattern, word) in
            [(r"\w+", "\\w"), ("(?<=a)b", "group"), ("a+?", "greedy"), ("(ab)+", "repeated"), ("[a", "end")]
        {
            let refused = Pattern::read(pattern).unwrap_err();
            assert!(refused.is_unsupported() && refused.to_string().contains(word), "{pattern}: {refused}");
        }
    }

    #[test]
    fn a_pattern_that_goes_back_for_ever_is_ended() {
        let slow = Pattern::read(r"a*a*a*a*a*a*b").unwrap();
        assert!(matches!(slow.cut(&"a".repeat(5000)), Err(Error::Limit { .. })));
    }

    #[test]
    fn letters_are_unicodes() {
        for (c, letter) in
            [('é', true), ('中', true), ('ª', true), ('Ⅷ', false), ('ⓐ', false), ('\u{0301}', false), ('9', false)]
        {
            assert_eq!(is_letter(c), letter, "{c}");
        }
    }
}
