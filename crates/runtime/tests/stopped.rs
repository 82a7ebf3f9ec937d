//! A process that is stopped and continued, as by Ctrl-Z or a debugger, for longer than any op may
//! take: no worker counts as stuck. This test is alone in its process, because it stops the
//! process.
#![cfg(unix)]
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use panoply_core::op::compute::Transpose;
use panoply_core::sink::sink;
use panoply_core::{
    Absence, Api, Backend, Bytes, DeviceInfo, Engine, FinishedOp, Health, Item, MemoryStats, Op, OpenOptions, Result,
    Support, Tensor,
};
use panoply_cpu::CpuBackend;
use panoply_runtime::{FallbackPolicy, Runtime, WorkerLimits};

#[allow(dead_code)] // Only a part of it is used.
#[path = "parts/notary.rs"]
mod notary;

use notary::{Count, Notary, Office, OpenSession, Stamp};

/// Number of polls of the engine that an op takes. Each takes a millisecond, and more if other
/// processes keep the CPUs busy.
const LOOKS: u32 = 20;

/// The CPU backend with ops that need several polls of the engine, so they make no progress while
/// the process is stopped.
struct Slow(CpuBackend);

impl Backend for Slow {
    fn api(&self) -> Api {
        self.0.api()
    }
    fn discover(&self) -> Result<Vec<DeviceInfo>, Absence> {
        self.0.discover()
    }
    fn supports(&self, device: &DeviceInfo, op: &Op) -> Support {
        self.0.supports(device, op)
    }
    fn open(&self, device: &DeviceInfo, options: &OpenOptions) -> Result<Box<dyn Engine>> {
        Ok(Box::new(SlowEngine { inner: self.0.open(device, options)?, held: Vec::new() }))
    }
}

struct SlowEngine {
    inner: Box<dyn Engine>,
    held: Vec<(Item, u32)>,
}

impl Engine for SlowEngine {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }
    fn submit(&mut self, batch: &mut Vec<Item>) {
        self.held.extend(batch.drain(..).map(|item| (item, LOOKS)));
    }
    fn poll(&mut self, finished: &mut Vec<FinishedOp>, wait_max: Duration) -> usize {
        std::thread::sleep(Duration::from_millis(1));
        self.held.iter_mut().for_each(|(_, left)| *left -= 1);
        let mut batch: Vec<Item> = self.held.extract_if(.., |(_, left)| *left == 0).map(|(item, _)| item).collect();
        self.inner.submit(&mut batch);
        self.inner.poll(finished, wait_max) + self.held.len()
    }
    fn memory(&mut self) -> MemoryStats {
        self.inner.memory()
    }
    fn health(&mut self) -> Health {
        self.inner.health()
    }
}

/// Stops this process for a while. Returns false if it cannot be stopped.
fn stop() -> bool {
    let pid = std::process::id();
    let (script, start) = (format!("kill -STOP {pid}; sleep 0.9; kill -CONT {pid}"), Instant::now());
    let Ok(mut shell) = Command::new("sh").arg("-c").arg(script).spawn() else { return false };
    shell.wait().unwrap();
    assert!(start.elapsed() >= Duration::from_millis(800));
    true
}

#[test]
fn a_process_that_was_stopped_has_neither_stuck_workers_nor_hung_devices() {
    let limits = WorkerLimits { op_time_max: Duration::from_millis(400), ..WorkerLimits::default() };
    let slow = Runtime::builder().backend(Arc::new(Slow(CpuBackend::new()))).limits(limits.clone());
    let slow = slow.fallback(FallbackPolicy::None).build().unwrap();
    let matrix = Tensor::from_slice(&[0.0_f32, 1.0, 2.0, 3.0, 4.0, 5.0], [2, 3]).unwrap();
    let office = Arc::new(Office::default());
    let backend = Arc::new(Notary { devices: 2, office: Arc::clone(&office) });
    let runtime = Runtime::builder().backend(backend).limits(limits).fallback(FallbackPolicy::None).build().unwrap();
    let key = Bytes::secret(vec![7, 9]).unwrap();
    let session = runtime.run(OpenSession { key, with_recipe: false }).wait().unwrap();
    let (sink, mut source) = sink(1);
    // An op in flight keeps the worker inside its engine nearly all the time, in calls that each
    // take a fraction of the limit.
    office.poll_naps.store(80, Ordering::Relaxed);
    let pending = runtime.run(Count { up_to: 3, sink, key: None });
    for _ in 0..3 {
        let under_way = slow.run(Transpose::new(&matrix));
        if !stop() {
            println!("skipped: there is no shell to stop this process");
            return;
        }
        let answer = under_way.wait();
        assert!(answer.is_ok(), "{answer:?}: {:?}", slow.workers());
        // Long enough for the supervisor to look.
        std::thread::sleep(Duration::from_millis(300));
        let stamp = Stamp { session: session.clone(), message: Bytes::from_vec(vec![1]), repeatable: true };
        assert!(runtime.run(stamp).wait().is_ok(), "the session is still there: {:?}", runtime.workers());
    }
    assert_eq!((0..3).filter_map(|_| source.wait()).count(), 3);
    assert_eq!(pending.wait().unwrap().as_slice().unwrap(), [3]);
    for worker in runtime.workers().into_iter().chain(slow.workers()) {
        let counters = worker.counters;
        assert_eq!((counters.reopened, counters.replaced, counters.failed), (0, 0, 0), "{worker:?}");
    }
}
