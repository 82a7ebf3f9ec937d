//! `panoply infer` and `panoply embed`: models from ONNX files.

pub mod embed;
pub mod infer;

use std::path::Path;

use anyhow::Context;
use panoply::ml::picture::Picture;
use panoply::ml::text::Tokenizer;

use crate::failure::Failure;

/// The largest file of a picture or an array.
const FILE_BYTES_MAX: u64 = 1 << 32;

/// A file's bytes.
fn bytes_of(path: &Path) -> Result<Vec<u8>, Failure> {
    let unreadable = || format!("{} cannot be read", path.display());
    let size = std::fs::metadata(path).with_context(unreadable)?.len();
    if size > FILE_BYTES_MAX {
        return Err(Failure::Run(anyhow::anyhow!("{} is larger than {FILE_BYTES_MAX} bytes", path.display())));
    }
    Ok(std::fs::read(path).with_context(unreadable)?)
}

fn picture_of(path: &Path) -> Result<Picture, Failure> {
    let picture = Picture::decode(&bytes_of(path)?);
    Ok(picture.with_context(|| format!("{} cannot be decoded", path.display()))?)
}

fn tokenizer_of(model: &Path, vocabulary: Option<&Path>) -> Result<Tokenizer, Failure> {
    let tokenizer = match vocabulary {
        Some(path) => Tokenizer::load(path),
        None => Tokenizer::beside(model),
    };
    Ok(tokenizer.context("text needs a vocabulary; --vocabulary names one")?)
}
