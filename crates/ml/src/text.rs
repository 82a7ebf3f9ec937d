//! Text as models read it: words cut into pieces that a vocabulary has, as BERT and its relatives do it.
//!
//! A vocabulary is a `vocab.txt` (one piece a line) or a `tokenizer.json` whose model is WordPiece. Other kinds are refused by name.

use std::collections::HashMap;
use std::path::Path;

use serde_json::Value as Json;
use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

use crate::array::Array;
use crate::error::{Error, Result};

/// The largest file of a vocabulary.
const FILE_BYTES_MAX: u64 = 1 << 27;
/// The longest word that is cut into pieces; longer ones are unknown.
const WORD_CHARS_MAX: usize = 100;
/// The most bytes of one text: a thousand pages.
const TEXT_BYTES_MAX: usize = 1 << 22;

/// Cuts text into pieces, and names each by its number.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    pieces: HashMap<String, i64>,
    lower_case: bool,
    unknown: i64,
    begin: i64,
    end: i64,
    padding: i64,
}

/// Texts as numbers: a row for each, all as long as the longest.
#[derive(Clone, Debug)]
pub struct Tokens {
    /// How many texts there are.
    pub rows: usize,
    /// How long each row is.
    pub len: usize,
    /// The numbers of pieces.
    pub ids: Vec<i64>,
    /// One where there is a piece, zero where there is padding.
    pub mask: Vec<i64>,
}

impl Tokenizer {
    /// Reads a vocabulary: `vocab.txt` or `tokenizer.json`.
    pub fn load(path: impl AsRef<Path>) -> Result<Tokenizer> {
        let path = path.as_ref();
        let error = |cause| Error::file(path, cause);
        let size = std::fs::metadata(path).map_err(error)?.len();
        if size > FILE_BYTES_MAX {
            return Err(Error::Limit { what: "the bytes of a vocabulary", limit: FILE_BYTES_MAX, got: size });
        }
        let text = std::fs::read_to_string(path).map_err(error)?;
        match path.extension().is_some_and(|extension| extension == "json") {
            true => Tokenizer::from_json(&text),
            false => Tokenizer::from_lines(&text),
        }
    }

    /// The vocabulary beside a model: `tokenizer.json` or `vocab.txt` in its folder.
    pub fn beside(model: &Path) -> Result<Tokenizer> {
        let folder = model.parent().unwrap_or(Path::new("."));
        let found =
            ["tokenizer.json", "vocab.txt"].map(|name| folder.join(name)).into_iter().find(|path| path.is_file());
        let missing = || Error::invalid("a model of text", "tokenizer.json or vocab.txt beside it", "neither");
        Tokenizer::load(found.ok_or_else(missing)?)
    }

    /// A vocabulary of one piece a line, the first with number 0. Capital letters count where any piece has one.
    pub fn from_lines(text: &str) -> Result<Tokenizer> {
        let pieces = text.lines().enumerate().map(|(number, piece)| (piece.trim_end().to_owned(), number as i64));
        let pieces: HashMap<String, i64> = pieces.collect();
        let has_capitals = pieces.keys().any(|piece| !piece.starts_with('[') && piece.chars().any(char::is_uppercase));
        Tokenizer::new(pieces, !has_capitals)
    }

    /// A vocabulary as `tokenizer.json` has it.
    pub fn from_json(text: &str) -> Result<Tokenizer> {
        let wrong = |cause| Error::invalid("tokenizer.json", "JSON", cause);
        let file: Json = serde_json::from_str(text).map_err(wrong)?;
        let model = &file["model"];
        // Old files do not say what they are, but WordPiece alone has a prefix for pieces inside words.
        let kind = model["type"].as_str().unwrap_or(if model["continuing_subword_prefix"].is_string() {
            "WordPiece"
        } else {
            "?"
        });
        if kind != "WordPiece" {
            return Err(Error::unsupported(format!("vocabularies of the kind {kind}; WordPiece is known")));
        }
        let vocabulary =
            model["vocab"].as_object().ok_or_else(|| Error::invalid("tokenizer.json", "a vocabulary", "none"))?;
        let pieces = vocabulary.iter().filter_map(|(piece, number)| Some((piece.clone(), number.as_i64()?))).collect();
        Tokenizer::new(pieces, file["normalizer"]["lowercase"].as_bool().unwrap_or(false))
    }

    fn new(pieces: HashMap<String, i64>, lower_case: bool) -> Result<Tokenizer> {
        let number = |piece: &'static str| {
            let missing = || Error::invalid("a vocabulary", format!("the piece {piece}"), "none");
            pieces.get(piece).copied().ok_or_else(missing)
        };
        let (unknown, begin, end) = (number("[UNK]")?, number("[CLS]")?, number("[SEP]")?);
        let padding = number("[PAD]")?;
        Ok(Tokenizer { pieces, lower_case, unknown, begin, end, padding })
    }

    /// How many pieces there are.
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Texts as rows of at most `len_max` pieces, the first and the last of which are the model's own marks.
    pub fn encode<T: AsRef<str>>(&self, texts: &[T], len_max: usize) -> Result<Tokens> {
        if len_max < 2 {
            return Err(Error::invalid("the pieces of a text", "at least 2", len_max));
        }
        let rows = texts.iter().map(|text| self.row(text.as_ref(), len_max)).collect::<Result<Vec<_>>>()?;
        let len = rows.iter().map(Vec::len).max().unwrap_or(0);
        let (mut ids, mut mask) = (Vec::with_capacity(rows.len() * len), Vec::with_capacity(rows.len() * len));
        for row in &rows {
            ids.extend(row.iter().copied().chain(std::iter::repeat(self.padding)).take(len));
            mask.extend((0..len).map(|place| i64::from(place < row.len())));
        }
        Ok(Tokens { rows: rows.len(), len, ids, mask })
    }

    fn row(&self, text: &str, len_max: usize) -> Result<Vec<i64>> {
        if text.len() > TEXT_BYTES_MAX {
            let (what, limit) = ("the bytes of a text", TEXT_BYTES_MAX as u64);
            return Err(Error::Limit { what, limit, got: text.len() as u64 });
        }
        let mut row = vec![self.begin];
        for word in words(&self.plain(text)) {
            if row.len() + 1 >= len_max {
                break;
            }
            self.cut(&word, &mut row);
        }
        row.truncate(len_max - 1);
        row.push(self.end);
        Ok(row)
    }

    /// Without control characters and, where the vocabulary has small letters alone, without capitals and accents.
    fn plain(&self, text: &str) -> String {
        let kept = text.chars().filter(|c| !matches!(c, '\0' | '\u{fffd}') && (c.is_whitespace() || !c.is_control()));
        match self.lower_case {
            true => kept.flat_map(char::to_lowercase).nfd().filter(|c| !is_combining_mark(*c)).collect(),
            false => kept.collect(),
        }
    }

    /// The longest piece that a word begins with, and so on behind it; one unknown piece where that fails.
    fn cut(&self, word: &str, row: &mut Vec<i64>) {
        let before = row.len();
        let unknown = |row: &mut Vec<i64>| {
            row.truncate(before);
            row.push(self.unknown);
        };
        if word.chars().count() > WORD_CHARS_MAX {
            return unknown(row);
        }
        let (mut start, mut piece) = (0, String::new());
        while start < word.len() {
            let ends = word[start..].char_indices().map(|(at, c)| start + at + c.len_utf8()).rev();
            let found = ends.into_iter().find_map(|end| {
                piece.clear();
                if start > 0 {
                    piece.push_str("##");
                }
                piece.push_str(&word[start..end]);
                self.pieces.get(&piece).map(|number| (*number, end))
            });
            let Some((number, end)) = found else { return unknown(row) };
            row.push(number);
            start = end;
        }
    }
}

/// Words, with each mark of punctuation and each ideograph as a word of its own.
fn words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut open = false;
    for c in text.chars() {
        if c.is_whitespace() {
            open = false;
        } else if is_mark(c) || is_ideograph(c) {
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
    c.is_ascii_punctuation()
        || matches!(c, '\u{2010}'..='\u{2027}' | '\u{2030}'..='\u{205e}' | '\u{3001}'..='\u{3003}'
        | '\u{3008}'..='\u{3011}' | '\u{00a1}' | '\u{00a7}' | '\u{00ab}' | '\u{00b6}' | '\u{00b7}' | '\u{00bb}' | '\u{00bf}'
        | '\u{ff01}'..='\u{ff0f}' | '\u{ff1a}'..='\u{ff20}' | '\u{ff3b}'..='\u{ff40}' | '\u{ff5b}'..='\u{ff65}')
}

fn is_ideograph(c: char) -> bool {
    matches!(c, '\u{4e00}'..='\u{9fff}' | '\u{3400}'..='\u{4dbf}' | '\u{20000}'..='\u{2ceaf}' | '\u{f900}'..='\u{faff}')
}

impl Tokens {
    /// The numbers of pieces as an array.
    pub fn ids(&self) -> Result<Array> {
        Array::from_slice(&self.ids, [self.rows, self.len])
    }

    /// Where there are pieces, as an array.
    pub fn mask(&self) -> Result<Array> {
        Array::from_slice(&self.mask, [self.rows, self.len])
    }

    /// Zeros: all pieces belong to the first sentence.
    pub fn sentence(&self) -> Result<Array> {
        Array::from_slice(&vec![0_i64; self.ids.len()], [self.rows, self.len])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOCABULARY: &str = "[PAD]\n[UNK]\n[CLS]\n[SEP]\nun\n##aff\n##able\nhello\n,\nworld\ncafe\n中";

    #[test]
    fn words_become_their_longest_pieces() {
        let tokenizer = Tokenizer::from_lines(VOCABULARY).unwrap();
        let tokens = tokenizer.encode(&["Hello, WORLD", "unaffable café 中 qqq"], 16).unwrap();
        assert_eq!((tokens.rows, tokens.len), (2, 8));
        assert_eq!(tokens.ids[..8], [2, 7, 8, 9, 3, 0, 0, 0]);
        assert_eq!(tokens.ids[8..], [2, 4, 5, 6, 10, 11, 1, 3]);
        assert_eq!(tokens.mask[..8], [1, 1, 1, 1, 1, 0, 0, 0]);
    }

    #[test]
    fn rows_are_cut_and_keep_their_end() {
        let tokenizer = Tokenizer::from_lines(VOCABULARY).unwrap();
        let tokens = tokenizer.encode(&["hello ".repeat(50)], 5).unwrap();
        assert_eq!(tokens.ids, [2, 7, 7, 7, 3]);
        assert!(tokenizer.encode(&["hello"], 1).is_err());
    }

    #[test]
    fn vocabularies_of_other_kinds_are_named() {
        let refused = Tokenizer::from_json(r#"{"model":{"type":"BPE","vocab":{}}}"#).unwrap_err();
        assert!(refused.is_unsupported() && refused.to_string().contains("BPE"));
        let json = r#"{"normalizer":{"lowercase":true},"model":{"type":"WordPiece","vocab":{"[PAD]":0,"[UNK]":1,"[CLS]":2,"[SEP]":3,"a":4}}}"#;
        assert_eq!(Tokenizer::from_json(json).unwrap().encode(&["A"], 8).unwrap().ids, [2, 4, 3]);
        assert!(Tokenizer::from_lines("hello").is_err());
    }
}
