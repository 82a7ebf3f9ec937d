//! The recipes of device objects: the ops that make them again after their device was lost.

use super::{Describe, Op};
use crate::error::{Error, Result};
use crate::object::{Object, ObjectTable, Recipe};
use crate::tensor::Location;

impl Object {
    /// The op that makes the state again, if there is one.
    pub fn recipe(&self) -> Option<&Op> {
        self.any_recipe()?.downcast_ref()
    }
}

impl<T> ObjectTable<T> {
    /// Stores a state and returns its first handle. `recipe` is the op that makes the state again
    /// after the device was lost. It must be repeatable, and all its inputs must be on the host,
    /// since inputs on the device are lost with it.
    pub fn insert(&mut self, kind: &'static str, state: T, recipe: Option<&Op>) -> Result<Object> {
        if let Some(op) = recipe {
            let mut away = None;
            op.for_each_part(&mut |part| away = away.or(Some(part.location()).filter(|at| *at != Location::Host)));
            if let Some(at) = away {
                return Err(Error::invalid("recipe of a device object", "inputs on the host", at));
            }
            if !op.is_repeatable() {
                return Err(Error::invalid("recipe of a device object", "an op that may be repeated", op.name()));
            }
        }
        Ok(self.insert_with(kind, state, recipe.map(|op| Box::new(op.clone()) as Recipe)))
    }
}
