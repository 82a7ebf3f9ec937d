//! Misused pipelines: senseless choices, files that are not files, sources and futures that never
//! end, stages that wait for their own run, steering at random moments. Each run ends, reports why,
//! and leaves nothing behind.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.
#![allow(unsafe_code)] // The shared module contains a counting allocator.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::support::eventually;
use crate::threads::{alone, expect_no_threads, pipeline_threads};
use panoply_conformance::values::Random;
use panoply_core::Tensor;
use panoply_core::op::compute::Transpose;
use panoply_cpu::CpuBackend;
use panoply_pipeline::{
    BATCH_MAX, Builder, CHUNK_BYTES_MAX, Cause, ErrorPolicy, LANES_MAX, LINE_BYTES_MAX, Pipeline, PipelineError,
    RING_DEPTH_MAX, RunOutcome, Running, THREADS_MAX, TRACE_SPANS_MAX,
};
use panoply_runtime::worker::BoxError;
use panoply_runtime::{Envelope, PoolOptions, RunOptions, Runtime, Worker, WorkerPool};

fn cpu() -> Arc<Runtime> {
    Arc::new(Runtime::builder().backend(Arc::new(CpuBackend::new())).build().unwrap())
}

fn numbers(count: u32) -> Builder<u32> {
    Pipeline::builder().source(0..count)
}

fn same(number: u32) -> u32 {
    number
}

/// A folder that is removed when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("panoply-attacks-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn numbers_beyond_all_measure_are_refused_before_anything_runs() {
    let _alone = alone();
    let row = |_: &u32| Transpose::new(&Tensor::from_vec(vec![1.0_f32], [1, 1]).unwrap());
    let op = |builder: Builder<u32>| builder.op("op", cpu(), row);
    let refused = [
        ("window", numbers(3).window(usize::MAX, 1).collect().run().map(drop)),
        ("window", numbers(3).window(BATCH_MAX + 1, usize::MAX).collect().run().map(drop)),
        ("batch", numbers(3).batch(usize::MAX).collect().run().map(drop)),
        ("batch", numbers(3).batch(BATCH_MAX + 1).collect().run().map(drop)),
        ("source", Pipeline::builder().chunks("/dev/zero", usize::MAX).collect().run().map(drop)),
        ("source", Pipeline::builder().chunks("/dev/zero", CHUNK_BYTES_MAX + 1).collect().run().map(drop)),
        ("source", Pipeline::builder().channel::<u32>(RING_DEPTH_MAX + 1).1.collect().run().map(drop)),
        ("same", numbers(3).map("same", same).parallel(usize::MAX).collect().run().map(drop)),
        ("same", numbers(3).map("same", same).ring(RING_DEPTH_MAX + 1).collect().run().map(drop)),
        ("op", op(numbers(3)).in_flight(0).collect().run().map(drop)),
        ("op", op(numbers(3)).in_flight(LANES_MAX + 1).collect().run().map(drop)),
        ("the pipeline", Pipeline::builder().trace(usize::MAX).source(0..3).collect().run().map(drop)),
        ("the pipeline", Pipeline::builder().trace(TRACE_SPANS_MAX + 1).source(0..3).collect().run().map(drop)),
        ("the pipeline", Pipeline::builder().threads(usize::MAX).source(0..3).collect().run().map(drop)),
        ("the pipeline", Pipeline::builder().threads(THREADS_MAX + 1).source(0..3).collect().run().map(drop)),
        ("the pipeline", Pipeline::builder().item_deadline(Duration::ZERO).source(0..3).collect().run().map(drop)),
    ];
    for (number, (name, result)) in refused.into_iter().enumerate() {
        let error = result.unwrap_err();
        assert!(matches!(&error, PipelineError::BadOption { stage, .. } if stage == name), "{number}: {error}");
    }
    assert_eq!(pipeline_threads(), 0);
    // Merely large values work, and take no memory that is not needed.
    let builder = Pipeline::builder().deadline(Duration::MAX).item_deadline(Duration::MAX).source(0..100_u32);
    let builder = builder.ring(RING_DEPTH_MAX).map("same", |n| [n; 64]).ring(RING_DEPTH_MAX).time_max(Duration::MAX);
    let (batches, _) = builder.parallel(LANES_MAX).batch_within(BATCH_MAX, Duration::MAX).collect().run().unwrap();
    assert_eq!(batches.concat().len(), 100);
    let (windows, _) = numbers(5).window(3, usize::MAX).collect().run().unwrap();
    assert_eq!(windows, [[0, 1, 2]]);
    expect_no_threads();
}

#[test]
fn a_choice_that_a_stage_does_not_have_is_refused() {
    let _alone = alone();
    let row = |_: &u32| Transpose::new(&Tensor::from_vec(vec![1.0_f32], [1, 1]).unwrap());
    let second = Duration::from_secs(1);
    let answer = |n: &u32| std::future::ready(Ok::<_, BoxError>(*n));
    let refused = [
        numbers(3).in_flight(9).collect().run().map(drop),
        numbers(3).unordered().collect().run().map(drop),
        numbers(3).map("s", same).in_flight(9).collect().run().map(drop),
        numbers(3).map("s", same).wishes(RunOptions::default()).collect().run().map(drop),
        numbers(3).map_mut("s", same).unordered().collect().run().map(drop),
        numbers(3).batch(2).unordered().collect().run().map(drop),
        numbers(3).op("s", cpu(), row).parallel(2).collect().run().map(drop),
        numbers(3).op("s", cpu(), row).time_max(second).collect().run().map(drop),
        numbers(3).then("s", answer).wishes(RunOptions::default()).collect().run().map(drop),
        numbers(3).fork(|b| b, |b| b).on_error(ErrorPolicy::skip()).collect().run().map(drop),
        numbers(3).fork(|b| b.ring(3), |b| b).collect().run().map(drop),
        numbers(3).fork(|b| b.parallel(3), |b| b).collect().run().map(drop),
        Pipeline::builder().channel::<u32>(2).1.time_max(second).collect().run().map(drop),
        Pipeline::builder().channel::<u32>(2).1.ring(5).collect().run().map(drop),
    ];
    for (number, result) in refused.into_iter().enumerate() {
        let error = result.unwrap_err();
        assert!(matches!(&error, PipelineError::BadOption { .. }), "{number}: {error}");
    }
}

#[test]
fn files_that_are_none_are_errors_and_no_end_of_bytes_fills_the_memory() {
    let _alone = alone();
    let folder = Folder::new("files");
    let failed = |result: Result<(), PipelineError>, what: &str| {
        let error = result.unwrap_err();
        assert!(matches!(error, PipelineError::SourceFailed { taken: 0, .. }), "{error}");
        assert!(error.to_string().contains(what), "{error}");
    };
    let missing = folder.0.join("missing");
    failed(Pipeline::builder().chunks(&missing, 8).collect().run().map(drop), "missing");
    failed(Pipeline::builder().lines(&folder.0).collect().run().map(drop), "directory");
    failed(Pipeline::builder().chunks(&folder.0, 8).collect().run().map(drop), "directory");
    failed(Pipeline::builder().files([folder.0.clone()]).collect().run().map(drop), "not a file");
    failed(Pipeline::builder().lines("/dev/zero").collect().run().map(drop), "a line of more than");
    failed(Pipeline::builder().files(["/dev/zero".into()]).collect().run().map(drop), "not a file");
    let zeros =
        Pipeline::builder().chunks("/dev/zero", 1 << 16).for_each("end", |chunk| assert_eq!(chunk.len(), 1 << 16));
    let running = zeros.start().unwrap();
    eventually("chunks", || running.handle().progress().arrived > 100);
    running.handle().drain();
    running.wait().result.unwrap();
    // A file whose length the system does not know can be read all the same.
    let (files, _) = Pipeline::builder().files(["/proc/self/status".into()]).collect().run().unwrap();
    assert!(files[0].1.starts_with(b"Name:"));
    let error = numbers(3).map("text", |n| n.to_string()).write_lines("/dev/full").run().unwrap_err();
    assert!(matches!(&error, PipelineError::Failed { stage, .. } if stage == "write"), "{error}");
    let error = numbers(0).map("text", |n| n.to_string()).write_lines(&folder.0).run().unwrap_err();
    assert!(matches!(&error, PipelineError::Failed { stage, .. } if stage == "write"), "{error}");
    expect_no_threads();
}

#[test]
fn lines_are_what_lies_between_ends() {
    let _alone = alone();
    let folder = Folder::new("lines");
    let odd = folder.file("odd", b"one\r\ntwo\r\r\n\n\xff\xfe\nlast");
    let builder = Pipeline::builder().lines(&odd).on_error(ErrorPolicy::dead_letters());
    let ended = builder.collect().start().unwrap().wait();
    assert_eq!(ended.result.unwrap(), ["one", "two\r", "", "last"]);
    assert_eq!(ended.dead_letters.len(), 1);
    assert_eq!(ended.dead_letters[0].item, 3);
    let mut long = vec![b'a'; LINE_BYTES_MAX];
    long.extend(b"\r\nshort\n");
    let (lines, _) = Pipeline::builder().lines(folder.file("long", &long)).collect().run().unwrap();
    assert_eq!((lines.len(), lines[0].len(), lines[1].as_str()), (2, LINE_BYTES_MAX, "short"));
    long.insert(0, b'a');
    let longer = Pipeline::builder().lines(folder.file("longer", &long)).on_error(ErrorPolicy::skip());
    let (lines, report) = longer.collect().run().unwrap();
    assert_eq!((lines.len(), report.stages[0].skipped), (0, 1), "where the next line begins nobody can tell");
    // The file is truncated while it is read: the earlier lines came, and the end is a normal end.
    let text = folder.file("cut", "0123456789\n".repeat(10_000).as_bytes());
    let cut = std::fs::OpenOptions::new().write(true).open(&text).unwrap();
    let (pipeline, mut lines) = Pipeline::builder().lines(&text).ring(1).into_receiver();
    let running = pipeline.start().unwrap();
    assert_eq!(lines.recv().unwrap(), "0123456789");
    cut.set_len(100).unwrap();
    assert!(lines.all(|line| "0123456789".starts_with(&line)));
    running.wait().result.unwrap();
}

#[cfg(unix)]
#[test]
fn a_pipe_without_an_other_end_keeps_nobody_waiting() {
    let _alone = alone();
    let folder = Folder::new("pipe");
    let pipe = folder.0.join("pipe");
    if !std::process::Command::new("mkfifo").arg(&pipe).status().is_ok_and(|status| status.success()) {
        return println!("skipped: no mkfifo");
    }
    let error = Pipeline::builder().files([pipe.clone()]).collect().run().unwrap_err();
    assert!(error.to_string().contains("not a file"), "{error}");
    let hangs = Pipeline::builder().lines(&pipe).time_max(Duration::from_millis(50)).collect().start().unwrap();
    let ended = hangs.wait();
    assert!(matches!(&ended.result, Err(PipelineError::Hung { stage, item: 0, .. }) if stage == "source"));
    assert_eq!(ended.threads_left, 1);
    // Its thread ends when the pipe is opened after all.
    drop(std::fs::OpenOptions::new().write(true).open(&pipe).unwrap());
    expect_no_threads();
    let reads = Pipeline::builder().lines(&pipe).collect().start().unwrap();
    std::fs::write(&pipe, "one\ntwo\n").unwrap();
    assert_eq!(reads.wait().result.unwrap(), ["one", "two"]);
    expect_no_threads();
}

#[test]
fn a_source_that_fails_is_asked_again_as_its_policy_says() {
    let _alone = alone();
    let flaky = |every: u32| (0..30_u32).map(move |n| if n % every == 0 { Err("not now") } else { Ok(n) });
    let patient = ErrorPolicy::stop().retry(1, Duration::from_micros(10));
    let (items, report) = Pipeline::builder().try_source(flaky(3)).on_error(patient).collect().run().unwrap();
    assert_eq!((items.len(), report.stages[0].retried), (20, 10));
    let always = || std::iter::repeat_with(|| Err::<u32, _>("never"));
    let error = Pipeline::builder().try_source(always()).on_error(patient).collect().run().unwrap_err();
    assert!(matches!(error, PipelineError::SourceFailed { taken: 0, .. }), "{error}");
    // Endless errors do not fill the memory, and a run with them can be ended.
    let skips = Pipeline::builder().try_source(always()).on_error(ErrorPolicy::skip()).collect().start().unwrap();
    eventually("many errors", || skips.handle().report().stages[0].skipped > 1000);
    skips.handle().cancel();
    assert_eq!(skips.wait().result.unwrap_err(), PipelineError::Cancelled);
    let letters = Pipeline::builder().dead_letters(7).try_source(always()).on_error(ErrorPolicy::dead_letters());
    let ended = letters.collect().start().unwrap().wait();
    assert!(matches!(ended.result, Err(PipelineError::DeadLettersFull { dead_letters_max: 7, .. })));
    assert_eq!(ended.dead_letters.len(), 7);
    let none = Pipeline::builder().dead_letters(0).try_source(always()).on_error(ErrorPolicy::dead_letters());
    assert!(matches!(none.collect().run(), Err(PipelineError::DeadLettersFull { dead_letters_max: 0, .. })));
    let forever = ErrorPolicy::stop().retry(u32::MAX, Duration::ZERO);
    let storm = Pipeline::builder().try_source(always()).on_error(forever).collect().start().unwrap();
    std::thread::sleep(Duration::from_millis(20));
    drop(storm);
    let waits = ErrorPolicy::stop().retry(1, Duration::MAX);
    let waits = numbers(3).try_map("bad", |_| Err::<u32, _>("bad")).on_error(waits).collect().start().unwrap();
    std::thread::sleep(Duration::from_millis(20));
    let start = Instant::now();
    drop(waits);
    assert!(start.elapsed() < Duration::from_secs(1), "a wait ends with the run");
    expect_no_threads();
}

/// A future that is never ready, and never calls its waker.
struct Silent;

impl Future for Silent {
    type Output = Result<u32, BoxError>;

    fn poll(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Pending
    }
}

#[test]
fn futures_that_never_answer_are_given_up() {
    let _alone = alone();
    let third = |number: &u32| -> Pin<Box<dyn Future<Output = Result<u32, BoxError>> + Send>> {
        if *number % 3 == 1 { Box::pin(Silent) } else { Box::pin(std::future::ready(Ok(*number))) }
    };
    let limit = Duration::from_millis(10);
    let given_up = numbers(9).then("ask", third).time_max(limit).on_error(ErrorPolicy::dead_letters());
    let ended = given_up.collect().start().unwrap().wait();
    assert_eq!(ended.result.unwrap(), [0, 2, 3, 5, 6, 8]);
    let causes: Vec<&Cause> = ended.dead_letters.iter().map(|letter| &letter.cause).collect();
    assert_eq!(causes, [&Cause::Unanswered { after: limit }; 3]);
    let twice = numbers(2).then("ask", third).time_max(limit);
    let twice = twice.on_error(ErrorPolicy::stop().retry(1, Duration::ZERO)).collect().run().unwrap_err();
    assert!(matches!(twice, PipelineError::Failed { item: 1, attempts: 2, .. }), "{twice}");
    // An item's own deadline ends these futures too, and so do a run's deadline, and a cancelled
    // run.
    let late = Pipeline::builder().item_deadline(Duration::from_millis(40)).source(0..9_u32).then("ask", third);
    // Unordered, so that no item waits for those before it.
    let (mut items, report) = late.unordered().in_flight(9).on_error(ErrorPolicy::skip()).collect().run().unwrap();
    items.sort_unstable();
    assert_eq!((items, report.stage("ask").unwrap().skipped), (vec![0, 2, 3, 5, 6, 8], 3));
    let deadline = Pipeline::builder().deadline(Duration::from_millis(40)).source(0..9_u32).then("ask", third);
    let error = deadline.collect().run().unwrap_err();
    assert!(matches!(error, PipelineError::DeadlineExceeded { inside: 1.., .. }), "{error}");
    let running = numbers(9).then("ask", third).collect().start().unwrap();
    running.handle().cancel();
    assert_eq!(running.wait().threads_left, 0);
    let panics = numbers(9).then("ask", |number: &u32| {
        let number = *number;
        async move { if number == 4 { panic!("four") } else { Ok::<_, BoxError>(number) } }
    });
    let (items, _) = panics.on_error(ErrorPolicy::skip()).collect().run().unwrap();
    assert_eq!(items, [0, 1, 2, 3, 5, 6, 7, 8]);
    expect_no_threads();
}

/// A stream that never yields an item.
struct Nothing;

impl futures_core::Stream for Nothing {
    type Item = u32;

    fn poll_next(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<Option<u32>> {
        Poll::Pending
    }
}

#[test]
fn a_stream_that_never_gives_anything_can_be_drained_and_cancelled() {
    let _alone = alone();
    let drained = Pipeline::builder().stream(Nothing).collect().start().unwrap();
    std::thread::sleep(Duration::from_millis(5));
    drained.handle().drain();
    assert!(drained.wait().result.unwrap().is_empty());
    let cancelled = Pipeline::builder().stream(Nothing).collect().start().unwrap();
    cancelled.handle().cancel();
    assert_eq!(cancelled.wait().result.unwrap_err(), PipelineError::Cancelled);
    expect_no_threads();
}

struct Slow;

impl Worker for Slow {
    type Message = u32;
    type Reply = u32;

    fn handle(&mut self, envelope: Envelope<u32>) -> Result<u32, BoxError> {
        Ok(envelope.message)
    }
}

#[test]
fn a_full_worker_holds_up_its_items_and_no_thread() {
    let _alone = alone();
    let options = PoolOptions { workers: 1, queue_depth_max: 2, ..PoolOptions::default() };
    let pool = Arc::new(WorkerPool::start(options, |_| Slow).unwrap());
    pool.pause();
    let held = numbers(50).worker("ask", Arc::clone(&pool), |n| *n).in_flight(16).collect().start().unwrap();
    std::thread::sleep(Duration::from_millis(20));
    held.handle().cancel();
    assert_eq!(held.wait().threads_left, 0);
    let held = numbers(50).worker("ask", Arc::clone(&pool), |n| *n).in_flight(16).collect().start().unwrap();
    std::thread::sleep(Duration::from_millis(20));
    pool.resume();
    let ended = held.wait();
    assert_eq!(ended.result.unwrap(), (0..50).collect::<Vec<_>>());
    assert_eq!(ended.report.stage("ask").unwrap().retried, 0, "waiting for room is no attempt");
    expect_no_threads();
}

#[test]
fn a_stage_may_end_its_own_run_and_cannot_wait_for_it() {
    let _alone = alone();
    type Own = Arc<Mutex<Option<Running<Vec<u32>>>>>;
    fn run(touch: fn(Running<Vec<u32>>)) {
        let own: Own = Arc::default();
        let inside = Arc::clone(&own);
        let started = Arc::new(OnceLock::new());
        let goes = Arc::clone(&started);
        let pipeline = Pipeline::builder().source(0_u32..).map("touches itself", move |number| {
            goes.wait();
            if let Some(running) = inside.lock().unwrap().take().filter(|_| number == 3) {
                touch(running);
            }
            number
        });
        let running = pipeline.collect().start().unwrap();
        let handle = running.handle();
        *own.lock().unwrap() = Some(running);
        started.set(()).unwrap();
        eventually("the run is over", || handle.is_over());
        drop(handle);
        expect_no_threads();
    }
    run(drop);
    run(|running| {
        let ended: RunOutcome<_> = running.wait();
        let error = ended.result.unwrap_err();
        assert!(error.to_string().contains("waited for the pipeline"), "{error}");
    });
}

#[test]
fn pipelines_in_pipelines_and_thousands_of_small_ones_leave_nothing() {
    let _alone = alone();
    let outer = numbers(20).map("whole", |n| numbers(n).map("same", same).collect().run().unwrap().0).parallel(3);
    let (lists, _) = outer.flat_map("all", |list| list).collect().run().unwrap();
    assert_eq!(lists.len(), (0..20).sum::<usize>());
    for round in 0..2000_u32 {
        let builder = numbers(3).map("same", same).parallel(2);
        match round % 4 {
            0 => assert_eq!(builder.collect().run().unwrap().0, [0, 1, 2]),
            1 => drop(builder.collect().start().unwrap()),
            2 => drop(builder.collect()),
            _ => assert_eq!(builder.batch(2).into_receiver().0.start().unwrap().wait().result, Ok(())),
        }
    }
    expect_no_threads();
}

/// Steers a run at random moments, then ends it in a random way. Every item that was taken arrived,
/// or was reported.
#[test]
fn steered_at_random_every_item_arrives_or_is_counted() {
    let _alone = alone();
    let runtime = cpu();
    for seed in 0..120 {
        let mut random = Random::new(seed);
        let alive = Arc::new(());
        let token = Arc::clone(&alive);
        let arrived = Arc::new(AtomicUsize::new(0));
        let counts = Arc::clone(&arrived);
        let row = |n: &(u32, Arc<()>)| Transpose::new(&Tensor::from_vec(vec![n.0 as f32], [1, 1]).unwrap());
        let builder = Pipeline::builder().source((0_u32..).map(move |n| (n, Arc::clone(&token)))).ring(3);
        let builder = builder.map("same", |n| n).parallel(2).ring(1 + random.below(4) as usize);
        let builder = builder.op("turn", Arc::clone(&runtime), row).filter("most", |row| row.elements() == 1);
        let running = builder.for_each("count", move |_| _ = counts.fetch_add(1, Ordering::SeqCst)).start().unwrap();
        let handle = running.handle();
        for _ in 0..random.below(12) {
            match random.below(4) {
                0 => handle.pause(),
                1 => handle.resume(),
                2 => _ = handle.report(),
                _ => std::thread::sleep(Duration::from_micros(random.below(400))),
            }
        }
        let drains = random.below(3) > 0;
        if drains {
            handle.drain();
            handle.resume();
        }
        if !drains || random.below(2) == 0 {
            handle.cancel();
        }
        let ended = running.wait();
        let progress = ended.report.progress;
        let dropped: u64 = ended.report.stages.iter().map(|stage| stage.dropped).sum();
        assert_eq!(ended.threads_left, 0);
        assert_eq!(progress.arrived, arrived.load(Ordering::SeqCst) as u64, "seed {seed}");
        match ended.result {
            Ok(()) => assert_eq!((progress.taken, dropped), (progress.arrived, 0), "seed {seed}: {}", ended.report),
            Err(error) => {
                assert_eq!(error, PipelineError::Cancelled);
                assert_eq!(progress.taken, progress.arrived + dropped, "seed {seed}: {}", ended.report);
            }
        }
        drop(handle);
        eventually("every item was let go", || Arc::strong_count(&alive) == 1);
    }
    expect_no_threads();
}

/// Panics wherever foreign code may: when it is cloned, and when it is dropped.
struct Nasty(u32);

impl Clone for Nasty {
    fn clone(&self) -> Nasty {
        assert_ne!(self.0, 3, "three is not cloned");
        Nasty(self.0)
    }
}

impl Drop for Nasty {
    fn drop(&mut self) {
        if self.0 % 5 == 4 && !std::thread::panicking() {
            panic!("{} is not dropped", self.0);
        }
    }
}

#[test]
fn items_whose_own_code_panics_end_nobody_elses() {
    let _alone = alone();
    let items = |count: u32| Pipeline::builder().source((0..count).map(Nasty));
    let forked = items(10).fork(|b| b.map("one", |n| n.0), |b| b.map("other", |n| n.0));
    let error = forked.collect().run().unwrap_err();
    assert!(matches!(&error, PipelineError::Failed { stage, item: 3, .. } if stage == "fork"), "{error}");
    let window = items(10).window(2, 1).on_error(ErrorPolicy::skip()).map("sum", |pair| pair[0].0 + pair[1].0);
    let _ = window.on_error(ErrorPolicy::skip()).collect().start().unwrap().wait();
    let filtered = items(100).try_map("half", |n| if n.0 % 2 == 0 { Ok(n.0) } else { Err("odd") });
    let (even, report) = filtered.on_error(ErrorPolicy::skip()).collect().run().unwrap();
    assert_eq!((even.len(), report.stage("half").unwrap().skipped), (50, 50));
    let running = items(100_000).map("same", |n| n).for_each("end", std::mem::forget).start().unwrap();
    running.handle().cancel();
    let _ = running.wait();
    expect_no_threads();
}

#[test]
fn many_senders_lose_nothing_and_every_item_has_its_own_number() {
    let _alone = alone();
    let (sender, builder) = Pipeline::builder().dead_letters(4000).channel::<u32>(3);
    let fails = builder.try_map("fails", |_| Err::<u32, _>("always")).on_error(ErrorPolicy::dead_letters());
    let running = fails.for_each("end", drop).start().unwrap();
    let senders: Vec<_> = (0..4)
        .map(|own| {
            let sender = sender.clone();
            std::thread::spawn(move || (0..1000).for_each(|n| sender.send(4 * n + own).unwrap()))
        })
        .collect();
    drop(sender);
    senders.into_iter().for_each(|thread| thread.join().unwrap());
    let ended = running.wait();
    ended.result.unwrap();
    let mut letters: Vec<u64> = ended.dead_letters.iter().map(|letter| letter.item).collect();
    let value = |letter: &panoply_pipeline::DeadLetter| *letter.value.as_ref().unwrap().downcast_ref().unwrap();
    let mut values: Vec<u32> = ended.dead_letters.iter().map(value).collect();
    letters.sort_unstable();
    values.sort_unstable();
    assert_eq!(letters, (0..4000).collect::<Vec<_>>());
    assert_eq!(values, (0..4000).collect::<Vec<_>>());
}

#[test]
fn code_that_blocks_gets_the_threads_that_it_asks_for() {
    let _alone = alone();
    let inside = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0)));
    let counts = Arc::clone(&inside);
    let waits = move |number: u32| {
        counts.1.fetch_max(counts.0.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(10));
        counts.0.fetch_sub(1, Ordering::SeqCst);
        number
    };
    let start = Instant::now();
    let (items, _) = numbers(64).map("waits", waits).parallel(16).ring(16).collect().run().unwrap();
    assert_eq!(items, (0..64).collect::<Vec<_>>());
    let most = inside.1.load(Ordering::SeqCst);
    assert!((9..=16).contains(&most), "{most} at once in {:?}", start.elapsed());
    expect_no_threads();
}

#[test]
fn time_is_watched_while_every_thread_is_in_a_closure() {
    let _alone = alone();
    let (sender, builder) = Pipeline::builder().threads(1).channel::<u32>(8);
    let goes_on = Arc::new(OnceLock::new());
    let waits = Arc::clone(&goes_on);
    let held = builder.batch_within(100, Duration::from_millis(5)).map("held", move |batch| {
        waits.wait();
        batch
    });
    let running = held.collect().start().unwrap();
    let given = || running.handle().report().stage("batch").unwrap().given;
    for batches in 1..=3 {
        sender.send(batches).unwrap();
        eventually("a batch that is not full is given in time", || given() == u64::from(batches));
    }
    goes_on.set(()).unwrap();
    drop(sender);
    assert_eq!(running.wait().result.unwrap(), [[1], [2], [3]]);
    expect_no_threads();
}
