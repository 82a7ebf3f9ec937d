//! RSA in lanes against AWS-LC: keys of unusual lengths and exponents (`rsa_keys.py`), every
//! padding and hash, valid and invalid signatures.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::io::Write;

use aws_lc_rs::signature::{KeyPair, RsaKeyPair};
use panoply_conformance::values::Random;
use panoply_core::op::crypto::*;
use panoply_core::{Bytes, HostBufferMut, Op, Operation};
use panoply_cpu_crypto::signature::generate;
use panoply_cpu_crypto::{OneThread, State, Threads, lanes};

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

/// A private key and its public key.
struct Pair {
    name: String,
    bits: RsaBits,
    pkcs8: Vec<u8>,
    public: Vec<u8>,
}

impl Pair {
    fn keys(&self, padding: RsaPadding, hash: HashAlgorithm) -> (Key, Key) {
        let algorithm = SignatureAlgorithm::Rsa { bits: self.bits, padding, hash };
        (Key::sign(algorithm, &self.pkcs8).unwrap(), Key::verify(algorithm, &self.public).unwrap())
    }
}

/// The key pairs of `rsa_keys.txt`, and new ones.
fn pairs() -> Vec<Pair> {
    let all = [RsaBits::Bits2048, RsaBits::Bits3072, RsaBits::Bits4096];
    let from_file = include_str!("rsa_keys.txt").lines().map(|line| {
        let [bytes, name, hex] = line.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let pkcs8: Vec<u8> = hex.as_bytes().chunks(2).map(byte).collect();
        let public = RsaKeyPair::from_pkcs8(&pkcs8).unwrap().public_key().as_ref().to_vec();
        let bits = all.into_iter().find(|bits| bits.bytes().to_string() == bytes).unwrap();
        Pair { name: name.to_owned(), bits, pkcs8, public }
    });
    let new = all.into_iter().map(|bits| {
        let made = generate(SignatureAlgorithm::rsa(bits, RsaPadding::Pss)).unwrap();
        Pair { name: format!("{bits:?}"), bits, pkcs8: made.pkcs8, public: made.public }
    });
    from_file.chain(new).collect()
}

fn byte(digits: &[u8]) -> u8 {
    u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap()
}

fn random(random: &mut Random, len: usize) -> Vec<u8> {
    (0..len).map(|_| random.next_u64() as u8).collect()
}

fn run<O: Operation>(wide: bool, threads: &dyn Threads, op: O) -> O::Output {
    let Op::Crypto(op) = op.into_op().unwrap() else { panic!("another domain") };
    let mut used = |bytes: usize| {
        let mut memory = HostBufferMut::zeroed(bytes)?;
        memory.bytes_mut().fill(0xa5);
        Ok(memory)
    };
    O::output(panoply_cpu_crypto::run(&op, &mut State::new(wide), threads, &mut used).unwrap()).unwrap()
}

fn sign(wide: bool, threads: &dyn Threads, key: &Key, messages: &[Bytes]) -> Vec<Vec<u8>> {
    let made = run(wide, threads, Sign::new(key, messages.to_vec()));
    made.slices().unwrap().into_iter().map(<[u8]>::to_vec).collect()
}

fn verify(wide: bool, threads: &dyn Threads, key: &Key, messages: &[Bytes], signatures: &[Vec<u8>]) -> Vec<bool> {
    let signatures: Vec<Bytes> = signatures.iter().map(|signature| signature.clone().into()).collect();
    run(wide, threads, Verify::new(key, messages.to_vec(), signatures))
}

/// Whether there are lanes; prints a line if not.
fn is_there() -> bool {
    if !lanes::detected_for_rsa() {
        std::io::stderr().write_all(b"skipped: no lanes that sign with RSA on this CPU\n").unwrap();
    }
    lanes::detected_for_rsa()
}

#[test]
fn signatures_made_in_lanes_are_those_of_the_library() {
    is_there();
    let mut source = Random::new(70);
    for (pair, count) in pairs().iter().zip([4, 8, 9, 13, 16, 17, 24, 5].into_iter().cycle()) {
        for hash in HashAlgorithm::ALL {
            let messages: Vec<Bytes> = (0..count).map(|len| random(&mut source, 37 * len).into()).collect();
            let threads: &dyn Threads = if count % 2 == 0 { &OneThread } else { &ScopedThreads };
            let (private, _) = pair.keys(RsaPadding::Pkcs1, hash);
            let made = sign(true, threads, &private, &messages);
            assert!(made == sign(false, &OneThread, &private, &messages), "{} {count}", pair.name);
            let (private, public) = pair.keys(RsaPadding::Pss, hash);
            let made = sign(true, threads, &private, &messages);
            let verdicts = verify(false, &OneThread, &public, &messages, &made);
            assert_eq!(verdicts, vec![true; count], "{}", pair.name);
            // Salts are random.
            let again = sign(true, threads, &private, &messages);
            assert!(made.iter().zip(&again).all(|(one, other)| one != other), "{}", pair.name);
        }
    }
}

/// A blinding pair is used many times, then replaced by a new one.
#[test]
fn many_signatures_under_one_key_are_right() {
    is_there();
    let pair = &pairs()[0];
    let (private, _) = pair.keys(RsaPadding::Pkcs1, HashAlgorithm::Sha256);
    let messages: Vec<Bytes> = (0..800_u32).map(|number| number.to_be_bytes().to_vec().into()).collect();
    assert!(sign(true, &OneThread, &private, &messages) == sign(false, &ScopedThreads, &private, &messages));
}

/// An altered signature, or sometimes an unaltered one.
fn altered(source: &mut Random, signature: &[u8], modulus: &[u8]) -> Vec<u8> {
    let mut altered = signature.to_vec();
    let place = source.below(altered.len() as u64) as usize;
    match source.below(14) {
        0 => altered[place] ^= 1 << source.below(8),
        1 => altered[place] = altered[place].wrapping_add(1),
        2 => altered.truncate(place),
        3 => altered.push(0),
        4 => altered.insert(0, 0),
        5 => altered = [altered.clone(), altered].concat(),
        6 => altered.clear(),
        7 => altered.fill(0),
        8 => altered.fill(0xff),
        9 => altered = modulus.to_vec(),
        10 => {
            // The modulus minus one, and one: numbers with equally simple powers.
            altered = modulus.to_vec();
            *altered.last_mut().unwrap() -= 1;
        }
        11 => {
            altered.fill(0);
            *altered.last_mut().unwrap() = 1;
        }
        12 => add(&mut altered, modulus),
        _ => {}
    }
    altered
}

/// Adds the modulus, unless the sum is too long.
fn add(number: &mut [u8], modulus: &[u8]) {
    let mut carry = 0;
    for (byte, other) in number.iter_mut().rev().zip(modulus.iter().rev()) {
        carry += u16::from(*byte) + u16::from(*other);
        *byte = carry as u8;
        carry >>= 8;
    }
}

#[test]
fn lanes_accept_what_the_library_accepts() {
    if !is_there() {
        return;
    }
    let mut source = Random::new(71);
    let (mut accepted, mut refused) = (0, 0);
    for pair in pairs() {
        let key = RsaKeyPair::from_pkcs8(&pair.pkcs8).unwrap();
        let public = key.public_key().as_ref();
        let modulus = modulus_of(public, pair.bits.bytes());
        for (padding, hash) in [
            (RsaPadding::Pkcs1, HashAlgorithm::Sha256),
            (RsaPadding::Pss, HashAlgorithm::Sha256),
            (RsaPadding::Pkcs1, HashAlgorithm::Sha512),
            (RsaPadding::Pss, HashAlgorithm::Sha384),
            (RsaPadding::Pss, HashAlgorithm::Sha512),
        ] {
            let (private, public) = pair.keys(padding, hash);
            let messages: Vec<Bytes> = (0..8).map(|len| random(&mut source, 11 * len).into()).collect();
            let made = sign(true, &OneThread, &private, &messages);
            let count = 60 + source.below(40) as usize;
            let signatures: Vec<Vec<u8>> =
                (0..count).map(|index| altered(&mut source, &made[index % 8], &modulus)).collect();
            let messages: Vec<Bytes> = (0..count).map(|index| messages[index % 8].clone()).collect();
            let expected = verify(false, &OneThread, &public, &messages, &signatures);
            assert_eq!(verify(true, &OneThread, &public, &messages, &signatures), expected, "{}", pair.name);
            assert_eq!(verify(true, &ScopedThreads, &public, &messages, &signatures), expected, "{}", pair.name);
            accepted += expected.iter().filter(|verdict| **verdict).count();
            refused += expected.iter().filter(|verdict| !**verdict).count();
        }
    }
    println!("{accepted} accepted, {refused} refused");
    assert!(accepted > 200 && refused > 2000, "{accepted} {refused}");
}

/// The first number of an RSAPublicKey.
fn modulus_of(public: &[u8], bytes: usize) -> Vec<u8> {
    let at = public.windows(2).position(|pair| pair == [0x02, 0x82]).unwrap() + 4;
    let from = at + usize::from(public[at] == 0);
    public[from..from + bytes].to_vec()
}

#[test]
fn powers_modulo_a_prime_are_fermats() {
    if !is_there() {
        return;
    }
    let mut source = Random::new(72);
    for pair in pairs() {
        let prime = first_prime(&pair.pkcs8);
        let Some(lanes) = lanes::RsaPrime::new(&prime) else { panic!("{}", pair.name) };
        let numbers: Vec<Vec<u8>> = (0..8).map(|_| random(&mut source, prime.len())).collect();
        let numbers: Vec<&[u8]> = numbers.iter().map(|number| &number[..]).collect();
        let raise = |exponent: &[u8]| {
            let mut out = vec![9; 8 * prime.len()];
            assert!(lanes.raise(&numbers, exponent, &mut out), "{}", pair.name);
            out
        };
        let mut below = prime.clone();
        *below.last_mut().unwrap() -= 1;
        let one = [vec![0; prime.len() - 1], vec![1]].concat().repeat(8);
        assert!(raise(&below) == one && raise(&[]) == one, "{}", pair.name);
        // To the power of the prime itself: the number again, modulo the prime.
        assert!(raise(&prime) == raise(&[1]), "{}", pair.name);
        assert!(!lanes.raise(&numbers, &[&[1], &prime[..]].concat(), &mut []), "{}", pair.name);
    }
    assert!(lanes::RsaPrime::new(&[2]).is_none() && lanes::RsaPrime::new(&[1]).is_none());
    assert!(lanes::RsaPrime::new(&[]).is_none() && lanes::RsaPrime::new(&[0xff; 300]).is_none());
    assert!(lanes::RsaPublic::new(&[0xff; 256], 2).is_none() && lanes::RsaPublic::new(&[0xff; 256], 1).is_none());
    assert!(lanes::RsaPublic::new(&[0xfe; 256], 3).is_none() && lanes::RsaPublic::new(&[0xff; 513], 3).is_none());
}

/// p, the sixth number of PKCS#8: it follows two versions, the modulus and both exponents.
fn first_prime(pkcs8: &[u8]) -> Vec<u8> {
    let (mut rest, mut numbers) = (pkcs8, Vec::new());
    while let [tag, len, behind @ ..] = rest {
        let more = usize::from(len & 0x7f) * usize::from(*len >= 0x80);
        let (len, behind) = match more {
            0 => (usize::from(*len), behind),
            _ => (behind[..more].iter().fold(0, |len, byte| len << 8 | usize::from(*byte)), &behind[more..]),
        };
        // Descends into containers, and skips other elements.
        rest = match tag {
            0x30 if len > 20 => behind,
            0x04 => behind,
            _ => &behind[len..],
        };
        if *tag == 2 {
            numbers.push(&behind[..len]);
        }
    }
    let prime = numbers[5];
    prime[usize::from(prime[0] == 0)..].to_vec()
}
