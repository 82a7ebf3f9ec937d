//! Pipelines: every sort of stage, source and end, order, errors, time, and the report of a run.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use panoply_core::op::compute::{Map, Reduce, Transpose};
use panoply_core::{Location, Tensor};
use panoply_cpu::CpuBackend;
use panoply_pipeline::{Cause, ErrorPolicy, Pipeline, PipelineError, Receiver, TrySendError};
use panoply_runtime::worker::BoxError;
use panoply_runtime::{Envelope, PoolOptions, Runtime, Worker, WorkerPool};

/// Waits until a condition is true.
fn eventually(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(20), "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn cpu() -> Arc<Runtime> {
    Arc::new(Runtime::builder().backend(Arc::new(CpuBackend::new())).build().unwrap())
}

fn row(number: usize) -> Tensor {
    Tensor::from_vec(vec![number as f32; 3], [1, 3]).unwrap()
}

fn first(tensor: &Tensor) -> f32 {
    tensor.as_slice::<f32>().unwrap()[0]
}

#[test]
fn closures_in_parallel_keep_the_order() {
    for (parallel, ring) in [(1, 1), (1, 16), (4, 1), (4, 3), (8, 64)] {
        let pipeline = Pipeline::builder()
            .threads(4)
            .source(0..2000_u64)
            .ring(ring)
            .map("add", |number| number + 1)
            .parallel(parallel)
            .ring(ring)
            .filter("even", |number| number.is_multiple_of(2))
            .adaptive()
            .map_mut("count", {
                let mut count = 0;
                move |number| {
                    count += 1;
                    (count, number)
                }
            })
            .collect();
        let (items, report) = pipeline.run().unwrap();
        let expected: Vec<(u64, u64)> = (1..=1000).map(|count| (count, 2 * count)).collect();
        assert_eq!(items, expected, "{parallel} {ring}");
        let even = report.stage("even").unwrap();
        assert_eq!((even.taken, even.given, even.skipped), (2000, 1000, 1000));
        assert_eq!((report.progress.taken, report.progress.arrived, report.progress.total), (2000, 1000, Some(2000)));
        assert_eq!(report.progress.fraction(), Some(1.0));
        assert!(report.stage("add").unwrap().queued_max <= ring);
    }
}

#[test]
fn without_order_every_item_comes_once() {
    let slow_first = |number: u64| {
        if number.is_multiple_of(50) {
            std::thread::sleep(Duration::from_millis(2));
        }
        number
    };
    let builder = Pipeline::builder().threads(4).source(0..1000_u64);
    let (items, _) = builder.map("slow", slow_first).parallel(4).unordered().collect().run().unwrap();
    assert_ne!(items, (0..1000).collect::<Vec<_>>(), "somebody was overtaken");
    assert_eq!(items.len(), 1000);
    assert_eq!(items.into_iter().collect::<BTreeSet<_>>(), (0..1000).collect());
}

#[test]
fn ops_are_chained_and_their_outputs_come_to_the_host() {
    let runtime = cpu();
    let builder = Pipeline::builder().trace(100_000).source((0..200_usize).map(row));
    let pipeline = builder
        .op("double", Arc::clone(&runtime), |row| Map::add(row, row))
        .op("turn", Arc::clone(&runtime), |row: &Tensor| Transpose::new(row))
        .in_flight(8)
        .op("sum", Arc::clone(&runtime), |row: &Tensor| Reduce::sum(row))
        .map("read", |sum| {
            assert_eq!(sum.location(), Location::Host);
            first(&sum)
        })
        .collect();
    let ended = pipeline.start().unwrap().wait();
    assert_eq!(ended.result.unwrap(), (0..200).map(|number| 6.0 * number as f32).collect::<Vec<_>>());
    for name in ["double", "turn", "sum", "read"] {
        let stage = ended.report.stage(name).unwrap();
        assert_eq!((stage.taken, stage.given), (200, 200), "{name}");
        assert!(stage.busy > Duration::ZERO, "{name}");
    }
    let trace = ended.trace.unwrap();
    let mut json = Vec::new();
    trace.write_json(&mut json).unwrap();
    let json = String::from_utf8(json).unwrap();
    assert!(json.contains("\"name\":\"sum\"") && json.contains("\"args\":{\"name\":\"cpu:0\"}"), "tracks");
}

#[test]
fn batches_windows_and_what_was_batched_taken_apart() {
    let builder = Pipeline::builder().source(0..10_u32);
    let (batches, _) = builder.batch(4).collect().run().unwrap();
    assert_eq!(batches, [vec![0, 1, 2, 3], vec![4, 5, 6, 7], vec![8, 9]]);
    let builder = Pipeline::builder().source(0..1000_u32).ring(2);
    let (items, _) = builder.batch(7).ring(1).map("as it is", |batch| batch).unbatch().collect().run().unwrap();
    assert_eq!(items, (0..1000).collect::<Vec<_>>());
    let (windows, _) = Pipeline::builder().source(0..7_u32).window(3, 2).collect().run().unwrap();
    assert_eq!(windows, [vec![0, 1, 2], vec![2, 3, 4], vec![4, 5, 6]]);
    let (spread, _) = Pipeline::builder().source(0..4_u32).flat_map("n times", |n| 0..n).collect().run().unwrap();
    assert_eq!(spread, [0, 0, 1, 0, 1, 2]);
    let (none, _) = Pipeline::builder().source(0..0_u32).batch(3).collect().run().unwrap();
    assert!(none.is_empty());
}

#[test]
fn a_batch_does_not_wait_for_ever() {
    let (sender, builder) = Pipeline::builder().channel::<u32>(8);
    let (pipeline, mut batches) = builder.batch_within(100, Duration::from_millis(5)).into_receiver();
    let running = pipeline.start().unwrap();
    sender.send(1).unwrap();
    sender.send(2).unwrap();
    let mut got = batches.recv().unwrap();
    if got.len() == 1 {
        got.extend(batches.recv().unwrap());
    }
    assert_eq!(got, [1, 2]);
    drop(sender);
    assert!(batches.recv().is_none());
    running.wait().result.unwrap();
}

#[test]
fn branches_are_joined_in_pairs_and_what_one_leaves_out_is_left_out() {
    let runtime = cpu();
    let (pairs, report) = Pipeline::builder()
        .threads(3)
        .source(0..500_usize)
        .fork(
            |branch| branch.filter("no sevens", |number| number % 7 != 0).map("negate", |number| -(number as i64)),
            |branch| {
                branch
                    .map("row", row)
                    .op("sum", Arc::clone(&runtime), |row: &Tensor| Reduce::sum(row))
                    .map("read", |sum| first(&sum))
            },
        )
        .collect()
        .run()
        .unwrap();
    let expected: Vec<(i64, f32)> =
        (0..500).filter(|number| number % 7 != 0).map(|number| (-number, 3.0 * number as f32)).collect();
    assert_eq!(pairs, expected);
    assert_eq!(report.stage("join").unwrap().skipped, 72);
    let uneven = Pipeline::builder().source(0..5).fork(|b| b.batch(2), |b| b.map("same", |n| n)).collect();
    let error = uneven.run().unwrap_err();
    assert!(matches!(&error, PipelineError::BadOption { stage, .. } if stage == "batch"), "{error}");
    let mixed = Pipeline::builder().source(0..5).fork(|b| b.map("mix", |n| n).unordered(), |b| b).collect();
    assert!(matches!(mixed.run().unwrap_err(), PipelineError::BadOption { stage, .. } if stage == "mix"));
}

struct Doubler;

impl Worker for Doubler {
    type Message = u64;
    type Reply = u64;

    fn handle(&mut self, envelope: Envelope<u64>) -> Result<u64, BoxError> {
        if envelope.message == 13 {
            return Err("unlucky".into());
        }
        Ok(2 * envelope.message)
    }
}

#[test]
fn workers_and_futures_are_stages() {
    let options = PoolOptions { workers: 2, restarts_max: 100, ..PoolOptions::default() };
    let pool = Arc::new(WorkerPool::start(options, |_| Doubler).unwrap());
    let builder = Pipeline::builder().source(0..200_u64);
    let ended = builder
        .worker("double", Arc::clone(&pool), |number| *number)
        .on_error(ErrorPolicy::dead_letters())
        .then("add", |number: &u64| {
            let number = *number;
            async move { if number == 40 { Err("forty") } else { Ok(number + 1) } }
        })
        .on_error(ErrorPolicy::skip())
        .collect()
        .start()
        .unwrap()
        .wait();
    let expected: Vec<u64> = (0..200).filter(|n| *n != 13 && *n != 20).map(|n| 2 * n + 1).collect();
    assert_eq!(ended.result.unwrap(), expected);
    let [letter] = ended.dead_letters.as_slice() else { panic!("{:?}", ended.dead_letters) };
    assert_eq!((letter.stage.as_str(), letter.item), ("double", 13));
    assert_eq!(letter.value.as_ref().unwrap().downcast_ref::<u64>(), Some(&13));
    assert!(matches!(&letter.cause, Cause::Worker(error) if error.to_string().contains("unlucky")));
    assert_eq!(ended.report.stage("add").unwrap().skipped, 1);
}

#[test]
fn each_policy_does_what_it_says() {
    let fails = |number: &u32| if number % 10 == 3 { Err(format!("{number} is bad")) } else { Ok(*number) };
    let build = |policy| Pipeline::builder().source(0..40_u32).try_map("check", fails).parallel(2).on_error(policy);
    let error = build(ErrorPolicy::stop()).collect().run().unwrap_err();
    let told = matches!(&error, PipelineError::Failed { stage, item, attempts: 1, cause: Cause::Error(why) }
        if stage == "check" && item % 10 == 3 && why.contains("is bad"));
    assert!(told, "{error}");
    let (items, report) = build(ErrorPolicy::skip()).collect().run().unwrap();
    assert_eq!((items.len(), report.stage("check").unwrap().skipped), (36, 4));
    let ended = build(ErrorPolicy::dead_letters().retry(2, Duration::ZERO)).collect().start().unwrap().wait();
    assert_eq!(ended.result.unwrap().len(), 36);
    let mut letters: Vec<(u64, u32)> = ended.dead_letters.iter().map(|letter| (letter.item, letter.attempts)).collect();
    letters.sort_unstable();
    assert_eq!(letters, [(3, 3), (13, 3), (23, 3), (33, 3)]);
    assert_eq!(ended.report.stage("check").unwrap().retried, 8);
    let full = Pipeline::builder().dead_letters(1).source(0..40_u32).try_map("check", fails);
    let error = full.on_error(ErrorPolicy::dead_letters()).collect().run().unwrap_err();
    assert!(matches!(error, PipelineError::DeadLettersFull { item: 13, dead_letters_max: 1, .. }), "{error}");
}

#[test]
fn what_fails_now_and_then_is_tried_again() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let flaky = move |number: &u32| match counted.fetch_add(1, Ordering::SeqCst) % 2 {
        0 => Err("not yet"),
        _ => Ok(*number),
    };
    let builder = Pipeline::builder().source(0..20_u32).try_map("flaky", flaky);
    let policy = ErrorPolicy::stop().retry(1, Duration::from_micros(10));
    let (items, report) = builder.on_error(policy).collect().run().unwrap();
    assert_eq!(items, (0..20).collect::<Vec<_>>());
    assert_eq!((calls.load(Ordering::SeqCst), report.stage("flaky").unwrap().retried), (40, 20));
    // An op that is refused because of its inputs is not repeated by default, only if the policy
    // asks for it.
    let bad = Pipeline::builder()
        .source([row(1)])
        .op("bad", cpu(), |row: &Tensor| Map::add(row, &Tensor::from_vec(vec![1_i32; 3], [3]).unwrap()));
    let error = bad.collect().run().unwrap_err();
    assert!(
        matches!(&error, PipelineError::Failed { stage, attempts: 1, cause: Cause::Op(_), .. } if stage == "bad"),
        "{error}"
    );
}

#[test]
fn a_channel_feeds_and_a_receiver_takes() {
    let (sender, builder) = Pipeline::builder().channel::<u64>(4);
    let (pipeline, mut receiver): (_, Receiver<u64>) = builder.map("double", |n| 2 * n).ring(4).into_receiver();
    let mut full = 0;
    while sender.try_send(full).is_ok() {
        full += 1;
    }
    assert_eq!(full, 4, "nothing runs yet, and no more fits");
    assert!(matches!(sender.try_send(9), Err(TrySendError::Full(9))));
    let running = pipeline.start().unwrap();
    let second = sender.clone();
    let feeds = std::thread::spawn(move || {
        (4..3000).for_each(|n| second.send(n).unwrap());
        drop(second);
    });
    drop(sender);
    let first: Vec<u64> = receiver.by_ref().take(1000).collect();
    assert_eq!(first, (0..1000).map(|n| 2 * n).collect::<Vec<_>>());
    assert_eq!(receiver.collect::<Vec<_>>().len(), 2000);
    feeds.join().unwrap();
    let ended = running.wait();
    ended.result.unwrap();
    assert_eq!((ended.report.progress.taken, ended.report.progress.arrived), (3000, 3000));
}

#[test]
fn a_pipeline_is_a_stream_and_a_stream_is_a_source() {
    let (first, through) = Pipeline::builder().source(0..300_u32).map("one more", |n| n + 1).into_receiver();
    let second = Pipeline::builder().stream(through).map("twice", |n| 2 * n).collect();
    let (first, second) = (first.start().unwrap(), second.start().unwrap());
    assert_eq!(second.wait().result.unwrap(), (1..=300).map(|n| 2 * n).collect::<Vec<_>>());
    first.wait().result.unwrap();
}

#[test]
fn files_are_sources_and_sinks() {
    let folder = std::env::temp_dir().join(format!("panoply-pipeline-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (text, copy) = (folder.join("numbers.txt"), folder.join("doubled.txt"));
    let (_, report) =
        Pipeline::builder().source((0..100).map(|n: u32| n.to_string())).write_lines(&text).run().unwrap();
    assert_eq!(report.progress.arrived, 100);
    let parse = |line: &String| line.parse::<u32>().map(|n| (2 * n).to_string());
    Pipeline::builder().lines(&text).try_map("double", parse).write_lines(&copy).run().unwrap();
    let expected: String = (0..100).map(|n| format!("{}\n", 2 * n)).collect();
    assert_eq!(std::fs::read_to_string(&copy).unwrap(), expected);
    let (chunks, _) = Pipeline::builder().chunks(&copy, 64).collect().run().unwrap();
    assert_eq!((chunks.concat(), chunks[0].len()), (expected.clone().into_bytes(), 64));
    let missing = folder.join("missing");
    let files = Pipeline::builder().files([text, missing.clone(), copy]).on_error(ErrorPolicy::skip());
    let (files, report) = files.map("size", |(_, bytes)| bytes.len()).collect().run().unwrap();
    assert_eq!((files.len(), report.stages[0].skipped), (2, 1));
    let error = Pipeline::builder().lines(&missing).collect().run().unwrap_err();
    assert!(matches!(&error, PipelineError::SourceFailed { taken: 0, .. }) && error.to_string().contains("missing"));
    let error = Pipeline::builder().source(["a"]).write_bytes(folder.join("no/such/folder")).run().unwrap_err();
    assert!(matches!(&error, PipelineError::Failed { stage, .. } if stage == "write"), "{error}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_run_can_be_paused_resumed_and_drained() {
    let seen = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&seen);
    let builder = Pipeline::builder().source(0_u64..).map("same", |n| n).parallel(2);
    let running = builder.for_each("count", move |_| _ = counts.fetch_add(1, Ordering::SeqCst)).start().unwrap();
    let handle = running.handle();
    eventually("items", || seen.load(Ordering::SeqCst) > 100);
    handle.pause();
    std::thread::sleep(Duration::from_millis(20));
    let paused = seen.load(Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(seen.load(Ordering::SeqCst), paused);
    handle.resume();
    eventually("more items", || seen.load(Ordering::SeqCst) > paused + 100);
    assert_eq!(handle.progress().total, None);
    handle.drain();
    let ended = running.wait();
    ended.result.unwrap();
    let progress = ended.report.progress;
    assert_eq!(progress.taken, progress.arrived, "everything inside came out");
    assert_eq!(progress.arrived, seen.load(Ordering::SeqCst) as u64);
}

#[test]
fn the_report_names_the_bottleneck() {
    let nap = |ms| {
        move |n: u32| {
            std::thread::sleep(Duration::from_millis(ms));
            n
        }
    };
    let builder = Pipeline::builder().threads(3).source(0..40_u32).map("quick", nap(1)).ring(4);
    let (_, report) = builder.map("slow", nap(5)).ring(4).collect().run().unwrap();
    assert_eq!(report.bottleneck().unwrap().name, "slow", "{report}");
    assert!(report.sentence().starts_with("Stage slow is the bottleneck"), "{report}");
    let (quick, collect) = (report.stage("quick").unwrap(), report.stage("collect").unwrap());
    assert!(quick.blocked > report.wall / 3, "{report}");
    assert!(collect.starved > report.wall / 2, "{report}");
}

#[test]
fn items_that_take_too_long_are_late() {
    let nap = |slow: u32| {
        move |n: u32| {
            std::thread::sleep(Duration::from_millis(if n == slow { 80 } else { 1 }));
            n
        }
    };
    let builder = Pipeline::builder().item_deadline(Duration::from_millis(40)).source(0..6_u32);
    let error = builder.map("slow", nap(2)).collect().run().unwrap_err();
    let late = Cause::Late { after: Duration::from_millis(40) };
    // Either stage may notice it first: the one that has the next item, or the one that gets the
    // slow one.
    assert!(matches!(&error, PipelineError::Failed { cause, .. } if *cause == late), "{error}");
    let builder = Pipeline::builder().item_deadline(Duration::from_millis(40)).source(0..1_u32).map("slow", nap(0));
    let (items, report) = builder.map("after", |n| n).on_error(ErrorPolicy::skip()).collect().run().unwrap();
    assert_eq!((items.len(), report.stage("after").unwrap().skipped), (0, 1));
}
