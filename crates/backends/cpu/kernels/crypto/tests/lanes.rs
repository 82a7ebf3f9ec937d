//! Lanes give the same results as one message at a time: every length around the blocks, every
//! number of messages around the lanes.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::io::Write;

use panoply_conformance::values::Random;
use panoply_core::op::crypto::*;
use panoply_core::{Bytes, HostBufferMut, Op, Operation};
use panoply_cpu_crypto::aead::AeadKey;
use panoply_cpu_crypto::cipher::CipherKey;
use panoply_cpu_crypto::{OneThread, State, lanes};

fn random(random: &mut Random, len: usize) -> Vec<u8> {
    (0..len).map(|_| random.next_u64() as u8).collect()
}

fn run(state: &mut State, op: impl Operation) -> Vec<Vec<u8>> {
    let Op::Crypto(op) = op.into_op().unwrap() else { panic!("another domain") };
    let value = panoply_cpu_crypto::run(&op, state, &OneThread, &mut HostBufferMut::zeroed).unwrap();
    let messages = Messages::from_value(value).unwrap();
    messages.slices().unwrap().into_iter().map(<[u8]>::to_vec).collect()
}

/// Both states. Without lanes on this CPU they are equal, which is printed.
fn both() -> (State, State) {
    let there = [(lanes::detected_for_hash(), "SHA-2"), (lanes::detected(), "VAES")];
    for (_, name) in there.iter().filter(|(there, _)| !there) {
        // Printed even if the test passes: output to the handle itself is not captured.
        std::io::stderr().write_all(format!("skipped: no lanes of {name} on this CPU\n").as_bytes()).unwrap();
    }
    (State::new(true), State::new(false))
}

#[test]
fn hashes_in_lanes_are_those_of_one_message() {
    let (mut wide, mut narrow) = both();
    let mut source = Random::new(60);
    let lens = (0..=300).chain([511, 512, 513, 1000, 4096, 10_007]);
    for (len, count) in lens.zip((1..=40).cycle()) {
        // Most messages have the same length, and a few do not.
        let len_of = |index: usize| if index % 11 == 10 { len + 64 } else { len };
        let messages: Vec<Bytes> = (0..count).map(|index| random(&mut source, len_of(index)).into()).collect();
        for algorithm in HashAlgorithm::ALL {
            let hash = Hash::new(algorithm, messages.clone());
            assert_eq!(run(&mut wide, hash.clone()), run(&mut narrow, hash), "{algorithm:?} {count} of {len}");
        }
    }
}

/// Lanes that take the next message when theirs has ended: very different lengths, including some
/// that are far too long.
#[test]
fn hashes_of_messages_that_are_not_alike_are_those_of_one_message() {
    let (mut wide, mut narrow) = both();
    let mut source = Random::new(63);
    for round in 0..150_u64 {
        let count = 1 + source.below(70) as usize;
        let mut message = || {
            let len_max = [1, 70, 500, 9000, 70_000][if source.below(20) == 0 { 4 } else { source.below(4) } as usize];
            let len = source.below(len_max) as usize;
            Bytes::from_vec(random(&mut source, len))
        };
        let messages: Vec<Bytes> = (0..count).map(|_| message()).collect();
        for algorithm in HashAlgorithm::ALL {
            let hash = Hash::new(algorithm, messages.clone());
            assert_eq!(run(&mut wide, hash.clone()), run(&mut narrow, hash), "{algorithm:?} in round {round}");
        }
    }
}

#[test]
fn chained_and_counted_blocks_in_lanes_are_those_of_one_message() {
    let (mut wide, mut narrow) = both();
    let mut source = Random::new(61);
    for round in 0..200_usize {
        let algorithm = CipherAlgorithm::ALL[round % 3];
        let key = Key::encrypt(algorithm, &random(&mut source, algorithm.key_bytes())).unwrap();
        let count = 1 + round % 19;
        // Every length with every key.
        let len_max = [20, 200, 3000][round / 3 % 3];
        let mut message = || {
            let len = source.below(len_max) as usize;
            Bytes::from_vec(random(&mut source, len))
        };
        let messages: Vec<Bytes> = (0..count).map(|_| message()).collect();
        let mut vectors = random(&mut source, 16 * count);
        // Counters whose lower half overflows soon, at once, and not at all.
        vectors[8..15].fill(0xff);
        for mode in [CipherMode::Cbc, CipherMode::Ctr] {
            let encrypt = Encrypt::new(&key, mode, vectors.clone().into(), messages.clone());
            assert_eq!(run(&mut wide, encrypt.clone()), run(&mut narrow, encrypt), "{mode:?} {count}");
            // Whole blocks of noise, which any text may be.
            let mut text = || {
                let len = 16 * source.below(len_max / 4) as usize;
                Bytes::from_vec(random(&mut source, len))
            };
            let texts: Vec<Bytes> = (0..count).map(|_| text()).collect();
            let decrypt = Decrypt::new(&key, CipherMode::CbcUnpadded, vectors.clone().into(), texts);
            assert_eq!(run(&mut wide, decrypt.clone()), run(&mut narrow, decrypt), "{count}");
        }
    }
}

/// Independent blocks: every length, with every key length, at odd addresses. Dependent blocks:
/// sixteen messages of every number of blocks.
#[test]
fn blocks_of_every_length_are_those_of_one_message() {
    let mut source = Random::new(68);
    for (round, len) in (0..=1300).chain([4095, 4096, 4097, 16_384, 70_001]).enumerate() {
        for algorithm in [CipherAlgorithm::Aes128, CipherAlgorithm::Aes192, CipherAlgorithm::Aes256] {
            let key = CipherKey::new(algorithm, &random(&mut source, algorithm.key_bytes())).unwrap();
            let (before, message) = (1 + round % 63, random(&mut source, len));
            let end = before + len;
            let untouched = |all: &[u8]| all[..before].iter().chain(&all[end..]).all(|byte| *byte == 9);
            let mut vector: [u8; 16] = random(&mut source, 16).try_into().unwrap();
            if round % 4 == 0 {
                // The lower half overflows somewhere near the end, or just does not.
                let low = (20 - (len / 16 + round / 4 % 40) as i64) as u64;
                vector[8..].copy_from_slice(&low.to_be_bytes());
            }
            let (mut expected, mut made) = (vec![0; len], vec![9; end + 70]);
            key.apply_counted(&vector, 0, &message, &mut expected, false).unwrap();
            key.apply_counted(&vector, 0, &message, &mut made[before..end], true).unwrap();
            assert!(made[before..end] == expected && untouched(&made), "{algorithm:?} {len}");
            if len % 16 == 0 {
                made[before..end].fill(9);
                key.decrypt_chained(&vector, &message, &mut expected, false).unwrap();
                key.decrypt_chained(&vector, &message, &mut made[before..end], true).unwrap();
                assert!(made[before..end] == expected && untouched(&made), "{algorithm:?} {len}");
                let messages: Vec<Vec<u8>> = (0..16).map(|_| random(&mut source, len)).collect();
                let messages: Vec<&[u8]> = messages.iter().map(Vec::as_slice).collect();
                let vectors: Vec<[u8; 16]> = (0..16).map(|_| random(&mut source, 16).try_into().unwrap()).collect();
                let [expected, made] = [false, true].map(|wide| {
                    let mut texts = vec![vec![9; end + 70]; 16];
                    let mut parts: Vec<&mut [u8]> = texts.iter_mut().map(|text| &mut text[before..end]).collect();
                    key.encrypt_all_chained(&vectors, &messages, &mut parts, wide).unwrap();
                    texts
                });
                assert!(expected == made && made.iter().all(|text| untouched(text)), "{algorithm:?} {len}");
            } else {
                key.decrypt_chained(&vector, &message, &mut expected, true).unwrap_err();
            }
        }
    }
}

/// Counted nonces equal a given list of the same nonces.
#[test]
fn counted_nonces_are_those_of_the_list() {
    let (mut wide, mut narrow) = both();
    let messages: Vec<Bytes> = (0..40).map(|len| vec![len as u8; 7 * len].into()).collect();
    for algorithm in AeadAlgorithm::ALL {
        let material = vec![5; algorithm.key_bytes()];
        for first in [0, 255, 0x0102_0304_0506_0708, u64::MAX - 40] {
            // A new key object each time: a key object remembers the nonces that it has sealed
            // with.
            let key = || Key::seal(algorithm, &material).unwrap();
            let counted = Nonces::Counted { prefix: [1, 2, 3, 4], first };
            let list = counted.list(40).unwrap().concat();
            let given = Seal::new(&key(), Nonces::Given(list.into()), messages.clone());
            let expected = run(&mut narrow, given);
            for state in [&mut wide, &mut narrow] {
                let made = run(state, Seal::new(&key(), counted.clone(), messages.clone()));
                assert!(made == expected, "{algorithm:?} from {first}");
            }
        }
    }
}

/// The ChaCha20-Poly1305 lanes directly, which short messages do not reach through an op: every
/// length around the blocks and groups, against AWS-LC.
#[test]
fn sealed_in_lanes_is_sealed() {
    let mut source = Random::new(62);
    let lens = (0..=2300).chain([4095, 8191, 8192, 8193, 9151, 9152, 9153, 16_384, 70_001]);
    for (round, len) in lens.enumerate() {
        let material = if round % 5 == 0 { vec![0xff; 32] } else { random(&mut source, 32) };
        let Some(lanes) = lanes::ChaChaLanes::new(&material) else {
            std::io::stderr().write_all(b"skipped: this CPU has no AVX-512 with byte masks\n").unwrap();
            return;
        };
        let lanes = if round % 4 == 1 { lanes.without_wide_products() } else { lanes };
        let key = AeadKey::new(AeadAlgorithm::ChaCha20Poly1305, &material).unwrap();
        let message = if round % 3 == 0 { vec![0xff; len] } else { random(&mut source, len) };
        let nonce: [u8; 12] = random(&mut source, 12).try_into().unwrap();
        let associated = random(&mut source, [0, 1, 16, 31, 500, 2048][round % 6]);
        // Behind other bytes, so that nothing is aligned.
        let (mut text, mut expected, mut tag) = (vec![9; len + 2], vec![0; len], [0; 16]);
        key.seal(&nonce, &associated, &message, &mut expected, &mut tag, false).unwrap();
        let made = lanes.seal(&nonce, &associated, &message, &mut text[1..=len], None);
        assert!(text[1..=len] == expected && made == tag, "{len} of {}", associated.len());
        assert_eq!((text[0], text[len + 1]), (9, 9), "{len}");
        let mut opened = vec![9; len + 2];
        assert_eq!(lanes.open(&nonce, &associated, &text[1..=len], &mut opened[1..=len], None), tag, "{len}");
        assert!(opened[1..=len] == message && opened[0] == 9 && opened[len + 1] == 9, "{len}");
        // With a tag key that was precomputed among others.
        let keys = lanes.tag_keys(&[[9; 12], nonce]);
        text[1..=len].fill(9);
        assert_eq!(lanes.seal(&nonce, &associated, &message, &mut text[1..=len], keys.get(1)), tag, "{len}");
        assert!(text[1..=len] == expected && text[0] == 9 && text[len + 1] == 9, "{len}");
        opened.fill(9);
        assert_eq!(lanes.open(&nonce, &associated, &expected, &mut opened[1..=len], keys.get(1)), tag, "{len}");
        assert!(opened[1..=len] == message && opened[0] == 9 && opened[len + 1] == 9, "{len}");
        // In place, and back.
        assert_eq!(lanes.seal_in_place(&nonce, &associated, &mut opened[1..=len], None), tag, "{len}");
        assert!(opened[1..=len] == expected && opened[0] == 9 && opened[len + 1] == 9, "{len}");
        assert_eq!(lanes.open_in_place(&nonce, &associated, &mut opened[1..=len], keys.get(1)), tag, "{len}");
        assert!(opened[1..=len] == message && opened[0] == 9 && opened[len + 1] == 9, "{len}");
        // The key itself does both in place as well.
        let mut whole = [message.as_slice(), &[0; 16]].concat();
        let (place, behind) = whole.split_at_mut(len);
        key.seal_in_place(&nonce, &associated, place, behind).unwrap();
        assert!(*place == expected && *behind == tag, "{len}");
        let mut altered = whole.clone();
        altered[round % (len + 16)] ^= 1 << (round % 8);
        key.open_in_place(&nonce, &associated, &mut altered).unwrap_err();
        assert!(altered.iter().all(|byte| *byte == 0), "{len}");
        assert_eq!(key.open_in_place(&nonce, &associated, &mut whole), Ok(len));
        assert!(whole[..len] == message, "{len}");
        // The key itself chooses between both ways, and wipes the message if the tag is wrong.
        key.open(&nonce, &associated, &expected, &tag, &mut opened[..len], true).unwrap();
        tag[round % 16] ^= 1 << (round % 8);
        key.open(&nonce, &associated, &expected, &tag, &mut opened[..len], true).unwrap_err();
        assert!(opened[..len].iter().all(|byte| *byte == 0), "{len}");
    }
}

/// The AES-GCM lanes directly: every length up to 4200 with every key length, at odd addresses and
/// in place, against AWS-LC.
#[test]
fn sealed_with_gcm_in_lanes_is_sealed() {
    let mut source = Random::new(66);
    for (round, len) in (0..=4200).chain([8191, 8192, 8193, 16_384, 70_001, (1 << 20) + 17]).enumerate() {
        for algorithm in [AeadAlgorithm::Aes128Gcm, AeadAlgorithm::Aes192Gcm, AeadAlgorithm::Aes256Gcm] {
            let material = random(&mut source, algorithm.key_bytes());
            let Some(lanes) = lanes::GcmLanes::new(&material) else {
                std::io::stderr().write_all(b"skipped: this CPU has no VAES or VPCLMULQDQ\n").unwrap();
                return;
            };
            let key = AeadKey::new(algorithm, &material).unwrap();
            let message = if round % 3 == 0 { vec![0xff; len] } else { random(&mut source, len) };
            let nonce: [u8; 12] = if round % 7 == 0 { [0xff; 12] } else { random(&mut source, 12).try_into().unwrap() };
            let associated_len = if round % 50 == 49 { 2048 } else { round * 7 % 301 };
            let associated = random(&mut source, associated_len);
            // Behind other bytes, so that nothing is aligned.
            let before = 1 + round % 63;
            let end = before + len;
            let (mut text, mut expected, mut tag) = (vec![9; end + 70], vec![0; len], [0; 16]);
            key.seal(&nonce, &associated, &message, &mut expected, &mut tag, false).unwrap();
            let made = lanes.seal(&nonce, &associated, &message, &mut text[before..end]);
            assert!(text[before..end] == expected && made == tag, "{algorithm:?} {len} of {associated_len}");
            let untouched = |all: &[u8]| all[..before].iter().chain(&all[end..]).all(|byte| *byte == 9);
            assert!(untouched(&text), "{len}");
            let mut opened = vec![9; end + 70];
            let again = lanes.open(&nonce, &associated, &text[before..end], &mut opened[before..end]);
            assert!(again == tag && opened[before..end] == message && untouched(&opened), "{algorithm:?} {len}");
            // In place, and back.
            let again = lanes.seal_in_place(&nonce, &associated, &mut opened[before..end]);
            assert!(again == tag && opened[before..end] == expected && untouched(&opened), "{algorithm:?} {len}");
            let again = lanes.open_in_place(&nonce, &associated, &mut opened[before..end]);
            assert!(again == tag && opened[before..end] == message && untouched(&opened), "{algorithm:?} {len}");
        }
    }
}

/// Altered messages are refused and wiped, with the AES-GCM lanes as without.
#[test]
fn altered_messages_of_gcm_are_refused() {
    let mut source = Random::new(67);
    let lens = (0..=80).chain((81..=1100).step_by(13)).chain([1023, 1024, 1025, 2047, 2048, 4095, 4096, 4097]);
    for (round, len) in lens.enumerate() {
        for algorithm in [AeadAlgorithm::Aes128Gcm, AeadAlgorithm::Aes192Gcm, AeadAlgorithm::Aes256Gcm] {
            let key = AeadKey::new(algorithm, &random(&mut source, algorithm.key_bytes())).unwrap();
            let (message, associated) = (random(&mut source, len), random(&mut source, 1 + round * 3 % 300));
            let nonce: [u8; 12] = random(&mut source, 12).try_into().unwrap();
            let (mut text, mut tag) = (vec![0; len], [0; 16]);
            key.seal(&nonce, &associated, &message, &mut text, &mut tag, round % 2 == 0).unwrap();
            let bit = |bytes: &[u8], at: usize| {
                let mut altered = bytes.to_vec();
                let place = at % altered.len();
                altered[place] ^= 1 << (at % 8);
                altered
            };
            let at = source.next_u64() as usize >> 1;
            let mut cases = vec![
                (nonce.to_vec(), associated.clone(), text.clone(), bit(&tag, at)),
                (nonce.to_vec(), bit(&associated, at), text.clone(), tag.to_vec()),
                (nonce.to_vec(), associated[1..].to_vec(), text.clone(), tag.to_vec()),
                (nonce.to_vec(), [associated.as_slice(), &[0]].concat(), text.clone(), tag.to_vec()),
                (bit(&nonce, at), associated.clone(), text.clone(), tag.to_vec()),
                (nonce.to_vec(), associated.clone(), text.clone(), tag[..15].to_vec()),
                (nonce.to_vec(), associated.clone(), [text.as_slice(), &[0]].concat(), tag.to_vec()),
            ];
            if len > 0 {
                let last = 8 * len - 8;
                for at in [at, 0, len - 1, last] {
                    cases.push((nonce.to_vec(), associated.clone(), bit(&text, at), tag.to_vec()));
                }
                cases.push((nonce.to_vec(), associated.clone(), text[1..].to_vec(), tag.to_vec()));
                cases.push((nonce.to_vec(), associated.clone(), text[..len - 1].to_vec(), tag.to_vec()));
            }
            for (case, (nonce, associated, text, tag)) in cases.into_iter().enumerate() {
                let nonce = nonce.try_into().unwrap();
                for wide in [false, true] {
                    let mut opened = vec![9; text.len()];
                    key.open(&nonce, &associated, &text, &tag, &mut opened, wide).unwrap_err();
                    assert!(opened.iter().all(|byte| *byte == 0), "{algorithm:?} {len} {case}");
                }
                let mut whole = [text, tag].concat();
                key.open_in_place(&nonce, &associated, &mut whole).unwrap_err();
                assert!(whole.iter().all(|byte| *byte == 0), "{algorithm:?} {len} {case}");
            }
            for wide in [false, true] {
                let mut opened = vec![9; len];
                key.open(&nonce, &associated, &text, &tag, &mut opened, wide).unwrap();
                assert!(opened == message, "{algorithm:?} {len}");
            }
            let mut whole = [text.as_slice(), &tag].concat();
            assert_eq!(key.open_in_place(&nonce, &associated, &mut whole), Ok(len));
            assert!(whole[..len] == message);
            let mut made = [0; 16];
            key.seal_in_place(&nonce, &associated, &mut whole[..len], &mut made).unwrap();
            assert!(whole[..len] == text && made == tag, "{algorithm:?} {len}");
        }
    }
}

/// Batches, whose tag keys are computed sixteen at a time: every number of messages around sixteen,
/// short ones among long ones, sealed and opened as one by one.
#[test]
fn sealed_in_batches_is_sealed() {
    let (mut wide, mut narrow) = both();
    let mut source = Random::new(64);
    for count in (1..=35).chain([100]) {
        let key = Key::seal(AeadAlgorithm::ChaCha20Poly1305, &random(&mut source, 32)).unwrap();
        let nonces = Nonces::Given(random(&mut source, 12 * count).into());
        let mut message = || {
            let len = [0, 100, 511, 512, 1024, 1040, 5000][source.below(7) as usize];
            Bytes::from_vec(random(&mut source, len))
        };
        let messages: Vec<Bytes> = (0..count).map(|_| message()).collect();
        let associated = random(&mut source, count);
        let seal = |state: &mut State| {
            let seal = Seal::new(&key, nonces.clone(), messages.clone()).associated(associated.clone());
            let Op::Crypto(op) = seal.into_op().unwrap() else { panic!("another domain") };
            let value = panoply_cpu_crypto::run(&op, state, &OneThread, &mut HostBufferMut::zeroed).unwrap();
            Seal::output(value).unwrap().text
        };
        let (text, expected) = (seal(&mut wide), seal(&mut narrow));
        assert_eq!(text.slices().unwrap(), expected.slices().unwrap(), "{count}");
        let open = Open::new(&key, nonces.clone(), text).associated(associated.clone());
        let plain: Vec<Vec<u8>> = messages.iter().map(|message| message.as_slice().unwrap().to_vec()).collect();
        assert_eq!(run(&mut wide, open), plain, "{count}");
    }
}

/// Messages of equal length: their last, padded blocks are encrypted together.
#[test]
fn padded_messages_alike_in_lanes_are_those_of_one_message() {
    let (mut wide, mut narrow) = both();
    let mut source = Random::new(65);
    for len in (0..=50).chain([1023, 1024, 1025]) {
        let key = Key::encrypt(CipherAlgorithm::Aes256, &random(&mut source, 32)).unwrap();
        for (count, other) in [(7, 0), (8, 0), (9, 0), (16, 0), (16, 1), (16, 16), (23, 0), (25, 1), (32, 0)] {
            let len_of = |index: usize| if index == 3 { len + other } else { len };
            let messages: Vec<Bytes> = (0..count).map(|index| random(&mut source, len_of(index)).into()).collect();
            let encrypt = Encrypt::new(&key, CipherMode::Cbc, random(&mut source, 16 * count).into(), messages);
            assert_eq!(run(&mut wide, encrypt.clone()), run(&mut narrow, encrypt), "{count} of {len}");
        }
    }
}
