//! Records on their way into storage: compressed, encrypted and signed, as a pipeline of three
//! stages and, for comparison, op by op. Then everything is verified, opened and decompressed.
//!
//!     cargo run --release --example sealing -- [BATCHES [RECORDS [BYTES]]]
//!
//! The last stage is a task of the program's own: it signs, and passes the sealed records on with
//! their signatures. Op by op, each op waits for the one before it. In the pipeline the stages of
//! different batches overlap, as far as the devices have room.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use panoply::crypto::*;
use panoply::pipeline::Pipeline;
use panoply::prelude::*;
use panoply::{PendingTask, TaskOutcome, TaskReport};

/// Sealed records with their signatures.
#[derive(Clone)]
pub struct SealedBatch {
    /// The number of the first nonce.
    first: u64,
    text: Messages,
    signatures: Messages,
}

/// The times of both ways.
pub struct Times {
    /// Op by op.
    pub one_by_one: Duration,
    /// As a pipeline.
    pub pipeline: Duration,
}

struct Keys {
    session: Session,
    private: Key,
    public: Key,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: usize| arguments.next().map_or(Ok(default), |number| number.parse());
    let (batches, records, bytes) = (number(64)?, number(64)?, number(4096)?);
    let runtime = Arc::new(Runtime::new()?);
    let Times { one_by_one, pipeline } = run(&runtime, batches, records, bytes)?;
    let rate = |time: Duration| (batches * records * bytes) as f64 / time.as_secs_f64() / 1e6;
    println!("op by op:  {one_by_one:?}, {:.0} MB/s", rate(one_by_one));
    println!("pipeline:  {pipeline:?}, {:.0} MB/s", rate(pipeline));
    println!("the pipeline takes {:.2} of the time", pipeline.as_secs_f64() / one_by_one.as_secs_f64());
    Ok(())
}

/// Stores the records both ways, and restores them.
pub fn run(runtime: &Arc<Runtime>, batches: usize, records: usize, bytes: usize) -> Result<Times, Box<dyn Error>> {
    let pair = KeyPair::generate(SignatureAlgorithm::Ed25519).ok_or("no randomness")?;
    let key = Key::seal(AeadAlgorithm::Aes256Gcm, panoply::crypto::random(32)?.as_slice()?)?;
    let keys = Arc::new(Keys {
        session: Session::new(&key, *b"demo")?,
        private: Key::sign(SignatureAlgorithm::Ed25519, pair.private.as_slice()?)?,
        public: Key::verify(SignatureAlgorithm::Ed25519, pair.public.as_slice()?)?,
    });
    let given: Vec<Messages> = (0..batches).map(|batch| batch_of(batch, records, bytes)).collect();

    // The first batch compiles kernels and expands keys.
    one_by_one(runtime, &keys, &given[..1.min(given.len())])?;
    let start = Instant::now();
    let stored = one_by_one(runtime, &keys, &given)?;
    let alone = start.elapsed();
    restore(runtime, &keys, &given, &stored, bytes)?;
    let start = Instant::now();
    let stored = overlapped(runtime, &keys, given.clone())?;
    let pipeline = start.elapsed();
    restore(runtime, &keys, &given, &stored, bytes)?;
    Ok(Times { one_by_one: alone, pipeline })
}

fn batch_of(batch: usize, records: usize, bytes: usize) -> Messages {
    let text = |record: usize| format!("batch {batch}, record {record}; ").into_bytes();
    let record = |record: usize| Bytes::from_vec(text(record).into_iter().cycle().take(bytes).collect());
    Messages::from((0..records).map(record).collect::<Vec<_>>())
}

fn one_by_one(runtime: &Runtime, keys: &Keys, batches: &[Messages]) -> Result<Vec<SealedBatch>, Box<dyn Error>> {
    let store = |batch: &Messages| {
        let packed = runtime.run(Compress::new(Format::Zstd, batch.clone())).wait()?;
        let seal = keys.session.seal(packed)?;
        let first = seal.first_number().ok_or("a session counts")?;
        let text = runtime.run(seal).wait()?.text;
        let signatures = runtime.run(Sign::new(&keys.private, text.clone())).wait()?;
        Ok(SealedBatch { first, text, signatures })
    };
    batches.iter().map(store).collect()
}

fn overlapped(
    runtime: &Arc<Runtime>,
    keys: &Arc<Keys>,
    batches: Vec<Messages>,
) -> Result<Vec<SealedBatch>, Box<dyn Error>> {
    let [sealing, signing] = [(); 2].map(|()| (Arc::clone(runtime), Arc::clone(keys)));
    let (stored, report) = Pipeline::builder()
        .source(batches)
        .op("compress", &**runtime, |batch: &Messages| Compress::new(Format::Zstd, batch.clone()))
        .task("encrypt", move |packed: &Messages, options| sealed(&sealing.0, &sealing.1, packed.clone(), options))
        .task("sign", move |sealed: &SealedBatch, options| signed(&signing.0, &signing.1, sealed.clone(), options))
        .collect()
        .run()?;
    println!("{}", report.sentence());
    Ok(stored)
}

/// Encrypts a batch. If the item is started again, it gets other nonces.
fn sealed(runtime: &Arc<Runtime>, keys: &Keys, packed: Messages, options: &RunOptions) -> PendingTask<SealedBatch> {
    let seal = keys.session.seal(packed);
    let (own, run) = (Arc::clone(runtime), options.clone());
    runtime.task(options, async move {
        let seal = seal?;
        let first = seal.first_number().unwrap_or_default();
        let Outcome { output, report } = own.run_with(seal, run).with_report().await?;
        let stored = SealedBatch { first, text: output.text, signatures: Messages::from(Vec::<Bytes>::new()) };
        Ok(TaskOutcome { output: stored, report: one_step("encrypt", report) })
    })
}

/// Signs a sealed batch.
fn signed(runtime: &Arc<Runtime>, keys: &Keys, stored: SealedBatch, options: &RunOptions) -> PendingTask<SealedBatch> {
    let sign = Sign::new(&keys.private, stored.text.clone());
    let (own, run) = (Arc::clone(runtime), options.clone());
    runtime.task(options, async move {
        let Outcome { output, report } = own.run_with(sign, run).with_report().await?;
        Ok(TaskOutcome { output: SealedBatch { signatures: output, ..stored }, report: one_step("sign", report) })
    })
}

fn one_step(name: &str, op: Report) -> TaskReport {
    let mut report = TaskReport { took: op.queued + op.ran, ..TaskReport::default() };
    report.add(name, report.took, Some(op));
    report
}

/// Verifies, opens and decompresses everything, and compares it with what was given.
fn restore(
    runtime: &Runtime,
    keys: &Keys,
    given: &[Messages],
    stored: &[SealedBatch],
    bytes: usize,
) -> Result<(), Box<dyn Error>> {
    if given.len() != stored.len() {
        return Err(format!("{} batches were stored of {}", stored.len(), given.len()).into());
    }
    // Lists of ops need not wait for each other.
    let verify = |batch: &SealedBatch| Verify::new(&keys.public, batch.text.clone(), batch.signatures.clone());
    for verdicts in runtime.run_many(stored.iter().map(verify)).wait() {
        if verdicts?.contains(&false) {
            return Err("a signature is wrong".into());
        }
    }
    let opened = runtime.run_many(stored.iter().map(|batch| keys.session.open(batch.first, batch.text.clone()))).wait();
    let opened = opened.into_iter().collect::<Result<Vec<_>, _>>()?;
    let unpack = |text: Messages| Decompress::new(Format::Zstd, text).limit(bytes.max(1));
    for (back, given) in runtime.run_many(opened.into_iter().map(unpack)).wait().into_iter().zip(given) {
        if back?.slices()? != given.slices()? {
            return Err("a record is not what was given".into());
        }
    }
    Ok(())
}
