//! Signatures over curves in lanes equal those made and verified one by one: valid ones, and ones
//! altered in every way.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::io::Write;

use panoply_conformance::values::Random;
use panoply_core::op::crypto::*;
use panoply_core::{Bytes, HostBufferMut, Op, Operation, Value};
use panoply_cpu_crypto::{OneThread, State, Threads, lanes, signature};

const ALGORITHMS: [SignatureAlgorithm; 3] = [
    SignatureAlgorithm::Ed25519,
    SignatureAlgorithm::EcdsaP256(EcdsaEncoding::Fixed),
    SignatureAlgorithm::EcdsaP256(EcdsaEncoding::Der),
];
/// The order of the Ed25519 base point, lowest byte first.
const ED25519_ORDER: [u8; 32] = [
    0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
];
/// The order of P-256, highest byte first.
const P256_ORDER: [u8; 32] = [
    0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xbc, 0xe6, 0xfa, 0xad, 0xa7,
    0x17, 0x9e, 0x84, 0xf3, 0xb9, 0xca, 0xc2, 0xfc, 0x63, 0x25, 0x51,
];

/// Threads that are spawned for each op.
struct ScopedThreads;

impl Threads for ScopedThreads {
    fn count(&self) -> usize {
        3
    }

    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        std::thread::scope(|scope| (0..tasks).for_each(|index| drop(scope.spawn(move || task(index)))));
    }
}

fn random(random: &mut Random, len: usize) -> Vec<u8> {
    (0..len).map(|_| random.next_u64() as u8).collect()
}

fn run(wide: bool, threads: &dyn Threads, op: impl Operation) -> Value {
    let Op::Crypto(op) = op.into_op().unwrap() else { panic!("another domain") };
    panoply_cpu_crypto::run(&op, &mut State::new(wide), threads, &mut HostBufferMut::zeroed).unwrap()
}

fn verdicts(wide: bool, threads: &dyn Threads, key: &Key, messages: &[Vec<u8>], signatures: &[Vec<u8>]) -> Vec<u8> {
    let list = |parts: &[Vec<u8>]| -> Vec<Bytes> { parts.iter().map(|part| Bytes::from_vec(part.clone())).collect() };
    let op = Verify::new(key, list(messages), list(signatures));
    run(wide, threads, op).into_bytes().unwrap().as_slice().unwrap().to_vec()
}

fn signatures(wide: bool, key: &Key, messages: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let list: Vec<Bytes> = messages.iter().map(|message| Bytes::from_vec(message.clone())).collect();
    let made = Messages::from_value(run(wide, &ScopedThreads, Sign::new(key, list))).unwrap();
    made.slices().unwrap().into_iter().map(<[u8]>::to_vec).collect()
}

fn keys(algorithm: SignatureAlgorithm) -> (Key, Key) {
    let pair = signature::generate(algorithm).unwrap();
    (Key::sign(algorithm, &pair.pkcs8).unwrap(), Key::verify(algorithm, &pair.public).unwrap())
}

/// Adds the order to s, if s has 32 bytes of its own.
fn with_the_order(algorithm: SignatureAlgorithm, signature: &mut [u8]) {
    let Some((_, s)) = signature.split_last_chunk_mut::<32>() else { return };
    let mut carry = 0;
    for place in 0..32 {
        let (at, order) = match algorithm {
            SignatureAlgorithm::Ed25519 => (place, ED25519_ORDER[place]),
            _ => (31 - place, P256_ORDER[31 - place]),
        };
        carry += u16::from(s[at]) + u16::from(order);
        s[at] = carry as u8;
        carry >>= 8;
    }
}

/// Alters a signature or its message in one of many ways, or leaves both unchanged and returns
/// true.
fn alter(algorithm: SignatureAlgorithm, source: &mut Random, message: &mut Vec<u8>, signature: &mut Vec<u8>) -> bool {
    let place = source.below(signature.len() as u64) as usize;
    match source.below(16) {
        0 | 1 => signature[place] ^= 1 << source.below(8),
        2 => message.push(1),
        3 => signature.truncate(place),
        4 => signature.push(0),
        5 => with_the_order(algorithm, signature),
        6 => signature[..32].fill(0),
        7 => signature[32..64].fill(0),
        8 => signature.fill(0xff),
        9 => signature[..32].copy_from_slice(&P256_ORDER),
        10 => signature.rotate_left(32),
        11 => *signature = random(source, 64),
        _ => return false,
    }
    true
}

#[test]
fn altered_signatures_are_judged_as_one_at_a_time_are() {
    if !lanes::detected_for_curves() {
        // Printed even if the test passes: output to the handle itself is not captured.
        std::io::stderr().write_all(b"skipped: no lanes for curves on this CPU\n").unwrap();
    }
    let (mut source, mut good, mut bad) = (Random::new(70), 0, 0);
    for round in 0..60 {
        let algorithm = ALGORITHMS[round % 3];
        let (private, public) = keys(algorithm);
        let count = [1, 7, 16, 17, 40, 130, 150][round / 3 % 7];
        let mut message = || {
            let len = [40, 300, 5000][source.below(3) as usize];
            let len = source.below(len) as usize;
            random(&mut source, len)
        };
        let mut messages: Vec<Vec<u8>> = (0..count).map(|_| message()).collect();
        let mut made = signatures(round % 2 == 0, &private, &messages);
        let mut is_altered = Vec::new();
        for (message, signature) in messages.iter_mut().zip(&mut made) {
            is_altered.push(alter(algorithm, &mut source, message, signature));
        }
        let expected = verdicts(false, &OneThread, &public, &messages, &made);
        assert_eq!(verdicts(true, &OneThread, &public, &messages, &made), expected, "{algorithm:?} {count}");
        assert_eq!(verdicts(true, &ScopedThreads, &public, &messages, &made), expected, "{algorithm:?} {count}");
        for (is_altered, verdict) in is_altered.iter().zip(&expected) {
            assert!(*is_altered || *verdict == 1, "{algorithm:?}");
            *(if *verdict == 1 { &mut good } else { &mut bad }) += 1;
        }
    }
    assert!(good > 500 && bad > 2000, "{good} {bad}");
}

#[test]
fn signatures_made_together_verify_and_no_two_are_equal() {
    let mut source = Random::new(71);
    for round in 0..24 {
        let algorithm = ALGORITHMS[1 + round % 2];
        let (private, public) = keys(algorithm);
        let count = [3, 4, 8, 9, 64, 129, 257, 500][round / 2 % 8];
        // Equal and different messages.
        let messages: Vec<Vec<u8>> = (0..count).map(|index| random(&mut source, 40 * (index % 3))).collect();
        let made = signatures(true, &private, &messages);
        assert_eq!(verdicts(false, &OneThread, &public, &messages, &made), vec![1; count]);
        assert_eq!(verdicts(true, &OneThread, &public, &messages, &made), vec![1; count]);
        let mut all = [made, signatures(true, &private, &messages)].concat();
        let len_max = algorithm.signature_bytes_max();
        assert!(all.iter().all(|signature| signature.len() <= len_max));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 2 * count);
    }
}

/// Public keys in all accepted forms.
#[test]
fn both_forms_of_a_public_key_verify_together() {
    let prefix = |algorithm| match algorithm {
        SignatureAlgorithm::Ed25519 => vec![0x30, 0x2a, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 3, 0x21, 0],
        _ => [
            &[0x30, 0x59, 0x30, 0x13, 6, 7, 0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1][..],
            &[6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7, 3, 0x42, 0],
        ]
        .concat(),
    };
    for algorithm in ALGORITHMS {
        let pair = signature::generate(algorithm).unwrap();
        let private = Key::sign(algorithm, &pair.pkcs8).unwrap();
        let messages = vec![b"message".to_vec(); 20];
        let mut made = signatures(true, &private, &messages);
        made[3][10] ^= 4;
        let mut expected = vec![1; 20];
        expected[3] = 0;
        for public in [pair.public.clone(), [prefix(algorithm), pair.public].concat()] {
            let key = Key::verify(algorithm, &public).unwrap();
            assert_eq!(verdicts(true, &OneThread, &key, &messages, &made), expected, "{algorithm:?}");
        }
    }
}

/// Compressed points begin with 2 or 3, hybrid ones with 6 or 7. The library accepts both; here a
/// key has one form.
#[test]
fn points_that_are_compressed_or_hybrid_are_no_keys() {
    const PREFIXES: [(usize, &[u8], &[u8]); 2] = [
        (
            32,
            &[
                0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce,
                0x3d, 3, 1, 7,
            ],
            &[0x03],
        ),
        (
            48,
            &[0x30, 0x10, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x05, 0x2b, 0x81, 0x04, 0, 0x22],
            &[0x03],
        ),
    ];
    let kinds = [EcdsaEncoding::Der, EcdsaEncoding::Fixed]
        .map(|encoding| [SignatureAlgorithm::EcdsaP256(encoding), SignatureAlgorithm::EcdsaP384(encoding)]);
    for algorithm in kinds.into_iter().flatten() {
        let generated = signature::generate(algorithm).unwrap();
        let (private, point) = (Key::sign(algorithm, &generated.pkcs8).unwrap(), generated.public);
        let (bytes, algorithm_der, bits) = PREFIXES[usize::from(point.len() > 65)];
        assert_eq!(point.len(), 1 + 2 * bytes);
        let wrapped = |point: &[u8]| {
            let inner = [algorithm_der, bits, &[point.len() as u8 + 1, 0], point].concat();
            [&[0x30, inner.len() as u8], &inner[..]].concat()
        };
        let sign_of_y = point[2 * bytes] & 1;
        let compressed = [&[2 + sign_of_y], &point[1..1 + bytes]].concat();
        let hybrid = [&[6 + sign_of_y], &point[1..]].concat();
        let verdict = |public: &[u8]| {
            let signature = Messages::from_value(run(true, &OneThread, Sign::new(&private, vec![9; 40])))?;
            let op = Verify::new(&Key::verify(algorithm, public)?, vec![9; 40], signature).into_op()?;
            let Op::Crypto(op) = op else { panic!("{op:?}") };
            let found = panoply_cpu_crypto::run(&op, &mut State::default(), &OneThread, &mut HostBufferMut::zeroed)?;
            Ok::<_, panoply_core::Error>(found.into_bytes()?.as_slice()?.to_vec())
        };
        for good in [point.clone(), wrapped(&point)] {
            assert_eq!(verdict(&good).unwrap(), [1], "{algorithm:?}");
        }
        for bad in [compressed.clone(), hybrid.clone(), wrapped(&compressed), wrapped(&hybrid)] {
            let found = verdict(&bad);
            assert!(matches!(found, Err(panoply_core::Error::InvalidKey { .. })), "{algorithm:?}: {found:?}");
        }
    }
}
