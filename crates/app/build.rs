//! Compresses the demonstration's records, so that the command carries them. Its vectors hardly compress and are carried as
//! they are.

use std::io::Write;
use std::path::Path;
use std::{env, fs};

const RECORDS: &str = "../../data/debian-packages.jsonl";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed={RECORDS}");
    let out = env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?;
    let compressed = fs::File::create(Path::new(&out).join("debian-packages.jsonl.lz4"))?;
    let mut encoder = lz4_flex::frame::FrameEncoder::new(compressed);
    encoder.write_all(&fs::read(RECORDS)?)?;
    encoder.finish()?;
    Ok(())
}
