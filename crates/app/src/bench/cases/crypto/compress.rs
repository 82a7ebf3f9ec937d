//! Cases of compression: 16 MiB as one message and in blocks of 64 KiB. `PANOPLY_CORPUS` names a
//! file to use instead of generated data, so that other programs can be measured on the same bytes.

use std::sync::OnceLock;

use panoply::Bytes;
use panoply::crypto::{Compress, Decompress, Format, Messages};

use super::batch::KI;
use crate::bench::cases::case::{Amount, Case, MI, Scale};
use crate::bench::place::{BenchDevice, Runner};
use crate::bench::random::Normals;

/// Length of the data if no file is named.
const CORPUS_BYTES: usize = 16 * MI;
const BLOCK_BYTES: usize = 64 * KI;

/// Compression of the corpus.
pub struct CompressCase {
    pub name: &'static str,
    pub format: Format,
    pub level: i32,
    pub in_blocks: bool,
}

/// Decompression of the corpus.
pub struct DecompressCase {
    pub name: &'static str,
    pub format: Format,
    pub level: i32,
    pub in_blocks: bool,
}

/// Decompression of `blocks` blocks, enough for a device with its own memory. The blocks of the
/// corpus are repeated.
pub struct DecompressManyCase {
    pub name: &'static str,
    pub format: Format,
    pub level: i32,
    pub blocks: usize,
}

impl Case for CompressCase {
    fn name(&self) -> String {
        format!("compress/{}/corpus{}", self.name, if self.in_blocks { "/64KiB" } else { "" })
    }

    fn amount(&self) -> Amount {
        Amount::Bytes(corpus().len() as f64)
    }

    fn scale(&self) -> Scale {
        if self.in_blocks && self.name == "zstd3" { Scale::Medium } else { Scale::Large }
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        place.repeat(Compress::new(self.format, messages(self.in_blocks)?).level(self.level))
    }
}

impl Case for DecompressCase {
    fn name(&self) -> String {
        format!("decompress/{}/corpus{}", self.name, if self.in_blocks { "/64KiB" } else { "" })
    }

    fn amount(&self) -> Amount {
        Amount::Bytes(corpus().len() as f64)
    }

    fn scale(&self) -> Scale {
        if self.in_blocks && self.name == "zstd3" { Scale::Medium } else { Scale::Large }
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        let packed = place.made(Compress::new(self.format, messages(self.in_blocks)?).level(self.level))?;
        let limit = if self.in_blocks { BLOCK_BYTES } else { corpus().len() };
        place.repeat(Decompress::new(self.format, packed).limit(limit))
    }
}

impl Case for DecompressManyCase {
    fn name(&self) -> String {
        format!("decompress/{}/{}x64KiB", self.name, self.blocks)
    }

    fn amount(&self) -> Amount {
        Amount::Bytes((self.blocks * BLOCK_BYTES) as f64)
    }

    fn scale(&self) -> Scale {
        Scale::Huge
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        let packed = place.made(Compress::new(self.format, messages(true)?).level(self.level))?;
        let whole = packed.slices()?.into_iter().take(corpus().len() / BLOCK_BYTES).collect::<Vec<_>>();
        let (mut all, mut offsets) = (Vec::new(), vec![0]);
        for block in whole.iter().cycle().take(self.blocks) {
            all.extend_from_slice(block);
            offsets.push(all.len());
        }
        let messages = Messages::packed(Bytes::from_vec(all), offsets)?;
        place.repeat(Decompress::new(self.format, messages).limit(BLOCK_BYTES))
    }
}

fn messages(in_blocks: bool) -> panoply::Result<Messages> {
    if in_blocks { Messages::split(corpus().clone(), BLOCK_BYTES) } else { Ok(corpus().clone().into()) }
}

fn corpus() -> &'static Bytes {
    static CORPUS: OnceLock<Bytes> = OnceLock::new();
    CORPUS.get_or_init(|| {
        let file = std::env::var_os("PANOPLY_CORPUS").and_then(|path| std::fs::read(path).ok());
        Bytes::from_vec(file.unwrap_or_else(made_up))
    })
}

/// Generates log records, then slowly varying measurements.
fn made_up() -> Vec<u8> {
    const WORDS: [&str; 8] = ["router", "device", "engine", "worker", "kernel", "batch", "seal", "stream"];
    let mut normals = Normals::new(7).values(4 * MI).into_iter().cycle();
    let mut number = || normals.next().unwrap_or_default();
    let mut data = Vec::with_capacity(CORPUS_BYTES + 256);
    while data.len() < CORPUS_BYTES / 2 {
        let word = |value: f32| WORDS[(value.abs() * 4.0) as usize % 8];
        let (id, took) = (data.len(), number().abs());
        let line = format!(
            "{{\"id\": {id}, \"level\": \"{}\", \"message\": \"{} {} {}\", \"took_ms\": {took:.3}}}\n",
            word(number()),
            word(number()),
            word(number()),
            word(number())
        );
        data.extend_from_slice(line.as_bytes());
    }
    let mut walk = 0.0_f32;
    while data.len() < CORPUS_BYTES {
        walk += number();
        data.extend_from_slice(&walk.to_le_bytes());
    }
    data.truncate(CORPUS_BYTES);
    data
}
