//! Random messages of 0 to 70,000 bytes at odd addresses, checked by OpenSSL through Python's
//! `cryptography`, and compressed data by zlib, lz4 and zstd; signatures in both directions.
//! Skipped, with the reason, if these are not installed.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::io::Write;
use std::process::{Command, Stdio};

use panoply_conformance::values::Random;
use panoply_core::op::crypto::*;
use panoply_core::{Bytes, HostBufferMut, Op, Operation};
use panoply_cpu_crypto::{OneThread, State, signature};

fn run<O: Operation>(state: &mut State, op: O) -> O::Output {
    let Op::Crypto(op) = op.into_op().unwrap() else { panic!("another domain") };
    let value = panoply_cpu_crypto::run(&op, state, &OneThread, &mut HostBufferMut::zeroed).unwrap();
    O::output(value).unwrap()
}

struct Messenger {
    random: Random,
}

impl Messenger {
    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.random.next_u64() as u8).collect()
    }

    /// A message of a random length up to `len_max`, with short and long ones equally frequent, at
    /// an odd address.
    fn message(&mut self, len_max: u64) -> Bytes {
        let bound = 1 + self.random.below(1 + len_max.ilog2() as u64);
        let len = self.random.below((1 << bound).min(len_max + 1)) as usize;
        let skip = self.random.below(64) as usize;
        Bytes::from_vec(self.bytes(len + skip)).slice(skip, len + skip).unwrap()
    }

    /// A moderately compressible message.
    fn text(&mut self, len_max: u64) -> Bytes {
        let words: Vec<Vec<u8>> = (0..20).map(|len| self.bytes(len)).collect();
        let len = self.message(len_max).len();
        let mut text = Vec::new();
        while text.len() < len {
            text.extend_from_slice(&words[self.random.below(20) as usize]);
            text.push(self.random.next_u64() as u8);
        }
        text.truncate(len);
        Bytes::from_vec(text)
    }
}

fn hex(bytes: &[u8]) -> String {
    if bytes.is_empty() { "-".to_owned() } else { bytes.iter().map(|byte| format!("{byte:02x}")).collect() }
}

fn line(lines: &mut String, verb: &str, algorithm: &str, fields: &[&[u8]]) {
    let fields: Vec<String> = fields.iter().map(|field| hex(field)).collect();
    *lines += &format!("{verb} {algorithm} {}\n", fields.join(" "));
}

/// Prints why a test is skipped, even if it passes: output to the handle itself is not captured.
fn skipped(why: &str) {
    std::io::stderr().write_all(format!("skipped: {why}\n").as_bytes()).unwrap();
}

/// The script's output; `None`, with the reason printed, if it cannot run.
fn checked(lines: &str) -> Option<String> {
    let python = std::env::var("PANOPLY_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let has = Command::new(&python).args(["-c", "import cryptography"]).stderr(Stdio::null()).status();
    if !has.is_ok_and(|status| status.success()) {
        skipped(&format!("{python} has no package `cryptography`"));
        return None;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/openssl.py");
    let mut child = Command::new(&python).arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let lines = lines.to_owned();
    let writer = std::thread::spawn(move || drop(input.write_all(lines.as_bytes())));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success(), "the script found something wrong");
    Some(String::from_utf8(output.stdout).unwrap())
}

fn has_tool(name: &str) -> bool {
    let found = Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !found {
        skipped(&format!("{name} is not installed"));
    }
    found
}

#[test]
fn ciphers_and_hashes_agree_with_openssl() {
    let (mut state, mut from, mut lines) = (State::default(), Messenger { random: Random::new(40) }, String::new());
    for round in 0..40 {
        for algorithm in AeadAlgorithm::ALL {
            let material = from.bytes(algorithm.key_bytes());
            let (message, data, nonce) = (from.message(70_000), from.message(300), from.bytes(12));
            let key = Key::seal(algorithm, &material).unwrap();
            let seal = Seal::new(&key, Nonces::Given(nonce.clone().into()), message.clone()).associated(data.clone());
            let text = run(&mut state, seal).text.into_one().unwrap();
            let fields =
                [&material, &nonce, data.as_slice().unwrap(), message.as_slice().unwrap(), text.as_slice().unwrap()];
            line(&mut lines, "seal", algorithm.name(), &fields);
        }
        for (algorithm, mode) in
            CipherAlgorithm::ALL.iter().flat_map(|it| [(*it, CipherMode::Cbc), (*it, CipherMode::Ctr)])
        {
            let (material, vector, message) = (from.bytes(algorithm.key_bytes()), from.bytes(16), from.message(70_000));
            let key = Key::encrypt(algorithm, &material).unwrap();
            let encrypt = Encrypt::new(&key, mode, vector.clone().into(), message.clone());
            let text = run(&mut state, encrypt).into_one().unwrap();
            let fields = [&material, &vector, message.as_slice().unwrap(), text.as_slice().unwrap()];
            line(&mut lines, "encrypt", algorithm.name_in(mode), &fields);
        }
        for algorithm in HashAlgorithm::ALL {
            let (message, secret, info) = (from.message(70_000), from.message(200), from.message(100));
            let secret = if secret.is_empty() { Bytes::from_vec(vec![1]) } else { secret };
            let (message_bytes, secret_bytes) = (message.as_slice().unwrap(), secret.as_slice().unwrap());
            let digest = run(&mut state, Hash::new(algorithm, message.clone())).into_one().unwrap();
            line(&mut lines, "hash", algorithm.name(), &[message_bytes, digest.as_slice().unwrap()]);
            let key = Key::hmac(algorithm, secret_bytes).unwrap();
            let tag = run(&mut state, Hmac::new(&key, message.clone())).into_one().unwrap();
            line(&mut lines, "hmac", algorithm.name(), &[secret_bytes, message_bytes, tag.as_slice().unwrap()]);
            let (key, salt) = (Key::hkdf(algorithm, secret_bytes).unwrap(), from.bytes(round));
            let derived = Hkdf::new(&key, info.clone(), 1 + 7 * round).salt(salt.clone().into());
            let derived = run(&mut state, derived).into_one().unwrap();
            assert!(derived.is_secret());
            let fields = [secret_bytes, &salt, info.as_slice().unwrap(), derived.as_slice().unwrap()];
            line(&mut lines, "hkdf", algorithm.name(), &fields);
        }
    }
    if let Some(answer) = checked(&lines) {
        assert_eq!(answer.trim(), lines.lines().count().to_string());
        println!("{} ops agree", answer.trim());
    }
}

#[test]
fn signatures_are_verified_by_openssl_and_its_own_by_us() {
    use EcdsaEncoding::{Der, Fixed};
    let rsa = |bits, padding, hash| SignatureAlgorithm::Rsa { bits, padding, hash };
    let algorithms = [
        ("ed25519", SignatureAlgorithm::Ed25519),
        ("ecdsa-p256-der", SignatureAlgorithm::EcdsaP256(Der)),
        ("ecdsa-p256-fixed", SignatureAlgorithm::EcdsaP256(Fixed)),
        ("ecdsa-p384-der", SignatureAlgorithm::EcdsaP384(Der)),
        ("ecdsa-p384-fixed", SignatureAlgorithm::EcdsaP384(Fixed)),
        ("rsa-pkcs1-sha256", rsa(RsaBits::Bits2048, RsaPadding::Pkcs1, HashAlgorithm::Sha256)),
        ("rsa-pkcs1-sha512", rsa(RsaBits::Bits2048, RsaPadding::Pkcs1, HashAlgorithm::Sha512)),
        ("rsa-pss-sha384", rsa(RsaBits::Bits3072, RsaPadding::Pss, HashAlgorithm::Sha384)),
        ("rsa-pss-sha256", rsa(RsaBits::Bits4096, RsaPadding::Pss, HashAlgorithm::Sha256)),
    ];
    let (mut state, mut from, mut lines) = (State::default(), Messenger { random: Random::new(41) }, String::new());
    let mut publics = Vec::new();
    for (name, algorithm) in algorithms {
        let pair = signature::generate(algorithm).unwrap();
        let private = Key::sign(algorithm, &pair.pkcs8).unwrap();
        let public = Key::verify(algorithm, &pair.public).unwrap();
        let messages: Vec<Bytes> = (0..10).map(|_| from.message(5000)).collect();
        let signatures = run(&mut state, Sign::new(&private, messages.clone()));
        let verify = Verify::new(&public, messages.clone(), signatures.clone());
        assert_eq!(run(&mut state, verify), [true; 10], "{name}");
        for (message, signature) in messages.iter().zip(signatures.slices().unwrap()) {
            line(&mut lines, "sign", name, &[&pair.pkcs8, message.as_slice().unwrap(), signature]);
        }
        publics.push((name, public));
    }
    let Some(answer) = checked(&lines) else { return };
    let (mut verified, decode) = (0, |text: &str| -> Vec<u8> {
        let digits = if text == "-" { "" } else { text };
        (0..digits.len() / 2).map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).unwrap()).collect()
    });
    for row in answer.lines().filter_map(|row| row.strip_prefix("verify ")) {
        let fields: Vec<&str> = row.split(' ').collect();
        let (_, key) = publics.iter().find(|(name, _)| *name == fields[0]).unwrap();
        let verify = Verify::new(key, decode(fields[1]), decode(fields[2]));
        assert_eq!(run(&mut state, verify), [true], "{}", fields[0]);
        verified += 1;
    }
    assert_eq!(verified, 90);
    assert_eq!(answer.lines().last().map(str::trim), Some("90"));
}

#[test]
fn other_programs_decompress_what_is_compressed() {
    let (mut state, mut from, mut lines) = (State::default(), Messenger { random: Random::new(42) }, String::new());
    let tools = [("lz4", has_tool("lz4")), ("zstd", has_tool("zstd"))];
    for format in [Format::Deflate, Format::Zlib, Format::Gzip, Format::Lz4Frame, Format::Zstd] {
        if tools.iter().any(|(tool, there)| format.name().starts_with(tool) && !there) {
            continue;
        }
        for level in format.levels() {
            for _ in 0..3 {
                let message = from.text(300_000);
                let packed = run(&mut state, Compress::new(format, message.clone()).level(level)).into_one().unwrap();
                line(&mut lines, "unpack", format.name(), &[packed.as_slice().unwrap(), message.as_slice().unwrap()]);
            }
        }
    }
    if let Some(answer) = checked(&lines) {
        assert_eq!(answer.trim(), lines.lines().count().to_string());
    }
}
