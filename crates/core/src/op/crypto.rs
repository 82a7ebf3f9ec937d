//! The crypto domain: sealing, hashing, signing and compressing.

/// An op of the crypto domain. There is none yet: no value of this type exists.
#[derive(Clone, Copy, Debug)]
pub enum CryptoOp {}
