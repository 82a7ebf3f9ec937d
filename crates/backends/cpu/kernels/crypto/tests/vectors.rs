//! Published vectors on the CPU's functions.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use panoply_conformance::vectors;
use panoply_core::op::crypto::{CryptoOp, Messages, Sign, Verify};
use panoply_core::{Bytes, HostBufferMut, Op, Operation, Result, Support, Value};
use panoply_cpu_crypto::{OneThread, State};

#[test]
fn every_published_vector_gives_what_it_must() {
    let mut state = State::default();
    let mut run = |op: Op| match op {
        Op::Crypto(op) => panoply_cpu_crypto::run(&op, &mut state, &OneThread, &mut HostBufferMut::zeroed),
        op => panic!("{op:?}"),
    };
    let summary = vectors::check(&|_| Support::Yes, &mut run);
    println!("{summary}");
    assert!(summary.failed.is_empty() && summary.unsupported.is_empty(), "{summary}");
    assert_eq!(summary.passed, 6520, "every vector of every file");
    assert!(vectors::are_as_published(&mut run).unwrap(), "the processor signs as RFC 8032 has it");
}

/// This many copies of a signature are worth the lanes; a single one is not.
const TIMES: usize = 17;

/// Signatures of a vector many times in one batch, so that those with lanes are made and checked in
/// them.
#[test]
fn every_published_signature_gives_what_it_must_in_a_batch() {
    let mut state = State::default();
    let mut run_one = |op: Op| match op {
        Op::Crypto(op) => panoply_cpu_crypto::run(&op, &mut state, &OneThread, &mut HostBufferMut::zeroed),
        op => panic!("{op:?}"),
    };
    let mut batches = 0;
    let mut run = |op: Op| match &op {
        Op::Crypto(CryptoOp::Sign(sign)) => {
            batches += 1;
            last_message(
                run_one(Sign::new(sign.key(), repeated(sign.messages())?).into_op()?)?,
                sign.messages().count(),
            )
        }
        Op::Crypto(CryptoOp::Verify(verify)) => {
            batches += 1;
            let (messages, signatures) = (repeated(verify.messages())?, repeated(verify.signatures())?);
            let verdicts = run_one(Verify::new(verify.key(), messages, signatures).into_op()?)?.into_bytes()?;
            let count = verify.messages().count();
            let chunks: Vec<&[u8]> = verdicts.as_slice()?.chunks(count).collect();
            assert!(chunks.len() == TIMES && chunks.iter().all(|chunk| *chunk == chunks[0]));
            Ok(Value::Bytes(Bytes::from_vec(chunks[0].to_vec())))
        }
        _ => run_one(op),
    };
    let summary = vectors::check(&|_| Support::Yes, &mut run);
    assert!(summary.failed.is_empty() && summary.unsupported.is_empty(), "{summary}");
    assert!(batches > 1000, "{batches}");
}

/// All messages, repeated `TIMES` times.
fn repeated(messages: &Messages) -> Result<Vec<Bytes>> {
    let once: Vec<Bytes> = (0..messages.count()).map(|index| messages.get(index)).collect::<Result<_>>()?;
    Ok(once.iter().cloned().cycle().take(TIMES * once.len()).collect())
}

/// The last of the results for one message.
fn last_message(value: Value, count: usize) -> Result<Value> {
    let all = Messages::from_value(value)?;
    assert!(count == 1 && all.count() == TIMES);
    Messages::One(all.get(TIMES - 1)?).into_value()
}
