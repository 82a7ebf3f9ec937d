//! A process that may not have as much memory as its pools and runtimes ask for gets errors that
//! say what was missing, and goes on.
#![cfg(target_os = "linux")]
#![allow(unsafe_code)] // Limits of a process.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::process::Command;
use std::sync::Arc;

use panoply_cpu::CpuBackend;
use panoply_runtime::pool::WORKERS_MAX;
use panoply_runtime::worker::BoxError;
use panoply_runtime::{Envelope, PoolOptions, Runtime, Worker, WorkerError, WorkerLimits, WorkerPool};

/// The variable that tells this program that it is the child.
const CHILD: &str = "PANOPLY_TEST_LIMITED_MEMORY";
const SUCCESS: &str = "the child saw all that it should";

struct Echo;

impl Worker for Echo {
    type Message = u64;
    type Reply = u64;
    fn handle(&mut self, envelope: Envelope<u64>) -> Result<u64, BoxError> {
        Ok(envelope.message)
    }
}

fn pool(workers: usize, queue_depth_max: usize) -> Result<WorkerPool<Echo>, WorkerError> {
    WorkerPool::start(PoolOptions { workers, queue_depth_max, ..PoolOptions::default() }, |_| Echo)
}

/// Lets this process have this much more address space than it has now.
fn limit_more(bytes: u64) {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    // SAFETY: the call has no preconditions.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
    let now = status.split_whitespace().next().unwrap().parse::<u64>().unwrap() * page;
    let limit = libc::rlimit { rlim_cur: now + bytes, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: `limit` is valid for reads.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
}

fn child() {
    limit_more(700 << 20);
    // Queues that do not fit.
    for _ in 0..2 {
        let error = pool(WORKERS_MAX, 1 << 15).err().unwrap();
        assert!(matches!(error, WorkerError::BadOption { what: "queue_depth_max", .. }), "{error}");
    }
    // Threads that do not fit. Threads that have ended leave memory of the allocator behind, so the
    // limit is set again.
    for _ in 0..2 {
        limit_more(700 << 20);
        let error = pool(WORKERS_MAX, 2).err().unwrap();
        let WorkerError::InitFailed { worker, reason } = &error else { panic!("{error}") };
        assert!(*worker > 0 && reason.contains("no thread"), "{error}");
    }
    // A pool that fits still works.
    limit_more(700 << 20);
    let pool = pool(2, 64).unwrap();
    assert_eq!(pool.request(7).unwrap().wait(), Ok(7));
    drop(pool);
    // Queues of a device that do not fit.
    limit_more(150 << 20);
    let limits = WorkerLimits { queue_depth_max: 1 << 20, ..WorkerLimits::default() };
    let built = Runtime::builder().backend(Arc::new(CpuBackend::new())).limits(limits).build();
    let error = built.map(|runtime| format!("{:?}", runtime.backends())).map_err(|error| error.to_string());
    let error = error.unwrap_or_else(|error| error);
    assert!(error.contains("queue_depth_max"), "{error}");
    println!("{SUCCESS}");
}

#[test]
fn what_has_no_memory_is_an_error_and_not_the_end_of_the_process() {
    if std::env::var_os(CHILD).is_some() {
        return child();
    }
    let name = "what_has_no_memory_is_an_error_and_not_the_end_of_the_process";
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.args(["--exact", name, "--nocapture"]).env(CHILD, "1").output().unwrap();
    let (told, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && told.contains(SUCCESS), "{}: {told} {errors}", output.status);
}
