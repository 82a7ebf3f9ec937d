//! Tests of signing on the emulated device: published signatures, faults, and hedged nonces.

use std::cell::Cell;

use panoply_conformance::run_one;
use panoply_core::op::compute::Transfer;
use panoply_core::op::crypto::{Hash, Messages, Verify};
use panoply_core::{Backend, Engine, OpenOptions, Operation};
use panoply_cpu::CpuBackend;

use super::*;
use crate::{EmulatedBackend, GpuBackend};

thread_local! {
    /// Whether nonces are those of RFC 8032 and RFC 6979, without randomness: as in published
    /// signatures. Programs never get such nonces.
    pub(super) static ARE_AS_PUBLISHED: Cell<bool> = const { Cell::new(false) };
}

/// Runs with nonces as published.
fn as_published<T>(run: impl FnOnce() -> T) -> T {
    ARE_AS_PUBLISHED.set(true);
    let result = run();
    ARE_AS_PUBLISHED.set(false);
    result
}

const FIXED: SignatureAlgorithm = SignatureAlgorithm::EcdsaP256(EcdsaEncoding::Fixed);
const DER: SignatureAlgorithm = SignatureAlgorithm::EcdsaP256(EcdsaEncoding::Der);
const FIXED_384: SignatureAlgorithm = SignatureAlgorithm::EcdsaP384(EcdsaEncoding::Fixed);
const DER_384: SignatureAlgorithm = SignatureAlgorithm::EcdsaP384(EcdsaEncoding::Der);

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect()
}

/// The key of RFC 6979, A.2.5.
const SECRET: &str = "c9afa9d845ba75166b5c215767b1d6934e50c3db36e89b127b8a622b120f6721";
const PUBLIC: &str = "60fed4ba255a9d31c961eb74c6356d68c049b8923b61fa6ce669622e60f29fb6\
    7903fe1008b8bc99a41ae9e95628bc64f2f1b20c2d7e9f5177a3c294d4462299";
/// Its signatures with SHA-256.
const SIGNED: [(&[u8], &str); 2] = [
    (
        b"sample",
        "efd48b2aacb6a8fd1140dd9cd45e81d69d2c877b56aaf991c34d0ea84eaf3716\
         f7cb1c942d657c41d436c7a1b6e29f65f3e900dbb9aff4064dc4ab2f843acda8",
    ),
    (
        b"test",
        "f1abb023518351cd71d881567b1ea663ed3efcf6c5132b354f28d3b0b7d38367\
         019f4113742a2b14bd25926b49c649155f267e60d3814b4c0cc84250e46f0083",
    ),
];
/// The key of RFC 6979, A.2.6.
const SECRET_384: &str = "6b9d3dad2e1b8c1c05b19875b6659f4de23c3b667bf297ba9aa47740787137d8\
    96d5724e4c70a825f872c9ea60d2edf5";
const PUBLIC_384: &str = "ec3a4e415b4e19a4568618029f427fa5da9a8bc4ae92e02e06aae5286b300c64\
    def8f0ea9055866064a254515480bc138015d9b72d7d57244ea8ef9ac0c62189\
    6708a59367f9dfb9f54ca84b3f1c9db1288b231c3ae0d4fe7344fd2533264720";
/// Its signatures with SHA-384.
const SIGNED_384: [(&[u8], &str); 2] = [
    (
        b"sample",
        "94edbb92a5ecb8aad4736e56c691916b3f88140666ce9fa73d64c4ea95ad133c\
         81a648152e44acf96e36dd1e80fabe4699ef4aeb15f178cea1fe40db2603138f\
         130e740a19624526203b6351d0a3a94fa329c145786e679e7b82c71a38628ac8",
    ),
    (
        b"test",
        "8203b63d3c853e8d77227fb377bcf7b7b772e97892a80f36ab775d509d7a5feb\
         0542a7f0812998da8f1dd3ca3cf023dbddd0760448d42d8a43af45af836fce4d\
         e8be06b485e9b61b827c2f13173923e06a739f040649a667bf3b828246baa5a5",
    ),
];
/// Seeds, messages and signatures of RFC 8032, 7.1.
const EDWARDS: [(&str, &str, &str); 3] = [
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155\
         5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da\
         085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
    (
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac\
         18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ),
];

/// The public key of the first seed.
const EDWARDS_PUBLIC: &str = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";

fn ed25519(seed: &[u8]) -> Key {
    Key::sign(SignatureAlgorithm::Ed25519, &[&ED25519_PREFIX[..], seed].concat()).unwrap()
}

/// A private key with the public key of the published one.
fn ecdsa(algorithm: SignatureAlgorithm, secret: &[u8]) -> Key {
    let (curve, _) = Curve::of(algorithm).unwrap();
    let pkcs8 = [curve.secret_prefix, secret, curve.public_prefix, &bytes(published(algorithm)[1])].concat();
    Key::sign(algorithm, &pkcs8).unwrap()
}

/// The published private key, and the public key.
fn published(algorithm: SignatureAlgorithm) -> [&'static str; 2] {
    match algorithm {
        SignatureAlgorithm::EcdsaP384(_) => [SECRET_384, PUBLIC_384],
        _ => [SECRET, PUBLIC],
    }
}

/// A published key.
fn key(algorithm: SignatureAlgorithm) -> Key {
    ecdsa(algorithm, &bytes(published(algorithm)[0]))
}

/// From this number on, signatures of both kinds are verified with tables of the key.
const MANY_COUNT: usize = 4096;

/// Runs a test with both warp widths of the emulated device.
fn with_engines(mut test: impl FnMut(&mut dyn Engine)) {
    for is_wide in [false, true] {
        let backend = match EmulatedBackend::new() {
            Ok(backend) if is_wide => backend.wide_warps(),
            Ok(backend) => backend,
            Err(absence) => return println!("skipped: {absence}"),
        };
        let info = backend.discover().unwrap().remove(0);
        test(&mut backend.open_engine(&info, &OpenOptions::default()).unwrap());
    }
}

fn signed(engine: &mut dyn Engine, key: &Key, messages: impl Into<Messages>) -> Result<Messages> {
    Sign::output(run_one(engine, Sign::new(key, messages).into_op()?)?)
}

fn slices(messages: &Messages) -> Vec<&[u8]> {
    messages.slices().unwrap()
}

/// Pseudo-random messages of many lengths.
fn messages(count: usize) -> Messages {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut byte = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    let list = (0..count).map(|index| Bytes::from_vec((0..index * 7 % 300).map(|_| byte()).collect()));
    list.collect::<Vec<_>>().into()
}

#[test]
fn published_signatures_are_made_without_randomness() {
    as_published(|| {
        with_engines(|engine| {
            for (seed, message, signature) in EDWARDS {
                let made = signed(engine, &ed25519(&bytes(seed)), bytes(message)).unwrap();
                assert_eq!(slices(&made), [bytes(signature)]);
            }
            for (algorithm, known) in [(FIXED, SIGNED), (FIXED_384, SIGNED_384)] {
                for (message, signature) in known {
                    let made = signed(engine, &key(algorithm), message.to_vec()).unwrap();
                    assert_eq!(slices(&made), [bytes(signature)]);
                }
            }
        })
    });
}

/// Without randomness the CPU's Ed25519 signatures are equal; with randomness, and for ECDSA in
/// both encodings, the CPU accepts the signatures.
#[test]
fn the_processor_agrees() {
    let backend = CpuBackend::new();
    let device = backend.discover().unwrap().remove(0);
    let mut processor = backend.open(&device, &OpenOptions::default()).unwrap();
    let messages = messages(70);
    with_engines(|engine| {
        for seed in [[0; 32], [0xff; 32], std::array::from_fn(|index| index as u8)] {
            let key = ed25519(&seed);
            let made = as_published(|| signed(engine, &key, messages.clone())).unwrap();
            let expected = signed(processor.as_mut(), &key, messages.clone()).unwrap();
            assert_eq!(slices(&made), slices(&expected));
        }
        let (seed, _, _) = EDWARDS[0];
        let made = signed(engine, &ed25519(&bytes(seed)), messages.clone()).unwrap();
        let public = Key::verify(SignatureAlgorithm::Ed25519, &bytes(EDWARDS_PUBLIC)).unwrap();
        let verify = Verify::new(&public, messages.clone(), made).into_op().unwrap();
        assert_eq!(Verify::output(run_one(processor.as_mut(), verify).unwrap()).unwrap(), [true; 70]);
        for algorithm in [FIXED, DER, FIXED_384, DER_384] {
            let made = signed(engine, &key(algorithm), messages.clone()).unwrap();
            let public = Key::verify(algorithm, &[&[4][..], &bytes(published(algorithm)[1])].concat()).unwrap();
            let verify = Verify::new(&public, messages.clone(), made).into_op().unwrap();
            let verdicts = Verify::output(run_one(processor.as_mut(), verify).unwrap()).unwrap();
            assert_eq!(verdicts, [true; 70]);
        }
    });
}

/// Devices that flip one bit: of a signature, of an expanded key, or on the way to the host.
#[test]
fn a_wrong_signature_is_the_devices_fault_and_is_never_handed_out() {
    let backend = match EmulatedBackend::new() {
        Ok(backend) => backend,
        Err(absence) => return println!("skipped: {absence}"),
    };
    let ed25519 = || vec![ed25519(&[7; 32])];
    let ecdsa = || [FIXED, DER, FIXED_384, DER_384].map(key).to_vec();
    let all = || [ed25519(), ecdsa()].concat();
    // Both halves of a signature; the factor and the hashed public key of an expanded key.
    let spoiled = [
        ("ed25519_sign", 3, ed25519()),
        ("ed25519_sign", 40, ed25519()),
        ("ed25519_expand", 5, ed25519()),
        ("ed25519_expand", 70, ed25519()),
        ("ecdsa_sign", 3, ecdsa()),
        ("ecdsa_sign", 40, ecdsa()),
        ("ecdsa_sign", 70, ecdsa()),
        ("download", 3, all()),
        ("download", 40, all()),
    ];
    for (kernel, byte, keys) in spoiled {
        for key in &keys {
            let backend = backend.clone().spoils(kernel, byte);
            let info = backend.discover().unwrap().remove(0);
            let mut engine = backend.open_engine(&info, &OpenOptions::default()).unwrap();
            let made = signed(&mut engine, key, messages(5));
            let is_fault = matches!(made, Err(Error::DeviceFault { .. }));
            assert!(is_fault, "{kernel} {byte} {key:?}: {made:?}");
            // Signatures that stay on the device. Those in DER never do.
            if kernel != "download" {
                let texts = resident(&mut engine, 5);
                let made = signed(&mut engine, key, texts);
                let is_fault = matches!(made, Err(Error::DeviceFault { .. }));
                assert!(is_fault, "resident, {kernel} {byte} {key:?}: {made:?}");
            }
        }
    }
}

#[test]
fn keys_that_are_none_are_refused() {
    with_engines(|engine| {
        for algorithm in [FIXED, FIXED_384] {
            let (curve, _) = Curve::of(algorithm).unwrap();
            let len = curve.number_bytes();
            let order: Vec<u8> = curve.order[..len / 8].iter().rev().flat_map(|word| word.to_be_bytes()).collect();
            let mut other = bytes(published(algorithm)[0]);
            other[len - 1] ^= 1;
            for secret in [vec![0; len], vec![0xff; len], order, other] {
                let made = signed(engine, &ecdsa(algorithm, &secret), vec![1; 5]);
                assert_eq!(made.unwrap_err(), Error::InvalidKey { algorithm: algorithm.name() });
            }
            assert!(is_below_order(curve, &bytes(published(algorithm)[0])));
        }
        // Without messages.
        let none = signed(engine, &key(DER), Messages::from(Vec::<Bytes>::new())).unwrap();
        assert_eq!(none.count(), 0);
    });
    let other_form = Key::sign(FIXED, &[0x30; 67]).unwrap();
    assert!(!is_for(&other_form));
}

#[test]
fn numbers_are_written_as_der_has_them() {
    let (mut first, mut second) = ([0; 32], [0; 32]);
    (first[31], second[0]) = (0x7f, 0x80);
    let mut der = Vec::new();
    write_der([&first, &second], &mut der);
    assert_eq!(der[..6], [0x30, 38, 2, 1, 0x7f, 2]);
    assert_eq!((der[6], der[7], der[8], der.len()), (33, 0, 0x80, 40));
    write_der([&[0; 32]; 2], &mut der);
    assert_eq!(der[40..], [0x30, 6, 2, 1, 0, 2, 1, 0]);
    // The longest numbers of P-384.
    der.clear();
    write_der([&[0xff; 48]; 2], &mut der);
    assert_eq!((der.len(), &der[..5]), (104, &[0x30, 102, 2, 49, 0][..]));
}

/// Messages of 40 bytes on the device.
fn resident(engine: &mut dyn Engine, count: usize) -> Messages {
    let bytes = Tensor::from_vec((0..count * 40).map(|at| (at % 251) as u8).collect(), [count * 40]).unwrap();
    let transfer = Transfer::to_device(&bytes, engine.info().id).into_op().unwrap();
    let there = run_one(engine, transfer).unwrap().into_tensor().unwrap();
    Messages::split(Bytes::from_tensor(&there).unwrap(), 40).unwrap()
}

/// Enough signatures to be verified with tables of the key, which kernels of their own compute.
#[test]
fn a_wrong_signature_among_many_is_found_too() {
    let backend = match EmulatedBackend::new() {
        Ok(backend) => backend,
        Err(absence) => return println!("skipped: {absence}"),
    };
    // In the last message but one.
    let byte = 64 * (MANY_COUNT - 2) + 40;
    for (kernel, key) in [("ed25519_sign", ed25519(&[7; 32])), ("ecdsa_sign", key(FIXED))] {
        for (backend, is_fault) in [(backend.clone(), false), (backend.clone().spoils(kernel, byte), true)] {
            let info = backend.discover().unwrap().remove(0);
            let mut engine = backend.open_engine(&info, &OpenOptions::default()).unwrap();
            let texts = resident(&mut engine, MANY_COUNT);
            match signed(&mut engine, &key, texts) {
                Err(Error::DeviceFault { reason, .. }) if is_fault => {
                    assert!(reason.contains(&format!("message {}", MANY_COUNT - 2)), "{reason}")
                }
                made => assert!(made.is_ok() && !is_fault, "{kernel}: {made:?}"),
            }
        }
    }
}

#[test]
fn no_two_signatures_of_one_message_share_a_nonce() {
    with_engines(|engine| {
        for key in [ed25519(&[7; 32]), key(FIXED), key(FIXED_384)] {
            let texts: Vec<Bytes> = (0..3).map(|_| Bytes::from_vec(b"pay 5".to_vec())).collect();
            let made = [(); 2].map(|()| signed(engine, &key, texts.clone()).unwrap());
            let mut points: Vec<&[u8]> = made.iter().flat_map(slices).map(|signature| &signature[..32]).collect();
            points.sort_unstable();
            points.dedup();
            assert_eq!(points.len(), 6, "{key:?}");
        }
    });
}

/// A bit of a nonce flips while a signature is made: the signature verifies, and is handed out.
/// Together with the right signature of the same message it must not reveal the key, as it does
/// without randomness.
#[test]
fn a_flipped_nonce_tells_nothing_of_the_key() {
    let backend = match EmulatedBackend::new() {
        Ok(backend) => backend,
        Err(absence) => return println!("skipped: {absence}"),
    };
    let (seed, _, _) = EDWARDS[0];
    let cases: [(Key, &'static str, NonceOf); 3] = [
        (ed25519(&bytes(seed)), "modulo_order(nonce.w, hash);", nonce_of_ed25519),
        (key(FIXED), "nonce = nonce_of(from, state);", |signature| nonce_of_ecdsa(FIXED, signature)),
        (key(FIXED_384), "nonce = nonce_of(from, state);", |signature| nonce_of_ecdsa(FIXED_384, signature)),
    ];
    for (key, line, nonce_of) in cases {
        let sign = |backend: EmulatedBackend| {
            let info = backend.discover().unwrap().remove(0);
            let mut engine = backend.open_engine(&info, &OpenOptions::default()).unwrap();
            let made = signed(&mut engine, &key, SIGNED_TEXT.to_vec()).unwrap();
            nonce_of(slices(&made)[0])
        };
        let pair = || {
            let (right, modulus) = sign(backend.clone());
            let (wrong, _) = sign(backend.clone().alters(line, "nonce.w[3] ^= 0x10u;"));
            let bit = modulus.power_of_two(3 * 32 + 4);
            modulus.sum(right, bit) != wrong && modulus.sum(wrong, bit) != right
        };
        assert!(!as_published(pair), "the fault is not where it should be: {key:?}");
        assert!(pair(), "both nonces belong together: {key:?}");
    }
}

/// Computes the nonce of a signature of [`SIGNED_TEXT`], with the order that it is below.
type NonceOf = fn(&[u8]) -> (Number, Modulus);

const SIGNED_TEXT: &[u8] = b"pay 5 to alice";

/// Arithmetic modulo the order of a base point, as an attacker computes.
#[derive(Clone, Copy)]
struct Modulus(Number);

impl Modulus {
    fn sum(self, a: Number, b: Number) -> Number {
        let (mut sum, mut less, mut carry, mut borrow) = ([0; 6], [0; 6], 0, 0);
        for (at, (a, b)) in a.into_iter().zip(b).enumerate() {
            let all = u128::from(a) + u128::from(b) + carry;
            (sum[at], carry) = (all as u64, all >> 64);
            let rest = u128::from(sum[at]).wrapping_sub(u128::from(self.0[at])).wrapping_sub(borrow);
            (less[at], borrow) = (rest as u64, rest >> 64 & 1);
        }
        if carry == 1 || borrow == 0 { less } else { sum }
    }

    fn opposite(self, a: Number) -> Number {
        // The modulus minus one, times the number.
        let mut less = self.0;
        less[0] -= 1;
        self.product(a, less)
    }

    fn product(self, a: Number, b: Number) -> Number {
        (0..384).rev().fold([0; 6], |product, bit| {
            let twice = self.sum(product, product);
            if b[bit / 64] >> (bit % 64) & 1 == 1 { self.sum(twice, a) } else { twice }
        })
    }

    /// The inverse, by the power of the modulus minus two.
    fn inverse(self, a: Number) -> Number {
        let mut exponent = self.0;
        exponent[0] -= 2;
        (0..384).rev().fold([1, 0, 0, 0, 0, 0], |power, bit| {
            let square = self.product(power, power);
            if exponent[bit / 64] >> (bit % 64) & 1 == 1 { self.product(square, a) } else { square }
        })
    }

    fn power_of_two(self, exponent: usize) -> Number {
        (0..exponent).fold([1, 0, 0, 0, 0, 0], |power, _| self.sum(power, power))
    }

    /// A big-endian number of any length.
    fn number<'a>(self, bytes: impl IntoIterator<Item = &'a u8>) -> Number {
        bytes.into_iter().fold([0; 6], |number, byte| {
            let moved = self.product(number, [256, 0, 0, 0, 0, 0]);
            self.sum(moved, [u64::from(*byte), 0, 0, 0, 0, 0])
        })
    }
}

/// The hash of these parts, from the CPU.
fn hashed(algorithm: HashAlgorithm, parts: &[&[u8]]) -> Vec<u8> {
    let backend = CpuBackend::new();
    let device = backend.discover().unwrap().remove(0);
    let mut processor = backend.open(&device, &OpenOptions::default()).unwrap();
    let op = Hash::new(algorithm, parts.concat()).into_op().unwrap();
    Hash::output(run_one(processor.as_mut(), op).unwrap()).unwrap().slices().unwrap()[0].to_vec()
}

/// The nonce of an Ed25519 signature, computed with the key: S - h a.
fn nonce_of_ed25519(signature: &[u8]) -> (Number, Modulus) {
    let order = Modulus([0x5812_631a_5cf5_d3ed, 0x14de_f9de_a2f7_9cd6, 0, 0x1000_0000_0000_0000, 0, 0]);
    let mut factor = hashed(HashAlgorithm::Sha512, &[&bytes(EDWARDS[0].0)]);
    factor.truncate(32);
    factor[0] &= 0xf8;
    factor[31] = factor[31] & 0x7f | 0x40;
    let (point, s) = signature.split_at(32);
    let hash = hashed(HashAlgorithm::Sha512, &[point, &bytes(EDWARDS_PUBLIC), SIGNED_TEXT]);
    let [factor, s, hash] = [&factor[..], s, &hash].map(|bytes| order.number(bytes.iter().rev()));
    (order.sum(s, order.opposite(order.product(hash, factor))), order)
}

/// The same for ECDSA: (z + r d) / s.
fn nonce_of_ecdsa(algorithm: SignatureAlgorithm, signature: &[u8]) -> (Number, Modulus) {
    let (curve, _) = Curve::of(algorithm).unwrap();
    let order = Modulus(curve.order);
    let (r, s) = signature.split_at(curve.number_bytes());
    let hash = hashed(curve.hash, &[SIGNED_TEXT]);
    let secret = bytes(published(algorithm)[0]);
    let [secret, r, s, hash] = [&secret[..], r, s, &hash].map(|bytes| order.number(bytes.iter()));
    (order.product(order.sum(hash, order.product(r, secret)), order.inverse(s)), order)
}
