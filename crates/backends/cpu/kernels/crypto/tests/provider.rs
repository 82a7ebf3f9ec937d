//! Checks which code runs: without lanes only AWS-LC gets keys and messages, and with lanes this
//! CPU uses those that it has.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use panoply_conformance::{cases, vectors};
use panoply_core::op::crypto::{AeadAlgorithm, CryptoOp, Key, Seal, Sign, SignatureAlgorithm};
use panoply_core::{Bytes, Domain, HostBufferMut, Op, Operation, Support};
use panoply_cpu_crypto::lanes::entries;
use panoply_cpu_crypto::{OneThread, State, lanes, run, run_in_place, signature};

/// Every op of the suite and every published vector, in place if the op permits it.
fn run_all(state: &mut State) -> usize {
    let mut count = 0;
    for case in cases().into_iter().filter(|case| case.op.domain() == Domain::Crypto) {
        let Op::Crypto(mut op) = case.op else { panic!("{}", case.name) };
        let _ = run(&op, state, &OneThread, &mut HostBufferMut::zeroed);
        let _ = run_in_place(&mut op, state, &OneThread, &mut HostBufferMut::zeroed);
        count += 1;
    }
    let mut run_op = |op: Op| match op {
        Op::Crypto(op) => run(&op, state, &OneThread, &mut HostBufferMut::zeroed),
        op => panic!("{op:?}"),
    };
    let summary = vectors::check(&|_| Support::Yes, &mut run_op);
    assert!(summary.failed.is_empty(), "{summary}");
    count + summary.passed
}

fn crypto(op: impl Operation) -> CryptoOp {
    match op.into_op().unwrap() {
        Op::Crypto(op) => op,
        op => panic!("{op:?}"),
    }
}

/// Batches that lanes would take, of every kind that has lanes.
fn run_batches(state: &mut State, keys: &[Key]) {
    for key in keys {
        let messages: Vec<Bytes> = (0..32_u8).map(|number| vec![number; 2048].into()).collect();
        let op = match key.purpose() {
            panoply_core::op::crypto::Purpose::Sign(_) => crypto(Sign::new(key, messages)),
            _ => {
                let nonces: Vec<u8> = (0..32_u8).flat_map(|number| [number; 12]).collect();
                let nonces = panoply_core::op::crypto::Nonces::Given(nonces.into());
                crypto(Seal::new(key, nonces, messages))
            }
        };
        run(&op, state, &OneThread, &mut HostBufferMut::zeroed).unwrap();
        let one = crypto(Seal::new(&keys[0], [200; 12], vec![7; 4096]).detached().in_place());
        run_in_place(&mut { one }, state, &OneThread, &mut HostBufferMut::zeroed).unwrap().unwrap();
    }
}

fn keys() -> Vec<Key> {
    use panoply_core::op::crypto::{EcdsaEncoding, RsaBits, RsaPadding};
    let mut keys: Vec<Key> =
        AeadAlgorithm::ALL.iter().map(|kind| Key::seal(*kind, &vec![3; kind.key_bytes()]).unwrap()).collect();
    let p256 = SignatureAlgorithm::EcdsaP256(EcdsaEncoding::Der);
    for algorithm in [p256, SignatureAlgorithm::rsa(RsaBits::Bits2048, RsaPadding::Pss), SignatureAlgorithm::Ed25519] {
        keys.push(Key::sign(algorithm, &signature::generate(algorithm).unwrap().pkcs8).unwrap());
    }
    keys
}

#[test]
fn without_lanes_no_code_but_the_librarys_is_entered() {
    let before = entries();
    let mut narrow = State::new(false);
    assert!(run_all(&mut narrow) > 5000);
    run_batches(&mut narrow, &keys());
    assert_eq!(entries(), before);
    // A cross-check of the counter: with lanes the same ops enter them.
    let has_lanes = lanes::detected_for_gcm() || lanes::detected_for_curves() || lanes::detected_for_rsa();
    let keys = keys();
    run_batches(&mut State::new(true), &keys);
    assert_eq!(entries() > before, has_lanes, "{} entries", entries() - before);
    // Keys that another engine has expanded with lanes must not use lanes here.
    let before = entries();
    run_batches(&mut narrow, &keys);
    assert_eq!(entries(), before);
}
