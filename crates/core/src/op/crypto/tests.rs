//! Tests of the crypto domain's ops: validation, nonces, sessions and forks.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use super::*;
use crate::bytes::Bytes;
use crate::error::{Error, ErrorKind};
use crate::op::{Describe, Domain, Operation};
use crate::part::Value;

fn key() -> Key {
    Key::seal(AeadAlgorithm::Aes256Gcm, &[7; 32]).unwrap()
}

fn list(lens: &[usize]) -> Messages {
    lens.iter().map(|len| Bytes::from_vec(vec![*len as u8; *len])).collect::<Vec<_>>().into()
}

fn texts(messages: &Messages) -> Vec<Vec<u8>> {
    messages.slices().unwrap().iter().map(|slice| slice.to_vec()).collect()
}

#[test]
fn messages_are_the_same_in_every_form() {
    let packed = Messages::packed(Bytes::from_vec((0..10).collect()), vec![1, 1, 4, 10]).unwrap();
    assert_eq!((packed.count(), packed.total_bytes()), (3, 9));
    assert_eq!(texts(&packed), [vec![], vec![1, 2, 3], vec![4, 5, 6, 7, 8, 9]]);
    assert_eq!(packed.lens().collect::<Vec<_>>(), [0, 3, 6]);
    let as_list: Messages = packed.clone().into_list().unwrap().into();
    assert_eq!(texts(&as_list), texts(&packed));
    assert!(packed.get(3).is_err() && packed.len_of(3) == 0 && packed.clone().into_one().is_err());
    let split = Messages::split(Bytes::from_vec(vec![5; 10]), 4).unwrap();
    assert_eq!(split.lens().collect::<Vec<_>>(), [4, 4, 2]);
    assert_eq!(Messages::split(Bytes::from_vec(vec![]), 4).unwrap().count(), 0);
    assert!(Messages::split(Bytes::from_vec(vec![5; 10]), 0).is_err());
    for offsets in [vec![], vec![0, 11], vec![3, 2, 10]] {
        assert!(Messages::packed(Bytes::from_vec(vec![5; 10]), offsets).is_err());
    }
}

#[test]
fn answers_keep_their_form_on_the_way_through_an_engine() {
    for asked in [Messages::from(vec![1, 2]), list(&[1]), list(&[3, 2]), Messages::split(vec![0; 5].into(), 3).unwrap()]
    {
        let offsets: Vec<usize> = std::iter::once(0).chain((1..=asked.count()).map(|end| 2 * end)).collect();
        let made = asked.like(Bytes::from_vec((0..8).collect()), offsets).unwrap();
        let expected = texts(&made);
        assert_eq!(std::mem::discriminant(&made), std::mem::discriminant(&asked));
        let plain = SealedMessages { text: made.clone(), tags: None };
        let apart = SealedMessages { text: made, tags: Some(Bytes::from_vec(vec![9; 16 * expected.len()])) };
        for sealed in [plain, apart] {
            let back = SealedMessages::from_value(sealed.clone().into_value().unwrap()).unwrap();
            assert_eq!(texts(&back.text), expected);
            assert_eq!(std::mem::discriminant(&back.text), std::mem::discriminant(&asked));
            let len = |tags: &Option<Bytes>| tags.as_ref().map(Bytes::len);
            assert_eq!(len(&back.tags), len(&sealed.tags));
        }
    }
    assert!(Verify::verdicts(Value::Bytes(Bytes::from_vec(vec![2]))).is_err());
}

#[test]
fn an_answer_of_another_form_or_length_is_the_devices_fault() {
    let bytes = |len: usize| Value::Bytes(Bytes::from_vec(vec![0; len]));
    let parts = |lens: &[usize]| list(lens).into_value().unwrap();
    let packed = |lens: &[usize]| {
        let offsets: Vec<usize> = (0..=lens.len()).map(|end| lens[..end].iter().sum()).collect();
        Messages::packed(Bytes::from_vec(vec![0; lens.iter().sum()]), offsets).unwrap()
    };
    let offsets = |len: usize, ends: &[u64]| {
        let words: Vec<u8> = ends.iter().flat_map(|end| end.to_le_bytes()).collect();
        Value::Pair(Bytes::from_vec(vec![0; len]).to_tensor().unwrap(), Bytes::from_vec(words).to_tensor().unwrap())
    };
    let seal = |messages: Messages| Seal::new(&key(), Nonces::Counted { prefix: [0; 4], first: 0 }, messages);
    let apart = |text: Messages, tags: usize| {
        SealedMessages { text, tags: Some(Bytes::from_vec(vec![0; tags])) }.into_value().unwrap()
    };
    let two = || packed(&[3, 4]);
    let checks: Vec<(crate::Op, Vec<Value>, Vec<Value>)> = vec![
        (seal(vec![1, 2].into()).into_op().unwrap(), vec![bytes(18)], vec![bytes(2), bytes(17), parts(&[18])]),
        (
            seal(list(&[1, 2])).into_op().unwrap(),
            vec![parts(&[17, 18])],
            vec![parts(&[17]), parts(&[17, 17]), bytes(35)],
        ),
        (
            seal(two()).into_op().unwrap(),
            vec![packed(&[19, 20]).into_value().unwrap()],
            vec![
                packed(&[39]).into_value().unwrap(),
                packed(&[20, 19]).into_value().unwrap(),
                offsets(39, &[0, 19, 40]),
            ],
        ),
        (
            Compress::new(Format::Zstd, two()).into_op().unwrap(),
            vec![packed(&[9, 1]).into_value().unwrap()],
            vec![
                offsets(10, &[0, 5, 4]),
                offsets(10, &[0, 5, 11]),
                offsets(10, &[0, u64::MAX, 1]),
                offsets(10, &[11, 11, 11]),
            ],
        ),
        (seal(two()).detached().into_op().unwrap(), vec![], vec![apart(packed(&[4, 3]), 32)]),
        (
            seal(two()).detached().into_op().unwrap(),
            vec![apart(two(), 32)],
            vec![apart(two(), 16), apart(list(&[3, 4]), 32), two().into_value().unwrap()],
        ),
        (
            seal(list(&[3, 4])).detached().into_op().unwrap(),
            vec![apart(list(&[3, 4]), 32)],
            vec![apart(list(&[3]), 32), apart(list(&[3, 5]), 32)],
        ),
        (seal(vec![1].into()).detached().into_op().unwrap(), vec![apart(vec![1].into(), 16)], vec![apart(two(), 16)]),
        (Hash::new(HashAlgorithm::Sha384, vec![1]).into_op().unwrap(), vec![bytes(48)], vec![bytes(32)]),
        (
            Compress::new(Format::Zstd, list(&[9])).into_op().unwrap(),
            vec![parts(&[5])],
            vec![parts(&[]), parts(&[1, 1])],
        ),
        (
            Verify::new(&Key::hmac(HashAlgorithm::Sha256, &[1]).unwrap(), two(), two()).into_op().unwrap(),
            vec![bytes(2)],
            vec![bytes(1), parts(&[1, 1])],
        ),
    ];
    checks.into_iter().for_each(|(op, right, wrong)| check_answers(&op, right, wrong));
}

fn check_answers(op: &crate::Op, right: Vec<Value>, wrong: Vec<Value>) {
    let device = crate::DeviceId { api: crate::device::Api::SIMULATED, index: 0 };
    for value in right {
        assert_eq!(op.check_answer(&value, device), Ok(()), "{op:?}");
    }
    for value in wrong {
        let error = op.check_answer(&value, device).unwrap_err();
        assert!(matches!(error, Error::DeviceFault { .. }), "{op:?}: {error}");
    }
}

#[test]
fn keys_have_the_length_and_the_purpose_of_their_algorithm() {
    for algorithm in AeadAlgorithm::ALL {
        let len = algorithm.key_bytes();
        assert!(Key::seal(algorithm, &vec![1; len]).is_ok());
        for wrong in [0, 1, len - 1, len + 1, 64] {
            assert!(matches!(Key::seal(algorithm, &vec![1; wrong]), Err(Error::InvalidArgument { .. })), "{wrong}");
        }
    }
    assert!(Key::encrypt(CipherAlgorithm::Aes192, &[0; 16]).is_err());
    assert!(Key::hmac(HashAlgorithm::Sha256, &[]).is_err());
    assert!(Key::sign(SignatureAlgorithm::Ed25519, &vec![0; KEY_BYTES_MAX + 1]).is_err());
    let hmac = Key::hmac(HashAlgorithm::Sha256, b"a key").unwrap();
    assert!(hmac.material().is_secret());
    assert!(!Key::verify(SignatureAlgorithm::Ed25519, &[1; 32]).unwrap().material().is_secret());
    let refused = [
        Seal::new(&hmac, [0; 12], vec![1]).validate(),
        Hmac::new(&key(), vec![1]).validate(),
        Sign::new(&hmac, vec![1]).validate(),
        Hkdf::new(&hmac, vec![1], 32).validate(),
        Verify::new(&key(), vec![1], vec![1]).validate(),
        Encrypt::new(&hmac, CipherMode::Ctr, vec![0; 16].into(), vec![1]).validate(),
    ];
    for error in refused.map(Result::unwrap_err) {
        assert!(error.to_string().contains("a key made by Key::"), "{error}");
        assert!(!error.to_string().contains("a key\""), "{error}");
    }
}

#[test]
fn a_key_is_never_shown_and_its_number_is_its_own() {
    let key = Key::hmac(HashAlgorithm::Sha512, b"correct horse").unwrap();
    let op = Hmac::new(&key, vec![1]).into_op().unwrap();
    let shown = format!("{key:?} {op:?}");
    assert!(!shown.contains("horse") && !shown.contains("104"), "{shown}");
    let same_bytes = Key::hmac(HashAlgorithm::Sha512, b"correct horse").unwrap();
    assert_ne!(key.number(), same_bytes.number());
    let (clone, weak) = (key.clone(), key.downgrade());
    drop((key, op));
    assert!(weak.is_alive());
    drop(clone);
    assert!(!weak.is_alive());
}

#[test]
fn nonces_are_one_for_each_message_and_distinct() {
    let seal = |bytes: Vec<u8>, count: usize| {
        Seal::new(&key(), Nonces::Given(bytes.into()), list(&vec![3; count])).into_op().map(drop)
    };
    assert!(seal(vec![0; 12], 1).is_ok());
    for (len, count) in [(0, 1), (11, 1), (13, 1), (24, 1), (12, 2), (12, 0)] {
        assert!(matches!(seal(vec![0; len], count), Err(Error::InvalidArgument { .. })), "{len} for {count}");
    }
    let mut many: Vec<u8> = (0..1000_u64).flat_map(|number| [&number.to_le_bytes()[..], &[0; 4]].concat()).collect();
    assert!(seal(many.clone(), 1000).is_ok());
    many[12 * 900..12 * 901].copy_from_slice(&[[7; 1].as_slice(), &[0; 11]].concat());
    assert!(matches!(seal(many, 1000), Err(Error::RepeatedNonce { index: 900 })));
    let vectors = Bytes::from_vec(vec![5; 32]);
    let key = Key::encrypt(CipherAlgorithm::Aes128, &[1; 16]).unwrap();
    let encrypt = |mode| Encrypt::new(&key, mode, vectors.clone(), list(&[16, 16])).validate();
    assert!(matches!(encrypt(CipherMode::Ctr), Err(Error::RepeatedNonce { index: 1 })));
    assert!(encrypt(CipherMode::Cbc).is_ok());
}

#[test]
fn a_session_never_gives_a_nonce_twice() {
    let key = key();
    let session = Session::new(&key, *b"left").unwrap();
    assert!(Session::new(&key, *b"left").is_err(), "a second counter under one prefix");
    assert!(Session::new(&key, *b"rght").is_ok());
    let mut seen = std::collections::HashSet::new();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let session = session.clone();
            std::thread::spawn(move || (0..250).map(|_| session.seal(list(&[1, 2, 3])).unwrap()).collect::<Vec<_>>())
        })
        .collect();
    for op in threads.into_iter().flat_map(|thread| thread.join().unwrap()) {
        op.nonces().list(3).unwrap().into_iter().for_each(|nonce| assert!(seen.insert(nonce)));
    }
    assert_eq!((seen.len(), session.next()), (3000, 3000));
    assert!(matches!(session.seal_from(2999, vec![1]), Err(Error::RepeatedNonce { .. })));
    assert_eq!(session.seal_from(5000, list(&[1, 1])).unwrap().first_number(), Some(5000));
    assert_eq!(session.next(), 5002);
    let last = Session::resume(&key, *b"last", u64::MAX - 2).unwrap();
    assert!(last.seal(list(&[1, 1])).unwrap().into_op().is_ok());
    let error = last.seal(vec![1]).unwrap_err();
    assert!(matches!(error, Error::NoncesExhausted { left: 0, asked: 1 }), "{error}");
    assert!(last.seal_from(u64::MAX, vec![1]).is_err());
    let overflowing = Seal::new(&key, Nonces::Counted { prefix: [0; 4], first: u64::MAX }, vec![1]);
    assert!(matches!(overflowing.validate(), Err(Error::NoncesExhausted { .. })));
    assert!(Session::new(&Key::hmac(HashAlgorithm::Sha256, &[1]).unwrap(), [0; 4]).is_err());
}

#[test]
fn a_nonce_of_a_session_authenticates_one_input() {
    let repeated = |op: Seal| matches!(op.validate(), Err(Error::RepeatedNonce { index: 0 }));
    let key = key();
    let session = Session::new(&key, *b"sess").unwrap();
    let once = session.seal(vec![1]).unwrap().associated(vec![2]).associated(vec![3]);
    assert!(once.validate().is_ok(), "nothing was made of it before");
    assert!(once.clone().validate().is_ok() && once.clone().detached().validate().is_ok(), "the same input");
    let op = session.seal(vec![1]).unwrap();
    assert!(repeated(op.clone().associated(vec![2])) && repeated(op.associated(vec![3])));
    // Also if the clone has run and is gone.
    let op = session.seal(vec![1]).unwrap();
    drop(op.clone().into_op().unwrap());
    assert!(repeated(op.associated(vec![3])));
    // With nonces given by the caller, the caller is responsible.
    let own = Seal::new(&key, [9; 12], vec![1]);
    assert!(own.clone().associated(vec![2]).validate().is_ok() && own.associated(vec![3]).validate().is_ok());
}

#[test]
fn the_prefix_of_a_session_is_refused_to_others() {
    let key = key();
    let counted = |prefix: &[u8; 4]| Seal::new(&key, Nonces::Counted { prefix: *prefix, first: 0 }, vec![1]).validate();
    let given = |prefixes: [&[u8; 4]; 2]| {
        let nonces: Vec<u8> = prefixes.iter().flat_map(|prefix| [&prefix[..], &[7; 8]].concat()).collect();
        Seal::new(&key, Nonces::Given(nonces.into()), list(&[1, 1])).validate()
    };
    assert!(counted(b"sess").is_ok() && given([b"sess", b"own."]).is_ok());
    let session = Session::new(&key, *b"sess").unwrap();
    for error in [counted(b"sess").unwrap_err(), given([b"own.", b"sess"]).unwrap_err()] {
        assert!(error.to_string().contains("no session of this key"), "{error}");
    }
    assert!(counted(b"own.").is_ok() && given([b"own1", b"own2"]).is_ok());
    assert!(session.seal(vec![1]).unwrap().validate().is_ok());
    assert!(session.open(0, vec![0; 17]).validate().is_ok(), "opening uses no nonce up");
}

#[test]
fn a_counted_nonce_is_the_prefix_and_the_number_with_the_highest_byte_first() {
    let nonces = Nonces::Counted { prefix: [0xa1, 0xa2, 0xa3, 0xa4], first: 0x0102_0304_0506_07ff };
    assert_eq!(nonces.get(0).unwrap(), [0xa1, 0xa2, 0xa3, 0xa4, 1, 2, 3, 4, 5, 6, 7, 0xff]);
    assert_eq!(nonces.get(1).unwrap(), [0xa1, 0xa2, 0xa3, 0xa4, 1, 2, 3, 4, 5, 6, 8, 0]);
}

#[test]
fn a_nonce_that_is_not_there_is_an_error() {
    let given = Nonces::Given(Bytes::from_vec((0..30).collect()));
    assert_eq!(given.get(1).unwrap(), *(12..24).collect::<Vec<u8>>().as_slice());
    assert!(matches!(given.get(2), Err(Error::InvalidArgument { .. })), "half a nonce is none");
    assert_eq!(given.list(1).unwrap().len(), 1);
    assert!(given.list(3).is_err() && given.get(usize::MAX).is_err());
    let counted = Nonces::Counted { prefix: [0; 4], first: u64::MAX - 1 };
    assert!(counted.get(0).is_ok());
    assert!(matches!(counted.get(1), Err(Error::NoncesExhausted { left: 1, asked: 2 })));
}

#[test]
fn a_session_that_was_reserved_gives_no_number_beyond() {
    let key = key();
    let session = Session::new(&key, *b"disk").unwrap();
    let saved = session.reserve(3).unwrap();
    assert_eq!((saved, session.next()), (3, 0));
    assert_eq!(session.seal(list(&[1, 1])).unwrap().first_number(), Some(0));
    assert!(matches!(session.seal(list(&[1, 1])), Err(Error::NoncesExhausted { left: 1, asked: 2 })));
    assert!(session.seal_from(3, vec![1]).is_err() && session.clone().seal_from(2, list(&[1, 1])).is_err());
    assert_eq!(session.seal(vec![1]).unwrap().first_number(), Some(2));
    assert!(session.seal(vec![1]).is_err());
    assert_eq!((session.reserve(10).unwrap(), session.reserve(2).unwrap()), (13, 13), "what is reserved stays so");
    assert_eq!(session.seal(vec![1]).unwrap().first_number(), Some(3));
    // The process ends abruptly. The number on disk is above all that were given out.
    let again = Session::resume(&self::key(), *b"disk", 13).unwrap();
    assert_eq!(again.seal(vec![1]).unwrap().first_number(), Some(13));
    assert!(again.reserve(u64::MAX).is_err());
}

#[test]
fn what_was_made_of_a_key_is_dropped_with_its_last_handle() {
    struct DropProbe(std::sync::Arc<()>);
    let (key, alive) = (key(), std::sync::Arc::new(()));
    assert!(key.expanded::<DropProbe>(|| Err(key.invalid())).is_err(), "what is refused is not kept");
    for _ in 0..3 {
        let made = key.expanded(|| Ok(DropProbe(alive.clone()))).unwrap();
        assert!(std::sync::Arc::ptr_eq(&made.0, &alive));
    }
    assert_eq!(std::sync::Arc::strong_count(&alive), 2, "made once");
    assert!(matches!(key.clone().expanded(|| Ok(5_u8)), Err(Error::InvalidKey { .. })));
    let op = Seal::new(&key, [0; 12], vec![1]).into_op().unwrap();
    drop(key);
    assert_eq!(std::sync::Arc::strong_count(&alive), 2, "the op has a handle");
    drop(op);
    assert_eq!(std::sync::Arc::strong_count(&alive), 1);
}

#[test]
fn more_signatures_than_an_op_has_time_for_are_refused() {
    let rsa = SignatureAlgorithm::rsa(RsaBits::Bits4096, RsaPadding::Pss);
    let private = Key::sign(rsa, &[1; 48]).unwrap();
    let public = Key::verify(SignatureAlgorithm::Ed25519, &[1; 32]).unwrap();
    let empty = |count: usize| Messages::packed(Bytes::from_vec(vec![]), vec![0; count + 1]).unwrap();
    assert!(Sign::new(&private, empty(10_000)).validate().is_ok());
    let error = Sign::new(&private, empty(1 << 16)).validate().unwrap_err();
    assert!(error.to_string().contains("split the batch"), "{error}");
    assert!(Verify::new(&public, empty(1 << 18), empty(1 << 18)).validate().is_ok());
    assert!(Verify::new(&public, empty(1 << 20), empty(1 << 20)).validate().is_err());
}

#[test]
fn lengths_are_checked_before_anything_runs() {
    let key = key();
    let open = |messages: Messages, nonces: usize| Open::new(&key, Nonces::Given(vec![0; nonces].into()), messages);
    assert!(matches!(open(list(&[16, 15]), 24).validate(), Err(Error::Rejected { op: "open", index: 1 })));
    assert!(open(list(&[16, 16]), 24).validate().is_ok());
    assert!(open(list(&[3, 0]), 24).tags(vec![0; 32].into()).validate().is_ok());
    assert!(open(list(&[3, 0]), 24).tags(vec![0; 31].into()).validate().is_err());
    assert!(open(list(&[16, 16]), 24).associated(list(&[1, 1, 1])).validate().is_err());
    assert!(open(list(&[16, 16]), 24).associated(vec![1]).validate().is_ok());
    let aes = Key::encrypt(CipherAlgorithm::Aes256, &[1; 32]).unwrap();
    let decrypt = |mode, len| Decrypt::new(&aes, mode, vec![0; 16].into(), list(&[len])).validate();
    for (mode, len, fits) in [
        (CipherMode::Cbc, 0, false),
        (CipherMode::Cbc, 15, false),
        (CipherMode::Cbc, 16, true),
        (CipherMode::CbcUnpadded, 0, true),
        (CipherMode::CbcUnpadded, 17, false),
        (CipherMode::Ctr, 17, true),
    ] {
        assert_eq!(decrypt(mode, len).is_ok(), fits, "{mode:?} {len}");
    }
    let encrypt = Encrypt::new(&aes, CipherMode::CbcUnpadded, vec![0; 16].into(), list(&[15]));
    assert!(encrypt.validate().is_err());
    let hkdf = Key::hkdf(HashAlgorithm::Sha256, &[1; 32]).unwrap();
    for (len, fits) in [(0, false), (1, true), (255 * 32, true), (255 * 32 + 1, false), (usize::MAX, false)] {
        assert_eq!(Hkdf::new(&hkdf, vec![1], len).validate().is_ok(), fits, "{len}");
    }
    assert!(Compress::new(Format::Lz4Block, vec![1]).level(2).validate().is_err());
    assert!(Compress::new(Format::Zstd, vec![1]).level(23).validate().is_err());
    let secret = Bytes::secret(vec![1]).unwrap();
    assert!(Compress::new(Format::Zstd, secret.clone()).validate().is_err());
    assert!(Decompress::new(Format::Zstd, secret).validate().is_err());
    assert!(Verify::new(&Key::hmac(HashAlgorithm::Sha256, &[1]).unwrap(), list(&[1]), list(&[])).validate().is_err());
}

#[test]
fn ops_say_what_shares_a_curve_and_what_can_be_joined() {
    let (key, other) = (key(), key());
    let seal = |key: &Key| Seal::new(key, [0; 12], vec![0; 100]);
    assert_eq!(seal(&key).batch_key(), seal(&key.clone()).batch_key());
    assert_ne!(seal(&key).batch_key(), seal(&other).batch_key());
    assert_ne!(seal(&key).batch_key(), seal(&key).detached().batch_key());
    let op = seal(&key).into_op().unwrap();
    assert_eq!((op.domain(), op.name(), op.cost_class().label), (Domain::Crypto, "seal", "aes-256-gcm"));
    assert!(op.is_repeatable() && op.bound_to().is_none() && op.outputs().is_err());
    let (ed, rsa) = (SignatureAlgorithm::Ed25519, SignatureAlgorithm::rsa(RsaBits::Bits4096, RsaPadding::Pss));
    let sign = |algorithm| Sign::new(&Key::sign(algorithm, &[1; 48]).unwrap(), vec![0; 32]);
    assert_ne!(sign(ed).cost_class(), sign(rsa).cost_class());
    assert!(sign(rsa).work() > 100 * sign(ed).work());
    let level = |level| Compress::new(Format::Zstd, vec![1]).level(level).cost_class();
    assert_ne!(level(1), level(19));
    assert_ne!(level(-1), level(1));
    let secret_part = {
        let mut secrets = 0;
        op.for_each_part(&mut |part| secrets += usize::from(part.is_secret()));
        secrets
    };
    assert_eq!(secret_part, 1, "the key");
}

#[test]
fn what_is_rejected_is_the_callers_error_and_says_nothing() {
    let error = Error::Rejected { op: "open", index: 4 };
    assert_eq!((error.kind(), error.to_string()), (ErrorKind::Caller, "open: message 4 is rejected".to_owned()));
    let error = key().invalid();
    assert_eq!(error.to_string(), "the key is no valid key of aes-256-gcm");
}

/// Validates counters for messages with these first counters and lengths.
fn counted(starts: &[u128], lens: &[usize]) -> crate::Result<()> {
    let key = Key::encrypt(CipherAlgorithm::Aes128, &[1; 16]).unwrap();
    let vectors: Vec<u8> = starts.iter().flat_map(|start| start.to_be_bytes()).collect();
    Encrypt::new(&key, CipherMode::Ctr, vectors.into(), list(lens)).validate()
}

#[test]
fn counters_that_meet_further_on_are_refused() {
    let refused = |starts: &[u128], lens: &[usize], place: usize| {
        let found = counted(starts, lens);
        assert!(
            matches!(found, Err(Error::RepeatedNonce { index }) if index == place),
            "{starts:?} {lens:?}: {found:?}"
        );
    };
    // Three blocks from 5 on have the counters 5, 6 and 7.
    refused(&[5, 7], &[33, 1], 1);
    refused(&[5, 7], &[48, 1], 1);
    assert!(counted(&[5, 7], &[32, 1]).is_ok() && counted(&[5, 8], &[48, 1]).is_ok());
    // In any order, and with others in between.
    refused(&[7, 5], &[1, 33], 1);
    refused(&[100, 7, 50, 5], &[16, 1, 16, 33], 3);
    assert!(counted(&[100, 7, 50, 5], &[16, 1, 16, 32]).is_ok());
    refused(&[5, 6, 7], &[160, 0, 0], 1);
    // Wrapping around.
    refused(&[u128::MAX, 0], &[17, 1], 1);
    refused(&[0, u128::MAX], &[1, 17], 1);
    refused(&[3, 9, u128::MAX - 1], &[16, 16, 16 * 6], 2);
    assert!(counted(&[u128::MAX, 0], &[16, 1]).is_ok() && counted(&[u128::MAX], &[1 << 20]).is_ok());
    // Equal counters, also of empty messages.
    refused(&[9, 9], &[0, 0], 1);
    assert!(counted(&[], &[]).is_ok());
    // Decryption may use equal counters: the texts were encrypted elsewhere.
    let key = Key::encrypt(CipherAlgorithm::Aes128, &[1; 16]).unwrap();
    assert!(Decrypt::new(&key, CipherMode::Ctr, vec![0; 32].into(), list(&[64, 64])).validate().is_ok());
}

#[test]
fn associated_data_in_a_list_of_one_is_for_all() {
    let key = key();
    let one = Messages::packed(Bytes::from_vec(vec![1, 2, 3, 4]), vec![1, 3]).unwrap();
    for data in [list(&[2]), one] {
        let seal =
            Seal::new(&key, Nonces::Counted { prefix: [0; 4], first: 0 }, list(&[1; 16])).associated(data.clone());
        assert_eq!(seal.validate(), Ok(()));
        assert!(matches!(seal.associated_data(), Some(Messages::One(bytes)) if bytes.len() == 2));
        assert_eq!(
            Open::new(&key, Nonces::Given(vec![0; 24].into()), list(&[16, 16])).associated(data).validate(),
            Ok(())
        );
    }
    let seal = Seal::new(&key, Nonces::Counted { prefix: [0; 4], first: 0 }, list(&[1; 16]));
    let error = seal.associated(list(&[1, 1])).validate().unwrap_err().to_string();
    assert!(error.contains("one for all messages, or one for each of 16") && error.contains("got 2"), "{error}");
}

/// A different number at each call, like the system's randomness.
fn drawn(bytes: &mut [u8]) -> bool {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    for nonce in bytes.chunks_exact_mut(12) {
        nonce[..8].copy_from_slice(&NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed).to_le_bytes());
    }
    true
}

#[test]
fn random_sessions_draw_for_each_message_and_share_no_key_with_counting_ones() {
    let key = key();
    let session = RandomSession::new(&key, drawn).unwrap();
    let (first, second) = (session.seal(list(&[1, 2])).unwrap(), session.clone().seal(list(&[1])).unwrap());
    let mut all = first.nonces().list(2).unwrap();
    all.extend(second.nonces().list(1).unwrap());
    assert!(all[0] != all[1] && all[1] != all[2] && all[0] != all[2]);
    assert_eq!((first.validate(), first.first_number()), (Ok(()), None));
    assert!(Session::new(&key, *b"cnts").unwrap_err().to_string().contains("random"));
    let counted = self::key();
    let _counting = Session::new(&counted, *b"cnts").unwrap();
    assert!(RandomSession::new(&counted, drawn).unwrap_err().to_string().contains("no session counts"));
    // A source that repeats itself, and one that has no randomness.
    let stuck = RandomSession::new(&self::key(), |_| true).unwrap();
    assert!(matches!(stuck.seal(list(&[1, 1])).unwrap().validate(), Err(Error::RepeatedNonce { index: 1 })));
    assert!(RandomSession::new(&self::key(), |_| false).unwrap().seal(vec![1]).is_err());
    assert!(key.claim_drawn(DRAWN_MAX - 3, DRAWN_MAX).is_ok());
    assert!(matches!(session.seal(vec![1]), Err(Error::NoncesExhausted { left: 0, asked: 1 })));
    assert!(RandomSession::new(&Key::hmac(HashAlgorithm::Sha256, &[1]).unwrap(), drawn).is_err());
}

/// Runs a check in a forked process, and returns its result.
#[cfg(unix)]
fn holds_in_fork(check: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child uses only its own data, and ends without destructors.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let held = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)).unwrap_or(false);
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(if held { 0 } else { 1 }) };
    }
    let mut status = -1;
    // SAFETY: `child` is the process forked above, and `status` is writable.
    unsafe { libc::waitpid(child, &mut status, 0) == child && status == 0 }
}

#[cfg(unix)]
#[test]
fn a_forked_process_never_seals_with_a_nonce_of_its_parents_session() {
    let key = key();
    let session = Session::new(&key, *b"fork").unwrap();
    let before = session.seal(vec![1]).unwrap();
    let refuses = |found: crate::Result<()>| matches!(found, Err(Error::InvalidArgument { .. }));
    assert!(holds_in_fork(|| {
        let sealed = refuses(session.seal(vec![2]).map(drop)) && refuses(session.seal_from(99, vec![2]).map(drop));
        let others = refuses(session.reserve(5).map(drop)) && refuses(Session::new(&key, *b"chld").map(drop));
        // The earlier op: the parent may authenticate other data with its nonce.
        let given = refuses(before.clone().validate()) && before.clone().associated(vec![9]).validate().is_err();
        // With a key of its own, and to open messages that the parent has sealed.
        let own = Session::new(&self::key(), *b"chld").and_then(|session| session.seal(vec![1])?.into_op());
        let random = RandomSession::new(&self::key(), drawn).and_then(|session| session.seal(vec![1])?.into_op());
        sealed && others && given && own.is_ok() && random.is_ok() && session.open(0, vec![0; 17]).validate().is_ok()
    }));
    // The parent continues unaffected.
    assert_eq!(session.seal(vec![3]).unwrap().first_number(), Some(1));
    assert_eq!(before.associated(vec![9]).validate(), Ok(()));
    assert!(Session::new(&key, *b"othr").is_ok());
}

/// Regression: a thread of the parent held the lock of the prefixes during the fork, so the lock is
/// never released in the child.
#[cfg(unix)]
#[test]
fn a_forked_process_waits_for_no_lock_of_its_parents_keys() {
    let (fresh, counted, drawing) = (key(), key(), key());
    let _session = Session::new(&counted, *b"cnts").unwrap();
    let _random = RandomSession::new(&drawing, drawn).unwrap();
    let (_one, _two, _three) = (fresh.hold_prefixes(), counted.hold_prefixes(), drawing.hold_prefixes());
    assert!(holds_in_fork(|| {
        // SAFETY: `alarm` changes no memory. If the child waits for a lock, the signal ends it,
        // which counts as a failure.
        unsafe { libc::alarm(10) };
        let refuses = |found: crate::Result<()>| matches!(found, Err(Error::InvalidArgument { .. }));
        let random = [&fresh, &counted].map(|key| refuses(RandomSession::new(key, drawn).map(drop)));
        let given = refuses(Seal::new(&counted, [7; 12], vec![1]).validate());
        let sessions = [&fresh, &counted, &drawing].map(|key| refuses(Session::new(key, *b"chld").map(drop)));
        let goes_on = RandomSession::new(&drawing, drawn).and_then(|session| session.seal(vec![1])?.into_op());
        random == [true; 2] && given && sessions == [true; 3] && goes_on.is_ok()
    }));
}
