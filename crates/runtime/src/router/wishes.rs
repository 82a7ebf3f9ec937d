//! What a caller's wishes mean for the devices that exist.

use std::time::Instant;

use panoply_core::{Error, Result};

use super::lanes::LaneList;
use crate::options::{FallbackPolicy, RunOptions, Wishes};

impl LaneList {
    /// What the options mean here, or which two of them cannot both be fulfilled.
    pub(crate) fn wishes(&self, options: &RunOptions, policy: FallbackPolicy, now: Instant) -> Result<Wishes> {
        let mut wishes = Wishes {
            goal: options.goal,
            policy: options.fallback.unwrap_or(policy),
            priority: options.priority,
            explain: options.explain,
            to_host: options.to_host,
            deadline: options.deadline,
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
        if let Some(device) = options.prefer {
            wishes.prefer = Some(self.mask_of(device)?.trailing_zeros() as u8);
        }
        if let Some(device) = options.device {
            wishes.allowed = self.mask_of(device)?;
            wishes.pinned = true;
        }
        options.check()?;
        // A pinned op has nowhere else to go; only trying again is left.
        if wishes.pinned && !matches!(wishes.policy, FallbackPolicy::Retry { .. }) {
            wishes.policy = FallbackPolicy::None;
        }
        Ok(wishes)
    }
}
