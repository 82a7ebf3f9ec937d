//! Translates a caller's wishes to the existing devices.

use std::time::Instant;

use panoply_core::{Error, Result};

use super::lanes::LaneList;
use crate::claims::Claim;
use crate::options::{FallbackPolicy, RunOptions, Wishes};

impl LaneList {
    /// The options in terms of the lanes, or an error if two of them contradict each other.
    pub(crate) fn wishes(&self, options: &RunOptions, policy: FallbackPolicy, now: Instant) -> Result<Wishes> {
        let mut wishes = Wishes {
            goal: options.goal,
            policy: options.fallback.unwrap_or(policy),
            priority: options.priority,
            explain: options.explain,
            to_host: options.to_host,
            deadline: options.deadline,
            verify_every: options.verify_every,
            lanes_known: self.placed_count(),
            any_lane: options.device.is_none() && options.claim.is_none() && options.forbid.is_empty(),
            ..Wishes::none(policy)
        };
        if let Some(deadline) = options.deadline
            && now > deadline
        {
            return Err(Error::DeadlineExceeded { late_by: now - deadline });
        }
        for device in &options.forbid {
            wishes.allowed &= !self.mask_of(*device)?;
        }
        wishes.allowed &= !self.claimed_from(options.claim.as_ref());
        wishes.elsewhere = wishes.allowed;
        if let Some(device) = options.prefer {
            wishes.prefer = Some(self.lane_of(device)?.id);
        }
        if let Some(device) = options.device.or(options.claim.as_ref().map(Claim::device)) {
            let own = self.mask_of(device)?;
            if options.forbid.is_empty() && wishes.allowed & own == 0 {
                let reason = "another part of the program has claimed it (`Runtime::claim`)".to_owned();
                return Err(Error::DeviceUnavailable { device, reason });
            }
            wishes.allowed = own;
            wishes.pinned = true;
        }
        options.check()?;
        // A pinned op has no other device to go to; only retrying is left.
        if wishes.pinned && !matches!(wishes.policy, FallbackPolicy::Retry { .. }) {
            wishes.policy = FallbackPolicy::None;
        }
        Ok(wishes)
    }
}
