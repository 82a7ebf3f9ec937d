//! The network domain: packets.

/// An op of the network domain. There is none yet: no value of this type exists.
#[derive(Clone, Copy, Debug)]
pub enum NetworkOp {}
