//! Prepares the data that the command carries: compresses the demonstration's records and the
//! digits of `panoply train`, and rounds the demonstration's vectors to bytes, which halves them.
//! They hardly compress.

use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::{env, fs};

const COMPRESSED: [&str; 2] = ["debian-packages.jsonl", "digits.u8"];
const VECTORS: &str = "debian-packages.npy";
/// The length of a row in `VECTORS`.
const DIMENSION: usize = 384;

fn main() -> Result<(), Box<dyn Error>> {
    let out = env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?;
    for file in COMPRESSED {
        let compressed = fs::File::create(Path::new(&out).join(format!("{file}.lz4")))?;
        let mut encoder = lz4_flex::frame::FrameEncoder::new(compressed);
        encoder.write_all(&read(file)?)?;
        encoder.finish()?;
    }
    fs::write(Path::new(&out).join(VECTORS), as_bytes(&read(VECTORS)?)?)?;
    Ok(())
}

fn read(file: &str) -> Result<Vec<u8>, Box<dyn Error>> {
    let source = Path::new("data").join(file);
    println!("cargo::rerun-if-changed={}", source.display());
    Ok(fs::read(source)?)
}

/// The same array with elements of a byte. Each row is scaled to the range of a byte, which changes
/// no cosine except by rounding.
fn as_bytes(npy: &[u8]) -> Result<Vec<u8>, Box<dyn Error>> {
    let header = 10 + usize::from(u16::from_le_bytes([npy[8], npy[9]]));
    let (header, rows) = npy.split_at(header);
    let text = str::from_utf8(&header[10..])?;
    if !text.contains("'<f2'") || !text.contains(&format!(", {DIMENSION})")) {
        return Err(format!("expected rows of {DIMENSION} elements of 16 bits, not {text}").into());
    }
    let mut bytes = [&header[..10], text.replace("'<f2'", "'|i1'").as_bytes()].concat();
    for row in rows.chunks_exact(2 * DIMENSION) {
        let row = || row.chunks_exact(2).map(|half| from_half(u16::from_le_bytes([half[0], half[1]])));
        let longest = row().map(f32::abs).fold(f32::MIN_POSITIVE, f32::max);
        bytes.extend(row().map(|value| (value / longest * 127.0).round() as i8 as u8));
    }
    Ok(bytes)
}

/// A finite number of 16 bits.
fn from_half(bits: u16) -> f32 {
    let magnitude = f32::from_bits(u32::from(bits & 0x7fff) << 13) * 2_f32.powi(112);
    if bits & 0x8000 == 0 { magnitude } else { -magnitude }
}
