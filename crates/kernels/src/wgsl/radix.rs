//! A radix sort by eight bits at a time, in `radix_count.wgsl` and `radix_scatter.wgsl`, for adapters with subgroups. Stable, as the one by four bits in [`super::sort`].
//!
//! | step | writes | reads | parameters |
//! | --- | --- | --- | --- |
//! | `Count` | for each line, digit and block, how many | keys | lines, axis, blocks, shift |
//! | `Scatter` | keys, positions | keys, counts (scanned), positions unless `first` | lines, axis, blocks, shift |
//!
//! A subgroup takes a run of neighbouring keys, one for each invocation at a time. Invocations with equal digits find each
//! other by voting on the digit's bits; the first of them counts for all, in the subgroup's own counters, so that a key's
//! rank is what was counted before plus how many of its equals stand before it. Two counters of sixteen bits share a word,
//! digits below 128 the lower half. Keys are put in order in workgroup memory first, so that they leave it in runs.

use super::template::Template;

/// Digits of a pass.
pub const RADIX_DIGITS: usize = 256;

/// One step of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RadixKernel {
    /// Invocations of a subgroup: 8, 16 or 32, on this adapter always the same number.
    pub lanes: u8,
    /// What the step does.
    pub step: RadixStep,
}

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RadixStep {
    /// How often each digit occurs.
    Count,
    /// Keys to their places, with their positions where `positions`.
    Scatter {
        /// Positions are moved along.
        positions: bool,
        /// Positions are those of the keys themselves: nothing was moved before.
        first: bool,
    },
}

impl RadixKernel {
    /// Whether subgroups of so many invocations can do it.
    pub fn takes(lanes: u8) -> bool {
        matches!(lanes, 8 | 16 | 32)
    }

    /// Keys that each invocation takes: fewer where many subgroups have counters of their own.
    fn keys(lanes: u8) -> usize {
        if lanes >= 16 { 16 } else { 8 }
    }

    /// Keys that one workgroup counts and scatters.
    pub fn block(lanes: u8) -> usize {
        256 * RadixKernel::keys(lanes)
    }

    /// Workgroup memory that a step takes, in bytes.
    pub fn workgroup_bytes(lanes: u8) -> u32 {
        let subgroups = 256 / u32::from(lanes);
        4 * (RadixKernel::block(lanes) as u32 + 128 * subgroups + 2 * 256 + subgroups)
    }

    pub(super) fn source(&self) -> String {
        let template = match self.step {
            RadixStep::Count => Template::new(include_str!("radix_count.wgsl")),
            RadixStep::Scatter { positions, first } => {
                let template = Template::new(include_str!("radix_scatter.wgsl"));
                template.flag("POSITIONS", positions).flag("FIRST", first)
            }
        };
        let (lanes, keys) = (usize::from(self.lanes), RadixKernel::keys(self.lanes));
        let template = template.set("KEYS", keys).set("BLOCK", RadixKernel::block(self.lanes));
        template.set("RUN", lanes * keys).set("SUBGROUPS", 256 / lanes).set("LANES", lanes).text()
    }
}
