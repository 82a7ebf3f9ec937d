//! Published vectors on the CPU's functions.

use panoply_conformance::vectors;
use panoply_core::{HostBufferMut, Op, Support};
use panoply_crypto::{OneThread, State};

#[test]
fn every_published_vector_gives_what_it_must() {
    let mut state = State::default();
    let mut run = |op: Op| match op {
        Op::Crypto(op) => panoply_crypto::run(&op, &mut state, &OneThread, &mut HostBufferMut::zeroed),
        op => panic!("{op:?}"),
    };
    let summary = vectors::check(&|_| Support::Yes, &mut run);
    println!("{summary}");
    assert!(summary.failed.is_empty() && summary.unsupported.is_empty(), "{summary}");
    assert_eq!(summary.passed, 5342, "every vector of every file");
}
