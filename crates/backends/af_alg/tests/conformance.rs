//! The kernel against the reference and against published vectors, for the algorithms that the
//! kernel has.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use panoply_af_alg::AfAlgBackend;
use panoply_conformance::{cases, check_backend, run_one, vectors, wrong_domains};
use panoply_core::op::crypto::*;
use panoply_core::*;

/// The kernel as a device. If it is absent, prints the reason and returns `None`.
fn kernel() -> Option<(AfAlgBackend, DeviceInfo)> {
    let backend = AfAlgBackend::new();
    match backend.discover() {
        Ok(mut devices) => {
            println!("the kernel has {}", devices[0].capabilities.features.join(", "));
            Some((backend, devices.remove(0)))
        }
        Err(absence) => {
            println!("skipped: {absence}");
            None
        }
    }
}

#[test]
fn every_case_that_it_claims_gives_what_the_reference_gives() {
    let Some((backend, device)) = kernel() else { return };
    let crypto: Vec<_> = cases().into_iter().filter(|case| case.op.domain() == Domain::Crypto).collect();
    let summary = check_backend(&backend, &device, &crypto).unwrap();
    println!("{} passed, {} not claimed", summary.passed, summary.unsupported.len());
    assert!(summary.failed.is_empty() && summary.passed > 0, "{summary}");
    assert_eq!(wrong_domains(&backend, &device), []);
}

#[test]
fn every_published_vector_that_it_claims_gives_what_it_must() {
    let Some((backend, device)) = kernel() else { return };
    let mut engine = backend.open(&device, &OpenOptions::default()).unwrap();
    let summary = vectors::check(&|op| backend.supports(&device, op), &mut |op| run_one(&mut *engine, op));
    println!("{} passed, {} not claimed", summary.passed, summary.unsupported.len());
    assert!(summary.failed.is_empty() && summary.passed > 0, "{summary}");
}

#[test]
fn texts_longer_than_a_piece_are_those_of_the_host() {
    let Some((backend, device)) = kernel() else { return };
    let mut engine = backend.open(&device, &OpenOptions::default()).unwrap();
    let key = Key::encrypt(CipherAlgorithm::Aes256, &[3; 32]).unwrap();
    // The first counter passes from its lower half to its upper one on the way.
    let vectors = || {
        let first = [[0].as_slice(), &[0xff; 13], &[0xef, 0]].concat();
        Bytes::from_vec([first, vec![9; 16]].concat())
    };
    for len in [65_535, 65_536, 65_552, 262_160] {
        let text: Vec<u8> = (0..2 * len).map(|byte| ((byte * byte) >> 3) as u8).collect();
        let messages = || Messages::split(Bytes::from_vec(text.clone()), len).unwrap();
        for mode in [CipherMode::Ctr, CipherMode::Cbc] {
            let op = Encrypt::new(&key, mode, vectors(), messages()).into_op().unwrap();
            let made = Messages::from_value(agreed(&mut *engine, op)).unwrap();
            let back = agreed(&mut *engine, Decrypt::new(&key, mode, vectors(), made).into_op().unwrap());
            let back = Messages::from_value(back).unwrap().into_list().unwrap();
            assert_eq!(back[1].as_slice().unwrap(), &text[len..]);
        }
        agreed(&mut *engine, Hash::new(HashAlgorithm::Sha384, messages()).into_op().unwrap());
    }
}

/// Runs the op on the kernel, and asserts that the host's code gives the same bytes.
fn agreed(engine: &mut dyn Engine, op: Op) -> Value {
    let Op::Crypto(crypto) = &op else { panic!() };
    let mut state = panoply_cpu_crypto::State::default();
    let expected =
        panoply_cpu_crypto::run(crypto, &mut state, &panoply_cpu_crypto::OneThread, &mut HostBufferMut::zeroed)
            .unwrap();
    let got = run_one(engine, op).unwrap();
    let bytes = |value: &Value| Messages::from_value(value.clone()).unwrap().into_list().unwrap();
    for (got, expected) in bytes(&got).iter().zip(bytes(&expected)) {
        assert!(got.as_slice().unwrap() == expected.as_slice().unwrap());
    }
    got
}

#[test]
fn it_is_there_only_where_it_was_asked_for() {
    // The variable is not set where tests run; a kernel with sockets makes no difference then.
    if std::env::var_os(panoply_af_alg::VARIABLE).is_some() {
        return println!("skipped: {} is set", panoply_af_alg::VARIABLE);
    }
    let absence = AfAlgBackend::from_environment().discover().unwrap_err().to_string();
    assert!(absence.contains("PANOPLY_AF_ALG=1 asks for it"), "{absence}");
}

#[test]
fn what_the_kernel_cannot_do_is_refused_with_the_reason() {
    let backend = AfAlgBackend::new();
    let mut device = DeviceInfo::new(DeviceId { api: panoply_af_alg::AF_ALG, index: 0 }, "a kernel", DeviceKind::Cpu);
    let key = Key::seal(AeadAlgorithm::Aes128Gcm, &[7; 16]).unwrap();
    let chacha = Key::seal(AeadAlgorithm::ChaCha20Poly1305, &[7; 32]).unwrap();
    let refused = |device: &DeviceInfo, op: Op| match backend.supports(device, &op) {
        Support::No(reason) => reason,
        Support::Yes => "nothing".to_owned(),
    };
    let seal = |key: &Key, bytes: Bytes| Seal::new(key, [1; 12], bytes).into_op().unwrap();
    let open = |bytes: Vec<u8>| Open::new(&key, [1; 12], bytes).into_op().unwrap();
    assert_eq!(refused(&device, seal(&key, Bytes::from_vec(vec![1]))), "the kernel has no gcm(aes)");
    device.capabilities.features.push("gcm(aes)".to_owned());
    for (op, reason) in [
        (seal(&key, Bytes::from_vec(vec![1])), "nothing"),
        (seal(&chacha, Bytes::from_vec(vec![1])), "AF_ALG has nothing for it"),
        (seal(&key, Bytes::secret(vec![1]).unwrap()), "the kernel does not wipe its copies"),
        (seal(&key, Bytes::from_vec(vec![1; 70_000])), "70016 bytes with associated data and tag; AF_ALG takes 65536"),
        (open(vec![0; 16]), "AF_ALG does not open what has no text"),
        (Hash::new(HashAlgorithm::Sha256, vec![1]).into_op().unwrap(), "the kernel has no sha256"),
        (Compress::new(Format::Zstd, vec![1]).into_op().unwrap(), "AF_ALG has nothing for it"),
    ] {
        assert_eq!(refused(&device, op), reason);
    }
}
