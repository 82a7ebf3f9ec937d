//! `panoply store bench`: put and get of mixed files, next to the compressor alone and the disk
//! alone, in one run.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use panoply::Runtime;
use panoply::crypto::{Compress, Format as Compression, Messages};
use panoply::store::{MasterKey, Options, Store};
use serde_json::json;

use super::start;
use crate::configuration::Format;
use crate::configuration::store::StoreBenchOptions;
use crate::failure::Failure;
use crate::partial::Scratch;
use crate::screen::{Screen, bytes_text, padded, spinner};
use crate::vectors::{counted, path_text};

/// Length of the repeated pattern of files: long enough that no chunk sees the same bytes twice.
const PATTERN_BYTES: usize = 8 << 20;
const CHUNK_BYTES: usize = 256 << 10;
const BATCH_BYTES: usize = 4 << 20;
/// Maximal number of batches in flight when the compressor runs alone.
const BATCHES_MAX: usize = 3;
/// File sizes, and how many files of each size come before the next size.
const SIZES: [(u64, usize); 4] = [(64 << 10, 16), (1 << 20, 8), (16 << 20, 2), (64 << 20, 1)];
/// Files of one commit.
const GROUP_FILES: usize = 256;

/// Runs the benchmark.
pub fn run(options: &StoreBenchOptions, screen: &mut Screen) -> Result<(), Failure> {
    fs::create_dir_all(&options.path).with_context(|| format!("{} cannot be made", options.path.display()))?;
    let folder = Scratch::new(&options.path, "panoply-store-bench")?;
    let (runtime, patterns) = (start()?, Patterns::new());
    let files = files(options.bytes);
    if options.format == Format::Table {
        screen.prose(&announcement(&files, options, &folder.path))?;
        screen.flush()?;
    }
    let sign = spinner("measuring");
    let disk = timed(|| raw_write(&folder.path.join("raw"), &files, &patterns))?;
    let zstd = timed(|| compress_all(&runtime, &files, &patterns))?;
    let path = folder.path.join("store");
    let mut store = Store::create(&runtime, &path, &MasterKey::generate()?, Options::default())?;
    let put = timed(|| put_all(&mut store, &files, &patterns))?;
    let get = timed(|| {
        let mut sink = Counter::default();
        store.entries().try_for_each(|entry| store.read(&entry.name, &mut sink)).map_err(Failure::from)?;
        Ok(assert_len(sink.0, options.bytes)?)
    })?;
    let verify = timed(|| Ok(assert_len(store.verify(&mut |_, _| ())?.bytes, options.bytes)?))?;
    sign.finish_and_clear();
    let stored: u64 = store.entries().map(|entry| entry.stored).sum();
    report(options, &files, stored, [disk, zstd, put, get, verify], screen)
}

/// Says how much is going to be written, and where.
fn announcement(files: &[GeneratedFile], options: &StoreBenchOptions, folder: &Path) -> String {
    format!(
        "Writes {} of {} in {}, twice, and deletes them again. --mib chooses another size.",
        counted(files.len() as u64, "file"),
        bytes_text(options.bytes),
        folder.display()
    )
}

fn report(
    options: &StoreBenchOptions,
    files: &[GeneratedFile],
    stored: u64,
    seconds: [f64; 5],
    screen: &mut Screen,
) -> Result<(), Failure> {
    let rates = seconds.map(|seconds| options.bytes as f64 / seconds.max(1e-9) / 1e6);
    let [disk, zstd, put, get, verify] = rates;
    let slower = disk.min(zstd);
    if options.format == Format::Json {
        return screen.json(&json!({
            "path": path_text(&options.path),
            "files": files.len(),
            "bytes": options.bytes,
            "stored": stored,
            "disk_mb_per_s": disk,
            "zstd1_mb_per_s": zstd,
            "put_mb_per_s": put,
            "get_mb_per_s": get,
            "verify_mb_per_s": verify,
            "put_ratio": put / slower,
            "get_ratio": get / slower,
        }));
    }
    let (count, bytes) = (counted(files.len() as u64, "file"), bytes_text(options.bytes));
    screen.line(format!("{count}, {bytes}; {} stored", bytes_text(stored)))?;
    let rows = [("disk alone", disk), ("zstd -1 alone", zstd), ("put", put), ("get", get), ("verify", verify)];
    for (name, rate) in rows {
        let ratio = format!("{:.2} of the slower of the first two", rate / slower);
        let ratio = if matches!(name, "put" | "get") { ratio } else { String::new() };
        screen.line(format!("{} {} {ratio}", padded(name, 14), padded(&format!("{rate:.0} MB/s"), 11)))?;
    }
    Ok(())
}

/// A file that is generated while it is read.
struct GeneratedFile {
    name: String,
    pattern: usize,
    len: u64,
}

/// Text, numbers and noise.
struct Patterns([Arc<[u8]>; 3]);

impl Patterns {
    fn new() -> Patterns {
        const WORDS: [&str; 16] = [
            "the", "device", "of", "an", "op", "that", "is", "sealed", "and", "written", "to", "a", "queue", "before",
            "its", "outcome",
        ];
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u32
        };
        let mut text = Vec::with_capacity(PATTERN_BYTES + 16);
        while text.len() < PATTERN_BYTES {
            let number = next();
            match number % 7 {
                0 => text.extend(format!("{} ", number >> 8).into_bytes()),
                _ => text.extend(format!("{} ", WORDS[(number >> 8) as usize % WORDS.len()]).into_bytes()),
            }
        }
        // Floating-point numbers of similar size: their exponents repeat.
        let numbers: Vec<u8> =
            (0..PATTERN_BYTES / 4).flat_map(|_| (1.0 + next() as f32 / 2_147_483_648.0).to_le_bytes()).collect();
        let noise: Vec<u8> = (0..PATTERN_BYTES).map(|_| (next() >> 16) as u8).collect();
        Patterns([text.into(), numbers.into(), noise.into()])
    }

    fn reader(&self, file: &GeneratedFile) -> RepeatedPattern {
        RepeatedPattern { pattern: Arc::clone(&self.0[file.pattern]), at: 0, left: file.len }
    }
}

struct RepeatedPattern {
    pattern: Arc<[u8]>,
    at: usize,
    left: u64,
}

impl Read for RepeatedPattern {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let len = bytes.len().min(self.pattern.len() - self.at).min(usize::try_from(self.left).unwrap_or(usize::MAX));
        bytes[..len].copy_from_slice(&self.pattern[self.at..self.at + len]);
        (self.at, self.left) = ((self.at + len) % self.pattern.len(), self.left - len as u64);
        Ok(len)
    }
}

/// Files with this many bytes in total.
fn files(bytes: u64) -> Vec<GeneratedFile> {
    let sizes = SIZES.iter().flat_map(|(size, count)| std::iter::repeat_n(*size, *count)).cycle();
    let (mut files, mut left) = (Vec::new(), bytes);
    for (number, size) in sizes.enumerate() {
        if left == 0 {
            break;
        }
        let (len, pattern) = (size.min(left), [0, 0, 1, 2][number % 4]);
        files.push(GeneratedFile { name: format!("{number:06}"), pattern, len });
        left -= len;
    }
    files
}

fn timed(work: impl FnOnce() -> Result<(), Failure>) -> Result<f64, Failure> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().as_secs_f64())
}

fn raw_write(path: &Path, files: &[GeneratedFile], patterns: &Patterns) -> Result<(), Failure> {
    let cannot = || format!("{} cannot be written", path.display());
    let mut file = File::create_new(path).with_context(cannot)?;
    let mut buffer = vec![0; BATCH_BYTES];
    for pretended in files {
        let mut reader = patterns.reader(pretended);
        loop {
            let len = reader.read(&mut buffer)?;
            if len == 0 {
                break;
            }
            file.write_all(&buffer[..len]).with_context(cannot)?;
        }
    }
    file.sync_all().with_context(cannot)?;
    Ok(fs::remove_file(path).with_context(cannot)?)
}

fn compress_all(runtime: &Runtime, files: &[GeneratedFile], patterns: &Patterns) -> Result<(), Failure> {
    let mut pending = VecDeque::new();
    let wait_for = |pending: &mut VecDeque<panoply::Pending<Messages>>, max: usize| {
        while pending.len() > max {
            pending.pop_front().map_or(Ok(()), |oldest| oldest.wait().map(drop)).map_err(anyhow::Error::new)?;
        }
        Ok::<(), Failure>(())
    };
    for file in files {
        let mut reader = patterns.reader(file);
        loop {
            let mut batch = Vec::with_capacity(BATCH_BYTES);
            reader.by_ref().take(BATCH_BYTES as u64).read_to_end(&mut batch)?;
            if batch.is_empty() {
                break;
            }
            let chunks = Messages::split(batch.into(), CHUNK_BYTES).map_err(anyhow::Error::new)?;
            pending.push_back(runtime.run(Compress::new(Compression::Zstd, chunks).level(1)));
            wait_for(&mut pending, BATCHES_MAX)?;
        }
    }
    wait_for(&mut pending, 0)
}

fn put_all(store: &mut Store, files: &[GeneratedFile], patterns: &Patterns) -> Result<(), Failure> {
    for group in files.chunks(GROUP_FILES) {
        let mut batch = store.batch()?;
        let (_, put) = batch.put_many(group.iter().map(|file| (file.name.clone(), patterns.reader(file))), false);
        put?;
        batch.commit()?;
    }
    Ok(())
}

/// A writer that counts its input.
#[derive(Default)]
struct Counter(u64);

impl Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn assert_len(got: u64, expected: u64) -> anyhow::Result<()> {
    if got == expected { Ok(()) } else { Err(anyhow::anyhow!("{got} bytes came back, {expected} were stored")) }
}
