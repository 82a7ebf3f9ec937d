//! Sealing and opening in place equals sealing and opening to other memory.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use panoply_conformance::values::Random;
use panoply_core::op::crypto::{AeadAlgorithm, CryptoOp, Key, Messages, Nonces, Open, Seal, SealedMessages, Session};
use panoply_core::{Bytes, Error, HostBufferMut, Op, Operation, Result, Value};
use panoply_cpu_crypto::{OneThread, State, run_in_place};

fn crypto(op: impl Operation) -> CryptoOp {
    match op.into_op().unwrap() {
        Op::Crypto(op) => op,
        op => panic!("{op:?}"),
    }
}

fn elsewhere(op: impl Operation) -> Result<Value> {
    panoply_cpu_crypto::run(&crypto(op), &mut State::default(), &OneThread, &mut HostBufferMut::zeroed)
}

fn in_place(op: impl Operation) -> Option<Result<Value>> {
    run_in_place(&mut crypto(op), &State::default(), &OneThread, &mut HostBufferMut::zeroed)
}

fn random(random: &mut Random, len: usize) -> Vec<u8> {
    (0..len).map(|_| random.below(256) as u8).collect()
}

fn place(messages: &Messages) -> *const u8 {
    messages.slices().unwrap()[0].as_ptr()
}

/// One message, or three packed ones that begin behind some other bytes.
fn forms(bytes: &[u8]) -> [Messages; 2] {
    let third = bytes.len() / 3;
    let offsets = vec![third.min(5), third, 2 * third, bytes.len()];
    let copy = || Bytes::from_vec(bytes.to_vec());
    [copy().into(), Messages::packed(copy(), offsets).unwrap()]
}

fn listed(messages: &Messages) -> Vec<Vec<u8>> {
    messages.slices().unwrap().into_iter().map(<[u8]>::to_vec).collect()
}

#[test]
fn sealed_and_opened_in_place_is_what_it_is_elsewhere() {
    let mut source = Random::new(77);
    for algorithm in AeadAlgorithm::ALL {
        let key = Key::seal(algorithm, &random(&mut source, algorithm.key_bytes())).unwrap();
        for len in [0, 1, 15, 16, 100, 1000, 5000, 70_001] {
            for messages in forms(&random(&mut source, len)) {
                let nonces = Nonces::Counted { prefix: *b"here", first: len as u64 };
                let associated = Messages::from(random(&mut source, len % 40));
                // Slices keep the buffer alive, so each run gets its own copy.
                let plain = listed(&messages);
                let seal = |messages: &Messages| {
                    Seal::new(&key, nonces.clone(), messages.clone()).associated(associated.clone())
                };
                let apart = SealedMessages::from_value(elsewhere(seal(&messages).detached()).unwrap()).unwrap();
                let attached = SealedMessages::from_value(elsewhere(seal(&messages)).unwrap()).unwrap().text;

                let shared = in_place(seal(&messages).detached().in_place());
                assert!(shared.is_none(), "others have it as well");
                let (at, op) = (place(&messages), seal(&messages).detached().in_place());
                drop(messages);
                let made = SealedMessages::from_value(in_place(op).unwrap().unwrap()).unwrap();
                assert_eq!((listed(&made.text), place(&made.text)), (listed(&apart.text), at), "{algorithm:?} {len}");
                assert_eq!(made.tags.unwrap().as_slice().unwrap(), apart.tags.unwrap().as_slice().unwrap());

                let (at, texts) = (place(&attached), attached);
                let open = Open::new(&key, nonces.clone(), texts.clone()).associated(associated.clone()).in_place();
                drop(texts);
                let opened = Messages::from_value(in_place(open).unwrap().unwrap()).unwrap();
                assert_eq!((listed(&opened), place(&opened)), (plain, at), "{algorithm:?} {len}");
            }
        }
    }
}

#[test]
fn what_is_rejected_in_place_is_wiped_and_its_op_is_of_no_use() {
    let key = Key::seal(AeadAlgorithm::Aes256Gcm, &[7; 32]).unwrap();
    let nonces = Nonces::Counted { prefix: *b"here", first: 0 };
    let messages = Messages::split(Bytes::from_vec(vec![9; 4000]), 1000).unwrap();
    let sealed =
        SealedMessages::from_value(elsewhere(Seal::new(&key, nonces.clone(), messages)).unwrap()).unwrap().text;
    let Messages::Packed(packed) = &sealed else { panic!("{sealed:?}") };
    for altered in [0, 1015, 1016, 4063] {
        let mut bytes = packed.bytes().as_slice().unwrap().to_vec();
        bytes[altered] ^= 1;
        let texts = Messages::packed(Bytes::from_vec(bytes), packed.offsets().to_vec()).unwrap();
        let mut op = crypto(Open::new(&key, nonces.clone(), texts).in_place());
        let refused = run_in_place(&mut op, &State::default(), &OneThread, &mut HostBufferMut::zeroed).unwrap();
        assert!(matches!(refused, Err(Error::Rejected { index, .. }) if index == altered / 1016), "{refused:?}");
        let CryptoOp::Open(op) = &op else { panic!("{op:?}") };
        assert!(listed(op.messages()).concat() == [0; 4064]);
    }
}

#[test]
fn what_may_not_be_written_is_left_alone() {
    let key = Key::seal(AeadAlgorithm::Aes256Gcm, &[7; 32]).unwrap();
    let seal = |messages: Messages| Seal::new(&key, [1; 12], messages);
    let message = || Messages::from(vec![3; 100]);
    assert!(in_place(seal(message()).detached()).is_none(), "it was not allowed");
    assert!(in_place(seal(message()).in_place()).is_none(), "a text with its tag is longer");
    assert!(
        in_place(seal(Bytes::from_owner(vec![3; 100]).into()).detached().in_place()).is_none(),
        "it is the caller's"
    );
    assert!(in_place(seal(vec![Bytes::from_vec(vec![3; 100])].into()).detached().in_place()).is_none());
    let text = SealedMessages::from_value(elsewhere(seal(message())).unwrap()).unwrap().text;
    let open = Open::new(&key, [1; 12], text).secret().in_place();
    assert!(in_place(open).is_none(), "its memory would not be wiped");
}

/// Regression: a second run sealed the text under the same nonce, which gives the message back.
#[test]
fn what_was_sealed_in_place_is_not_sealed_again() {
    let key = Key::seal(AeadAlgorithm::Aes256Gcm, &[7; 32]).unwrap();
    let session = Session::new(&key, *b"here").unwrap();
    let mut op = crypto(session.seal(vec![3; 100]).unwrap().detached().in_place());
    let again = |op: &mut CryptoOp| run_in_place(op, &State::default(), &OneThread, &mut HostBufferMut::zeroed);
    assert!(again(&mut op).unwrap().is_ok());
    assert!(matches!(again(&mut op), Some(Err(Error::RepeatedNonce { .. }))));
    let elsewhere = panoply_cpu_crypto::run(&op, &mut State::default(), &OneThread, &mut HostBufferMut::zeroed);
    assert!(matches!(elsewhere, Err(Error::RepeatedNonce { .. })));
}
