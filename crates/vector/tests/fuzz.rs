//! Every fuzz target over mutated files, with a fixed seed: none may panic, and none may ask for more memory than the file
//! justifies. `fuzz/` has the same targets for cargo-fuzz.
#![allow(clippy::unwrap_used, unsafe_code)] // A test that cannot go on should say where; an allocator is unsafe by nature.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::Cursor;

use panoply_vector::formats::{
    ArrowWriter, Batch, JsonLinesWriter, NpyWriter, ParquetWriter, VecsKind, VecsWriter, Writer,
};
use panoply_vector::fuzzing::TARGETS;
use serde_json::json;

/// Mutations of each target's files, unless `PANOPLY_FUZZ_MUTATIONS` says otherwise.
const MUTATIONS: usize = 3000;
/// The most memory that may be asked for at once. The files are a few kilobytes.
const ALLOCATION_BYTES_MAX: usize = 16 << 20;
/// The same for Parquet, whose pages may claim 2 GiB before the library notices that they have less.
const ALLOCATION_BYTES_MAX_PARQUET: usize = 2 << 30;

thread_local! {
    static LARGEST_BYTES: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, remembering the largest request of each thread.
struct Watching;

// SAFETY: every call is handed on unchanged to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = LARGEST_BYTES.try_with(|largest| largest.set(largest.get().max(layout.size())));
        // SAFETY: the caller keeps the contract of `alloc`, which is the same there.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `alloc` above, and so from the system's allocator, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watching = Watching;

/// A small generator of numbers that look random (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

fn batch(rows: usize) -> Batch {
    Batch {
        ids: (0..rows).map(|row| format!("row {row}")).collect(),
        vectors: (0..rows * 3).map(|index| (index % 200) as f32).collect(),
        metadata: (0..rows).map(|row| json!({"row": row, "tags": ["a", null], "deep": {"er": true}})).collect(),
    }
}

fn written<W: Writer>(mut writer: W) {
    writer.write(&batch(20)).unwrap();
    writer.write(&batch(3)).unwrap();
    writer.finish().unwrap();
}

/// Files that are in order, for each target.
fn seeds(target: &str) -> Vec<Vec<u8>> {
    let mut file = Cursor::new(Vec::new());
    match target {
        "npy" => written(NpyWriter::new(&mut file, 3).unwrap()),
        "fvecs" => written(VecsWriter::new(&mut file, 3, VecsKind::F32)),
        "bvecs" => written(VecsWriter::new(&mut file, 3, VecsKind::U8)),
        "ivecs" => written(VecsWriter::new(&mut file, 3, VecsKind::I32)),
        "jsonl" => written(JsonLinesWriter::new(&mut file, 3)),
        "parquet" => {
            written(ParquetWriter::new(&mut file, 3).unwrap());
            return vec![file.into_inner(), include_bytes!("../fixtures/foreign.parquet").to_vec()];
        }
        "arrow" => {
            written(ArrowWriter::new(&mut file, 3).unwrap());
            return vec![
                file.into_inner(),
                include_bytes!("../fixtures/foreign.arrow").to_vec(),
                include_bytes!("../fixtures/foreign-lz4.feather").to_vec(),
                include_bytes!("../fixtures/foreign-views.arrows").to_vec(),
            ];
        }
        "filter_text" => {
            let text = "section = games and not (size < 1e3 or 'a\\'b' in (1, \"x\", null, true)) or a.b\\.c >= -2.5";
            return vec![text.into()];
        }
        "filter_json" => {
            let json =
                json!({"a": "b", "c.d": {"gte": 1, "lt": 2.5}, "or": [{"e": {"in": [null, 1]}}, {"not": {"f": true}}]});
            return vec![json.to_string().into()];
        }
        "log" => return vec![log_body()],
        other => panic!("no files for the target {other}"),
    }
    vec![file.into_inner()]
}

/// The body of a record of the log with two rows of eight bytes, as `record.rs` describes it.
fn log_body() -> Vec<u8> {
    let mut body = 0_u64.to_le_bytes().to_vec();
    for number in [0_u32, 1, 1, 1, 2, 0, 2, 0] {
        body.extend(number.to_le_bytes());
    }
    body.extend([1_u32, 5].iter().flat_map(|number| number.to_le_bytes()));
    body.extend([5, 0, 0, 0]);
    body.extend(b"color");
    body.extend([0; 16 + 16]);
    for id in [b"ab", b"cd"] {
        body.extend([2, 0, 0, 0, 2, 0, 0, 0]);
        body.extend(id);
        body.extend(b"{}");
    }
    body
}

/// A file with a few mistakes.
fn mutated(seed: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..1 + random.below(4) {
        let at = random.below(bytes.len());
        match random.below(8) {
            0 => bytes.truncate(at),
            1 => overwrite(&mut bytes, at, &[random.next() as u8]),
            2 => overwrite(&mut bytes, at, &[[0, 1, 0x7f, 0x80, 0xff][random.below(5)]]),
            3 => overwrite(&mut bytes, at, &[u32::MAX, i32::MAX as u32, 0, 1 << 16][random.below(4)].to_le_bytes()),
            4 => overwrite(&mut bytes, at, &[u64::MAX, 1 << 60, i64::MAX as u64][random.below(3)].to_le_bytes()),
            5 => overwrite(&mut bytes, at, b"999999999999999999"),
            6 => {
                let end = at + random.below(bytes.len() - at);
                let copy = bytes[at..end].to_vec();
                let to = random.below(bytes.len());
                bytes.splice(to..to, copy);
            }
            _ => {
                let end = at + random.below((bytes.len() - at).min(16));
                bytes.drain(at..end);
            }
        }
        if bytes.is_empty() {
            break;
        }
    }
    bytes
}

fn overwrite(bytes: &mut [u8], at: usize, with: &[u8]) {
    let end = bytes.len().min(at + with.len());
    bytes[at..end].copy_from_slice(&with[..end - at]);
}

fn run(name: &str) {
    let (_, target) = TARGETS.iter().find(|(target, _)| *target == name).unwrap();
    let limit = if name == "parquet" { ALLOCATION_BYTES_MAX_PARQUET } else { ALLOCATION_BYTES_MAX };
    let seeds = seeds(name);
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    for seed in &seeds {
        target(seed);
    }
    let asked = std::env::var("PANOPLY_FUZZ_MUTATIONS").ok().and_then(|count| count.parse().ok());
    for round in 0..asked.unwrap_or(MUTATIONS) {
        let bytes = mutated(&seeds[round % seeds.len()], &mut random);
        LARGEST_BYTES.set(0);
        target(&bytes);
        let largest = LARGEST_BYTES.get();
        assert!(largest <= limit, "{name}, round {round}: {largest} bytes at once for a file of {}", bytes.len());
    }
}

macro_rules! targets {
    ($($name:ident),*) => {
        $(#[test]
        fn $name() {
            run(stringify!($name));
        })*

        #[test]
        fn every_target_is_run() {
            let names: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
            assert_eq!(names, [$(stringify!($name)),*]);
        }
    };
}

targets!(npy, fvecs, bvecs, ivecs, jsonl, parquet, arrow, filter_text, filter_json, log);
