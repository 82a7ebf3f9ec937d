//! Compresses the demonstration's records and the digits of `panoply train`, so that the command
//! carries them. The demonstration's vectors hardly compress and are embedded as they are.

use std::io::Write;
use std::path::Path;
use std::{env, fs};

const FILES: [&str; 2] = ["debian-packages.jsonl", "digits.u8"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let out = env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?;
    for file in FILES {
        let source = Path::new("data").join(file);
        println!("cargo::rerun-if-changed={}", source.display());
        let compressed = fs::File::create(Path::new(&out).join(format!("{file}.lz4")))?;
        let mut encoder = lz4_flex::frame::FrameEncoder::new(compressed);
        encoder.write_all(&fs::read(source)?)?;
        encoder.finish()?;
    }
    Ok(())
}
