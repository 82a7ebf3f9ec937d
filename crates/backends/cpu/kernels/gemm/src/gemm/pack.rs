//! Packing: operands with any strides are copied once into the order in which a kernel reads them.
//!
//! A kernel works in *steps* along k. One step takes one *word* of each line (a row of A or a
//! column of B): 32 bits for f32, i32, a pair of bf16 or i16 and four i8; 64 bits for f64 and
//! complex. Lines come in panels of `height` lines:
//!
//! * `PanelOrder::Chunked` (A): for each chunk of 64 bytes of steps, line after line. A row-major A
//!   is copied by cache lines.
//! * `PanelOrder::Stepped` (B): for each step, the contiguous words of all lines.
//!
//! Steps past the end of k and lines past the last are filled with zeros as far as a kernel reads
//! them.

use std::marker::PhantomData;

use panoply_core::dtype::{Complex64, bf16};

use super::element::Operand;
use super::view::MatRef;
use crate::simd::Simd;

/// The conversion of `GROUP` neighbouring elements along k to one word.
pub(super) trait Format: Send + Sync + 'static {
    type Source: Copy + Send + Sync + 'static;
    type Word: bytemuck::Pod + Send + Sync;
    /// Elements in a word.
    const GROUP: usize;
    /// Whether a word has the same bytes as its element.
    const AS_THEY_ARE: bool =
        Self::GROUP == 1 && size_of::<Self::Source>() == size_of::<Self::Word>() && cfg!(target_endian = "little");
    /// The word of `GROUP` elements.
    fn word(elements: impl Fn(usize) -> Self::Source) -> Self::Word;
    /// The element that pads the last word at the end of k.
    fn zero() -> Self::Source;
}

/// Words of one element, widened to f32.
pub(super) struct Float<S>(PhantomData<fn(S)>);
/// Words of one element, widened to i32.
pub(super) struct Int<S>(PhantomData<fn(S)>);
/// Words of two elements, widened to i16.
pub(super) struct ShortPair<S>(PhantomData<fn(S)>);
/// Words of four bytes.
pub(super) struct Quad<S>(PhantomData<fn(S)>);
/// Words of two bf16.
pub(super) struct HalfPair;
/// Words of one f64.
pub(super) struct Double;
/// Words of a real and an imaginary part.
pub(super) struct Complex;

macro_rules! format {
    ([$($generic:tt)*] $format:ty, $source:ty, $word:ty, $group:literal, $zero:expr, $at:ident => $make:expr) => {
        impl<$($generic)*> Format for $format {
            type Source = $source;
            type Word = $word;
            const GROUP: usize = $group;
            #[inline(always)]
            fn word($at: impl Fn(usize) -> $source) -> $word {
                $make
            }
            #[inline(always)]
            fn zero() -> $source {
                $zero
            }
        }
    };
}

format!([S: Operand<Acc = f32>] Float<S>, S, u32, 1, bytemuck::Zeroable::zeroed(), at => at(0).widen().to_bits());
format!([S: Operand<Acc = i32>] Int<S>, S, u32, 1, bytemuck::Zeroable::zeroed(), at => at(0).widen() as u32);
format!([S: Operand<Acc = i32>] ShortPair<S>, S, u32, 2, bytemuck::Zeroable::zeroed(), at =>
    (at(0).widen() as u32 & 0xffff) | ((at(1).widen() as u32) << 16));
format!([] Quad<i8>, i8, u32, 4, 0, at => u32::from_le_bytes([at(0) as u8, at(1) as u8, at(2) as u8, at(3) as u8]));
format!([] Quad<u8>, u8, u32, 4, 0, at => u32::from_le_bytes([at(0), at(1), at(2), at(3)]));
format!([] HalfPair, bf16, u32, 2, bf16::ZERO, at =>
    u32::from(at(0).to_bits()) | (u32::from(at(1).to_bits()) << 16));
format!([] Double, f64, u64, 1, 0.0, at => at(0).to_bits());
format!([] Complex, Complex64, u64, 1, Complex64::new(0.0, 0.0), at =>
    u64::from(at(0).re.to_bits()) | (u64::from(at(0).im.to_bits()) << 32));

/// The order of words inside a panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PanelOrder {
    /// Chunks of 64 bytes along k, line after line.
    Chunked,
    /// Step after step; the words of all lines are contiguous.
    Stepped,
}

/// Steps in a chunk: 64 bytes of words.
pub(super) const fn chunk_steps<W>() -> usize {
    64 / size_of::<W>()
}

/// Words of a panel of `height` lines and `steps` steps.
pub(super) fn panel_words<W>(layout: PanelOrder, height: usize, steps: usize) -> usize {
    match layout {
        PanelOrder::Chunked => steps.next_multiple_of(chunk_steps::<W>()) * height,
        PanelOrder::Stepped => steps * height,
    }
}

/// Packs the lines `first..first + height` of `lines` (one line per row, k along the columns) into
/// `panel`, for `steps` steps.
pub(super) fn pack_panel<F: Format>(
    simd: Simd,
    layout: PanelOrder,
    lines: &MatRef<'_, F::Source>,
    first: usize,
    height: usize,
    steps: usize,
    panel: &mut [F::Word],
) {
    match simd {
        // SAFETY: a level above `Scalar` is always taken from `Simd::available`, so this CPU has
        // the instructions.
        #[cfg(target_arch = "x86_64")]
        Simd::Avx512 => unsafe { pack_avx512::<F>(layout, lines, first, height, steps, panel) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Simd::Avx2 => unsafe { pack_avx2::<F>(layout, lines, first, height, steps, panel) },
        _ => pack::<F>(layout, lines, first, height, steps, panel, transpose_block),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
unsafe fn pack_avx512<F: Format>(
    layout: PanelOrder,
    lines: &MatRef<'_, F::Source>,
    first: usize,
    height: usize,
    steps: usize,
    panel: &mut [F::Word],
) {
    pack::<F>(layout, lines, first, height, steps, panel, |block, size, to, stride, lines| {
        if size_of::<F::Word>() == 4 {
            let (block, to) = (bytemuck::cast_slice(block), bytemuck::cast_slice_mut(to));
            // SAFETY: the feature is enabled on the enclosing function; lengths are checked inside.
            unsafe { super::transpose::transpose_16x16(block, to, stride, lines) }
        } else {
            transpose_block(block, size, to, stride, lines);
        }
    });
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn pack_avx2<F: Format>(
    layout: PanelOrder,
    lines: &MatRef<'_, F::Source>,
    first: usize,
    height: usize,
    steps: usize,
    panel: &mut [F::Word],
) {
    pack::<F>(layout, lines, first, height, steps, panel, transpose_block);
}

/// Words of a square block: at most 16 by 16.
const BLOCK: usize = 16;

#[inline(always)]
fn pack<F: Format>(
    layout: PanelOrder,
    lines: &MatRef<'_, F::Source>,
    first: usize,
    height: usize,
    steps: usize,
    panel: &mut [F::Word],
    transpose: impl Fn(&[F::Word], usize, &mut [F::Word], usize, usize),
) {
    let size = chunk_steps::<F::Word>();
    let live = height.min(lines.rows() - first);
    match layout {
        PanelOrder::Chunked if lines.col_stride() == 1 => {
            for (chunk, to) in panel.chunks_exact_mut(size * height).enumerate() {
                for line in 0..live {
                    words_along::<F>(lines, first + line, chunk * size, &mut to[line * size..][..size]);
                }
            }
        }
        PanelOrder::Chunked => {
            for (chunk, to) in panel.chunks_exact_mut(size * height).enumerate() {
                for start in (0..live).step_by(size) {
                    let count = size.min(live - start);
                    let mut block = [bytemuck::Zeroable::zeroed(); BLOCK * BLOCK];
                    for step in 0..size {
                        words_across::<F>(
                            lines,
                            first + start,
                            chunk * size + step,
                            &mut block[step * size..][..count],
                        );
                    }
                    transpose(&block[..size * size], size, &mut to[start * size..], size, count);
                }
            }
        }
        PanelOrder::Stepped if lines.col_stride() == 1 && lines.row_stride() != 1 => {
            for start in (0..height).step_by(size) {
                pack_stepped_along::<F>(lines, first, start, height, steps, panel, &transpose);
            }
        }
        PanelOrder::Stepped
            if F::AS_THEY_ARE && lines.row_stride() == 1 && live == height && height.is_multiple_of(size) =>
        {
            let whole = steps.min(lines.cols());
            let (to, beyond) = panel[..steps * height].split_at_mut(whole * height);
            copy_steps::<F>(lines, first, height, to);
            beyond.fill(bytemuck::Zeroable::zeroed());
        }
        PanelOrder::Stepped => {
            for (step, to) in panel.chunks_exact_mut(height).take(steps).enumerate() {
                words_across::<F>(lines, first, step, &mut to[..live]);
                to[live..].fill(bytemuck::Zeroable::zeroed());
            }
        }
    }
}

/// Packs one group of lines of a stepped panel if k is contiguous in memory: blocks of words are
/// transposed.
#[inline(always)]
fn pack_stepped_along<F: Format>(
    lines: &MatRef<'_, F::Source>,
    first: usize,
    start: usize,
    height: usize,
    steps: usize,
    panel: &mut [F::Word],
    transpose: &impl Fn(&[F::Word], usize, &mut [F::Word], usize, usize),
) {
    let size = chunk_steps::<F::Word>();
    let live = height.min(lines.rows() - first).saturating_sub(start).min(size);
    let wide = size.min(height - start);
    let mut block = [bytemuck::Zeroable::zeroed(); BLOCK * BLOCK];
    for step in (0..steps).step_by(size) {
        for line in 0..live {
            words_along::<F>(lines, first + start + line, step, &mut block[line * size..][..size]);
        }
        let count = size.min(steps - step);
        let to = &mut panel[step * height + start..];
        if wide == size {
            transpose(&block[..size * size], size, to, height, count);
        } else {
            for (offset, words) in to.chunks_mut(height).take(count).enumerate() {
                for (line, word) in words.iter_mut().take(wide).enumerate() {
                    *word = block[line * size + offset];
                }
            }
        }
    }
}

/// Writes `lines` rows of `size` words: row `i` takes word `i` of each of the `size` rows of
/// `block`.
#[inline(always)]
fn transpose_block<W: Copy>(block: &[W], size: usize, to: &mut [W], stride: usize, lines: usize) {
    for (line, row) in to.chunks_mut(stride).take(lines).enumerate() {
        for (step, word) in row.iter_mut().take(size).enumerate() {
            *word = block[step * size + line];
        }
    }
}

/// Writes the words of one line from step `step` on, with zeros past the end of k.
#[inline(always)]
fn words_along<F: Format>(lines: &MatRef<'_, F::Source>, line: usize, step: usize, to: &mut [F::Word]) {
    let start = step * F::GROUP;
    if let Some(elements) = lines.row_slice(line, start, to.len() * F::GROUP) {
        if F::AS_THEY_ARE {
            return copy_words::<F>(elements, to);
        }
        for (word, group) in to.iter_mut().zip(elements.chunks_exact(F::GROUP)) {
            *word = F::word(|index| group[index]);
        }
        return;
    }
    for (offset, word) in to.iter_mut().enumerate() {
        *word = word_at::<F>(lines, line, step + offset);
    }
}

/// Writes the words of the lines from `first` on at one step.
#[inline(always)]
fn words_across<F: Format>(lines: &MatRef<'_, F::Source>, first: usize, step: usize, to: &mut [F::Word]) {
    let columns = lines.transposed();
    let start = step * F::GROUP;
    if F::AS_THEY_ARE
        && let Some(elements) = columns.row_slice(start, first, to.len())
    {
        return copy_words::<F>(elements, to);
    }
    let empty: &[F::Source] = &[];
    let mut rows = [empty; 4];
    let mut adjacent = true;
    for (index, row) in rows.iter_mut().take(F::GROUP).enumerate() {
        match columns.row_slice(start + index, first, to.len()) {
            Some(elements) => *row = elements,
            None => adjacent = false,
        }
    }
    if adjacent {
        for (offset, word) in to.iter_mut().enumerate() {
            *word = F::word(|index| rows[index][offset]);
        }
        return;
    }
    for (offset, word) in to.iter_mut().enumerate() {
        *word = word_at::<F>(lines, first + offset, step);
    }
}

/// Copies steps whose words are contiguous already: all of a stepped panel. `height` is a multiple
/// of a cache line.
#[inline(always)]
fn copy_steps<F: Format>(lines: &MatRef<'_, F::Source>, first: usize, height: usize, to: &mut [F::Word]) {
    let line = chunk_steps::<F::Word>();
    assert!(F::AS_THEY_ARE && lines.row_stride() == 1 && height.is_multiple_of(line));
    assert!(first + height <= lines.rows() && to.len() / height <= lines.cols());
    let mut from = lines.start().wrapping_add(first);
    for to in to.chunks_exact_mut(height) {
        for at in (0..height).step_by(line) {
            // SAFETY: the step's lines `first..first + height` are inside the matrix (asserted) and
            // adjacent. Both sides have `line` elements of the same size from `at` on, any bytes
            // are a valid word, and they do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(from.add(at).cast::<u8>(), to.as_mut_ptr().add(at).cast(), 64) };
        }
        from = from.wrapping_add(lines.col_stride());
    }
}

/// Copies elements that are words already, cache line by cache line. The compiler would turn a loop
/// over words into a word-by-word copy.
#[inline(always)]
fn copy_words<F: Format>(elements: &[F::Source], to: &mut [F::Word]) {
    assert!(F::AS_THEY_ARE, "elements that are not words cannot be copied");
    let line = chunk_steps::<F::Word>();
    let (mut from, mut to) = (elements.chunks_exact(line), to.chunks_exact_mut(line));
    for (from, to) in from.by_ref().zip(to.by_ref()) {
        // SAFETY: both slices have `line` elements of the same size, any bytes are a valid word,
        // and they do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr().cast::<u8>(), to.as_mut_ptr().cast::<u8>(), 64) };
    }
    for (from, to) in from.remainder().iter().zip(to.into_remainder()) {
        *to = F::word(|_| *from);
    }
}

#[inline(always)]
fn word_at<F: Format>(lines: &MatRef<'_, F::Source>, line: usize, step: usize) -> F::Word {
    F::word(|index| {
        let k = step * F::GROUP + index;
        if k < lines.cols() { lines.get(line, k) } else { F::zero() }
    })
}
