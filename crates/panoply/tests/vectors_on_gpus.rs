//! Collections on the machine's GPUs, through every API that reaches them.
//!
//! With `PANOPLY_DEVICE=required` a machine without a GPU is a failure; otherwise these tests say
//! that they are skipped. Unoptimised builds use fewer rows and judge no speed.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use panoply::prelude::*;
use panoply::vector::{Collection, Hit, Metric, Options, PlacementVerdict, Residency, Schema, SearchOptions};
use panoply::{DeviceInfo, DeviceKind};

const DIMENSION: usize = 128;
const ROWS: usize = if cfg!(debug_assertions) { 20_000 } else { 1_000_000 };
const ROWS_PER_INSERT: usize = 20_000;
const CALLERS: usize = 64;
const MEASURED: Duration = Duration::from_secs(if cfg!(debug_assertions) { 1 } else { 4 });
/// The rate of many callers must be this share of the rate of one call with as many queries.
const RATIO_MIN: f64 = 0.6;

/// A runtime with every API, if there is a GPU.
fn machine() -> Option<Runtime> {
    let runtime = Runtime::builder().without_profile().build().unwrap();
    let is_gpu = |info: &DeviceInfo| matches!(info.kind, DeviceKind::DiscreteGpu | DeviceKind::IntegratedGpu);
    if runtime.devices().any(is_gpu) {
        return Some(runtime);
    }
    assert!(std::env::var("PANOPLY_DEVICE").as_deref() != Ok("required"), "a device is required, and there is no GPU");
    println!("skipped: there is no GPU");
    None
}

/// Numbers between -1 and 1.
fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn filled(runtime: &Runtime, rows: usize, residency: Residency) -> Collection {
    // One segment holds all rows, so that a search is one op.
    let options = Options { residency, segment_bytes_max: 2 * rows * DIMENSION * 4, ..Options::default() };
    let collection = Collection::in_memory(runtime, Schema::new("gpus", DIMENSION, Metric::Dot), options).unwrap();
    for first in (0..rows).step_by(ROWS_PER_INSERT) {
        let ids: Vec<String> = (first..first + ROWS_PER_INSERT).map(|row| row.to_string()).collect();
        collection.insert_many(&ids, &numbers(first as u64 + 1, ids.len() * DIMENSION), &[]).unwrap();
    }
    collection
}

#[test]
fn a_card_is_used_through_one_api() {
    let Some(runtime) = machine() else { return };
    let collection = filled(&runtime, 200_000.min(ROWS), Residency::Auto);
    collection.make_resident().unwrap();
    let stats = collection.stats();
    for one in &stats.devices {
        println!("{} ({}): {:?}, sample {:?}", one.device, one.name, one.verdict, one.sample_time);
    }
    let holders: Vec<&DeviceInfo> = (stats.devices.iter())
        .filter(|one| matches!(one.verdict, PlacementVerdict::Holds(_)))
        .filter_map(|one| runtime.devices().find(|info| info.id == one.device))
        .collect();
    assert!(!holders.is_empty(), "{:?}", stats.devices);
    for (place, one) in holders.iter().enumerate() {
        assert!(holders[..place].iter().all(|other| !one.is_same_hardware(other)), "{one:?} is used twice");
    }
    let mut on: Vec<DeviceId> = stats.resident_rows.iter().map(|(device, _)| *device).collect();
    let mut wanted: Vec<DeviceId> = holders.iter().map(|info| info.id).collect();
    on.sort();
    wanted.sort();
    assert_eq!((on, stats.spilled_rows), (wanted, 0));
    let queries = numbers(7, 16 * DIMENSION);
    let found = collection.search_many(&queries, &SearchOptions::new(10)).unwrap();
    assert!(found.report.fallback.is_none(), "{:?}", found.report);
    let host = filled(&runtime, 200_000.min(ROWS), Residency::Host);
    let ids = |hits: &[Vec<Hit>]| -> Vec<Vec<String>> {
        hits.iter().map(|hits| hits.iter().map(|hit| hit.id.clone()).collect()).collect()
    };
    assert_eq!(ids(&found.hits), ids(&host.search_many(&queries, &SearchOptions::new(10)).unwrap().hits));
}

#[test]
fn callers_with_one_query_each_reach_most_of_the_rate_of_one_call() {
    let Some(runtime) = machine() else { return };
    let collection = filled(&runtime, ROWS, Residency::Auto);
    collection.make_resident().unwrap();
    assert_eq!(collection.stats().spilled_rows, 0);
    let options = SearchOptions::new(10);
    let batch = |queries: usize| {
        let values = numbers(9, queries * DIMENSION);
        let search = || drop(collection.search_many(&values, &options).unwrap());
        (0..20).for_each(|_| search());
        let (start, mut calls) = (Instant::now(), 0);
        while start.elapsed() < MEASURED {
            search();
            calls += 1;
        }
        (calls * queries) as f64 / start.elapsed().as_secs_f64()
    };
    let (of_batch, of_large_batch) = (batch(CALLERS), batch(1024));
    let (of_callers, mean_batch) = rate_of_callers(&collection, &options);
    let ratio = of_callers / of_batch;
    let figures = [
        ("callers_queries_per_s", of_callers),
        ("mean_batch", mean_batch),
        ("batch_64_queries_per_s", of_batch),
        ("batch_1024_queries_per_s", of_large_batch),
        ("ratio_to_batch_64", ratio),
        ("ratio_to_batch_1024", of_callers / of_large_batch),
    ];
    let figures = figures.map(|(name, figure)| format!(r#""{name}":{figure:.3}"#)).join(",");
    println!(r#"{{"case":"collection/{ROWS}x{DIMENSION}","callers":{CALLERS},{figures}}}"#);
    assert!(cfg!(debug_assertions) || ratio >= RATIO_MIN, "{ratio:.3}; expected {RATIO_MIN} or more");
}

/// Searches a second of threads with one query each, and the mean number of queries in a batch.
fn rate_of_callers(collection: &Collection, options: &SearchOptions) -> (f64, f64) {
    let queries = numbers(9, CALLERS * DIMENSION);
    let barrier = Barrier::new(CALLERS + 1);
    let call = |query: &[f32]| {
        (0..20).for_each(|_| drop(collection.search(query, options).unwrap()));
        barrier.wait();
        let (start, mut searches, mut batches) = (Instant::now(), 0_u64, 0.0);
        while start.elapsed() < MEASURED {
            let found = collection.search(query, options).unwrap();
            searches += 1;
            batches += 1.0 / found.report.batch_size as f64;
        }
        (searches, batches)
    };
    let call = &call;
    std::thread::scope(|scope| {
        let threads: Vec<_> = queries.chunks(DIMENSION).map(|query| scope.spawn(move || call(query))).collect();
        barrier.wait();
        let start = Instant::now();
        let (mut searches, mut batches) = (0, 0.0);
        for thread in threads {
            let (own, of) = thread.join().unwrap();
            (searches, batches) = (searches + own, batches + of);
        }
        (searches as f64 / start.elapsed().as_secs_f64(), searches as f64 / batches)
    })
}
