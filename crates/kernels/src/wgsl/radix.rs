//! A radix sort with eight bits per pass, in `radix_count.wgsl` and `radix_scatter.wgsl`, for
//! adapters with subgroups. Stable, like the sort with four bits per pass in [`super::sort`].
//!
//! Buffers and parameters of each step:
//!
//! * `Count` writes the number of occurrences for each line, digit and block. Reads keys.
//!   Parameters: lines, axis, blocks, shift.
//! * `Scatter` writes keys and positions. Reads keys, counts (scanned) and, unless `first`,
//!   positions. Parameters: lines, axis, blocks, shift.
//!
//! A subgroup takes a run of adjacent keys, one per invocation at a time. Invocations with equal
//! digits find each other by voting on the digit's bits. The first of them counts for all, in the
//! subgroup's own counters, so a key's rank is the previous count plus the number of equal digits
//! before it. Two 16-bit counters share a word, digits below 128 in the lower half. Keys are first
//! put in order in workgroup memory, so that they are written in runs.

use super::template::Template;

/// Number of digit values of a pass.
pub const RADIX_DIGITS: usize = 256;

/// One step of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RadixKernel {
    /// Invocations of a subgroup: 8, 16 or 32, constant on the adapter.
    pub lanes: u8,
    /// The step.
    pub step: RadixStep,
}

/// The kind of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RadixStep {
    /// Counts the occurrences of each digit.
    Count,
    /// Moves keys to their sorted positions.
    Scatter {
        /// Whether positions are moved with the keys.
        positions: bool,
        /// Whether this is the first pass, in which positions are the keys' own indices.
        first: bool,
    },
}

impl RadixKernel {
    /// Whether subgroups of this size are supported.
    pub fn takes(lanes: u8) -> bool {
        matches!(lanes, 8 | 16 | 32)
    }

    /// Keys per invocation: fewer for many subgroups, because each has its own counters.
    fn keys(lanes: u8) -> usize {
        if lanes >= 16 { 16 } else { 8 }
    }

    /// Keys that one workgroup counts and scatters.
    pub fn block(lanes: u8) -> usize {
        256 * RadixKernel::keys(lanes)
    }

    /// Workgroup memory of a step in bytes.
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
