//! The fastest tiles of matrix products on a device: measured once, then read from the user's
//! cache.

use std::sync::Arc;
use std::time::{Duration, Instant};

use panoply_core::Result;
use panoply_kernels::cache::Cache;
use panoply_kernels::wgsl::{Tile, WideTile};

use crate::context::Context;
use crate::driver::Driver;

/// The tiles that are tried for large products, the most likely first.
pub const LARGE_TILES: [Tile; 4] = [
    Tile { rows: 2, columns: 2, double: false, unrolled: true },
    Tile { rows: 2, columns: 2, double: true, unrolled: true },
    Tile { rows: 2, columns: 1, double: true, unrolled: true },
    Tile { rows: 1, columns: 1, double: true, unrolled: true },
];

/// The tile of small products.
pub const SMALL_TILE: Tile = Tile { rows: 1, columns: 1, double: false, unrolled: true };

/// The tiles that are tried for large products on matrix units: 128 × 128 with one stage and two;
/// 128 × 256; 256 × 128; 128 × 256 with two stages of half the depth; 128 × 128 of twice the depth;
/// then 128 × 128 by twice as many subgroups, with two stages and with twice the depth. The last
/// four store loaded data to workgroup memory early: 128 × 128, 128 × 256 and 256 × 128, by four or
/// eight subgroups with 64 × 64 outputs each, the best ratio of multiplications to loads of
/// matrices; and 128 × 128 by eight subgroups with half as many outputs each.
pub const WIDE_TILES: [WideTile; 12] = [
    WideTile { subgroups: [2, 2], rows: 4, pairs: 2, depth: 32, double: false, early: false },
    WideTile { subgroups: [2, 2], rows: 4, pairs: 2, depth: 32, double: true, early: false },
    WideTile { subgroups: [2, 4], rows: 4, pairs: 2, depth: 32, double: false, early: false },
    WideTile { subgroups: [4, 2], rows: 4, pairs: 2, depth: 32, double: false, early: false },
    WideTile { subgroups: [2, 4], rows: 4, pairs: 2, depth: 16, double: true, early: false },
    WideTile { subgroups: [2, 2], rows: 4, pairs: 2, depth: 64, double: false, early: false },
    WideTile { subgroups: [2, 4], rows: 4, pairs: 1, depth: 32, double: true, early: false },
    WideTile { subgroups: [2, 4], rows: 4, pairs: 1, depth: 64, double: false, early: false },
    WideTile { subgroups: [2, 2], rows: 4, pairs: 2, depth: 32, double: true, early: true },
    WideTile { subgroups: [2, 4], rows: 4, pairs: 2, depth: 16, double: true, early: true },
    WideTile { subgroups: [4, 2], rows: 4, pairs: 2, depth: 16, double: true, early: true },
    WideTile { subgroups: [2, 4], rows: 4, pairs: 1, depth: 32, double: true, early: true },
];

/// The tile of searches on matrix units. The work after the sums takes longer than the sums: on an
/// H200 this tile takes 0.82 ms for work that takes other tiles 0.83 to 1.3 ms, and 0.38 ms for 16
/// queries, where larger tiles take up to 1.3 ms.
pub const SEARCH_TILE: WideTile =
    WideTile { subgroups: [2, 4], rows: 4, pairs: 1, depth: 16, double: false, early: false };

/// The tile of small products on matrix units.
pub const SMALL_WIDE_TILE: WideTile =
    WideTile { subgroups: [2, 2], rows: 2, pairs: 1, depth: 32, double: true, early: false };

/// The tile for tests that emulate matrix units: the cheapest to compile.
pub const TEST_WIDE_TILE: WideTile =
    WideTile { subgroups: [2, 1], rows: 1, pairs: 1, depth: 16, double: false, early: false };

/// Index in [`WIDE_TILES`] of a tile to use without measuring: for measurements of all tiles.
pub const WIDE_TILE_VARIABLE: &str = "PANOPLY_VULKAN_TILE";

/// Number of workgroups of a search for one query: for measurements.
pub const SEARCH_PARTS_VARIABLE: &str = "PANOPLY_VULKAN_PARTS";
/// Workgroups of a search for one query: two for each multiprocessor of a large device.
const SEARCH_PARTS: usize = 264;
/// More workgroups would only make more pairs to merge.
const SEARCH_PARTS_MAX: usize = 4096;

/// How long candidates run before they are timed, because clocks rise only under load; and how
/// often each is then timed. The shortest time counts, as other programs may use the device
/// meanwhile.
const TRIAL_WARM_UP: Duration = Duration::from_millis(300);
const TRIAL_ROUNDS: u32 = 10;

/// The candidate with the shortest time, or 0 if none can be timed. Each candidate runs at least
/// once, which compiles it; a candidate that fails is dropped.
pub fn fastest(mut candidates: Vec<usize>, mut time: impl FnMut(usize) -> Result<Duration>) -> usize {
    let started = Instant::now();
    candidates.retain(|number| time(*number).is_ok());
    while !candidates.is_empty() && started.elapsed() < TRIAL_WARM_UP {
        candidates.iter().for_each(|number| drop(time(*number)));
    }
    let mut best: Option<(Duration, usize)> = None;
    for _ in 0..TRIAL_ROUNDS {
        for number in &candidates {
            let Ok(time) = time(*number) else { continue };
            if best.is_none_or(|(shortest, _)| time < shortest) {
                best = Some((time, *number));
            }
        }
    }
    best.map_or(0, |(_, number)| number)
}

/// The tuned choices for a device.
pub struct Tuning {
    large: Choice,
    wide: Choice,
    /// Workgroups of a search for one query.
    pub search_parts: usize,
}

impl Tuning {
    /// Reads the results of an earlier run, under keys made from these names.
    pub fn read(cache: Option<&Arc<Cache>>, key: impl Fn(&str) -> String) -> Tuning {
        let choice = |name, count| Choice::read(cache.map(|cache| (Arc::clone(cache), key(name))), count);
        let mut wide = choice("wide-tiles-of-12-with-controls", WIDE_TILES.len());
        if let Some(number) = named(WIDE_TILE_VARIABLE).filter(|number| *number < WIDE_TILES.len()) {
            wide = Choice { kept: None, number: Some(number) };
        }
        let search_parts = named(SEARCH_PARTS_VARIABLE).unwrap_or(SEARCH_PARTS).clamp(1, SEARCH_PARTS_MAX);
        Tuning { large: choice("tiles", LARGE_TILES.len()), wide, search_parts }
    }

    /// Fixed tiles, which are not measured and not stored.
    pub fn fixed(number: usize) -> Tuning {
        let choice = |count: usize| Choice { kept: None, number: Some(number.min(count - 1)) };
        Tuning { large: choice(LARGE_TILES.len()), wide: choice(WIDE_TILES.len()), search_parts: SEARCH_PARTS }
    }

    /// The tile for large products, once it is measured.
    pub fn large(&self) -> Option<Tile> {
        self.large.number.map(|number| LARGE_TILES[number])
    }

    /// Keeps a measured tile for this run and stores it for the next.
    pub fn keep(&mut self, number: usize) {
        self.large.keep(number);
    }

    /// The tile for large products on matrix units, once it is measured.
    pub fn wide(&self) -> Option<WideTile> {
        self.wide.number.map(|number| WIDE_TILES[number])
    }

    /// Uses a tile without measuring and without storing it.
    pub fn assume_wide(&mut self, number: usize) {
        self.wide.number = Some(number);
    }

    /// Keeps and stores a measured tile for matrix units.
    pub fn keep_wide(&mut self, number: usize) {
        self.wide.keep(number);
    }
}

impl<D: Driver> Context<D> {
    /// The tuned choices for the device, read from the user's cache on first use.
    pub fn tuning(&mut self) -> &mut Tuning {
        let Context { states, cache, profile, .. } = self;
        states.get_or(|| Tuning::read(cache.as_ref(), |what| profile.cache_name(what)))
    }
}

/// The number in an environment variable.
fn named(variable: &str) -> Option<usize> {
    std::env::var(variable).ok()?.trim().parse().ok()
}

/// A choice of one of several tiles.
struct Choice {
    /// The cache that stores the choice, and the key in it.
    kept: Option<(Arc<Cache>, String)>,
    number: Option<usize>,
}

impl Choice {
    fn read(kept: Option<(Arc<Cache>, String)>, count: usize) -> Choice {
        let bytes = kept.as_ref().and_then(|(cache, key)| cache.read(key.as_bytes())).unwrap_or_default();
        let number = String::from_utf8(bytes).ok().and_then(|text| text.trim().parse().ok());
        Choice { kept, number: number.filter(|number| *number < count) }
    }

    fn keep(&mut self, number: usize) {
        self.number = Some(number);
        if let Some((cache, key)) = &self.kept {
            cache.write(key.as_bytes(), number.to_string().as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tile_on_matrix_units_is_shared_evenly_and_fits_large_devices() {
        for tile in WIDE_TILES.iter().chain([&SMALL_WIDE_TILE, &TEST_WIDE_TILE]) {
            assert!(tile.is_sound(), "{tile:?}");
            assert!(tile.workgroup_bytes() <= 48 << 10, "{tile:?}: {}", tile.workgroup_bytes());
        }
        assert!(!WideTile { depth: 24, ..WIDE_TILES[0] }.is_sound());
        assert!(!WideTile { subgroups: [3, 1], ..WIDE_TILES[0] }.is_sound());
    }
}
