//! With `crypto_provider`, the engine delegates ciphers, hashes and signatures to AWS-LC.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use panoply_conformance::run_one;
use panoply_core::op::crypto::{AeadAlgorithm, Hash, HashAlgorithm, Key, Nonces, Seal};
use panoply_core::{Backend, Bytes, CryptoProvider, OpenOptions, Operation};
use panoply_cpu::CpuBackend;
use panoply_cpu_crypto::lanes;

/// The number of entries into the lanes for three batches: hashes, messages to seal, and messages
/// to seal in place.
fn entries_with(crypto_provider: CryptoProvider) -> u64 {
    let backend = CpuBackend::new();
    let info = backend.discover().unwrap().remove(0);
    let options = OpenOptions { threads: Some(1), crypto_provider, ..OpenOptions::default() };
    let mut engine = backend.open(&info, &options).unwrap();
    let key = Key::seal(AeadAlgorithm::Aes256Gcm, &[5; 32]).unwrap();
    let messages: Vec<Bytes> = (0..64_u8).map(|number| vec![number; 1024].into()).collect();
    let nonces: Vec<u8> = (0..64_u8).flat_map(|number| [number; 12]).collect();
    let before = lanes::entries();
    let ops = [
        Hash::new(HashAlgorithm::Sha512, messages.clone()).into_op().unwrap(),
        Seal::new(&key, Nonces::Given(nonces.into()), messages).into_op().unwrap(),
        Seal::new(&key, [99; 12], vec![1; 4096]).detached().in_place().into_op().unwrap(),
    ];
    ops.into_iter().for_each(|op| drop(run_one(&mut *engine, op).unwrap()));
    lanes::entries() - before
}

#[test]
fn the_provider_decides_which_code_runs() {
    assert_eq!(entries_with(CryptoProvider::AwsLc), 0);
    let is_wide = panoply_cpu_machine::simd::Simd::detect() == panoply_cpu_machine::simd::Simd::Avx512;
    let has_lanes = is_wide && (lanes::detected_for_hash() || lanes::detected_for_gcm());
    assert_eq!(entries_with(CryptoProvider::Fastest) > 0, has_lanes);
}
