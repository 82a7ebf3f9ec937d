//! Events: a plugin's notifications of completion. Each has a callback that stores the result and
//! rings the engine's bell.

use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::plugin::{PjrtError, Plugin};
use crate::sys::{self, PaddedArgs};

/// A wake-up signal for the engine, rung when one of its events completes.
#[derive(Default)]
pub(crate) struct WakeSignal {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl WakeSignal {
    fn ring(&self) {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    /// Waits for a ring since the last call, at most `wait_max`.
    pub(crate) fn wait(&self, wait_max: Duration) {
        let rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(rung, wait_max, |rung| !*rung);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
    }
}

/// Work in flight.
#[derive(Clone)]
pub(crate) struct Pending(Arc<Completion>);

struct Completion {
    plugin: Arc<Plugin>,
    what: &'static str,
    outcome: Mutex<Option<Result<(), PjrtError>>>,
    bell: Arc<WakeSignal>,
}

impl Pending {
    /// Takes ownership of an event and watches it. A null event is already complete.
    pub(crate) fn watch(
        plugin: &Arc<Plugin>,
        what: &'static str,
        event: *mut sys::EventObject,
        bell: &Arc<WakeSignal>,
    ) -> Pending {
        let outcome = Mutex::new(event.is_null().then_some(Ok(())));
        let completion = Arc::new(Completion { plugin: Arc::clone(plugin), what, outcome, bell: Arc::clone(bell) });
        if event.is_null() {
            return Pending(completion);
        }
        let user_arg = Arc::into_raw(Arc::clone(&completion)).cast_mut().cast::<c_void>();
        let mut args = PaddedArgs::<sys::EventOnReady>::new();
        (args.args.event, args.args.user_arg) = (event, user_arg);
        args.args.callback = Some(done);
        if let Err(error) = plugin.call(&mut args) {
            // SAFETY: the plugin did not take the callback, so this is the reference created for
            // it.
            drop(unsafe { Arc::from_raw(user_arg.cast::<Completion>()) });
            // The work continues without a callback. Its memory must stay valid, so wait for the
            // end here.
            let mut end = PaddedArgs::<sys::EventAwait>::new();
            end.args.event = event;
            let _ = plugin.call(&mut end);
            completion.settle(Err(error));
        }
        // The event may be destroyed once its callback is registered. The callback is still called.
        let mut end = PaddedArgs::<sys::EventDestroy>::new();
        end.args.event = event;
        let _ = plugin.call(&mut end);
        Pending(completion)
    }

    /// The result, or `None` while the work is in flight.
    pub(crate) fn outcome(&self) -> Option<Result<(), PjrtError>> {
        self.0.outcome.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Completion {
    fn settle(&self, outcome: Result<(), PjrtError>) {
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        self.bell.ring();
    }
}

/// The callback. A thread of the plugin calls it once.
unsafe extern "C" fn done(error: *mut sys::ErrorObject, user_arg: *mut c_void) {
    // SAFETY: `watch` created this reference for this call.
    let completion = unsafe { Arc::from_raw(user_arg.cast::<Completion>()) };
    completion.settle(completion.plugin.check(completion.what, error));
}
