//! Schedules the rows into passes.

use super::shape::Shape;

/// Factor by which a list's capacity exceeds the expected candidates.
const LIST_RESERVE: usize = 4;
/// Groups of the sample per neighbour: with fewer, several near neighbours would fall into one
/// group, and the threshold would be too wide.
const GROUPS_PER_NEIGHBOUR: usize = 8;
/// Rows times neighbours at which scoring all rows costs as much as listing one candidate per
/// neighbour.
const ROWS_PER_CANDIDATE: usize = 2000;

/// The rows of a pass: `tiles` tiles, every `step`-th of all, without each `left_out`-th of those,
/// which earlier passes covered; 0 leaves none out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ScorePass {
    pub(super) tiles: usize,
    pub(super) step: usize,
    pub(super) left_out: usize,
}

/// The passes of a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Schedule {
    pub(super) sample: ScorePass,
    /// Whether every score of the sample is written, instead of only the nearest of each group.
    pub(super) all: bool,
    /// Keys that the sample writes per tile.
    pub(super) tile_keys: usize,
    /// The listing passes; empty if the sample covers everything and its scores are exact.
    pub(super) lists: Vec<ScorePass>,
}

impl Schedule {
    /// Every row is in one of the listing passes, or all rows are in the sample.
    pub(super) fn new(rows: usize, k: usize, shape: &Shape, capacity: usize, exact: bool) -> Schedule {
        let tiles = rows.div_ceil(shape.tile_rows);
        let all_tiles = capacity / shape.tile_rows;
        if exact && tiles <= all_tiles {
            let sample = ScorePass { tiles, step: 1, left_out: 0 };
            return Schedule { sample, all: true, tile_keys: shape.tile_rows, lists: Vec::new() };
        }
        // The rows of a warp are one group, or four.
        let parts = shape.tile_rows / shape.warp.1;
        let steps_max = tiles * parts * 4 / (k * GROUPS_PER_NEIGHBOUR);
        let all = steps_max == 0;
        let step = if all {
            tiles.div_ceil(all_tiles)
        } else {
            let balanced = (rows / (k * ROWS_PER_CANDIDATE)).isqrt();
            balanced.clamp(1, steps_max).max(tiles.div_ceil(capacity / parts))
        };
        let growths = growths(step, (capacity / (LIST_RESERVE * k)).max(2));
        let mut step = growths.iter().product();
        let sample = ScorePass { tiles: tiles.div_ceil(step), step, left_out: 0 };
        let tile_keys = match sample.tiles * parts * 4 <= capacity {
            _ if all => shape.tile_rows,
            true => parts * 4,
            false => parts,
        };
        let mut lists = Vec::new();
        for growth in &growths {
            let before = tiles.div_ceil(step);
            step /= growth;
            // The sample's rows are not in the lists yet.
            let (left_out, taken) = if lists.is_empty() { (0, 0) } else { (*growth, before) };
            lists.push(ScorePass { tiles: tiles.div_ceil(step) - taken, step, left_out });
        }
        if lists.is_empty() {
            lists.push(sample);
        }
        Schedule { sample, all, tile_keys, lists }
    }

    /// Number of lanes of a warp that share a group of the sample's rows.
    pub(super) fn shared_by(&self, shape: &Shape) -> usize {
        if self.tile_keys == shape.tile_rows / shape.warp.1 { 4 } else { 1 }
    }
}

/// A few factors of at most `most`, as even as possible, whose product is at least `whole` but not
/// much more.
fn growths(whole: usize, most: usize) -> Vec<usize> {
    let mut rounds = 0;
    while most.saturating_pow(rounds) < whole {
        rounds += 1;
    }
    let (mut left, mut factors) = (whole, Vec::new());
    while left > 1 {
        let factor = (2..=most).find(|factor| factor.saturating_pow(rounds) >= left).unwrap_or(most);
        factors.push(factor);
        left = left.div_ceil(factor);
        rounds = rounds.saturating_sub(1).max(1);
    }
    factors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::compute::search::many::{LIST_KEYS_MAX, LIST_KEYS_MIN};
    use crate::ops::compute::search::shape::tests::shape;

    /// The tiles of a pass, as the kernel numbers them.
    fn taken(pass: &ScorePass) -> impl Iterator<Item = usize> + '_ {
        let number = |index: usize| if pass.left_out > 0 { index + index / (pass.left_out - 1) + 1 } else { index };
        (0..pass.tiles).map(move |index| number(index) * pass.step)
    }

    #[test]
    fn every_tile_is_listed_once() {
        let shapes = [((16, 128), (16, 16)), ((64, 256), (16, 128)), ((256, 128), (16, 128)), ((128, 128), (64, 32))];
        for (tile, warp) in shapes {
            let shape = shape(tile, warp, false);
            for rows in [1, 130, 2047, 2049, 20_000, 128_000, 1_000_000, 10_000_000, 100_000_000] {
                for (k, exact) in [(1, true), (10, true), (10, false), (100, true), (2048, true), (2048, false)] {
                    let capacity = (k * 8_usize).next_power_of_two().clamp(LIST_KEYS_MIN, LIST_KEYS_MAX);
                    let schedule = Schedule::new(rows, k, &shape, capacity, exact);
                    let case = format!("{rows} rows, k = {k}, tiles of {tile:?}: {schedule:?}");
                    assert!(schedule.sample.tiles * schedule.tile_keys <= capacity, "{case}");
                    let tiles = rows.div_ceil(tile.1);
                    let mut seen: Vec<usize> = match schedule.lists.is_empty() {
                        true => taken(&schedule.sample).collect(),
                        false => schedule.lists.iter().flat_map(taken).collect(),
                    };
                    seen.sort_unstable();
                    assert!(seen.into_iter().eq(0..tiles), "{case}");
                    // There must be enough scores for a threshold, unless the lists hold every row.
                    let keys = schedule.sample.tiles * schedule.tile_keys;
                    assert!(keys >= 2 * k || rows <= capacity, "{case}");
                }
            }
        }
    }

    #[test]
    fn one_listing_pass_is_enough_for_millions_of_rows() {
        let shape = shape((256, 128), (16, 128), true);
        for (rows, step) in [(1_000_000, 7), (10_000_000, 39)] {
            let schedule = Schedule::new(rows, 10, &shape, LIST_KEYS_MIN, true);
            assert_eq!((schedule.sample.step, schedule.lists.len()), (step, 1), "{schedule:?}");
        }
    }

    #[test]
    fn growths_are_even_and_enough() {
        assert_eq!(growths(1, 8), [0_usize; 0]);
        assert_eq!(growths(489, 8), [8, 8, 8]);
        assert_eq!(growths(65, 8), [5, 4, 4]);
        assert_eq!(growths(9, 2), [2, 2, 2, 2]);
        for whole in 2..2000 {
            let product: usize = growths(whole, 8).iter().product();
            assert!(product >= whole && product < 2 * whole, "{whole}: {product}");
        }
    }
}
