//! Lists of ops, and tasks of several ops.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::sync::Arc;
use std::time::{Duration, Instant};

use panoply_conformance::virtual_device::{Fault, Script, VirtualBackend, VirtualControl};
use panoply_core::op::compute::{Map, MatMul, Transpose};
use panoply_core::{Error, Tensor};
use panoply_cpu::CpuBackend;
use panoply_runtime::{RunOptions, Runtime, TASK_STEPS_MAX, TaskOutcome, TaskReport, WorkerLimits};

use crate::support::{eventually, poll_for, unpark};

fn virtual_one(script: Script) -> (Runtime, Arc<VirtualControl>) {
    virtual_with(script, WorkerLimits::default())
}

fn virtual_with(script: Script, limits: WorkerLimits) -> (Runtime, Arc<VirtualControl>) {
    let backend = VirtualBackend::new(Arc::new(CpuBackend::new())).device(script);
    let control = backend.control(0).unwrap();
    (Runtime::builder().backend(Arc::new(backend)).limits(limits).build().unwrap(), control)
}

fn row(number: usize) -> Tensor {
    Tensor::from_vec(vec![number as f32; 2], [1, 2]).unwrap()
}

fn doubled(number: usize) -> Map {
    Map::add(&row(number), &row(number))
}

fn first(tensor: &Tensor) -> f32 {
    tensor.as_slice::<f32>().unwrap()[0]
}

#[test]
fn a_list_has_an_outcome_for_each_op_in_order() {
    let script = Script::new().fault_at(3, Fault::Error);
    let (runtime, _) = virtual_with(script, WorkerLimits { queue_depth_max: 8, ..WorkerLimits::default() });
    let options = RunOptions::default().fallback(panoply_runtime::FallbackPolicy::None);
    // The list is longer than the queue.
    let pending = runtime.run_many_with((0..100).map(doubled), &options);
    assert_eq!(pending.len(), 100);
    let outcomes = pending.with_reports().wait();
    let failed: Vec<usize> = (0..100).filter(|place| outcomes[*place].is_err()).collect();
    assert_eq!(failed, [3], "one that fails does not affect the others");
    for (place, outcome) in outcomes.iter().enumerate().filter(|(place, _)| *place != 3) {
        assert_eq!(first(&outcome.as_ref().unwrap().output), 2.0 * place as f32);
    }
    assert!(runtime.run_many(std::iter::empty::<Map>()).is_empty());
    // An op that is refused is an outcome too.
    let wrong = [
        MatMul::new(&row(1), &row(1)),
        MatMul::new(&row(1), &Tensor::zeros(panoply_core::DType::F32, [2, 1]).unwrap()),
    ];
    let outcomes = runtime.run_many(wrong).wait();
    assert!(outcomes[0].is_err() && outcomes[1].is_ok());
}

#[test]
fn a_list_is_awaited_and_joined_into_batches() {
    let (runtime, _) = virtual_one(Script::new().latency(Duration::from_millis(2)).fused());
    let rows: Vec<Tensor> = (0..64).map(row).collect();
    let pending = runtime.run_many(rows.iter().map(|row| Map::add(row, row))).with_reports();
    let outcomes = poll_for(&mut Box::pin(pending), &unpark(), Duration::from_secs(20)).unwrap();
    for (place, outcome) in outcomes.iter().enumerate() {
        assert_eq!(first(&outcome.as_ref().unwrap().output), 2.0 * place as f32);
    }
    let batches: Vec<u32> = outcomes.iter().map(|outcome| outcome.as_ref().unwrap().report.batch_size).collect();
    assert!(batches.iter().any(|size| *size > 1), "ops of the list were joined: {batches:?}");
}

#[test]
fn a_list_that_is_dropped_runs_no_further_op() {
    let (runtime, control) = virtual_one(Script::new().latency(Duration::from_millis(30)));
    let pending = runtime.run_many((0..2000).map(doubled));
    eventually("the first op begins", || control.counters().submitted > 0);
    drop(pending);
    eventually("the rest is cancelled", || runtime.workers()[0].counters.cancelled > 1000);
    assert!(control.counters().submitted < 1000, "{:?}", control.counters());
}

/// A task of two ops.
fn two_ops(runtime: &Arc<Runtime>, options: &RunOptions) -> panoply_runtime::PendingTask<Tensor> {
    let (own, run) = (Arc::clone(runtime), options.clone());
    runtime.task(options, async move {
        let begun = Instant::now();
        let mut report = TaskReport::default();
        let one = own.run_with(doubled(1), run.clone()).with_report().await?;
        report.add("double", begun.elapsed(), Some(one.report));
        let two = own.run_with(Transpose::new(&one.output), run).with_report().await?;
        report.add("transpose", begun.elapsed(), Some(two.report));
        report.took = begun.elapsed();
        Ok(TaskOutcome { output: two.output, report })
    })
}

#[test]
fn a_task_begins_at_once_and_ends_when_it_is_dropped() {
    let (runtime, control) = virtual_one(Script::new().latency(Duration::from_millis(50)));
    let runtime = Arc::new(runtime);
    let outcome = two_ops(&runtime, &RunOptions::default()).with_report().wait().unwrap();
    assert_eq!(outcome.output.shape().dims(), [2, 1]);
    assert_eq!(outcome.report.steps.iter().map(|step| &*step.name).collect::<Vec<_>>(), ["double", "transpose"]);
    let task = two_ops(&runtime, &RunOptions::default());
    eventually("the first op begins without a poll", || control.counters().submitted == 3);
    drop(task);
    std::thread::sleep(Duration::from_millis(150));
    assert_eq!(control.counters().submitted, 3, "the second op never begins");
    let late = RunOptions::default().deadline(Instant::now() + Duration::from_millis(70));
    assert!(matches!(two_ops(&runtime, &late).wait(), Err(Error::DeadlineExceeded { .. })));
    let late = RunOptions::default().deadline(Instant::now() + Duration::from_millis(70));
    let task = two_ops(&runtime, &late);
    let ended = poll_for(&mut Box::pin(task), &unpark(), Duration::from_secs(10)).unwrap();
    assert!(matches!(ended, Err(Error::DeadlineExceeded { .. })));
}

/// A step that never ends is no reason to wait beyond the deadline.
#[test]
fn a_deadline_ends_a_task_that_never_answers() {
    let (runtime, _) = virtual_one(Script::new());
    let options = || RunOptions::default().deadline(Instant::now() + Duration::from_millis(50));
    let never = |options: &RunOptions| {
        runtime.task::<(), Error>(options, std::future::pending::<Result<TaskOutcome<()>, Error>>())
    };
    assert!(matches!(never(&options()).wait(), Err(Error::DeadlineExceeded { .. })));
    struct Count(std::sync::atomic::AtomicUsize, std::thread::Thread);
    impl std::task::Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            self.1.unpark();
        }
    }
    let count = Arc::new(Count(std::sync::atomic::AtomicUsize::new(0), std::thread::current()));
    let mut task = std::pin::pin!(never(&options()));
    let waker = std::task::Waker::from(Arc::clone(&count));
    let mut context = std::task::Context::from_waker(&waker);
    assert!(task.as_mut().poll(&mut context).is_pending());
    eventually("the timers wake the task", || count.0.load(std::sync::atomic::Ordering::SeqCst) > 0);
    assert!(matches!(task.as_mut().poll(&mut context), std::task::Poll::Ready(Err(Error::DeadlineExceeded { .. }))));
    assert!(matches!(task.as_mut().poll(&mut context), std::task::Poll::Ready(Err(Error::Cancelled))));
}

#[test]
fn a_report_is_bounded() {
    let mut part = TaskReport::default();
    for step in 0..TASK_STEPS_MAX + 10 {
        part.add(step.to_string(), Duration::ZERO, None);
    }
    assert_eq!((part.steps.len(), part.steps_left_out), (TASK_STEPS_MAX, 10));
    let mut whole = TaskReport::default();
    whole.add("before", Duration::ZERO, None);
    whole.add_part("part", part);
    assert_eq!((whole.steps.len(), whole.steps_left_out), (TASK_STEPS_MAX, 11));
    assert_eq!(whole.steps[1].name, "part: 0");
}
