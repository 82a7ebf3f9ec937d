//! WordPiece: cuts the longest piece from the front of a word, and repeats this with the rest.

use std::collections::HashMap;

use super::categories::{FORMATS, PUNCTUATION, is_in};
use super::json::Json;
use crate::error::{Error, Result};

/// The most characters of a word that is cut into pieces. Longer words are unknown.
const WORD_CHARS_MAX: usize = 100;

/// A vocabulary of words and their parts.
#[derive(Clone, Debug)]
pub(super) struct WordPiece {
    pieces: HashMap<String, u32>,
    unknown: u32,
    prefix: String,
    word_chars_max: usize,
}

impl WordPiece {
    /// Reads the model of a `tokenizer.json`.
    pub fn read(model: &Json) -> Result<WordPiece> {
        let unknown = model["unk_token"].as_str().unwrap_or("[UNK]");
        let made = WordPiece::new(super::bpe::pieces(&model["vocab"])?, unknown)?;
        let prefix = model["continuing_subword_prefix"].as_str().unwrap_or("##").to_owned();
        let chars = model["max_input_chars_per_word"].as_u64().unwrap_or(WORD_CHARS_MAX as u64);
        Ok(WordPiece { prefix, word_chars_max: chars.min(WORD_CHARS_MAX as u64) as usize, ..made })
    }

    pub fn new(pieces: HashMap<String, u32>, unknown: &str) -> Result<WordPiece> {
        let missing = || Error::invalid("a vocabulary", format!("the piece {unknown}"), "none");
        let unknown = *pieces.get(unknown).ok_or_else(missing)?;
        Ok(WordPiece { pieces, unknown, prefix: "##".to_owned(), word_chars_max: WORD_CHARS_MAX })
    }

    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    pub fn number(&self, piece: &str) -> Option<i64> {
        self.pieces.get(piece).map(|number| i64::from(*number))
    }

    /// Appends the longest pieces from front to back. If that fails, appends one unknown piece.
    pub fn cut(&self, word: &str, row: &mut Vec<i64>) {
        let before = row.len();
        let unknown = |row: &mut Vec<i64>| {
            row.truncate(before);
            row.push(i64::from(self.unknown));
        };
        if word.chars().count() > self.word_chars_max {
            return unknown(row);
        }
        let (mut start, mut piece) = (0, String::new());
        while start < word.len() {
            let ends = word[start..].char_indices().map(|(at, c)| start + at + c.len_utf8()).rev();
            let found = ends.into_iter().find_map(|end| {
                piece.clear();
                if start > 0 {
                    piece.push_str(&self.prefix);
                }
                piece.push_str(&word[start..end]);
                self.pieces.get(&piece).map(|number| (*number, end))
            });
            let Some((number, end)) = found else { return unknown(row) };
            row.push(i64::from(number));
            start = end;
        }
    }
}

/// A text without control characters, and with plain spaces only.
pub(super) fn cleaned(text: &str) -> String {
    let kept = text.chars().filter(|c| !matches!(c, '\0' | '\u{fffd}') && (c.is_whitespace() || !is_control(*c)));
    kept.map(|c| if c.is_whitespace() { ' ' } else { c }).collect()
}

/// Whether a character is a control or invisible format character.
fn is_control(c: char) -> bool {
    c.is_control() || is_in(FORMATS, c)
}

/// A text with spaces around each ideograph.
pub(super) fn spaced(text: &str) -> String {
    let mut spaced = String::with_capacity(text.len());
    for c in text.chars() {
        match is_ideograph(c) {
            true => spaced.extend([' ', c, ' ']),
            false => spaced.push(c),
        }
    }
    spaced
}

/// Splits text into words. Each punctuation mark is a word, and so is each ideograph if
/// `ideographs` is set.
pub(super) fn words(text: &str, ideographs: bool) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut open = false;
    for c in text.chars() {
        if c.is_whitespace() {
            open = false;
        } else if is_mark(c) || (ideographs && is_ideograph(c)) {
            words.push(c.to_string());
            open = false;
        } else {
            match words.last_mut() {
                Some(word) if open => word.push(c),
                _ => words.push(c.to_string()),
            }
            open = true;
        }
    }
    words
}

fn is_mark(c: char) -> bool {
    c.is_ascii_punctuation() || is_in(PUNCTUATION, c)
}

fn is_ideograph(c: char) -> bool {
    matches!(c, '\u{4e00}'..='\u{9fff}' | '\u{3400}'..='\u{4dbf}' | '\u{20000}'..='\u{2a6df}' | '\u{2a700}'..='\u{2b81f}'
        | '\u{2b920}'..='\u{2ceaf}' | '\u{f900}'..='\u{faff}' | '\u{2f800}'..='\u{2fa1f}')
}
