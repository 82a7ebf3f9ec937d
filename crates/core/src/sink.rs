//! Sinks: how an op answers more than once. A long session, such as a decoder or a receive queue,
//! sends each value into the sink that its op carries. Like every op, it ends with one outcome.
//!
//! 1. A sink is bounded. If it is full, the engine keeps the value and tries again at its next
//!    poll.
//! 2. Values arrive in the order in which they were sent. After the last one the op's outcome
//!    reports how the session ended. A [`SinkReader`] returns `None` once all values were received
//!    and the op has dropped its sink.
//! 3. A caller that needs no more values drops the source. The engine sees [`Sink::is_closed`] and
//!    ends the op.
//! 4. An op exposes its sink as a part. Such an op is not repeatable, since sent values cannot be
//!    taken back. It is a session ([`Op::is_session`](crate::Op::is_session)) and may last without
//!    limit.
//! 5. The worker of the device watches the sink: it must know the device objects that are sent, to
//!    make them again after a loss of the device.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::part::Value;

/// The engine's end of a sink. A clone shares it.
pub struct Sink(Arc<SharedQueue>);

/// The caller's end of a sink.
pub struct SinkReader(Arc<SharedQueue>);

/// An observer of each value that is sent into a sink.
pub trait Watch: Send + Sync {
    /// Called before this value is sent. If the sink has become full meanwhile, the value is shown
    /// again when it is sent again.
    fn sent(&self, value: &Value);
}

struct SharedQueue {
    state: Mutex<State>,
    arrived: Condvar,
    depth_max: usize,
}

struct State {
    values: VecDeque<Value>,
    sinks: usize,
    closed: bool,
    waker: Option<Waker>,
    watch: Option<Arc<dyn Watch>>,
}

/// A sink that holds at most `depth_max` values (at least one), and its source.
pub fn sink(depth_max: usize) -> (Sink, SinkReader) {
    let state = State { values: VecDeque::new(), sinks: 1, closed: false, waker: None, watch: None };
    let shared = SharedQueue { state: Mutex::new(state), arrived: Condvar::new(), depth_max: depth_max.max(1) };
    let shared = Arc::new(shared);
    (Sink(Arc::clone(&shared)), SinkReader(shared))
}

impl Sink {
    /// Sends a value. If the sink is full the value is handed back. If the source is gone the value
    /// is dropped.
    #[allow(clippy::result_large_err)] // The error is the value that was to be sent.
    pub fn try_send(&self, value: Value) -> Result<(), Value> {
        let mut state = self.0.lock();
        if let Some(watch) = state.watch.clone()
            && !state.closed
            && state.values.len() < self.0.depth_max
        {
            drop(state);
            watch.sent(&value);
            state = self.0.lock();
        }
        if state.closed {
            return Ok(());
        }
        if state.values.len() >= self.0.depth_max {
            return Err(value);
        }
        state.values.push_back(value);
        self.0.wake(state);
        Ok(())
    }

    /// Shows each value that is sent from now on to `watch`, before the source can receive it.
    /// Called by the worker that passes the op to its engine. A sink has one watch: the last one
    /// set.
    pub fn watch(&self, watch: Arc<dyn Watch>) {
        let before = self.0.lock().watch.replace(watch);
        drop(before);
    }

    /// Whether the source is gone, so that no more values are received.
    pub fn is_closed(&self) -> bool {
        self.0.lock().closed
    }
}

impl Clone for Sink {
    fn clone(&self) -> Sink {
        self.0.lock().sinks += 1;
        Sink(Arc::clone(&self.0))
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.sinks -= 1;
        if state.sinks == 0 {
            self.0.wake(state);
        }
    }
}

impl SinkReader {
    /// Waits asynchronously for the next value; `None` after the last one. Works with any executor.
    pub fn receive(&mut self) -> impl Future<Output = Option<Value>> + '_ {
        Receive(self)
    }

    /// Waits for the next value; `None` after the last one.
    pub fn wait(&mut self) -> Option<Value> {
        let mut state = self.0.lock();
        loop {
            if let Some(value) = state.values.pop_front() {
                return Some(value);
            }
            if state.sinks == 0 {
                return None;
            }
            state = self.0.arrived.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }

    /// Waits for the next value at most this time. `None` if none arrives within the time, or after
    /// the last value.
    pub fn wait_for(&mut self, time: Duration) -> Option<Value> {
        let until = Instant::now().checked_add(time);
        let mut state = self.0.lock();
        loop {
            if let Some(value) = state.values.pop_front() {
                return Some(value);
            }
            let left = until.map_or(time, |until| until.saturating_duration_since(Instant::now()));
            if state.sinks == 0 || left.is_zero() {
                return None;
            }
            state = self.0.arrived.wait_timeout(state, left).unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
    }
}

impl Drop for SinkReader {
    fn drop(&mut self) {
        let (values, waker) = {
            let mut state = self.0.lock();
            state.closed = true;
            (std::mem::take(&mut state.values), state.waker.take())
        };
        drop((values, waker));
    }
}

struct Receive<'a>(&'a mut SinkReader);

impl Future for Receive<'_> {
    type Output = Option<Value>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Value>> {
        // Wakers are foreign code: this one is cloned before the lock is taken, and the old one is
        // dropped after the lock is released.
        let waker = context.waker().clone();
        let mut state = self.0.0.lock();
        if let Some(value) = state.values.pop_front() {
            return Poll::Ready(Some(value));
        }
        if state.sinks == 0 {
            return Poll::Ready(None);
        }
        let before = state.waker.replace(waker);
        drop(state);
        drop(before);
        Poll::Pending
    }
}

impl SharedQueue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Wakes the waiting receiver after releasing the lock: a waker is foreign code.
    fn wake(&self, mut state: MutexGuard<'_, State>) {
        let waker = state.waker.take();
        drop(state);
        self.arrived.notify_all();
        if let Some(waker) = waker {
            // A panic of a waker must not reach the engine.
            if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| waker.wake())) {
                // The payload may panic again when it is dropped.
                if let Err(again) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(panic))) {
                    std::mem::forget(again);
                }
            }
        }
    }
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sink({} of {})", self.0.lock().values.len(), self.0.depth_max)
    }
}

impl fmt::Debug for SinkReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Source({} of {})", self.0.lock().values.len(), self.0.depth_max)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::bytes::Bytes;

    fn value(byte: u8) -> Value {
        Value::Bytes(Bytes::from_vec(vec![byte]))
    }

    #[allow(clippy::unwrap_used)] // A failed unwrap is a failed test.
    fn byte(value: Option<Value>) -> Option<u8> {
        value.map(|value| value.into_bytes().unwrap().as_slice().unwrap()[0])
    }

    #[test]
    fn values_arrive_in_order_and_a_full_sink_hands_them_back() {
        let (sink, mut source) = sink(2);
        assert!(sink.try_send(value(1)).is_ok() && sink.try_send(value(2)).is_ok());
        let back = sink.try_send(value(3)).unwrap_err();
        assert_eq!(byte(source.wait()), Some(1));
        sink.try_send(back).unwrap();
        drop(sink);
        assert_eq!([byte(source.wait()), byte(source.wait()), byte(source.wait())], [Some(2), Some(3), None]);
    }

    #[test]
    fn whoever_waits_is_woken_by_a_value_and_by_the_end() {
        let (sink, mut source) = sink(1);
        let second = sink.clone();
        let sender = std::thread::spawn(move || {
            sink.try_send(value(9)).unwrap();
            drop(sink);
            std::thread::sleep(Duration::from_millis(5));
            drop(second);
        });
        assert_eq!((byte(source.wait()), byte(source.wait())), (Some(9), None));
        assert!(source.wait_for(Duration::MAX).is_none());
        sender.join().unwrap();
    }

    #[test]
    fn a_reader_is_woken_outside_of_the_lock() {
        /// Reads the sink when it is woken, as a reader on another thread may do at that moment.
        struct ReadOnWake(Sink, Mutex<Vec<Option<usize>>>);
        impl std::task::Wake for ReadOnWake {
            fn wake(self: Arc<Self>) {
                // `try_lock` reports a held lock at once. `lock` would deadlock here.
                let seen = self.0.0.state.try_lock().ok().map(|state| state.values.len());
                self.1.lock().unwrap().push(seen);
            }
        }
        let (sink, mut source) = sink(2);
        let looks = Arc::new(ReadOnWake(sink.clone(), Mutex::default()));
        let waker = Waker::from(Arc::clone(&looks));
        let mut receive = Box::pin(source.receive());
        assert!(receive.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        sink.try_send(value(1)).unwrap();
        assert_eq!(*looks.1.lock().unwrap(), [Some(1)]);
    }

    #[test]
    fn a_watch_sees_every_value_before_the_reader_and_again_where_it_did_not_fit() {
        struct SentValues(Mutex<Vec<u8>>, Sink);
        impl Watch for SentValues {
            fn sent(&self, value: &Value) {
                // The sink can be used here: `try_send` holds no lock while it calls this.
                assert!(!self.1.is_closed());
                self.0.lock().unwrap().push(byte(Some(value.clone())).unwrap());
            }
        }
        struct Nothing;
        impl Watch for Nothing {
            fn sent(&self, _: &Value) {}
        }
        let (sink, mut source) = sink(1);
        let counts = Arc::new(SentValues(Mutex::default(), sink.clone()));
        sink.try_send(value(1)).unwrap();
        assert_eq!(byte(source.wait()), Some(1));
        sink.watch(counts.clone());
        sink.try_send(value(2)).unwrap();
        assert!(sink.try_send(value(3)).is_err(), "full: it is shown when it fits");
        assert_eq!(*counts.0.lock().unwrap(), [2]);
        assert_eq!(byte(source.wait()), Some(2));
        sink.try_send(value(3)).unwrap();
        assert_eq!(*counts.0.lock().unwrap(), [2, 3]);
        // The watch holds its own sink. Replacing the watch breaks this cycle.
        sink.watch(Arc::new(Nothing));
    }

    #[test]
    fn a_source_that_is_dropped_closes_the_sink() {
        let (sink, source) = sink(1);
        assert!(!sink.is_closed());
        drop(source);
        assert!(sink.is_closed() && sink.try_send(value(1)).is_ok());
    }
}
