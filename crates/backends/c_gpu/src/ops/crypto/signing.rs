//! Sign with Ed25519 and with ECDSA over P-256: a thread for each message, all under one key.
//!
//! All of it is done on the device, in constant time: the nonces of RFC 6979 and of RFC 8032, the multiple of the base, of which a thread reads
//! every entry of the table and keeps one by masks, and the rest. So two signatures of a message under a key are equal. What a key becomes lies in
//! memory that is overwritten behind the op; nonces lie in registers, and where those do not suffice in memory that the device lends to threads.
//! Of keys in other forms than those that programs commonly write nothing is taken: other devices have them.

use panoply_core::op::crypto::{EcdsaEncoding, HashAlgorithm, Key, Purpose, Sign, SignatureAlgorithm};
use panoply_core::{Bytes, Error, Result, Value};
use panoply_kernels::c::{ED25519_SIGN, Kernel, P256_SIGN};
use zeroize::Zeroizing;

use super::answer::{Made, Place};
use super::signatures::{base_table, thread_each};
use super::{ed25519, p256, sha};
use crate::arguments::Arguments;
use crate::context::Context;
use crate::driver::{Address, Launch};
use crate::ops::messages::{Batch, Gathered, Terms, place_plain, place_secrets};

/// Bytes of a signature as kernels make it.
const SIGNATURE_BYTES: usize = 64;
const NUMBER_BYTES: usize = 32;
/// Bits of a window of the tables. Each entry is read for each message.
const WINDOW: usize = 4;
/// What is made of a key of Ed25519: the factor, what is hashed before a message, and the public key.
const EXPANDED_BYTES: usize = 3 * NUMBER_BYTES;
/// What stands before the seed in PKCS#8.
const ED25519_PREFIX: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];
/// What stands before the private key in PKCS#8, and before both coordinates of the public one.
const P256_PREFIX: [u8; 36] = [
    0x30, 0x81, 0x87, 0x02, 0x01, 0x00, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08,
    0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x04, 0x6d, 0x30, 0x6b, 0x02, 0x01, 0x01, 0x04, 0x20,
];
const P256_PUBLIC_PREFIX: [u8; 6] = [0xa1, 0x44, 0x03, 0x42, 0x00, 0x04];
/// The order of P-256's base, the highest word first.
const P256_ORDER: [u64; 4] = [0xffff_ffff_0000_0000, u64::MAX, 0xbce6_faad_a717_9e84, 0xf3b9_cac2_fc63_2551];

/// Whether this is a key for such signatures, on the host, in a form that is known here.
pub(super) fn is_for(key: &Key) -> bool {
    private_key(key).is_some()
}

/// A key's secret, and what comes with it.
enum PrivateKey<'a> {
    Ed25519 { seed: &'a [u8; NUMBER_BYTES] },
    P256 { secret: &'a [u8; NUMBER_BYTES], public: &'a [u8; 2 * NUMBER_BYTES], encoding: EcdsaEncoding },
}

fn private_key(key: &Key) -> Option<PrivateKey<'_>> {
    let pkcs8 = key.material().as_slice().ok()?;
    match key.purpose() {
        Purpose::Sign(SignatureAlgorithm::Ed25519) => {
            Some(PrivateKey::Ed25519 { seed: pkcs8.strip_prefix(&ED25519_PREFIX)?.try_into().ok()? })
        }
        Purpose::Sign(SignatureAlgorithm::EcdsaP256(encoding)) => {
            let (secret, rest) = pkcs8.strip_prefix(&P256_PREFIX)?.split_first_chunk()?;
            let public = rest.strip_prefix(&P256_PUBLIC_PREFIX)?.try_into().ok()?;
            Some(PrivateKey::P256 { secret, public, encoding })
        }
        _ => None,
    }
}

pub(super) fn sign(op: &Sign, context: &mut Context) -> Result<Value> {
    let key = private_key(op.key()).ok_or_else(|| op.key().invalid())?;
    if let PrivateKey::P256 { secret, .. } = &key
        && !is_below_order(secret)
    {
        return Err(op.key().invalid());
    }
    let texts = Gathered::new(op.messages(), context)?;
    let terms = Terms { behind: 0, unit_bytes: 1, answer_len: &|_| SIGNATURE_BYTES, data: None };
    let batch = Batch::new(&texts, &terms, context)?;
    let is_der = matches!(key, PrivateKey::P256 { encoding: EcdsaEncoding::Der, .. });
    // How long the other form becomes is seen on the host alone.
    let place = if is_der { Place::Host } else { Place::of(texts.is_resident) };
    let made = Made::new(batch.answer_bytes(), place, context)?;
    if batch.count() > 0 {
        let arguments = Arguments::new().address(made.address).address(texts.address).address(batch.rows());
        match key {
            PrivateKey::Ed25519 { seed } => sign_ed25519(seed, &batch, arguments, context)?,
            PrivateKey::P256 { secret, public, .. } => sign_p256(secret, public, &batch, arguments, context)?,
        }
    }
    if !is_der {
        return made.into_value(op.messages(), batch.into_offsets(), context);
    }
    let like = op.messages().clone();
    made.finished(context, move |pinned| {
        let (mut bytes, mut offsets) = (Vec::new(), vec![0]);
        for signature in pinned.0.bytes().as_chunks::<SIGNATURE_BYTES>().0 {
            write_der(signature, &mut bytes);
            offsets.push(bytes.len());
        }
        like.like(Bytes::from_vec(bytes), offsets)?.into_value()
    })
}

fn sign_ed25519(seed: &[u8], batch: &Batch, arguments: Arguments, context: &mut Context) -> Result<()> {
    let kernel = |entry, is_key| Kernel::new(ED25519_SIGN, entry).flag("WIDE", true).flag("EXPAND", is_key);
    let bytes = ed25519::multiples_bytes(WINDOW, 1);
    let table = base_table(
        |tables| &mut tables.ed25519,
        bytes,
        context,
        |table, context| ed25519::make_multiples(table, Address::NULL, WINDOW, 1, context),
    )?;
    let (seed, expanded) = (place_secrets(&[seed], context)?, context.secret_scratch(EXPANDED_BYTES)?);
    let first = place_plain(sha::first_state(HashAlgorithm::Sha512), context)?;
    let mut expand = Arguments::new().address(expanded).address(seed).address(table).address(first);
    context.launch(&kernel("ed25519_expand", true), Launch::new(1, 32), &mut expand)?;
    let arguments = arguments.address(table).address(expanded).address(first);
    context.launch(&kernel("ed25519_sign", false), thread_each(batch.count()), &mut batch.add_to(arguments))
}

fn sign_p256(secret: &[u8], public: &[u8], batch: &Batch, arguments: Arguments, context: &mut Context) -> Result<()> {
    let bytes = p256::multiples_bytes(WINDOW, 1);
    let table = base_table(
        |tables| &mut tables.p256,
        bytes,
        context,
        |table, context| p256::make_multiples(table, Address::NULL, WINDOW, 1, context),
    )?;
    let key = place_secrets(&[secret, public], context)?;
    let first = place_plain(sha::first_state(HashAlgorithm::Sha256), context)?;
    let complaint = context.approval(foreign_public, 0)?;
    let arguments = arguments.address(table).address(key).address(first).address(complaint);
    let kernel = Kernel::new(P256_SIGN, "p256_sign").flag("WIDE", false);
    // One thread more looks at the key.
    context.launch(&kernel, thread_each(batch.count() + 1), &mut batch.add_to(arguments))
}

/// The public key beside the private one is another's.
fn foreign_public(_: u64, _: u64) -> Error {
    Error::InvalidKey { algorithm: SignatureAlgorithm::EcdsaP256(EcdsaEncoding::Der).name() }
}

/// Whether a private key of P-256 is one: not zero, and below the order. It takes the same time for all of them.
fn is_below_order(secret: &[u8; NUMBER_BYTES]) -> bool {
    let words = Zeroizing::new(std::array::from_fn::<u64, 4, _>(|index| {
        secret[8 * index..8 * index + 8].iter().fold(0, |word, byte| word << 8 | u64::from(*byte))
    }));
    let (mut borrow, mut any) = (0, 0);
    for (word, most) in words.iter().zip(P256_ORDER).rev() {
        borrow = (u128::from(*word).wrapping_sub(u128::from(most)).wrapping_sub(borrow) >> 64) & 1;
        any |= word;
    }
    borrow == 1 && any != 0
}

/// Both numbers of a signature as a SEQUENCE of DER.
fn write_der(signature: &[u8; SIGNATURE_BYTES], to: &mut Vec<u8>) {
    let start = to.len();
    to.extend([0x30, 0]);
    for number in signature.as_chunks::<NUMBER_BYTES>().0 {
        let zeros = number.iter().take(NUMBER_BYTES - 1).take_while(|byte| **byte == 0).count();
        let number = &number[zeros..];
        // Numbers with their highest bit have a zero before it: they are not negative.
        let sign: &[u8] = if number[0] >= 0x80 { &[0] } else { &[] };
        to.extend([0x02, (sign.len() + number.len()) as u8]);
        to.extend(sign.iter().chain(number));
    }
    to[start + 1] = (to.len() - start - 2) as u8;
}

#[cfg(test)]
mod tests {
    use panoply_conformance::run_one;
    use panoply_core::op::crypto::{Messages, Verify};
    use panoply_core::{Backend, Engine, OpenOptions, Operation};
    use panoply_cpu::CpuBackend;

    use super::*;
    use crate::{EmulatedBackend, GpuBackend};

    const FIXED: SignatureAlgorithm = SignatureAlgorithm::EcdsaP256(EcdsaEncoding::Fixed);
    const DER: SignatureAlgorithm = SignatureAlgorithm::EcdsaP256(EcdsaEncoding::Der);

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect()
    }

    /// The key of RFC 6979, A.2.5.
    const SECRET: &str = "c9afa9d845ba75166b5c215767b1d6934e50c3db36e89b127b8a622b120f6721";
    const PUBLIC: &str = "60fed4ba255a9d31c961eb74c6356d68c049b8923b61fa6ce669622e60f29fb6\
        7903fe1008b8bc99a41ae9e95628bc64f2f1b20c2d7e9f5177a3c294d4462299";
    /// What it signs with SHA-256.
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

    fn ed25519(seed: &[u8]) -> Key {
        Key::sign(SignatureAlgorithm::Ed25519, &[&ED25519_PREFIX[..], seed].concat()).unwrap()
    }

    fn p256(algorithm: SignatureAlgorithm, secret: &[u8]) -> Key {
        let pkcs8 = [&P256_PREFIX[..], secret, &P256_PUBLIC_PREFIX, &bytes(PUBLIC)].concat();
        Key::sign(algorithm, &pkcs8).unwrap()
    }

    /// Both widths of the emulated device.
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

    /// Messages of many lengths, from a seed.
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
    fn published_signatures_are_made() {
        with_engines(|engine| {
            for (seed, message, signature) in EDWARDS {
                let made = signed(engine, &ed25519(&bytes(seed)), bytes(message)).unwrap();
                assert_eq!(slices(&made), [bytes(signature)]);
            }
            for (message, signature) in SIGNED {
                let made = signed(engine, &p256(FIXED, &bytes(SECRET)), message.to_vec()).unwrap();
                assert_eq!(slices(&made), [bytes(signature)]);
            }
        });
    }

    /// The processor's signatures of Ed25519 are the same; those of ECDSA it accepts, in both encodings.
    #[test]
    fn the_processor_agrees() {
        let backend = CpuBackend::new();
        let device = backend.discover().unwrap().remove(0);
        let mut processor = backend.open(&device, &OpenOptions::default()).unwrap();
        let messages = messages(70);
        with_engines(|engine| {
            for seed in [[0; 32], [0xff; 32], std::array::from_fn(|index| index as u8)] {
                let key = ed25519(&seed);
                let made = signed(engine, &key, messages.clone()).unwrap();
                let expected = signed(processor.as_mut(), &key, messages.clone()).unwrap();
                assert_eq!(slices(&made), slices(&expected));
            }
            for algorithm in [FIXED, DER] {
                let made = signed(engine, &p256(algorithm, &bytes(SECRET)), messages.clone()).unwrap();
                let public = Key::verify(algorithm, &[&[4][..], &bytes(PUBLIC)].concat()).unwrap();
                let verify = Verify::new(&public, messages.clone(), made).into_op().unwrap();
                let verdicts = Verify::output(run_one(processor.as_mut(), verify).unwrap()).unwrap();
                assert_eq!(verdicts, [true; 70]);
            }
        });
    }

    #[test]
    fn keys_that_are_none_are_refused() {
        with_engines(|engine| {
            let refused = |engine: &mut dyn Engine, secret: &[u8]| {
                let made = signed(engine, &p256(FIXED, secret), vec![1; 5]);
                assert!(matches!(made, Err(Error::InvalidKey { .. })), "{made:?}");
            };
            let order = bytes("ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551");
            let mut other = bytes(SECRET);
            other[31] ^= 1;
            for secret in [&[0; 32][..], &[0xff; 32], &order, &other] {
                refused(engine, secret);
            }
            // Nothing to sign.
            let none = signed(engine, &p256(DER, &bytes(SECRET)), Messages::from(Vec::<Bytes>::new())).unwrap();
            assert_eq!(none.count(), 0);
        });
        assert!(is_below_order(&bytes(SECRET).try_into().unwrap()));
        let other_form = Key::sign(FIXED, &[0x30; 67]).unwrap();
        assert!(!is_for(&other_form));
    }

    #[test]
    fn numbers_are_written_as_der_has_them() {
        let mut signature = [0; SIGNATURE_BYTES];
        (signature[31], signature[32]) = (0x7f, 0x80);
        let mut der = Vec::new();
        write_der(&signature, &mut der);
        assert_eq!(der[..6], [0x30, 38, 2, 1, 0x7f, 2]);
        assert_eq!((der[6], der[7], der[8], der.len()), (33, 0, 0x80, 40));
        write_der(&[0; SIGNATURE_BYTES], &mut der);
        assert_eq!(der[40..], [0x30, 6, 2, 1, 0, 2, 1, 0]);
    }
}
