//! A small vault: records are compressed, sealed and signed as three ops, and restored the same
//! way. A byte that is altered on the way is detected.
//!
//!     cargo run --release --example seal

use std::error::Error;

use panoply::crypto::*;
use panoply::prelude::*;

const LIMIT_BYTES: usize = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let runtime = Runtime::new()?;
    let key = Key::seal(AeadAlgorithm::ChaCha20Poly1305, panoply::crypto::random(32)?.as_slice()?)?;
    let session = Session::new(&key, *b"demo")?;
    let pair = KeyPair::generate(SignatureAlgorithm::Ed25519).ok_or("no randomness")?;
    let private = Key::sign(SignatureAlgorithm::Ed25519, pair.private.as_slice()?)?;
    let public = Key::verify(SignatureAlgorithm::Ed25519, pair.public.as_slice()?)?;

    // A thousand records of different lengths, as one list.
    let records: Vec<Bytes> =
        (0..1000).map(|number| Bytes::from_vec(format!("record {number}: ").repeat(1 + number % 50).into())).collect();
    let records = Messages::from(records);
    let packed = runtime.run(Compress::new(Format::Zstd, records.clone())).wait()?;
    let seal = session.seal(packed.clone())?;
    let first = seal.first_number().ok_or("a session counts")?;
    let Outcome { output: sealed, report } = runtime.run(seal).with_report().wait()?;
    let signatures = runtime.run(Sign::new(&private, sealed.text.clone())).wait()?;
    println!(
        "{} records: {} bytes, compressed {}, sealed {}; sealed on {} in {:?}",
        records.count(),
        records.total_bytes(),
        packed.total_bytes(),
        sealed.text.total_bytes(),
        report.device,
        report.ran
    );

    let verdicts = runtime.run(Verify::new(&public, sealed.text.clone(), signatures)).wait()?;
    assert!(verdicts.iter().all(|verdict| *verdict));
    let opened = runtime.run(session.open(first, sealed.text.clone())).wait()?;
    let back = runtime.run(Decompress::new(Format::Zstd, opened).limit(LIMIT_BYTES)).wait()?;
    assert_eq!(back.slices()?, records.slices()?);

    let mut texts = sealed.text.into_list()?;
    let mut altered = texts[7].as_slice()?.to_vec();
    altered[3] ^= 1;
    texts[7] = Bytes::from_vec(altered);
    match runtime.run(session.open(first, texts)).wait() {
        Err(error) => println!("a byte was altered: {error}"),
        Ok(_) => return Err("an altered record was opened".into()),
    }
    Ok(())
}
