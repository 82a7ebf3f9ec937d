//! Measures a collection through its public API: ingest, opening and searches, one JSON line each.
//! `docs/peers` has the figures of FAISS and usearch for the same work.
//!
//!     cargo bench -p panoply-vector -- [ingest] [search] [callers] [index] [probe] [--folder PATH]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use panoply_cpu::CpuBackend;
use panoply_runtime::Runtime;
use panoply_vector::{Collection, IndexOptions, Metric, Options, Schema, SearchOptions, Storage, formats};

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let folder = arguments.iter().position(|argument| argument == "--folder").and_then(|at| arguments.get(at + 1));
    let folder = folder.map_or_else(std::env::temp_dir, PathBuf::from).join("panoply-vectors-bench");
    let names: Vec<&str> = ["ingest", "search", "callers", "index", "probe"].into_iter().collect();
    let wanted = |name: &str| {
        !arguments.iter().any(|argument| names.contains(&argument.as_str()))
            || arguments.iter().any(|argument| argument == name)
    };
    let runtime = Arc::new(Runtime::builder().backend(Arc::new(CpuBackend::new())).build()?);
    if wanted("search") {
        search(&runtime, &folder)?;
    }
    if wanted("callers") {
        callers(&runtime)?;
    }
    if wanted("ingest") {
        ingest(&runtime, &folder)?;
    }
    if wanted("index") {
        index(&runtime)?;
    }
    if wanted("probe") {
        probe(&runtime)?;
    }
    Ok(())
}

/// Exact searches: in memory and from a folder.
fn search(runtime: &Arc<Runtime>, folder: &PathBuf) -> Outcome {
    for (count, dimension) in [(100_000, 128), (100_000, 768)] {
        let _ = std::fs::remove_dir_all(folder);
        let schema = Schema::new("bench", dimension, Metric::Dot);
        let in_memory = Collection::in_memory(Arc::clone(runtime), schema.clone(), Options::default())?;
        let durable = Collection::create(Arc::clone(runtime), folder, schema, Options::default())?;
        let vectors = normal(7, count * dimension);
        for (first, rows) in vectors.chunks(10_000 * dimension).enumerate() {
            let ids: Vec<String> = (0..rows.len() / dimension).map(|row| format!("{first}-{row}")).collect();
            in_memory.insert_many(&ids, rows, &[])?;
            durable.insert_many(&ids, rows, &[])?;
        }
        for queries in [1, 64] {
            let query = normal(8, queries * dimension);
            let options = SearchOptions::new(10);
            for (place, collection) in [("memory", &in_memory), ("folder", &durable)] {
                let seconds = best_of(|| match queries {
                    1 => collection.search(&query, &options).map(drop),
                    _ => collection.search_many(&query, &options).map(drop),
                })?;
                let case = format!("search/dot/f32/{count}x{dimension}/q{queries}k10");
                println!(
                    r#"{{"case":"{case}","api":"{place}","ms":{:.4},"queries_per_s":{:.1}}}"#,
                    seconds * 1e3,
                    queries as f64 / seconds
                );
            }
        }
    }
    std::fs::remove_dir_all(folder)?;
    Ok(())
}

/// Callers with one query each.
fn callers(runtime: &Arc<Runtime>) -> Outcome {
    let dimension = 128;
    let schema = Schema::new("bench", dimension, Metric::Dot);
    let collection = Collection::in_memory(Arc::clone(runtime), schema, Options::default())?;
    let ids: Vec<String> = (0..100_000).map(|row| row.to_string()).collect();
    collection.insert_many(&ids, &normal(7, 100_000 * dimension), &[])?;
    let query = normal(8, dimension);
    for callers in [1, 8, 64] {
        let (start, limit) = (Instant::now(), Duration::from_secs(2));
        let searches: u64 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..callers)
                .map(|_| {
                    scope.spawn(|| {
                        let mut searches = 0;
                        while start.elapsed() < limit {
                            searches += u64::from(collection.search(&query, &SearchOptions::new(10)).is_ok());
                        }
                        searches
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or(0)).sum()
        });
        let rate = searches as f64 / start.elapsed().as_secs_f64();
        println!(r#"{{"case":"callers/dot/f32/100000x128/{callers}","queries_per_s":{rate:.1}}}"#);
    }
    Ok(())
}

/// Writes a million vectors durably to a folder and opens them again.
fn ingest(runtime: &Arc<Runtime>, folder: &PathBuf) -> Outcome {
    let (count, dimension) = (1_000_000, 128);
    for batch in [10_000, 1000] {
        let _ = std::fs::remove_dir_all(folder);
        let schema = Schema::new("bench", dimension, Metric::Dot);
        let collection = Collection::create(Arc::clone(runtime), folder, schema, Options::default())?;
        let vectors = normal(7, 100_000 * dimension);
        let ids: Vec<String> = (0..count).map(|row| format!("id-{row}")).collect();
        let start = Instant::now();
        for (number, ids) in ids.chunks(batch).enumerate() {
            let first = number * batch % 100_000;
            collection.insert_many(ids, &vectors[first * dimension..][..batch * dimension], &[])?;
        }
        let seconds = start.elapsed().as_secs_f64();
        let case = format!("ingest/f32/{count}x{dimension}/batch{batch}");
        println!(r#"{{"case":"{case}","seconds":{seconds:.3},"vectors_per_s":{:.0}}}"#, count as f64 / seconds);
        drop(collection);
        let start = Instant::now();
        let collection = Collection::open(Arc::clone(runtime), folder, Options::default())?;
        let opened = start.elapsed().as_secs_f64();
        collection.search(&vectors[..dimension], &SearchOptions::new(10))?;
        let searched = start.elapsed().as_secs_f64();
        println!(
            r#"{{"case":"open/f32/{count}x{dimension}","seconds":{opened:.3},"first_search_seconds":{searched:.3}}}"#
        );
    }
    std::fs::remove_dir_all(folder)?;
    Ok(())
}

/// Recall and speed of the index on clustered vectors.
fn index(runtime: &Arc<Runtime>) -> Outcome {
    let (count, dimension, clusters) = (100_000, 128, 1000);
    let centres = normal(1, clusters * dimension);
    let points = |seed: u64, count: usize| -> Vec<f32> {
        let noise = normal(seed, count * dimension);
        let place =
            |index: usize| (index / dimension * 7919 + seed as usize) % clusters * dimension + index % dimension;
        noise.iter().enumerate().map(|(index, noise)| centres[place(index)] + 0.5 * noise).collect()
    };
    let schema = Schema::new("bench", dimension, Metric::Euclidean).storage(Storage::F32);
    let collection = Collection::in_memory(Arc::clone(runtime), schema, Options::default())?;
    let ids: Vec<String> = (0..count).map(|row| row.to_string()).collect();
    collection.insert_many(&ids, &points(2, count), &[])?;
    let start = Instant::now();
    let report = collection.build_index(&IndexOptions::default())?;
    println!(
        r#"{{"case":"index/build/{count}x{dimension}","lists":{},"seconds":{:.2}}}"#,
        report.lists,
        start.elapsed().as_secs_f64()
    );
    for row in collection.measure_recall(&points(3, 200), &SearchOptions::new(10), &[1, 2, 4, 8, 16, 32])? {
        println!(
            r#"{{"case":"index/search/{count}x{dimension}","nprobe":{},"recall":{:.4},"scanned_share":{:.4},"queries_per_s":{:.0},"exact_queries_per_s":{:.0}}}"#,
            row.nprobe, row.recall, row.scanned_share, row.queries_per_s, row.exact_queries_per_s
        );
    }
    Ok(())
}

/// Searches through the index with one query at a time, as `docs/peers/ivf_one.py` does with FAISS.
/// Data: embeddings of package summaries, and clustered vectors.
fn probe(runtime: &Arc<Runtime>) -> Outcome {
    let data = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../app/data"));
    let packages = read_vectors(&data.join("debian-packages.npy"))?;
    let questions = read_vectors(&data.join("queries.npy"))?;
    probe_case(runtime, "packages", Metric::Cosine, 384, 400, &packages, &questions)?;
    let (dimension, clusters) = (128, 1000);
    let centres = normal(1, clusters * dimension);
    let points = |seed: u64, count: usize| -> Vec<f32> {
        let noise = normal(seed, count * dimension);
        let place =
            |index: usize| (index / dimension * 7919 + seed as usize) % clusters * dimension + index % dimension;
        noise.iter().enumerate().map(|(index, noise)| centres[place(index)] + 0.5 * noise).collect()
    };
    probe_case(runtime, "clustered", Metric::Euclidean, dimension, 1264, &points(2, 100_000), &points(3, 200))
}

fn probe_case(
    runtime: &Arc<Runtime>,
    name: &str,
    metric: Metric,
    dimension: usize,
    lists: usize,
    rows: &[f32],
    queries: &[f32],
) -> Outcome {
    let collection =
        Collection::in_memory(Arc::clone(runtime), Schema::new(name, dimension, metric), Options::default())?;
    let ids: Vec<String> = (0..rows.len() / dimension).map(|row| row.to_string()).collect();
    collection.insert_many(&ids, rows, &[])?;
    collection.build_index(&IndexOptions { lists: Some(lists), ..IndexOptions::default() })?;
    for nprobe in [1, 4, 16] {
        let options = SearchOptions::new(10).nprobe(nprobe);
        let mut times = Vec::new();
        for query in queries.chunks(dimension).cycle().take(3000) {
            let start = Instant::now();
            collection.search(query, &options)?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        times.sort_by(f64::total_cmp);
        let (median, best) = (times[times.len() / 2], times[times.len() / 20]);
        println!(
            r#"{{"case":"probe/{name}/{}x{dimension}/lists{lists}/nprobe{nprobe}","median_ms":{median:.4},"best_ms":{best:.4}}}"#,
            ids.len()
        );
    }
    Ok(())
}

fn read_vectors(path: &std::path::Path) -> Result<Vec<f32>, Box<dyn std::error::Error>> {
    let mut reader = formats::open(path, &formats::ColumnNames::default())?;
    let mut vectors = Vec::new();
    while let Some(batch) = reader.next_batch(4096)? {
        vectors.extend(batch.vectors);
    }
    Ok(vectors)
}

/// Returns the shortest time of several runs, to reduce the noise of a busy machine.
fn best_of<E>(mut run: impl FnMut() -> Result<(), E>) -> Result<f64, E> {
    run()?;
    let (mut best, start) = (f64::INFINITY, Instant::now());
    while start.elapsed() < Duration::from_secs(1) {
        let once = Instant::now();
        run()?;
        best = best.min(once.elapsed().as_secs_f64());
    }
    Ok(best)
}

/// Returns approximately normally distributed numbers.
fn normal(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1_u64 << 24) as f32
    };
    (0..count).map(|_| (0..4).map(|_| next()).sum::<f32>() - 2.0).collect()
}
