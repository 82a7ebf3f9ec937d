//! Which tile of a matrix product suits an adapter: measured once, then read from the user's cache.

use std::sync::Arc;

use panoply_kernels::cache::Cache;
use panoply_kernels::wgsl::Tile;

/// The tiles that are tried for large products, the most likely first.
pub const LARGE_TILES: [Tile; 4] = [
    Tile { rows: 2, columns: 2, double: false, unrolled: true },
    Tile { rows: 2, columns: 2, double: true, unrolled: true },
    Tile { rows: 2, columns: 1, double: true, unrolled: true },
    Tile { rows: 1, columns: 1, double: true, unrolled: true },
];

/// The tile of small products.
pub const SMALL_TILE: Tile = Tile { rows: 1, columns: 1, double: false, unrolled: true };

/// What is known about the adapter.
pub struct Tuning {
    /// Where it is kept, and under which key.
    kept: Option<(Arc<Cache>, String)>,
    large: Option<usize>,
}

impl Tuning {
    /// What an earlier run has found out.
    pub fn read(kept: Option<(Arc<Cache>, String)>) -> Tuning {
        let bytes = kept.as_ref().and_then(|(cache, key)| cache.read(key.as_bytes())).unwrap_or_default();
        let large = String::from_utf8(bytes).ok().and_then(|text| text.trim().parse().ok());
        Tuning { kept, large: large.filter(|number| *number < LARGE_TILES.len()) }
    }

    /// A tile that was decided on, not measured, and is not kept.
    pub fn fixed(number: usize) -> Tuning {
        Tuning { kept: None, large: Some(number) }
    }

    /// The tile for large products, once it was measured.
    pub fn large(&self) -> Option<Tile> {
        self.large.map(|number| LARGE_TILES[number])
    }

    /// Keeps what was measured, for this run and the next.
    pub fn keep(&mut self, number: usize) {
        self.large = Some(number);
        if let Some((cache, key)) = &self.kept {
            cache.write(key.as_bytes(), number.to_string().as_bytes());
        }
    }
}
