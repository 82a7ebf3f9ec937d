//! Sixteen lines in parallel with AVX-512. Squares of samples are transposed in registers. Sections
//! run two at a time, the second one sample behind the first, so that neither waits for the other.

use std::arch::x86_64::*;

use panoply_core::op::signal::Biquad;

use super::{LANES, TILE, settle};

/// Number of f64 in a vector, and the number of vectors for all lanes.
const WIDTH: usize = 8;
const HALVES: usize = LANES / WIDTH;

type VectorRow = [__m512d; HALVES];
type LaneState = [[f64; LANES]; 2];

/// Filters whole tiles of lines with consecutive samples. Returns the number of samples of each
/// line that are done. Without an output only the states are updated.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn whole_tiles(
    sections: &[Biquad],
    begins: &[usize; LANES],
    len: usize,
    input: &[f32],
    mut output: Option<&mut [f32]>,
    states: &mut [LaneState],
) -> usize {
    let whole = len / TILE * TILE;
    let mut tile = [[0.0_f64; LANES]; TILE];
    for done in (0..whole).step_by(TILE) {
        if done + TILE < whole {
            bring_near(&begins.map(|begin| begin + done + TILE), input, output.as_deref());
        }
        for (number, rows) in tile.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            let first = done + number * LANES;
            let lines = begins.map(|begin| load(input[begin + first..].first_chunk()));
            rows.iter_mut().zip(turned(lines)).for_each(|(row, samples)| store_wide(row, samples));
        }
        let (pairs, single) = sections.as_chunks::<2>();
        let (pair_states, single_states) = states.split_at_mut(2 * pairs.len());
        for (pair, states) in pairs.iter().zip(pair_states.as_chunks_mut::<2>().0) {
            two_sections(pair, &mut tile, states);
        }
        for (section, state) in single.iter().zip(single_states) {
            one_section(section, &mut tile, state);
        }
        let Some(output) = output.as_deref_mut() else { continue };
        for (number, rows) in tile.as_chunks::<LANES>().0.iter().enumerate() {
            let mut narrow = [_mm512_setzero_ps(); LANES];
            narrow.iter_mut().zip(rows).for_each(|(narrow, row)| *narrow = load_narrow(row));
            for (begin, line) in begins.iter().zip(turned(narrow)) {
                if let Some(place) = output[begin + done + number * LANES..].first_chunk_mut::<LANES>() {
                    // SAFETY: there is room for sixteen numbers.
                    unsafe { _mm512_storeu_ps(place.as_mut_ptr(), line) };
                }
            }
        }
    }
    whole
}

/// Prefetches the next tile of each line. There are too many lines for the hardware prefetcher.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn bring_near(begins: &[usize; LANES], input: &[f32], output: Option<&[f32]>) {
    for place in begins.iter().flat_map(|begin| (*begin..*begin + TILE).step_by(LANES)) {
        _mm_prefetch::<_MM_HINT_T0>(input.as_ptr().wrapping_add(place).cast());
        if let Some(output) = output {
            _mm_prefetch::<_MM_HINT_ET0>(output.as_ptr().wrapping_add(place).cast());
        }
    }
}

/// A section with its weights in every lane, and its state.
struct WideSection {
    b: [__m512d; 3],
    a: [__m512d; 2],
    first: VectorRow,
    second: VectorRow,
}

impl WideSection {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    fn new(section: &Biquad, state: &LaneState) -> WideSection {
        let mut running = WideSection {
            b: [_mm512_setzero_pd(); 3],
            a: [_mm512_setzero_pd(); 2],
            first: load_row(&state[0]),
            second: load_row(&state[1]),
        };
        running.b.iter_mut().zip(section.b).for_each(|(place, weight)| *place = _mm512_set1_pd(weight));
        running.a.iter_mut().zip(section.a).for_each(|(place, weight)| *place = _mm512_set1_pd(weight));
        running
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    fn next(&mut self, row: VectorRow) -> VectorRow {
        let mut out = row;
        for half in 0..HALVES {
            let sample = row[half];
            out[half] = _mm512_fmadd_pd(self.b[0], sample, self.first[half]);
            let passed = _mm512_fmadd_pd(self.b[1], sample, self.second[half]);
            self.first[half] = _mm512_fnmadd_pd(self.a[0], out[half], passed);
            self.second[half] = _mm512_fnmadd_pd(self.a[1], out[half], _mm512_mul_pd(self.b[2], sample));
        }
        out
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    fn end(&self, state: &mut LaneState) {
        store_row(&mut state[0], self.first);
        store_row(&mut state[1], self.second);
        state.iter_mut().flatten().for_each(settle);
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn one_section(section: &Biquad, tile: &mut [[f64; LANES]; TILE], state: &mut LaneState) {
    let mut running = WideSection::new(section, state);
    for row in tile {
        store_row(row, running.next(load_row(row)));
    }
    running.end(state);
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn two_sections(sections: &[Biquad; 2], tile: &mut [[f64; LANES]; TILE], states: &mut [LaneState; 2]) {
    let (mut one, mut two) = (WideSection::new(&sections[0], &states[0]), WideSection::new(&sections[1], &states[1]));
    let mut between = one.next(load_row(&tile[0]));
    for at in 1..TILE {
        let next = one.next(load_row(&tile[at]));
        store_row(&mut tile[at - 1], two.next(between));
        between = next;
    }
    store_row(&mut tile[TILE - 1], two.next(between));
    one.end(&mut states[0]);
    two.end(&mut states[1]);
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn load_row(row: &[f64; LANES]) -> VectorRow {
    // SAFETY: the row is two vectors.
    unsafe { [_mm512_loadu_pd(row.as_ptr()), _mm512_loadu_pd(row.as_ptr().add(WIDTH))] }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn store_row(row: &mut [f64; LANES], values: VectorRow) {
    // SAFETY: the row has room for two vectors.
    unsafe {
        _mm512_storeu_pd(row.as_mut_ptr(), values[0]);
        _mm512_storeu_pd(row.as_mut_ptr().add(WIDTH), values[1]);
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn load(line: Option<&[f32; LANES]>) -> __m512 {
    let line = line.unwrap_or(&[0.0; LANES]);
    // SAFETY: the line has sixteen numbers.
    unsafe { _mm512_loadu_ps(line.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn store_wide(row: &mut [f64; LANES], samples: __m512) {
    let high = _mm512_extractf32x8_ps::<1>(samples);
    store_row(row, [_mm512_cvtps_pd(_mm512_castps512_ps256(samples)), _mm512_cvtps_pd(high)]);
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn load_narrow(row: &[f64; LANES]) -> __m512 {
    let [low, high] = load_row(row);
    _mm512_insertf32x8::<1>(_mm512_castps256_ps512(_mm512_cvtpd_ps(low)), _mm512_cvtpd_ps(high))
}

/// Transposes a square of numbers: first in pairs, then in fours, then by quarters of vectors.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn turned(rows: [__m512; LANES]) -> [__m512; LANES] {
    let (mut pairs, mut fours, mut columns) = (rows, rows, rows);
    for at in (0..LANES).step_by(2) {
        pairs[at] = _mm512_unpacklo_ps(rows[at], rows[at + 1]);
        pairs[at + 1] = _mm512_unpackhi_ps(rows[at], rows[at + 1]);
    }
    for at in (0..LANES).step_by(4) {
        for half in 0..2 {
            let (a, b) = (_mm512_castps_pd(pairs[at + half]), _mm512_castps_pd(pairs[at + 2 + half]));
            fours[at + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
            fours[at + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        }
    }
    // Quarter `q` of `fours[4g + c]` has column `4q + c` of the rows from `4g` on.
    for at in 0..4 {
        let even = [0, 8].map(|first| _mm512_shuffle_f32x4::<0x88>(fours[first + at], fours[first + 4 + at]));
        let odd = [0, 8].map(|first| _mm512_shuffle_f32x4::<0xdd>(fours[first + at], fours[first + 4 + at]));
        columns[at] = _mm512_shuffle_f32x4::<0x88>(even[0], even[1]);
        columns[8 + at] = _mm512_shuffle_f32x4::<0xdd>(even[0], even[1]);
        columns[4 + at] = _mm512_shuffle_f32x4::<0x88>(odd[0], odd[1]);
        columns[12 + at] = _mm512_shuffle_f32x4::<0xdd>(odd[0], odd[1]);
    }
    columns
}
