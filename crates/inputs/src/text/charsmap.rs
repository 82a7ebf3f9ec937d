//! SentencePiece's normalisation of characters before it cuts text: a table of replacements, in the
//! compiled form of its models.
//!
//! The table holds the size of a trie in bytes, the trie (32 bits per node, in the layout of
//! Darts), and the replacements, each terminated by a zero. It is applied in the same way as in the
//! package `tokenizers`, whose numbers models are used with: to a whole grapheme cluster of up to
//! five bytes if the table has a prefix of the cluster, else to each of the cluster's characters.

use unicode_segmentation::UnicodeSegmentation;

use super::json::Json;
use crate::error::{Error, Result};

/// The longest cluster, in bytes, that is looked up as a whole.
const CLUSTER_BYTES_MAX: usize = 5;
/// The longest replacement in bytes. It bounds the growth of a text per character.
const REPLACEMENT_BYTES_MAX: usize = 512;

/// A table of replacements.
#[derive(Clone, Debug)]
pub(super) struct CharsMap {
    nodes: Vec<u32>,
    texts: String,
}

impl CharsMap {
    /// Reads the normalizer `Precompiled` of a `tokenizer.json`. Its table is encoded in base 64.
    pub fn read(json: &Json) -> Result<CharsMap> {
        let wrong = |got: &str| Error::invalid("a table of characters", "a trie and texts, in base 64", got);
        let text = json["precompiled_charsmap"].as_str().ok_or_else(|| wrong("none"))?;
        let bytes = from_base64(text).ok_or_else(|| wrong("another text"))?;
        let (size, rest) = bytes.split_first_chunk::<4>().ok_or_else(|| wrong("less than a size"))?;
        let size = u32::from_le_bytes(*size) as usize;
        if !size.is_multiple_of(4) || size > rest.len() {
            return Err(wrong(&format!("a trie of {size} bytes among {}", rest.len())));
        }
        let (trie, texts) = rest.split_at(size);
        let nodes = trie.as_chunks::<4>().0.iter().map(|node| u32::from_le_bytes(*node)).collect();
        let texts = String::from_utf8(texts.to_vec()).map_err(|_| wrong("texts that are no UTF-8"))?;
        match texts.split('\0').map(str::len).max().unwrap_or(0) {
            0..=REPLACEMENT_BYTES_MAX => Ok(CharsMap { nodes, texts }),
            got => Err(Error::Limit {
                what: "a replacement's bytes",
                limit: REPLACEMENT_BYTES_MAX as u64,
                got: got as u64,
            }),
        }
    }

    /// A text with all replacements of the table applied.
    pub fn apply(&self, text: &str) -> String {
        let mut made = String::with_capacity(text.len());
        for cluster in text.graphemes(true) {
            let whole = (cluster.len() <= CLUSTER_BYTES_MAX).then(|| self.replacement(cluster)).flatten();
            if let Some(text) = whole {
                made.push_str(text);
                continue;
            }
            for (at, c) in cluster.char_indices() {
                match self.replacement(&cluster[at..at + c.len_utf8()]) {
                    Some(text) => made.push_str(text),
                    None => made.push(c),
                }
            }
        }
        made
    }

    /// The replacement of the shortest key that is a prefix of `text`.
    fn replacement(&self, text: &str) -> Option<&str> {
        let node = |at: u64| self.nodes.get(usize::try_from(at).ok()?).copied().map(u64::from);
        let offset = |node: u64| (node >> 10) << ((node & (1 << 9)) >> 6);
        let mut at = offset(node(0)?);
        for byte in text.bytes().take_while(|byte| *byte != 0).map(u64::from) {
            at ^= byte;
            let here = node(at)?;
            if here & (1 << 31 | 0xff) != byte {
                return None;
            }
            at ^= offset(here);
            if here & (1 << 8) != 0 {
                let start = usize::try_from(node(at)? & ((1 << 31) - 1)).ok()?;
                return self.texts.get(start..)?.split('\0').next();
            }
        }
        None
    }
}

/// Decodes base 64.
fn from_base64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=').as_bytes();
    if digits.len() % 4 == 1 || text.len() - digits.len() > 2 {
        return None;
    }
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    for group in digits.chunks(4) {
        let mut bits = 0_u32;
        for place in 0..4 {
            bits = bits << 6 | u32::from(group.get(place).map_or(Some(0), |byte| digit(*byte))?);
        }
        bytes.extend_from_slice(&bits.to_be_bytes()[1..group.len()]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_64_is_read() {
        let read = |text: &str| from_base64(text).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        assert_eq!(
            ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg"].map(read),
            ["", "f", "fo", "foo", "foob"].map(|text| Some(text.to_owned()))
        );
        assert_eq!(["Z", "Zm9vY", "Zg===", "Z g=", "Zé=="].map(read), [None, None, None, None, None]);
        assert_eq!(from_base64("+/8="), Some(vec![0xfb, 0xff]));
    }

    #[test]
    fn tables_that_are_cut_or_lead_nowhere_do_no_harm() {
        let read = |text: &str| CharsMap::read(&serde_json::json!({ "precompiled_charsmap": text }));
        assert!(read("").is_err() && read("AAAA").is_err() && read("CAAAAAA=").is_err());
        // A trie of one node whose offset points beyond its end.
        let lost = read("BAAAAP///38=").unwrap();
        assert_eq!(lost.apply("abc"), "abc");
        assert_eq!(read("AAAAAA==").unwrap().apply("é"), "é");
    }
}
