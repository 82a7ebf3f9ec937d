//! `tokenizer.json`: the parts of a file that decide a text's numbers.

use std::collections::HashMap;

use super::bpe::{self, Bpe};
use super::json::{Json, known, text_of};
use super::split::{Normal, PreTokenizer};
use super::unigram::Unigram;
use super::wordpiece::WordPiece;
use super::{AddedPieces, AddedToken, Model, Tokenizer};
use crate::error::{Error, Result};

/// The most pieces that a file adds to its vocabulary, and the most bytes of one.
const ADDED_MAX: usize = 1 << 16;
const ADDED_BYTES_MAX: usize = 256;
/// Candidates for the padding piece if a file does not state it. The first one in the vocabulary is
/// used.
const PADDINGS: [&str; 5] = ["[PAD]", "<pad>", "<|pad|>", "<|endoftext|>", "</s>"];

/// Reads a whole file.
pub(super) fn read(text: &str) -> Result<Tokenizer> {
    let file: Json = serde_json::from_str(text).map_err(|cause| Error::invalid("tokenizer.json", "JSON", cause))?;
    let model = match bpe::kind(&file["model"])?.as_str() {
        "BPE" => Model::Bpe(Bpe::read(&file["model"])?),
        "WordPiece" => Model::WordPiece(WordPiece::read(&file["model"])?),
        "Unigram" => Model::Unigram(Unigram::read(&file["model"])?),
        kind => {
            let known = "BPE, Unigram and WordPiece are known";
            return Err(Error::unsupported(format!("vocabularies of the kind {kind}; {known}")));
        }
    };
    let added = added(&file["added_tokens"])?;
    let number = |piece: &str| added.by_text.get(piece).map(|added| added.number);
    let number = |piece: &str| number(piece).or_else(|| model.number(piece));
    let (mut before, mut after) = (Vec::new(), Vec::new());
    around(&file["post_processor"], &number, &mut before, &mut after)?;
    let padding = file["padding"]["pad_id"].as_i64().or_else(|| PADDINGS.iter().find_map(|piece| number(piece)));
    let padding = padding.unwrap_or(0);
    let (normal, split) = (Normal::read(&file["normalizer"])?, PreTokenizer::read(&file["pre_tokenizer"])?);
    // A WordPiece vocabulary splits at spaces and punctuation by default.
    let split = match (&model, split.is_empty()) {
        (Model::WordPiece(_), true) => vec![PreTokenizer::Bert],
        _ => split,
    };
    if let (Model::WordPiece(_), true) = (&model, file["post_processor"].is_null()) {
        let own = |piece: &'static str| number(piece).ok_or_else(|| super::missing(piece));
        (before, after) = (vec![own("[CLS]")?], vec![own("[SEP]")?]);
    }
    Ok(Tokenizer { model, normal, split, added, before, after, padding })
}

/// Reads the pieces that are searched in a text before all other steps.
fn added(json: &Json) -> Result<AddedPieces> {
    let list = json.as_array().map(Vec::as_slice).unwrap_or_default();
    if list.len() > ADDED_MAX {
        let (what, limit) = ("the pieces that a vocabulary adds", ADDED_MAX as u64);
        return Err(Error::Limit { what, limit, got: list.len() as u64 });
    }
    let piece = |json: &Json| {
        let number = json["id"].as_i64().ok_or_else(|| Error::invalid("an added piece", "a number", &json["id"]))?;
        let (text, flag) = (text_of(json, "content")?, |key: &str| json[key].as_bool().unwrap_or(false));
        if text.is_empty() || text.len() > ADDED_BYTES_MAX {
            let (what, limit) = ("the bytes of an added piece", ADDED_BYTES_MAX as u64);
            return Err(Error::Limit { what, limit, got: text.len() as u64 });
        }
        if flag("single_word") {
            return Err(Error::unsupported(format!("the added piece {text:?}, which counts as a whole word alone")));
        }
        Ok((text, AddedToken { number, strips_left: flag("lstrip"), strips_right: flag("rstrip") }))
    };
    Ok(AddedPieces::new(list.iter().map(piece).collect::<Result<HashMap<String, AddedToken>>>()?))
}

/// Reads the pieces that come before and after a text.
fn around(
    json: &Json,
    number: &dyn Fn(&str) -> Option<i64>,
    before: &mut Vec<i64>,
    after: &mut Vec<i64>,
) -> Result<()> {
    if json.is_null() {
        return Ok(());
    }
    let named = |piece: &Json| {
        let text = piece.as_str().unwrap_or_default();
        number(text).ok_or_else(|| Error::invalid("a vocabulary", format!("the piece {text:?}"), "none"))
    };
    match known(json)? {
        "ByteLevel" => {}
        "Sequence" => {
            for inner in json["processors"].as_array().into_iter().flatten() {
                if known(inner)? == "Sequence" {
                    return Err(Error::unsupported("a post-processor of lists within lists"));
                }
                around(inner, number, before, after)?;
            }
        }
        "BertProcessing" | "RobertaProcessing" => {
            before.push(named(&json["cls"][0])?);
            after.push(named(&json["sep"][0])?);
        }
        "TemplateProcessing" => {
            let mut is_behind = false;
            for part in json["single"].as_array().into_iter().flatten() {
                let special = &part["SpecialToken"]["id"];
                match (special.as_str(), part["Sequence"].is_object()) {
                    (_, true) => is_behind = true,
                    (Some(name), _) => {
                        let ids = json["special_tokens"][name]["ids"].as_array().map(Vec::as_slice);
                        let ids = ids.unwrap_or_default().iter().filter_map(Json::as_i64).collect::<Vec<i64>>();
                        let ids = if ids.is_empty() { vec![named(special)?] } else { ids };
                        if is_behind { after.extend(ids) } else { before.extend(ids) }
                    }
                    _ => return Err(Error::invalid("tokenizer.json", "a part of a template", part)),
                }
            }
        }
        other => return Err(Error::unsupported(format!("the post-processor {other}"))),
    }
    Ok(())
}
