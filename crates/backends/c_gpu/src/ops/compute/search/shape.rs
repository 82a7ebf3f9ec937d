//! The layout of tiles in block memory, and their division among warps.

use panoply_kernels::c::Kernel;

use super::SearchTask;
use crate::context::Context;

/// Bytes of each vector multiplied per step.
const CHUNK_BYTES: usize = 128;
/// Block memory of a multiprocessor, and the memory that the kernel declares itself: per warp, per
/// row, per query, and fixed.
const BLOCKS_BYTES_MAX: usize = 226 << 10;
const WARP_BYTES: usize = 864;
const ROW_BYTES: usize = 16;
const QUERY_BYTES: usize = 20;
const DECLARED_BYTES: usize = 512;
/// The kernel aligns its block memory to this number of bytes.
const ALIGN_BYTES: usize = 1024;
const STAGES_MAX: usize = 8;
/// Maximum sums per tile that leave registers for two blocks.
const SMALL_TILE: usize = 16 * 128;
/// Minimum number of stages for which a stage may be twice as large, which needs fewer waits.
const LARGE_STAGES_MIN: usize = 3;
/// Lanes of a warp that multiplies tiles.
const WARP_LANES: usize = 32;

/// The layout of tiles in block memory, and their division among warps.
pub(super) struct Shape {
    pub(super) tile_queries: usize,
    pub(super) tile_rows: usize,
    /// Whether four warps multiply together.
    pub(super) grouped: bool,
    /// Queries and rows per warp.
    pub(super) warp: (usize, usize),
    /// Number of warps that copy.
    pub(super) copiers: usize,
    /// Blocks per multiprocessor.
    pub(super) blocks: usize,
    pub(super) stages: usize,
    pub(super) stage_chunks: usize,
    /// Whether the queries stay in block memory, instead of being loaded with every chunk of rows.
    pub(super) resident: bool,
    pub(super) shared_bytes: usize,
}

impl Shape {
    /// A tile that the queries fill. With few queries the search is limited by the reading of rows.
    pub(super) fn new(task: &SearchTask, context: &Context) -> Shape {
        let groups = context.driver.properties().warp_groups;
        let queries = task.query_count;
        let (tile, warp, grouped) = match (groups, queries) {
            (_, 0..=16) => ((16, 128), (16, 16), false),
            (true, 17..=64) => ((64, 256), (16, 128), true),
            (true, _) if queries.next_multiple_of(256) == queries.next_multiple_of(128) => {
                ((256, 128), (16, 128), true)
            }
            (true, _) => ((128, 256), (16, 128), true),
            (false, 17..=64) => ((64, 256), (64, 32), false),
            (false, _) => ((128, 128), (64, 32), false),
        };
        Shape::with(task, context, tile, warp, grouped)
    }

    fn with(
        task: &SearchTask,
        context: &Context,
        (tile_queries, tile_rows): (usize, usize),
        warp: (usize, usize),
        grouped: bool,
    ) -> Shape {
        let copiers = if grouped { 4 } else { 2 };
        // More blocks hide more latency, but leave no registers for the sums of a large tile.
        let blocks = if tile_queries * tile_rows <= SMALL_TILE { 2 } else { 1 };
        let warps = tile_queries / warp.0 * (tile_rows / warp.1);
        let declared = DECLARED_BYTES + warps * WARP_BYTES + tile_rows * ROW_BYTES + tile_queries * QUERY_BYTES;
        let room = (context.driver.properties().shared_bytes_max as usize).min(BLOCKS_BYTES_MAX / blocks);
        let most = room - declared - ALIGN_BYTES;
        let chunks = (task.dim * task.row_type.size_bytes()).div_ceil(CHUNK_BYTES);
        let (query_chunk, row_chunk) = (tile_queries * CHUNK_BYTES, tile_rows * CHUNK_BYTES);
        let resident = chunks * query_chunk + 2 * row_chunk <= most;
        let (kept, with_rows) = if resident { (chunks * query_chunk, 0) } else { (0, query_chunk) };
        let pairs = chunks.is_multiple_of(2) && kept + LARGE_STAGES_MIN * 2 * (row_chunk + with_rows) <= most;
        let stage_chunks = if pairs { 2 } else { 1 };
        let stage = stage_chunks * (row_chunk + with_rows);
        let stages = (most.saturating_sub(kept) / stage).clamp(2, STAGES_MAX);
        let shared_bytes = kept + stages * stage + ALIGN_BYTES;
        Shape { tile_queries, tile_rows, grouped, warp, copiers, blocks, stages, stage_chunks, resident, shared_bytes }
    }

    pub(super) fn threads(&self) -> usize {
        (self.tile_queries / self.warp.0 * (self.tile_rows / self.warp.1) + self.copiers) * WARP_LANES
    }

    pub(super) fn parameters(&self, kernel: Kernel) -> Kernel {
        kernel
            .integer("BLOCK_QUERIES", self.tile_queries)
            .integer("BLOCK_ROWS", self.tile_rows)
            .integer("WARP_QUERIES", self.warp.0)
            .integer("WARP_ROWS", self.warp.1)
            .integer("STAGES", self.stages)
            .integer("STAGE_CHUNKS", self.stage_chunks)
            .integer("COPIERS", self.copiers)
            .integer("BLOCKS", self.blocks)
            .flag("RESIDENT", self.resident)
            .flag("GROUPED", self.grouped)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::ops::compute::search) fn shape(
        (tile_queries, tile_rows): (usize, usize),
        warp: (usize, usize),
        grouped: bool,
    ) -> Shape {
        Shape {
            tile_queries,
            tile_rows,
            grouped,
            warp,
            copiers: 4,
            blocks: 1,
            stages: 2,
            stage_chunks: 1,
            resident: true,
            shared_bytes: 0,
        }
    }
}
