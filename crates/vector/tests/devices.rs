//! Rows on devices: uploaded, split, spilled, lost, and searched together with those of the host.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{Random, ids};
use panoply_conformance::virtual_device::{Fault, Script, VirtualBackend, VirtualControl};
use panoply_core::{Api, DeviceId, DeviceKind, PciAddress};
use panoply_cpu::CpuBackend;
use panoply_runtime::{Runtime, WorkerLimits};
use panoply_vector::{
    Collection, IndexOptions, Metric, Options, PlacementVerdict, Residency, Schema, SearchOptions, Storage,
};
use serde_json::Value;

const DIMENSION: usize = 16;

fn device(index: u32) -> DeviceId {
    DeviceId { api: Api::SIMULATED, index }
}

/// A runtime with the CPU and virtual devices.
fn machine(scripts: Vec<Script>) -> (Arc<Runtime>, Vec<Arc<VirtualControl>>) {
    let count = scripts.len();
    let cpu = Arc::new(CpuBackend::new());
    let virtual_backend = scripts.into_iter().fold(VirtualBackend::new(cpu.clone()), VirtualBackend::device);
    let controls = (0..count).map(|index| virtual_backend.control(index).unwrap()).collect();
    let limits = WorkerLimits {
        op_time_max: Duration::from_secs(5),
        reopen_wait_min: Duration::from_millis(1),
        reopen_wait_max: Duration::from_millis(4),
        ..WorkerLimits::default()
    };
    let builder = Runtime::builder().backend(cpu).backend(Arc::new(virtual_backend)).limits(limits);
    (Arc::new(builder.build().unwrap()), controls)
}

fn options(devices: u32) -> Options {
    Options { residency: Residency::Devices((0..devices).map(device).collect()), ..Options::default() }
}

fn filled(runtime: &Arc<Runtime>, options: Options, metric: Metric, storage: Storage, count: usize) -> Collection {
    let schema = Schema::new("devices", DIMENSION, metric).storage(storage);
    let collection = Collection::in_memory(Arc::clone(runtime), schema, options).unwrap();
    collection.insert_many(&ids(0..count), &Random(21).vectors(count, DIMENSION), &[]).unwrap();
    collection
}

#[test]
fn rows_are_split_over_devices_and_give_the_same_hits() {
    let count = 40_000;
    for metric in Metric::ALL {
        for storage in [Storage::F32, Storage::I8] {
            let (runtime, controls) = machine(vec![Script::new(), Script::new().resident()]);
            let on_host = Options { residency: Residency::Host, ..Options::default() };
            let host = filled(&runtime, on_host, metric, storage, count);
            let split = filled(&runtime, Options { segment_bytes_max: 4 << 20, ..options(2) }, metric, storage, count);
            split.make_resident().unwrap();
            let stats = split.stats();
            assert_eq!(stats.resident_rows.iter().map(|(_, rows)| rows).sum::<u64>(), count as u64);
            assert_eq!(stats.spilled_rows, 0);
            assert!(controls[0].counters().live_bytes > 0);
            let queries = Random(5).vectors(7, DIMENSION);
            let wanted = host.search_many(&queries, &SearchOptions::new(12)).unwrap();
            assert_eq!(wanted.report.devices, [DeviceId { api: Api::CPU, index: 0 }]);
            let found = split.search_many(&queries, &SearchOptions::new(12)).unwrap();
            assert_eq!(found.hits, wanted.hits, "{metric:?} {storage}");
            assert!(found.report.devices.contains(&device(0)), "{:?}", found.report);
            // New rows are searched on the host until an upload is worthwhile; removed rows are
            // left out.
            for collection in [&host, &split] {
                collection.insert("new", &queries[..DIMENSION], Value::Null).unwrap();
                collection.remove_many(&[&wanted.hits[1][0].id, &wanted.hits[2][0].id]).unwrap();
            }
            let wanted = host.search_many(&queries, &SearchOptions::new(12)).unwrap();
            let found = split.search_many(&queries, &SearchOptions::new(12)).unwrap();
            assert_eq!(found.hits, wanted.hits);
            assert!(found.report.devices.contains(&DeviceId { api: Api::CPU, index: 0 }));
        }
    }
}

#[test]
fn what_does_not_fit_is_searched_on_the_host_and_said() {
    let bytes = (DIMENSION * 4 * 25_000) as u64;
    let (runtime, _) = machine(vec![Script::new().memory_bytes(bytes), Script::new().memory_bytes(1000)]);
    let collection = filled(&runtime, options(2), Metric::Euclidean, Storage::F32, 40_000);
    collection.make_resident().unwrap();
    let stats = collection.stats();
    assert_eq!(stats.resident_rows, [(device(0), 20_000)]);
    assert_eq!(stats.spilled_rows, 20_000);
    let queries = Random(6).vectors(5, DIMENSION);
    let found = collection.search_many(&queries, &SearchOptions::new(10)).unwrap();
    assert_eq!(found.report.spilled_rows, 20_000);
    assert_eq!(found.report.devices.len(), 2);
    let host = filled(
        &runtime,
        Options { residency: Residency::Host, ..Options::default() },
        Metric::Euclidean,
        Storage::F32,
        40_000,
    );
    assert_eq!(found.hits, host.search_many(&queries, &SearchOptions::new(10)).unwrap().hits);
}

#[test]
fn a_lost_device_is_replaced_by_the_host_and_filled_again() {
    let (runtime, controls) = machine(vec![Script::new()]);
    let collection = filled(&runtime, options(1), Metric::Cosine, Storage::F32, 20_000);
    collection.make_resident().unwrap();
    // With a removed row the device has a mask, which is lost with the device.
    collection.remove("v5").unwrap();
    let query = Random(6).vectors(1, DIMENSION);
    let wanted = collection.search(&query, &SearchOptions::new(10)).unwrap();
    assert_eq!(wanted.report.devices, [device(0)]);
    for fault in [Fault::Error, Fault::Lost, Fault::Panic, Fault::OutOfMemory] {
        controls[0].inject(fault);
        let found = collection.search(&query, &SearchOptions::new(10)).unwrap();
        assert_eq!(found.hits, wanted.hits, "{fault:?}");
        assert!(found.report.fallback.is_some(), "{fault:?}: {:?}", found.report);
        let start = std::time::Instant::now();
        loop {
            collection.make_resident().unwrap();
            let again = collection.search(&query, &SearchOptions::new(10)).unwrap();
            assert_eq!(again.hits, wanted.hits);
            if again.report.devices == [device(0)] {
                break;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "{:?}", again.report);
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

#[test]
fn uploads_happen_in_the_background_and_compaction_frees_what_it_replaces() {
    let (runtime, controls) = machine(vec![Script::new()]);
    let collection = filled(&runtime, options(1), Metric::Dot, Storage::F32, 30_000);
    let wait_for = |what: &str, done: &dyn Fn() -> bool| {
        let start = std::time::Instant::now();
        while !done() {
            assert!(start.elapsed() < Duration::from_secs(20), "{what}: {:?}", collection.stats());
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    let resident = || collection.stats().resident_rows.iter().map(|(_, rows)| *rows).sum::<u64>();
    wait_for("upload", &|| resident() == 30_000);
    collection.remove_many(&ids(0..20_000)).unwrap();
    wait_for("compaction", &|| collection.stats().dead_rows == 0 && resident() == 10_000);
    let query = Random(6).vectors(1, DIMENSION);
    let live = || {
        collection.search(&query, &SearchOptions::new(1)).unwrap();
        controls[0].counters().live_bytes
    };
    wait_for("memory given back", &|| live() == 10_000 * DIMENSION as u64 * 4);
    collection.build_index(&IndexOptions { lists: Some(16), ..IndexOptions::default() }).unwrap();
    wait_for("upload of the index", &|| resident() == 10_000);
    let exact = collection.search(&query, &SearchOptions::new(10)).unwrap();
    let probed = collection.search(&query, &SearchOptions::new(10).nprobe(16)).unwrap();
    assert_eq!(exact.hits, probed.hits);
    assert!(probed.report.devices.contains(&device(0)));
}

#[test]
fn concurrent_callers_share_ops() {
    let (runtime, controls) = machine(vec![Script::new().latency(Duration::from_millis(3))]);
    let collection = filled(&runtime, options(1), Metric::Euclidean, Storage::F32, 2000);
    collection.make_resident().unwrap();
    let vectors = Random(21).vectors(2000, DIMENSION);
    let before = controls[0].counters().submitted;
    let (callers, rounds) = (32, 10);
    std::thread::scope(|scope| {
        for caller in 0..callers {
            let (collection, vectors) = (&collection, &vectors);
            scope.spawn(move || {
                for round in 0..rounds {
                    let own = caller * 50 + round;
                    // Two kinds of callers: searches with different `k` are not batched together.
                    let k = 1 + caller % 2;
                    let found =
                        collection.search(&vectors[own * DIMENSION..][..DIMENSION], &SearchOptions::new(k)).unwrap();
                    assert_eq!((found.hits[0].id.clone(), found.hits.len()), (format!("v{own}"), k));
                }
            });
        }
    });
    let ops = controls[0].counters().submitted - before;
    assert!(ops < (callers * rounds / 4) as u64, "{ops} ops for {} searches", callers * rounds);
}

/// Regression: one new row made the whole segment go to the device again.
#[test]
fn new_rows_do_not_upload_the_old_ones_again() {
    let (runtime, _) = machine(vec![Script::new()]);
    let collection = filled(&runtime, options(1), Metric::Dot, Storage::F32, 40_000);
    collection.make_resident().unwrap();
    let resident = || collection.stats().resident_rows.iter().map(|(_, rows)| *rows).sum::<u64>();
    let moved = || {
        let figures = runtime.metrics();
        figures.devices.iter().find(|figures| figures.device == device(0)).unwrap().bytes_moved
    };
    let row_bytes = DIMENSION as u64 * 4;
    let before = moved();
    assert!(before >= 40_000 * row_bytes, "{before} bytes");
    collection.insert("one", &Random(9).vectors(1, DIMENSION), Value::Null).unwrap();
    // Longer than the quiet time after which rests are uploaded.
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!((moved() - before, resident()), (0, 40_000));
    // A mebibyte of new rows is uploaded alone.
    let more = 17_000;
    collection.insert_many(&ids(40_000..40_000 + more), &Random(8).vectors(more, DIMENSION), &[]).unwrap();
    let start = std::time::Instant::now();
    while resident() < 40_001 + more as u64 {
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", collection.stats());
        std::thread::sleep(Duration::from_millis(2));
    }
    let uploaded = moved() - before;
    assert!(uploaded >= more as u64 * row_bytes && uploaded < 2 * more as u64 * row_bytes, "{uploaded} bytes");
}

/// Rows of more than the 8 MiB from which a collection chooses devices by itself.
const MANY: usize = 140_000;

/// A card on this bus, whose every op takes so long.
fn card(bus: u8, latency_ms: u64) -> Script {
    let address = PciAddress { domain: 0, bus, device: 0, function: 0 };
    let latency = Duration::from_millis(latency_ms);
    Script::new().kind(DeviceKind::DiscreteGpu).pci_address(address).latency(latency)
}

/// A collection that chooses its devices by itself.
fn placed(runtime: &Arc<Runtime>, count: usize) -> Collection {
    filled(runtime, Options::default(), Metric::Dot, Storage::F32, count)
}

fn verdict(collection: &Collection, index: u32) -> PlacementVerdict {
    let devices = collection.stats().devices;
    devices.iter().find(|one| one.device == device(index)).unwrap_or_else(|| panic!("{devices:?}")).verdict.clone()
}

/// Regression: a card that three APIs reach got three shares of the rows, and an API without
/// `Search` got one as well, whose rows the host searched each time.
#[test]
fn a_card_behind_several_apis_is_used_through_the_fastest_that_can_search() {
    let (runtime, _) = machine(vec![card(1, 4), card(1, 1), card(1, 0).without("search")]);
    let collection = placed(&runtime, MANY);
    collection.make_resident().unwrap();
    let stats = collection.stats();
    assert_eq!(stats.resident_rows, [(device(1), MANY as u64)], "{:?}", stats.devices);
    assert_eq!(verdict(&collection, 0), PlacementVerdict::SameHardware(device(1)));
    assert_eq!(verdict(&collection, 1), PlacementVerdict::Holds(1.0));
    assert!(matches!(verdict(&collection, 2), PlacementVerdict::Unsupported(_)));
    let found = collection.search(&Random(6).vectors(1, DIMENSION), &SearchOptions::new(3)).unwrap();
    assert_eq!(found.report.devices, [device(1)]);
    // Without an address no collection knows that devices are the same, unless kind and name agree.
    let anonymous = Script::new().kind(DeviceKind::DiscreteGpu);
    let (runtime, _) = machine(vec![anonymous.clone(), anonymous]);
    let collection = placed(&runtime, MANY);
    collection.make_resident().unwrap();
    assert_eq!(collection.stats().resident_rows.len(), 2, "one API numbers each piece of hardware once");
    // Below 8 MiB the host is fast enough.
    let few = placed(&runtime, 1000);
    few.make_resident().unwrap();
    assert!(few.stats().resident_rows.is_empty() && few.stats().devices.is_empty());
    assert!(few.preview_residency(&Residency::Auto).unwrap().is_empty());
    let preview = few.preview_residency(&Residency::Devices(vec![device(0)])).unwrap();
    assert!(preview.len() == 1 && preview[0].verdict == PlacementVerdict::Holds(1.0), "{preview:?}");
}

#[test]
fn several_cards_share_the_rows_by_their_speed_and_within_their_room() {
    let (runtime, _) = machine(vec![card(1, 8), card(2, 24)]);
    let collection = placed(&runtime, MANY);
    collection.make_resident().unwrap();
    let stats = collection.stats();
    let rows =
        |index: u32| stats.resident_rows.iter().find(|(of, _)| *of == device(index)).map_or(0, |(_, rows)| *rows);
    assert_eq!(rows(0) + rows(1), MANY as u64);
    let times = rows(0) as f64 / rows(1) as f64;
    assert!((1.8..4.5).contains(&times), "{times}: {:?}", stats.devices);
    // A card with little room holds little, the other one the rest.
    let little = (DIMENSION * 4 * 60_000) as u64;
    let (runtime, _) = machine(vec![card(1, 2).memory_bytes(little), card(2, 8)]);
    let collection = placed(&runtime, MANY);
    collection.make_resident().unwrap();
    let stats = collection.stats();
    let rows =
        |index: u32| stats.resident_rows.iter().find(|(of, _)| *of == device(index)).map_or(0, |(_, rows)| *rows);
    assert!((45_000..=60_000).contains(&rows(0)) && rows(0) + rows(1) == MANY as u64, "{stats:?}");
    assert_eq!(stats.spilled_rows, 0);
}

#[test]
fn an_integrated_gpu_holds_rows_unless_the_host_is_faster() {
    let slow = Script::new().kind(DeviceKind::IntegratedGpu).latency(Duration::from_millis(300));
    let software = Script::new().kind(DeviceKind::SoftwareGpu);
    let (runtime, _) = machine(vec![slow, software]);
    let collection = placed(&runtime, MANY);
    collection.make_resident().unwrap();
    assert_eq!(verdict(&collection, 0), PlacementVerdict::SlowerThanHost);
    assert_eq!((collection.stats().devices.len(), collection.stats().resident_rows.len()), (1, 0));
    // Beside a host without its team of threads it is worth it.
    let preview = collection.preview_residency(&Residency::Devices(vec![device(0)])).unwrap();
    assert_eq!(preview[0].verdict, PlacementVerdict::Holds(1.0));
}

/// Waits until all rows are on one device, and searches meanwhile.
fn wait_for_rows_on(collection: &Collection, on: Option<u32>, wanted: &[panoply_vector::Hit]) {
    let (start, query) = (std::time::Instant::now(), Random(6).vectors(1, DIMENSION));
    loop {
        assert_eq!(collection.search(&query, &SearchOptions::new(5)).unwrap().hits, wanted);
        let stats = collection.stats();
        match on {
            Some(index) if stats.resident_rows == [(device(index), stats.records)] => return,
            None if stats.resident_rows.is_empty() => return,
            _ => assert!(start.elapsed() < Duration::from_secs(30), "{on:?}: {stats:?}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn rows_follow_a_device_that_is_lost_taken_away_and_brought_back() {
    let (runtime, controls) = machine(vec![card(1, 0), card(1, 3).gone_after_opens(1)]);
    let collection = placed(&runtime, MANY);
    let query = Random(6).vectors(1, DIMENSION);
    let wanted = collection.search(&query, &SearchOptions::new(5)).unwrap().hits;
    wait_for_rows_on(&collection, Some(0), &wanted);
    // Taken away while it is used: the other API of the card serves.
    controls[0].set_present(false);
    runtime.rediscover().unwrap();
    wait_for_rows_on(&collection, Some(1), &wanted);
    assert!(matches!(verdict(&collection, 0), PlacementVerdict::NotReady(_)));
    // Brought back: the fastest holds the rows again, without a call.
    controls[0].set_present(true);
    runtime.rediscover().unwrap();
    wait_for_rows_on(&collection, Some(0), &wanted);
    // Lost with all it holds, and the other API with it permanently.
    controls[1].inject(Fault::Lost);
    controls[0].inject(Fault::Lost);
    wait_for_rows_on(&collection, Some(0), &wanted);
    assert!(controls[0].counters().opened > 1, "it was opened again and filled again");
}

/// Regression: the rows of a device without `Search` were searched on the host each time, after a
/// failure on the device each time.
#[test]
fn a_named_device_without_search_holds_no_rows() {
    let (runtime, _) = machine(vec![Script::new().without("search"), Script::new()]);
    let collection = filled(&runtime, options(2), Metric::Dot, Storage::F32, 40_000);
    collection.make_resident().unwrap();
    assert_eq!(collection.stats().resident_rows, [(device(1), 40_000)]);
    assert!(matches!(verdict(&collection, 0), PlacementVerdict::Unsupported(_)));
    let found = collection.search(&Random(6).vectors(1, DIMENSION), &SearchOptions::new(3)).unwrap();
    assert!(found.report.fallback.is_none() && found.report.devices == [device(1)], "{:?}", found.report);
}

/// Searches that find too little memory on a device go to the host. After some of them the device
/// holds no rows any more, until an upload is asked for.
#[test]
fn a_device_without_memory_for_searches_gives_its_rows_back() {
    let (runtime, controls) = machine(vec![Script::new()]);
    let collection = filled(&runtime, options(1), Metric::Dot, Storage::F32, 40_000);
    collection.make_resident().unwrap();
    let query = Random(6).vectors(1, DIMENSION);
    let wanted = collection.search(&query, &SearchOptions::new(5)).unwrap().hits;
    for _ in 0..3 {
        controls[0].inject(Fault::OutOfMemory);
        assert_eq!(collection.search(&query, &SearchOptions::new(5)).unwrap().hits, wanted);
    }
    wait_for_rows_on(&collection, None, &wanted);
    collection.make_resident().unwrap();
    assert_eq!(collection.stats().resident_rows, [(device(0), 40_000)]);
}
