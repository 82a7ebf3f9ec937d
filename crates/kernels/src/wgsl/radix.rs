//! A radix sort by eight bits at a time, for adapters with subgroups. Stable, as the one by four bits in [`super::sort`].
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

use super::prelude::{buffers, fill, params};
use super::sort::scatter_buffers;

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
        let mut text = params(&["lines", "axis", "blocks", "shift"]);
        text.push_str(&match self.step {
            RadixStep::Count => self.count(),
            RadixStep::Scatter { positions, first } => self.scatter(positions, first),
        });
        let lanes = usize::from(self.lanes);
        let sizes = [
            ("$BLOCK", RadixKernel::block(self.lanes)),
            ("$RUN", lanes * RadixKernel::keys(self.lanes)),
            ("$SUBGROUPS", 256 / lanes),
            ("$LANES", lanes),
        ];
        let sizes = sizes.map(|(name, size)| (name, size.to_string()));
        fill(&text, &sizes.each_ref().map(|(name, size)| (*name, size.as_str())))
    }

    fn count(&self) -> String {
        let mut text = buffers(&[("counts", "u32")], &[("keys", "u32")]);
        text.push_str("var<workgroup> found: array<atomic<u32>, 256>;\n");
        text.push_str(&alike());
        text.push_str(ENTRY);
        text.push_str("  atomicStore(&found[lid], 0u);\n  workgroupBarrier();\n");
        text.push_str(&self.each("  let key$J = keys[min(base + own + $J * $LANESu, last)];\n"));
        text.push_str(&self.each(COUNT));
        text.push_str(COUNT_END);
        text
    }

    fn scatter(&self, positions: bool, first: bool) -> String {
        let mut text = scatter_buffers(positions, first);
        text.push_str(SCATTER_MEMORY);
        text.push_str(&alike());
        text.push_str(ENTRY);
        text.push_str("  for (var t = lid; t < $SUBGROUPSu * 128u; t = t + 256u) { atomicStore(&counters[t], 0u); }\n");
        text.push_str(&self.each("  let key$J = keys[min(base + own + $J * $LANESu, last)];\n"));
        text.push_str("  workgroupBarrier();\n");
        text.push_str(&self.each(RANK));
        text.push_str(PLACES);
        text.push_str(&self.each(PLACE));
        text.push_str(&self.each("  moved[place$J] = key$J;\n"));
        text.push_str("  workgroupBarrier();\n");
        text.push_str(&self.each(STORE));
        if positions {
            text.push_str("  workgroupBarrier();\n");
            text.push_str(&self.each(if first {
                "  moved[place$J] = start + own + $J * $LANESu;\n"
            } else {
                "  moved[place$J] = positions[min(base + own + $J * $LANESu, last)];\n"
            }));
            text.push_str("  workgroupBarrier();\n");
            text.push_str(
                &self.each("  if (lid + $J * 256u < count) { out_positions[target$J] = moved[lid + $J * 256u]; }\n"),
            );
        }
        text.push_str("}\n");
        text
    }

    /// The text once for each key of an invocation; `$J *` is its number as a factor.
    fn each(&self, text: &str) -> String {
        let one = |item: usize| text.replace("$J *", &format!("{item}u *")).replace("$J", &item.to_string());
        (0..RadixKernel::keys(self.lanes)).map(one).collect()
    }
}

/// `fn alike(digit)`: the invocations of the subgroup whose digit is the same, a bit for each.
fn alike() -> String {
    let vote = "  { let one = (digit & $Bu) != 0u; let ones = subgroupBallot(one).x; same = same & select(~ones, ones, one); }\n";
    let votes: String = (0..8).map(|bit| vote.replace("$B", &(1 << bit).to_string())).collect();
    format!("fn alike(digit: u32) -> u32 {{\n  var same = 0xffffffffu;\n{votes}  return same & ALL;\n}}\n")
        .replace("ALL", "(0xffffffffu >> (32u - $LANESu))")
}

/// `base`: the block's first key; `own`: this invocation's first, counted from there; `count`: the block's keys.
const ENTRY: &str = "
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(subgroup_id) subgroup: u32, @builtin(subgroup_invocation_id) lane: u32) {
  let group = wid.y * nwg.x + wid.x;
  let lid = subgroup * $LANESu + lane;
  if (group >= p.lines * p.blocks) { return; }
  let block = group % p.blocks;
  let line = group / p.blocks;
  let start = block * $BLOCKu;
  let base = line * p.axis + start;
  let last = line * p.axis + p.axis - 1u;
  let count = min(p.axis - start, $BLOCKu);
  let own = subgroup * $RUNu + lane;
  let before = (1u << lane) - 1u;
";

/// Keys behind the end have a digit like any other, and are not counted.
const COUNT: &str = "
  {
    let digit = (key$J >> p.shift) & 255u;
    let same = alike(digit) & subgroupBallot(own + $J * $LANESu < count).x;
    if (own + $J * $LANESu < count && lane == firstTrailingBit(same)) { atomicAdd(&found[digit], countOneBits(same)); }
  }
";

const COUNT_END: &str = "
  workgroupBarrier();
  counts[(line * 256u + lid) * p.blocks + block] = atomicLoad(&found[lid]);
}
";

const SCATTER_MEMORY: &str = "
var<workgroup> moved: array<u32, $BLOCK>;
var<workgroup> counters: array<atomic<u32>, $SUBGROUPS * 128>;
// Where each digit begins in the block, and how far from there it is to its place in the line.
var<workgroup> begins: array<u32, 256>;
var<workgroup> jumps: array<u32, 256>;
var<workgroup> sums: array<u32, $SUBGROUPS>;
";

/// Keys behind the end count as the largest digit; they come last and are never stored.
const RANK: &str = "
  let digit$J = select(255u, (key$J >> p.shift) & 255u, own + $J * $LANESu < count);
  let half$J = (digit$J >> 7u) * 16u;
  let word$J = subgroup * 128u + (digit$J & 127u);
  let same$J = alike(digit$J);
  let first$J = firstTrailingBit(same$J);
  var counted$J = 0u;
  if (lane == first$J) { counted$J = atomicAdd(&counters[word$J], countOneBits(same$J) << half$J); }
  let rank$J = ((subgroupShuffle(counted$J, first$J) >> half$J) & 0xffffu) + countOneBits(same$J & before);
";

/// Every subgroup's counters become what the subgroups before it have counted; then the digits' beginnings are found.
const PLACES: &str = "
  workgroupBarrier();
  var total = 0u;
  if (lid < 128u) {
    for (var s = 0u; s < $SUBGROUPSu; s = s + 1u) {
      let here = atomicLoad(&counters[s * 128u + lid]);
      atomicStore(&counters[s * 128u + lid], total);
      total = total + here;
    }
  }
  var begin = subgroupExclusiveAdd(total);
  if (lane == $LANESu - 1u) { sums[subgroup] = begin + total; }
  workgroupBarrier();
  var low_total = 0u;
  for (var s = 0u; s < $SUBGROUPSu; s = s + 1u) {
    if (s < subgroup) { begin = begin + sums[s]; }
    low_total = low_total + sums[s];
  }
  low_total = low_total & 0xffffu;
  if (lid < 128u) {
    let low = begin & 0xffffu;
    let high = (begin >> 16u) + low_total;
    begins[lid] = low;
    begins[lid + 128u] = high;
    jumps[lid] = line * p.axis + starts[(line * 256u + lid) * p.blocks + block] - low;
    jumps[lid + 128u] = line * p.axis + starts[(line * 256u + lid + 128u) * p.blocks + block] - high;
  }
  workgroupBarrier();
";

const PLACE: &str = "
  let place$J = begins[digit$J] + ((atomicLoad(&counters[word$J]) >> half$J) & 0xffffu) + rank$J;
";

const STORE: &str = "
  var target$J = 0u;
  if (lid + $J * 256u < count) {
    let key = moved[lid + $J * 256u];
    target$J = jumps[(key >> p.shift) & 255u] + lid + $J * 256u;
    out_keys[target$J] = key;
  }
";
