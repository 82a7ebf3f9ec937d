//! Products of bytes with AVX2 and with AVX-512 VNNI.

use super::super::lanes::x86::Avx512;
use super::super::tile::{PanelWidth, TileSink};
use super::{BLOCK_ROWS, Int8Scorer, Metric, Panel, ROWS, RowIds, Scratch, Sink};
use crate::scratch;
use std::arch::x86_64::*;

/// The dot products of eight rows with a query.
///
/// # Safety
/// The CPU has AVX2. The rows are equally long, and the query is at least as long.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn dots_avx2(rows: &[&[i8]; ROWS], query: &[i8]) -> [i32; ROWS] {
    let dim = rows[0].len();
    let whole = dim / 16 * 16;
    let mut sums = [_mm256_setzero_si256(); ROWS];
    for k in (0..whole).step_by(16) {
        // SAFETY: sixteen elements from k on are in every row and in the query. Products of bytes
        // fit 16 bits and pairs of them 32 bits.
        unsafe {
            let query = _mm256_cvtepi8_epi16(_mm_loadu_si128(query.as_ptr().add(k).cast()));
            for (sum, row) in sums.iter_mut().zip(rows) {
                let row = _mm256_cvtepi8_epi16(_mm_loadu_si128(row.as_ptr().add(k).cast()));
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(row, query));
            }
        }
    }
    let mut dots = sum8(sums);
    for (dot, row) in dots.iter_mut().zip(rows) {
        *dot += super::dot(&row[whole..], &query[whole..]);
    }
    dots
}

/// The dot products of eight rows with a query whose elements add up to `query_sum`.
///
/// # Safety
/// The CPU has AVX-512 F, BW, VL and VNNI. The rows are equally long, and the query is padded with
/// zeros to a multiple of 64.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2")]
pub(super) unsafe fn dots_vnni(rows: &[&[i8]; ROWS], query: &[i8], query_sum: i32) -> [i32; ROWS] {
    let dim = rows[0].len();
    let flip = _mm512_set1_epi8(i8::MIN);
    let mut sums = [_mm512_setzero_si512(); ROWS];
    for k in (0..dim).step_by(64) {
        let present = if dim - k >= 64 { u64::MAX } else { (1 << (dim - k)) - 1 };
        // SAFETY: the mask selects only elements of the row; the query is padded to whole vectors.
        unsafe {
            let query = _mm512_loadu_si512(query.as_ptr().add(k).cast());
            for (sum, row) in sums.iter_mut().zip(rows) {
                let row = _mm512_xor_si512(_mm512_maskz_loadu_epi8(present, row.as_ptr().add(k)), flip);
                *sum = _mm512_dpbusd_epi32(*sum, row, query);
            }
        }
    }
    let mut halves = [_mm256_setzero_si256(); ROWS];
    for (half, sum) in halves.iter_mut().zip(sums) {
        *half = _mm256_add_epi32(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64::<1>(sum));
    }
    sum8(halves).map(|sum| sum - 128 * query_sum)
}

#[target_feature(enable = "avx2")]
fn sum8(v: [__m256i; ROWS]) -> [i32; ROWS] {
    let low = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
    let high = _mm256_hadd_epi32(_mm256_hadd_epi32(v[4], v[5]), _mm256_hadd_epi32(v[6], v[7]));
    let lower_halves = _mm256_permute2x128_si256::<0x20>(low, high);
    let upper_halves = _mm256_permute2x128_si256::<0x31>(low, high);
    let mut sums = [0; ROWS];
    // SAFETY: the array is as long as the vector.
    unsafe { _mm256_storeu_si256(sums.as_mut_ptr().cast(), _mm256_add_epi32(lower_halves, upper_halves)) };
    sums
}

impl Int8Scorer<'_> {
    /// Scores rows against the queries of the panels. Panels exist only with VNNI.
    pub(super) fn scan_panels(&self, ids: RowIds<'_>, count: usize, sink: &mut Sink, scratch: &mut Scratch) {
        let stride = self.dim.next_multiple_of(64) + 64;
        scratch::resize(&mut scratch.staged_bytes, count.next_multiple_of(BLOCK_ROWS) * stride, 0);
        for (index, to) in scratch.staged_bytes.chunks_exact_mut(stride).take(count).enumerate() {
            let row = &self.rows[ids.get(index) as usize * self.dim..][..self.dim];
            // Flipping the sign bit adds 128.
            to.iter_mut().zip(row).for_each(|(to, row)| *to = *row as u8 ^ 0x80);
        }
        for panel in &self.panels {
            let scales = (self.metric == Metric::Cosine).then_some((&scratch.row_scales[..], &self.queries.scales[..]));
            let sink = TileSink { panel: *panel, valid: count, ids, scales, sink: &mut *sink };
            let tiles = Tiles { scorer: self, rows: &scratch.staged_bytes, stride, squares: &scratch.row_squares };
            // SAFETY: panels are created only if VNNI was found.
            unsafe {
                match panel.width {
                    PanelWidth::Two => tiles.scan::<12, 2>(sink),
                    PanelWidth::One => tiles.scan::<24, 1>(sink),
                }
            }
        }
    }

    fn lines(&self, panel: &Panel) -> &[i8] {
        let line = self.dim.div_ceil(4) * 4;
        &self.packed[panel.first * line..][..panel.lanes * line]
    }
}

/// Copied rows, `stride` bytes apart, with 128 added to each element.
struct Tiles<'a> {
    scorer: &'a Int8Scorer<'a>,
    rows: &'a [u8],
    stride: usize,
    squares: &'a [i32],
}

impl Tiles<'_> {
    /// # Safety
    /// The CPU has AVX-512 F, BW, DQ, VL and VNNI.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn scan<const R: usize, const C: usize>(&self, mut sink: TileSink<'_>) {
        let quads = self.scorer.dim.div_ceil(4);
        let blocks = sink.valid.div_ceil(R);
        let lines = self.scorer.lines(&sink.panel);
        assert!(quads * 4 <= self.stride && blocks * R * self.stride <= self.rows.len());
        assert!(lines.len() >= quads * C * 64);
        for block in 0..blocks {
            // SAFETY: by the assertions above, R rows of whole quads are in `rows`, and `lines`
            // holds the panel.
            let dots = unsafe {
                let rows = self.rows.as_ptr().add(block * R * self.stride);
                products::<R, C>(rows, self.stride, lines.as_ptr(), quads)
            };
            let closeness = self.closeness::<R, C>(dots, block * R, sink.panel.first);
            // SAFETY: the instructions are enabled here.
            unsafe { sink.compare::<Avx512, R, C>(block * R, closeness) };
        }
    }

    /// Subtracts the effect of the added 128, and turns products into negated squared distances if
    /// the metric requires them.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    fn closeness<const R: usize, const C: usize>(
        &self,
        dots: [[__m512i; C]; R],
        first: usize,
        first_query: usize,
    ) -> [[__m512; C]; R] {
        let queries = &self.scorer.queries;
        let mut closeness = [[_mm512_setzero_ps(); C]; R];
        for c in 0..C {
            let lanes = first_query + c * 16..first_query + c * 16 + 16;
            // SAFETY: both slices are as long as the vector.
            let (sums, squares) = unsafe {
                let sums = _mm512_loadu_si512(queries.sums[lanes.clone()].as_ptr().cast());
                (sums, _mm512_loadu_si512(queries.squares[lanes].as_ptr().cast()))
            };
            let excess = _mm512_slli_epi32::<7>(sums);
            for r in 0..R {
                let mut value = _mm512_sub_epi32(dots[r][c], excess);
                if self.scorer.metric == Metric::Euclidean {
                    let away = _mm512_add_epi32(squares, _mm512_set1_epi32(self.squares[first + r]));
                    value = _mm512_sub_epi32(_mm512_slli_epi32::<1>(value), away);
                }
                closeness[r][c] = _mm512_cvtepi32_ps(value);
            }
        }
        closeness
    }
}

/// The products of `R` rows and `C` vectors of queries, `quads` times four elements.
///
/// # Safety
/// The CPU has AVX-512 F and VNNI. `R` rows of `quads` times four bytes, `stride` apart, are
/// readable at `rows`, and `quads * C` vectors at `lines`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn products<const R: usize, const C: usize>(
    rows: *const u8,
    stride: usize,
    lines: *const i8,
    quads: usize,
) -> [[__m512i; C]; R] {
    let mut sums = [[_mm512_setzero_si512(); C]; R];
    for quad in 0..quads {
        // SAFETY: the caller's contract.
        unsafe {
            let mut queries = [_mm512_setzero_si512(); C];
            for (c, query) in queries.iter_mut().enumerate() {
                *query = _mm512_loadu_si512(lines.add((quad * C + c) * 64).cast());
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let row = _mm512_set1_epi32(rows.add(r * stride + quad * 4).cast::<i32>().read_unaligned());
                for c in 0..C {
                    sums[c] = _mm512_dpbusd_epi32(sums[c], row, queries[c]);
                }
            }
        }
    }
    sums
}
