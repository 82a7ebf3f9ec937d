//! Device objects: state on one device that later ops name, such as a loaded model, a cipher
//! session with its expanded key, a filter's delay line or a decoder.
//!
//! 1. An engine keeps the states of its objects in an [`ObjectTable`], and only the engine reaches
//!    them. Ops and callers hold an [`Object`], a handle without the state.
//! 2. An op that names an object runs on the object's device. The router ensures this.
//! 3. Dropping the last handle returns the state's key to the table. The table drops the state in
//!    its next [`ObjectTable::collect`], which the engine calls in every `submit`, `poll` and
//!    `health`.
//! 4. States are lost with their device. A recipe is the op that made a state. When the device is
//!    opened again, the worker runs every recipe on the new engine before any other op, and the
//!    handles then name the new states. Ops that name a lost object without a recipe get
//!    [`Error::ObjectLost`].
//! 5. A recipe keeps the inputs of its op alive on the host as long as the object lives.

use std::any::Any;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use crate::device::DeviceId;
use crate::error::{Error, Result};
use crate::lease::{Home, Lease};

/// The next key. Keys are unique in the process, so a key of one engine is never found in the table
/// of another.
static NEXT_KEY: AtomicU64 = AtomicU64::new(1);

/// An op, whose type this module does not name: ops name objects.
pub(crate) type Recipe = Box<dyn Any + Send + Sync>;

/// A handle to state on a device. A clone shares the state, and dropping the last handle releases
/// it.
#[derive(Clone)]
pub struct Object(Arc<ObjectState>);

/// A handle that does not keep the state alive.
#[derive(Clone)]
pub struct WeakObject(Weak<ObjectState>);

struct ObjectState {
    device: DeviceId,
    kind: &'static str,
    key: AtomicU64,
    /// Whether the object is on its device's list of objects to make again.
    noted: AtomicBool,
    /// The op that makes the state again: see `op/recipe.rs`.
    recipe: Option<Recipe>,
    /// Locked when the object is made, made again, or found to be lost.
    hold: Mutex<Hold>,
}

/// The fields that change when the state is made again.
struct Hold {
    /// The state's key, on loan from the table. Dropping the lease releases the state.
    #[allow(dead_code)] // Held only for its destructor.
    lease: Option<Lease<u64>>,
    /// Why the state could not be made again.
    trouble: Option<String>,
}

impl Object {
    /// The device that holds the state.
    pub fn device(&self) -> DeviceId {
        self.0.device
    }

    /// The kind of the state, in a word or two: `model`, `cipher session`.
    pub fn kind(&self) -> &'static str {
        self.0.kind
    }

    /// The recipe, if there is one.
    pub(crate) fn any_recipe(&self) -> Option<&(dyn Any + Send + Sync)> {
        self.0.recipe.as_deref()
    }

    /// Records that the object is on its device's list of objects to make again. False if it
    /// already was.
    pub fn note(&self) -> bool {
        !self.0.noted.swap(true, Ordering::Relaxed)
    }

    /// Makes a handle that does not keep the state alive.
    pub fn downgrade(&self) -> WeakObject {
        WeakObject(Arc::downgrade(&self.0))
    }

    /// Whether both handles name the same state.
    pub fn is_same(&self, other: &Object) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Makes every handle of this object name the state of `made_again`. Both must be on the same
    /// device.
    pub fn adopt(&self, made_again: Object) -> Result<()> {
        if made_again.device() != self.device() {
            return Err(Error::invalid(
                "an object made again",
                format!("one on {}", self.device()),
                made_again.device(),
            ));
        }
        let lease = made_again.hold().lease.take();
        let key = made_again.key();
        *self.hold() = Hold { lease, trouble: None };
        self.0.key.store(key, Ordering::Release);
        Ok(())
    }

    /// Records why the state could not be made again.
    pub fn give_up(&self, cause: &Error) {
        self.hold().trouble = Some(cause.to_string());
    }

    /// The error of an op that names this object after its state was lost.
    pub fn lost(&self) -> Error {
        let reason = match &self.hold().trouble {
            Some(trouble) => format!("its device was lost, and it could not be made again: {trouble}"),
            None => "its device was lost, and it cannot be made again by itself".to_owned(),
        };
        Error::ObjectLost { kind: self.kind(), device: self.device(), reason }
    }

    fn key(&self) -> u64 {
        self.0.key.load(Ordering::Acquire)
    }

    fn hold(&self) -> MutexGuard<'_, Hold> {
        self.0.hold.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl WeakObject {
    /// The object, if a handle to it is alive.
    pub fn upgrade(&self) -> Option<Object> {
        self.0.upgrade().map(Object)
    }

    /// Whether a handle to the object is alive.
    pub fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// Whether both handles name the same state.
    pub fn is_of(&self, object: &Object) -> bool {
        std::ptr::eq(self.0.as_ptr(), Arc::as_ptr(&object.0))
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Object({} on {})", self.kind(), self.device())
    }
}

/// The states of one engine's objects.
pub struct ObjectTable<T> {
    device: DeviceId,
    states: std::collections::HashMap<u64, T, BuildHasherDefault<KeyHasher>>,
    home: Home<u64>,
}

impl<T> ObjectTable<T> {
    /// An empty table for the engine of this device.
    pub fn new(device: DeviceId) -> ObjectTable<T> {
        ObjectTable { device, states: Default::default(), home: Home::new() }
    }

    /// Stores a state and returns its first handle. The recipe was checked.
    pub(crate) fn insert_with(&mut self, kind: &'static str, state: T, recipe: Option<Recipe>) -> Object {
        self.collect();
        let key = NEXT_KEY.fetch_add(1, Ordering::Relaxed);
        self.states.insert(key, state);
        let hold = Mutex::new(Hold { lease: Some(self.home.lend(key)), trouble: None });
        let (key, noted) = (AtomicU64::new(key), AtomicBool::new(false));
        Object(Arc::new(ObjectState { device: self.device, kind, key, noted, recipe, hold }))
    }

    /// The state of an object, or the error for the op that named the object.
    pub fn get_mut(&mut self, object: &Object) -> Result<&mut T> {
        self.states.get_mut(&object.key()).ok_or_else(|| object.lost())
    }

    /// Drops the states whose last handles are gone.
    pub fn collect(&mut self) {
        let states = &mut self.states;
        self.home.take_back(|key| drop(states.remove(&key)));
    }

    /// Number of states.
    pub fn len(&self) -> usize {
        self.states.len()
    }

    /// Whether there are no states.
    pub fn is_empty(&self) -> bool {
        self.states.is_empty()
    }
}

/// Spreads the keys, which count up from 1, over the slots of the table.
#[derive(Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = (self.0 ^ key).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::buffer::{DeviceAllocation, DeviceBuffer};
    use crate::device::Api;
    use crate::dtype::DType;
    use crate::op::compute::Transpose;
    use crate::op::{Describe, Op, Operation};
    use crate::part::{PartMut, PartRef};
    use crate::shape::Shape;
    use crate::tensor::Tensor;

    const DEVICE: DeviceId = DeviceId { api: Api::SIMULATED, index: 0 };

    /// An op that must not run twice.
    #[derive(Clone, Debug)]
    struct Once;

    impl Describe for Once {
        fn name(&self) -> &'static str {
            "once"
        }
        fn validate(&self) -> Result<()> {
            Ok(())
        }
        fn for_each_part(&self, _visit: &mut dyn FnMut(PartRef<'_>)) {}
        fn for_each_part_mut(&mut self, _visit: &mut dyn FnMut(PartMut<'_>)) {}
        fn is_repeatable(&self) -> bool {
            false
        }
    }

    #[allow(clippy::unwrap_used)] // A failed unwrap is a failed test.
    fn recipe() -> Op {
        Transpose::new(&Tensor::zeros(DType::F32, [2, 2]).unwrap()).into_op().unwrap()
    }

    #[test]
    fn the_last_handle_releases_the_state() {
        let mut table = ObjectTable::new(DEVICE);
        let object = table.insert("counter", 7, None).unwrap();
        let second = object.clone();
        *table.get_mut(&object).unwrap() += 1;
        drop(object);
        table.collect();
        assert_eq!(*table.get_mut(&second).unwrap(), 8);
        std::thread::spawn(move || drop(second)).join().unwrap();
        table.collect();
        assert!(table.is_empty());
    }

    #[test]
    fn a_state_that_was_made_again_serves_every_handle() {
        let mut table = ObjectTable::new(DEVICE);
        let object = table.insert("counter", 1, Some(&recipe())).unwrap();
        let second = object.clone();
        drop(table);
        let mut successor = ObjectTable::new(DEVICE);
        let error = successor.get_mut(&object).unwrap_err();
        assert!(matches!(error, Error::ObjectLost { kind: "counter", .. }), "{error}");
        let again = successor.insert("counter", 2, None).unwrap();
        object.adopt(again).unwrap();
        assert_eq!(*successor.get_mut(&second).unwrap(), 2);
        drop((object, second));
        successor.collect();
        assert!(successor.is_empty());
    }

    #[test]
    fn a_recipe_may_be_repeated_and_has_its_inputs_on_the_host() {
        let mut table = ObjectTable::new(DEVICE);
        let once = Op::extension(Once).unwrap();
        let error = table.insert("counter", 1, Some(&once)).unwrap_err();
        assert!(error.to_string().contains("may be repeated"), "{error}");
        let home = Home::new();
        let away = DeviceAllocation { device: DEVICE, token: 1, len_bytes: 16 };
        let away =
            Tensor::from_device(DType::F32, Shape::new([2, 2]).unwrap(), DeviceBuffer::new(home.lend(away))).unwrap();
        let error = table.insert("counter", 1, Some(&Transpose::new(&away).into_op().unwrap())).unwrap_err();
        assert!(error.to_string().contains("on the host"), "{error}");
        assert!(table.is_empty(), "what was refused is not kept");
    }

    #[test]
    fn an_object_is_noted_once_through_all_its_handles() {
        let mut table = ObjectTable::new(DEVICE);
        let object = table.insert("counter", 1, Some(&recipe())).unwrap();
        assert!(object.note() && !object.note() && !object.clone().note());
        assert!(object.downgrade().upgrade().is_some_and(|same| !same.note()));
    }

    #[test]
    fn a_table_finds_only_its_own_objects() {
        let (mut first, mut second) = (ObjectTable::new(DEVICE), ObjectTable::new(DEVICE));
        let object = first.insert("counter", 1, None).unwrap();
        second.insert("counter", 2, None).unwrap();
        assert!(second.get_mut(&object).is_err());
        assert!(object.recipe().is_none());
        let weak = object.downgrade();
        assert!(weak.is_alive() && weak.is_of(&object) && weak.upgrade().is_some_and(|same| same.is_same(&object)));
        drop(object);
        assert!(weak.upgrade().is_none() && !weak.is_alive());
    }
}
