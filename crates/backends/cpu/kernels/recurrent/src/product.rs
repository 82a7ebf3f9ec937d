//! The product of a few rows with a constant matrix: most of the work of a recurrent layer's step.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Number of columns of a panel.
const WIDTH: usize = 4 * LANES;
const LANES: usize = 16;

/// The instruction sets of the CPU, in increasing order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))] // Other CPUs have the first level only.
pub(crate) enum Level {
    Plain,
    Avx2,
    Avx512,
}

impl Level {
    pub(crate) fn detect() -> Level {
        #[cfg(target_arch = "x86_64")]
        {
            let has_avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            let has_wide = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl");
            if has_avx2 && has_wide && is_x86_feature_detected!("avx512dq") {
                return Level::Avx512;
            }
            if has_avx2 {
                return Level::Avx2;
            }
        }
        Level::Plain
    }
}

/// A cache line of numbers.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct CacheLine([f32; LANES]);

/// A matrix, and a row that is added to each row of a product with it. Stored as panels of
/// [`WIDTH`] columns, each in row-major order, the last one padded with zeros.
pub(crate) struct Panels {
    depth: usize,
    columns: usize,
    lines: Vec<CacheLine>,
    summands: Vec<CacheLine>,
}

impl Panels {
    /// Packs a matrix given column by column, each of `depth` numbers, and a summand for each
    /// column.
    pub(crate) fn new(matrix: &[f32], summands: &[f32], depth: usize) -> Panels {
        let columns = summands.len();
        let panels = columns.div_ceil(WIDTH);
        let mut lines = vec![CacheLine([0.0; LANES]); panels * depth * 4];
        for (column, values) in matrix.chunks_exact(depth.max(1)).take(columns).enumerate() {
            let (panel, at) = (column / WIDTH, column % WIDTH);
            for (row, value) in values.iter().enumerate() {
                lines[(panel * depth + row) * 4 + at / LANES].0[at % LANES] = *value;
            }
        }
        let mut padded = vec![CacheLine([0.0; LANES]); panels * 4];
        for (column, value) in summands.iter().enumerate() {
            padded[column / LANES].0[column % LANES] = *value;
        }
        Panels { depth, columns, lines, summands: padded }
    }

    /// The stride between rows of a product, in elements.
    pub(crate) fn stride(&self) -> usize {
        self.columns.next_multiple_of(WIDTH)
    }

    /// The product of rows with the matrix, plus the summands. Rows of the product are
    /// [`Panels::stride`] apart; the elements beyond the matrix's columns are padding. For a matrix
    /// larger than the cache, alternate `is_backwards` between calls: each product then starts with
    /// the panels that the previous one left in the cache.
    pub(crate) fn multiply(&self, level: Level, rows: &[f32], product: &mut [f32], is_backwards: bool) {
        let (depth, stride) = (self.depth, self.stride());
        let count = product.len() / stride.max(1);
        assert!(rows.len() == count * depth && product.len() == count * stride, "as many rows of each");
        let panels = stride / WIDTH;
        for place in 0..panels {
            let panel = if is_backwards { panels - 1 - place } else { place };
            let lines = &self.lines[panel * depth * 4..][..depth * 4];
            let summands = &self.summands[panel * 4..][..4];
            let mut row = 0;
            while row < count {
                let taken = if count - row >= 4 && level == Level::Avx512 { 4 } else { 1 };
                let x = &rows[row * depth..][..taken * depth];
                let y = &mut product[row * stride..][..taken * stride];
                block(level, (lines, summands), x, y, (stride, panel * WIDTH));
                row += taken;
            }
        }
    }
}

/// A panel's part of one row of the product, or of four rows.
fn block(
    level: Level,
    panel: (&[CacheLine], &[CacheLine]),
    x: &[f32],
    y: &mut [f32],
    (stride, column): (usize, usize),
) {
    let _ = (level, stride);
    #[cfg(target_arch = "x86_64")]
    match level {
        // SAFETY: the level was detected, so the CPU has the instructions.
        Level::Avx512 if y.len() > stride => return unsafe { four_avx512(panel, x, y, (stride, column)) },
        // SAFETY: as above.
        Level::Avx512 => return unsafe { one_avx512(panel, x, &mut y[column..][..WIDTH]) },
        // SAFETY: as above.
        Level::Avx2 => return unsafe { one_avx2(panel, x, &mut y[column..][..WIDTH]) },
        Level::Plain => {}
    }
    let (lines, summands) = panel;
    for (part, target) in y[column..][..WIDTH].chunks_exact_mut(LANES).enumerate() {
        let mut sums = summands[part].0;
        for (lines, x) in lines.chunks_exact(4).zip(x) {
            sums.iter_mut().zip(&lines[part].0).for_each(|(sum, weight)| *sum += x * weight);
        }
        target.copy_from_slice(&sums);
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn one_avx512((lines, summands): (&[CacheLine], &[CacheLine]), x: &[f32], y: &mut [f32]) {
    let load = |line: &CacheLine| {
        // SAFETY: a line has as many numbers as a vector, and is aligned to the vector's size.
        unsafe { _mm512_load_ps(line.0.as_ptr()) }
    };
    // Two sums for each column, because one sum alone would wait for the addition before it.
    let mut even = [load(&summands[0]), load(&summands[1]), load(&summands[2]), load(&summands[3])];
    let mut odd = [_mm512_setzero_ps(); 4];
    let (pairs, x_pairs) = (lines.chunks_exact(8), x.chunks_exact(2));
    let (last, last_x) = (pairs.remainder(), x_pairs.remainder());
    for (lines, x) in pairs.zip(x_pairs) {
        let (a, b) = (_mm512_set1_ps(x[0]), _mm512_set1_ps(x[1]));
        for part in 0..4 {
            even[part] = _mm512_fmadd_ps(a, load(&lines[part]), even[part]);
            odd[part] = _mm512_fmadd_ps(b, load(&lines[4 + part]), odd[part]);
        }
    }
    if let ([x], [_, _, _, _]) = (last_x, last) {
        let a = _mm512_set1_ps(*x);
        for part in 0..4 {
            even[part] = _mm512_fmadd_ps(a, load(&last[part]), even[part]);
        }
    }
    for (part, target) in y.chunks_exact_mut(LANES).take(4).enumerate() {
        // SAFETY: the chunk has as many numbers as a vector.
        unsafe { _mm512_storeu_ps(target.as_mut_ptr(), _mm512_add_ps(even[part], odd[part])) };
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn four_avx512(
    (lines, summands): (&[CacheLine], &[CacheLine]),
    x: &[f32],
    y: &mut [f32],
    (stride, column): (usize, usize),
) {
    let load = |line: &CacheLine| {
        // SAFETY: a line has as many numbers as a vector, and is aligned to the vector's size.
        unsafe { _mm512_load_ps(line.0.as_ptr()) }
    };
    let start = [load(&summands[0]), load(&summands[1]), load(&summands[2]), load(&summands[3])];
    let mut sums = [start; 4];
    let depth = lines.len() / 4;
    let (ab, cd) = x.split_at(2 * depth);
    let ((a, b), (c, d)) = (ab.split_at(depth), cd.split_at(depth));
    for ((((lines, a), b), c), d) in lines.chunks_exact(4).zip(a).zip(b).zip(c).zip(d) {
        let weights = [load(&lines[0]), load(&lines[1]), load(&lines[2]), load(&lines[3])];
        for (row, x) in [*a, *b, *c, *d].into_iter().enumerate() {
            let x = _mm512_set1_ps(x);
            for part in 0..4 {
                sums[row][part] = _mm512_fmadd_ps(x, weights[part], sums[row][part]);
            }
        }
    }
    for (row, sums) in sums.iter().enumerate() {
        for (target, sum) in y[row * stride + column..][..WIDTH].chunks_exact_mut(LANES).zip(sums) {
            // SAFETY: the chunk has as many numbers as a vector.
            unsafe { _mm512_storeu_ps(target.as_mut_ptr(), *sum) };
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn one_avx2((lines, summands): (&[CacheLine], &[CacheLine]), x: &[f32], y: &mut [f32]) {
    let load = |lines: &[CacheLine], part: usize| {
        // SAFETY: half a line has as many numbers as a vector, and is aligned to the vector's size.
        unsafe { _mm256_load_ps(lines[part / 2].0[part % 2 * 8..][..8].as_ptr()) }
    };
    let mut sums = [_mm256_setzero_ps(); 8];
    for (part, sum) in sums.iter_mut().enumerate() {
        *sum = load(summands, part);
    }
    for (lines, x) in lines.chunks_exact(4).zip(x) {
        let x = _mm256_set1_ps(*x);
        for (part, sum) in sums.iter_mut().enumerate() {
            *sum = _mm256_fmadd_ps(x, load(lines, part), *sum);
        }
    }
    for (target, sum) in y.chunks_exact_mut(8).zip(&sums) {
        // SAFETY: the chunk has as many numbers as a vector.
        unsafe { _mm256_storeu_ps(target.as_mut_ptr(), *sum) };
    }
}

/// The levels that this CPU supports.
#[cfg(test)]
pub(super) fn levels() -> impl Iterator<Item = Level> {
    [Level::Plain, Level::Avx2, Level::Avx512].into_iter().filter(|level| *level <= Level::detect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_multiplies() {
        for (rows, depth, columns) in [(1, 1, 1), (1, 7, 65), (3, 128, 64), (4, 33, 130), (5, 64, 200), (9, 2, 63)] {
            let number = |seed: usize| ((seed * 7919 % 1013) as f32 - 506.0) / 300.0;
            let matrix: Vec<f32> = (0..columns * depth).map(number).collect();
            let summands: Vec<f32> = (0..columns).map(|at| number(at + 31)).collect();
            let x: Vec<f32> = (0..rows * depth).map(|at| number(at + 77)).collect();
            let panels = Panels::new(&matrix, &summands, depth);
            for level in levels() {
                let [mut product, mut again] = [(); 2].map(|()| vec![f32::NAN; rows * panels.stride()]);
                panels.multiply(level, &x, &mut product, false);
                panels.multiply(level, &x, &mut again, true);
                assert_eq!(product, again, "{level:?}");
                for row in 0..rows {
                    for column in 0..columns {
                        let terms = (0..depth)
                            .map(|at| f64::from(x[row * depth + at]) * f64::from(matrix[column * depth + at]));
                        let expected = terms.sum::<f64>() + f64::from(summands[column]);
                        let got = f64::from(product[row * panels.stride() + column]);
                        assert!((got - expected).abs() < 1e-4, "{level:?} {row} {column}: {got} for {expected}");
                    }
                }
            }
        }
    }
}
