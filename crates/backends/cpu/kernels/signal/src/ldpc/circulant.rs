//! Matrices of circulants over the field of two elements. Those of the telemetry codes have four by
//! four circulants.
//!
//! A circulant of size `q` is a polynomial modulo `x^q - 1`: row `r` has ones at `r + e` for each
//! exponent `e`. Because `q` is a power of two, the `q`-th power of a polynomial is 1 if it has an
//! odd number of terms, and 0 if it has an even number. In the first case the polynomial has an
//! inverse, its power `q - 1`.

/// Number of blocks in a row, and in a column.
const SIDE: usize = 4;

/// A polynomial as a bit set of its exponents.
type Poly = Vec<u64>;

/// The inverse of a matrix of circulants.
pub(super) struct Solver {
    size: usize,
    inverse: Vec<Vec<Poly>>,
}

impl Solver {
    /// The inverse of the matrix whose rows have ones in these columns. `None` if the matrix is
    /// singular or does not consist of circulants.
    pub(super) fn new(rows: &[Vec<usize>]) -> Option<Solver> {
        let size = rows.len() / SIDE;
        if !size.is_power_of_two() || rows.len() != SIDE * size {
            return None;
        }
        // The first row of a circulant determines all of it.
        let mut matrix = vec![vec![vec![0_u64; size.div_ceil(64)]; 2 * SIDE]; SIDE];
        for (row, blocks) in matrix.iter_mut().enumerate() {
            for column in &rows[row * size] {
                flip(&mut blocks[column / size], column % size);
            }
            flip(&mut blocks[SIDE + row], 0);
        }
        let is_circulant = |(index, columns): (usize, &Vec<usize>)| {
            let (row, shift) = (index / size, index % size);
            let mut expected: Vec<usize> =
                rows[row * size].iter().map(|column| column / size * size + (column % size + shift) % size).collect();
            let mut columns = columns.clone();
            expected.sort_unstable();
            columns.sort_unstable();
            expected == columns
        };
        if !rows.iter().enumerate().all(is_circulant) {
            return None;
        }
        eliminate(&mut matrix, size)?;
        Some(Solver { size, inverse: matrix.into_iter().map(|row| row[SIDE..].to_vec()).collect() })
    }

    /// The bits that the matrix maps to `right`.
    pub(super) fn solve(&self, right: &[u8], solution: &mut [u8]) {
        for (row, out) in self.inverse.iter().zip(solution.chunks_exact_mut(self.size)) {
            let mut sum = vec![0_u64; self.size.div_ceil(64)];
            for (poly, right) in row.iter().zip(right.chunks_exact(self.size)) {
                // Entry `r` is the sum of `right` at all `r + e`: each one in `right` contributes
                // at its index minus every `e`.
                let mut turned = vec![0_u64; sum.len()];
                (0..self.size).filter(|e| get(poly, *e)).for_each(|e| flip(&mut turned, (self.size - e) % self.size));
                (0..self.size)
                    .filter(|at| right[*at] == 1)
                    .for_each(|at| add_shifted(&mut sum, &turned, at, self.size));
            }
            out.iter_mut().enumerate().for_each(|(at, bit)| *bit = u8::from(get(&sum, at)));
        }
    }
}

fn get(poly: &[u64], at: usize) -> bool {
    poly[at / 64] >> (at % 64) & 1 == 1
}

fn flip(poly: &mut [u64], at: usize) {
    poly[at / 64] ^= 1 << (at % 64);
}

/// `sum += poly · x^by`.
fn add_shifted(sum: &mut [u64], poly: &[u64], by: usize, size: usize) {
    if size < 64 {
        let mask = (1_u64 << size) - 1;
        sum[0] ^= (poly[0] << by | poly[0] >> ((size - by) % size)) & mask;
        return;
    }
    let (words, bits, count) = (by / 64, by % 64, poly.len());
    for (at, word) in poly.iter().enumerate() {
        sum[(at + words) % count] ^= word << bits;
        if bits > 0 {
            sum[(at + words + 1) % count] ^= word >> (64 - bits);
        }
    }
}

fn product(a: &[u64], b: &[u64], size: usize) -> Poly {
    let mut sum = vec![0; a.len()];
    (0..size).filter(|at| get(a, *at)).for_each(|at| add_shifted(&mut sum, b, at, size));
    sum
}

/// The inverse of a polynomial with an odd number of terms: the product of its 1st, 2nd, 4th …
/// powers.
fn inverse(poly: &Poly, size: usize) -> Option<Poly> {
    if poly.iter().map(|word| word.count_ones()).sum::<u32>().is_multiple_of(2) {
        return None;
    }
    let mut result = vec![0; poly.len()];
    flip(&mut result, 0);
    let mut power = poly.clone();
    for _ in 0..size.ilog2() {
        result = product(&result, &power, size);
        // Squaring doubles every exponent.
        let mut square = vec![0; poly.len()];
        (0..size).filter(|at| get(&power, *at)).for_each(|at| flip(&mut square, 2 * at % size));
        power = square;
    }
    Some(result)
}

/// Reduces the left half to the identity. `None` if the matrix is singular.
fn eliminate(matrix: &mut [Vec<Poly>], size: usize) -> Option<()> {
    for column in 0..SIDE {
        let (pivot, weight) = (column..SIDE).find_map(|row| Some((row, inverse(&matrix[row][column], size)?)))?;
        matrix.swap(column, pivot);
        matrix[column].iter_mut().for_each(|poly| *poly = product(poly, &weight, size));
        let own = matrix[column].clone();
        for row in (0..SIDE).filter(|row| *row != column) {
            let weight = matrix[row][column].clone();
            for (poly, own) in matrix[row].iter_mut().zip(&own) {
                let change = product(&weight, own, size);
                poly.iter_mut().zip(change).for_each(|(word, change)| *word ^= change);
            }
        }
    }
    Some(())
}
