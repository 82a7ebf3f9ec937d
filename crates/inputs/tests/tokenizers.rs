//! Vocabularies of every supported kind, compared with the numbers from the package `tokenizers`.
//! `tokenizers/make.py` writes both; `PANOPLY_TOKENIZER_TEXTS` names a folder with more texts.
#![allow(clippy::unwrap_used)] // A failed unwrap fails the test at its line.

use std::path::Path;

use panoply_inputs::text::Tokenizer;
use serde_json::Value;

const KINDS: [&str; 10] = ["albert", "bert", "byte-level", "clip", "llama", "llama3", "marked", "nmt", "t5", "xlm-r"];

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tokenizers"))
}

/// The number of texts of a folder's file that agree, or a description of the first that differs.
fn agreeing(kind: &str, folder: &Path) -> Result<usize, String> {
    let tokenizer = Tokenizer::load(folder.join(format!("{kind}.json"))).unwrap();
    let answers = std::fs::read(folder.join(format!("{kind}.answers.json"))).unwrap();
    let answers: Vec<Value> = serde_json::from_slice(&answers).unwrap();
    for row in &answers {
        let expected: Vec<i64> = row["ids"].as_array().unwrap().iter().map(|id| id.as_i64().unwrap()).collect();
        let text = row["text"].as_str().unwrap();
        let got = tokenizer.encode(&[text], 1 << 20).unwrap().ids;
        if got != expected {
            return Err(format!("{kind}: {text:?} is {got:?}, expected {expected:?}"));
        }
    }
    Ok(answers.len())
}

#[test]
fn texts_have_the_numbers_that_the_reference_gives_them() {
    for kind in KINDS {
        let agreed = agreeing(kind, folder()).unwrap();
        assert!(agreed > 10, "{kind}");
    }
}

#[test]
fn many_more_texts() {
    let Some(texts) = std::env::var_os("PANOPLY_TOKENIZER_TEXTS") else {
        println!("skipped: PANOPLY_TOKENIZER_TEXTS names no folder of texts");
        return;
    };
    let mut wrong = Vec::new();
    for kind in KINDS {
        match agreeing(kind, Path::new(&texts)) {
            Ok(agreed) => println!("{kind}: {agreed} texts agree"),
            Err(reason) => wrong.push(reason),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn rows_are_filled_up_and_cut() {
    let tokenizer = Tokenizer::load(folder().join("byte-level.json")).unwrap();
    let tokens = tokenizer.encode(&["Hello, world!", "a"], 64).unwrap();
    assert_eq!(tokens.ids[tokens.len..][..3].len() + tokens.mask[tokens.len + 3..].iter().sum::<i64>() as usize, 3);
    assert_eq!(tokens.ids[2 * tokens.len - 1], 1, "the padding that the file has");
    let cut = tokenizer.encode(&["Hello, world!"], 4).unwrap();
    assert_eq!((cut.ids.len(), cut.ids[0], cut.ids[3]), (4, 0, 2));
    assert!(tokenizer.encode(&["x"], 1).is_err());
}

/// A text of a megabyte without a space is one word. Joining its pairs, or computing its best
/// pieces, must not take quadratic time.
#[test]
fn long_words_take_no_longer_than_their_length() {
    for kind in ["llama", "xlm-r"] {
        let tokenizer = Tokenizer::load(folder().join(format!("{kind}.json"))).unwrap();
        let started = std::time::Instant::now();
        let tokens = tokenizer.encode(&["the".repeat(300_000)], 1 << 20).unwrap();
        assert!(tokens.len > 100_000);
        assert!(started.elapsed().as_secs() < 20, "{kind}: {:?}", started.elapsed());
    }
}

/// Without an unknown piece, unknown text is an error.
#[test]
fn a_text_that_has_no_numbers_is_an_error() {
    let tokenizer = Tokenizer::from_json(r#"{"model":{"type":"Unigram","vocab":[["a",-1.0],["b",-3.0],["ab",-1.5]]}}"#);
    let tokenizer = tokenizer.unwrap();
    assert_eq!(tokenizer.encode(&["aab"], 8).unwrap().ids, [0, 2]);
    assert!(tokenizer.encode(&["abc"], 8).is_err());
}

#[test]
fn files_that_contradict_themselves_are_errors() {
    let wrong = [
        r#"{"model":{"type":"BPE","vocab":{"a":0},"merges":["a b"]}}"#,
        r#"{"model":{"type":"BPE","vocab":{"a":0},"merges":["a"]}}"#,
        r#"{"model":{"type":"BPE","vocab":{"a":-1},"merges":[]}}"#,
        r#"{"model":{"type":"BPE","vocab":{"a":4294967296},"merges":[]}}"#,
        r#"{"model":{"type":"BPE","vocab":{},"merges":[],"unk_token":"?"}}"#,
        r#"{"model":{"type":"BPE","vocab":{},"merges":[],"dropout":0.1}}"#,
        r#"{"model":{"type":"BPE","vocab":{},"merges":[]},"post_processor":{"type":"RobertaProcessing","cls":["x",1]}}"#,
        r#"{"model":{"type":"BPE","vocab":{},"merges":[]},"added_tokens":[{"id":1,"content":""}]}"#,
        r#"{"model":{"type":"BPE","vocab":{},"merges":[]},"pre_tokenizer":{"type":"Split","pattern":{"Regex":"(a"},"behavior":"Isolated"}}"#,
        r#"{"model":{"type":"WordPiece","vocab":{"a":1}}}"#,
        r#"{"model":{"type":"Unigram"}}"#,
        r#"{"model":{"type":"Unigram","vocab":{"a":0}}}"#,
        r#"{"model":{"type":"Unigram","vocab":[["a"]]}}"#,
        r#"{"model":{"type":"Unigram","vocab":[["a",0.0]],"unk_id":1}}"#,
        r#"{"normalizer":{"type":"Precompiled","precompiled_charsmap":"?"},"model":{"type":"Unigram","vocab":[]}}"#,
        "[]",
        "{",
    ];
    for file in wrong {
        assert!(Tokenizer::from_json(file).is_err(), "{file}");
    }
}
