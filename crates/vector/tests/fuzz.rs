//! Runs every fuzz target over mutated files, with a fixed seed: no target may panic or allocate
//! more memory than the file justifies. `fuzz/` has the same targets for cargo-fuzz.
#![allow(clippy::unwrap_used, unsafe_code)] // A failed unwrap is a failed test.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::Cursor;

use panoply_vector::formats::{
    ArrowWriter, Batch, JsonLinesWriter, NpyWriter, ParquetWriter, VecsKind, VecsWriter, Writer,
};
use panoply_vector::fuzzing::{TARGETS, packed, unpack};
use panoply_vector::{Collection, Error, Filter, IndexOptions, Metric, Options, Schema, SearchOptions, Storage};
use serde_json::{Value, json};
use support::{Random, TempFolder, runtime};

/// Mutations of each target's files, unless `PANOPLY_FUZZ_MUTATIONS` sets another number.
const MUTATIONS: usize = 3000;
/// Maximum number of mistakes in one mutation.
const MISTAKES_MAX: usize = 4;
/// Number of mutations of each seed that are opened as whole collections.
const COLLECTIONS_OF_EACH: usize = 30;
/// Maximum size of a single allocation. The files are a few kilobytes.
const ALLOCATION_BYTES_MAX: usize = 16 << 20;
/// The same for Parquet: a page may claim 2 GiB before the library notices that it is shorter.
const ALLOCATION_BYTES_MAX_PARQUET: usize = 2 << 30;

thread_local! {
    static LARGEST_BYTES: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, which also records the largest request of each thread.
struct Watching;

// SAFETY: every call is passed on unchanged to the system's allocator, which fulfils the contract.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = LARGEST_BYTES.try_with(|largest| largest.set(largest.get().max(layout.size())));
        // SAFETY: the caller fulfils the contract of `alloc`, which is the same here.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `alloc` above, and therefore from the system's allocator,
        // with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watching = Watching;

fn below(random: &mut Random, limit: usize) -> usize {
    random.below(limit.max(1) as u64) as usize
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

/// Valid files for each target.
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
        "manifest" => {
            let segments = json!([{"id": 3, "lists": true}, {"id": 5, "lists": false}]);
            let manifest = json!({"name": "a", "dimension": 3, "metric": "dot", "storage": "i8", "segments": segments,
                "next": 6, "centroids": 4});
            return vec![manifest.to_string().into()];
        }
        "centroids" => return vec![numbers(&[2, 3], &[1.0_f32.to_bits(); 6])],
        "lists" => return vec![numbers(&[5, 9], &[0, 2, 2, 7, 9])],
        "store" | "repair" => return stores(),
        other => panic!("no files for the target {other}"),
    }
    vec![file.into_inner()]
}

fn numbers(head: &[u32], body: &[u32]) -> Vec<u8> {
    head.iter().chain(body).flat_map(|number| number.to_le_bytes()).collect()
}

/// Small collections: one of every storage type, with removed records and an index, and one whose
/// rows are not inline.
fn stores() -> Vec<Vec<u8>> {
    let vectors: Vec<f32> = (0..20 * 3).map(|index| (index * 7 % 23) as f32 - 11.5).collect();
    let metadata: Vec<Value> = (0..20).map(|row| json!({"row": row, "even": row % 2 == 0})).collect();
    let ids: Vec<String> = (0..20).map(|row| format!("v{row}")).collect();
    let mut stores = Vec::new();
    for (storage, metric) in [
        (Storage::F32, Metric::Cosine),
        (Storage::F16, Metric::Dot),
        (Storage::Bf16, Metric::Euclidean),
        (Storage::I8, Metric::Euclidean),
        (Storage::I8, Metric::Dot),
    ] {
        let (folder, copy) = (TempFolder::new("seed"), TempFolder::new("seed"));
        let schema = Schema::new("seed", 3, metric).storage(storage);
        let collection = Collection::create(runtime(), &folder.0, schema.clone(), Options::default()).unwrap();
        collection.insert_many(&ids, &vectors, &metadata).unwrap();
        collection.remove_many(&["v3", "v4"]).unwrap();
        collection.build_index(&IndexOptions { lists: Some(3), rounds: 1, ..IndexOptions::default() }).unwrap();
        collection.upsert("v5", &[1.0, 2.0, 3.0], json!({"new": "field"})).unwrap();
        drop(collection);
        stores.push(packed(&folder.0).unwrap());
        let in_memory = Collection::in_memory(runtime(), schema, Options::default()).unwrap();
        in_memory.insert_many(&ids, &vectors, &[]).unwrap();
        in_memory.snapshot(&copy.0).unwrap();
        stores.push(packed(&copy.0).unwrap());
    }
    stores
}

/// The body of a log record with two rows of eight bytes, in the format of `record.rs`.
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

/// A copy of a file with between 1 and `mistakes_max` mistakes.
fn mutated(seed: &[u8], mistakes_max: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..1 + below(random, mistakes_max) {
        let at = below(random, bytes.len());
        match below(random, 8) {
            0 => bytes.truncate(at),
            1 => overwrite(&mut bytes, at, &[random.next() as u8]),
            2 => overwrite(&mut bytes, at, &[[0, 1, 0x7f, 0x80, 0xff][below(random, 5)]]),
            3 => overwrite(&mut bytes, at, &[u32::MAX, i32::MAX as u32, 0, 1 << 16][below(random, 4)].to_le_bytes()),
            4 => overwrite(&mut bytes, at, &[u64::MAX, 1 << 60, i64::MAX as u64][below(random, 3)].to_le_bytes()),
            5 => overwrite(&mut bytes, at, b"999999999999999999"),
            6 => {
                let end = at + below(random, bytes.len() - at);
                let copy = bytes[at..end].to_vec();
                let to = below(random, bytes.len());
                bytes.splice(to..to, copy);
            }
            _ => {
                let end = at + below(random, (bytes.len() - at).min(16));
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
        let bytes = mutated(&seeds[round % seeds.len()], MISTAKES_MAX, &mut random);
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

targets!(
    npy,
    fvecs,
    bvecs,
    ivecs,
    jsonl,
    parquet,
    arrow,
    filter_text,
    filter_json,
    log,
    manifest,
    centroids,
    lists,
    store,
    repair
);

/// Whole collections over mutated files: each is refused with a typed error, or opens and keeps
/// working.
#[test]
fn mutated_collections_work_or_are_refused() {
    let mut random = Random(0xD1B5_4A32_D192_ED03);
    let (mut opened, mut refused) = (0, 0);
    for seed in &stores() {
        for _ in 0..COLLECTIONS_OF_EACH {
            let folder = TempFolder::new("mutated");
            unpack(&mutated(seed, 1, &mut random), &folder.0).unwrap();
            match Collection::open(runtime(), &folder.0, Options::default()) {
                Ok(collection) => {
                    opened += 1;
                    use_it(&collection);
                }
                Err(Error::Corrupt { .. } | Error::NotACollection { .. } | Error::Io { .. }) => refused += 1,
                Err(other) => panic!("{other}"),
            }
        }
    }
    assert!(opened > 30 && refused > 30, "{opened} opened, {refused} refused");
}

fn use_it(collection: &Collection) {
    let dimension = collection.schema().dimension;
    let query = vec![1.0; dimension];
    let before = collection.len();
    for options in [
        SearchOptions::new(5),
        SearchOptions::new(5).nprobe(2),
        SearchOptions::new(2).rerank(2),
        SearchOptions::new(5).filter(Filter::parse("row < 7 and not even = true").unwrap()),
    ] {
        match collection.search(&query, &options) {
            Ok(found) => assert!(found.hits.len() <= options.k),
            Err(Error::UnknownField { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(collection.iter().count(), before);
    collection.upsert("added", &query, json!({"row": 1})).unwrap();
    assert_eq!(collection.get("added").unwrap().unwrap().metadata, json!({"row": 1}));
    // Rows that are not read on opening may be damaged; `verify` reports whether they are.
    let _ = collection.verify();
    if before < 1000 {
        collection.compact().unwrap();
    }
    assert!(collection.len() == before || collection.len() == before + 1);
}
