//! Pictures and vocabularies with bytes changed, cut, repeated and joined. Each is read or refused.
//! Nothing panics, hangs or takes much memory. `PANOPLY_FUZZ_MUTATIONS` sets the number of
//! mutations of each file.
#![allow(clippy::unwrap_used)] // A failed unwrap fails the test at its line.

use crate::mutated::{Numbers, mutated, mutations};
use panoply_inputs::fuzzing;
use panoply_inputs::picture::Picture;

#[test]
fn pictures() {
    let picture = Picture::from_rgb(4, 4, vec![7; 48]).unwrap();
    let pictures = [picture.encode(false).unwrap(), picture.encode(true).unwrap()];
    assert!(pictures.iter().all(|picture| fuzzing::picture(picture)));
    let mut numbers = Numbers(0x2545_f491_4f6c_dd1d);
    for turn in 0..mutations() / 10 {
        let other = &pictures[turn % pictures.len()];
        pictures.iter().for_each(|picture| {
            fuzzing::picture(&mutated(picture, other, &mut numbers));
        });
    }
}

#[test]
fn vocabularies() {
    let vocabulary = b"[PAD]\n[UNK]\n[CLS]\n[SEP]\nun\n##aff\n##able\nhello".to_vec();
    let files = ["byte-level", "clip", "llama3", "marked", "t5", "xlm-r"].map(|kind| {
        let path = format!("{}/tests/tokenizers/{kind}.json", env!("CARGO_MANIFEST_DIR"));
        std::fs::read(path).unwrap()
    });
    assert!(files.iter().all(|file| fuzzing::vocabulary(std::str::from_utf8(file).unwrap())));
    let mut numbers = Numbers(0x2545_f491_4f6c_dd1d);
    for turn in 0..mutations() / 10 {
        let file = &files[turn % files.len()];
        fuzzing::vocabulary(&String::from_utf8_lossy(&mutated(file, file, &mut numbers)));
    }
    for _ in 0..mutations() {
        fuzzing::vocabulary(&String::from_utf8_lossy(&mutated(&vocabulary, &vocabulary, &mut numbers)));
    }
}
