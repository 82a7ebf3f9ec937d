//! Tokenizers: cut text into pieces of a vocabulary, each with its number.
//!
//! A vocabulary is a `vocab.txt` (one piece per line, as for BERT) or a `tokenizer.json` whose
//! model is WordPiece, BPE (byte-level, or with marks for spaces) or Unigram. `file` reads such a
//! file (its values are `json`). `split` normalises text and cuts words, `pattern` holds the
//! patterns for cutting and `charsmap` the replacements of characters. `wordpiece`, `bpe` and
//! `unigram` cut words into pieces. Unknown features of a file are refused by name: the numbers are
//! exactly those that the model was trained with, or there is an error.

mod bpe;
mod categories;
mod charsmap;
mod file;
mod json;
mod pattern;
mod split;
mod unigram;
mod wordpiece;

use std::collections::HashMap;
use std::path::Path;

use crate::error::{Error, Result};
use bpe::Bpe;
use split::{Normal, PreTokenizer};
use unigram::Unigram;
use wordpiece::WordPiece;

/// The largest vocabulary file in bytes.
const FILE_BYTES_MAX: u64 = 1 << 27;
/// The most bytes of one text: a thousand pages.
const TEXT_BYTES_MAX: usize = 1 << 22;

/// Cuts text into pieces and returns their numbers.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    model: Model,
    normal: Vec<Normal>,
    split: Vec<PreTokenizer>,
    added: AddedPieces,
    before: Vec<i64>,
    after: Vec<i64>,
    padding: i64,
}

/// The model that cuts words into pieces.
#[derive(Clone, Debug)]
enum Model {
    WordPiece(WordPiece),
    Bpe(Bpe),
    Unigram(Unigram),
}

impl Model {
    fn number(&self, piece: &str) -> Option<i64> {
        match self {
            Model::WordPiece(model) => model.number(piece),
            Model::Bpe(model) => model.number(piece),
            Model::Unigram(model) => model.number(piece),
        }
    }
}

/// Pieces that are searched in a text before all other steps, such as a model's special tokens.
#[derive(Clone, Debug, Default)]
struct AddedPieces {
    by_text: HashMap<String, AddedToken>,
    /// The distinct lengths, in descending order.
    lengths: Vec<usize>,
}

#[derive(Clone, Copy, Debug)]
struct AddedToken {
    number: i64,
    /// Whether the piece swallows spaces to its left.
    strips_left: bool,
    strips_right: bool,
}

/// Texts as numbers: a row for each text, padded to the longest.
#[derive(Clone, Debug)]
pub struct Tokens {
    /// Number of texts.
    pub rows: usize,
    /// Length of each row.
    pub len: usize,
    /// The numbers of pieces.
    pub ids: Vec<i64>,
    /// One for a piece, zero for padding.
    pub mask: Vec<i64>,
}

impl AddedPieces {
    fn new(by_text: HashMap<String, AddedToken>) -> AddedPieces {
        let mut lengths: Vec<usize> = by_text.keys().map(String::len).collect();
        lengths.sort_unstable_by(|a, b| b.cmp(a));
        lengths.dedup();
        AddedPieces { by_text, lengths }
    }

    /// The first added piece in a text, and the longest of those with the same start: start, end,
    /// and the piece.
    fn find(&self, text: &str) -> Option<(usize, usize, AddedToken)> {
        let at = |start: usize| {
            let piece = |len: &usize| Some((start + len, *self.by_text.get(text.get(start..start + len)?)?));
            self.lengths.iter().find_map(piece).map(|(end, added)| (start, end, added))
        };
        (!self.lengths.is_empty()).then(|| text.char_indices().find_map(|(start, _)| at(start))).flatten()
    }
}

fn missing(piece: &'static str) -> Error {
    Error::invalid("a vocabulary", format!("the piece {piece}"), "none")
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

    /// A vocabulary with one piece per line, the first with number 0. Text is lowercased unless a
    /// piece has a capital letter.
    pub fn from_lines(text: &str) -> Result<Tokenizer> {
        let pieces = text.lines().enumerate().map(|(number, piece)| (piece.trim_end().to_owned(), number as u32));
        let pieces: HashMap<String, u32> = pieces.collect();
        let has_capitals = pieces.keys().any(|piece| !piece.starts_with('[') && piece.chars().any(char::is_uppercase));
        let number =
            |piece: &'static str| pieces.get(piece).map(|number| i64::from(*number)).ok_or_else(|| missing(piece));
        let (before, after, padding) = (vec![number("[CLS]")?], vec![number("[SEP]")?], number("[PAD]")?);
        let lower = !has_capitals;
        let normal = vec![Normal::Bert { cleans: true, ideographs: true, accents: lower, lower }];
        let model = Model::WordPiece(WordPiece::new(pieces, "[UNK]")?);
        Ok(Tokenizer {
            model,
            normal,
            split: vec![PreTokenizer::Bert],
            added: AddedPieces::default(),
            before,
            after,
            padding,
        })
    }

    /// A vocabulary in the format of `tokenizer.json`.
    pub fn from_json(text: &str) -> Result<Tokenizer> {
        file::read(text)
    }

    /// Number of pieces, without added ones.
    pub fn len(&self) -> usize {
        match &self.model {
            Model::WordPiece(model) => model.len(),
            Model::Bpe(model) => model.len(),
            Model::Unigram(model) => model.len(),
        }
    }

    /// Whether there are no pieces.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Encodes texts as rows of at most `len_max` pieces, including the special pieces before and
    /// after a text.
    pub fn encode<T: AsRef<str>>(&self, texts: &[T], len_max: usize) -> Result<Tokens> {
        let marks = self.before.len() + self.after.len();
        if len_max < marks.max(1) {
            return Err(Error::invalid("the pieces of a text", format!("at least {}", marks.max(1)), len_max));
        }
        let rows = texts.iter().map(|text| self.row(text.as_ref(), len_max - marks)).collect::<Result<Vec<_>>>()?;
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
        let mut own = Vec::new();
        let (mut left, mut is_first) = (text, true);
        while !left.is_empty() && own.len() < len_max {
            let (section, added, rest) = self.section(left);
            self.cut(section, is_first, len_max, &mut own)?;
            own.extend(added);
            (left, is_first) = (rest, false);
        }
        own.truncate(len_max);
        Ok(self.before.iter().copied().chain(own).chain(self.after.iter().copied()).collect())
    }

    /// The text before the next added piece, that piece, and the text after it.
    fn section<'t>(&self, text: &'t str) -> (&'t str, Option<i64>, &'t str) {
        let Some((start, end, added)) = self.added.find(text) else { return (text, None, "") };
        let (section, rest) = (&text[..start], &text[end..]);
        let section = if added.strips_left { section.trim_end() } else { section };
        let rest = if added.strips_right { rest.trim_start() } else { rest };
        (section, Some(added.number), rest)
    }

    fn cut(&self, section: &str, is_first: bool, len_max: usize, row: &mut Vec<i64>) -> Result<()> {
        if section.is_empty() {
            return Ok(());
        }
        let plain = self.normal.iter().try_fold(section.to_owned(), |text, step| step.apply(text))?;
        if plain.is_empty() {
            return Ok(());
        }
        // If leading spaces are stripped, the section no longer starts the text.
        let strips = self.normal.iter().any(|step| matches!(step, Normal::Strip { left: true, .. }));
        let is_first = is_first && !(strips && section.starts_with(char::is_whitespace));
        let words = self.split.iter().try_fold(vec![plain], |words, step| step.apply(words, is_first))?;
        for word in &words {
            if row.len() >= len_max {
                break;
            }
            match &self.model {
                Model::WordPiece(model) => model.cut(word, row),
                Model::Bpe(model) => model.cut(word, row),
                Model::Unigram(model) => model.cut(word, row)?,
            }
        }
        Ok(())
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
        let refused = Tokenizer::from_json(r#"{"model":{"type":"WordLevel","vocab":{}}}"#).unwrap_err();
        assert!(refused.is_unsupported() && refused.to_string().contains("WordLevel"));
        let refused =
            Tokenizer::from_json(r#"{"normalizer":{"type":"Other"},"model":{"type":"BPE","vocab":{},"merges":[]}}"#);
        assert!(refused.unwrap_err().to_string().contains("Other"));
        let json = r#"{"normalizer":{"type":"BertNormalizer","lowercase":true},"model":{"type":"WordPiece","vocab":{"[PAD]":0,"[UNK]":1,"[CLS]":2,"[SEP]":3,"a":4}}}"#;
        assert_eq!(Tokenizer::from_json(json).unwrap().encode(&["A"], 8).unwrap().ids, [2, 4, 3]);
        assert!(Tokenizer::from_lines("hello").is_err());
    }
}
