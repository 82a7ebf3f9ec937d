//! Pipelines while everything around them fails: closures that panic, hang or are slow, devices
//! that are lost in mid-stream, consumers that leave, sources that panic, senseless choices, and
//! ends in every state. Each failure is reported with the stage's name; no item is lost or
//! duplicated; nothing leaks, and no thread is left.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.
#![allow(unsafe_code)] // The shared module contains a counting allocator.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::eventually;
use crate::threads::{alone, expect_no_threads, pipeline_threads};
use panoply_conformance::virtual_device::{Fault, Script, VirtualBackend, VirtualControl};
use panoply_core::Tensor;
use panoply_core::op::compute::{Map, Transpose};
use panoply_cpu::CpuBackend;
use panoply_pipeline::{Cause, ErrorPolicy, Pipeline, PipelineError, RunOutcome};
use panoply_runtime::{RunOptions, Runtime, WorkerLimits};

/// An item whose existence is counted.
#[derive(Clone)]
struct CountedItem(u64, #[allow(dead_code)] Arc<()>);

/// Endless items, and the counter of those that are alive.
fn counted() -> (impl Iterator<Item = CountedItem> + Send, Arc<()>) {
    let alive = Arc::new(());
    let token = Arc::clone(&alive);
    ((0..).map(move |number| CountedItem(number, Arc::clone(&token))), alive)
}

/// Waits until nothing of a run is left.
fn expect_nothing_left(alive: &Arc<()>) {
    eventually("every item was let go", || Arc::strong_count(alive) == 1);
    expect_no_threads();
}

fn virtual_devices(scripts: Vec<Script>) -> (Arc<Runtime>, Vec<Arc<VirtualControl>>) {
    let count = scripts.len();
    let backend = scripts.into_iter().fold(VirtualBackend::new(Arc::new(CpuBackend::new())), VirtualBackend::device);
    let controls = (0..count).map(|index| backend.control(index).unwrap()).collect();
    let limits = WorkerLimits {
        op_time_max: Duration::from_millis(300),
        reopen_wait_min: Duration::from_millis(1),
        reopen_wait_max: Duration::from_millis(4),
        ..WorkerLimits::default()
    };
    (Arc::new(Runtime::builder().backend(Arc::new(backend)).limits(limits).build().unwrap()), controls)
}

/// Waits until the devices' memory is free. Each device gets an op, so that it releases freed
/// memory.
fn expect_free_memory(runtime: &Runtime, controls: &[Arc<VirtualControl>]) {
    let devices: Vec<_> = runtime.devices().map(|device| device.id).collect();
    // Smaller than the tensors that a pipeline keeps, since its own output may still be there.
    let probe = Tensor::from_vec(vec![0.0_f32], [1, 1]).unwrap();
    eventually("device memory is free", || {
        for device in &devices {
            // A device that is being reopened holds no memory.
            let _ = runtime.run_with(Transpose::new(&probe), RunOptions::require(*device).to_host()).wait();
        }
        controls.iter().all(|control| control.counters().live_bytes <= 4)
    });
}

fn row(number: u32) -> Tensor {
    Tensor::from_vec(vec![number as f32; 3], [1, 3]).unwrap()
}

#[test]
fn a_stage_that_panics_is_named_and_the_others_go_on_where_asked() {
    let _alone = alone();
    let panics = |item: CountedItem| if item.0 == 7 { panic!("seven") } else { item.0 };
    let (items, alive) = counted();
    let error = Pipeline::builder().source(items).map("count", panics).parallel(2).collect().run().unwrap_err();
    let told = matches!(&error, PipelineError::Failed { stage, item: 7, cause: Cause::Panicked(why), .. }
        if stage == "count" && why == "seven");
    assert!(told, "{error}");
    expect_nothing_left(&alive);
    let (items, alive) = counted();
    let skips = Pipeline::builder().source(items.take(20)).map("count", panics).on_error(ErrorPolicy::skip());
    let (numbers, report) = skips.collect().run().unwrap();
    assert_eq!(numbers, (0..20).filter(|n| *n != 7).collect::<Vec<_>>());
    assert_eq!(report.stage("count").unwrap().skipped, 1);
    let end = Pipeline::builder().source(0..9).for_each("end", |n| assert!(n < 5, "five")).run().unwrap_err();
    assert!(matches!(&end, PipelineError::Failed { stage, item: 5, .. } if stage == "end"), "{end}");
    expect_nothing_left(&alive);
}

#[test]
fn a_source_that_panics_is_an_error() {
    let _alone = alone();
    let (items, alive) = counted();
    let source = items.map(|item| if item.0 == 5 { panic!("no more") } else { item });
    let error = Pipeline::builder().source(source).map("same", |item| item).collect().run().map(drop).unwrap_err();
    let cause = Cause::Panicked("no more".to_owned());
    assert_eq!(error, PipelineError::SourceFailed { stage: "source".to_owned(), taken: 5, cause });
    expect_nothing_left(&alive);
}

#[test]
fn a_closure_that_hangs_ends_the_run_and_its_thread_ends_when_it_comes_back() {
    let _alone = alone();
    let goes_on = Arc::new(AtomicBool::new(false));
    let waits = Arc::clone(&goes_on);
    let (items, alive) = counted();
    let hangs = move |item: CountedItem| {
        while item.0 == 3 && !waits.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        item.0
    };
    let pipeline = Pipeline::builder().source(items).map("hangs", hangs).time_max(Duration::from_millis(30)).collect();
    let start = Instant::now();
    let ended = pipeline.start().unwrap().wait();
    assert!(start.elapsed() < Duration::from_secs(10));
    let after = Duration::from_millis(30);
    assert_eq!(ended.result.unwrap_err(), PipelineError::Hung { stage: "hangs".to_owned(), item: 3, after });
    assert_eq!(ended.threads_left, 1);
    goes_on.store(true, Ordering::SeqCst);
    drop(ended.report);
    expect_nothing_left(&alive);
}

#[test]
fn a_deadline_ends_a_slow_run_and_names_the_slow_stage() {
    let _alone = alone();
    let (items, alive) = counted();
    let slow = |item: CountedItem| {
        std::thread::sleep(Duration::from_millis(10));
        item
    };
    let builder = Pipeline::builder().deadline(Duration::from_millis(60)).source(items).map("quick", |item| item);
    let ended: RunOutcome<()> = builder.map("slow", slow).for_each("end", drop).start().unwrap().wait();
    let error = ended.result.unwrap_err();
    assert!(
        matches!(&error, PipelineError::DeadlineExceeded { stage, inside, .. } if stage == "slow" && *inside > 10),
        "{error}"
    );
    assert_eq!(ended.threads_left, 0);
    let dropped: u64 = ended.report.stages.iter().map(|stage| stage.dropped).sum();
    let progress = ended.report.progress;
    assert_eq!(progress.taken, progress.arrived + dropped, "{}", ended.report);
    expect_nothing_left(&alive);
}

#[test]
fn an_op_that_hangs_is_run_elsewhere() {
    let _alone = alone();
    let hangs = Script::new().fault_at(5, Fault::Hang).fault_at(9, Fault::Lost);
    let (runtime, _controls) = virtual_devices(vec![hangs, Script::new()]);
    let builder = Pipeline::builder().source((0..60).map(row));
    let (rows, report) = builder
        .op("turn", Arc::clone(&runtime), |row: &Tensor| Transpose::new(row))
        .map("read", |row| row.as_slice::<f32>().unwrap()[0] as u32)
        .collect()
        .run()
        .unwrap();
    assert_eq!(rows, (0..60).collect::<Vec<_>>());
    assert_eq!(report.stage("turn").unwrap().given, 60);
}

#[test]
fn devices_that_are_lost_in_mid_stream_lose_no_item_and_none_comes_twice() {
    let _alone = alone();
    let script = || Script::new().resident().latency(Duration::from_micros(100));
    let (runtime, controls) = virtual_devices(vec![script(), script(), script()]);
    let builder = Pipeline::builder().trace(100_000).source((0..1500).map(row));
    let running = builder
        .op("double", Arc::clone(&runtime), |row: &Tensor| Map::add(row, row))
        .op("turn", Arc::clone(&runtime), |row: &Tensor| Transpose::new(row))
        .op("again", Arc::clone(&runtime), |row: &Tensor| Map::add(row, row))
        .map("read", |row| row.as_slice::<f32>().unwrap()[0] as u32)
        .collect()
        .start()
        .unwrap();
    let handle = running.handle();
    // Few enough faults that no item meets more of them than it may be restarted.
    for round in 0..60 {
        if handle.is_over() {
            break;
        }
        controls[round % 3].inject(if round % 5 == 4 { Fault::Error } else { Fault::Lost });
        std::thread::sleep(Duration::from_millis(15));
    }
    let ended = running.wait();
    assert_eq!(ended.result.unwrap(), (0..1500).map(|n| 4 * n).collect::<Vec<_>>());
    let replaced: u64 = ended.report.stages.iter().map(|stage| stage.replaced).sum();
    assert!(replaced > 0, "some items were begun again: {}", ended.report);
    let trace = ended.trace.unwrap();
    assert!(trace.overlap("double", "again").unwrap() > Duration::ZERO, "ops of different items overlap");
    drop(handle);
    expect_free_memory(&runtime, &controls);
}

#[test]
fn a_device_that_is_away_for_a_while_holds_up_the_run_and_loses_nothing() {
    let _alone = alone();
    let backend = VirtualBackend::new(Arc::new(CpuBackend::new())).device(Script::new().resident());
    let control = backend.control(0).unwrap();
    let away = Duration::from_millis(300);
    let limits = WorkerLimits { reopen_wait_min: away, reopen_wait_max: 2 * away, ..WorkerLimits::default() };
    let runtime = Arc::new(Runtime::builder().backend(Arc::new(backend)).limits(limits).build().unwrap());
    let builder = Pipeline::builder().source((0..200).map(row));
    let running = builder
        .op("double", Arc::clone(&runtime), |row: &Tensor| Map::add(row, row))
        .op("turn", Arc::clone(&runtime), |row: &Tensor| Transpose::new(row))
        .map("read", |row| row.as_slice::<f32>().unwrap()[0] as u32)
        .collect()
        .start()
        .unwrap();
    control.inject(Fault::Lost);
    let ended = running.wait();
    assert_eq!(ended.result.unwrap(), (0..200).map(|n| 2 * n).collect::<Vec<_>>(), "{}", ended.report);
}

#[test]
fn a_consumer_that_leaves_stops_the_run() {
    let _alone = alone();
    let (items, alive) = counted();
    let (pipeline, mut receiver) = Pipeline::builder().source(items).map("last", |item| item).into_receiver();
    let running = pipeline.start().unwrap();
    assert_eq!(receiver.recv().unwrap().0, 0);
    drop(receiver);
    assert_eq!(running.wait().result.unwrap_err(), PipelineError::ReceiverGone { stage: "last".to_owned() });
    expect_nothing_left(&alive);
    // A receiver that is only slow holds up the run, and loses nothing.
    let (items, alive) = counted();
    let (pipeline, receiver) =
        Pipeline::builder().source(items.take(50)).map("last", |item| item).ring(2).into_receiver();
    let running = pipeline.start().unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert!(running.handle().progress().taken < 30, "the source waits");
    assert_eq!(receiver.map(|item| item.0).collect::<Vec<_>>(), (0..50).collect::<Vec<_>>());
    running.wait().result.unwrap();
    expect_nothing_left(&alive);
}

#[test]
fn choices_that_make_no_sense_are_refused_with_the_stages_name() {
    let _alone = alone();
    // Threads of the previous test may still be ending.
    expect_no_threads();
    let source = || Pipeline::builder().source(0..3_u32);
    let same = |n: u32| n;
    let refused = [
        ("batch", source().batch(0).collect().run().map(drop)),
        ("window", source().window(0, 1).collect().run().map(drop)),
        ("window", source().window(1, 0).collect().run().map(drop)),
        ("source", source().ring(0).collect().run().map(drop)),
        ("same", source().map("same", same).ring(0).collect().run().map(drop)),
        ("same", source().map("same", same).ring(usize::MAX).collect().run().map(drop)),
        ("same", source().map("same", same).parallel(0).collect().run().map(drop)),
        ("same", source().map("same", same).parallel(65).collect().run().map(drop)),
        ("same", source().map("same", same).time_max(Duration::ZERO).collect().run().map(drop)),
        ("state", source().map_mut("state", same).parallel(2).collect().run().map(drop)),
        ("source", Pipeline::builder().channel::<u32>(0).1.collect().run().map(drop)),
        ("the pipeline", Pipeline::builder().threads(0).source(0..3).collect().run().map(drop)),
        ("the pipeline", Pipeline::builder().deadline(Duration::ZERO).source(0..3).collect().run().map(drop)),
    ];
    for (number, (name, result)) in refused.into_iter().enumerate() {
        let error = result.unwrap_err();
        let told = matches!(&error, PipelineError::BadOption { stage, .. } if stage == name);
        assert!(told, "{number}: {error}");
    }
    assert_eq!(pipeline_threads(), 0);
}

#[test]
fn a_run_can_be_cancelled_in_every_state() {
    let _alone = alone();
    let (runtime, _controls) = virtual_devices(vec![Script::new().latency(Duration::from_millis(2))]);
    for state in 0..6 {
        let (items, alive) = counted();
        let seen = Arc::new(AtomicUsize::new(0));
        let counts = Arc::clone(&seen);
        let fails = move |item: &CountedItem| match state {
            5 if item.0 == 3 => Err("always"),
            _ => Ok(item.clone()),
        };
        let (pipeline, mut receiver) = Pipeline::builder()
            .source(items)
            .try_map("check", fails)
            .on_error(ErrorPolicy::stop().retry(1_000_000, Duration::from_secs(1)))
            .op("turn", Arc::clone(&runtime), |item: &CountedItem| Transpose::new(&row(item.0 as u32)))
            .map("count", move |row| {
                counts.fetch_add(1, Ordering::SeqCst);
                row
            })
            .into_receiver();
        let running = pipeline.start().unwrap();
        let handle = running.handle();
        match state {
            // At once; while ops are in flight; paused; draining; blocked, because no item is
            // taken; between two attempts.
            0 => {}
            1 => _ = receiver.recv(),
            2 => handle.pause(),
            3 => handle.drain(),
            _ => std::thread::sleep(Duration::from_millis(60)),
        }
        handle.cancel();
        let ended = running.wait();
        if state != 3 || ended.result.is_err() {
            assert_eq!(ended.result.unwrap_err(), PipelineError::Cancelled, "state {state}");
        }
        assert_eq!(ended.threads_left, 0, "state {state}");
        while receiver.recv().is_some() {}
        drop((handle, receiver));
        expect_nothing_left(&alive);
    }
}

#[test]
fn a_run_that_is_dropped_leaves_nothing() {
    let _alone = alone();
    let (runtime, controls) = virtual_devices(vec![Script::new().resident().latency(Duration::from_micros(200))]);
    for wait_ms in [0, 1, 5, 20] {
        let (items, alive) = counted();
        let builder = Pipeline::builder().source(items).map("same", |item| item).parallel(2);
        let builder =
            builder.op("turn", Arc::clone(&runtime), |item: &CountedItem| Transpose::new(&row(item.0 as u32)));
        let running = builder.for_each("end", drop).start().unwrap();
        std::thread::sleep(Duration::from_millis(wait_ms));
        drop(running);
        expect_nothing_left(&alive);
        // A pipeline that never ran has nothing to end.
        let (items, alive) = counted();
        drop(Pipeline::builder().source(items).map("same", |item| item).collect());
        expect_nothing_left(&alive);
    }
    expect_free_memory(&runtime, &controls);
}

#[test]
fn who_sends_is_told_when_the_run_has_ended() {
    let _alone = alone();
    let (sender, builder) = Pipeline::builder().channel::<u32>(2);
    let slow = builder.map("slow", |n| {
        std::thread::sleep(Duration::from_millis(5));
        n
    });
    let running = slow.for_each("end", drop).start().unwrap();
    let handle = running.handle();
    let sends = std::thread::spawn(move || (0..).find(|n| sender.send(*n).is_err()).unwrap());
    std::thread::sleep(Duration::from_millis(20));
    handle.cancel();
    assert!(sends.join().unwrap() < 1000, "whoever waits for room is woken");
    assert_eq!(running.wait().result.unwrap_err(), PipelineError::Cancelled);
    let (sender, builder) = Pipeline::builder().channel::<u32>(2);
    let running = builder.collect().start().unwrap();
    sender.send(1).unwrap();
    running.handle().drain();
    assert!(sender.send(2).is_err());
    assert_eq!(running.wait().result.unwrap(), [1]);
    drop(handle);
    expect_no_threads();
    // A pipeline that is never started, or cannot be, blocks neither its sender nor its receiver.
    let (sender, builder) = Pipeline::builder().channel::<u32>(1);
    let (pipeline, mut receiver) = builder.map("same", |n| n).into_receiver();
    drop(pipeline);
    assert_eq!((sender.send(1).is_err(), receiver.recv()), (true, None));
    let (sender, builder) = Pipeline::builder().channel::<u32>(1);
    let (pipeline, mut receiver) = builder.map("same", |n| n).ring(0).into_receiver();
    assert!(pipeline.start().is_err() && sender.send(1).is_err() && receiver.recv().is_none());
}
