//! State that ops keep on a device between their runs. The context has one state of each type, so
//! it names no op. A state is made on its first use, and dropped with the engine.

use std::any::{Any, TypeId};

/// The states of one context, in the order of their first use.
#[derive(Default)]
pub(crate) struct States {
    all: Vec<(TypeId, Box<dyn Any>)>,
}

impl States {
    /// The state of this type; a default one on first use.
    pub(crate) fn get<T: Default + 'static>(&mut self) -> &mut T {
        let of = TypeId::of::<T>();
        let place = self.all.iter().position(|(known, state)| *known == of && state.is::<T>());
        let place = place.unwrap_or_else(|| {
            self.all.push((of, Box::<T>::default()));
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
        assert_eq!(states.get::<String>(), "a");
    }
}
