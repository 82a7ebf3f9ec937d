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
    /// How often it was tried, the time that gave this outcome included.
    pub attempts: u32,
    /// Where a graph was cut, because a device lacks an op: one for each part that ran elsewhere.
    pub cuts: Vec<Cut>,
    /// What the router expected when it chose the device.
    pub predicted: Option<Prediction>,
    /// What else could have run it, where the caller asked for an explanation.
    pub alternatives: Vec<Alternative>,
}

/// When an op was expected to be finished, in three parts that add up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prediction {
    /// Until the device is free.
    pub queue: Duration,
    /// To bring the data there.
    pub transfer: Duration,
    /// To run it there.
    pub run: Duration,
}

impl Prediction {
    /// From now until the output is there.
    pub fn finish(&self) -> Duration {
        self.queue.saturating_add(self.transfer).saturating_add(self.run)
    }
}

/// One device as the router saw it when it chose.
#[derive(Clone, Debug, PartialEq)]
pub struct Alternative {
    /// The device.
    pub device: DeviceId,
    /// What was expected of it; `None` where it could not take the op at all.
    pub prediction: Option<Prediction>,
    /// Whether the expectation was learned from ops that ran there.
    pub measured: bool,
    /// What became of it.
    pub verdict: Verdict,
}

/// Why a device was taken, or was not.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// It was expected to finish first, or to serve the caller's wish best.
    Chosen,
    /// It was tried to learn how fast it is.
    Explored,
    /// Another one was better.
    Slower,
    /// It would have finished sooner, but the op costs it so much more than the chosen one that others would wait for it.
    Costlier,
    /// It is the same hardware as a device that was better.
    SameHardware(DeviceId),
    /// It must compile a kernel first, and another device serves meanwhile.
    Cold,
    /// The caller's wishes leave it out.
    NotAllowed,
    /// It takes no work at the moment, for this reason.
    Unfit(String),
    /// It cannot run this op, for this reason.
    Unsupported(String),
}

/// An op that ran elsewhere than it was first sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Fallback {
    /// Where it was sent first.
    pub from: DeviceId,
    /// Why that did not work.
    pub cause: Error,
}

/// A part of a graph that ran elsewhere than the rest.
#[derive(Clone, Debug, PartialEq)]
pub struct Cut {
    /// The device that runs the rest.
    pub from: DeviceId,
    /// The device that ran the part.
    pub to: DeviceId,
    /// The first op of the part that the device lacks, and why.
    pub reason: String,
    /// Bytes of the part's inputs and outputs.
    pub bytes: u64,
}
