//! Workers that wait for workers: a wait that could never end is refused, and every other one ends.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use panoply_runtime::worker::BoxError;
use panoply_runtime::{Envelope, PoolOptions, Worker, WorkerError, WorkerPool};

/// Long enough for every single wait that ends, on a loaded machine too.
const PATIENCE: Duration = Duration::from_secs(20);

type SharedPool = Arc<OnceLock<Weak<WorkerPool<Caller>>>>;

/// Calls its own pool on request.
struct Caller(SharedPool);

enum Do {
    Nothing,
    /// Sends this worker a request to do nothing, and waits for the reply.
    Ask(usize),
    /// Requests that the first worker sends a request to the second.
    AskToAsk(usize, usize),
    /// Sends messages to a worker: the worker's index, then the number of messages.
    Send(usize, usize),
    /// Sends the first worker a request to do nothing, makes it send a request to the second, and
    /// then waits for the reply to the first request.
    AskAndHaveAsk(usize, usize, Arc<AtomicU64>),
    /// Makes the first worker send a request to the second, and sends the first worker this many
    /// messages.
    HaveAskAndSend(usize, usize, usize, Arc<AtomicU64>),
    /// Sends this worker a request to do nothing, and counts a refusal.
    AskAndCount(usize, Arc<AtomicU64>),
    /// Waits for the gate, then stops the pool.
    Stop(Arc<Mutex<()>>),
    /// Waits for the gate.
    Gate(Arc<Mutex<()>>),
}

impl Worker for Caller {
    type Message = Do;
    type Reply = Result<(), WorkerError>;

    fn handle(&mut self, envelope: Envelope<Do>) -> Result<Result<(), WorkerError>, BoxError> {
        let Some(pool) = self.0.get().and_then(Weak::upgrade) else { return Ok(Ok(())) };
        Ok(match envelope.message {
            Do::Nothing => Ok(()),
            Do::Ask(worker) => pool.request_to(worker, Do::Nothing).and_then(|reply| reply.wait()?),
            Do::AskToAsk(first, then) => pool.request_to(first, Do::Ask(then)).and_then(|reply| reply.wait()?),
            Do::Send(worker, count) => (0..count).try_for_each(|_| pool.send_to(worker, Do::Nothing)),
            Do::AskAndHaveAsk(first, then, refused) => pool.request_to(first, Do::Nothing).and_then(|reply| {
                pool.send_to(first, Do::AskAndCount(then, refused))?;
                reply.wait()?
            }),
            Do::HaveAskAndSend(worker, asked, count, refused) => pool
                .send_to(worker, Do::AskAndCount(asked, refused))
                .and_then(|()| (0..count).try_for_each(|_| pool.send_to(worker, Do::Nothing))),
            Do::AskAndCount(worker, refused) => {
                let answer = pool.request_to(worker, Do::Nothing).and_then(|reply| reply.wait()?);
                refused.fetch_add(u64::from(answer.is_err()), Ordering::SeqCst);
                answer
            }
            Do::Stop(gate) => {
                drop(gate.lock());
                pool.stop();
                Ok(())
            }
            Do::Gate(gate) => {
                drop(gate.lock());
                Ok(())
            }
        })
    }
}

fn pool(workers: usize) -> Arc<WorkerPool<Caller>> {
    let shared: SharedPool = Arc::default();
    let options = PoolOptions { workers, queue_depth_max: 4, ..PoolOptions::default() };
    let own = Arc::clone(&shared);
    let pool = Arc::new(WorkerPool::start(options, move |_| Caller(Arc::clone(&own))).unwrap());
    shared.set(Arc::downgrade(&pool)).unwrap();
    pool
}

/// Runs a test on a thread of its own, so that an endless wait fails the test instead of blocking
/// it.
fn within_patience(test: impl FnOnce() + Send + 'static) {
    rounds_within_patience(|ended| {
        test();
        drop(ended);
    });
}

/// [`within_patience`] for a test of many rounds, which reports the end of each: the time limit
/// holds for one round, so a slow machine may take as long as it needs for all of them.
fn rounds_within_patience(test: impl FnOnce(Sender<()>) + Send + 'static) {
    let (ended, hears) = channel();
    let thread = std::thread::spawn(move || test(ended));
    let outcome = loop {
        match hears.recv_timeout(PATIENCE) {
            Ok(()) => {}
            Err(outcome) => break outcome,
        }
    };
    assert_ne!(outcome, RecvTimeoutError::Timeout, "a wait did not end");
    thread.join().unwrap();
}

#[test]
fn a_worker_that_waits_for_its_own_reply_is_refused() {
    within_patience(|| {
        let pool = pool(2);
        let refused = pool.request_to(0, Do::Ask(0)).unwrap().wait().unwrap();
        assert_eq!(refused, Err(WorkerError::WaitsForItself { worker: 0 }));
        let told = refused.unwrap_err().to_string();
        assert!(told.contains("would wait for itself at worker 0") && told.contains("expected"), "{told}");
        assert_eq!(pool.request_to(0, Do::Ask(1)).unwrap().wait().unwrap(), Ok(()), "another worker may be asked");
        assert_eq!(pool.health()[0].restarts, 0);
    });
}

#[test]
fn two_workers_that_wait_for_each_other_are_told() {
    within_patience(|| {
        let pool = pool(3);
        let refused = pool.request_to(0, Do::AskToAsk(1, 0)).unwrap().wait().unwrap();
        // The last of the two to wait closes the circle, and is refused.
        assert!(matches!(refused, Err(WorkerError::WaitsForItself { worker: 0 | 1 })), "{refused:?}");
        assert_eq!(pool.request_to(0, Do::AskToAsk(1, 2)).unwrap().wait().unwrap(), Ok(()));
    });
}

#[test]
fn a_worker_that_fills_its_own_queue_is_refused() {
    within_patience(|| {
        let pool = pool(2);
        let refused = pool.request_to(1, Do::Send(1, 100)).unwrap().wait().unwrap();
        assert_eq!(refused, Err(WorkerError::WaitsForItself { worker: 1 }));
        assert_eq!(pool.request_to(1, Do::Send(0, 100)).unwrap().wait().unwrap(), Ok(()));
    });
}

#[test]
fn a_worker_that_stops_its_pool_waits_for_nobody_who_waits_for_it() {
    within_patience(|| {
        let pool = pool(2);
        let gate = Arc::new(Mutex::new(()));
        let closed = gate.lock().unwrap();
        pool.send_to(0, Do::Stop(Arc::clone(&gate))).unwrap();
        // Worker 1 sends a request to worker 0, which is inside the stop by then, or it is refused
        // for that reason.
        let asks = pool.request_to(1, Do::Ask(0)).unwrap();
        let keeps = Do::Gate(Arc::clone(&gate));
        pool.send_to(1, keeps).unwrap();
        drop(closed);
        // Worker 0 handles the messages that were sent before its queue closed. Its answer or the
        // refusal ends worker 1's wait.
        let _ = asks.wait().unwrap();
        let health = pool.stop();
        assert_eq!(health.len(), 2);
    });
}

/// Number of repetitions. Earlier, about one in a hundred was refused.
const ROUNDS: usize = 3_000;

#[test]
fn a_worker_that_has_its_answer_may_be_asked_though_it_still_sleeps() {
    rounds_within_patience(|ended| {
        let (pool, refused) = (pool(2), Arc::new(AtomicU64::new(0)));
        for _ in 0..ROUNDS {
            let asks = Do::AskAndHaveAsk(1, 0, Arc::clone(&refused));
            assert_eq!(pool.request_to(0, asks).unwrap().wait().unwrap(), Ok(()));
            // The next round begins when no worker waits any more: otherwise the two could truly
            // wait for each other.
            assert_eq!(pool.request_to(1, Do::Nothing).unwrap().wait().unwrap(), Ok(()));
            ended.send(()).unwrap();
        }
        pool.stop();
        assert_eq!(refused.load(Ordering::SeqCst), 0, "none of {ROUNDS} waits would have lasted for ever");
    });
}

#[test]
fn a_worker_that_has_room_may_be_asked_though_it_still_sleeps() {
    rounds_within_patience(|ended| {
        let (pool, refused) = (pool(2), Arc::new(AtomicU64::new(0)));
        for _ in 0..ROUNDS {
            // Five messages for a queue of four: the sender waits for room until the first is
            // taken, which sends it a request.
            let asks = Do::HaveAskAndSend(1, 0, 4, Arc::clone(&refused));
            assert_eq!(pool.request_to(0, asks).unwrap().wait().unwrap(), Ok(()));
            assert_eq!(pool.request_to(1, Do::Nothing).unwrap().wait().unwrap(), Ok(()));
            ended.send(()).unwrap();
        }
        pool.stop();
        assert_eq!(refused.load(Ordering::SeqCst), 0, "none of {ROUNDS} waits would have lasted for ever");
    });
}
