//! The video domain: pictures in motion.

/// An op of the video domain. There is none yet: no value of this type exists.
#[derive(Clone, Copy, Debug)]
pub enum VideoOp {}
