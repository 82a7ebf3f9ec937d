//! The device objects of one lane that have a recipe. When the engine that kept their states is gone, its successor makes
//! them again before it gets any op, so that an op which names one finds it.

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use panoply_core::clock::Clock;
use panoply_core::object::WeakObject;
use panoply_core::{Engine, Error, Item, Object, PartRef, Result, Value};

/// How long one look at the engine may wait.
const POLL_WAIT_MAX: Duration = Duration::from_millis(1);
/// From so many entries on those of objects that are gone are dropped, each time the number has doubled.
const PRUNE_AT_MIN: usize = 64;

/// See the module.
#[derive(Default)]
pub(crate) struct Objects {
    /// Locked when an object is made, and when a device is opened; never on the path of another op.
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    objects: Vec<WeakObject>,
    prune_at: usize,
}

impl Objects {
    /// Notes the objects among an op's output.
    pub(crate) fn note(&self, value: &Value) {
        if matches!(value, Value::Tensor(_) | Value::Pair(..) | Value::Bytes(_)) {
            return;
        }
        let new = |object: &&Object| object.recipe().is_some() && object.note();
        for object in value.parts().filter_map(PartRef::object).filter(new) {
            let mut known = self.known();
            known.objects.push(object.downgrade());
            if known.objects.len() >= known.prune_at.max(PRUNE_AT_MIN) {
                known.objects.retain(|object| object.upgrade().is_some());
                known.prune_at = 2 * known.objects.len();
            }
        }
    }

    /// Makes every object that is still wanted again on a new engine, without anybody seeing it yet: whoever does so may have
    /// been replaced meanwhile, and its engine with it. An engine that is lost meanwhile, or answers too late, is an error.
    pub(crate) fn make_again(&self, engine: &mut dyn Engine, clock: &dyn Clock, time_max: Duration) -> Result<Remade> {
        let wanted: Vec<Object> = self.known().objects.iter().filter_map(WeakObject::upgrade).collect();
        let mut remade = Vec::with_capacity(wanted.len());
        for object in wanted {
            let Some(recipe) = object.recipe() else { continue };
            match run(engine, Item { token: 0, op: recipe.clone() }, clock, time_max) {
                Ok(Err(lost @ Error::DeviceLost { .. })) => return Err(lost),
                Ok(made) => remade.push((object, made)),
                // An engine that does not answer is of no use. The recipe that did this is not tried again.
                Err(error) => {
                    object.give_up(&error);
                    self.forget(&object);
                    return Err(error);
                }
            }
        }
        Ok(Remade(remade))
    }

    /// Makes an object no more.
    fn forget(&self, object: &Object) {
        self.known().objects.retain(|known| known.upgrade().is_some_and(|other| !other.is_same(object)));
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Objects with the states that a new engine has made for them.
pub(crate) struct Remade(Vec<(Object, Result<Value>)>);

impl Remade {
    /// Has ops that name the objects find their new states. An object that could not be made again says why to each of them.
    pub(crate) fn take_effect(self) {
        for (object, made) in self.0 {
            let adopted = made.and_then(|value| object.adopt(made_of(&value, object.kind())?));
            if let Err(error) = adopted {
                object.give_up(&error);
            }
        }
    }
}

/// The object of this kind among an op's output.
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
