//! The division of work in a block: the available forms of tiles, and the choice of one for given
//! sizes.

use std::sync::OnceLock;

use panoply_core::DType;
use panoply_kernels::c::{ATTENTION_GROUPS, ATTENTION_SPLIT, ATTENTION_TILES, Kernel, Unit};

use crate::driver::Properties;

/// Lanes of a warp that multiplies tiles.
const WARP_LANES: usize = 32;
/// Queries per group of warps, and keys per step.
const GROUP_ROWS: usize = 64;
const GROUP_KEYS: usize = 128;
/// Keys per tile of split numbers.
const SPLIT_KEYS: usize = 64;
/// The kernel aligns its block memory to this number of bytes.
const ALIGN_BYTES: usize = 1024;
/// Block memory that kernels declare themselves.
const DECLARED_BYTES: usize = 1024;
/// Up to this many blocks per multiprocessor, the number of blocks does not determine the total
/// time.
const BRIEF_BLOCKS: usize = 4;
/// Below this many elements, groups of warps do not pay.
const GROUP_DIM_MIN: usize = 33;

/// The sizes that determine the form.
pub(super) struct Sizes {
    pub(super) dtype: DType,
    pub(super) n_q: usize,
    pub(super) n_k: usize,
    /// Number of query heads in the whole batch.
    pub(super) heads: usize,
    pub(super) d: usize,
    pub(super) d_v: usize,
    /// Whether rows can be copied in words of 16 bytes.
    pub(super) is_wide: bool,
}

/// The tiling of a block for certain sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AttentionTiling {
    way: AttentionUnit,
    /// Elements of a query and of a value, rounded up.
    d: usize,
    d_v: usize,
    size_bytes: usize,
}

/// The unit that multiplies, with its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AttentionUnit {
    /// Groups of four warps that multiply together.
    Groups {
        /// Number of groups, each with 64 queries.
        groups: usize,
        stages: usize,
        /// Whether groups alternate in using the matrix unit.
        turns: bool,
    },
    /// Groups of four warps that multiply together, for f32 numbers split in two.
    Split { groups: usize, stages: usize },
    /// Single warps that multiply tiles.
    Tiles {
        warps: usize,
        /// Tiles of 16 queries per warp.
        row_tiles: usize,
        keys: usize,
        /// Blocks per multiprocessor.
        blocks: usize,
    },
}

const fn groups(groups: usize, stages: usize, turns: bool) -> AttentionUnit {
    AttentionUnit::Groups { groups, stages, turns }
}

const fn split(groups: usize, stages: usize) -> AttentionUnit {
    AttentionUnit::Split { groups, stages }
}

const fn tiles(warps: usize, row_tiles: usize, keys: usize, blocks: usize) -> AttentionUnit {
    AttentionUnit::Tiles { warps, row_tiles, keys, blocks }
}

/// The forms, by bytes per element and by the maximum number of elements of a query or value. The
/// first form that fits the device and leaves at most a fifth of its queries idle is chosen. The
/// other forms are for smaller devices and for measurements.
const FORMS: [(usize, usize, &[AttentionUnit]); 7] = [
    (
        2,
        32,
        &[
            tiles(4, 2, 64, 4),
            tiles(4, 2, 64, 3),
            tiles(4, 1, 64, 5),
            tiles(4, 1, 64, 4),
            tiles(2, 1, 32, 4),
            tiles(2, 2, 64, 6),
            tiles(4, 2, 32, 4),
            tiles(8, 1, 128, 2),
            tiles(4, 1, 128, 4),
        ],
    ),
    (
        2,
        64,
        &[
            groups(3, 2, true),
            groups(2, 2, true),
            groups(1, 2, false),
            tiles(4, 2, 64, 2),
            tiles(4, 1, 64, 3),
            tiles(2, 1, 32, 4),
            groups(3, 2, false),
            groups(2, 4, false),
            groups(3, 4, true),
        ],
    ),
    (
        2,
        128,
        &[
            groups(2, 2, true),
            groups(1, 2, false),
            tiles(8, 1, 64, 1),
            tiles(4, 1, 64, 2),
            tiles(4, 1, 32, 2),
            tiles(2, 1, 32, 3),
            groups(2, 2, false),
        ],
    ),
    (2, 256, &[tiles(8, 1, 32, 1), tiles(4, 1, 32, 1), tiles(4, 1, 16, 1), tiles(2, 1, 16, 2)]),
    (
        4,
        64,
        &[
            split(2, 2),
            split(1, 2),
            tiles(4, 2, 32, 2),
            tiles(4, 1, 32, 3),
            tiles(2, 1, 32, 4),
            tiles(8, 1, 64, 1),
            tiles(4, 2, 64, 1),
            tiles(8, 1, 32, 2),
        ],
    ),
    (4, 128, &[tiles(8, 1, 32, 1), tiles(4, 1, 32, 2), tiles(4, 1, 16, 2), tiles(2, 1, 16, 3), tiles(4, 2, 32, 1)]),
    (4, 256, &[tiles(4, 1, 16, 1), tiles(2, 1, 16, 2)]),
];

impl AttentionTiling {
    /// The form for these sizes; `None` if plain arithmetic must be used.
    pub(super) fn choose(sizes: &Sizes, properties: &Properties) -> Option<AttentionTiling> {
        if !properties.matrix_tiles {
            return None;
        }
        let (dim, size_bytes) = (sizes.d.max(sizes.d_v), sizes.dtype.size_bytes());
        let (.., ways) = FORMS.iter().find(|(bytes, most, _)| *bytes == size_bytes && dim <= *most)?;
        let form = |way: &AttentionUnit| AttentionTiling::new(*way, sizes, size_bytes);
        let mut fitting: Vec<AttentionTiling> =
            ways.iter().map(form).filter(|form| form.fits(sizes, properties)).collect();
        // If all keys fit one tile of a group, its warps wait for each other without other work.
        let is_short = sizes.n_k <= GROUP_KEYS && sizes.heads >= properties.multiprocessors as usize;
        if is_short && size_bytes == 2 && fitting.iter().any(|form| !form.is_grouped()) {
            fitting.retain(|form| !form.is_grouped());
        }
        // If there are few blocks with all keys in one tile, only the time of a single block
        // counts.
        let brief = |form: &AttentionTiling| {
            let blocks = sizes.heads * sizes.n_q.div_ceil(form.rows());
            form.has_all_keys(sizes) && blocks <= BRIEF_BLOCKS * properties.multiprocessors as usize
        };
        if sizes.n_q >= GROUP_ROWS && fitting.iter().any(brief) {
            fitting.retain(brief);
        }
        let asked = asked_form().and_then(|number| ways.get(number)).map(form);
        if let Some(asked) = asked.filter(|form| form.fits(sizes, properties)) {
            return Some(asked);
        }
        let all_rows = |form: &AttentionTiling| form.rows() * sizes.n_q.div_ceil(form.rows());
        let full = |form: &&AttentionTiling| all_rows(form) * 4 <= sizes.n_q * 5 && form.fills(sizes, properties);
        fitting.iter().find(full).or(fitting.iter().min_by_key(|form| all_rows(form))).copied()
    }

    fn new(way: AttentionUnit, sizes: &Sizes, size_bytes: usize) -> AttentionTiling {
        let step = match way {
            AttentionUnit::Groups { .. } | AttentionUnit::Split { .. } => 64,
            AttentionUnit::Tiles { .. } => 16,
        };
        // Steps of 32 above 32, so that fewer kernels are compiled.
        let padded = |dim: usize| match dim.next_multiple_of(step).max(step) {
            small @ 0..=32 => small,
            large => large.next_multiple_of(32),
        };
        AttentionTiling { way, d: padded(sizes.d), d_v: padded(sizes.d_v), size_bytes }
    }

    fn fits(&self, sizes: &Sizes, properties: &Properties) -> bool {
        let grouped = properties.warp_groups && sizes.is_wide && self.d <= 128 && self.d_v <= 128;
        let worth = sizes.d >= GROUP_DIM_MIN && sizes.d_v >= GROUP_DIM_MIN;
        let possible = !self.is_grouped() || (grouped && worth);
        possible && self.shared_bytes() + DECLARED_BYTES <= properties.shared_bytes_max as usize
    }

    /// Whether there are roughly as many blocks as multiprocessors, or blocks cannot be smaller
    /// anyway.
    fn fills(&self, sizes: &Sizes, properties: &Properties) -> bool {
        let blocks = sizes.heads * sizes.n_q.div_ceil(self.rows());
        blocks >= properties.multiprocessors as usize / 2 || self.rows() <= GROUP_ROWS
    }

    /// Whether a warp has all keys at once, in a tile made for that, which keys fill by more than
    /// half.
    fn has_all_keys(&self, sizes: &Sizes) -> bool {
        matches!(self.way, AttentionUnit::Tiles { keys: GROUP_KEYS, .. } if sizes.n_k <= GROUP_KEYS && sizes.n_k > GROUP_KEYS / 2)
    }

    /// Whether warps multiply together. Rows are then copied in words of 16 bytes.
    pub(super) fn is_grouped(&self) -> bool {
        !matches!(self.way, AttentionUnit::Tiles { .. })
    }

    /// The kernel's file and entry.
    pub(super) fn kernel(&self) -> (Unit, &'static str) {
        match self.way {
            AttentionUnit::Groups { .. } => (ATTENTION_GROUPS, "attention_groups"),
            AttentionUnit::Split { .. } => (ATTENTION_SPLIT, "attention_split"),
            AttentionUnit::Tiles { .. } => (ATTENTION_TILES, "attention_tiles"),
        }
    }

    /// Number of queries per block.
    pub(super) fn rows(&self) -> usize {
        match self.way {
            AttentionUnit::Groups { groups, .. } | AttentionUnit::Split { groups, .. } => groups * GROUP_ROWS,
            AttentionUnit::Tiles { warps, row_tiles, .. } => warps * row_tiles * 16,
        }
    }

    pub(super) fn threads(&self) -> usize {
        match self.way {
            // Four additional warps copy.
            AttentionUnit::Groups { groups, .. } | AttentionUnit::Split { groups, .. } => (groups + 1) * 4 * WARP_LANES,
            AttentionUnit::Tiles { warps, .. } => warps * WARP_LANES,
        }
    }

    pub(super) fn shared_bytes(&self) -> usize {
        let both = (self.d + self.d_v) * self.size_bytes;
        match self.way {
            AttentionUnit::Groups { stages, .. } => {
                ALIGN_BYTES + self.rows() * self.d * self.size_bytes + stages * GROUP_KEYS * both
            }
            // Each number has two parts.
            AttentionUnit::Split { stages, .. } => ALIGN_BYTES + stages * SPLIT_KEYS * 2 * both,
            // Rows are padded by 16 bytes.
            AttentionUnit::Tiles { keys, .. } => self.rows() * (self.d * self.size_bytes + 16) + 2 * keys * (both + 32),
        }
    }

    pub(super) fn parameters(&self, kernel: Kernel) -> Kernel {
        let kernel = kernel.integer("D", self.d as i64).integer("DV", self.d_v as i64);
        match self.way {
            AttentionUnit::Groups { groups, stages, turns } => kernel
                .integer("ROW_TILES", 1)
                .integer("KEYS", GROUP_KEYS as i64)
                .integer("GROUPS", groups as i64)
                .integer("STAGES", stages as i64)
                .flag("TURNS", turns),
            AttentionUnit::Split { groups, stages } => kernel
                .integer("ROW_TILES", 1)
                .integer("KEYS", SPLIT_KEYS as i64)
                .integer("GROUPS", groups as i64)
                .integer("STAGES", stages as i64),
            AttentionUnit::Tiles { warps, row_tiles, keys, blocks } => kernel
                .integer("WARPS", warps as i64)
                .integer("ROW_TILES", row_tiles as i64)
                .integer("KEYS", keys as i64)
                .integer("BLOCKS", blocks as i64),
        }
    }
}

/// The form number in the variable `PANOPLY_ATTENTION_FORM`, for measurements: an index into the
/// list for the size.
fn asked_form() -> Option<usize> {
    static ASKED: OnceLock<Option<usize>> = OnceLock::new();
    *ASKED.get_or_init(|| std::env::var("PANOPLY_ATTENTION_FORM").ok()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn properties(shared_bytes_max: u32, matrix_tiles: bool, warp_groups: bool) -> Properties {
        Properties { multiprocessors: 132, shared_bytes_max, matrix_tiles, warp_groups, ..Properties::plain() }
    }

    fn sizes(dtype: DType, n_q: usize, heads: usize, d: usize) -> Sizes {
        Sizes { dtype, n_q, n_k: n_q, heads, d, d_v: d, is_wide: true }
    }

    #[test]
    fn every_form_leaves_room_and_has_whole_tiles() {
        let large = properties(227 << 10, true, true);
        for (size_bytes, most, ways) in FORMS {
            let dtype = if size_bytes == 2 { DType::F16 } else { DType::F32 };
            for way in ways {
                let sizes = sizes(dtype, 4096, 64, most);
                let form = AttentionTiling::new(*way, &sizes, size_bytes);
                assert!(form.fits(&sizes, &large), "{form:?} takes {} bytes", form.shared_bytes());
                assert!(form.threads() <= 1024 && form.rows().is_multiple_of(16), "{form:?}");
            }
        }
    }

    #[test]
    fn sizes_get_the_form_that_they_fill() {
        let (hopper, ampere) = (properties(227 << 10, true, true), properties(99 << 10, true, false));
        let chosen =
            |sizes: Sizes, properties: &Properties| AttentionTiling::choose(&sizes, properties).map(|form| form.way);
        assert_eq!(chosen(sizes(DType::F16, 2048, 256, 64), &hopper), Some(groups(3, 2, true)));
        assert_eq!(chosen(sizes(DType::BF16, 8192, 32, 128), &hopper), Some(groups(2, 2, true)));
        assert_eq!(chosen(sizes(DType::F16, 128, 100, 64), &hopper), Some(groups(2, 2, true)));
        // Few keys use single warps, if there are enough heads.
        assert_eq!(chosen(sizes(DType::F16, 128, 768, 64), &hopper), Some(tiles(4, 2, 64, 2)));
        assert_eq!(chosen(sizes(DType::F16, 128, 3072, 32), &hopper), Some(tiles(4, 2, 64, 4)));
        // Few blocks use tiles with all keys.
        assert_eq!(chosen(sizes(DType::F16, 128, 384, 32), &hopper), Some(tiles(8, 1, 128, 2)));
        assert_eq!(chosen(sizes(DType::F16, 128, 12, 32), &hopper), Some(tiles(4, 1, 128, 4)));
        assert_eq!(chosen(sizes(DType::F16, 64, 12, 32), &hopper), Some(tiles(4, 1, 64, 5)));
        assert_eq!(chosen(sizes(DType::F16, 512, 12, 32), &hopper), Some(tiles(4, 1, 64, 5)));
        assert_eq!(chosen(sizes(DType::F32, 2048, 256, 64), &hopper), Some(split(2, 2)));
        assert_eq!(chosen(sizes(DType::F32, 2048, 256, 64), &ampere), Some(tiles(4, 2, 32, 2)));
        assert_eq!(chosen(sizes(DType::F16, 2048, 256, 64), &ampere), Some(tiles(4, 2, 64, 2)));
        // Unaligned rows, small ones and large ones use single warps or plain arithmetic.
        let crooked = Sizes { is_wide: false, ..sizes(DType::F16, 2048, 256, 64) };
        assert_eq!(chosen(crooked, &hopper), Some(tiles(4, 2, 64, 2)));
        assert!(matches!(chosen(sizes(DType::F16, 2048, 256, 16), &hopper), Some(AttentionUnit::Tiles { .. })));
        assert_eq!(chosen(sizes(DType::F16, 2048, 256, 300), &hopper), None);
        assert_eq!(chosen(sizes(DType::F16, 2048, 256, 64), &properties(64 << 10, false, false)), None);
        // One query gets the smallest block.
        assert_eq!(AttentionTiling::choose(&sizes(DType::F16, 1, 8, 64), &ampere).map(|form| form.rows()), Some(32));
    }
}
