//! Checks whether the time of operations on secrets depends on the secrets: two classes of input in
//! random order, and Welch's t of their times, as in dudect. The test measures this crate's own
//! code (padding, lanes) on each vector level that the CPU has. It measures AWS-LC's code where an
//! attacker sends the input (tags), and for P-256 and GCM on each of AWS-LC's vector levels.
//!
//! The levels of this crate's lanes: RSA has doubles of AVX-512 and integers of IFMA, ChaCha has
//! AVX-512 with and without products of 52 bits; P-256, AES and GCM have one each. A level whose
//! instructions the CPU lacks is skipped, and the test says so.
//!
//! The rule is [`ATTEMPTS`] attempts of fixed size. An attempt finds a difference if |t| exceeds
//! [`T_MAX`]; the time depends on the input if [`FOUND_MIN`] or more attempts find one with the
//! same sign. The error rates follow from the binomial distribution:
//!
//! * False alarm: if noise on the machine makes one attempt in ten find a difference by chance,
//!   with both signs equally likely, the probability is below 2e-5 for each comparison, and below
//!   1e-3 for all comparisons of this file. (Without such noise t is normal, and the probability
//!   for an attempt is 1e-23.)
//! * Missed leak: if a leak moves the mean by 0.4 standard deviations of a sample, the probability
//!   is below 1e-3. More samples find smaller leaks, in proportion to their square root:
//!   `PANOPLY_TIMING_SAMPLES`.
//!
//! `the_rates_of_error_are_as_stated` computes both figures; a comparison that stops early must be
//! found, and a class compared with itself must not.
//!
//! Not timed:
//!
//! * Signing with RSA as a whole. The powers modulo a prime, which involve the secrets, are timed;
//!   blinding, the combination of both halves (CRT) and the check of the result are not, and
//!   neither are exponents of other lengths than 1024 bits.
//! * AES-CBC, HKDF, SHA-2 and HMAC, except for the comparison of tags: AWS-LC's, or hashes in
//!   lanes, in which no branch depends on the hashed bytes.
//! * Signatures with P-384 and Ed25519, and RSA in AWS-LC: the library tests itself.
//! * Reading of keys, and verification, whose inputs are public.
//! * GPUs, QuickAssist and the kernel's sockets.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::hint::black_box;
use std::io::Write;
use std::time::Instant;

use panoply_conformance::values::Random;
use panoply_core::op::crypto::{AeadAlgorithm, CipherAlgorithm, EcdsaEncoding, HashAlgorithm, SignatureAlgorithm};
use panoply_cpu_crypto::aead::AeadKey;
use panoply_cpu_crypto::cipher::{CipherKey, unpadded_len};
use panoply_cpu_crypto::hash::HmacKey;
use panoply_cpu_crypto::lanes;
use panoply_cpu_crypto::signature::{self, PrivateKey};

const SAMPLES_DEFAULT: usize = 4_000;
/// Calls of a short function per sample, so that the clock's resolution does not matter.
const CALLS: usize = 200;
/// The same for a function that takes a microsecond.
const LONG_CALLS: usize = 8;
const T_MAX: f64 = 10.0;
/// Number of comparisons of two classes, and how many must agree on a difference.
const ATTEMPTS: usize = 7;
const FOUND_MIN: usize = 5;

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

/// The t of two classes of inputs. Both are copied to the same memory: an address is no secret, but
/// affects the time.
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

/// Whether fewer than [`FOUND_MIN`] of the attempts find a difference of one sign. Stops as soon as
/// that is decided.
fn is_constant<const N: usize>(
    what: &str,
    inputs: &[[u8; N]; 2],
    calls: usize,
    work: &mut dyn FnMut(&[u8; N]),
) -> bool {
    let mut found = [0; 2];
    for attempt in 1..=ATTEMPTS {
        let t = measured(inputs, calls, work);
        println!("{what}: t = {t:.2}");
        if t.abs() > T_MAX {
            found[usize::from(t > 0.0)] += 1;
        }
        let most = found[0].max(found[1]);
        if most >= FOUND_MIN {
            return false;
        }
        if most + ATTEMPTS - attempt < FOUND_MIN {
            return true;
        }
    }
    true
}

/// Probability of `count` or more of [`ATTEMPTS`], each with this probability.
fn at_least(count: usize, probability: f64) -> f64 {
    let ways = |chosen: usize| (0..chosen).fold(1.0, |ways, one| ways * (ATTEMPTS - one) as f64 / (one + 1) as f64);
    let exactly = |chosen: usize| {
        ways(chosen) * probability.powi(chosen as i32) * (1.0 - probability).powi((ATTEMPTS - chosen) as i32)
    };
    (count..=ATTEMPTS).map(exactly).sum()
}

/// Probability that a standard normal number is below `z`, by numerical integration.
fn normal_below(z: f64) -> f64 {
    let density = |x: f64| (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let (from, steps) = (-12.0, 24_000);
    let step = (z - from) / f64::from(steps);
    (0..steps).map(|place| density(from + (f64::from(place) + 0.5) * step) * step).sum()
}

#[test]
fn the_rates_of_error_are_as_stated() {
    // One attempt in ten finds a difference by chance, half of them of either sign.
    let false_alarm = 2.0 * at_least(FOUND_MIN, 0.05);
    println!("a false alarm for one comparison: {false_alarm:.1e}");
    assert!(false_alarm < 2e-5);
    // Comparisons of this file: three for each of 15 bytes of a tag, and some 35 more.
    assert!(80.0 * false_alarm < 1e-3);
    // Nine tenths of the samples of a class are kept; t is about the difference in standard
    // deviations times this.
    let scale = (0.9 * SAMPLES_DEFAULT as f64 / 2.0 / 2.0).sqrt();
    let missed = 1.0 - at_least(FOUND_MIN, 1.0 - normal_below(T_MAX - 0.4 * scale));
    println!("a leak of 0.4 standard deviations is missed: {missed:.1e}");
    assert!(missed < 1e-3);
}

#[test]
fn a_class_does_not_differ_from_itself() {
    let mut stops_early = |blocks: &[u8; 32]| {
        black_box(blocks.iter().position(|byte| black_box(*byte) != 16));
    };
    assert!(is_constant("itself", &[[16; 32]; 2], CALLS, &mut stops_early));
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
    // So do a padding of one byte that is too long, and one of sixteen that is wrong.
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

/// The tag of `expected`, altered in its first byte, and altered in byte `place`.
fn altered<const N: usize>(tag: [u8; N], place: usize) -> [[u8; N]; 2] {
    let (mut first, mut other) = (tag, tag);
    first[0] ^= 1;
    other[place] ^= 0x80;
    [first, other]
}

#[test]
fn an_altered_tag_is_refused_as_fast_wherever_it_is_altered() {
    // With the library's functions, and in lanes if there are any.
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

/// An input of all zeros, and one of noise: dudect's classes for ciphers.
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
    let mut without = |secret: &[u8; 32 + LEN]| {
        let lanes = lanes::ChaChaLanes::new(&secret[..32]).unwrap().without_wide_products();
        black_box(lanes.seal(&[1; 12], b"", &secret[32..], &mut out, None));
    };
    assert!(is_constant("chacha without products of 52 bits", &zeros_and_noise(), LONG_CALLS, &mut without));
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

/// GCM in lanes and in AWS-LC, with keys and messages of zeros and of noise.
#[test]
fn gcm_takes_as_long_whatever_the_key_and_the_message_are() {
    const LEN: usize = 1024;
    let (mut out, mut tag) = (vec![0; LEN], [0; 16]);
    for wide in [false, true] {
        if wide && !lanes::detected_for_gcm() {
            std::io::stderr().write_all(b"skipped: no lanes for GCM on this CPU\n").unwrap();
            continue;
        }
        let all = [(AeadAlgorithm::Aes128Gcm, 16), (AeadAlgorithm::Aes192Gcm, 24), (AeadAlgorithm::Aes256Gcm, 32)];
        for (algorithm, bytes) in all {
            let mut seal = |secret: &[u8; 32 + LEN]| {
                let key = AeadKey::with_lanes(algorithm, &secret[..bytes], wide).unwrap();
                key.seal(&[1; 12], b"", &secret[32..], &mut out, &mut tag, wide).unwrap();
                black_box((&out, tag));
            };
            let what = format!("{algorithm:?}, in lanes: {wide}");
            assert!(is_constant(&what, &zeros_and_noise(), LONG_CALLS, &mut seal), "{what}");
        }
    }
}

/// P-256 in AWS-LC, with two keys.
#[test]
fn the_librarys_signatures_take_as_long_whatever_the_key_is() {
    expect_constant_p256("as detected");
}

fn expect_constant_p256(level: &str) {
    let algorithm = SignatureAlgorithm::EcdsaP256(EcdsaEncoding::Fixed);
    let made = [(); 2].map(|()| signature::generate(algorithm).unwrap().pkcs8);
    let keys = made.map(|pkcs8| PrivateKey::with_lanes(algorithm, &pkcs8, false).unwrap());
    let mut out = [0; 64];
    let mut sign = |class: &[u8; 1]| {
        keys[usize::from(class[0])].sign(b"message", &mut out).unwrap();
        black_box(&out);
    };
    assert!(is_constant(&format!("p256 of the library, {level}"), &[[0], [1]], 1, &mut sign), "{level}");
}

/// GCM in AWS-LC, with keys and messages of zeros and of noise.
#[cfg(target_arch = "x86_64")]
fn expect_constant_gcm(level: &str) {
    const LEN: usize = 1024;
    let (mut out, mut tag) = (vec![0; LEN], [0; 16]);
    let mut seal = |secret: &[u8; 32 + LEN]| {
        let key = AeadKey::with_lanes(AeadAlgorithm::Aes256Gcm, &secret[..32], false).unwrap();
        key.seal(&[1; 12], b"", &secret[32..], &mut out, &mut tag, false).unwrap();
        black_box((&out, tag));
    };
    assert!(is_constant(&format!("gcm of the library, {level}"), &zeros_and_noise(), 1, &mut seal), "{level}");
}

/// A vector level of AWS-LC below the one that it detects.
#[cfg(target_arch = "x86_64")]
struct LowerLevel {
    name: &'static str,
    /// The features of the CPU that AWS-LC is to ignore. It reads this variable when it starts.
    ignored: &'static str,
    has_gcm: bool,
    has_p256: bool,
}

/// Where several levels have the same code for an algorithm, it is timed on one of them.
#[cfg(target_arch = "x86_64")]
static LOWERED: [LowerLevel; 4] = [
    // Without VAES, ADX and BMI2.
    LowerLevel { name: "AES-NI and AVX", ignored: "~0:~0x60000090100", has_gcm: false, has_p256: true },
    // Without AVX as well.
    LowerLevel { name: "AES-NI", ignored: "~0x1000000000000000:~0x60000090120", has_gcm: true, has_p256: true },
    // Without AES-NI and PCLMULQDQ as well.
    LowerLevel { name: "SSSE3", ignored: "~0x1200000200000000:~0x60000090120", has_gcm: true, has_p256: false },
    LowerLevel { name: "no vectors", ignored: "~0x1200020200000000:~0x60000090120", has_gcm: true, has_p256: false },
];

/// GCM and P-256 in AWS-LC on each of its vector levels, each in a process of its own. The level
/// that is detected is timed by the tests above.
#[test]
#[cfg(target_arch = "x86_64")]
fn the_library_takes_as_long_on_each_of_its_vector_levels() {
    const LEVEL: &str = "PANOPLY_TIMING_LEVEL";
    const TOOK: &str = "nanoseconds of a long message: ";
    if let Some(level) = std::env::var(LEVEL).ok().and_then(|name| LOWERED.iter().find(|level| level.name == name)) {
        let has_gcm = level.has_gcm || level.name == LOWERED[0].name && is_x86_feature_detected!("vaes");
        println!("\n{TOOK}{}", of_a_long_message());
        if has_gcm {
            expect_constant_gcm(level.name);
        }
        if level.has_p256 {
            expect_constant_p256(level.name);
        }
        return;
    }
    let nanoseconds = LOWERED.each_ref().map(|level| {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["the_library_takes_as_long_on_each_of_its_vector_levels", "--exact", "--nocapture"]);
        let output = child.env(LEVEL, level.name).env("OPENSSL_ia32cap", level.ignored).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        println!("{}:\n{said}", level.name);
        assert!(output.status.success(), "{}: {}", level.name, String::from_utf8_lossy(&output.stderr));
        let took = said.lines().find_map(|line| line.strip_prefix(TOOK)).unwrap();
        took.parse::<u128>().unwrap()
    });
    // The levels are in use: without AES-NI a message takes several times as long.
    let [_, with_aes, ssse3, plain] = nanoseconds;
    assert!(ssse3 > 2 * with_aes && plain > 2 * with_aes, "{nanoseconds:?}");
}

/// The least time of sealing 256 KiB with AWS-LC.
#[cfg(target_arch = "x86_64")]
fn of_a_long_message() -> u128 {
    const LEN: usize = 256 << 10;
    let key = AeadKey::with_lanes(AeadAlgorithm::Aes256Gcm, &[7; 32], false).unwrap();
    let (message, mut text, mut tag) = (vec![3; LEN], vec![0; LEN], [0; 16]);
    let mut seal = || {
        let start = Instant::now();
        key.seal(&[1; 12], b"", &message, &mut text, &mut tag, false).unwrap();
        start.elapsed().as_nanos()
    };
    (0..9).map(|_| seal()).min().unwrap()
}

#[test]
fn signatures_in_lanes_take_as_long_whatever_the_key_and_the_nonces_are() {
    const COUNT: usize = 8;
    if !lanes::detected_for_curves() {
        std::io::stderr().write_all(b"skipped: no lanes for curves on this CPU\n").unwrap();
        return;
    }
    let mut out = [[0; 64]; COUNT];
    // A key and the randomness of nonces; all differ.
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

/// A power modulo a prime, the secret part of signing with RSA: an exponent of one bit and one of
/// noise, and likewise for the numbers.
#[test]
fn lanes_of_rsa_take_as_long_whatever_the_exponent_and_the_numbers_are() {
    const BYTES: usize = 128;
    let [_, mut prime] = zeros_and_noise::<BYTES>();
    prime[0] |= 0x80;
    prime[BYTES - 1] |= 1;
    let levels = lanes::RsaPrime::of_each_level(&prime);
    if levels.is_empty() {
        std::io::stderr().write_all(b"skipped: this CPU has no AVX-512\n").unwrap();
    }
    // Numbers are below the prime, and exponents have its length.
    let mut inputs = zeros_and_noise::<{ 9 * BYTES }>();
    for input in &mut inputs {
        input.chunks_exact_mut(BYTES).skip(1).for_each(|number| number[0] = 0);
        input[0] = 0x80;
    }
    let mut out = vec![0; 8 * BYTES];
    for (level, lanes) in levels {
        let mut raise = |secret: &[u8; 9 * BYTES]| {
            let (exponent, numbers) = secret.split_at(BYTES);
            let numbers: Vec<&[u8]> = numbers.chunks_exact(BYTES).collect();
            assert!(black_box(lanes.raise(&numbers, exponent, &mut out)));
        };
        assert!(is_constant(level, &inputs, 1, &mut raise), "rsa with {level}");
    }
}
