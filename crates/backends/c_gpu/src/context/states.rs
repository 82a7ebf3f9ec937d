//! State that ops keep on a device between their runs: generated kernels, tables, recorded graphs.
//! The context has one state of each type, or one per lane, so it names no op.
//!
//! 1. A state is made by `Default` on its first use, and kept as long as the engine.
//! 2. An op takes its state out of the context while it uses both ([`Context::with_state`]). The
//!    state is put back even if the op panics.
//! 3. While a state is taken out, a nested op of the same type gets an empty one, which is dropped
//!    when the first is put back.
//! 4. Recordings run loaded kernels. When kernels are retired, and when the engine is dropped, the
//!    recordings of all states go first ([`DeviceState::take_replays`]). The states are then
//!    dropped in the order of their first use, before the table of loaded kernels.
//! 5. No state contains secrets. Memory of secrets belongs to the op (`secrets`), and is wiped when
//!    the op has been queued.

use std::any::{Any, TypeId};

use super::{Context, Replay};

/// State that ops keep on a device between their runs.
pub(crate) trait DeviceState: Any {
    /// Whether each lane has a state of its own: its ops write to memory of the state, so it must
    /// not be shared with ops that run at the same time.
    fn is_per_lane() -> bool
    where
        Self: Sized,
    {
        false
    }

    /// Takes all recordings out of the state. They may run kernels that are about to be unloaded.
    fn take_replays(&mut self) -> Vec<Replay> {
        Vec::new()
    }
}

/// The states of one context, in the order of their first use.
#[derive(Default)]
pub(super) struct States {
    all: Vec<State>,
}

struct State {
    of: TypeId,
    /// The lane that it belongs to; 0 if it is shared.
    lane: usize,
    /// `None` while the state is taken out.
    state: Option<Box<dyn DeviceState>>,
}

impl States {
    fn place<T: DeviceState>(&mut self, lane: usize) -> &mut Option<Box<dyn DeviceState>> {
        let (of, lane) = (TypeId::of::<T>(), if T::is_per_lane() { lane } else { 0 });
        let index = self.all.iter().position(|state| (state.of, state.lane) == (of, lane)).unwrap_or_else(|| {
            self.all.push(State { of, lane, state: None });
            self.all.len() - 1
        });
        &mut self.all[index].state
    }

    fn take<T: DeviceState + Default>(&mut self, lane: usize) -> Box<T> {
        let state = self.place::<T>(lane).take();
        let state = state.and_then(|state| (state as Box<dyn Any>).downcast().ok());
        state.unwrap_or_default()
    }

    /// Puts a state back, and returns the one that a nested op has left in its place.
    fn put<T: DeviceState>(&mut self, state: Box<T>, lane: usize) -> Option<Box<dyn DeviceState>> {
        self.place::<T>(lane).replace(state)
    }

    /// Takes the recordings out of all states.
    pub(super) fn take_replays(&mut self) -> Vec<Replay> {
        self.all.iter_mut().filter_map(|state| state.state.as_mut()).flat_map(|state| state.take_replays()).collect()
    }
}

impl Drop for States {
    fn drop(&mut self) {
        drop(self.take_replays());
    }
}

/// A state taken out of its context. Puts it back when dropped.
struct StateGuard<'a, T: DeviceState> {
    state: Option<Box<T>>,
    context: &'a mut Context,
}

impl<T: DeviceState> Drop for StateGuard<'_, T> {
    fn drop(&mut self) {
        let lane = self.context.lane();
        if let Some(mut nested) = self.state.take().and_then(|state| self.context.states.put(state, lane)) {
            // Work in flight may still use its recordings.
            self.context.hold_replays(nested.take_replays());
        }
    }
}

impl Context {
    /// Lends a state together with the context.
    pub(crate) fn with_state<T: DeviceState + Default, R>(&mut self, run: impl FnOnce(&mut T, &mut Context) -> R) -> R {
        let state = Some(self.states.take(self.lane()));
        let mut taken = StateGuard { state, context: self };
        let StateGuard { state, context } = &mut taken;
        run(state.get_or_insert_default(), context)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use panoply_core::{Backend, OpenOptions};

    use super::*;
    use crate::{EmulatedBackend, GpuBackend, GpuEngine};

    #[derive(Default)]
    struct Numbers(Vec<u32>);

    impl DeviceState for Numbers {}

    #[derive(Default)]
    struct Words(Vec<&'static str>);

    impl DeviceState for Words {}

    fn with_engine(test: impl FnOnce(&mut GpuEngine)) {
        let backend = match EmulatedBackend::new() {
            Ok(backend) => backend,
            Err(absence) => return println!("skipped: {absence}"),
        };
        let info = backend.discover().unwrap().remove(0);
        test(&mut backend.open_engine(&info, &OpenOptions::default()).unwrap());
    }

    fn numbers(context: &mut Context) -> Vec<u32> {
        context.with_state(|numbers: &mut Numbers, _| numbers.0.clone())
    }

    #[test]
    fn each_type_has_one_state() {
        with_engine(|engine| {
            let context = engine.context_mut();
            context.with_state(|numbers: &mut Numbers, context| {
                numbers.0.push(1);
                context.with_state(|words: &mut Words, _| words.0.push("one"));
            });
            context.with_state(|numbers: &mut Numbers, _| numbers.0.push(2));
            assert_eq!(numbers(context), [1, 2]);
            context.with_state(|words: &mut Words, _| assert_eq!(words.0, ["one"]));
        });
    }

    #[test]
    fn a_state_is_put_back_after_a_panic() {
        with_engine(|engine| {
            let context = engine.context_mut();
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                context.with_state(|numbers: &mut Numbers, _| {
                    numbers.0.push(1);
                    panic!("on purpose");
                })
            }));
            assert!(panicked.is_err());
            assert_eq!(numbers(context), [1]);
        });
    }

    #[test]
    fn a_nested_op_gets_an_empty_state_and_the_first_one_stays() {
        with_engine(|engine| {
            let context = engine.context_mut();
            context.with_state(|outer: &mut Numbers, context| {
                outer.0.push(1);
                context.with_state(|inner: &mut Numbers, _| {
                    assert!(inner.0.is_empty());
                    inner.0.push(2);
                });
            });
            assert_eq!(numbers(context), [1]);
        });
    }

    thread_local! {
        static DROPPED: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
    }

    /// Notes when its recordings are taken, and when it is dropped.
    #[derive(Default)]
    struct DropProbe<const FIRST: bool>;

    impl<const FIRST: bool> DeviceState for DropProbe<FIRST> {
        fn take_replays(&mut self) -> Vec<Replay> {
            DROPPED.with_borrow_mut(|dropped| dropped.push(if FIRST { "replays 1" } else { "replays 2" }));
            Vec::new()
        }
    }

    impl<const FIRST: bool> Drop for DropProbe<FIRST> {
        fn drop(&mut self) {
            DROPPED.with_borrow_mut(|dropped| dropped.push(if FIRST { "state 1" } else { "state 2" }));
        }
    }

    #[test]
    fn recordings_go_before_the_states_and_the_states_in_the_order_of_their_first_use() {
        let mut states = States::default();
        let (first, second) = (states.take::<DropProbe<true>>(0), states.take::<DropProbe<false>>(0));
        // Put back in another order than they were taken.
        assert!(states.put(second, 0).is_none());
        assert!(states.put(first, 0).is_none());
        drop(states);
        let dropped = DROPPED.take();
        assert_eq!(dropped, ["replays 1", "replays 2", "state 1", "state 2"]);
    }
}
