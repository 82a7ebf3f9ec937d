//! Entry points for fuzz targets and tests of mutated files. They call the readers of all outside
//! input.

use crate::picture::Picture;
use crate::text::Tokenizer;

/// Decodes a picture. Returns whether that succeeded.
pub fn picture(bytes: &[u8]) -> bool {
    Picture::decode(bytes).is_ok()
}

/// Reads a vocabulary in each format and encodes the same text with it. Returns whether one format
/// succeeded.
pub fn vocabulary(text: &str) -> bool {
    let known = [Tokenizer::from_lines(text), Tokenizer::from_json(text)];
    known.into_iter().flatten().any(|tokenizer| tokenizer.encode(&[text], 64).is_ok())
}
