//! Hostile input: texts altered and truncated at every byte, archives that are damaged or far
//! longer than they look, invalid keys and signatures. Each ends in its typed error, and no
//! plaintext is left behind.
#![allow(unsafe_code)] // A block of memory in which the test sees what an op has left behind.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use panoply_conformance::values::Random;
use panoply_core::op::crypto::*;
use panoply_core::{Bytes, Error, HostBufferMut, Op, Operation, Result};
use panoply_cpu_crypto::keys::ExpandedKey;
use panoply_cpu_crypto::pack::{Packer, bound, first_try};
use panoply_cpu_crypto::{Failure, OneThread, State, Threads, signature};

fn run<O: Operation>(state: &mut State, op: O) -> Result<O::Output> {
    let Op::Crypto(op) = op.into_op()? else { panic!("another domain") };
    panoply_cpu_crypto::run(&op, state, &OneThread, &mut HostBufferMut::zeroed).and_then(O::output)
}

fn random(len: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..len).map(|_| random.next_u64() as u8).collect()
}

fn text(len: usize) -> Vec<u8> {
    let noise = random(len, 3);
    (0..len).map(|at| if at / 40 % 3 == 0 { noise[at] } else { b"a text that repeats itself "[at % 27] }).collect()
}

#[test]
fn a_sealed_message_that_was_altered_or_cut_anywhere_is_rejected() {
    let mut state = State::default();
    for algorithm in AeadAlgorithm::ALL {
        let key = Key::seal(algorithm, &random(algorithm.key_bytes(), 1)).unwrap();
        for len in [0, 1, 40, 130] {
            let seal = Seal::new(&key, [7; 12], text(len)).associated(vec![1, 2, 3]);
            let whole = run(&mut state, seal).unwrap().text.into_one().unwrap().as_slice().unwrap().to_vec();
            let open = |text: Vec<u8>| Open::new(&key, [7; 12], text).associated(vec![1, 2, 3]);
            assert_eq!(
                run(&mut state, open(whole.clone())).unwrap().into_one().unwrap().as_slice().unwrap(),
                text(len)
            );
            for at in 0..whole.len() {
                for bit in [0, 3, 7] {
                    let mut altered = whole.clone();
                    altered[at] ^= 1 << bit;
                    let error = run(&mut state, open(altered)).unwrap_err();
                    assert_eq!(error, Error::Rejected { op: "open", index: 0 });
                }
                let error = run(&mut state, open(whole[..at].to_vec())).unwrap_err();
                assert_eq!(error, Error::Rejected { op: "open", index: 0 });
            }
        }
    }
}

#[test]
fn nothing_of_a_batch_is_left_in_memory_where_one_message_is_rejected() {
    let mut state = State::default();
    let key = Key::seal(AeadAlgorithm::Aes128Gcm, &[1; 16]).unwrap();
    let nonces = Nonces::Counted { prefix: [0; 4], first: 0 };
    let messages: Messages = vec![Bytes::from_vec(vec![0x5a; 100]); 5].into();
    let mut texts = run(&mut state, Seal::new(&key, nonces.clone(), messages)).unwrap().text.into_list().unwrap();
    texts[3] = Bytes::from_vec(vec![0x5a; 116]);
    let Op::Crypto(op) = Open::new(&key, nonces, texts).into_op().unwrap() else { panic!() };
    let block = std::cell::RefCell::new(vec![0xa5_u8; 4096]);
    let mut take = |bytes: usize| {
        let start = std::ptr::NonNull::new(block.borrow_mut().as_mut_ptr()).unwrap();
        let aligned = start.as_ptr().align_offset(64);
        // SAFETY: the block outlives the op, is long enough, is aligned by skipping, and is used by
        // this op alone.
        Ok(unsafe { HostBufferMut::from_raw(start.add(aligned), bytes, std::sync::Arc::new(())) })
    };
    let error = panoply_cpu_crypto::run(&op, &mut state, &OneThread, &mut take).unwrap_err();
    assert_eq!(error, Error::Rejected { op: "open", index: 3 });
    assert!(!block.borrow().windows(4).any(|four| four == [0x5a; 4]), "plaintext is left");
}

#[test]
fn chained_texts_that_were_altered_never_panic() {
    let (mut state, mut rejected) = (State::default(), 0);
    let key = Key::encrypt(CipherAlgorithm::Aes256, &[2; 32]).unwrap();
    let whole = run(&mut state, Encrypt::new(&key, CipherMode::Cbc, vec![9; 16].into(), text(70))).unwrap();
    let whole = whole.into_one().unwrap().as_slice().unwrap().to_vec();
    for at in 0..whole.len() {
        let mut altered = whole.clone();
        altered[at] ^= 0x11;
        match run(&mut state, Decrypt::new(&key, CipherMode::Cbc, vec![9; 16].into(), altered)) {
            Ok(message) => assert!(message.total_bytes() < whole.len()),
            Err(error) => {
                assert_eq!(error, Error::Rejected { op: "decrypt", index: 0 });
                rejected += 1;
            }
        }
    }
    assert!(rejected > 16, "the last two blocks decide about the padding: {rejected}");
}

#[test]
fn archives_cut_or_altered_anywhere_end_in_a_typed_error_or_an_answer() {
    let mut state = State::default();
    let message = text(600);
    for format in Format::ALL {
        let whole = run(&mut state, Compress::new(format, message.clone())).unwrap().into_one().unwrap();
        let whole = whole.as_slice().unwrap().to_vec();
        // Truncated data must be refused. Altered data must be refused if a checksum covers it,
        // except for bits without meaning.
        let mut check = |data: Vec<u8>, allowed: fn(&[u8], &[u8]) -> bool| match run(
            &mut state,
            Decompress::new(format, data).limit(4096),
        ) {
            Ok(made) => {
                let made = made.into_one().unwrap();
                assert!(allowed(made.as_slice().unwrap(), &message), "{format:?}");
            }
            Err(Error::Rejected { op: "decompress", index: 0 } | Error::OutputLimit { limit: 4096, .. }) => {}
            Err(other) => panic!("{format:?}: {other}"),
        };
        let has_checksum = matches!(format, Format::Zlib | Format::Gzip | Format::Lz4Frame);
        for at in 0..whole.len() {
            // A block of LZ4 may end wherever its literals do.
            check(whole[..at].to_vec(), if format == Format::Lz4Block { |_, _| true } else { |_, _| false });
            let mut altered = whole.clone();
            altered[at] ^= 1 << (at % 8);
            check(altered, if has_checksum { |made, message| made == message } else { |_, _| true });
        }
        if format != Format::Lz4Block {
            check([&whole[..], &[1, 2, 3]].concat(), |_, _| false);
        }
    }
}

#[test]
fn noise_is_not_an_archive_and_never_panics() {
    let (mut packer, mut out) = (Packer::default(), vec![0; 10_000]);
    for seed in 0..3000 {
        let noise = random(1 + seed as usize % 90, seed);
        for format in Format::ALL {
            let head: &[u8] = match format {
                Format::Zlib => &[0x78, 0x9c],
                Format::Gzip => &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3],
                Format::Lz4Frame => &[4, 0x22, 0x4d, 0x18, 0x60, 0x40, 0x82],
                Format::Zstd => &[0x28, 0xb5, 0x2f, 0xfd],
                Format::Deflate | Format::Lz4Block => &[],
            };
            let data = [head, &noise].concat();
            if let Ok(len) = packer.decompress(format, &data, &mut out) {
                assert!(len <= out.len());
            }
            let _ = panoply_cpu_crypto::pack::first_try(format, &data, 10_000);
        }
    }
}

/// `PANOPLY_FUZZ_MUTATIONS=100000` runs more of them.
#[test]
fn mutated_archives_end_in_a_typed_error_or_an_answer() {
    let count = std::env::var("PANOPLY_FUZZ_MUTATIONS").ok().and_then(|count| count.parse().ok()).unwrap_or(4000_u64);
    let (mut state, mut packer, mut answers) = (State::default(), Packer::default(), 0);
    for format in Format::ALL {
        let seeds: Vec<Vec<u8>> = [text(300), vec![7; 2000], random(200, 4)]
            .map(|message| {
                let mut out = vec![0; bound(format, message.len())];
                let len = packer.compress(format, format.level_default(), &message, &mut out).unwrap();
                out[..len].to_vec()
            })
            .to_vec();
        for seed in 0..count {
            let mut source = Random::new(seed);
            let mut data = seeds[source.below(3) as usize].clone();
            for _ in 0..1 + source.below(4) {
                let (at, other) = (source.below(data.len() as u64) as usize, source.below(data.len() as u64) as usize);
                match source.below(5) {
                    0 => data[at] = source.next_u64() as u8,
                    1 => data[at] ^= 1 << source.below(8),
                    2 => data.truncate(at.max(1)),
                    3 => data.insert(at, source.next_u64() as u8),
                    _ => data.extend_from_within(at.min(other)..at.max(other)),
                }
            }
            match run(&mut state, Decompress::new(format, data).limit(1 << 16)) {
                Ok(made) => answers += usize::from(made.total_bytes() <= 1 << 16),
                Err(Error::Rejected { .. } | Error::OutputLimit { .. }) => {}
                Err(other) => panic!("{format:?}, mutation {seed}: {other}"),
            }
        }
    }
    println!("{answers} of {} mutations were answered", 6 * count);
    assert!(answers > 0);
}

#[test]
fn bombs_are_refused_by_the_limit() {
    let mut state = State::default();
    let message = vec![0; 20 << 20];
    for format in Format::ALL {
        let bomb = run(&mut state, Compress::new(format, message.clone())).unwrap().into_one().unwrap();
        assert!(bomb.len() < message.len() / 100, "{format:?}: {}", bomb.len());
        for limit in [0, 1000, 1 << 20, message.len() - 1] {
            let error = run(&mut state, Decompress::new(format, bomb.clone()).limit(limit)).unwrap_err();
            assert_eq!(error, Error::OutputLimit { op: "decompress", index: 0, limit }, "{format:?}");
        }
        for limit in [message.len(), usize::MAX] {
            let back = run(&mut state, Decompress::new(format, bomb.clone()).limit(limit)).unwrap().into_one().unwrap();
            assert!(back.as_slice().unwrap() == message, "{format:?}");
        }
        // In a batch with others, so that results of every kind are combined.
        let small = run(&mut state, Compress::new(format, text(50))).unwrap().into_one().unwrap();
        let mixed: Vec<Bytes> = vec![small.clone(), bomb.clone(), small];
        let back = run(&mut state, Decompress::new(format, mixed.clone()).limit(message.len())).unwrap();
        assert_eq!(back.lens().collect::<Vec<_>>(), [50, message.len(), 50]);
        let error = run(&mut state, Decompress::new(format, mixed).limit(100)).unwrap_err();
        assert_eq!(error, Error::OutputLimit { op: "decompress", index: 1, limit: 100 });
    }
}

#[test]
fn many_short_archives_take_little_memory_and_the_first_bad_one_is_named() {
    let mut state = State::default();
    for format in Format::ALL {
        let small = run(&mut state, Compress::new(format, text(50))).unwrap().into_one().unwrap();
        let Op::Crypto(op) = Decompress::new(format, vec![small.clone(); 1000]).into_op().unwrap() else { panic!() };
        let mut taken = 0;
        let mut take = |bytes: usize| {
            taken += bytes;
            HostBufferMut::zeroed(bytes)
        };
        panoply_cpu_crypto::run(&op, &mut state, &OneThread, &mut take).unwrap();
        assert!(taken < 1000 * (10 * small.len() + 500), "{format:?}: {taken}");
        // A message with a bad header behind one with a bad end.
        let whole = small.as_slice().unwrap();
        let (cut, noise) = (Bytes::from_vec(whole[..whole.len() - 1].to_vec()), Bytes::from_vec(vec![0xff; 3]));
        let error = run(&mut state, Decompress::new(format, vec![small.clone(), cut, noise])).unwrap_err();
        let expected = if format == Format::Lz4Block { 1..=2 } else { 1..=1 };
        assert!(matches!(error, Error::Rejected { index, .. } if expected.contains(&index)), "{format:?}: {error}");
    }
}

#[test]
fn heads_that_claim_absurd_lengths_take_no_memory() {
    let mut state = State::default();
    // A zstd frame of one segment with a claimed content of 2^60 bytes and an empty last block.
    let mut zstd = vec![0x28, 0xb5, 0x2f, 0xfd, 0xe0];
    zstd.extend_from_slice(&(1_u64 << 60).to_le_bytes());
    zstd.extend_from_slice(&[1, 0, 0]);
    for limit in [1000, 1 << 40] {
        let error = run(&mut state, Decompress::new(Format::Zstd, zstd.clone()).limit(limit)).unwrap_err();
        assert_eq!(error, Error::OutputLimit { op: "decompress", index: 0, limit });
    }
    let error = run(&mut state, Decompress::new(Format::Zstd, zstd).limit(usize::MAX)).unwrap_err();
    assert!(matches!(error, Error::Rejected { .. } | Error::OutOfMemory { .. }), "{error}");
    // gzip's length field says 4 GiB minus one.
    let mut gzip = run(&mut state, Compress::new(Format::Gzip, text(50)))
        .unwrap()
        .into_one()
        .unwrap()
        .as_slice()
        .unwrap()
        .to_vec();
    let len = gzip.len();
    gzip[len - 4..].fill(0xff);
    let error = run(&mut state, Decompress::new(Format::Gzip, gzip)).unwrap_err();
    assert_eq!(error, Error::Rejected { op: "decompress", index: 0 });
    // An LZ4 frame without blocks, whose header says 1 GiB and has the right checksum: refused at
    // once, not after memory was doubled.
    let mut lz4 = vec![0x04, 0x22, 0x4d, 0x18, 0x68, 0x40];
    lz4.extend_from_slice(&(1_u64 << 30).to_le_bytes());
    lz4.extend_from_slice(&[0x61, 0, 0, 0, 0]);
    assert_eq!(Packer::default().decompress(Format::Lz4Frame, &lz4, &mut [0; 16]), Err(Failure::Rejected));
    assert!(first_try(Format::Lz4Frame, &lz4, 1 << 30).unwrap() < 1000);
    let error = run(&mut state, Decompress::new(Format::Lz4Frame, lz4)).unwrap_err();
    assert_eq!(error, Error::Rejected { op: "decompress", index: 0 });
}

#[test]
fn bounds_hold_for_noise_and_for_nothing() {
    let mut packer = Packer::default();
    for format in Format::ALL {
        for len in [0, 1, 100, 5000, 65_536, 65_537, 300_000] {
            for level in format.levels().filter(|level| len < 70_000 || level % 4 == 1) {
                let (message, mut out) = (random(len, 8), vec![0; bound(format, len)]);
                let packed = packer.compress(format, level, &message, &mut out).unwrap();
                let mut back = vec![0; len];
                assert_eq!(packer.decompress(format, &out[..packed], &mut back), Ok(len), "{format:?} {level} {len}");
                assert!(back == message);
            }
        }
    }
}

#[test]
fn what_is_no_key_is_an_error_and_is_not_kept() {
    use EcdsaEncoding::Fixed;
    let mut state = State::default();
    let rsa_2048 = SignatureAlgorithm::rsa(RsaBits::Bits2048, RsaPadding::Pkcs1);
    let rsa_4096 = SignatureAlgorithm::rsa(RsaBits::Bits4096, RsaPadding::Pss);
    let (p256, p384) = (SignatureAlgorithm::EcdsaP256(Fixed), SignatureAlgorithm::EcdsaP384(Fixed));
    let pairs = [rsa_2048, p256, p384, SignatureAlgorithm::Ed25519].map(|it| (it, signature::generate(it).unwrap()));
    for algorithm in [rsa_2048, rsa_4096, p256, p384, SignatureAlgorithm::Ed25519] {
        for (other, pair) in &pairs {
            let private = Key::sign(algorithm, &pair.pkcs8).unwrap();
            let public = Key::verify(algorithm, &pair.public).unwrap();
            let (signed, verified) = (
                run(&mut state, Sign::new(&private, vec![1])),
                run(&mut state, Verify::new(&public, vec![1], vec![2])),
            );
            if *other == algorithm {
                assert!(signed.is_ok() && verified == Ok(vec![false]));
            } else {
                let invalid = Error::InvalidKey { algorithm: algorithm.name() };
                assert_eq!((signed.unwrap_err(), verified.unwrap_err()), (invalid.clone(), invalid));
            }
        }
    }
    for (algorithm, pair) in &pairs {
        for (len, seed) in [(1, 1), (31, 2), (33, 3), (65, 4), (97, 5), (300, 6)] {
            let noise = Key::verify(*algorithm, &random(len, seed)).unwrap();
            let refused = run(&mut state, Verify::new(&noise, vec![1], vec![2]));
            assert_eq!(refused.unwrap_err(), Error::InvalidKey { algorithm: algorithm.name() }, "{len}");
        }
        // Truncated at every byte, and every byte of the private key altered: an error, or a key
        // that signs something.
        for at in 0..pair.pkcs8.len() {
            let cut = pair.pkcs8[..at.max(1)].to_vec();
            assert!(run(&mut state, Sign::new(&Key::sign(*algorithm, &cut).unwrap(), vec![1])).is_err());
        }
        for at in (0..pair.pkcs8.len()).step_by(if *algorithm == rsa_2048 { 37 } else { 1 }) {
            let mut altered = pair.pkcs8.clone();
            altered[at] ^= 0x04;
            match run(&mut state, Sign::new(&Key::sign(*algorithm, &altered).unwrap(), vec![1])) {
                Ok(_) | Err(Error::InvalidKey { .. } | Error::Rejected { .. }) => {}
                Err(other) => panic!("{other}"),
            }
        }
    }
    // Points that are not on the curve, and the point at infinity.
    for point in [vec![4; 65], [&[4][..], &[0; 64]].concat(), vec![0], [&[4][..], &[0xff; 64]].concat()] {
        let refused = run(&mut state, Verify::new(&Key::verify(p256, &point).unwrap(), vec![1], vec![0; 64]));
        assert!(matches!(refused, Err(Error::InvalidKey { .. })), "{refused:?}");
    }
}

#[test]
fn signatures_of_wrong_lengths_and_encodings_do_not_verify() {
    use EcdsaEncoding::{Der, Fixed};
    let mut state = State::default();
    let algorithms = [
        SignatureAlgorithm::Ed25519,
        SignatureAlgorithm::EcdsaP256(Fixed),
        SignatureAlgorithm::EcdsaP384(Der),
        SignatureAlgorithm::rsa(RsaBits::Bits2048, RsaPadding::Pss),
    ];
    for algorithm in algorithms {
        let pair = signature::generate(algorithm).unwrap();
        let (private, public) =
            (Key::sign(algorithm, &pair.pkcs8).unwrap(), Key::verify(algorithm, &pair.public).unwrap());
        let right = run(&mut state, Sign::new(&private, vec![1])).unwrap().into_one().unwrap();
        let right = right.as_slice().unwrap().to_vec();
        let mut wrong: Vec<Bytes> = (0..right.len()).map(|len| Bytes::from_vec(right[..len].to_vec())).collect();
        for at in 0..right.len() {
            let mut altered = right.clone();
            altered[at] ^= 1;
            wrong.push(altered.into());
        }
        wrong.push([&right[..], &[0]].concat().into());
        wrong.push(vec![0; right.len()].into());
        wrong.push(vec![0xff; right.len()].into());
        wrong.push(random(2000, 9).into());
        let messages: Vec<Bytes> = wrong.iter().map(|_| Bytes::from_vec(vec![1])).collect();
        let verdicts = run(&mut state, Verify::new(&public, messages, wrong)).unwrap();
        assert!(verdicts.iter().all(|verdict| !verdict), "{algorithm:?}");
        assert_eq!(run(&mut state, Verify::new(&public, vec![1], right)), Ok(vec![true]));
    }
}

#[test]
fn weak_and_malformed_keys_of_ed25519_are_refused() {
    let mut state = State::default();
    let ed25519 = SignatureAlgorithm::Ed25519;
    let spki = |key: &[u8]| [&[0x30, 0x2a, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 3, 0x21, 0][..], key].concat();
    let mut verify = |key: &[u8], signature: Vec<u8>| {
        run(&mut state, Verify::new(&Key::verify(ed25519, key).unwrap(), b"any message".to_vec(), signature))
    };
    // The neutral point, with which one signature fits every message; and the same in another
    // encoding.
    let neutral = [&[1][..], &[0; 31]].concat();
    let one_for_all = [&neutral[..], &[0; 32]].concat();
    let other_neutral = [&[0xee][..], &[0xff; 30], &[0x7f]].concat();
    // No x belongs to this y.
    let no_point = [&[2][..], &[0; 31]].concat();
    let weak = neutral.clone();
    for key in [neutral, other_neutral, no_point, vec![0; 32], vec![0xff; 32]] {
        for key in [key.clone(), spki(&key)] {
            let refused = verify(&key, one_for_all.clone());
            assert_eq!(refused, Err(Error::InvalidKey { algorithm: ed25519.name() }), "{key:?}");
        }
    }
    // Behind a key, even a weak one, stands another valid one: neither is accepted.
    let (one, other) = (signature::generate(ed25519).unwrap().public, signature::generate(ed25519).unwrap().public);
    for (first, behind) in [(&weak, &one), (&one, &other), (&one, &vec![0]), (&weak, &spki(&one))] {
        for key in [
            spki(&[&first[..], behind].concat()),
            [spki(first), behind.clone()].concat(),
            [&first[..], behind].concat(),
        ] {
            let refused = verify(&key, one_for_all.clone());
            assert_eq!(refused, Err(Error::InvalidKey { algorithm: ed25519.name() }), "{key:?}");
        }
    }
    let mut points = 0;
    for seed in 0..200 {
        match verify(&random(32, seed), one_for_all.clone()) {
            Ok(verdicts) => points += usize::from(verdicts == [false]),
            Err(error) => assert_eq!(error, Error::InvalidKey { algorithm: ed25519.name() }),
        }
        let pair = signature::generate(ed25519).unwrap();
        assert_eq!(verify(&pair.public, one_for_all.clone()), Ok(vec![false]), "a key that was made is one");
    }
    assert!((60..140).contains(&points), "about half of all bytes are a point: {points}");
}

#[test]
fn a_batch_has_a_limit_of_its_own() {
    let mut state = State::default();
    let message = vec![0; 100_000];
    for format in Format::ALL {
        let one = run(&mut state, Compress::new(format, message.clone())).unwrap().into_one().unwrap();
        let ten = || Decompress::new(format, vec![one.clone(); 10]);
        let back = run(&mut state, ten().total_limit(1_000_000)).unwrap();
        assert_eq!(back.total_bytes(), 1_000_000, "{format:?}");
        for (total, index) in [(999_999, 9), (350_000, 3), (100_000, 1)] {
            let error = run(&mut state, ten().total_limit(total)).unwrap_err();
            assert_eq!(error, Error::OutputLimit { op: "decompress", index, limit: total }, "{format:?}");
        }
        let error = run(&mut state, ten().total_limit(99_999)).unwrap_err();
        assert_eq!(error, Error::OutputLimit { op: "decompress", index: 0, limit: 99_999 }, "{format:?}");
    }
}

#[test]
fn what_a_batch_claims_takes_no_memory() {
    let mut state = State::default();
    let mut gzip = run(&mut state, Compress::new(Format::Gzip, random(1000, 5))).unwrap().into_one().unwrap();
    let mut altered = gzip.as_slice().unwrap().to_vec();
    let len = altered.len();
    altered[len - 4..].fill(0xff);
    gzip = altered.into();
    let mut taken = |op: Decompress| {
        let Op::Crypto(op) = op.into_op().unwrap() else { panic!() };
        let mut taken = 0;
        let mut take = |bytes: usize| {
            taken += bytes;
            HostBufferMut::zeroed(bytes)
        };
        let error = panoply_cpu_crypto::run(&op, &mut state, &OneThread, &mut take).unwrap_err();
        assert_eq!(error, Error::Rejected { op: "decompress", index: 0 });
        taken
    };
    let claiming = |count: usize| Decompress::new(Format::Gzip, vec![gzip.clone(); count]);
    assert!(taken(claiming(5000)) < 100 << 20, "1.3 GB were claimed");
    assert!(taken(claiming(50).total_limit(100_000)) <= 100_000);
}

#[test]
fn an_op_that_was_never_validated_seals_nothing_with_a_nonce_that_it_does_not_have() {
    let mut state = State::default();
    let key = Key::seal(AeadAlgorithm::Aes128Gcm, &[1; 16]).unwrap();
    let messages = || vec![Bytes::from_vec(vec![5; 20]); 3];
    let distinct: Vec<u8> = (0..36).collect();
    let mut raw =
        |op: CryptoOp| panoply_cpu_crypto::run(&op, &mut state, &OneThread, &mut HostBufferMut::zeroed).map(drop);
    let seal = |nonces: &[u8]| CryptoOp::Seal(Seal::new(&key, Nonces::Given(nonces.to_vec().into()), messages()));
    assert_eq!(raw(seal(&distinct)), Ok(()));
    for short in [0, 12, 24, 35] {
        assert!(matches!(raw(seal(&distinct[..short])), Err(Error::InvalidArgument { .. })), "{short}");
    }
    assert_eq!(raw(seal(&[7; 36])), Err(Error::RepeatedNonce { index: 1 }));
    let counted = Nonces::Counted { prefix: [0; 4], first: u64::MAX - 1 };
    assert!(matches!(raw(CryptoOp::Seal(Seal::new(&key, counted, messages()))), Err(Error::NoncesExhausted { .. })));
    let aes = Key::encrypt(CipherAlgorithm::Aes128, &[1; 16]).unwrap();
    let encrypt = Encrypt::new(&aes, CipherMode::Ctr, vec![7; 32].into(), messages());
    assert!(matches!(raw(CryptoOp::Encrypt(encrypt)), Err(Error::InvalidArgument { .. })));
}

#[test]
fn nothing_is_left_in_memory_where_a_thread_panics() {
    /// Does all the work, then panics.
    struct Panicking;

    impl Threads for Panicking {
        fn count(&self) -> usize {
            1
        }

        fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
            (0..tasks).for_each(task);
            std::panic::resume_unwind(Box::new("a thread"));
        }
    }

    let mut state = State::default();
    let plain = vec![0x5a; 800];
    let key = Key::seal(AeadAlgorithm::Aes128Gcm, &[1; 16]).unwrap();
    // Two messages: a single one is not given to threads.
    let (nonces, two) = (Nonces::Counted { prefix: *b"here", first: 1 }, vec![Bytes::from_vec(plain.clone()); 2]);
    let text = run(&mut state, Seal::new(&key, nonces.clone(), two)).unwrap().text;
    let mut ops = vec![Open::new(&key, nonces, text).into_op().unwrap()];
    let aes = Key::encrypt(CipherAlgorithm::Aes128, &[1; 16]).unwrap();
    for mode in [CipherMode::Cbc, CipherMode::Ctr] {
        let text = run(&mut state, Encrypt::new(&aes, mode, vec![7; 16].into(), plain.clone())).unwrap();
        ops.push(Decrypt::new(&aes, mode, vec![7; 16].into(), text).into_op().unwrap());
    }
    for op in ops {
        let Op::Crypto(op) = op else { panic!() };
        let mut block = vec![0xa5_u8; 4096];
        let start = std::ptr::NonNull::new(block.as_mut_ptr()).unwrap();
        let mut take = |bytes: usize| {
            let aligned = start.as_ptr().align_offset(64);
            // SAFETY: the block outlives the op, is long enough, is aligned by skipping, and is
            // used by this op alone.
            Ok(unsafe { HostBufferMut::from_raw(start.add(aligned), bytes, std::sync::Arc::new(())) })
        };
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            panoply_cpu_crypto::run(&op, &mut state, &Panicking, &mut take).map(drop)
        }));
        assert!(ran.is_err());
        assert!(!block.windows(4).any(|four| four == [0x5a; 4]), "plaintext is left: {op:?}");
    }
}

#[test]
fn a_key_is_expanded_once_and_what_was_made_lies_with_it() {
    let mut state = State::default();
    let key = Key::hmac(HashAlgorithm::Sha256, b"key").unwrap();
    run(&mut state, Hmac::new(&key, vec![1])).unwrap();
    assert!(key.expanded(|| Ok(())).is_err(), "the op has left with the key what it made of it");
    let kept: *const ExpandedKey = ExpandedKey::of(&key, true).unwrap();
    run(&mut State::default(), Hmac::new(&key.clone(), vec![1])).unwrap();
    assert!(std::ptr::eq(kept, ExpandedKey::of(&key, true).unwrap()), "the other engine has it from the key");
}
