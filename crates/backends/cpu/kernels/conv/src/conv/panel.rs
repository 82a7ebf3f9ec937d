//! Panels: images copied so that every tap of a convolution is a constant offset.
//!
//! A panel holds, for each channel, a band of rows surrounded by zeros, row after row in one flat
//! run. The pixel `(y, x)` of the output is the flat pixel `y * pitch + x`, and its tap `(ty, tx)`
//! is a fixed distance away, so a vector of neighbouring flat pixels reads each tap with one
//! unaligned load. Two refinements:
//!
//! 1. The zeros to the right of a row are the zeros to the left of the next one, so the pitch is
//!    the width plus the wider of both paddings. The flat pixels beyond the output's width are
//!    computed and discarded.
//! 2. With a stride, the image is split into its phases (rows and columns with the same remainder
//!    modulo the stride). Inside a phase the stride is one. Only the phases that some tap reads are
//!    copied.

use super::real::StoredElement;
use super::tile::LaneRun;
use super::vector::LaneMask;
use crate::simd::Simd;
use std::ops::Range;

/// The taps of a convolution and the sizes of the images that the taps read, independent of
/// channels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Stencil {
    /// Height and width of a source plane.
    pub source: [usize; 2],
    /// Height and width of the output.
    pub output: [usize; 2],
    /// Output `(y, x)` reads source `(y, x) * stride + tap`; pixels outside of the plane are zero.
    pub stride: [usize; 2],
    pub taps: Vec<[isize; 2]>,
}

impl Stencil {
    /// Drops the taps that read nothing but padding, and their entries in `tap_weights`. The
    /// remaining taps reach no further than the images.
    pub fn drop_idle_taps(&mut self, tap_weights: &mut Vec<usize>) {
        let reads = |axis: usize, tap: isize| {
            let step = self.stride[axis] as isize;
            let first = (-tap).max(0) as usize;
            let first = first.div_ceil(self.stride[axis]);
            first < self.output[axis] && first as isize * step + tap < self.source[axis] as isize
        };
        let mut kept = 0;
        for index in 0..self.taps.len() {
            let tap = self.taps[index];
            if reads(0, tap[0]) && reads(1, tap[1]) {
                self.taps[kept] = tap;
                tap_weights[kept] = tap_weights[index];
                kept += 1;
            }
        }
        self.taps.truncate(kept);
        tap_weights.truncate(kept);
    }
}

/// The layout of a panel for a [`Stencil`].
#[derive(Clone, Debug, Default)]
pub(super) struct PanelLayout {
    source: [usize; 2],
    stride: [usize; 2],
    columns: usize,
    /// Distance between rows.
    pub pitch: usize,
    /// The remainders modulo the stride of the taps.
    phases: Vec<[usize; 2]>,
    /// For each tap its phase, and its row and column within the phase, both relative to the
    /// smallest.
    taps: Vec<TapPlace>,
    /// The phase row that the topmost tap reads for the first output row, and the distance in rows
    /// to the lowest tap.
    row_first: isize,
    row_span: usize,
    /// The phase columns that are copied, and the number of zeros to their left.
    data: Range<isize>,
    left: usize,
}

#[derive(Clone, Copy, Debug)]
struct TapPlace {
    phase: usize,
    row: usize,
    column: usize,
}

impl PanelLayout {
    /// Computes the layout, reusing the memory of the previous layout.
    pub fn rebuild(&mut self, stencil: &Stencil) {
        let Stencil { source, output, stride, taps } = stencil;
        let step = stride.map(|step| step as isize);
        self.source = *source;
        self.stride = *stride;
        self.columns = output[1];
        let reach = |axis: usize| {
            let steps = taps.iter().map(|tap| tap[axis].div_euclid(step[axis]));
            (steps.clone().min().unwrap_or(0), steps.max().unwrap_or(0))
        };
        let (row_first, row_last) = reach(0);
        let (column_first, column_last) = reach(1);
        self.row_first = row_first;
        self.row_span = (row_last - row_first) as usize;

        let seen = column_first..output[1] as isize + column_last;
        let width = source[1].div_ceil(stride[1]) as isize;
        let data_start = seen.start.max(0).min(seen.end);
        self.data = data_start..seen.end.min(width).max(data_start);
        self.left = (self.data.start - seen.start) as usize;
        let right = (seen.end - self.data.end) as usize;
        self.pitch = output[1].max(self.data.len() + self.left.max(right));

        self.phases.clear();
        self.taps.clear();
        for tap in taps {
            let phase = [tap[0].rem_euclid(step[0]) as usize, tap[1].rem_euclid(step[1]) as usize];
            let known = self.phases.iter().position(|seen| *seen == phase);
            let index = known.unwrap_or(self.phases.len());
            if known.is_none() {
                self.phases.push(phase);
            }
            let row = (tap[0].div_euclid(step[0]) - row_first) as usize;
            let column = (tap[1].div_euclid(step[1]) - column_first) as usize;
            self.taps.push(TapPlace { phase: index, row, column });
        }
    }

    /// Numbers of one channel for `rows` rows of output.
    ///
    /// An odd number of cache lines, so that the same pixel of neighbouring channels falls into
    /// different cache sets.
    pub fn channel_len(&self, rows: usize) -> usize {
        self.phases.len() * self.phase_len(rows)
    }

    fn phase_len(&self, rows: usize) -> usize {
        let numbers = self.left + (rows + self.row_span) * self.pitch;
        (numbers.div_ceil(LINE_NUMBERS) | 1) * LINE_NUMBERS
    }

    /// Flat pixels from the first to the last of `rows` rows of output.
    pub fn flat_len(&self, rows: usize) -> usize {
        if rows == 0 { 0 } else { rows * self.pitch - (self.pitch - self.columns) }
    }

    /// The rows of a source plane that `rows` rows of output read.
    pub fn source_rows(&self, rows: &Range<usize>) -> Range<usize> {
        let step = self.stride[0] as isize;
        let first = (rows.start as isize + self.row_first) * step;
        let end = (rows.end as isize + self.row_first + self.row_span as isize) * step;
        first.clamp(0, self.source[0] as isize) as usize..end.clamp(0, self.source[0] as isize) as usize
    }

    /// Appends each tap's distance from the flat pixel, for `channels` channels of a panel of
    /// `rows` rows.
    pub fn push_offsets(&self, rows: usize, channels: usize, offsets: &mut Vec<usize>) {
        for channel in 0..channels {
            for tap in &self.taps {
                let plane = channel * self.channel_len(rows) + tap.phase * self.phase_len(rows);
                offsets.push(plane + tap.row * self.pitch + tap.column);
            }
        }
    }

    /// Appends, for each vector of `lanes` flat pixels of `rows` rows, the lanes that are outputs
    /// and their position.
    pub fn push_lane_runs(&self, rows: usize, lanes: usize, runs: &mut Vec<LaneRun>) {
        let flat = self.flat_len(rows);
        for first in (0..flat).step_by(lanes) {
            let (row, column) = (first / self.pitch, first % self.pitch);
            let start = row * self.columns + column.min(self.columns);
            let (mut mask, mut lane, mut column) = (0_u64, 0, column);
            let end = lanes.min(flat - first);
            // Runs of lanes of the same kind: the pixels of a row, then the gap after them.
            while lane < end {
                let is_pixel = column < self.columns;
                let kind_end = if is_pixel { self.columns } else { self.pitch };
                let count = (kind_end - column).min(end - lane);
                if is_pixel {
                    mask |= ((1 << count) - 1) << lane;
                }
                lane += count;
                column = if column + count == self.pitch { 0 } else { column + count };
            }
            let mask = mask as u32;
            runs.push(LaneRun { mask: LaneMask::new(mask), start });
        }
    }

    /// Copies the rows that the output rows `rows` read from one source plane into its part of a
    /// panel that is laid out for `panel_rows` rows of output.
    ///
    /// `simd` must be a level that the CPU has.
    pub fn fill<S: StoredElement>(
        &self,
        simd: Simd,
        plane: &[S],
        rows: Range<usize>,
        panel_rows: usize,
        panel: &mut [S::Real],
    ) {
        match simd {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the caller guarantees that the CPU has this level.
            Simd::Avx512 => unsafe { fill_avx512(self, plane, rows, panel_rows, panel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the caller guarantees that the CPU has this level.
            Simd::Avx2 => unsafe { fill_avx2(self, plane, rows, panel_rows, panel) },
            _ => self.fill_phases(plane, rows, panel_rows, panel),
        }
    }

    #[inline(always)]
    fn fill_phases<S: StoredElement>(&self, plane: &[S], rows: Range<usize>, panel_rows: usize, panel: &mut [S::Real]) {
        let phase_len = self.phase_len(panel_rows);
        for (phase, part) in self.phases.iter().zip(panel.chunks_exact_mut(phase_len)) {
            let (before, cells) = part.split_at_mut(self.left);
            before.fill(S::Real::default());
            let used = (rows.len() + self.row_span) * self.pitch;
            for (index, start) in (0..used).step_by(self.pitch).enumerate() {
                let phase_row = rows.start as isize + self.row_first + index as isize;
                self.fill_row(plane, *phase, phase_row, &mut cells[start..]);
            }
        }
    }

    /// Copies rows of a dense plane of outputs to this pitch, with zeros between the rows and up to
    /// the end of `flat`.
    pub fn spread<S: StoredElement>(&self, rows: &[S], flat: &mut [S::Real]) {
        let mut filled = 0;
        for row in rows.chunks_exact(self.columns.max(1)) {
            let (data, gap) = flat[filled..].split_at_mut(self.columns);
            S::widen(row, data);
            let gap_len = gap.len().min(self.pitch - self.columns);
            gap[..gap_len].fill(S::Real::default());
            filled += self.columns + gap_len;
        }
        flat[filled..].fill(S::Real::default());
    }

    /// Fills the first `pitch` of `cells`. The cells after them belong to the next row, and may be
    /// overwritten with zeros.
    #[inline(always)]
    fn fill_row<S: StoredElement>(&self, plane: &[S], phase: [usize; 2], phase_row: isize, cells: &mut [S::Real]) {
        let [height, width] = self.source;
        let source_row = phase_row * self.stride[0] as isize + phase[0] as isize;
        if phase_row < 0 || source_row >= height as isize {
            return cells[..self.pitch].fill(S::Real::default());
        }
        let source = &plane[source_row as usize * width..][..width];
        let first = self.data.start as usize * self.stride[1] + phase[1];
        let source = source.get(first..).unwrap_or_default();
        let count = source.len().div_ceil(self.stride[1]).min(self.data.len());
        let (data, rest) = cells.split_at_mut(count);
        if self.stride[1] == 1 {
            S::widen(&source[..count], data);
        } else if self.stride[1] == 2 {
            // Pairs, which the compiler splits with vector instructions; the last may be half a
            // pair.
            let pairs = source.chunks_exact(2);
            if let (Some(from), Some(to)) = (pairs.remainder().first(), data.get_mut(source.len() / 2)) {
                *to = from.real();
            }
            data.iter_mut().zip(pairs).for_each(|(to, pair)| *to = pair[0].real());
        } else {
            for (to, from) in data.iter_mut().zip(source.iter().step_by(self.stride[1])) {
                *to = from.real();
            }
        }
        let zeros = self.pitch - count;
        match rest.first_chunk_mut::<ZEROS_AT_ONCE>() {
            Some(chunk) if zeros <= ZEROS_AT_ONCE => *chunk = [S::Real::default(); ZEROS_AT_ONCE],
            _ => rest[..zeros].fill(S::Real::default()),
        }
    }
}

/// [`PanelLayout::fill_phases`], copying with 512-bit vectors.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn fill_avx512<S: StoredElement>(
    layout: &PanelLayout,
    plane: &[S],
    rows: Range<usize>,
    panel_rows: usize,
    panel: &mut [S::Real],
) {
    layout.fill_phases(plane, rows, panel_rows, panel);
}

/// [`PanelLayout::fill_phases`], copying with 256-bit vectors.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn fill_avx2<S: StoredElement>(
    layout: &PanelLayout,
    plane: &[S],
    rows: Range<usize>,
    panel_rows: usize,
    panel: &mut [S::Real],
) {
    layout.fill_phases(plane, rows, panel_rows, panel);
}

/// Numbers of f32 in a cache line.
const LINE_NUMBERS: usize = 16;
/// Zeros that are written with one store after a row. Surplus zeros spill into the next row.
const ZEROS_AT_ONCE: usize = 4;
