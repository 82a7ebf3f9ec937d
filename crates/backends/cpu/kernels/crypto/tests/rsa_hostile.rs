//! Invalid RSA private keys cause no panic and no wrong signature. Each number of a key is replaced
//! by others. Keys with consistent numbers but composite factors are read from
//! `rsa_composite_keys.txt` (made by `rsa_composite_keys.py`).
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use aws_lc_rs::signature::{KeyPair, RsaKeyPair};
use panoply_conformance::values::Random;
use panoply_core::op::crypto::*;
use panoply_core::{Bytes, HostBufferMut, Op, Operation, Result};
use panoply_cpu_crypto::{OneThread, State};

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 2;
const OCTETS: u8 = 4;
/// The algorithm identifier of RSA.
const NAME: [u8; 15] = [0x30, 0x0d, 6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1, 5, 0];

fn run<O: Operation>(wide: bool, op: O) -> Result<O::Output> {
    let Op::Crypto(op) = op.into_op()? else { panic!("another domain") };
    O::output(panoply_cpu_crypto::run(&op, &mut State::new(wide), &OneThread, &mut HostBufferMut::zeroed)?)
}

fn bytes_of(hex: &str) -> Vec<u8> {
    let digits = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    hex.as_bytes().chunks(2).map(digits).collect()
}

/// The 2048-bit keys of a file: name and PKCS#8.
fn keys(file: &str) -> Vec<(String, Vec<u8>)> {
    let fields = file.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    fields.filter(|fields| fields[0] == "256").map(|fields| (fields[1].to_owned(), bytes_of(fields[2]))).collect()
}

fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let head = match content.len() {
        len @ 0..0x80 => vec![tag, len as u8],
        len @ 0x80..0x100 => vec![tag, 0x81, len as u8],
        len => vec![tag, 0x82, (len >> 8) as u8, len as u8],
    };
    [&head, content].concat()
}

/// The next element's content, and the bytes behind it.
fn next(der: &[u8]) -> (&[u8], &[u8]) {
    let more = usize::from(der[1] & 0x7f) * usize::from(der[1] >= 0x80);
    let len = match more {
        0 => usize::from(der[1]),
        _ => der[2..2 + more].iter().fold(0, |len, byte| len << 8 | usize::from(*byte)),
    };
    der[2 + more..].split_at(len)
}

/// The nine numbers of PKCS#8.
fn numbers_of(pkcs8: &[u8]) -> Vec<Vec<u8>> {
    let (_, behind_version) = next(next(pkcs8).0);
    let (_, behind_name) = next(behind_version);
    let mut rest = next(next(behind_name).0).0;
    let mut numbers = Vec::new();
    while !rest.is_empty() {
        let (number, behind) = next(rest);
        numbers.push(number.to_vec());
        rest = behind;
    }
    numbers
}

/// PKCS#8 of arbitrary elements.
fn pkcs8_of(elements: &[Vec<u8>]) -> Vec<u8> {
    let key = element(OCTETS, &element(SEQUENCE, &elements.concat()));
    element(SEQUENCE, &[&element(INTEGER, &[0]), &NAME[..], &key].concat())
}

/// Signs with a key in lanes and without, and returns whether it was accepted. Every signature must
/// be valid for the library under the key's own public key.
fn is_taken(name: &str, pkcs8: &[u8]) -> bool {
    let messages: Vec<Bytes> = (0..9_u8).map(|len| vec![len; usize::from(len)].into()).collect();
    let mut taken = [false; 4];
    for (way, taken) in taken.iter_mut().enumerate() {
        let padding = [RsaPadding::Pkcs1, RsaPadding::Pss][way % 2];
        let algorithm = SignatureAlgorithm::rsa(RsaBits::Bits2048, padding);
        let Ok(key) = Key::sign(algorithm, pkcs8) else { continue };
        let Ok(made) = run(way < 2, Sign::new(&key, messages.clone())) else { continue };
        let own = RsaKeyPair::from_pkcs8(pkcs8).unwrap();
        let own = Key::verify(algorithm, own.public_key().as_ref()).unwrap();
        let verdicts = run(false, Verify::new(&own, messages.clone(), made)).unwrap();
        assert!(verdicts.iter().all(|verdict| *verdict), "{name}: a signature that is not right");
        *taken = true;
    }
    assert!(taken == [taken[0]; 4], "{name}: {taken:?}");
    taken[0]
}

/// Replacements for a number.
fn replaced(number: &[u8]) -> Vec<Vec<u8>> {
    let with_low = |change: &dyn Fn(u8) -> u8| {
        let mut other = number.to_vec();
        other.iter_mut().last().into_iter().for_each(|low| *low = change(*low));
        element(INTEGER, &other)
    };
    let below_zero = [&[0x80 | number[0]], &number[1..]].concat();
    let mut others = vec![
        with_low(&|low| low & 0xfe),
        with_low(&|low| low ^ 2),
        with_low(&|low| low.wrapping_add(1)),
        element(INTEGER, &below_zero),
        element(INTEGER, number.strip_prefix(&[0]).unwrap_or(number)),
        element(INTEGER, &[&[0, 0], number].concat()),
        element(INTEGER, &number[number.len() / 2..]),
        element(INTEGER, &[0x7f; 3000]),
        // Lengths beyond the end, and an indefinite one.
        vec![INTEGER, 0x84, 0xff, 0xff, 0xff, 0xff, 1],
        vec![INTEGER, 0x80, 1, 0, 0],
        Vec::new(),
    ];
    others.extend([&[][..], &[0], &[1], &[2]].map(|small| element(INTEGER, small)));
    others
}

#[test]
fn keys_whose_numbers_do_not_fit_together_sign_nothing_wrong() {
    let (mut source, mut taken, mut tried) = (Random::new(80), 0, 0);
    for (name, pkcs8) in &keys(include_str!("rsa_keys.txt"))[..3] {
        let numbers = numbers_of(pkcs8);
        let elements: Vec<Vec<u8>> = numbers.iter().map(|number| element(INTEGER, number)).collect();
        assert!(numbers.len() == 9 && pkcs8_of(&elements) == *pkcs8 && is_taken(name, pkcs8), "{name}");
        let mut others = Vec::new();
        for field in 0..9 {
            let in_place = numbers.iter().map(|number| element(INTEGER, number)).chain(replaced(&numbers[field]));
            for other in in_place.filter(|other| *other != elements[field]) {
                let mut elements = elements.clone();
                elements[field] = other;
                others.push(pkcs8_of(&elements));
            }
        }
        // p twice, with all numbers that belong to it.
        let [n, e, d, p, d_p, q_inverse] = [1, 2, 3, 4, 6, 8].map(|field| elements[field].clone());
        others.push(pkcs8_of(&[elements[0].clone(), n, e, d, p.clone(), p, d_p.clone(), d_p, q_inverse]));
        others.extend((0..pkcs8.len()).step_by(61).map(|len| pkcs8[..len].to_vec()));
        for _ in 0..100 {
            let mut other = pkcs8.clone();
            other[source.below(pkcs8.len() as u64) as usize] ^= 1 << source.below(8);
            others.push(other);
        }
        tried += others.len();
        taken += others.iter().filter(|other| is_taken(name, other)).count();
    }
    println!("{taken} of {tried} taken");
    assert!(taken < tried / 20, "{taken} of {tried}");
}

/// Accepted keys sign correctly or not at all: a result whose public power is not the original
/// number is not released.
#[test]
fn keys_whose_factors_are_no_primes_sign_nothing_wrong() {
    let keys = keys(include_str!("rsa_composite_keys.txt"));
    assert!(keys.len() >= 3);
    for (name, pkcs8) in keys {
        println!("{name}: {}", is_taken(&name, &pkcs8));
    }
}
