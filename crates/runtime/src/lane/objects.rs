//! The objects of one device that have a recipe. When the engine that held their states is gone,
//! the next engine makes them again before it gets any op, so that an op that names one finds it.
//!
//! 1. An object is recorded when an op returns it, or when it is sent through an op's sink. Only
//!    weak handles are kept.
//! 2. Each recipe has the time limit of an op, and the supervisor times each recipe separately.
//! 3. A recipe that the engine did not answer in time is given up at once. A recipe that the engine
//!    did not survive (it was lost, it panicked, or it did not return) is given up after
//!    [`ATTEMPTS_MAX`] attempts, so that one bad recipe does not cost the device.
//! 4. Lanes of one device share the list, so that a device that is found again after it was given
//!    up makes its objects again.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use panoply_core::clock::Clock;
use panoply_core::object::WeakObject;
use panoply_core::sink::Watch;
use panoply_core::{Engine, Error, Item, Object, PartRef, Result, Value};

/// How long one poll of the engine may wait.
const POLL_WAIT_MAX: Duration = Duration::from_millis(1);
/// From this number of entries on, entries of objects that are gone are removed each time the
/// number has doubled.
const PRUNE_AT_MIN: usize = 64;
/// How many engines may be lost to a recipe before it is given up.
const ATTEMPTS_MAX: u32 = 3;

/// The recreatable objects of one device. See the module.
#[derive(Default)]
pub(crate) struct Objects {
    /// Locked when an object is made, and when a device is opened; never on the path of another op.
    known: Mutex<KnownObjects>,
}

#[derive(Default)]
struct KnownObjects {
    entries: Vec<ObjectEntry>,
    prune_at: usize,
}

struct ObjectEntry {
    object: WeakObject,
    /// Attempts to make the object again that have begun since one last ended.
    attempts: Arc<AtomicU32>,
}

impl Objects {
    /// Records the objects among an op's output.
    pub(crate) fn note(&self, value: &Value) {
        if matches!(value, Value::Tensor(_) | Value::Pair(..) | Value::Bytes(_)) {
            return;
        }
        let new = |object: &&Object| object.recipe().is_some() && object.note();
        for object in value.parts().filter_map(PartRef::object).filter(new) {
            let mut known = self.known();
            known.entries.push(ObjectEntry { object: object.downgrade(), attempts: Arc::default() });
            if known.entries.len() >= known.prune_at.max(PRUNE_AT_MIN) {
                known.entries.retain(|entry| entry.object.is_alive());
                known.prune_at = 2 * known.entries.len();
            }
        }
    }

    /// Makes every object that is still alive again on a new engine. The results are not visible
    /// until `RemadeObjects::take_effect`, because the caller and its engine may be replaced
    /// meanwhile. `next` is called before each recipe, and returns whether to go on. An engine that
    /// is lost meanwhile, or answers too late, is an error.
    pub(crate) fn make_again(
        &self,
        engine: &mut dyn Engine,
        clock: &dyn Clock,
        time_max: Duration,
        next: &dyn Fn() -> bool,
    ) -> Result<RemadeObjects> {
        let alive = |entry: &ObjectEntry| Some((entry.object.upgrade()?, Arc::clone(&entry.attempts)));
        let wanted: Vec<(Object, Arc<AtomicU32>)> = self.known().entries.iter().filter_map(alive).collect();
        let mut remade = Vec::with_capacity(wanted.len());
        for (object, attempts) in wanted {
            let Some(recipe) = object.recipe() else { continue };
            let device = object.device();
            if !next() {
                return Err(Error::DeviceUnavailable { device, reason: "its worker was replaced".to_owned() });
            }
            if attempts.fetch_add(1, Ordering::Relaxed) >= ATTEMPTS_MAX {
                let reason = format!("{ATTEMPTS_MAX} engines did not survive its recipe");
                self.give_up(&object, &Error::DeviceFault { device, reason });
                continue;
            }
            match run(engine, Item { token: 0, op: recipe.clone() }, clock, time_max) {
                Ok(Err(lost @ Error::DeviceLost { .. })) => return Err(lost),
                Ok(made) => {
                    attempts.store(0, Ordering::Relaxed);
                    remade.push((object, made));
                }
                // An engine that does not answer is useless, so it is abandoned. The recipe that
                // caused this is not tried again.
                Err(error) => {
                    self.give_up(&object, &error);
                    return Err(error);
                }
            }
        }
        Ok(RemadeObjects(remade))
    }

    /// Stops making an object again.
    fn give_up(&self, object: &Object, cause: &Error) {
        object.give_up(cause);
        self.known().entries.retain(|entry| !entry.object.is_of(object));
    }

    fn known(&self) -> MutexGuard<'_, KnownObjects> {
        self.known.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Watch for Objects {
    fn sent(&self, value: &Value) {
        self.note(value);
    }
}

/// Objects with the states that a new engine has made for them.
pub(crate) struct RemadeObjects(Vec<(Object, Result<Value>)>);

impl RemadeObjects {
    /// Publishes the new states to ops that name the objects. An object that could not be made
    /// again reports the reason to each of them. The remaining values must be dropped by the
    /// caller, which may call foreign destructors.
    pub(crate) fn take_effect(&self) {
        for (object, made) in &self.0 {
            let new = made.as_ref().map_err(Error::clone).and_then(|value| made_of(value, object.kind()));
            if let Err(error) = new.and_then(|new| object.adopt(new)) {
                object.give_up(&error);
            }
        }
    }
}

/// The object of this kind in an op's output.
fn made_of(value: &Value, kind: &str) -> Result<Object> {
    let same_kind = |object: &&Object| object.kind() == kind;
    let found = value.parts().filter_map(PartRef::object).find(same_kind);
    found.cloned().ok_or_else(|| Error::invalid("what a recipe made", format!("a {kind}"), format!("{value:?}")))
}

/// Runs one op on an engine that has nothing else to do.
fn run(engine: &mut dyn Engine, item: Item, clock: &dyn Clock, time_max: Duration) -> Result<Result<Value>> {
    let token = item.token;
    let started = clock.now();
    engine.submit(&mut vec![item]);
    let mut finished = Vec::new();
    loop {
        let under_way = engine.poll(&mut finished, POLL_WAIT_MAX);
        if let Some(done) = finished.drain(..).find(|done| done.token == token) {
            return Ok(done.result);
        }
        let device = engine.info().id;
        if under_way == 0 {
            return Err(Error::DeviceFault { device, reason: "the engine lost track of the op".to_owned() });
        }
        if clock.now().saturating_duration_since(started) > time_max {
            return Err(Error::Timeout { device, after: time_max });
        }
    }
}
