//! Unigram: the most probable way to cut a word into pieces.
//!
//! Every piece has a log-probability, and the score of a way is the sum over its pieces. The best
//! way to each position of a word is computed from the best ways to earlier positions (Viterbi), so
//! time grows linearly with the word's length.

use std::collections::HashMap;

use super::json::Json;
use crate::error::{Error, Result};

/// The longest piece in bytes. It bounds the search from each position.
const PIECE_BYTES_MAX: usize = 512;
/// The difference in log-probability between an unknown character and the least probable piece.
const UNKNOWN_PENALTY: f64 = 10.0;

/// A vocabulary of pieces with their log-probabilities.
#[derive(Clone, Debug)]
pub(super) struct Unigram {
    numbers: HashMap<String, u32>,
    /// Pieces sorted by their bytes, each with its number and log-probability.
    ordered: Vec<(String, u32, f64)>,
    len: usize,
    unknown: Option<u32>,
    unknown_score: f64,
    falls_back_to_bytes: bool,
}

/// The best way to a position: its score, the start of its last piece, and that piece.
#[derive(Clone, Copy)]
struct BestPath {
    score: f64,
    start: u32,
    piece: u32,
}

/// The `start` of a position that no piece has reached yet.
const UNREACHED: u32 = u32::MAX;

impl Unigram {
    /// Reads the model of a `tokenizer.json`.
    pub fn read(model: &Json) -> Result<Unigram> {
        let list = model["vocab"].as_array();
        let list = list.ok_or_else(|| Error::invalid("tokenizer.json", "a list of pieces", "none"))?;
        let mut scores = HashMap::with_capacity(list.len());
        let mut least = f64::INFINITY;
        for (number, entry) in list.iter().enumerate() {
            let wrong = || Error::invalid("a piece of a vocabulary", "a text and its likelihood", entry);
            let (Some(piece), Some(score)) = (entry[0].as_str(), entry[1].as_f64()) else { return Err(wrong()) };
            if piece.len() > PIECE_BYTES_MAX {
                let (what, limit) = ("the bytes of a piece", PIECE_BYTES_MAX as u64);
                return Err(Error::Limit { what, limit, got: piece.len() as u64 });
            }
            least = least.min(score);
            // Of equal pieces the last one wins.
            scores.insert(piece.to_owned(), (u32::try_from(number).map_err(|_| wrong())?, score));
        }
        let unknown = match model["unk_id"].as_u64() {
            Some(number) if number < list.len() as u64 => Some(number as u32),
            Some(number) => {
                return Err(Error::invalid("the number of the unknown piece", format!("below {}", list.len()), number));
            }
            None => None,
        };
        let numbers = scores.iter().map(|(piece, (number, _))| (piece.clone(), *number)).collect();
        let pieces = scores.into_iter().filter(|(piece, _)| !piece.is_empty());
        let mut ordered: Vec<_> = pieces.map(|(piece, (number, score))| (piece, number, score)).collect();
        ordered.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let falls_back_to_bytes = model["byte_fallback"].as_bool().unwrap_or(false);
        let unknown_score = least - UNKNOWN_PENALTY;
        Ok(Unigram { numbers, ordered, len: list.len(), unknown, unknown_score, falls_back_to_bytes })
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn number(&self, piece: &str) -> Option<i64> {
        self.numbers.get(piece).map(|number| i64::from(*number))
    }

    /// Appends the pieces of a word. Adjacent unknown characters become one piece.
    pub fn cut(&self, word: &str, row: &mut Vec<i64>) -> Result<()> {
        let steps = self.steps(word)?;
        let (mut parts, mut end) = (Vec::new(), word.len());
        let mut unknown_end = None;
        while end > 0 {
            let BestPath { start, piece, .. } = steps[end];
            let start = start as usize;
            if Some(piece) == self.unknown {
                unknown_end = unknown_end.or(Some(end));
            } else {
                parts.extend(unknown_end.take().map(|unknown_end| (end, unknown_end)));
                parts.push((start, end));
            }
            end = start;
        }
        parts.extend(unknown_end.map(|unknown_end| (0, unknown_end)));
        parts.iter().rev().try_for_each(|(start, end)| self.push(&word[*start..*end], row))
    }

    /// The best way to every byte position that begins a character.
    fn steps(&self, word: &str) -> Result<Vec<BestPath>> {
        let mut steps = vec![BestPath { score: 0.0, start: UNREACHED, piece: 0 }; word.len() + 1];
        for (start, c) in word.char_indices() {
            let (so_far, single) = (steps[start].score, start + c.len_utf8());
            let mut reach = |end: usize, piece: u32, score: f64| {
                let step = &mut steps[end];
                if step.start == UNREACHED || score > step.score {
                    *step = BestPath { score, start: start as u32, piece };
                }
            };
            let mut has_single = false;
            self.beginnings(&word.as_bytes()[start..], |len, piece, score| {
                has_single |= start + len == single;
                reach(start + len, piece, so_far + score);
            });
            if !has_single {
                reach(single, self.unknown.ok_or_else(|| no_unknown(c))?, so_far + self.unknown_score);
            }
        }
        Ok(steps)
    }

    /// Visits the pieces that are prefixes of `text`, the shortest first.
    fn beginnings(&self, text: &[u8], mut found: impl FnMut(usize, u32, f64)) {
        let mut fitting = self.ordered.as_slice();
        for (place, byte) in text.iter().enumerate() {
            let at = |piece: &str| piece.as_bytes().get(place).copied();
            let first = fitting.partition_point(|(piece, ..)| at(piece) < Some(*byte));
            fitting = &fitting[first..];
            fitting = &fitting[..fitting.partition_point(|(piece, ..)| at(piece) == Some(*byte))];
            match fitting.first() {
                Some((piece, number, score)) if piece.len() == place + 1 => found(place + 1, *number, *score),
                Some(_) => {}
                None => return,
            }
        }
    }

    /// Appends the number of a part, or those of its bytes, or the unknown piece.
    fn push(&self, part: &str, row: &mut Vec<i64>) -> Result<()> {
        if let Some(number) = self.number(part) {
            row.push(number);
            return Ok(());
        }
        let byte = |byte: u8| self.number(&format!("<0x{byte:02X}>"));
        let bytes = self.falls_back_to_bytes.then(|| part.bytes().map(byte).collect::<Option<Vec<i64>>>()).flatten();
        match (bytes, self.unknown) {
            (Some(bytes), _) => row.extend(bytes),
            (None, Some(unknown)) => row.push(i64::from(unknown)),
            (None, None) => return Err(no_unknown(part)),
        }
        Ok(())
    }
}

fn no_unknown(text: impl std::fmt::Debug) -> Error {
    Error::invalid("a text", "pieces of a vocabulary that has none for what is unknown", format!("{text:?}"))
}
