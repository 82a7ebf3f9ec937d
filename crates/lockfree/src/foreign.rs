//! Calls foreign code: wakers, destructors of memory that a caller lent, a backend's methods, a
//! program's own workers, listeners of events. Any of them may panic, and none of them may end a
//! thread of the runtime: an op whose thread is gone is never answered.
//!
//! Every such call goes through [`contain`]: the panic ends there, and its message is the result.
//! The code after the call runs in any case.

#[cfg(not(loom))]
use tracing::level_filters::LevelFilter;

/// Calls foreign code. A panic becomes its message.
#[cfg(not(loom))]
#[inline]
pub fn contain<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).map_err(message)
}

/// Under the model checker, a panic is a failed model and must be visible.
#[cfg(loom)]
pub fn contain<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    Ok(call())
}

/// Drops a value whose destructor is foreign.
#[inline]
pub fn discard<T>(value: T) {
    // No one can handle a destructor's panic here; the panic hook has already reported it.
    let _ = contain(|| drop(value));
}

/// Emits an event to the listeners of this level. Without listeners, the cost is one comparison.
#[cfg(not(loom))]
#[inline]
pub fn tell(level: tracing::Level, event: impl FnOnce()) {
    if level <= LevelFilter::current() {
        // A listener that panics misses the rest of this event.
        let _ = contain(event);
    }
}

/// The message of a panic. The payload is foreign too, and so is its destructor.
#[cfg(not(loom))]
#[cold]
fn message(panic: Box<dyn std::any::Any + Send>) -> String {
    let message = panoply_core::error::panic_message(panic.as_ref());
    if let Err(second) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(panic))) {
        // The payload's destructor panicked too. The second payload is leaked, since its destructor
        // could panic again, for ever.
        std::mem::forget(second);
    }
    message
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    struct PanicsWhenDropped;

    impl Drop for PanicsWhenDropped {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                std::panic::resume_unwind(Box::new("dropped".to_owned()));
            }
        }
    }

    #[test]
    fn a_panic_becomes_its_message_whatever_was_thrown() {
        assert_eq!(contain(|| 5), Ok(5));
        let thrown = contain(|| std::panic::resume_unwind(Box::new("a text")));
        assert_eq!(thrown.map(|()| 0), Err("a text".to_owned()));
        let odd = contain(|| std::panic::resume_unwind(Box::new(PanicsWhenDropped)));
        assert_eq!(odd.map(|()| 0), Err("no message".to_owned()), "what was thrown panics again");
        discard(PanicsWhenDropped);
    }
}
