//! Finds out how threads of a device can exchange values. OpenCL promises no way, so the extensions
//! of drivers are tried on the device before use. If a driver does not compile a way, or its lanes
//! are not in the threads' order, the next way is tried.

use panoply_kernels::c::{Dialect, Kernel, KernelTarget};

use crate::platform::Facts;

/// One way to exchange values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Warps {
    pub(crate) lanes: u32,
    /// Compiler options for `opencl.h`.
    pub(crate) option: &'static str,
    /// Whether warps have an instruction for products of tiles: the prelude's `tile16`.
    pub(crate) tiles: bool,
}

/// The compute capability from which NVIDIA's warps multiply tiles of 16-bit floats.
const CAPABILITY_OF_TILES: u64 = 8;

impl Warps {
    /// Threads without exchange, which every device supports.
    pub(crate) const ALONE: Warps = Warps { lanes: 1, option: "", tiles: false };

    /// The ways that a device may support, the best first.
    pub(crate) fn candidates(facts: &Facts) -> Vec<Warps> {
        let mut ways = Vec::new();
        if facts.nvidia_lanes == 32 {
            if facts.nvidia_capability >= CAPABILITY_OF_TILES {
                ways.push(Warps { lanes: 32, option: "-DPANOPLY_PTX -DPANOPLY_PTX_TILES", tiles: true });
            }
            ways.push(Warps { lanes: 32, option: "-DPANOPLY_PTX", tiles: false });
        }
        if facts.has("cl_intel_subgroups") && facts.intel_lanes.contains(&32) {
            ways.push(Warps { lanes: 32, option: "-DPANOPLY_INTEL", tiles: false });
        }
        let shuffles = ["cl_khr_subgroups", "cl_khr_subgroup_shuffle", "cl_khr_subgroup_ballot"];
        if shuffles.iter().all(|extension| facts.has(extension)) {
            let widths = if facts.amd_lanes > 0 { vec![facts.amd_lanes] } else { vec![32, 64] };
            let known = widths.into_iter().filter(|lanes| [32, 64].contains(lanes));
            let of = |lanes| Warps { lanes: lanes as u32, option: "-DPANOPLY_SUBGROUPS", tiles: false };
            ways.extend(known.map(of));
        }
        ways.push(Warps::ALONE);
        ways
    }

    /// The target for kernel texts.
    pub(crate) fn target(self) -> KernelTarget {
        KernelTarget { dialect: Dialect::OpenCl, warp_lanes: self.lanes }
    }
}

/// Number of threads of the trial block: several warps of any width.
pub(crate) const TRIAL_THREADS: usize = 256;
/// Number of words that each thread writes.
const TRIAL_WORDS: usize = 6;
/// Rows, columns and depth of a tile.
const TILE: usize = 16;

impl Warps {
    /// A kernel that uses every warp operation, and writes the results.
    pub(crate) fn trial(self) -> Kernel {
        let tiles = if self.tiles { TILES_TRIAL } else { "" };
        let text = format!(
            "KERNEL trial(GLOBAL u32 *out)
{{
    u32 t = thread_x();
    GLOBAL u32 *own = out + t * {TRIAL_WORDS};
    own[0] = shuffle_u32(t, 3);
    own[1] = shuffle_xor_u32(t, WARP / 2);
    own[2] = shuffle_up_u32(t, 1);
    own[3] = shuffle_down_u32(t, 1);
    lane_mask odd = ballot(t % 3 == 1);
    own[4] = count_lanes(odd & lanes_below());
    WARP_BARRIER();
    own[5] = count_lanes(match_byte(t / 5));
    GLOBAL u32 *behind = out + {TRIAL_THREADS} * {TRIAL_WORDS};
{tiles}}}
"
        );
        Kernel::generated("trial", text.into(), "trial")
    }

    /// The words that the trial must write.
    pub(crate) fn expected(self) -> Vec<u32> {
        let mut words = Vec::with_capacity(TRIAL_THREADS * TRIAL_WORDS + 2 * TILE * TILE);
        for t in 0..TRIAL_THREADS as u32 {
            let (first, lane) = (t / self.lanes * self.lanes, t % self.lanes);
            let others = first..first + self.lanes;
            words.push(first + 3 % self.lanes);
            words.push(first + (lane ^ (self.lanes / 2)));
            words.push(if lane > 0 { t - 1 } else { t });
            words.push(if lane + 1 < self.lanes { t + 1 } else { t });
            words.push(others.clone().filter(|other| *other < t && other % 3 == 1).count() as u32);
            words.push(others.filter(|other| other / 5 == t / 5).count() as u32);
        }
        if self.tiles {
            let product = |row: usize, col: usize| -> usize {
                (0..TILE).map(|d| ((3 * row + d) % 7) * ((col + 2 * d) % 5)).sum()
            };
            let places = || (0..TILE * TILE).map(|place| product(place / TILE, place % TILE) as u32);
            words.extend(places().chain(places()));
        }
        words
    }
}

/// Every warp multiplies the same tiles of small numbers, in both 16-bit float types; the first
/// warp writes the products after the other words.
const TILES_TRIAL: &str = "    SHARED ALIGNED(16) u16 tiles[4 * 16 * 24];
    u32 row = t / 16, d = t % 16;
    tiles[row * 24 + d] = f32_to_f16((f32)((3 * row + d) % 7));
    tiles[384 + row * 24 + d] = f32_to_f16((f32)((row + 2 * d) % 5));
    tiles[768 + row * 24 + d] = f32_to_bf16((f32)((3 * row + d) % 7));
    tiles[1152 + row * 24 + d] = f32_to_bf16((f32)((row + 2 * d) % 5));
    BARRIER();
    f32 sums[TILE16_SUMS], others[TILE16_SUMS];
    for (u32 i = 0; i < TILE16_SUMS; i++) sums[i] = others[i] = 0.0f;
    multiply_tile16_f16(sums, load_tile16(tiles, 24), load_tile16(tiles + 384, 24));
    multiply_tile16_bf16(others, load_tile16(tiles + 768, 24), load_tile16(tiles + 1152, 24));
    for (u32 i = 0; i < TILE16_SUMS && t < WARP; i++) {
        behind[tile16_row(i) * 16 + tile16_col(i)] = (u32)sums[i];
        behind[256 + tile16_row(i) * 16 + tile16_col(i)] = (u32)others[i];
    }
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_is_alone_sees_itself() {
        let words = Warps::ALONE.expected();
        assert_eq!(words[6 * 7..6 * 8], [7, 7, 7, 7, 0, 1]);
        let wide = Warps { lanes: 32, option: "", tiles: false }.expected();
        // Thread 33 of a warp that begins with 32.
        assert_eq!(wide[6 * 33..6 * 34], [35, 49, 32, 34, 0, 3]);
    }
}
