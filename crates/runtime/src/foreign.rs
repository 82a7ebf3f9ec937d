//! Calls into code that is not ours: wakers, destructors of memory that a caller lent, a backend's methods, a program's own
//! workers, listeners of events. Any of them may panic, and none of them may take a thread of ours with it: an op whose
//! thread is gone is never answered.
//!
//! Every such call goes through [`contain`]: the panic ends there, with its message as the result. What follows the call is
//! done in any case.

#[cfg(not(loom))]
use tracing::level_filters::LevelFilter;

/// Calls foreign code. A panic becomes its message.
#[cfg(not(loom))]
#[inline]
pub(crate) fn contain<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).map_err(message)
}

/// Under the model checker a panic is a failed model, and must be seen.
#[cfg(loom)]
pub(crate) fn contain<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    Ok(call())
}

/// Drops a value whose destructor is foreign.
#[inline]
pub(crate) fn discard<T>(value: T) {
    // There is nobody to tell of a destructor's panic; the panic hook has told the program.
    let _ = contain(|| drop(value));
}

/// Tells whoever listens to events of this level. Where nobody does, this is one comparison.
#[cfg(not(loom))]
#[inline]
pub(crate) fn tell(level: tracing::Level, event: impl FnOnce()) {
    if level <= LevelFilter::current() {
        // A listener that panics hears no more of this event.
        let _ = contain(event);
    }
}

/// The message of a panic. What was thrown is foreign too, and so is its destructor.
#[cfg(not(loom))]
#[cold]
fn message(panic: Box<dyn std::any::Any + Send>) -> String {
    let message = panoply_core::error::panic_message(panic.as_ref());
    if let Err(second) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(panic))) {
        // Whoever panics while a panic is cleared away would do so for ever.
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
