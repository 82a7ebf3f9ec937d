//! A program's own workers: delivery, partitioning, supervision, pause and stop.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use panoply_placement::affinity::RealtimePriority;
use panoply_runtime::partition::{ConsistentHash, HashBy, RangeBy};
use panoply_runtime::pool::{WORKERS_MAX, WorkerStatus};
use panoply_runtime::worker::BoxError;
use panoply_runtime::{Envelope, PoolOptions, Worker, WorkerError, WorkerPool};

/// Records the messages that it received. It is not `Send`, because a worker's state need not be.
struct Recorder {
    index: usize,
    seen: Rc<Cell<u64>>,
    handled: Arc<AtomicU64>,
}

enum Say {
    Count,
    Key(u32),
    Fail,
    Panic,
    Sleep(Duration),
    /// Waits until the gate is open.
    Gate(Arc<Mutex<()>>),
    Envelope,
}

#[derive(Debug, PartialEq)]
enum WorkerReply {
    Number(u64),
    Index(usize),
    Envelope { id: u64, source: Option<u32>, target: u32, stamped: bool },
}

impl Worker for Recorder {
    type Message = Say;
    type Reply = WorkerReply;

    fn handle(&mut self, envelope: Envelope<Say>) -> Result<WorkerReply, BoxError> {
        self.seen.set(self.seen.get() + 1);
        self.handled.fetch_add(1, Ordering::Relaxed);
        let Envelope { id, source, target, sent_at, message } = envelope;
        Ok(match message {
            Say::Count => WorkerReply::Number(self.seen.get()),
            Say::Key(_) => WorkerReply::Index(self.index),
            Say::Fail => return Err("asked to fail".into()),
            Say::Panic => panic!("asked to panic"),
            Say::Sleep(time) => {
                std::thread::sleep(time);
                WorkerReply::Number(0)
            }
            Say::Gate(gate) => {
                drop(gate.lock());
                WorkerReply::Number(0)
            }
            Say::Envelope => WorkerReply::Envelope { id, source, target, stamped: sent_at.is_some() },
        })
    }
}

fn pool(options: PoolOptions) -> (WorkerPool<Recorder>, Arc<AtomicU64>) {
    let handled = Arc::new(AtomicU64::new(0));
    let shared = Arc::clone(&handled);
    let make = move |index| Recorder { index, seen: Rc::default(), handled: Arc::clone(&shared) };
    (WorkerPool::start(options, make).unwrap(), handled)
}

fn options(workers: usize) -> PoolOptions {
    PoolOptions { workers, restart_wait_min: Duration::from_micros(100), ..PoolOptions::default() }
}

#[test]
fn stop_handles_all_fifty_thousand_messages() {
    let (pool, handled) = pool(options(2));
    for _ in 0..50_000 {
        pool.send(Say::Count).unwrap();
    }
    let health = pool.stop();
    assert_eq!(handled.load(Ordering::Relaxed), 50_000);
    assert_eq!(health.iter().map(|worker| worker.handled).sum::<u64>(), 50_000);
    assert!(health.iter().all(|worker| worker.status == WorkerStatus::Stopped));
    assert_eq!(pool.send(Say::Count), Err(WorkerError::Stopped));
    assert!(matches!(pool.request(Say::Count), Err(WorkerError::Stopped)));
}

#[test]
fn a_failed_init_is_seen_by_the_caller() {
    struct Refuses(bool);
    impl Worker for Refuses {
        type Message = ();
        type Reply = ();
        fn init(&mut self) -> Result<(), BoxError> {
            if self.0 { Err("no such device".into()) } else { Ok(()) }
        }
        fn handle(&mut self, _: Envelope<()>) -> Result<(), BoxError> {
            Ok(())
        }
    }
    let error = WorkerPool::start(options(3), |index| Refuses(index == 1)).err().unwrap();
    assert!(matches!(&error, WorkerError::InitFailed { worker: 1, reason } if reason.contains("no such device")));
    let error = WorkerPool::<Recorder>::start(options(1), |_| panic!("cannot be made")).err().unwrap();
    assert!(matches!(&error, WorkerError::InitFailed { worker: 0, reason } if reason.contains("cannot be made")));
}

#[test]
fn a_dropped_pool_joins_its_threads() {
    let (pool, handled) = pool(options(1));
    pool.send(Say::Sleep(Duration::from_millis(30))).unwrap();
    pool.send(Say::Count).unwrap();
    drop(pool);
    assert_eq!(handled.load(Ordering::Relaxed), 2);
    assert_eq!(Arc::strong_count(&handled), 1, "the workers and their factory are gone");
}

#[test]
fn requests_get_typed_answers_in_order() {
    let (pool, _) = pool(PoolOptions { timestamps: true, ..options(1) });
    let replies: Vec<_> = (0..100).map(|_| pool.request(Say::Count).unwrap()).collect();
    for (number, reply) in replies.into_iter().enumerate() {
        assert_eq!(reply.wait().unwrap(), WorkerReply::Number(number as u64 + 1));
    }
    let answer = pool.request_to(0, Say::Envelope).unwrap().wait().unwrap();
    assert_eq!(answer, WorkerReply::Envelope { id: 101, source: None, target: 0, stamped: true });
    assert_eq!(pool.request_to(1, Say::Count).err(), Some(WorkerError::NoSuchWorker { worker: 1, workers: 1 }));
}

#[test]
fn a_panic_and_an_error_restart_the_worker_and_lose_nothing_behind_them() {
    let (pool, handled) = pool(options(1));
    assert_eq!(pool.request(Say::Count).unwrap().wait().unwrap(), WorkerReply::Number(1));
    let failing = [pool.request(Say::Panic).unwrap(), pool.request(Say::Fail).unwrap()];
    let behind: Vec<_> = (0..10).map(|_| pool.request(Say::Count).unwrap()).collect();
    let [panicked, failed] = failing.map(|reply| reply.wait().unwrap_err());
    assert!(matches!(&panicked, WorkerError::Panicked { reason, .. } if reason == "asked to panic"), "{panicked:?}");
    assert!(matches!(&failed, WorkerError::Failed { reason, .. } if reason == "asked to fail"), "{failed:?}");
    for (number, reply) in behind.into_iter().enumerate() {
        assert_eq!(reply.wait().unwrap(), WorkerReply::Number(number as u64 + 1), "a new worker starts from nothing");
    }
    assert_eq!((pool.health()[0].restarts, handled.load(Ordering::Relaxed)), (2, 13));
    assert_eq!(pool.health()[0].status, WorkerStatus::Running);
}

#[test]
fn a_worker_that_always_fails_is_given_up_and_says_why() {
    let (pool, _) = pool(PoolOptions { restarts_max: 3, ..options(1) });
    let replies: Vec<_> = (0..20).map_while(|_| pool.request(Say::Fail).ok()).collect();
    let errors: Vec<_> = replies.into_iter().map(|reply| reply.wait().unwrap_err()).collect();
    assert!(errors.iter().filter(|error| matches!(error, WorkerError::Failed { .. })).count() >= 4);
    let start = Instant::now();
    while !matches!(pool.health()[0].status, WorkerStatus::GivenUp { .. }) {
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", pool.health());
        std::thread::sleep(Duration::from_millis(1));
    }
    let refused = pool.send(Say::Count).unwrap_err();
    assert!(matches!(&refused, WorkerError::GivenUp { restarts: 3, reason, .. } if reason.contains("asked to fail")));
}

#[test]
fn a_pause_keeps_messages_and_resume_handles_them() {
    let (pool, handled) = pool(options(1));
    pool.pause();
    for _ in 0..10 {
        pool.send(Say::Count).unwrap();
    }
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!((handled.load(Ordering::Relaxed), pool.health()[0].queued), (0, 10));
    assert!(pool.health()[0].paused);
    pool.resume();
    assert_eq!(pool.request(Say::Count).unwrap().wait().unwrap(), WorkerReply::Number(11));
}

#[test]
fn a_full_queue_hands_the_message_back_or_waits() {
    let (pool, handled) = pool(PoolOptions { queue_depth_max: 2, ..options(1) });
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.lock().unwrap();
    pool.send(Say::Gate(Arc::clone(&gate))).unwrap();
    let refused = (0..5).find_map(|_| pool.try_send_to(0, Say::Count).err());
    assert!(matches!(refused, Some((Say::Count, WorkerError::Busy { worker: 0, queue_depth_max: 2 }))));
    std::thread::scope(|scope| {
        scope.spawn(|| (0..5).for_each(|_| pool.send(Say::Count).unwrap()));
        drop(closed);
    });
    let closed = gate.lock().unwrap();
    let slow = pool.request(Say::Gate(Arc::clone(&gate))).unwrap();
    assert_eq!(slow.wait_for(Duration::from_millis(5)), Err(WorkerError::TimedOut { worker: 0 }));
    drop(closed);
    pool.stop();
    assert!(handled.load(Ordering::Relaxed) >= 7);
}

#[test]
fn broadcast_and_ticks_reach_every_worker() {
    struct Ticking(Arc<AtomicUsize>, Arc<AtomicUsize>);
    impl Worker for Ticking {
        type Message = u8;
        type Reply = ();
        fn handle(&mut self, _: Envelope<u8>) -> Result<(), BoxError> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
        fn tick(&mut self) -> Result<(), BoxError> {
            self.1.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
        fn shutdown(&mut self) {
            self.0.fetch_add(100, Ordering::Relaxed);
        }
    }
    let (handled, ticks) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let shared = (Arc::clone(&handled), Arc::clone(&ticks));
    let options = PoolOptions { tick_every: Some(Duration::from_millis(1)), ..options(3) };
    let pool = WorkerPool::start(options, move |_| Ticking(Arc::clone(&shared.0), Arc::clone(&shared.1))).unwrap();
    pool.broadcast(1).unwrap();
    let start = Instant::now();
    while ticks.load(Ordering::Relaxed) < 6 {
        assert!(start.elapsed() < Duration::from_secs(5));
        std::thread::sleep(Duration::from_millis(1));
    }
    pool.stop();
    assert_eq!(handled.load(Ordering::Relaxed), 303);
}

#[test]
fn partitioners_send_each_key_to_its_worker() {
    let key = |say: &Say| if let Say::Key(key) = say { *key } else { 0 };
    let make = |index| Recorder { index, seen: Rc::default(), handled: Arc::default() };
    let range = RangeBy::new(vec![10_u32, 20], key).unwrap();
    let pool = WorkerPool::start_partitioned(options(3), range, make).unwrap();
    for (key, worker) in [(0, 0), (9, 0), (10, 1), (19, 1), (20, 2), (u32::MAX, 2)] {
        let answer = pool.request_partitioned(Say::Key(key)).unwrap().wait().unwrap();
        assert_eq!(answer, WorkerReply::Index(worker), "key {key}");
    }
    let wrong = RangeBy::new(vec![10_u32], key).unwrap();
    let refused = WorkerPool::start_partitioned(options(3), wrong, make).err();
    assert!(matches!(refused, Some(WorkerError::Partition(_))), "two ranges do not fit three workers: {refused:?}");
    for stable in [true, false] {
        let pool = match stable {
            true => WorkerPool::start_partitioned(options(3), HashBy::new(key), make).unwrap(),
            false => WorkerPool::start_partitioned(options(3), ConsistentHash::new(key), make).unwrap(),
        };
        let ask = |key| pool.request_partitioned(Say::Key(key)).unwrap().wait().unwrap();
        let first: Vec<_> = (0..50).map(ask).collect();
        let again: Vec<_> = (0..50).map(ask).collect();
        assert_eq!(first, again);
        assert!((0..3).all(|index| first.contains(&WorkerReply::Index(index))));
    }
}

#[test]
fn a_realtime_pool_runs_or_says_what_is_missing() {
    let options = PoolOptions { realtime: Some(RealtimePriority::SIGNAL), ..options(1) };
    let make = |index| Recorder { index, seen: Rc::default(), handled: Arc::default() };
    match WorkerPool::start(options, make) {
        Ok(pool) => assert_eq!(pool.request(Say::Count).unwrap().wait().unwrap(), WorkerReply::Number(1)),
        Err(error) => {
            println!("not permitted here: {error}");
            assert!(
                matches!(&error, WorkerError::InitFailed { reason, .. } if reason.contains("CAP_SYS_NICE")),
                "{error}"
            );
        }
    }
}

#[test]
fn impossible_options_are_refused() {
    let refused =
        |options| WorkerPool::start(options, |_| panic!("never made")).map(|_: WorkerPool<Recorder>| ()).err();
    assert!(matches!(refused(options(0)), Some(WorkerError::BadOption { what: "workers", .. })));
    let no_queue = PoolOptions { queue_depth_max: 0, ..options(1) };
    assert!(matches!(refused(no_queue), Some(WorkerError::BadOption { what: "queue_depth_max", .. })));
    // Each of these was once truncated silently, or took the memory of the whole machine.
    for workers in [WORKERS_MAX + 1, u32::MAX as usize, usize::MAX] {
        let error = refused(options(workers));
        assert!(
            matches!(&error, Some(WorkerError::BadOption { what: "workers", got, .. }) if *got == workers.to_string()),
            "{error:?}"
        );
    }
    for queue_depth_max in [(1 << 20) + 1, usize::MAX] {
        let error = refused(PoolOptions { queue_depth_max, ..options(1) });
        assert!(matches!(error, Some(WorkerError::BadOption { what: "queue_depth_max", .. })), "{error:?}");
    }
    let large = PoolOptions { queue_depth_max: 1 << 20, ..options(WORKERS_MAX) };
    let error = refused(large);
    assert!(matches!(&error, Some(WorkerError::BadOption { got, .. }) if got.contains("1024 queues")), "{error:?}");
    let no_tick = PoolOptions { tick_every: Some(Duration::ZERO), ..options(1) };
    assert!(matches!(refused(no_tick), Some(WorkerError::BadOption { what: "tick_every", .. })));
}
