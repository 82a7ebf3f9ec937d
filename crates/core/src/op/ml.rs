//! The ml domain: models.

/// An op of the ml domain. There is none yet: no value of this type exists.
#[derive(Clone, Copy, Debug)]
pub enum MlOp {}
