//! The failure of one message of an op.

/// Why one message of an op failed, without details: see [`panoply_core::Error::Rejected`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It is not authentic, or its padding or compressed data is invalid.
    Rejected,
    /// The output would exceed its limit.
    Limit,
    /// With it the output of all messages would exceed their limit.
    TotalLimit,
    /// No memory for this many bytes.
    Memory(usize),
}
