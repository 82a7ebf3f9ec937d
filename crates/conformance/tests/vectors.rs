//! The reference against the published vectors of its algorithms: all but signatures and zstd.

use std::collections::BTreeSet;

use panoply_conformance::reference::reference;
use panoply_conformance::vectors;
use panoply_core::op::crypto::{CryptoOp, Format, Purpose};
use panoply_core::{Op, Support};

#[test]
fn the_reference_agrees_with_published_vectors() {
    let has = |op: &Op| match op {
        Op::Crypto(CryptoOp::Verify(op)) if matches!(op.key().purpose(), Purpose::Verify(_)) => false,
        Op::Crypto(CryptoOp::Decompress(op)) => op.format != Format::Zstd,
        Op::Crypto(CryptoOp::Sign(_)) => false,
        _ => true,
    };
    let supports = |op: &Op| if has(op) { Support::Yes } else { Support::No("not in the reference".to_owned()) };
    let summary = vectors::check(&supports, &mut |op| reference(&op));
    println!("{summary}");
    assert!(summary.failed.is_empty(), "{summary}");
    assert!(summary.passed > 1500, "{summary}");
}

/// Every file of Wycheproof is run, or listed with the reason why not. The files listed as run are
/// in the vectors here.
#[test]
fn every_file_of_wycheproof_is_run_or_named_with_a_reason() {
    const FILES: [(&str, &str); 5] = [
        ("aead", include_str!("../vectors/aead.txt")),
        ("cbc", include_str!("../vectors/cbc.txt")),
        ("hmac", include_str!("../vectors/hmac.txt")),
        ("hkdf", include_str!("../vectors/hkdf.txt")),
        ("signature", include_str!("../vectors/signature.txt")),
    ];
    let mut here = BTreeSet::new();
    for (file, text) in FILES {
        let algorithms = text.lines().filter_map(|line| line.strip_prefix('[')?.split(']').next());
        here.extend(algorithms.map(|algorithm| format!("{file}/{algorithm}")));
    }
    let (mut named, mut run, mut out) = (BTreeSet::new(), BTreeSet::new(), 0);
    for line in include_str!("../vectors/wycheproof_files.txt").lines() {
        let mut words = line.splitn(3, ' ');
        let (Some(name), Some(verdict), Some(rest)) = (words.next(), words.next(), words.next()) else {
            panic!("{line}: expected a name, run or out, and what it is run as or why not");
        };
        assert!(named.insert(name), "{name} is named twice");
        match verdict {
            "run" => run.extend(rest.split(' ').map(str::to_owned)),
            "out" => {
                assert!(rest.len() > 10, "{line}: no reason");
                println!("left out: {name}: {rest}");
                out += 1;
            }
            _ => panic!("{line}"),
        }
    }
    assert_eq!(run, here, "what is said to be run, and what is here");
    println!("{} files, {out} left out", named.len());
    assert_eq!((named.len(), named.len() - out), (343, 29), "the files of Wycheproof, and those of them that are run");
}
