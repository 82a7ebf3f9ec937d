//! Speed of the domain's functions on one thread of this CPU, without the runtime: one line for
//! each, under the names that `panoply bench` uses. `ms` is the thread's own processor time, the
//! best of all repeats, so that other programs hardly affect it.
//!
//! With `--narrow` messages are processed one by one, by AWS-LC.
//!
//! ```text
//! cargo run --release -p panoply-cpu-crypto --example crypto_speed -- [--seconds 0.3] [--narrow] [case-prefix ...]
//! ```
#![allow(unsafe_code)] // Memory that is used again, as the runtime's is.

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Instant;

use panoply_core::op::crypto::*;
use panoply_core::{Bytes, Error, HostBufferMut, Op, Operation, Part, Result, Value};
use panoply_cpu_crypto::signature::generate;
use panoply_cpu_crypto::{OneThread, State};

const KI: usize = 1 << 10;
const BATCHES: [(&str, usize, usize); 4] =
    [("1KiB", 1, KI), ("16KiB", 1, 16 * KI), ("10000x1KiB", 10_000, KI), ("1000x16KiB", 1000, 16 * KI)];

fn main() -> Result<()> {
    let (memory, state) = (Memory::default(), State::default());
    let mut bench = Bench { seconds: 0.3, wanted: Vec::new(), memory, state, name: "panoply" };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--seconds" => bench.seconds = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(0.3),
            "--narrow" => (bench.state, bench.name) = (State::new(false), "aws-lc"),
            _ => bench.wanted.push(argument),
        }
    }
    for (name, count, len) in BATCHES {
        ciphers(&mut bench, name, count, len)?;
        for algorithm in HashAlgorithm::ALL {
            let hash = Hash::new(algorithm, messages(count, len)?).into_op()?;
            bench.report(&format!("hash/{}/{name}", algorithm.name()), count * len, hash)?;
        }
    }
    signatures(&mut bench)
}

fn ciphers(bench: &mut Bench, name: &str, count: usize, len: usize) -> Result<()> {
    for algorithm in AeadAlgorithm::ALL {
        let key = Key::seal(algorithm, &vec![7; algorithm.key_bytes()])?;
        let nonces = Nonces::Given(numbers(count, 12));
        let seal = Seal::new(&key, nonces.clone(), messages(count, len)?).detached();
        let sealed = Seal::output(bench.run(&seal.clone().into_op()?)?)?;
        bench.report(&format!("seal/{}/{name}", algorithm.name()), count * len, seal.into_op()?)?;
        bench.report_in_place(&format!("seal-in-place/{}/{name}", algorithm.name()), &key, &nonces, count, len)?;
        let open = Open::new(&key, nonces, sealed.text);
        let open = sealed.tags.into_iter().fold(open, |open, tags| open.tags(tags));
        bench.report(&format!("open/{}/{name}", algorithm.name()), count * len, open.into_op()?)?;
    }
    for mode in [CipherMode::CbcUnpadded, CipherMode::Ctr] {
        let (key, mode_name) =
            (Key::encrypt(CipherAlgorithm::Aes256, &[7; 32])?, CipherAlgorithm::Aes256.name_in(mode));
        let encrypt = Encrypt::new(&key, mode, numbers(count, 16), messages(count, len)?).into_op()?;
        bench.report(&format!("encrypt/{mode_name}/{name}"), count * len, encrypt)?;
        let decrypt = Decrypt::new(&key, mode, numbers(count, 16), messages(count, len)?).into_op()?;
        bench.report(&format!("decrypt/{mode_name}/{name}"), count * len, decrypt)?;
    }
    Ok(())
}

fn signatures(bench: &mut Bench) -> Result<()> {
    let rsa = |bits| SignatureAlgorithm::rsa(bits, RsaPadding::Pkcs1);
    for (algorithm, count) in [
        (rsa(RsaBits::Bits2048), 64),
        (rsa(RsaBits::Bits3072), 64),
        (rsa(RsaBits::Bits4096), 16),
        (SignatureAlgorithm::EcdsaP256(EcdsaEncoding::Der), 64),
        (SignatureAlgorithm::EcdsaP384(EcdsaEncoding::Der), 64),
        (SignatureAlgorithm::Ed25519, 64),
    ] {
        let Some(pair) = generate(algorithm) else { continue };
        let private = Key::sign(algorithm, &pair.pkcs8)?;
        let public = Key::verify(algorithm, &pair.public)?;
        let sign = Sign::new(&private, messages(count, 32)?).into_op()?;
        let signatures = Messages::from_value(bench.run(&sign)?)?;
        bench.report(&format!("sign/{}/{count}x32B", algorithm.name()), 0, sign)?;
        let verify = Verify::new(&public, messages(count, 32)?, signatures).into_op()?;
        bench.report(&format!("verify/{}/{count}x32B", algorithm.name()), 0, verify)?;
    }
    Ok(())
}

struct Bench {
    seconds: f64,
    wanted: Vec<String>,
    memory: Memory,
    state: State,
    name: &'static str,
}

impl Bench {
    fn run(&mut self, op: &Op) -> Result<Value> {
        let Op::Crypto(op) = op else {
            return Err(Error::Unsupported { op: "another", reason: "it is of another domain".to_owned() });
        };
        let memory = &mut self.memory;
        panoply_cpu_crypto::run(op, &mut self.state, &OneThread, &mut |len| memory.take(len))
    }

    fn report(&mut self, case: &str, bytes: usize, op: Op) -> Result<()> {
        if !self.wanted.is_empty() && !self.wanted.iter().any(|prefix| case.starts_with(prefix.as_str())) {
            return Ok(());
        }
        // ECDSA signatures differ each time.
        if !case.starts_with("sign/ecdsa") {
            let made = bytes_of(self.run(&op)?)?;
            let state = std::mem::replace(&mut self.state, State::new(false));
            let expected = bytes_of(self.run(&op)?)?;
            self.state = state;
            assert!(made == expected, "{case}: several at a time give another answer than one by one");
        }
        self.repeat(case, bytes, &mut |bench| bench.run(&op).map(drop))
    }

    /// Times messages that are sealed repeatedly in place.
    fn report_in_place(&mut self, case: &str, key: &Key, nonces: &Nonces, count: usize, len: usize) -> Result<()> {
        let is_wanted = self.wanted.is_empty() || self.wanted.iter().any(|prefix| case.starts_with(prefix.as_str()));
        // Only measured in lanes: the library's calls are all in place.
        if !is_wanted || self.name != "panoply" {
            return Ok(());
        }
        // Each run seals the texts of the last one.
        let mut next = Some(messages(count, len)?);
        self.repeat(case, count * len, &mut |bench| {
            let memory = &mut bench.memory;
            let failed = || Error::Unsupported { op: "seal", reason: "others have its messages".to_owned() };
            let seal = Seal::new(key, nonces.clone(), next.take().ok_or_else(failed)?).detached().in_place();
            let mut op = CryptoOp::Seal(seal);
            let made =
                panoply_cpu_crypto::run_in_place(&mut op, &State::default(), &OneThread, &mut |len| memory.take(len));
            next = Some(SealedMessages::from_value(made.ok_or_else(failed)??)?.text);
            Ok(())
        })
    }

    fn repeat(&mut self, case: &str, bytes: usize, once: &mut dyn FnMut(&mut Bench) -> Result<()>) -> Result<()> {
        let (mut best_ns, begin) = (f64::INFINITY, Instant::now());
        // Short messages run several times, so that reading the clock costs little.
        let times = if bytes > 0 && bytes < 1 << 20 { 64 } else { 1 };
        while best_ns.is_infinite() || begin.elapsed().as_secs_f64() < self.seconds {
            let start = thread_ns();
            for _ in 0..times {
                once(self)?;
            }
            best_ns = best_ns.min((thread_ns() - start) as f64 / f64::from(times));
        }
        let rate = match bytes {
            0 => String::new(),
            bytes => format!(",\"gb_per_s\":{:.3}", bytes as f64 / best_ns),
        };
        let (name, ms) = (self.name, best_ns / 1e6);
        println!("{{\"case\":\"{case}\",\"peer\":\"{name}\",\"threads\":1,\"cpu_ms\":{ms:.6}{rate}}}");
        Ok(())
    }
}

/// All bytes of a result.
fn bytes_of(value: Value) -> Result<Vec<u8>> {
    let parts = match value {
        Value::Bytes(bytes) => vec![Part::Bytes(bytes)],
        Value::Tensor(tensor) => vec![Part::Tensor(tensor)],
        Value::Pair(first, second) => vec![Part::Tensor(first), Part::Tensor(second)],
        list => list.into_list()?,
    };
    let mut all = Vec::new();
    for part in parts {
        match part {
            Part::Bytes(bytes) => all.extend_from_slice(bytes.as_slice()?),
            Part::Tensor(tensor) => all.extend_from_slice(Bytes::from_tensor(&tensor)?.as_slice()?),
            Part::Object(_) => {}
        }
    }
    Ok(all)
}

/// The processor time of this thread.
#[cfg(unix)]
fn thread_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The time since the first call.
#[cfg(not(unix))]
fn thread_ns() -> u64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

fn messages(count: usize, len: usize) -> Result<Messages> {
    if count == 1 {
        return Ok(Messages::One(Bytes::from_vec(vec![3; len])));
    }
    Messages::split(Bytes::from_vec(vec![3; count * len]), len)
}

/// A different number for each message.
fn numbers(count: usize, bytes: usize) -> Bytes {
    let mut all = vec![0; count * bytes];
    all.chunks_mut(bytes).zip(0_u64..).for_each(|(one, number)| one[..8].copy_from_slice(&number.to_le_bytes()));
    Bytes::from_vec(all)
}

/// Blocks that are reused once their last handle is dropped.
#[derive(Default)]
struct Memory(Vec<Arc<LineBlock>>);

struct LineBlock {
    lines: Vec<CacheLine>,
}

#[derive(Clone, Copy)]
#[repr(align(64))]
struct CacheLine(#[allow(dead_code)] [u8; 64]); // Read and written as bytes.

impl Memory {
    fn take(&mut self, len: usize) -> Result<HostBufferMut> {
        let lines = len.div_ceil(64).max(1);
        let mut free = self.0.iter_mut().filter_map(Arc::get_mut);
        let place = free.position(|block| block.lines.len() == lines);
        if place.is_none() {
            self.0.retain(|block| Arc::strong_count(block) > 1);
            self.0.push(Arc::new(LineBlock { lines: vec![CacheLine([0; 64]); lines] }));
        }
        let mut fitting = self.0.iter_mut().filter(|block| Arc::strong_count(block) == 1 && block.lines.len() == lines);
        let Some(block) = fitting.next() else { return HostBufferMut::zeroed(len) };
        let start =
            Arc::get_mut(block).map_or(NonNull::<CacheLine>::dangling(), |block| NonNull::from(&mut block.lines[0]));
        // SAFETY: the block has `len` bytes, aligned to 64-byte lines, all initialised; its only
        // handle is here, and it is not lent again before this owner is dropped.
        Ok(unsafe { HostBufferMut::from_raw(start.cast(), len, block.clone()) })
    }
}
