//! Splitting of a correlation: images into bands of rows, filters into chunks, channels into
//! blocks.

use super::correlation::{Correlation, Placement};
use super::panel::{PanelLayout, Stencil};
use super::real::StoredElement;
use super::tile::{RealKernels as _, SINGLE_FILTER_VECTORS, TILE_VECTORS, filter_blocks};
use crate::simd::Simd;

/// Numbers in a panel: half of a typical second-level cache, in f32.
const PANEL_NUMBERS_MAX: usize = 160 << 10;
/// Maximum of channels times rows of taps in a block: their part of the panel stays in the
/// first-level cache for one tile.
const BLOCK_TAP_ROWS_MAX: usize = 96;
/// Minimum rows of output in a band, if the panel allows it.
const BAND_ROWS_MIN: usize = 4;
/// Units for each thread, so that a slow thread costs little.
const UNITS_PER_THREAD: usize = 4;
/// Images of up to this number of flat pixels are not split into bands, which would leave lanes
/// idle. Threads take different filters instead.
const WHOLE_PIXELS_MAX: usize = 1024;
/// The same for outputs that read one pixel each: bands copy no surrounding rows, and chunks of
/// filters would each copy the image.
const WHOLE_POINTWISE_PIXELS_MAX: usize = 512;
/// If outputs read one pixel each, images of up to this number of pixels, or of numbers in total,
/// are read in place. For larger images, long runs of each channel are copied, which the outer
/// caches deliver faster than a few lines of each channel in turn.
const DIRECT_PIXELS_MAX: usize = 512;
const DIRECT_NUMBERS_MAX: usize = 256 << 10;
/// Numbers of a band's outputs: they stay in the second-level cache until their activation, or
/// until the next block of channels.
const BAND_OUTPUTS_MAX: usize = 40 << 10;
/// Chunks of filters for each thread, if threads take different filters. Each chunk copies the
/// image again.
const CHUNKS_PER_THREAD: usize = 2;
/// Distance in bytes at which addresses map to the same set of the first-level cache.
const CACHE_WAY_BYTES: usize = 4096;

/// Vectors of pixels that are copied at a time if outputs read one pixel each: a few tiles of a
/// block of channels.
pub(super) const COPIED_VECTORS: usize = 6 * TILE_VECTORS;
/// Channels of a block if outputs read one pixel each: the numbers that one tile reads stay in the
/// first-level cache.
const POINTWISE_CHANNELS: usize = 128;

/// The split of a correlation into units and blocks.
pub(super) struct CorrelationSplit {
    /// Whether every output reads exactly one pixel, at its own position, and a few pixels are
    /// copied at a time.
    pub pointwise: bool,
    /// Whether the source is its own panel: every output reads exactly one pixel, at its own
    /// position.
    pub direct: bool,
    pub block_channels: usize,
    pub band_rows: usize,
    pub bands: usize,
    /// Vectors of pixels that are processed for all channels before the next ones.
    pub band_vectors: usize,
    pub chunk_filters: usize,
    pub chunks: usize,
    pub tile_vectors: usize,
    pub products: usize,
}

impl CorrelationSplit {
    pub fn new<S: StoredElement>(
        threads: usize,
        stencil: &Stencil,
        layout: &PanelLayout,
        job: &Correlation<'_, S>,
        simd: Simd,
    ) -> CorrelationSplit {
        let ([rows, columns], taps) = (stencil.output, stencil.taps.len());
        let direct = is_direct(stencil, job);
        let pointwise = !direct && is_pointwise(stencil, job);
        let tap_rows = (taps as f64).sqrt().ceil().max(1.0) as usize;
        let block_rows = if pointwise { POINTWISE_CHANNELS } else { BLOCK_TAP_ROWS_MAX };
        let mut block_channels = (block_rows / tap_rows).max(1).min(job.channels);
        let mut band_rows = rows;
        while !direct && !pointwise && block_channels * layout.channel_len(band_rows) > PANEL_NUMBERS_MAX {
            // Short bands copy the rows around them too often; fewer channels in a block cost less.
            if band_rows > BAND_ROWS_MIN || block_channels == 1 && band_rows > 1 {
                band_rows = band_rows.div_ceil(2);
            } else if block_channels > 1 {
                block_channels = block_channels.div_ceil(2);
            } else {
                break;
            }
        }
        let (images, block_filters) = (job.batch * job.groups, filter_blocks(simd)[0]);
        let filter_blocks = job.filters.div_ceil(block_filters);
        let units_wanted = if threads == 1 { 1 } else { UNITS_PER_THREAD * threads };
        // A band of less than two tiles wastes lanes and copies the surrounding rows too often.
        let lanes = S::Real::lanes(simd);
        let whole_pixels_max = if taps == 1 { WHOLE_POINTWISE_PIXELS_MAX } else { WHOLE_PIXELS_MAX };
        let whole_chunks = if threads == 1 { 1 } else { (CHUNKS_PER_THREAD * threads).div_ceil(images) };
        let is_whole = band_rows == rows
            && rows.saturating_mul(layout.pitch) <= whole_pixels_max
            && filter_blocks >= CHUNKS_PER_THREAD * threads
            && rows * columns * job.filters.div_ceil(whole_chunks) <= BAND_OUTPUTS_MAX;
        while !direct && !is_whole && band_rows > BAND_ROWS_MIN && band_rows * columns * job.filters > BAND_OUTPUTS_MAX
        {
            band_rows = band_rows.div_ceil(2);
        }
        if !direct && !is_whole {
            let band_rows_min = (2 * TILE_VECTORS * lanes).div_ceil(layout.pitch).max(BAND_ROWS_MIN).min(band_rows);
            let bands_wanted = units_wanted.div_ceil(images).min(rows);
            band_rows = band_rows.min(rows.div_ceil(bands_wanted)).max(band_rows_min);
        }
        let band_rows = rows.div_ceil(rows.div_ceil(band_rows));
        let bands = rows.div_ceil(band_rows);
        let chunks_wanted = match threads {
            1 => 1,
            _ if bands == 1 => (CHUNKS_PER_THREAD * threads).div_ceil(images).min(filter_blocks),
            _ => threads.div_ceil(images * bands).min(filter_blocks),
        };
        let chunk_filters = filter_blocks.div_ceil(chunks_wanted) * block_filters;
        let band_vectors = match direct {
            // Even one vector for each of very many filters exceeds the limit: two tiles at least.
            true => (BAND_OUTPUTS_MAX / (chunk_filters * lanes)).max(1).next_multiple_of(2 * TILE_VECTORS),
            false => usize::MAX,
        };
        CorrelationSplit {
            pointwise,
            direct,
            band_vectors,
            block_channels,
            band_rows,
            bands,
            chunk_filters,
            chunks: job.filters.div_ceil(chunk_filters),
            tile_vectors: if job.filters == 1 { SINGLE_FILTER_VECTORS } else { TILE_VECTORS },
            products: products(stencil, job),
        }
    }

    /// Number of blocks of channels. At least one, because the first block stores the bias.
    pub fn blocks<S: StoredElement>(&self, job: &Correlation<'_, S>) -> usize {
        job.channels.div_ceil(self.block_channels.max(1)).max(1)
    }

    /// Vectors of the next tile if `left` are left: the last two tiles are about equally wide.
    pub fn vectors(&self, left: usize) -> usize {
        match left {
            left if left >= self.tile_vectors && self.tile_vectors > TILE_VECTORS => self.tile_vectors,
            left if left > TILE_VECTORS && left < 2 * TILE_VECTORS => left.div_ceil(2),
            left => left.min(TILE_VECTORS),
        }
    }

    pub fn units<S: StoredElement>(&self, job: &Correlation<'_, S>) -> usize {
        job.batch * job.groups * self.bands * self.chunks
    }
}

/// Number of products of the whole correlation.
pub(super) fn products<S: StoredElement>(stencil: &Stencil, job: &Correlation<'_, S>) -> usize {
    let outputs = job.batch.saturating_mul(job.groups * job.filters * stencil.output[0] * stencil.output[1]);
    outputs.saturating_mul(job.channels * stencil.taps.len())
}

/// Whether each output reads exactly one pixel of the source, at its own position.
pub(super) fn is_pointwise<S: StoredElement>(stencil: &Stencil, job: &Correlation<'_, S>) -> bool {
    S::IN_PLACE
        && stencil.taps == [[0, 0]]
        && stencil.stride == [1, 1]
        && stencil.source == stencil.output
        && job.placement == Placement::dense(stencil.output)
}

/// Whether tiles read the source in place: planes are small, and the same pixel of neighbouring
/// planes maps to different cache sets.
fn is_direct<S: StoredElement>(stencil: &Stencil, job: &Correlation<'_, S>) -> bool {
    let pixels = stencil.source[0] * stencil.source[1];
    let beyond = (pixels * size_of::<S>()) % CACHE_WAY_BYTES;
    is_pointwise(stencil, job)
        && job.channels > 0
        && job.filters > 1
        && (pixels <= DIRECT_PIXELS_MAX || pixels.saturating_mul(job.channels) <= DIRECT_NUMBERS_MAX)
        && beyond.min(CACHE_WAY_BYTES - beyond) >= 64
}
