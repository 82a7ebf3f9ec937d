//! The reference against published vectors of what it has: all but signatures and zstd.

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
