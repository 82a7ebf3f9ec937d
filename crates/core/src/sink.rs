//! Sinks: how an op answers more than once. A session that goes on, such as a decoder or a receive queue, sends each value
//! into the sink that its op carries, and ends as every op does, with one outcome.
//!
//! 1. A sink is bounded. Where it is full the engine keeps the value and tries again when it is next polled.
//! 2. Values arrive in the order in which they were sent. After the last one the op's outcome tells how it ended; a
//!    [`Source`] that has given out everything says so once the op has let go of its sink.
//! 3. Whoever is no longer interested drops the source; the engine sees [`Sink::is_closed`] and ends the op.
//! 4. An op shows its sink as a part. It is then not repeatable, since what it has sent cannot be taken back, and a session
//!    ([`Op::is_session`](crate::Op::is_session)), which may last as long as it likes.
//! 5. The worker of the device watches the sink: it must know the device objects that are sent, to make them again after a
//!    loss of the device.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::part::Value;

/// The engine's end. Cloning shares it.
pub struct Sink(Arc<Shared>);

/// The caller's end.
pub struct Source(Arc<Shared>);

/// Is shown each value that is sent into a sink.
pub trait Watch: Send + Sync {
    /// This value is about to be sent. Where the sink turns out to be full it is shown again.
    fn sent(&self, value: &Value);
}

struct Shared {
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

/// A sink that holds at most so many values (at least one), and its source.
pub fn sink(depth_max: usize) -> (Sink, Source) {
    let state = State { values: VecDeque::new(), sinks: 1, closed: false, waker: None, watch: None };
    let shared = Shared { state: Mutex::new(state), arrived: Condvar::new(), depth_max: depth_max.max(1) };
    let shared = Arc::new(shared);
    (Sink(Arc::clone(&shared)), Source(shared))
}

impl Sink {
    /// Sends a value; hands it back where the sink is full. Where the source is gone the value is dropped.
    #[allow(clippy::result_large_err)] // A value that is handed back is the same size as one that is sent.
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

    /// Shows each value that is sent from now on to `watch` before the source can receive it; called by the worker that gives
    /// the op to its engine. A sink has one watch, the last.
    pub fn watch(&self, watch: Arc<dyn Watch>) {
        let before = self.0.lock().watch.replace(watch);
        drop(before);
    }

    /// Whether nobody takes values any more.
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

impl Source {
    /// The next value, when it is there; `None` after the last one. Needs no particular executor.
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

    /// The next value, if it is there now or arrives within the time; `None` where it does not, or there is none left.
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

impl Drop for Source {
    fn drop(&mut self) {
        let (values, waker) = {
            let mut state = self.0.lock();
            state.closed = true;
            (std::mem::take(&mut state.values), state.waker.take())
        };
        drop((values, waker));
    }
}

struct Receive<'a>(&'a mut Source);

impl Future for Receive<'_> {
    type Output = Option<Value>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Value>> {
        // Wakers are foreign code: cloned before the lock is taken, and dropped after it is given up.
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

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Wakes whoever waits, after the lock is given up: a waker is foreign code.
    fn wake(&self, mut state: MutexGuard<'_, State>) {
        let waker = state.waker.take();
        drop(state);
        self.arrived.notify_all();
        if let Some(waker) = waker {
            // A waker that panics is its owner's trouble, not the engine's.
            if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| waker.wake())) {
                // What was thrown may panic again when it is dropped.
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

impl fmt::Debug for Source {
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
        /// Looks at the sink when it is woken, as a reader on another thread may at that moment.
        struct Looks(Sink, Mutex<Vec<Option<usize>>>);
        impl std::task::Wake for Looks {
            fn wake(self: Arc<Self>) {
                // A lock that is held is told at once here, where `lock` would wait for ever.
                let seen = self.0.0.state.try_lock().ok().map(|state| state.values.len());
                self.1.lock().unwrap().push(seen);
            }
        }
        let (sink, mut source) = sink(2);
        let looks = Arc::new(Looks(sink.clone(), Mutex::default()));
        let waker = Waker::from(Arc::clone(&looks));
        let mut receive = Box::pin(source.receive());
        assert!(receive.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        sink.try_send(value(1)).unwrap();
        assert_eq!(*looks.1.lock().unwrap(), [Some(1)]);
    }

    #[test]
    fn a_watch_sees_every_value_before_the_reader_and_again_where_it_did_not_fit() {
        struct Counts(Mutex<Vec<u8>>, Sink);
        impl Watch for Counts {
            fn sent(&self, value: &Value) {
                // The sink can be used from here: no lock of its own is held.
                assert!(!self.1.is_closed());
                self.0.lock().unwrap().push(byte(Some(value.clone())).unwrap());
            }
        }
        struct Nothing;
        impl Watch for Nothing {
            fn sent(&self, _: &Value) {}
        }
        let (sink, mut source) = sink(1);
        let counts = Arc::new(Counts(Mutex::default(), sink.clone()));
        sink.try_send(value(1)).unwrap();
        assert_eq!(byte(source.wait()), Some(1));
        sink.watch(counts.clone());
        sink.try_send(value(2)).unwrap();
        assert!(sink.try_send(value(3)).is_err(), "full: it is shown when it fits");
        assert_eq!(*counts.0.lock().unwrap(), [2]);
        assert_eq!(byte(source.wait()), Some(2));
        sink.try_send(value(3)).unwrap();
        assert_eq!(*counts.0.lock().unwrap(), [2, 3]);
        // The watch holds its own sink: whoever ties such a knot unties it.
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
