//! How threads of a device see each other's values. OpenCL promises nothing; what drivers have besides is tried on the device before
//! it is used: a driver that does not compile it, or whose lanes are not the threads' order, gets the next way.

use panoply_kernels::c::{Dialect, Kernel, Target};

use crate::platform::Facts;

/// One way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Warps {
    pub(crate) lanes: u32,
    /// What `opencl.h` is told.
    pub(crate) option: &'static str,
}

impl Warps {
    /// Each thread by itself, which every device can.
    pub(crate) const ALONE: Warps = Warps { lanes: 1, option: "" };

    /// The ways that a device may have, the best first.
    pub(crate) fn candidates(facts: &Facts) -> Vec<Warps> {
        let mut ways = Vec::new();
        if facts.nvidia_lanes == 32 {
            ways.push(Warps { lanes: 32, option: "-DPANOPLY_PTX" });
        }
        if facts.has("cl_intel_subgroups") && facts.intel_lanes.contains(&32) {
            ways.push(Warps { lanes: 32, option: "-DPANOPLY_INTEL" });
        }
        let shuffles = ["cl_khr_subgroups", "cl_khr_subgroup_shuffle", "cl_khr_subgroup_ballot"];
        if shuffles.iter().all(|extension| facts.has(extension)) {
            let widths = if facts.amd_lanes > 0 { vec![facts.amd_lanes] } else { vec![32, 64] };
            let known = widths.into_iter().filter(|lanes| [32, 64].contains(lanes));
            ways.extend(known.map(|lanes| Warps { lanes: lanes as u32, option: "-DPANOPLY_SUBGROUPS" }));
        }
        ways.push(Warps::ALONE);
        ways
    }

    /// What texts are written for.
    pub(crate) fn target(self) -> Target {
        Target { dialect: Dialect::OpenCl, warp_lanes: self.lanes }
    }
}

/// Threads of the block that is tried: several warps of any width.
pub(crate) const TRIAL_THREADS: usize = 256;
/// Words that each of them writes.
pub(crate) const TRIAL_WORDS: usize = 6;

/// A kernel that uses every word of a warp's, and writes what came of it.
pub(crate) fn trial() -> Kernel {
    let text = "KERNEL trial(GLOBAL u32 *out)
{
    u32 t = thread_x();
    GLOBAL u32 *own = out + t * 6;
    own[0] = shuffle_u32(t, 3);
    own[1] = shuffle_xor_u32(t, WARP / 2);
    own[2] = shuffle_up_u32(t, 1);
    own[3] = shuffle_down_u32(t, 1);
    lane_mask odd = ballot(t % 3 == 1);
    own[4] = count_lanes(odd & lanes_below());
    WARP_BARRIER();
    own[5] = count_lanes(match_byte(t / 5));
}
";
    Kernel::generated("trial", text.into(), "trial")
}

/// What it must write on a device with warps of so many lanes.
pub(crate) fn expected(lanes: u32) -> Vec<u32> {
    let mut words = Vec::with_capacity(TRIAL_THREADS * TRIAL_WORDS);
    for t in 0..TRIAL_THREADS as u32 {
        let (first, lane) = (t / lanes * lanes, t % lanes);
        let others = first..first + lanes;
        words.push(first + 3 % lanes);
        words.push(first + (lane ^ (lanes / 2)));
        words.push(if lane > 0 { t - 1 } else { t });
        words.push(if lane + 1 < lanes { t + 1 } else { t });
        words.push(others.clone().filter(|other| *other < t && other % 3 == 1).count() as u32);
        words.push(others.filter(|other| other / 5 == t / 5).count() as u32);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_is_alone_sees_itself() {
        let words = expected(1);
        assert_eq!(words[6 * 7..6 * 8], [7, 7, 7, 7, 0, 1]);
        let wide = expected(32);
        // Thread 33 of a warp that begins with 32.
        assert_eq!(wide[6 * 33..6 * 34], [35, 49, 32, 34, 0, 3]);
    }
}
