//! State that ops keep on a device between their runs: tuned tiles, compiled graphs, maps that ran
//! before. The context has one state of each type, so it names no op but Map: small maps that wait
//! for others lie in the recorder itself (see [`crate::joined`]), because everything that is
//! recorded must come after them.
//!
//! A state is made on its first use, and dropped with the engine. An op borrows it in place. An op
//! that needs the context meanwhile clones a part of its state, or takes the state's contents and
//! puts them back.

use std::any::{Any, TypeId};

/// The states of one context, in the order of their first use.
#[derive(Default)]
pub(crate) struct States {
    all: Vec<(TypeId, Box<dyn Any>)>,
}

impl States {
    /// The state of this type; a default one on first use.
    pub(crate) fn get<T: Default + 'static>(&mut self) -> &mut T {
        self.get_or(T::default)
    }

    /// The state of this type; on first use the one that `make` returns.
    pub(crate) fn get_or<T: 'static>(&mut self, make: impl FnOnce() -> T) -> &mut T {
        let of = TypeId::of::<T>();
        let place = self.all.iter().position(|(known, state)| *known == of && state.is::<T>());
        let place = place.unwrap_or_else(|| {
            self.all.push((of, Box::new(make())));
            self.all.len() - 1
        });
        match self.all[place].1.downcast_mut() {
            Some(state) => state,
            None => unreachable!("a state has the type under which it was found or made"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_type_has_one_state() {
        let mut states = States::default();
        states.get::<Vec<u32>>().push(1);
        states.get::<String>().push('a');
        states.get::<Vec<u32>>().push(2);
        assert_eq!(*states.get::<Vec<u32>>(), [1, 2]);
        assert_eq!(states.get_or(|| "b".to_owned()), "a");
        assert_eq!(*states.get_or(|| 7_u32), 7);
    }
}
