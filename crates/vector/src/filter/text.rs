//! The text form of filters, for command lines.
//!
//! ```text
//! filter    = all { "or" all }
//! all       = one { "and" one }
//! one       = "not" one | "(" filter ")" | condition
//! condition = path ( "=" | "!=" | "<" | "<=" | ">" | ">=" ) value
//!           | path [ "not" ] "in" "(" value { "," value } ")"
//! ```
//!
//! A path or value is a bare word, or a text in single or double quotes. Inside quotes a backslash
//! makes the next quote or backslash literal. A bare `true`, `false`, `null` or number has that
//! type; in quotes it is a text. The grammar's words are case-insensitive.

use super::error::FilterError;
use super::path::Path;
use super::{CONDITIONS_MAX, Comparison, DEPTH_MAX, DEPTH_READ_MAX, Filter, Node, Range, Scalar, TEXT_BYTES_MAX};

/// Parses the text of a filter.
pub fn parse(text: &str) -> Result<Filter, FilterError> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(FilterError::TooLong { bytes: text.len(), bytes_max: TEXT_BYTES_MAX });
    }
    let mut parser = Parser { text, at: 0, token: Token::End, start: 0 };
    parser.advance()?;
    let filter = parser.any(1)?;
    match parser.token {
        Token::End => Ok(filter),
        _ => Err(parser.unexpected("`and`, `or` or the end")),
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    /// A bare word: a name, a number, or a word of the grammar.
    Word(String),
    /// A quoted text.
    Quoted(String),
    /// `=`, `!=`, `<`, `<=`, `>`, `>=`, `(`, `)` or `,`.
    Sign(&'static str),
    End,
}

const SIGNS: [(&str, &str); 11] = [
    ("==", "="),
    ("!=", "!="),
    ("<>", "!="),
    ("<=", "<="),
    (">=", ">="),
    ("=", "="),
    ("<", "<"),
    (">", ">"),
    ("(", "("),
    (")", ")"),
    (",", ","),
];

struct Parser<'a> {
    text: &'a str,
    /// Byte offset of the next token.
    at: usize,
    token: Token,
    /// Byte offset of `token`.
    start: usize,
}

impl Parser<'_> {
    fn any(&mut self, depth: usize) -> Result<Filter, FilterError> {
        let first = self.all(depth)?;
        self.joined(first, "or", depth)
    }

    fn all(&mut self, depth: usize) -> Result<Filter, FilterError> {
        let first = self.one(depth)?;
        self.joined(first, "and", depth)
    }

    /// Reads the filters that follow `first`, separated by `word`, and joins all of them.
    fn joined(&mut self, first: Filter, word: &str, depth: usize) -> Result<Filter, FilterError> {
        if !self.is_word(word) {
            return Ok(first);
        }
        let mut filters = vec![first];
        while self.is_word(word) {
            self.advance()?;
            filters.push(if word == "or" { self.all(depth)? } else { self.one(depth)? });
        }
        if word == "or" { Filter::any_of(filters) } else { Filter::all_of(filters) }
    }

    fn one(&mut self, depth: usize) -> Result<Filter, FilterError> {
        if depth > DEPTH_READ_MAX {
            return Err(FilterError::TooDeep { depth_max: DEPTH_MAX });
        }
        if self.is_word("not") {
            self.advance()?;
            return Ok(!self.one(depth + 1)?);
        }
        if self.token == Token::Sign("(") {
            self.advance()?;
            let filter = self.any(depth + 1)?;
            self.expect_sign(")", "`and`, `or` or `)`")?;
            return Ok(filter);
        }
        self.condition()
    }

    fn condition(&mut self) -> Result<Filter, FilterError> {
        let path = match &self.token {
            Token::Word(word) | Token::Quoted(word) if !self.is_word("and") && !self.is_word("or") => {
                Path::parse(word)?
            }
            _ => return Err(self.unexpected("a field, `not` or `(`")),
        };
        self.advance()?;
        if self.is_word("in") {
            self.advance()?;
            return Filter::condition(Node::In(path, self.values()?));
        }
        if self.is_word("not") {
            self.advance()?;
            if !self.is_word("in") {
                return Err(self.unexpected("`in`"));
            }
            self.advance()?;
            return Ok(!Filter::condition(Node::In(path, self.values()?))?);
        }
        let Token::Sign(sign) = self.token else {
            return Err(self.unexpected("`=`, `!=`, `<`, `<=`, `>`, `>=`, `in` or `not in`"));
        };
        let comparison = match sign {
            "=" | "!=" => None,
            "<" => Some(Comparison::Less),
            "<=" => Some(Comparison::AtMost),
            ">" => Some(Comparison::Greater),
            ">=" => Some(Comparison::AtLeast),
            _ => return Err(self.unexpected("`=`, `!=`, `<`, `<=`, `>`, `>=`, `in` or `not in`")),
        };
        self.advance()?;
        let value = self.value()?;
        match comparison {
            Some(comparison) => {
                let range = Range::new(&path, comparison, value)?;
                Filter::condition(Node::Range(path, range))
            }
            None if sign == "=" => Filter::condition(Node::Equals(path, value)),
            None => Ok(!Filter::condition(Node::Equals(path, value))?),
        }
    }

    fn values(&mut self) -> Result<Vec<Scalar>, FilterError> {
        self.expect_sign("(", "`(`")?;
        let mut values = vec![self.value()?];
        while self.token == Token::Sign(",") {
            self.advance()?;
            values.push(self.value()?);
            if values.len() > CONDITIONS_MAX {
                return Err(FilterError::TooManyConditions { conditions_max: CONDITIONS_MAX });
            }
        }
        self.expect_sign(")", "`,` or `)`")?;
        Ok(values)
    }

    fn value(&mut self) -> Result<Scalar, FilterError> {
        let value = match &self.token {
            Token::Quoted(text) => Scalar::Text(text.clone()),
            Token::Word(word) => match word.as_str() {
                "true" => Scalar::Bool(true),
                "false" => Scalar::Bool(false),
                "null" => Scalar::Null,
                word => match serde_json::from_str(word) {
                    Ok(number) => Scalar::Number(number),
                    Err(_) if is_nearly_a_number(word) => {
                        return Err(self.unexpected("a number as JSON writes it, or a text in quotes"));
                    }
                    Err(_) => Scalar::from(word),
                },
            },
            Token::Sign(_) | Token::End => return Err(self.unexpected("a value")),
        };
        self.advance()?;
        Ok(value)
    }

    fn expect_sign(&mut self, sign: &'static str, expected: &'static str) -> Result<(), FilterError> {
        if self.token != Token::Sign(sign) {
            return Err(self.unexpected(expected));
        }
        self.advance()
    }

    /// Whether the token is `wanted`, a word of the grammar.
    fn is_word(&self, wanted: &str) -> bool {
        matches!(&self.token, Token::Word(word) if word.eq_ignore_ascii_case(wanted))
    }

    fn unexpected(&self, expected: &'static str) -> FilterError {
        let got = match &self.token {
            Token::Word(word) => format!("`{}`", word.chars().take(40).collect::<String>()),
            Token::Quoted(text) => format!("\"{}\"", text.chars().take(40).collect::<String>()),
            Token::Sign(sign) => format!("`{sign}`"),
            Token::End => "the end".to_owned(),
        };
        let at = self.text[..self.start].chars().count() + 1;
        FilterError::Syntax { at, expected, got }
    }

    /// Reads the next token.
    fn advance(&mut self) -> Result<(), FilterError> {
        let rest = &self.text[self.at..];
        let trimmed = rest.trim_start();
        self.start = self.at + (rest.len() - trimmed.len());
        let (token, length) = match trimmed.chars().next() {
            None => (Token::End, 0),
            Some(quote @ ('"' | '\'')) => self.quoted(trimmed, quote)?,
            Some(_) => match SIGNS.iter().find(|(written, _)| trimmed.starts_with(written)) {
                Some((written, sign)) => (Token::Sign(sign), written.len()),
                None => self.word(trimmed)?,
            },
        };
        (self.token, self.at) = (token, self.start + length);
        Ok(())
    }

    fn quoted(&self, text: &str, quote: char) -> Result<(Token, usize), FilterError> {
        let mut content = String::new();
        let mut characters = text.char_indices().skip(1);
        while let Some((offset, character)) = characters.next() {
            match character {
                '\\' => match characters.next() {
                    Some((_, escaped)) if escaped == quote || escaped == '\\' => content.push(escaped),
                    Some((_, other)) => content.extend(['\\', other]),
                    None => break,
                },
                end if end == quote => return Ok((Token::Quoted(content), offset + end.len_utf8())),
                plain => content.push(plain),
            }
        }
        let at = self.text[..self.start].chars().count() + 1;
        Err(FilterError::Syntax { at, expected: "a closing quote", got: "the end".to_owned() })
    }

    fn word(&self, text: &str) -> Result<(Token, usize), FilterError> {
        let ends = |character: char| character.is_whitespace() || "=!<>(),\"'".contains(character);
        let length = text.find(ends).unwrap_or(text.len());
        if length == 0 {
            let at = self.text[..self.start].chars().count() + 1;
            let got = format!("`{}`", text.chars().take(1).collect::<String>());
            return Err(FilterError::Syntax { at, expected: "a field, a value or a comparison", got });
        }
        Ok((Token::Word(text[..length].to_owned()), length))
    }
}

/// Whether a word looks like a number but is not valid in JSON: `.5`, `+1`, `1.`, or a number that
/// is too large. Read as a text it would never compare with a number. A word with a leading zero
/// may be a text, such as a postal code.
fn is_nearly_a_number(word: &str) -> bool {
    let begins = |first: char| matches!(first, '1'..='9' | '.' | '+' | '-');
    word.starts_with(begins) && word.parse::<f64>().is_ok()
}
