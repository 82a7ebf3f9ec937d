//! State that ops keep between their runs. The context has one state of each type, so it names no
//! op.
//!
//! A state is made by `Default` on its first use, and kept as long as the engine. An op takes it
//! out of the context while it uses both; it is put back even if the op panics. Meanwhile a nested
//! op of the same type gets an empty state, which is dropped when the first is put back.

use std::any::Any;

use crate::context::Context;

/// The states of one context, in the order of their first use.
#[derive(Default)]
pub(crate) struct States {
    all: Vec<Box<dyn Any + Send>>,
}

impl States {
    fn take<T: Any + Send + Default>(&mut self) -> Box<T> {
        let place = self.all.iter().position(|state| state.is::<T>());
        let state = place.map(|place| self.all.remove(place));
        state.and_then(|state| state.downcast().ok()).unwrap_or_default()
    }

    /// Puts a state back in place of the one that a nested op has left.
    fn put<T: Any + Send>(&mut self, state: Box<T>) {
        self.all.retain(|other| !other.is::<T>());
        self.all.push(state);
    }
}

/// A state taken out of its context. Puts it back when dropped.
struct StateGuard<'a, T: Any + Send> {
    state: Option<Box<T>>,
    context: &'a mut Context,
}

impl<T: Any + Send> Drop for StateGuard<'_, T> {
    fn drop(&mut self) {
        if let Some(state) = self.state.take() {
            self.context.states.put(state);
        }
    }
}

impl Context {
    /// Lends a state together with the context.
    pub(crate) fn with_state<T: Any + Send + Default, R>(&mut self, run: impl FnOnce(&mut T, &mut Context) -> R) -> R {
        let state = Some(self.states.take());
        let mut taken = StateGuard { state, context: self };
        let StateGuard { state, context } = &mut taken;
        run(state.get_or_insert_default(), context)
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use panoply_core::CryptoProvider;

    use super::*;
    use crate::memory::HostMemory;
    use crate::simd::Simd;
    use crate::team::Team;

    fn context() -> Context {
        Context::new(Team::single(), Simd::detect(), HostMemory::new(None), CryptoProvider::Fastest)
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
