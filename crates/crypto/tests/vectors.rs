//! Published vectors on the CPU's functions.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use panoply_conformance::vectors;
use panoply_core::op::crypto::{CryptoOp, Messages, Verify};
use panoply_core::{Bytes, HostBufferMut, Op, Operation, Support, Value};
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

/// So many times the same signature is worth the lanes, which one alone is not.
const TIMES: usize = 17;

/// The same signatures again and again.
fn repeated(messages: &Messages) -> Vec<Bytes> {
    let slices = messages.slices().unwrap();
    (0..TIMES).flat_map(|_| slices.iter().map(|slice| Bytes::from_vec(slice.to_vec()))).collect()
}

#[test]
fn every_published_signature_gives_what_it_must_together_with_others() {
    let (mut state, mut repetitions) = (State::default(), 0);
    let mut run = |op: Op| {
        let Op::Crypto(op) = op else { panic!("{op:?}") };
        let mut run = |op: &CryptoOp| panoply_crypto::run(op, &mut state, &OneThread, &mut HostBufferMut::zeroed);
        let CryptoOp::Verify(verify) = &op else { return run(&op) };
        let many = Verify::new(verify.key(), repeated(verify.messages()), repeated(verify.signatures())).into_op();
        let Ok(Op::Crypto(many)) = many else { return run(&op) };
        let verdicts = run(&many)?.into_bytes()?;
        let (verdicts, count) = (verdicts.as_slice()?, verify.messages().count());
        assert!(verdicts.chunks(count).all(|again| again == &verdicts[..count]), "{verdicts:?}");
        repetitions += 1;
        Ok(Value::Bytes(Bytes::from_vec(verdicts[..count].to_vec())))
    };
    let summary = vectors::check(&|_| Support::Yes, &mut run);
    assert!(summary.failed.is_empty() && summary.unsupported.is_empty(), "{summary}");
    assert!(repetitions > 500, "{repetitions}");
}
