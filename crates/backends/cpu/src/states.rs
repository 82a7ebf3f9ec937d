//! State that ops keep between their runs: compiled expressions, workspaces, packed weights,
//! streams. The context has one state of each type, so it names no op. It knows only the memory,
//! the order of axes and the device that ops of any kind ask it for.
//!
//! 1. A state is made on its first use, and kept as long as the engine.
//! 2. An op borrows its state in place ([`States::get`], [`States::get_or`], [`States::pair`])
//!    beside the other fields of the context. A lookup compares the ids of at most a dozen types.
//! 3. An op that runs other ops takes its state out of the context while they run
//!    ([`Context::with_state`]). The state is put back even if an op panics. Meanwhile an op with a
//!    state of the same type gets an empty one, which is dropped when the first is put back.

use std::any::{Any, TypeId};

use crate::context::Context;

/// State that ops keep between their runs.
pub(crate) trait OpState: Any + Send {
    /// Drops the objects whose last handles are gone. Called often, so it must be quick.
    fn collect(&mut self) {}

    /// The bytes that count as memory of the engine.
    fn bytes(&self) -> usize {
        0
    }
}

/// The states of one context, in the order of their first use.
#[derive(Default)]
pub(crate) struct States {
    all: Vec<Slot>,
}

/// The place of the state of one type.
struct Slot {
    of: TypeId,
    /// `None` while the state is taken out.
    state: Option<Box<dyn OpState>>,
}

impl Slot {
    /// The state of the slot's type `T`, made if there is none.
    fn get_or<T: OpState>(&mut self, make: impl FnOnce() -> T) -> &mut T {
        let state: &mut dyn Any = &mut **self.state.get_or_insert_with(|| Box::new(make()));
        match state.downcast_mut() {
            Some(state) => state,
            None => unreachable!("a slot holds a state of its own type"),
        }
    }
}

impl States {
    /// The state of this type; a default one on first use.
    pub(crate) fn get<T: OpState + Default>(&mut self) -> &mut T {
        self.get_or(T::default)
    }

    /// The state of this type; on first use the one that `make` returns.
    pub(crate) fn get_or<T: OpState>(&mut self, make: impl FnOnce() -> T) -> &mut T {
        let place = self.place::<T>();
        self.all[place].get_or(make)
    }

    /// The states of two different types; default ones on first use.
    pub(crate) fn pair<A: OpState + Default, B: OpState + Default>(&mut self) -> (&mut A, &mut B) {
        let places = [self.place::<A>(), self.place::<B>()];
        match self.all.get_disjoint_mut(places) {
            Ok([first, second]) => (first.get_or(A::default), second.get_or(B::default)),
            Err(_) => unreachable!("each type has a place of its own"),
        }
    }

    /// Drops the objects in all states whose last handles are gone.
    pub(crate) fn collect(&mut self) {
        self.all.iter_mut().filter_map(|slot| slot.state.as_mut()).for_each(|state| state.collect());
    }

    /// The bytes of all states that count as memory of the engine.
    pub(crate) fn bytes(&self) -> usize {
        self.all.iter().filter_map(|slot| slot.state.as_ref()).map(|state| state.bytes()).sum()
    }

    /// The index of the slot of a type.
    fn place<T: OpState>(&mut self) -> usize {
        let of = TypeId::of::<T>();
        self.all.iter().position(|slot| slot.of == of).unwrap_or_else(|| {
            self.all.push(Slot { of, state: None });
            self.all.len() - 1
        })
    }

    fn take<T: OpState + Default>(&mut self) -> Box<T> {
        let place = self.place::<T>();
        let state = self.all[place].state.take();
        state.and_then(|state| (state as Box<dyn Any>).downcast().ok()).unwrap_or_default()
    }

    /// Puts a state back in place of the one that a nested op has left.
    fn put<T: OpState>(&mut self, state: Box<T>) {
        let place = self.place::<T>();
        self.all[place].state = Some(state);
    }
}

/// A state taken out of its context. Puts it back when dropped.
struct StateGuard<'a, T: OpState> {
    state: Option<Box<T>>,
    context: &'a mut Context,
}

impl<T: OpState> Drop for StateGuard<'_, T> {
    fn drop(&mut self) {
        if let Some(state) = self.state.take() {
            self.context.states.put(state);
        }
    }
}

impl Context {
    /// Lends a state together with the context.
    pub(crate) fn with_state<T: OpState + Default, R>(&mut self, run: impl FnOnce(&mut T, &mut Context) -> R) -> R {
        let state = Some(self.states.take());
        let mut taken = StateGuard { state, context: self };
        let StateGuard { state, context } = &mut taken;
        run(state.get_or_insert_default(), context)
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use panoply_core::{CryptoProvider, MemoryLimits};

    use super::*;
    use crate::memory::HostMemory;
    use crate::simd::Simd;
    use crate::team::Team;

    impl OpState for Vec<u32> {
        fn collect(&mut self) {
            self.retain(|number| *number > 1);
        }

        fn bytes(&self) -> usize {
            size_of_val(self.as_slice())
        }
    }

    impl OpState for String {}

    fn context() -> Context {
        Context::new(Team::single(), Simd::detect(), HostMemory::new(MemoryLimits::default()), CryptoProvider::Fastest)
    }

    fn numbers(context: &mut Context) -> Vec<u32> {
        context.with_state(|numbers: &mut Vec<u32>, _| numbers.clone())
    }

    #[test]
    fn each_type_has_one_state() {
        let mut context = context();
        context.with_state(|numbers: &mut Vec<u32>, context| {
            numbers.push(1);
            context.with_state(|word: &mut String, _| word.push('a'));
        });
        context.with_state(|numbers: &mut Vec<u32>, _| numbers.push(2));
        assert_eq!(numbers(&mut context), [1, 2]);
        context.with_state(|word: &mut String, _| assert_eq!(word, "a"));
    }

    #[test]
    fn states_are_borrowed_one_by_one_and_in_pairs() {
        let mut states = States::default();
        assert_eq!(*states.get_or(|| vec![7_u32]), [7]);
        let (word, numbers) = states.pair::<String, Vec<u32>>();
        word.push('a');
        numbers.push(8);
        assert_eq!(*states.get::<Vec<u32>>(), [7, 8]);
        assert_eq!(states.get::<String>(), "a");
    }

    #[test]
    fn all_states_are_collected_and_counted() {
        let mut states = States::default();
        *states.get::<Vec<u32>>() = vec![1, 2, 3];
        states.get::<String>().push('a');
        states.collect();
        assert_eq!(*states.get::<Vec<u32>>(), [2, 3]);
        assert_eq!(states.bytes(), 8);
    }

    #[test]
    fn a_state_is_put_back_after_a_panic() {
        let mut context = context();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            context.with_state(|numbers: &mut Vec<u32>, _| {
                numbers.push(1);
                panic!("on purpose");
            })
        }));
        assert!(panicked.is_err());
        assert_eq!(numbers(&mut context), [1]);
    }

    #[test]
    fn a_nested_op_gets_an_empty_state_and_the_first_one_stays() {
        let mut context = context();
        context.with_state(|outer: &mut Vec<u32>, context| {
            outer.push(1);
            context.with_state(|inner: &mut Vec<u32>, _| {
                assert!(inner.is_empty());
                inner.push(2);
            });
        });
        assert_eq!(numbers(&mut context), [1]);
    }
}
