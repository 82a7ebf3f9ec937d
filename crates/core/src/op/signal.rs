//! The signal domain: sampled signals.

/// An op of the signal domain. There is none yet: no value of this type exists.
#[derive(Clone, Copy, Debug)]
pub enum SignalOp {}
