//! State of a command that a signal can lock permanently.
//!
//! A signal may end the process between any two steps of a command. The final message that is
//! printed then must still be true when the process is gone. A step that the message reports is
//! therefore done while its gate is held, and the signal's thread closes the gate before it prints
//! the message. From then on the command blocks at the gate until the process ends. A step in
//! progress is waited for, but no longer than [`WAIT_MAX`]: after that its result is unknown, and
//! the final message says so.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// How long a signal waits for the step in progress.
const WAIT_MAX: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The state of a command's steps, behind a lock.
#[derive(Debug, Default)]
pub struct Gate<T>(Mutex<T>);

impl<T> Gate<T> {
    pub const fn new(known: T) -> Gate<T> {
        Gate(Mutex::new(known))
    }

    /// Holds the gate for a step.
    pub fn pass(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the gate until the process ends, and looks at the state. Returns `None` if a step in
    /// progress has not ended in time.
    pub fn close<R>(&self, look: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.close_within(WAIT_MAX, look)
    }

    fn close_within<R>(&self, wait_max: Duration, look: impl FnOnce(&mut T) -> R) -> Option<R> {
        let start = Instant::now();
        let mut known = loop {
            match self.0.try_lock() {
                Ok(known) => break known,
                Err(TryLockError::Poisoned(poisoned)) => break poisoned.into_inner(),
                Err(TryLockError::WouldBlock) if start.elapsed() < wait_max => std::thread::sleep(LOOK_EVERY),
                Err(TryLockError::WouldBlock) => return None,
            }
        };
        let seen = look(&mut known);
        // The guard is leaked, so the gate never opens again.
        std::mem::forget(known);
        Some(seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_closed_gate_lets_no_step_begin() {
        let gate = Arc::new(Gate::new(0));
        *gate.pass() += 1;
        assert_eq!(gate.close(|steps| *steps), Some(1));
        let other = Arc::clone(&gate);
        std::thread::spawn(move || *other.pass() += 1);
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(gate.close_within(Duration::from_millis(50), |steps| *steps), None, "it stays closed");
    }

    #[test]
    fn a_step_under_way_is_waited_for() {
        let gate = Arc::new(Gate::new(0));
        let (other, mut step) = (Arc::clone(&gate), gate.pass());
        let closing = std::thread::spawn(move || other.close(|steps| *steps));
        std::thread::sleep(Duration::from_millis(50));
        *step += 1;
        drop(step);
        assert_eq!(closing.join().ok().flatten(), Some(1));
    }
}
