//! A fork of the process has none of the threads: every object that has threads refuses calls there
//! with a reason, and is dropped at once.
#![cfg(unix)]
#![allow(unsafe_code)] // A real fork.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use panoply_conformance::virtual_device::{Script, VirtualBackend};
use panoply_core::op::compute::Transpose;
use panoply_core::{Api, DType, DeviceId, Error, Tensor};
use panoply_cpu::CpuBackend;
use panoply_runtime::worker::BoxError;
use panoply_runtime::{Envelope, PoolOptions, RunOptions, Runtime, Worker, WorkerError, WorkerPool};
use support::{poll_for, unpark};

/// The time limit of a child. A child that waits for a thread that does not exist would wait for
/// ever.
const CHILD_TIME_MAX: Duration = Duration::from_secs(20);

/// Runs `body` in a fork and returns its result. `None` if the child does not end.
fn in_child(body: impl FnOnce() -> bool) -> Option<bool> {
    // SAFETY: the child runs `body` on its only thread, and leaves without running the parent's
    // destructors.
    match unsafe { libc::fork() } {
        0 => {
            let right = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(false);
            // SAFETY: the call ends the process, and does nothing else.
            unsafe { libc::_exit(if right { 7 } else { 8 }) }
        }
        child => {
            assert!(child > 0, "no fork");
            let start = Instant::now();
            let mut status = 0;
            // SAFETY: `status` is a valid place for a number, and the child is this process's own.
            while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
                if start.elapsed() > CHILD_TIME_MAX {
                    // SAFETY: as above.
                    unsafe { libc::kill(child, libc::SIGKILL) };
                    // SAFETY: as above.
                    unsafe { libc::waitpid(child, &raw mut status, 0) };
                    return None;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            Some(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7)
        }
    }
}

fn op() -> Transpose {
    Transpose::new(&Tensor::from_vec(vec![1.0_f32, 2.0, 3.0, 4.0], [2, 2]).unwrap())
}

fn is_right(answer: panoply_core::Result<Tensor>) -> bool {
    answer.is_ok_and(|tensor| tensor.as_slice::<f32>().is_ok_and(|values| values == [1.0, 3.0, 2.0, 4.0]))
}

fn forked<T>(answer: &Result<T, Error>) -> bool {
    matches!(answer, Err(Error::Forked { made_in, called_in, .. }) if made_in != called_in)
}

fn slow() -> Runtime {
    let script = Script::new().latency(Duration::from_millis(300));
    let backend = VirtualBackend::new(Arc::new(CpuBackend::new())).device(script);
    Runtime::builder().backend(Arc::new(backend)).build().unwrap()
}

#[test]
fn a_tensor_on_a_device_is_read_in_a_fork_only_if_it_was_read_before() {
    let backend = VirtualBackend::new(Arc::new(CpuBackend::new())).device(Script::new().resident());
    let runtime = Runtime::builder().backend(Arc::new(backend)).build().unwrap();
    let (read, unread) = (runtime.run(op()).wait().unwrap(), runtime.run(op()).wait().unwrap());
    assert!(is_right(Ok(read.clone())));
    let right = in_child(|| {
        let pinned = runtime.pinned(DeviceId { api: Api::SIMULATED, index: 0 }, DType::F32, [4]).map(drop);
        is_right(Ok(read.clone())) && forked(&unread.to_vec::<f32>().map(drop)) && forked(&pinned)
    });
    assert_eq!(right, Some(true));
    assert!(is_right(Ok(unread)), "the parent still reads it");
}

#[test]
fn a_runtime_refuses_ops_in_a_fork_and_is_dropped_at_once() {
    let runtime = Runtime::builder().backend(Arc::new(CpuBackend::new())).build().unwrap();
    assert!(is_right(runtime.run(op()).wait()));
    let mut runtime = Some(runtime);
    let right = in_child(|| {
        let runtime = runtime.take().unwrap();
        let refused = forked(&runtime.run(op()).wait()) && forked(&runtime.try_run(op()).map(drop));
        let looks = forked(&runtime.rediscover()) && !runtime.workers().is_empty() && !runtime.backends().is_empty();
        let ends = !runtime.shutdown(Duration::from_secs(60)).drained && !runtime.abort().drained;
        drop(runtime);
        // A runtime that the child builds belongs to the child.
        let own = Runtime::builder().backend(Arc::new(CpuBackend::new())).build();
        let works = own.is_ok_and(|own| is_right(own.run(op()).wait()));
        refused && looks && ends && works
    });
    assert_eq!(right, Some(true));
    assert!(is_right(runtime.unwrap().run(op()).wait()), "the parent goes on");
}

#[test]
fn an_op_that_was_sent_before_the_fork_ends_there_with_the_reason() {
    let runtime = slow();
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut waited = Some(runtime.run(op()));
    let mut polled = Some(Box::pin(runtime.run_with(op(), RunOptions::default().deadline(deadline))));
    let mut dropped = Some(runtime.run(op()));
    // The op was polled before the fork, so that its waker and its alarm are registered.
    assert!(poll_for(polled.as_mut().unwrap(), &unpark(), Duration::from_millis(1)).is_none());
    let right = in_child(|| {
        let polled = poll_for(&mut polled.take().unwrap(), &unpark(), Duration::from_secs(2));
        let waited = waited.take().unwrap();
        let done = waited.is_done();
        drop(dropped.take());
        done && polled.is_some_and(|answer| forked(&answer)) && forked(&waited.wait())
    });
    assert_eq!(right, Some(true));
    let answers = [waited.unwrap().wait(), dropped.unwrap().wait()];
    assert!(answers.into_iter().all(is_right), "the parent has its answers");
    assert!(poll_for(&mut polled.unwrap(), &unpark(), Duration::from_secs(20)).is_some_and(is_right));
}

#[test]
fn forks_amid_the_work_of_many_threads_never_hang() {
    let runtime = Runtime::builder().backend(Arc::new(CpuBackend::new())).build().unwrap();
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !end.load(Ordering::SeqCst) {
                    assert!(is_right(runtime.run(op()).wait()));
                }
            });
        }
        for _ in 0..20 {
            let right = in_child(|| forked(&runtime.run(op()).wait()) && runtime.workers().len() < 100);
            assert_eq!(right, Some(true));
        }
        end.store(true, Ordering::SeqCst);
    });
}

struct Sum(u64);

impl Worker for Sum {
    type Message = u64;
    type Reply = u64;

    fn handle(&mut self, envelope: Envelope<u64>) -> Result<u64, BoxError> {
        std::thread::sleep(Duration::from_millis(envelope.message));
        self.0 += envelope.message;
        Ok(self.0)
    }
}

#[test]
fn a_pool_refuses_messages_in_a_fork_and_is_dropped_at_once() {
    let pool = WorkerPool::start(PoolOptions { workers: 2, ..PoolOptions::default() }, |_| Sum(0)).unwrap();
    let mut under_way = Some(pool.request_to(0, 300).unwrap());
    let mut pool = Some(pool);
    let right = in_child(|| {
        let (pool, under_way) = (pool.take().unwrap(), under_way.take().unwrap());
        let lost = matches!(under_way.wait(), Err(WorkerError::Forked { .. }));
        let refused = matches!(pool.send(1), Err(WorkerError::Forked { .. }))
            && matches!(pool.request(1).map(drop), Err(WorkerError::Forked { .. }))
            && matches!(pool.try_send_to(0, 1), Err((1, WorkerError::Forked { .. })));
        pool.stop();
        drop(pool);
        lost && refused
    });
    assert_eq!(right, Some(true));
    assert_eq!((under_way.unwrap().wait(), pool.unwrap().request_to(1, 2).unwrap().wait()), (Ok(300), Ok(2)));
}

#[test]
fn what_was_learned_can_be_asked_for_in_a_fork() {
    let runtime = Runtime::builder().backend(Arc::new(CpuBackend::new())).build().unwrap();
    assert!(is_right(runtime.run(op()).wait()));
    let right = in_child(|| {
        let profile = runtime.profile();
        profile.devices.len() == 1 && runtime.use_profile(&profile).is_empty()
    });
    assert_eq!(right, Some(true));
}

type SharedPool = Arc<std::sync::OnceLock<std::sync::Weak<WorkerPool<Forks>>>>;

/// Forks on request.
struct Forks(SharedPool);

impl Worker for Forks {
    type Message = bool;
    type Reply = Option<bool>;

    fn handle(&mut self, envelope: Envelope<bool>) -> Result<Option<bool>, BoxError> {
        let Some(pool) = self.0.get().and_then(std::sync::Weak::upgrade) else { return Ok(None) };
        if !envelope.message {
            return Ok(Some(true));
        }
        // A reply that another worker owes this one, and a wait that this worker has noted before.
        let before = pool.request_to(1, false)?;
        let mut before = Some(before);
        Ok(in_child(|| {
            let lost = matches!(before.take().unwrap().wait(), Ok(Some(true)) | Err(WorkerError::Forked { .. }));
            let refused = matches!(pool.request_to(1, false).map(drop), Err(WorkerError::Forked { .. }));
            // The child's only thread is the copy of a worker's thread: it may have a pool of its
            // own, and wait for it.
            let own = WorkerPool::start(PoolOptions::default(), |_| Sum(0)).unwrap();
            let works = own.request(2).and_then(|reply| reply.wait()) == Ok(2);
            drop(own);
            lost && refused && works
        }))
    }
}

#[test]
fn a_fork_inside_a_worker_refuses_and_goes_on() {
    let shared: SharedPool = Arc::default();
    let own = Arc::clone(&shared);
    let options = PoolOptions { workers: 2, ..PoolOptions::default() };
    let pool = Arc::new(WorkerPool::start(options, move |_| Forks(Arc::clone(&own))).unwrap());
    shared.set(Arc::downgrade(&pool)).unwrap();
    for _ in 0..10 {
        assert_eq!(pool.request_to(0, true).unwrap().wait(), Ok(Some(true)));
    }
}
