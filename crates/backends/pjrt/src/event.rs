//! Events: how a plugin tells that something is done. Each has a callback, which notes the answer and rings the engine's bell.

use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::plugin::{PjrtError, Plugin};
use crate::sys::{self, Padded};

/// Rung whenever something of an engine's is done; the engine waits for it.
#[derive(Default)]
pub(crate) struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    /// Waits until it was rung since the last call, or for so long.
    pub(crate) fn wait(&self, wait_max: Duration) {
        let rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(rung, wait_max, |rung| !*rung);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
    }
}

/// Something that is under way.
#[derive(Clone)]
pub(crate) struct Pending(Arc<Completion>);

struct Completion {
    plugin: Arc<Plugin>,
    what: &'static str,
    outcome: Mutex<Option<Result<(), PjrtError>>>,
    bell: Arc<Bell>,
}

impl Pending {
    /// Takes an event over and watches it. Null is done already.
    pub(crate) fn watch(
        plugin: &Arc<Plugin>,
        what: &'static str,
        event: *mut sys::EventObject,
        bell: &Arc<Bell>,
    ) -> Pending {
        let outcome = Mutex::new(event.is_null().then_some(Ok(())));
        let completion = Arc::new(Completion { plugin: Arc::clone(plugin), what, outcome, bell: Arc::clone(bell) });
        if event.is_null() {
            return Pending(completion);
        }
        let user_arg = Arc::into_raw(Arc::clone(&completion)).cast_mut().cast::<c_void>();
        let mut args = Padded::<sys::EventOnReady>::new();
        (args.args.event, args.args.user_arg) = (event, user_arg);
        args.args.callback = Some(done);
        if let Err(error) = plugin.call(&mut args) {
            // SAFETY: the plugin did not take the callback, so this is the reference that was made for it.
            drop(unsafe { Arc::from_raw(user_arg.cast::<Completion>()) });
            // What was started goes on all the same: its memory must stay until it is done.
            let mut end = Padded::<sys::EventAwait>::new();
            end.args.event = event;
            let _ = plugin.call(&mut end);
            completion.settle(Err(error));
        }
        // An event may be given back once it has its callback, which is called nevertheless.
        let mut end = Padded::<sys::EventDestroy>::new();
        end.args.event = event;
        let _ = plugin.call(&mut end);
        Pending(completion)
    }

    /// What came of it, or nothing yet.
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

/// Called by a thread of the plugin's, once.
unsafe extern "C" fn done(error: *mut sys::ErrorObject, user_arg: *mut c_void) {
    // SAFETY: the reference that `watch` made for this call.
    let completion = unsafe { Arc::from_raw(user_arg.cast::<Completion>()) };
    completion.settle(completion.plugin.check(completion.what, error));
}
