//! The crypto domain through the whole runtime: every op, callers that share a key, callers'
//! errors, secrets and costs.
#![cfg(feature = "cpu")]
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::time::Duration;

use panoply::crypto::*;
use panoply::{Api, Batching, Bytes, Error, ErrorKind, Outcome, Runtime};

fn runtime() -> Runtime {
    Runtime::builder().only([Api::CPU]).build().unwrap()
}

fn key() -> Key {
    Key::seal(AeadAlgorithm::Aes256Gcm, panoply::crypto::random(32).unwrap().as_slice().unwrap()).unwrap()
}

#[test]
fn every_op_runs_in_every_form_and_says_where() {
    let runtime = runtime();
    let session = Session::new(&key(), *b"form").unwrap();
    let list: Messages = (0..100).map(|len| Bytes::from_vec(vec![len as u8; 10 * len])).collect::<Vec<_>>().into();
    let packed = Messages::split(vec![5; 10_000].into(), 300).unwrap();
    for messages in [Messages::from(vec![1, 2, 3]), list, packed] {
        let seal = session.seal(messages.clone()).unwrap();
        let first = seal.first_number().unwrap();
        let Outcome { output, report } = runtime.run(seal).with_report().wait().unwrap();
        assert_eq!(report.device.api, Api::CPU);
        assert_eq!(output.text.total_bytes(), messages.total_bytes() + 16 * messages.count());
        let opened = runtime.run(session.open(first, output.text).secret()).wait().unwrap();
        assert_eq!(opened.slices().unwrap(), messages.slices().unwrap());
        assert!(opened.is_secret() && !messages.is_secret());
        assert_eq!(std::mem::discriminant(&opened), std::mem::discriminant(&messages));

        let digests = runtime.run(Hash::new(HashAlgorithm::Sha384, messages.clone())).wait().unwrap();
        assert!(digests.lens().all(|len| len == 48));
        let packed = runtime.run(Compress::new(Format::Lz4Frame, messages.clone())).wait().unwrap();
        let back = runtime.run(Decompress::new(Format::Lz4Frame, packed)).wait().unwrap();
        assert_eq!(back.slices().unwrap(), messages.slices().unwrap());

        let pair = KeyPair::generate(SignatureAlgorithm::EcdsaP256(EcdsaEncoding::Fixed)).unwrap();
        let algorithm = SignatureAlgorithm::EcdsaP256(EcdsaEncoding::Fixed);
        let private = Key::sign(algorithm, pair.private.as_slice().unwrap()).unwrap();
        let public = Key::verify(algorithm, pair.public.as_slice().unwrap()).unwrap();
        let signatures = runtime.run(Sign::new(&private, messages.clone())).wait().unwrap();
        let verdicts = runtime.run(Verify::new(&public, messages.clone(), signatures)).wait().unwrap();
        assert_eq!(verdicts, vec![true; messages.count()]);
    }
}

/// An op overwrites a message only if it has the sole handle to the message. Other handles never
/// see the change.
#[test]
fn texts_take_the_place_of_messages_that_nobody_else_has() {
    let runtime = runtime();
    let session = Session::new(&key(), *b"here").unwrap();
    let place = |messages: &Messages| messages.slices().unwrap()[0].as_ptr();
    for shared in [false, true] {
        let message = Messages::split(vec![5; 100_000].into(), 999).unwrap();
        let (at, keeper) = (place(&message), shared.then(|| message.clone()));
        let seal = session.seal(message).unwrap().detached().in_place();
        let first = seal.first_number().unwrap();
        let SealedMessages { text, tags } = runtime.run(seal).wait().unwrap();
        assert_eq!(place(&text) == at, !shared);
        assert!(keeper.is_none_or(|kept| kept.slices().unwrap().concat() == vec![5; 100_000]));
        let opened = runtime.run(session.open(first, text).tags(tags.unwrap())).wait().unwrap();
        assert_eq!(opened.slices().unwrap().concat(), vec![5; 100_000]);

        let seal = session.seal(opened).unwrap();
        let first = seal.first_number().unwrap();
        let text = runtime.run(seal).wait().unwrap().text;
        let (at, keeper) = (place(&text), shared.then(|| text.clone()));
        let opened = runtime.run(session.open(first, text).in_place()).wait().unwrap();
        assert_eq!((place(&opened) == at, opened.count()), (!shared, 101));
        assert_eq!(opened.slices().unwrap().concat(), vec![5; 100_000]);
        assert!(keeper.is_none_or(|kept| runtime.run(session.open(first, kept)).wait().is_ok()));
    }
}

#[test]
fn callers_that_share_a_key_run_as_one() {
    let wait_max = Duration::from_millis(30);
    let batching = Batching::TimeOrSize { size_max: 32, wait_max };
    let runtime = Runtime::builder().only([Api::CPU]).batching(batching).build().unwrap();
    let (shared, other) = (key(), key());
    let (session, stranger) = (Session::new(&shared, *b"same").unwrap(), Session::new(&other, *b"else").unwrap());
    let seal = |session: &Session, byte| {
        let seal = session.seal(vec![byte; 2000]).unwrap();
        (seal.first_number().unwrap(), runtime.run(seal).with_report())
    };
    let pending: Vec<_> = (0..32).map(|byte| seal(&session, byte)).collect();
    let (_, alone) = seal(&stranger, 1);
    let mut joined = 0;
    for (byte, (number, pending)) in (0..).zip(pending) {
        let Outcome { output, report } = pending.wait().unwrap();
        joined += usize::from(report.batch_size > 1);
        let opened = runtime.run(session.open(number, output.text)).wait().unwrap().into_one().unwrap();
        assert_eq!(opened.as_slice().unwrap(), [byte; 2000]);
    }
    if std::thread::available_parallelism().unwrap().get() > 1 {
        assert!(joined > 16, "{joined} of 32 ran with others");
    }
    assert_eq!(alone.wait().unwrap().report.batch_size, 1);
}

#[test]
fn what_is_rejected_fails_alone_and_harms_no_device() {
    let runtime = runtime();
    let key = key();
    let sealed = runtime.run(Seal::new(&key, [1; 12], vec![9; 100])).wait().unwrap().text.into_one().unwrap();
    let mut altered = sealed.as_slice().unwrap().to_vec();
    altered[50] ^= 1;
    for _ in 0..50 {
        let error = runtime.run(Open::new(&key, [1; 12], altered.clone())).wait().unwrap_err();
        assert_eq!((error.kind(), &error), (ErrorKind::Caller, &Error::Rejected { op: "open", index: 0 }));
        assert!(runtime.run(Open::new(&key, [1; 12], sealed.clone())).wait().is_ok());
    }
    let no_key = Key::sign(SignatureAlgorithm::Ed25519, b"not a key at all").unwrap();
    let error = runtime.run(Sign::new(&no_key, vec![1])).wait().unwrap_err();
    assert_eq!(error, Error::InvalidKey { algorithm: "ed25519" });
    let report = &runtime.workers()[0];
    assert_eq!((report.counters.reopened, report.counters.replaced), (0, 0));
}

#[test]
fn nothing_of_a_key_is_left_on_a_runtime_that_is_idle() {
    let runtime = runtime();
    let key = key();
    runtime.run(Seal::new(&key, [1; 12], vec![9; 100])).wait().unwrap();
    let handle = key.downgrade();
    drop(key);
    // The worker drops the op after its answer, and no other event follows that could be waited
    // for.
    let start = std::time::Instant::now();
    while handle.is_alive() && start.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(!handle.is_alive(), "what was made of the key goes with its last handle");
    assert_eq!(runtime.workers()[0].counters.reopened, 0);
}

#[test]
fn costs_of_different_algorithms_are_learned_apart() {
    let runtime = runtime();
    for algorithm in [HashAlgorithm::Sha256, HashAlgorithm::Sha512] {
        for _ in 0..10 {
            runtime.run(Hash::new(algorithm, vec![1; 5000])).wait().unwrap();
        }
    }
    for level in [1, 9] {
        for _ in 0..10 {
            runtime.run(Compress::new(Format::Zlib, vec![1; 5000]).level(level)).wait().unwrap();
        }
    }
    let profile = runtime.profile();
    let classes = |op: &str| -> Vec<(String, u64)> {
        let ops = profile.devices[0].ops.iter().filter(|known| known.op == op);
        let mut classes: Vec<_> = ops.map(|known| known.class.clone()).collect();
        classes.dedup();
        classes
    };
    assert_eq!(classes("hash"), [("sha256".to_owned(), 0), ("sha512".to_owned(), 0)]);
    assert_eq!(classes("compress"), [("zlib".to_owned(), 1), ("zlib".to_owned(), 9)]);
    assert_eq!(profile.to_text().parse(), Ok(profile));
}

#[test]
fn compress_seal_and_sign_are_a_pipeline() {
    let runtime = runtime();
    let pair = KeyPair::generate(SignatureAlgorithm::Ed25519).unwrap();
    let private = Key::sign(SignatureAlgorithm::Ed25519, pair.private.as_slice().unwrap()).unwrap();
    let public = Key::verify(SignatureAlgorithm::Ed25519, pair.public.as_slice().unwrap()).unwrap();
    let session = Session::new(&key(), *b"pipe").unwrap();
    let record = |number: usize| format!("record {number} ").repeat(20).into_bytes();
    let sealing = session.clone();
    let (sealed, _) = panoply::pipeline::Pipeline::builder()
        .source((0..50).map(move |number| Messages::from(record(number))))
        .op("compress", &runtime, |record: &Messages| Compress::new(Format::Zstd, record.clone()))
        .try_op("seal", &runtime, move |packed: &Messages| sealing.seal(packed.clone()))
        .fork(
            |sealed| sealed.map("keep", |sealed: SealedMessages| sealed.text),
            |sealed| {
                sealed.op("sign", &runtime, move |sealed: &SealedMessages| Sign::new(&private, sealed.text.clone()))
            },
        )
        .collect()
        .run()
        .unwrap();
    assert_eq!(sealed.len(), 50);
    // Items keep their order, but the order in which they reached the session is not specified.
    let mut used = std::collections::HashSet::new();
    for (number, (text, signature)) in sealed.into_iter().enumerate() {
        let verdicts = runtime.run(Verify::new(&public, text.clone(), signature)).wait().unwrap();
        assert_eq!(verdicts, [true]);
        let opens =
            |nonce: &u64| runtime.run(session.open(*nonce, text.clone())).wait().ok().map(|packed| (*nonce, packed));
        let (nonce, packed) = (0..session.next()).find_map(|nonce| opens(&nonce)).unwrap();
        assert!(used.insert(nonce), "no nonce was used twice");
        let back = runtime.run(Decompress::new(Format::Zstd, packed).limit(1000)).wait().unwrap();
        assert_eq!(back.into_one().unwrap().as_slice().unwrap(), record(number));
    }
}

#[test]
fn a_thousand_threads_of_messages_never_meet_a_nonce_twice() {
    let runtime = runtime();
    let session = Session::new(&key(), *b"many").unwrap();
    let texts: Vec<(u64, Bytes)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let seal = || {
                        let seal = session.seal(vec![0; 16]).unwrap();
                        let number = seal.first_number().unwrap();
                        (number, runtime.run(seal).wait().unwrap().text.into_one().unwrap())
                    };
                    (0..250).map(|_| seal()).collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let numbers: std::collections::HashSet<u64> = texts.iter().map(|(number, _)| *number).collect();
    let distinct: std::collections::HashSet<Vec<u8>> =
        texts.iter().map(|(_, text)| text.as_slice().unwrap().to_vec()).collect();
    assert_eq!((numbers.len(), distinct.len(), session.next()), (1000, 1000, 1000));
}
