//! A caller's wishes for one op. What they mean for the devices that exist is the router's to say.

use std::time::Instant;

use panoply_core::{DeviceId, Error, Result};

/// A caller's wishes for one op. Everything is optional; what is left out is the runtime's choice.
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
    /// Run it on this device where that is fit for work; of a graph, all the ops that the device runs.
    pub prefer: Option<DeviceId>,
    /// Run it on none of these.
    pub forbid: Vec<DeviceId>,
    /// The outcome is of no use after this time.
    pub deadline: Option<Instant>,
    /// What the choice of the device shall serve.
    pub goal: Goal,
    /// What to do when a device fails; `None` is the runtime's policy.
    pub fallback: Option<FallbackPolicy>,
    /// Whose turn it is in a queue.
    pub priority: Priority,
    /// Have the report name the alternatives.
    pub explain: bool,
    /// Bring the output to the host's memory as part of the op.
    pub to_host: bool,
}

/// What the choice of a device shall serve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Goal {
    /// This op finishes as early as possible.
    #[default]
    Soonest,
    /// As the default, and the op is not held back to be joined with others.
    Latency,
    /// As many ops as possible finish, however long each of them takes.
    Throughput,
    /// As little energy as possible is used.
    Energy,
}

/// What happens to an op when its device fails. The outcome says so, and a counter counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FallbackPolicy {
    /// The caller gets the error.
    None,
    /// It is tried again on the same device.
    Retry {
        /// How often, after the first time.
        times: u32,
    },
    /// It is tried on the other devices that can run it, each of them once.
    #[default]
    Alternate,
    /// It is run on the CPU.
    Cpu,
}

/// Whose turn it is in a device's queue. Of every eight ops that a worker takes from a queue with all three waiting, five
/// are urgent, two are normal and one is patient: nobody waits for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Priority {
    /// Before others.
    Urgent,
    /// As most are.
    #[default]
    Normal,
    /// When others leave room.
    Patient,
}

impl RunOptions {
    /// On this device and no other.
    pub fn require(device: DeviceId) -> RunOptions {
        RunOptions { device: Some(device), ..RunOptions::default() }
    }

    /// On this device where that is fit for work, otherwise wherever it finishes first.
    pub fn prefer(device: DeviceId) -> RunOptions {
        RunOptions { prefer: Some(device), ..RunOptions::default() }
    }

    /// On none of these devices.
    pub fn forbid(mut self, devices: impl IntoIterator<Item = DeviceId>) -> RunOptions {
        self.forbid.extend(devices);
        self
    }

    /// By this time, or not at all.
    pub fn deadline(mut self, deadline: Instant) -> RunOptions {
        self.deadline = Some(deadline);
        self
    }

    /// What the choice of the device shall serve.
    pub fn goal(mut self, goal: Goal) -> RunOptions {
        self.goal = goal;
        self
    }

    /// What to do when a device fails.
    pub fn fallback(mut self, policy: FallbackPolicy) -> RunOptions {
        self.fallback = Some(policy);
        self
    }

    /// Whose turn it is.
    pub fn priority(mut self, priority: Priority) -> RunOptions {
        self.priority = priority;
        self
    }

    /// With the alternatives in the report.
    pub fn explain(mut self) -> RunOptions {
        self.explain = true;
        self
    }

    /// With the output in the host's memory.
    pub fn to_host(mut self) -> RunOptions {
        self.to_host = true;
        self
    }
}

/// The wishes, in terms of the lanes that exist.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wishes {
    /// A bit for each lane that may be used.
    pub(crate) allowed: u64,
    pub(crate) prefer: Option<u8>,
    /// The caller insists on one device.
    pub(crate) pinned: bool,
    pub(crate) goal: Goal,
    pub(crate) policy: FallbackPolicy,
    pub(crate) priority: Priority,
    pub(crate) explain: bool,
    pub(crate) to_host: bool,
    pub(crate) deadline: Option<Instant>,
}

impl Wishes {
    /// No wishes.
    pub(crate) fn none(policy: FallbackPolicy) -> Wishes {
        Wishes {
            allowed: u64::MAX,
            prefer: None,
            pinned: false,
            goal: Goal::Soonest,
            policy,
            priority: Priority::Normal,
            explain: false,
            to_host: false,
            deadline: None,
        }
    }
}

impl RunOptions {
    /// Which two wishes cannot both be fulfilled, if there are two.
    pub(crate) fn check(&self) -> Result<()> {
        let against = |first: String, second: String| Err(Error::Contradiction { first, second });
        let forbidden = |device: &DeviceId| self.forbid.contains(device);
        if let Some(device) = self.device.filter(forbidden) {
            return against(format!("requiring {device}"), format!("forbidding {device}"));
        }
        if let Some(device) = self.prefer.filter(forbidden) {
            return against(format!("preferring {device}"), format!("forbidding {device}"));
        }
        match (self.device, self.prefer) {
            (Some(required), Some(preferred)) if required != preferred => {
                return against(format!("requiring {required}"), format!("preferring {preferred}"));
            }
            _ => {}
        }
        match (self.device, self.fallback) {
            (Some(device), Some(policy @ (FallbackPolicy::Alternate | FallbackPolicy::Cpu))) => {
                against(format!("requiring {device}"), format!("the fallback policy {policy:?}"))
            }
            _ => Ok(()),
        }
    }
}
