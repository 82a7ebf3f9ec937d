//! Whether the time of what is done with secrets depends on them: two classes of input in random order, and Welch's t of their times, as
//! dudect does it. What this crate itself does is measured (padding, its lanes), and what it leaves to AWS-LC where an attacker sends the
//! input (tags).
//!
//! A leak is there in every attempt, and its t grows with the samples; what others on the machine cause is not. So one attempt out of several
//! without a difference is enough, and `PANOPLY_TIMING_SAMPLES` says how many samples each has.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::hint::black_box;
use std::io::Write;
use std::time::Instant;

use panoply_conformance::values::Random;
use panoply_core::op::crypto::{AeadAlgorithm, CipherAlgorithm, HashAlgorithm};
use panoply_crypto::aead::AeadKey;
use panoply_crypto::cipher::{CipherKey, unpadded_len};
use panoply_crypto::hash::HmacKey;
use panoply_crypto::lanes;

const SAMPLES_DEFAULT: usize = 6_000;
/// Calls of a short function for each sample, so that the clock's steps do not count.
const CALLS: usize = 200;
/// The same of a function that takes a microsecond.
const LONG_CALLS: usize = 8;
const T_MAX: f64 = 10.0;
const ATTEMPTS: usize = 8;

/// Welch's t of the times of two classes, without the slowest tenth.
fn t_of(mut classes: [Vec<f64>; 2]) -> f64 {
    let figures = classes.each_mut().map(|times| {
        times.sort_by(f64::total_cmp);
        times.truncate(times.len() * 9 / 10);
        let count = times.len() as f64;
        let mean = times.iter().sum::<f64>() / count;
        let variance = times.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / (count - 1.0);
        (mean, variance / count)
    });
    let [(mean, error), (other_mean, other_error)] = figures;
    (mean - other_mean) / (error + other_error).sqrt().max(1e-12)
}

fn samples() -> usize {
    std::env::var("PANOPLY_TIMING_SAMPLES").ok().and_then(|count| count.parse().ok()).unwrap_or(SAMPLES_DEFAULT)
}

/// The t of two classes of inputs. What is worked on lies in the same memory for both: where it lies is no secret, and counts.
fn measured<const N: usize>(inputs: &[[u8; N]; 2], calls: usize, work: &mut dyn FnMut(&[u8; N])) -> f64 {
    let (mut random, mut classes) = (Random::new(50), [Vec::new(), Vec::new()]);
    let mut input = [0; N];
    for _ in 0..samples() {
        let class = random.below(2) as usize;
        input.copy_from_slice(black_box(&inputs[class]));
        let start = Instant::now();
        for _ in 0..calls {
            work(black_box(&input));
        }
        classes[class].push(start.elapsed().as_nanos() as f64);
    }
    t_of(classes)
}

/// Whether no difference is found in one of several attempts.
fn is_constant<const N: usize>(
    what: &str,
    inputs: &[[u8; N]; 2],
    calls: usize,
    work: &mut dyn FnMut(&[u8; N]),
) -> bool {
    (0..ATTEMPTS).any(|_| {
        let t = measured(inputs, calls, work);
        println!("{what}: t = {t:.2}");
        t.abs() < T_MAX
    })
}

#[test]
fn padding_that_is_wrong_takes_as_long_wherever_it_is_wrong() {
    let (mut first, mut last) = ([16; 32], [16; 32]);
    first[16] = 15;
    last[30] = 15;
    assert!(unpadded_len(&first).is_err() && unpadded_len(&last).is_err());
    let mut check = |blocks: &[u8; 32]| {
        let _ = black_box(unpadded_len(blocks));
    };
    assert!(is_constant("first and last byte", &[first, last], CALLS, &mut check));
    // So does a padding of one byte that is too long, and one of sixteen that is wrong.
    let mut long = [1; 32];
    long[31] = 17;
    assert!(is_constant("too long and wrong", &[long, first], CALLS, &mut check));
}

#[test]
fn the_measure_finds_a_comparison_that_stops_early() {
    let (mut first, mut last) = ([16; 32], [16; 32]);
    first[0] = 15;
    last[31] = 15;
    let mut stops_early = |blocks: &[u8; 32]| {
        black_box(blocks.iter().position(|byte| black_box(*byte) != 16));
    };
    assert!(!is_constant("stops early", &[first, last], CALLS, &mut stops_early));
}

/// The tag of `expected`, altered in its first byte, and in this one.
fn altered<const N: usize>(tag: [u8; N], place: usize) -> [[u8; N]; 2] {
    let (mut first, mut other) = (tag, tag);
    first[0] ^= 1;
    other[place] ^= 0x80;
    [first, other]
}

#[test]
fn an_altered_tag_is_refused_as_fast_wherever_it_is_altered() {
    // With the library's functions, and in lanes where there are some.
    for (algorithm, len) in
        [(AeadAlgorithm::Aes256Gcm, 64), (AeadAlgorithm::ChaCha20Poly1305, 64), (AeadAlgorithm::ChaCha20Poly1305, 1024)]
    {
        let key = AeadKey::new(algorithm, &[7; 32]).unwrap();
        let (message, mut text, mut tag) = (vec![3; len], vec![0; len], [0; 16]);
        key.seal(&[1; 12], b"", &message, &mut text, &mut tag, true).unwrap();
        let mut out = vec![0; len];
        let mut open = |tag: &[u8; 16]| {
            assert!(black_box(key.open(&[1; 12], b"", &text, tag, &mut out, true)).is_err());
        };
        for place in 1..tag.len() {
            let what = format!("{algorithm:?} of {len}, byte {place}");
            assert!(is_constant(&what, &altered(tag, place), LONG_CALLS, &mut open), "{what}");
        }
    }
}

#[test]
fn an_altered_hmac_is_refused_as_fast_wherever_it_is_altered() {
    let key = HmacKey::new(HashAlgorithm::Sha256, &[7; 32]);
    let mut tag = [0; 32];
    key.tag(b"message", &mut tag).unwrap();
    let mut verify = |tag: &[u8; 32]| assert!(!black_box(key.verify(b"message", tag)));
    for place in [1, 15, 16, 31] {
        assert!(is_constant("hmac", &altered(tag, place), LONG_CALLS, &mut verify), "byte {place}");
    }
}

/// Keys and messages that are all zeros, and that are none: the classes that dudect has for ciphers.
fn zeros_and_noise<const N: usize>() -> [[u8; N]; 2] {
    let mut random = Random::new(51);
    [[0; N], std::array::from_fn(|_| random.next_u64() as u8)]
}

#[test]
fn lanes_take_as_long_whatever_the_key_and_the_message_are() {
    const LEN: usize = 2048;
    if !lanes::detected_for_chacha() {
        std::io::stderr().write_all(b"skipped: this CPU has no AVX-512 with byte masks\n").unwrap();
        return;
    }
    let mut out = vec![0; LEN];
    let mut seal = |secret: &[u8; 32 + LEN]| {
        let lanes = lanes::ChaChaLanes::new(&secret[..32]).unwrap();
        black_box(lanes.seal(&[1; 12], b"", &secret[32..], &mut out, None));
    };
    assert!(is_constant("chacha", &zeros_and_noise(), LONG_CALLS, &mut seal));
    if !lanes::detected() {
        std::io::stderr().write_all(b"skipped: this CPU has no AVX-512 with VAES\n").unwrap();
        return;
    }
    for algorithm in CipherAlgorithm::ALL {
        let mut count = |secret: &[u8; 32 + LEN]| {
            let key = CipherKey::new(algorithm, &secret[..algorithm.key_bytes()]).unwrap();
            black_box(key.apply_counted(&[1; 16], 0, &secret[32..], &mut out, true)).unwrap();
        };
        assert!(is_constant("aes", &zeros_and_noise(), LONG_CALLS, &mut count), "{algorithm:?}");
    }
}

#[test]
fn signatures_in_lanes_take_as_long_whatever_the_key_and_the_nonces_are() {
    const COUNT: usize = 8;
    if !lanes::detected_for_curves() {
        std::io::stderr().write_all(b"skipped: no lanes for curves on this CPU\n").unwrap();
        return;
    }
    let mut out = [[0; 64]; COUNT];
    // A key and the randomness of nonces, of which all are others.
    let mut sign = |secret: &[u8; 32 + 32 * COUNT]| {
        let (key, random) = secret.split_first_chunk().unwrap();
        let lanes = lanes::P256SignLanes::new(key).unwrap();
        lanes.sign(&[[7; 32]; COUNT], random.as_chunks().0, &mut out);
        black_box(&out);
    };
    assert!(is_constant("p256", &zeros_and_noise(), 1, &mut sign));
    let mut smallest = [0; 32 + 32 * COUNT];
    smallest[31] = 1;
    assert!(is_constant("p256 with the smallest key", &[smallest, zeros_and_noise()[1]], 1, &mut sign));
}

/// A power modulo a prime, which is what signing with RSA does with its secrets: an exponent of one bit and one of noise, and so for the numbers.
#[test]
fn lanes_of_rsa_take_as_long_whatever_the_exponent_and_the_numbers_are() {
    const BYTES: usize = 128;
    let [_, mut prime] = zeros_and_noise::<BYTES>();
    prime[0] |= 0x80;
    prime[BYTES - 1] |= 1;
    let Some(lanes) = lanes::RsaPrime::new(&prime) else {
        std::io::stderr().write_all(b"skipped: this CPU has no AVX-512\n").unwrap();
        return;
    };
    // Numbers are below the prime, and exponents as long as it.
    let mut inputs = zeros_and_noise::<{ 9 * BYTES }>();
    for input in &mut inputs {
        input.chunks_exact_mut(BYTES).skip(1).for_each(|number| number[0] = 0);
        input[0] = 0x80;
    }
    let mut out = vec![0; 8 * BYTES];
    let mut raise = |secret: &[u8; 9 * BYTES]| {
        let (exponent, numbers) = secret.split_at(BYTES);
        let numbers: Vec<&[u8]> = numbers.chunks_exact(BYTES).collect();
        assert!(black_box(lanes.raise(&numbers, exponent, &mut out)));
    };
    assert!(is_constant("rsa", &inputs, 1, &mut raise));
}
