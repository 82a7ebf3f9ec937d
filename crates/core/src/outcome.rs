//! Outcomes: the output of an op with the report of its run.

use std::time::Duration;

use crate::device::DeviceId;
use crate::error::Error;

/// The output of an op and the report of its run.
#[derive(Clone, Debug)]
pub struct Outcome<T> {
    /// The output.
    pub output: T,
    /// Where and how the output was computed.
    pub report: Report,
}

/// The report of one op.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The device that ran the op.
    pub device: DeviceId,
    /// Time from accepting the op until a worker passed it to the engine.
    pub queued: Duration,
    /// Time that the engine spent moving data, if the engine measures it.
    pub transferred: Option<Duration>,
    /// Time from the engine's start of the op until the op was finished.
    pub ran: Duration,
    /// Time that the device itself worked on the op, if the engine measures it. Queueing, launches
    /// and waits are not included.
    pub device_time: Option<Duration>,
    /// Number of ops in the same batch, including this one.
    pub batch_size: u32,
    /// Bytes moved between host and device for this op.
    pub bytes_moved: u64,
    /// The fallback that was taken, if any.
    pub fallback: Option<Fallback>,
    /// Number of attempts, including the one that gave this outcome.
    pub attempts: u32,
    /// The parts of a graph that ran on another device because the first device lacks an op.
    pub cuts: Vec<Cut>,
    /// The router's estimate when it chose the device.
    pub predicted: Option<Prediction>,
    /// The other candidates, if the caller asked for an explanation.
    pub alternatives: Vec<Alternative>,
    /// The result of comparing the answer with another device's. `None` if the op was not selected
    /// for verification.
    pub verification: Option<Verification>,
}

/// The result of comparing the answer of one op with the answers of other devices.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verification {
    /// Another device gave the same answer, within the tolerance of the op.
    Agreed {
        /// The other device.
        with: DeviceId,
    },
    /// The first device's answer was wrong. This outcome holds the right answer.
    Overruled {
        /// The device whose answer was wrong.
        wrong: DeviceId,
        /// The device that decided: the processor, or the device that made a majority.
        by: DeviceId,
    },
    /// The op was selected for verification, but no comparison was possible. This outcome is the
    /// device's own answer.
    Skipped {
        /// Why no comparison was possible.
        reason: String,
    },
}

impl Verification {
    /// Whether a second device confirmed the outcome.
    pub fn is_verified(&self) -> bool {
        !matches!(self, Verification::Skipped { .. })
    }
}

/// The estimated time of an op, in three parts that add up to the whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prediction {
    /// Time until the device is free.
    pub queue: Duration,
    /// Time to move the data to the device.
    pub transfer: Duration,
    /// Time to run the op on the device.
    pub run: Duration,
}

impl Prediction {
    /// Time from now until the output is ready.
    pub fn finish(&self) -> Duration {
        self.queue.saturating_add(self.transfer).saturating_add(self.run)
    }
}

/// One device as the router rated it.
#[derive(Clone, Debug, PartialEq)]
pub struct Alternative {
    /// The device.
    pub device: DeviceId,
    /// The estimate for this device. `None` if the device could not take the op at all.
    pub prediction: Option<Prediction>,
    /// Whether the estimate was learned from ops that ran on this device.
    pub measured: bool,
    /// The router's decision.
    pub verdict: Verdict,
}

/// Why a device was chosen or not.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// The device was expected to finish first, or to meet the caller's preference best.
    Chosen,
    /// The device was tried in order to learn its speed.
    Explored,
    /// Another device was better.
    Slower,
    /// The device would have finished sooner. But the op costs this device much more than the
    /// chosen one, and other ops would wait for it.
    Costlier,
    /// The device is the same hardware as this better device.
    SameHardware(DeviceId),
    /// The device must compile a kernel first. Another device serves meanwhile.
    Cold,
    /// The caller's options exclude the device.
    NotAllowed,
    /// The device accepts no work now, for this reason.
    Unfit(String),
    /// The device cannot run this op, for this reason.
    Unsupported(String),
}

/// The fallback of an op to another device than its first.
#[derive(Clone, Debug, PartialEq)]
pub struct Fallback {
    /// The first device.
    pub from: DeviceId,
    /// Why the op failed there.
    pub cause: Error,
}

/// A part of a graph that ran on another device than the rest.
#[derive(Clone, Debug, PartialEq)]
pub struct Cut {
    /// The device that ran the rest.
    pub from: DeviceId,
    /// The device that ran the part.
    pub to: DeviceId,
    /// The first op of the part that the device lacks, and why.
    pub reason: String,
    /// Bytes of the inputs and outputs of the part.
    pub bytes: u64,
}
