//! A caller's wishes for one op. The router decides what they mean for the existing devices.

use std::time::Instant;

use panoply_core::{DeviceId, Error, Result};

use crate::claims::Claim;

/// A caller's wishes for one op. Everything is optional; the runtime decides what is left out.
///
/// ```
/// # use panoply_runtime::{RunOptions, FallbackPolicy};
/// # use panoply_core::{Api, DeviceId};
/// let gpu = DeviceId { api: Api::CUDA, index: 0 };
/// let options = RunOptions::prefer(gpu).fallback(FallbackPolicy::Cpu).explain();
/// assert_eq!(options.prefer, Some(gpu));
/// ```
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// Run it on this device and no other.
    pub device: Option<DeviceId>,
    /// Run it on this device if the device is healthy. If the device cannot run all of a graph, it
    /// runs the parts that it can.
    pub prefer: Option<DeviceId>,
    /// Run it on none of these devices.
    pub forbid: Vec<DeviceId>,
    /// The outcome is useless after this time: waiting for it ends then, with an error.
    pub deadline: Option<Instant>,
    /// The goal by which the device is chosen.
    pub goal: Goal,
    /// The policy for a failing device. `None` means the runtime's policy.
    pub fallback: Option<FallbackPolicy>,
    /// Its priority in a queue.
    pub priority: Priority,
    /// List the alternatives in the report.
    pub explain: bool,
    /// Copy the output to the host's memory as part of the op.
    pub to_host: bool,
    /// Compare the answers to one in this many such ops with another device's, instead of the
    /// runtime's share; at least 1. The runtime must be set up to compare answers: see
    /// [`Verify`](crate::Verify).
    pub verify_every: Option<u32>,
    /// Run it on the device of this claim, and no other: see
    /// [`DeviceShare`](crate::DeviceShare::options).
    pub claim: Option<Claim>,
}

/// The goal by which a device is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Goal {
    /// This op finishes as early as possible.
    #[default]
    Soonest,
    /// As [`Goal::Soonest`], but the op is not held back to be joined with others.
    Latency,
    /// As many ops as possible finish, however long each of them takes.
    Throughput,
    /// The ops use as little energy as possible.
    Energy,
}

/// The handling of an op whose device fails. The outcome reports a fallback, and a counter counts
/// it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FallbackPolicy {
    /// The caller gets the error.
    None,
    /// The op is tried again on the same device.
    Retry {
        /// The number of retries after the first attempt.
        times: u32,
    },
    /// The op is tried on the other devices that can run it, once on each.
    #[default]
    Alternate,
    /// The op is run on the CPU.
    Cpu,
}

/// The priority of an op in a device's queue. Of every eight ops that a worker takes while all
/// three kinds wait, five are urgent, two are normal and one is patient, so no op waits for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Priority {
    /// Before others.
    Urgent,
    /// The usual priority.
    #[default]
    Normal,
    /// When others leave room. Refused while the runtime is degraded, if
    /// [`refuse_patient`](crate::HealthRules::refuse_patient) says so.
    Patient,
}

impl Priority {
    /// The number of turns after which the shares repeat.
    pub const TURNS: u32 = 8;

    /// The order in which waiting work is served at a turn, which counts up by one each time. While
    /// all three kinds wait, five of eight turns go to urgent work, two to normal and one to
    /// patient work.
    pub const fn order_at(turn: u32) -> [Priority; 3] {
        match turn % Priority::TURNS {
            0 => [Priority::Patient, Priority::Normal, Priority::Urgent],
            3 | 6 => [Priority::Normal, Priority::Patient, Priority::Urgent],
            _ => [Priority::Urgent, Priority::Normal, Priority::Patient],
        }
    }
}

impl RunOptions {
    /// Runs the op on this device and no other.
    pub fn require(device: DeviceId) -> RunOptions {
        RunOptions { device: Some(device), ..RunOptions::default() }
    }

    /// Runs the op on this device if the device is healthy, otherwise wherever it finishes first.
    pub fn prefer(device: DeviceId) -> RunOptions {
        RunOptions { prefer: Some(device), ..RunOptions::default() }
    }

    /// Excludes these devices.
    pub fn forbid(mut self, devices: impl IntoIterator<Item = DeviceId>) -> RunOptions {
        self.forbid.extend(devices);
        self
    }

    /// Sets the deadline. After it, the op fails.
    pub fn deadline(mut self, deadline: Instant) -> RunOptions {
        self.deadline = Some(deadline);
        self
    }

    /// Sets the goal by which the device is chosen.
    pub fn goal(mut self, goal: Goal) -> RunOptions {
        self.goal = goal;
        self
    }

    /// Sets what to do when a device fails.
    pub fn fallback(mut self, policy: FallbackPolicy) -> RunOptions {
        self.fallback = Some(policy);
        self
    }

    /// Sets the priority.
    pub fn priority(mut self, priority: Priority) -> RunOptions {
        self.priority = priority;
        self
    }

    /// Lists the alternatives in the report.
    pub fn explain(mut self) -> RunOptions {
        self.explain = true;
        self
    }

    /// Copies the output to the host's memory.
    pub fn to_host(mut self) -> RunOptions {
        self.to_host = true;
        self
    }

    /// Compares one in `every` answers with another device's.
    pub fn verify_every(mut self, every: u32) -> RunOptions {
        self.verify_every = Some(every);
        self
    }
}

/// The wishes in terms of the existing lanes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wishes {
    /// A bit for the slot of each lane that may be used.
    pub(crate) allowed: u64,
    /// How many lanes had been put into slots when `allowed` was computed from device names.
    pub(crate) lanes_known: u32,
    /// Whether the caller named no devices, so that later lanes may be used as well.
    pub(crate) any_lane: bool,
    /// A bit for the slot of each lane that may run the op a second time, to compare the answers:
    /// all lanes that are not forbidden.
    pub(crate) elsewhere: u64,
    /// Whether this is such a second run.
    pub(crate) is_second: bool,
    /// The id of the preferred lane.
    pub(crate) prefer: Option<u16>,
    /// Whether the caller insists on one device.
    pub(crate) pinned: bool,
    pub(crate) goal: Goal,
    pub(crate) policy: FallbackPolicy,
    pub(crate) priority: Priority,
    pub(crate) explain: bool,
    pub(crate) to_host: bool,
    pub(crate) deadline: Option<Instant>,
    /// Compare one in this many such ops, instead of the runtime's share.
    pub(crate) verify_every: Option<u32>,
}

impl Wishes {
    /// The default wishes.
    pub(crate) fn none(policy: FallbackPolicy) -> Wishes {
        Wishes {
            allowed: u64::MAX,
            lanes_known: u32::MAX,
            any_lane: true,
            elsewhere: u64::MAX,
            is_second: false,
            prefer: None,
            pinned: false,
            goal: Goal::Soonest,
            policy,
            priority: Priority::Normal,
            explain: false,
            to_host: false,
            deadline: None,
            verify_every: None,
        }
    }

    /// Whether the lane may be used that serves in this slot and was the `placed`-th to be put into
    /// one. A lane that got the slot later is another device than the caller named.
    pub(crate) fn allows(&self, slot: u8, placed: u32) -> bool {
        self.allowed & (1 << slot) != 0 && (self.any_lane || placed < self.lanes_known)
    }
}

impl RunOptions {
    /// Returns an error if two wishes contradict each other.
    #[doc(hidden)]
    pub fn check(&self) -> Result<()> {
        if self.verify_every == Some(0) {
            return Err(Error::invalid("verify_every", "at least 1", 0));
        }
        let against = |first: String, second: String| Err(Error::Contradiction { first, second });
        let forbidden = |device: &DeviceId| self.forbid.contains(device);
        if let Some(device) = self.device.filter(forbidden) {
            return against(format!("requiring {device}"), format!("forbidding {device}"));
        }
        if let Some(device) = self.prefer.filter(forbidden) {
            return against(format!("preferring {device}"), format!("forbidding {device}"));
        }
        if let Some(claimed) = self.claim.as_ref().map(Claim::device) {
            if forbidden(&claimed) {
                return against(format!("a claim of {claimed}"), format!("forbidding {claimed}"));
            }
            if let Some(other) = self.device.or(self.prefer).filter(|other| *other != claimed) {
                return against(format!("a claim of {claimed}"), format!("requiring or preferring {other}"));
            }
        }
        match (self.device, self.prefer) {
            (Some(required), Some(preferred)) if required != preferred => {
                return against(format!("requiring {required}"), format!("preferring {preferred}"));
            }
            _ => {}
        }
        match (self.device.or(self.claim.as_ref().map(Claim::device)), self.fallback) {
            (Some(device), Some(policy @ (FallbackPolicy::Alternate | FallbackPolicy::Cpu))) => {
                against(format!("requiring {device}"), format!("the fallback policy {policy:?}"))
            }
            _ => Ok(()),
        }
    }
}
