//! Outcomes: an op's output with its receipt.

use std::time::Duration;

use crate::device::DeviceId;
use crate::error::Error;

/// An op's output and the report of how it came about.
#[derive(Clone, Debug)]
pub struct Outcome<T> {
    /// The output.
    pub output: T,
    /// Where and how it was computed.
    pub report: Report,
}

/// The receipt of one op.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The device that ran it.
    pub device: DeviceId,
    /// From the moment the op was accepted until a worker gave it to the engine.
    pub queued: Duration,
    /// Time the engine spent moving its data, where it tells.
    pub transferred: Option<Duration>,
    /// From the moment the engine got it until it was finished.
    pub ran: Duration,
    /// Time that the device itself worked on it, where the engine tells: without queues, launches and waits.
    pub device_time: Option<Duration>,
    /// How many ops ran together with it, itself included.
    pub batch_size: u32,
    /// Bytes that crossed between host and device for it.
    pub bytes_moved: u64,
    /// The fallback that was taken, if one was.
    pub fallback: Option<Fallback>,
}

/// An op that ran elsewhere than it was first sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Fallback {
    /// Where it was sent first.
    pub from: DeviceId,
    /// Why that did not work.
    pub cause: Error,
}
