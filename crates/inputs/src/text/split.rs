//! Text before it is cut into pieces: normalised, and split into words.

use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

use super::categories::{SPACING, is_in};
use super::charsmap::CharsMap;
use super::json::{Json, known, text_of};
use super::pattern::Pattern;
use super::wordpiece;
use crate::error::{Error, Result};

/// The default pattern of byte-level vocabularies.
pub(super) const BYTE_LEVEL_PATTERN: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// The most consecutive steps of a file.
const STEPS_MAX: usize = 64;

/// One step of normalisation.
#[derive(Clone, Debug)]
pub(super) enum Normal {
    Nfc,
    Nfd,
    Nfkc,
    Nfkd,
    Lowercase,
    StripAccents,
    Strip {
        left: bool,
        right: bool,
    },
    Prepend(String),
    Replace(Pattern, String),
    CharsMap(CharsMap),
    /// SentencePiece's rule: control characters removed, all spaces plain.
    Nmt,
    Bert {
        cleans: bool,
        ideographs: bool,
        accents: bool,
        lower: bool,
    },
}

/// One step from text to words.
#[derive(Clone, Debug)]
pub(super) enum PreTokenizer {
    /// Bytes as printable characters, split by the pattern if there is one.
    Bytes {
        prefix: bool,
        pattern: Option<Pattern>,
    },
    /// Splits at a pattern. Matches or the text between them may be dropped.
    Pattern {
        pattern: Pattern,
        keeps_matches: bool,
        keeps_others: bool,
    },
    /// Replaces spaces by a mark that begins words.
    Marked {
        mark: char,
        prepend: Prepend,
        splits: bool,
    },
    Whitespace,
    /// Separates digits from other text, as runs or one by one.
    Digits {
        single: bool,
    },
    /// BERT's rule: splits at spaces and punctuation.
    Bert,
}

/// The words that a mark is prepended to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prepend {
    Always,
    First,
    Never,
}

fn flag(json: &Json, key: &str, usual: bool) -> bool {
    json[key].as_bool().unwrap_or(usual)
}

/// Reads a pattern in a file's form: `{"String": …}` or `{"Regex": …}`.
fn pattern(json: &Json) -> Result<Pattern> {
    match (json["String"].as_str(), json["Regex"].as_str()) {
        (Some(text), _) if !text.is_empty() => Ok(Pattern::literal(text)),
        (_, Some(text)) => Pattern::read(text),
        _ => Err(Error::invalid("tokenizer.json", "a pattern", json)),
    }
}

/// Reads the steps of a list, or a single step.
fn steps<T>(json: &Json, key: &str, step: &mut dyn FnMut(&Json) -> Result<T>, all: &mut Vec<T>) -> Result<()> {
    if json.is_null() {
        return Ok(());
    }
    if all.len() >= STEPS_MAX {
        let (what, limit) = ("the steps of a tokenizer", STEPS_MAX as u64);
        return Err(Error::Limit { what, limit, got: limit + 1 });
    }
    match json["type"].as_str() {
        Some("Sequence") => {
            let inner = json[key].as_array().ok_or_else(|| Error::invalid("tokenizer.json", "a list", &json[key]))?;
            inner.iter().try_for_each(|inner| steps(inner, key, step, all))
        }
        _ => {
            all.push(step(json)?);
            Ok(())
        }
    }
}

impl Normal {
    pub fn read(json: &Json) -> Result<Vec<Normal>> {
        let mut all = Vec::new();
        steps(json, "normalizers", &mut Normal::step, &mut all)?;
        Ok(all)
    }

    fn step(json: &Json) -> Result<Normal> {
        Ok(match known(json)? {
            "NFC" => Normal::Nfc,
            "NFD" => Normal::Nfd,
            "NFKC" => Normal::Nfkc,
            "NFKD" => Normal::Nfkd,
            "Lowercase" => Normal::Lowercase,
            "StripAccents" => Normal::StripAccents,
            "Strip" => Normal::Strip { left: flag(json, "strip_left", true), right: flag(json, "strip_right", true) },
            "Prepend" => Normal::Prepend(text_of(json, "prepend")?),
            "Replace" => Normal::Replace(pattern(&json["pattern"])?, text_of(json, "content")?),
            "Precompiled" => Normal::CharsMap(CharsMap::read(json)?),
            "Nmt" => Normal::Nmt,
            "BertNormalizer" => {
                let lower = flag(json, "lowercase", true);
                Normal::Bert {
                    cleans: flag(json, "clean_text", true),
                    ideographs: flag(json, "handle_chinese_chars", true),
                    accents: flag(json, "strip_accents", lower),
                    lower,
                }
            }
            other => return Err(Error::unsupported(format!("the normalizer {other}"))),
        })
    }

    pub fn apply(&self, text: String) -> Result<String> {
        Ok(match self {
            Normal::Nfc => text.nfc().collect(),
            Normal::Nfd => text.nfd().collect(),
            Normal::Nfkc => text.nfkc().collect(),
            Normal::Nfkd => text.nfkd().collect(),
            Normal::Lowercase => text.chars().flat_map(char::to_lowercase).collect(),
            Normal::StripAccents => text.chars().filter(|c| !is_combining_mark(*c)).collect(),
            Normal::Strip { left, right } => {
                let text = if *left { text.trim_start() } else { &text };
                if *right { text.trim_end().to_owned() } else { text.to_owned() }
            }
            Normal::Prepend(prefix) if !text.is_empty() => format!("{prefix}{text}"),
            Normal::Prepend(_) => text,
            Normal::Replace(pattern, content) => {
                let pieces = pattern.cut(&text)?;
                pieces.into_iter().map(|(piece, found)| if found { content.clone() } else { piece }).collect()
            }
            Normal::CharsMap(map) => map.apply(&text),
            Normal::Nmt => text.chars().filter(|c| !is_nmt_control(*c)).map(nmt_space).collect(),
            Normal::Bert { cleans, ideographs, accents, lower } => {
                let text = if *cleans { wordpiece::cleaned(&text) } else { text };
                let text = if *ideographs { wordpiece::spaced(&text) } else { text };
                let text = if *accents {
                    text.nfd().filter(|c| !is_combining_mark(*c) || is_in(SPACING, *c)).collect()
                } else {
                    text
                };
                if *lower { text.chars().flat_map(char::to_lowercase).collect() } else { text }
            }
        })
    }
}

impl PreTokenizer {
    pub fn read(json: &Json) -> Result<Vec<PreTokenizer>> {
        let mut all = Vec::new();
        steps(json, "pretokenizers", &mut PreTokenizer::step, &mut all)?;
        Ok(all)
    }

    fn step(json: &Json) -> Result<PreTokenizer> {
        Ok(match known(json)? {
            "ByteLevel" => {
                let pattern = flag(json, "use_regex", true).then(|| Pattern::read(BYTE_LEVEL_PATTERN)).transpose()?;
                PreTokenizer::Bytes { prefix: flag(json, "add_prefix_space", true), pattern }
            }
            "Split" => {
                let (matches, others) = match text_of(json, "behavior")?.as_str() {
                    "Isolated" => (true, true),
                    "Removed" if flag(json, "invert", false) => (true, false),
                    "Removed" => (false, true),
                    other => return Err(Error::unsupported(format!("a split that is {other}"))),
                };
                PreTokenizer::Pattern {
                    pattern: pattern(&json["pattern"])?,
                    keeps_matches: matches,
                    keeps_others: others,
                }
            }
            "Metaspace" => PreTokenizer::marked(json)?,
            "WhitespaceSplit" => PreTokenizer::Whitespace,
            "Digits" => PreTokenizer::Digits { single: flag(json, "individual_digits", false) },
            "BertPreTokenizer" => PreTokenizer::Bert,
            other => return Err(Error::unsupported(format!("the pre-tokenizer {other}"))),
        })
    }

    fn marked(json: &Json) -> Result<PreTokenizer> {
        let mark = json["replacement"].as_str().unwrap_or("▁").chars().next().unwrap_or('▁');
        let prepend = match json["prepend_scheme"].as_str() {
            Some("always") => Prepend::Always,
            Some("first") => Prepend::First,
            Some("never") => Prepend::Never,
            Some(other) => return Err(Error::unsupported(format!("a prefix {other:?}"))),
            None if flag(json, "add_prefix_space", true) => Prepend::Always,
            None => Prepend::Never,
        };
        Ok(PreTokenizer::Marked { mark, prepend, splits: flag(json, "split", true) })
    }

    /// Splits words further. `is_first` says whether the first word begins the text.
    pub fn apply(&self, words: Vec<String>, is_first: bool) -> Result<Vec<String>> {
        let mut all = Vec::with_capacity(words.len());
        for (place, word) in words.into_iter().enumerate() {
            self.cut(word, is_first && place == 0, &mut all)?;
        }
        all.retain(|word| !word.is_empty());
        Ok(all)
    }

    fn cut(&self, word: String, is_first: bool, all: &mut Vec<String>) -> Result<()> {
        match self {
            PreTokenizer::Bytes { prefix, pattern } => {
                let word = if *prefix && !word.starts_with(' ') { format!(" {word}") } else { word };
                match pattern {
                    Some(pattern) => all.extend(pattern.cut(&word)?.iter().map(|(piece, _)| printable(piece))),
                    None => all.push(printable(&word)),
                }
            }
            PreTokenizer::Pattern { pattern, keeps_matches, keeps_others } => {
                let kept = |found: &bool| if *found { *keeps_matches } else { *keeps_others };
                all.extend(pattern.cut(&word)?.into_iter().filter(|(_, found)| kept(found)).map(|(piece, _)| piece));
            }
            PreTokenizer::Marked { mark, prepend, splits } => {
                let mut word = word.replace(' ', mark.encode_utf8(&mut [0; 4]));
                let wanted = *prepend == Prepend::Always || (*prepend == Prepend::First && is_first);
                if wanted && !word.starts_with(*mark) {
                    word.insert(0, *mark);
                }
                match splits {
                    true => all.extend(before_marks(&word, *mark)),
                    false => all.push(word),
                }
            }
            PreTokenizer::Whitespace => all.extend(word.split_whitespace().map(str::to_owned)),
            PreTokenizer::Digits { single } => digits(&word, *single, all),
            PreTokenizer::Bert => all.extend(wordpiece::words(&word, false)),
        }
        Ok(())
    }
}

/// The control characters that SentencePiece removes.
fn is_nmt_control(c: char) -> bool {
    matches!(c, '\u{1}'..='\u{8}' | '\u{b}' | '\u{e}'..='\u{1f}' | '\u{7f}' | '\u{8f}' | '\u{9f}')
}

/// Replaces a character that SentencePiece treats as a space by a plain space.
fn nmt_space(c: char) -> char {
    match c {
        '\t'
        | '\n'
        | '\u{c}'
        | '\r'
        | '\u{1680}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2028}'
        | '\u{2029}'
        | '\u{2581}'
        | '\u{feff}'
        | '\u{fffd}' => ' ',
        other => other,
    }
}

/// Splits a word before each mark.
fn before_marks(word: &str, mark: char) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    for c in word.chars() {
        match parts.last_mut() {
            Some(part) if c != mark => part.push(c),
            _ => parts.push(c.to_string()),
        }
    }
    parts
}

fn digits(word: &str, single: bool, all: &mut Vec<String>) {
    let mut last = None;
    for c in word.chars() {
        let is_number = c.is_numeric();
        let joins = last == Some(is_number) && !(single && is_number);
        match all.last_mut() {
            Some(part) if joins => part.push(c),
            _ => all.push(c.to_string()),
        }
        last = Some(is_number);
    }
}

/// Each byte of a text as a printable character, by the mapping of byte-level vocabularies.
fn printable(text: &str) -> String {
    text.bytes().map(byte_char).collect()
}

/// Bytes that are printable in Latin-1 stand for themselves. The others map to characters from 256
/// on.
pub(super) fn byte_char(byte: u8) -> char {
    let code = u32::from(byte);
    let code = match byte {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => code,
        0..=0x20 => 256 + code,
        0x7f..=0xa0 => 256 + 33 + code - 0x7f,
        0xad => 256 + 67,
    };
    char::from_u32(code).unwrap_or('?')
}
