//! A signal handler forks while the interrupted thread waits for the runtime. The child returns
//! from the handler into the wait, which no thread will end there: it must end by itself, as an
//! error.
#![cfg(target_os = "linux")]
#![allow(unsafe_code)] // Signals and real forks.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

mod fork_inside;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use fork_inside::{End, end, fork_inside};
use panoply_conformance::virtual_device::{Script, VirtualBackend};
use panoply_core::op::compute::Transpose;
use panoply_core::{Absence, Api, Backend, DeviceInfo, Engine, Error, Op, OpenOptions, Support, Tensor};
use panoply_cpu::CpuBackend;
use panoply_pipeline::{Pipeline, PipelineError};
use panoply_runtime::worker::BoxError;
use panoply_runtime::{Envelope, PoolOptions, RunOptions, Runtime, Worker, WorkerError, WorkerPool};

const HOUR: Duration = Duration::from_secs(3600);

fn op() -> Transpose {
    Transpose::new(&Tensor::from_vec(vec![1.0_f32, 2.0, 3.0, 4.0], [2, 2]).unwrap())
}

/// A runtime whose only device answers nothing before it is aborted.
fn silent() -> Runtime {
    let backend = VirtualBackend::new(Arc::new(CpuBackend::new())).device(Script::new().latency(HOUR));
    Runtime::builder().backend(Arc::new(backend)).build().unwrap()
}

#[test]
fn a_wait_for_an_op_ends() {
    for options in [RunOptions::default(), RunOptions::default().deadline(Instant::now() + HOUR)] {
        let runtime = silent();
        let wait = || {
            let answer = runtime.run_with(op(), options).wait();
            end(matches!(answer, Err(Error::Forked { .. })), answer)
        };
        let (child, parent) = fork_inside(wait, || _ = runtime.abort());
        assert_eq!((child, parent), (Some(true), end(false, Err::<Tensor, _>(Error::ShuttingDown))));
    }
}

#[test]
fn a_shutdown_ends() {
    let runtime = silent();
    let pending = runtime.run(op());
    let wait = || {
        let shutdown = runtime.shutdown(HOUR);
        // In the child the runtime is another process's, and nothing was drained.
        let refused = matches!(runtime.run(op()).wait(), Err(Error::Forked { .. }));
        end(refused && !shutdown.drained, shutdown.drained)
    };
    let (child, parent) = fork_inside(wait, || _ = runtime.abort());
    assert_eq!(child, Some(true));
    assert!(matches!(parent, End::Otherwise(_)), "{parent:?}");
    assert!(pending.wait().is_err());
}

/// A device that is opened when its gate is.
struct GatedBackend(CpuBackend, Gate);

impl Backend for GatedBackend {
    fn api(&self) -> Api {
        Api::CPU
    }

    fn discover(&self) -> Result<Vec<DeviceInfo>, Absence> {
        self.0.discover()
    }

    fn supports(&self, device: &DeviceInfo, op: &Op) -> Support {
        self.0.supports(device, op)
    }

    fn open(&self, device: &DeviceInfo, options: &OpenOptions) -> Result<Box<dyn Engine>, Error> {
        self.1.pass();
        self.0.open(device, options)
    }
}

#[test]
fn building_a_runtime_ends() {
    let gate = Gate::default();
    let backend = Arc::new(GatedBackend(CpuBackend::new(), gate.clone()));
    let start = Instant::now();
    let wait = || {
        let runtime = Runtime::builder().backend(backend).build();
        let forked = |error: &Error| matches!(error, Error::Forked { .. });
        let refused = matches!(&runtime, Err(panoply_runtime::BuildError::Worker(error)) if forked(error));
        // Without the check the child would wait as long as for a device that does not open.
        end(refused && start.elapsed() < Duration::from_secs(15), runtime.is_ok())
    };
    let (child, parent) = fork_inside(wait, || gate.open());
    assert_eq!((child, parent), (Some(true), end(false, true)));
}

/// Blocks each thread that passes it until it is opened.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar, AtomicBool)>);

impl Gate {
    fn lock(&self) -> MutexGuard<'_, bool> {
        self.0.0.lock().unwrap()
    }

    fn pass(&self) {
        self.0.2.store(true, Ordering::SeqCst);
        let mut is_open = self.lock();
        while !*is_open {
            is_open = self.0.1.wait(is_open).unwrap();
        }
    }

    /// Waits until a thread has come to the gate.
    fn wait_for_one(&self) {
        while !self.0.2.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    }

    fn open(&self) {
        *self.lock() = true;
        self.0.1.notify_all();
    }
}

/// A worker that handles messages when its gate is open.
struct GatedWorker {
    gate: Gate,
    in_init: bool,
}

impl Worker for GatedWorker {
    type Message = u64;
    type Reply = u64;

    fn init(&mut self) -> Result<(), BoxError> {
        if self.in_init {
            self.gate.pass();
        }
        Ok(())
    }

    fn handle(&mut self, envelope: Envelope<u64>) -> Result<u64, BoxError> {
        self.gate.pass();
        Ok(envelope.message)
    }
}

fn options() -> PoolOptions {
    PoolOptions { workers: 1, queue_depth_max: 1, ..PoolOptions::default() }
}

/// A pool whose worker is inside a message, with an empty queue.
fn pool(gate: &Gate) -> WorkerPool<GatedWorker> {
    let held = gate.clone();
    let make = move |_| GatedWorker { gate: held.clone(), in_init: false };
    let pool = WorkerPool::start(options(), make).unwrap();
    pool.send(0).unwrap();
    gate.wait_for_one();
    pool
}

fn is_forked<T>(answer: &Result<T, WorkerError>) -> bool {
    matches!(answer, Err(WorkerError::Forked { .. }))
}

#[test]
fn a_wait_for_a_workers_reply_ends() {
    for limit in [None, Some(HOUR)] {
        let gate = Gate::default();
        let pool = pool(&gate);
        let wait = || {
            let reply = pool.request(5).unwrap();
            let reply = match limit {
                None => reply.wait(),
                Some(limit) => reply.wait_for(limit),
            };
            end(is_forked(&reply), reply)
        };
        let (child, parent) = fork_inside(wait, || gate.open());
        assert_eq!((child, parent), (Some(true), end(false, Ok::<u64, WorkerError>(5))));
    }
}

#[test]
fn a_wait_for_room_in_a_workers_queue_ends() {
    let gate = Gate::default();
    let pool = pool(&gate);
    let wait = || {
        let sent = (0..1000).try_for_each(|number| pool.send(number));
        end(is_forked(&sent), sent)
    };
    let (child, parent) = fork_inside(wait, || gate.open());
    assert_eq!((child, parent), (Some(true), end(false, Ok::<(), WorkerError>(()))));
}

#[test]
fn a_wait_for_a_pool_to_stop_ends() {
    let gate = Gate::default();
    let mut pool = Some(pool(&gate));
    let wait = || {
        let pool = pool.take().unwrap();
        pool.stop();
        // The parent's pool is stopped; the child's copy belongs to the parent.
        let sent = pool.send(1);
        end(is_forked(&sent), sent)
    };
    let (child, parent) = fork_inside(wait, || gate.open());
    assert_eq!((child, parent), (Some(true), end(false, Err::<(), _>(WorkerError::Stopped))));
}

#[test]
fn a_wait_for_a_pool_to_start_ends() {
    let gate = Gate::default();
    let held = gate.clone();
    let make = move |_| GatedWorker { gate: held.clone(), in_init: true };
    let wait = || {
        let started = WorkerPool::start(options(), make).map(drop);
        end(is_forked(&started), started)
    };
    let (child, parent) = fork_inside(wait, || gate.open());
    assert_eq!((child, parent), (Some(true), end(false, Ok::<(), WorkerError>(()))));
}

/// A function that returns its argument when the gate is open.
fn held(gate: &Gate) -> impl Fn(u64) -> u64 + Send + Sync + use<> {
    let gate = gate.clone();
    move |value| {
        gate.pass();
        value
    }
}

#[test]
fn a_wait_for_room_in_a_pipeline_ends() {
    let gate = Gate::default();
    let (sender, source) = Pipeline::builder().channel::<u64>(4);
    let running = source.map("held", held(&gate)).for_each("end", drop).start().unwrap();
    let wait = || {
        let sent = (0..1000).try_for_each(|value| sender.send(value));
        end(sent.is_err(), sent.is_ok())
    };
    let (child, parent) = fork_inside(wait, || gate.open());
    assert_eq!((child, parent), (Some(true), end(false, true)));
    drop(sender);
    assert!(running.wait().result.is_ok());
}

#[test]
fn a_wait_for_a_pipelines_item_ends() {
    let gate = Gate::default();
    let (pipeline, mut receiver) = Pipeline::builder().source(5..6).map("held", held(&gate)).into_receiver();
    let running = pipeline.start().unwrap();
    let wait = || {
        let item = receiver.recv();
        end(item.is_none(), item)
    };
    let (child, parent) = fork_inside(wait, || gate.open());
    assert_eq!((child, parent), (Some(true), end(false, Some(5))));
    assert!(running.wait().result.is_ok());
}

#[test]
fn a_wait_for_the_end_of_a_pipeline_ends() {
    for waits in [true, false] {
        let gate = Gate::default();
        let running = Pipeline::builder().source(0..10_u64).map("held", held(&gate)).collect().start().unwrap();
        gate.wait_for_one();
        let handle = running.handle();
        let here = std::process::id();
        let wait = || {
            if !waits {
                drop(running);
                return end(std::process::id() != here, ());
            }
            let result = running.wait().result;
            end(matches!(result, Err(PipelineError::Forked(_))), result.map(|values| values.len()))
        };
        let (child, parent) = fork_inside(wait, || gate.open());
        assert_eq!(child, Some(true));
        assert!(handle.is_over() && matches!(parent, End::Otherwise(_)), "{parent:?}");
    }
}
