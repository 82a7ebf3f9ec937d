//! Which tile of a matrix product suits an adapter: measured once, then read from the user's cache.

use std::path::PathBuf;

use panoply_kernels::wgsl::Tile;

/// The tiles that are tried for large products, the most likely first.
pub(crate) const LARGE_TILES: [Tile; 4] = [
    Tile { rows: 2, columns: 2, double: false, unrolled: true },
    Tile { rows: 2, columns: 2, double: true, unrolled: true },
    Tile { rows: 2, columns: 1, double: true, unrolled: true },
    Tile { rows: 1, columns: 1, double: true, unrolled: true },
];

/// The tile of small products.
pub(crate) const SMALL_TILE: Tile = Tile { rows: 1, columns: 1, double: false, unrolled: true };

/// What is known about the adapter.
pub(crate) struct Tuning {
    file: Option<PathBuf>,
    large: Option<usize>,
}

impl Tuning {
    /// What an earlier run has found out.
    pub(crate) fn read(file: Option<PathBuf>) -> Tuning {
        let text = file.as_ref().and_then(|file| std::fs::read_to_string(file).ok()).unwrap_or_default();
        let large = text.trim().parse().ok().filter(|number| *number < LARGE_TILES.len());
        Tuning { file, large }
    }

    /// A tile that was decided on, not measured, and is not kept.
    #[cfg(test)]
    pub(crate) fn fixed(number: usize) -> Tuning {
        Tuning { file: None, large: Some(number) }
    }

    /// The tile for large products, once it was measured.
    pub(crate) fn large(&self) -> Option<Tile> {
        self.large.map(|number| LARGE_TILES[number])
    }

    /// Keeps what was measured, for this run and the next.
    pub(crate) fn keep(&mut self, number: usize) {
        self.large = Some(number);
        if let Some(file) = &self.file {
            // A cache that cannot be written is measured again.
            let _ = file.parent().map(std::fs::create_dir_all);
            let _ = std::fs::write(file, number.to_string());
        }
    }
}
