//! Checks that every op of the list has a case, or a reason to have none.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::path::Path;

use panoply::backend::Op;

/// The ops without a case of their own, by reason.
const WITHOUT: [(&str, &[&str]); 8] = [
    ("has the kernels that the cases of Sort measure", &["ArgSort", "SortPairs"]),
    ("is measured inside training steps", &["Conv2dBackwardInput", "Conv2dBackwardWeight", "Gather", "Pool2d"]),
    ("runs code of the caller, whose speed is the caller's", &["Kernel"]),
    ("is measured inside the chains of the graph domain, which fuse into it", &["RowMap"]),
    (
        "has the kernels that the cases of Hash, ErasureEncode, Fir and Iir measure",
        &["ErasureRebuild", "Hkdf", "Hmac", "StreamFilter"],
    ),
    ("makes an object, and computes nothing", &["StartFilter"]),
    (
        "is made of the transforms that the cases of Fft measure",
        &["Channelize", "Dct", "Fft2", "Hilbert", "Istft", "Psd", "Stft"],
    ),
    (
        "has no speed target so far",
        &[
            "Adapt",
            "ColorConvert",
            "Convolve2",
            "DemodulateWave",
            "FindPeaks",
            "Interleave",
            "Mix",
            "ModulateWave",
            "Normalize",
            "ReadSamples",
            "Scramble",
            "Track",
        ],
    ),
];

/// A case names the type of its op as a path, as in `Sort::new`.
#[test]
fn every_op_has_a_case_or_a_reason_to_have_none() {
    let text = code_below(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bench/cases"));
    let is_listed = |op: &str| WITHOUT.iter().any(|(_, ops)| ops.contains(&op));
    let missing: Vec<_> = Op::TYPES.iter().filter(|op| !is_listed(op) && !has_path(&text, op)).collect();
    assert!(missing.is_empty(), "no file of bench/cases names {missing:?}, and complete.rs has no reason");
    for (reason, ops) in WITHOUT {
        for op in ops {
            assert!(Op::TYPES.contains(op), "{op} is no op of the list");
            assert!(!has_path(&text, op), "a case has the op {op}, which is listed because it {reason}");
        }
    }
}

#[test]
fn a_type_is_not_found_inside_a_longer_name() {
    assert!(has_path("place.repeat(prelude::Sort::new())", "Sort"));
    assert!(!has_path("ArgSort::new() + SortPairs::new() + Sort", "Sort"));
}

/// Whether code has a path through a type.
fn has_path(code: &str, name: &str) -> bool {
    let path = format!("{name}::");
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    code.match_indices(&path).any(|(at, _)| !code[..at].ends_with(is_word))
}

/// The lines of all files below a folder, without those that are comments.
fn code_below(folder: &Path) -> String {
    let mut code = String::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            code += &code_below(&path);
        } else if !path.ends_with("complete.rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            code.extend(
                text.lines().filter(|line| !line.trim_start().starts_with("//")).map(|line| format!("{line}\n")),
            );
        }
    }
    code
}
