//! Byte-pair encoding: joins the characters of a word pair by pair, in the order in which the
//! vocabulary learned the pairs.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::json::{Json, text_of};
use crate::error::{Error, Result};

/// A vocabulary with its pairs.
#[derive(Clone, Debug)]
pub(super) struct Bpe {
    pieces: HashMap<String, u32>,
    /// The joined piece of two pieces, preceded by its rank.
    pairs: HashMap<(u32, u32), (u32, u32)>,
    unknown: Option<u32>,
    fuses_unknown: bool,
    falls_back_to_bytes: bool,
    ignores_pairs: bool,
    inner_prefix: String,
    end_suffix: String,
}

/// A piece of the word being joined, with links to its neighbours.
#[derive(Clone, Copy)]
struct Symbol {
    piece: u32,
    before: Option<usize>,
    after: Option<usize>,
    alive: bool,
}

impl Bpe {
    /// Reads the model of a `tokenizer.json`.
    pub fn read(model: &Json) -> Result<Bpe> {
        if model["dropout"].as_f64().is_some_and(|dropout| dropout > 0.0) {
            return Err(Error::unsupported("a vocabulary that leaves pairs out by chance"));
        }
        let pieces = pieces(&model["vocab"])?;
        let optional = |key: &str| model[key].as_str().unwrap_or_default().to_owned();
        let unknown = match model["unk_token"].as_str() {
            Some(piece) => Some(*pieces.get(piece).ok_or_else(|| missing(piece))?),
            None => None,
        };
        let flag = |key: &str| model[key].as_bool().unwrap_or(false);
        let inner_prefix = optional("continuing_subword_prefix");
        let pairs = pairs(&model["merges"], &pieces, &inner_prefix)?;
        Ok(Bpe {
            pairs,
            unknown,
            fuses_unknown: flag("fuse_unk"),
            falls_back_to_bytes: flag("byte_fallback"),
            ignores_pairs: flag("ignore_merges"),
            inner_prefix,
            end_suffix: optional("end_of_word_suffix"),
            pieces,
        })
    }

    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    pub fn number(&self, piece: &str) -> Option<i64> {
        self.pieces.get(piece).map(|number| i64::from(*number))
    }

    /// Appends the pieces of a word.
    pub fn cut(&self, word: &str, row: &mut Vec<i64>) {
        if self.ignores_pairs
            && let Some(whole) = self.pieces.get(word)
        {
            return row.push(i64::from(*whole));
        }
        let mut symbols = self.symbols(word);
        self.join(&mut symbols);
        row.extend(symbols.iter().filter(|symbol| symbol.alive).map(|symbol| i64::from(symbol.piece)));
    }

    /// The characters of a word as pieces. An unknown character becomes its bytes or the unknown
    /// piece.
    fn symbols(&self, word: &str) -> Vec<Symbol> {
        let mut numbers: Vec<u32> = Vec::with_capacity(word.len());
        let (mut text, mut is_unknown) = (String::new(), false);
        for (at, c) in word.char_indices() {
            text.clear();
            text.push_str(if at > 0 { &self.inner_prefix } else { "" });
            text.push(c);
            text.push_str(if at + c.len_utf8() == word.len() { &self.end_suffix } else { "" });
            let was_unknown = std::mem::take(&mut is_unknown);
            if let Some(number) = self.pieces.get(&text) {
                numbers.push(*number);
            } else if let Some(bytes) = self.bytes(&text) {
                numbers.extend(bytes);
            } else if let Some(unknown) = self.unknown {
                is_unknown = true;
                if !(was_unknown && self.fuses_unknown) {
                    numbers.push(unknown);
                }
            }
        }
        let len = numbers.len();
        let symbol = |(place, piece): (usize, u32)| Symbol {
            piece,
            before: place.checked_sub(1),
            after: Some(place + 1).filter(|after| *after < len),
            alive: true,
        };
        numbers.into_iter().enumerate().map(symbol).collect()
    }

    fn bytes(&self, text: &str) -> Option<Vec<u32>> {
        let number = |byte: u8| self.pieces.get(&format!("<0x{byte:02X}>")).copied();
        self.falls_back_to_bytes.then(|| text.bytes().map(number).collect()).flatten()
    }

    /// Joins pairs until none is left: the earliest learned first, and of equal ones the leftmost.
    fn join(&self, symbols: &mut [Symbol]) {
        let mut waiting = BinaryHeap::new();
        let pair = |symbols: &[Symbol], left: usize| {
            let right = symbols[left].after?;
            let (rank, made) = self.pairs.get(&(symbols[left].piece, symbols[right].piece))?;
            Some(Reverse((*rank, left, *made)))
        };
        waiting.extend((0..symbols.len()).filter_map(|left| pair(symbols, left)));
        while let Some(Reverse((rank, left, made))) = waiting.pop() {
            // The pair may have been joined or replaced since it was queued.
            if !symbols[left].alive || pair(symbols, left) != Some(Reverse((rank, left, made))) {
                continue;
            }
            let Some(right) = symbols[left].after else { continue };
            symbols[right].alive = false;
            (symbols[left].piece, symbols[left].after) = (made, symbols[right].after);
            if let Some(next) = symbols[left].after {
                symbols[next].before = Some(left);
            }
            waiting.extend(pair(symbols, left));
            waiting.extend(symbols[left].before.and_then(|before| pair(symbols, before)));
        }
    }
}

fn missing(piece: &str) -> Error {
    Error::invalid("a vocabulary", format!("the piece {piece:?}"), "none")
}

/// Reads the numbers of pieces.
pub(super) fn pieces(json: &Json) -> Result<HashMap<String, u32>> {
    let vocabulary = json.as_object().ok_or_else(|| Error::invalid("tokenizer.json", "a vocabulary", "none"))?;
    let number = |(piece, number): (&String, &Json)| {
        let number = number.as_u64().and_then(|number| u32::try_from(number).ok());
        let number = number.ok_or_else(|| Error::invalid("the number of a piece", "32 bits", format!("{piece:?}")));
        Ok((piece.clone(), number?))
    };
    vocabulary.iter().map(number).collect()
}

/// Reads the pairs in the order in which they were learned: `"a b"` or `["a", "b"]`.
fn pairs(json: &Json, pieces: &HashMap<String, u32>, prefix: &str) -> Result<HashMap<(u32, u32), (u32, u32)>> {
    let list = json.as_array().ok_or_else(|| Error::invalid("tokenizer.json", "a list of pairs", "none"))?;
    let mut pairs = HashMap::with_capacity(list.len());
    let number = |piece: &str| pieces.get(piece).copied().ok_or_else(|| missing(piece));
    for (rank, entry) in list.iter().enumerate() {
        let wrong = || Error::invalid("a pair of a vocabulary", "two pieces", entry);
        let (left, right) = match (entry.as_str(), entry.as_array().map(Vec::as_slice)) {
            (Some(text), _) => text.split_once(' ').filter(|(_, right)| !right.contains(' ')).ok_or_else(wrong)?,
            (_, Some([left, right])) => (left.as_str().ok_or_else(wrong)?, right.as_str().ok_or_else(wrong)?),
            _ => return Err(wrong()),
        };
        let made = number(&format!("{left}{}", right.strip_prefix(prefix).unwrap_or(right)))?;
        let rank = u32::try_from(rank).map_err(|_| wrong())?;
        pairs.entry((number(left)?, number(right)?)).or_insert((rank, made));
    }
    Ok(pairs)
}

/// The kind of the file's model.
pub(super) fn kind(model: &Json) -> Result<String> {
    match (model["type"].as_str(), model["merges"].is_array()) {
        (Some(kind), _) => Ok(kind.to_owned()),
        // Old files omit the kind, but only BPE has pairs, and only WordPiece a prefix for pieces
        // inside words.
        (None, true) => Ok("BPE".to_owned()),
        (None, false) if model["continuing_subword_prefix"].is_string() => Ok("WordPiece".to_owned()),
        (None, false) => text_of(model, "type"),
    }
}
