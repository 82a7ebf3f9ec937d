//! Erasure codes: `m` parity shards are computed from `k` data shards, and the data can be restored
//! from any `k` of all shards.
//!
//! The weights are those of a Cauchy matrix in the field of `0x11d`, as in ISA-L's
//! `gf_gen_cauchy1_matrix`, so shards can be exchanged with ISA-L.

use std::sync::Arc;

use panoply_core::Threads;

use crate::gf256::Field;
use crate::level::Level;
use crate::threads::share;

/// The largest total number of shards: the number of elements of the field.
pub const SHARDS_MAX: usize = 256;

/// The least number of bytes of each shard on which a thread works at a time.
const PIECE_BYTES_MIN: usize = 16 << 10;

/// A matrix of weights from `k` shards to other shards.
pub struct Weights {
    field: Arc<Field>,
    level: Level,
    rows: Vec<Vec<u8>>,
}

impl Weights {
    /// The weights from data to parity. `None` if there are too many shards or no data shards.
    pub fn parity(level: Level, data: usize, parity: usize) -> Option<Weights> {
        let field = Field::common()?;
        if data == 0 || data.checked_add(parity)? > SHARDS_MAX {
            return None;
        }
        let rows = (data..data + parity).map(|row| cauchy(&field, data, row)).collect();
        Some(Weights { field, level, rows })
    }

    /// The weights from the first `data` surviving shards to the missing ones. `None` if too many
    /// are missing.
    pub fn rebuild(level: Level, data: usize, parity: usize, missing: &[usize]) -> Option<Weights> {
        let field = Field::common()?;
        let total = data.checked_add(parity).filter(|total| data > 0 && *total <= SHARDS_MAX)?;
        if missing.iter().any(|shard| *shard >= total) {
            return None;
        }
        let here = survivors(data, parity, missing)?;
        let row = |shard: usize| match shard.checked_sub(data) {
            None => (0..data).map(|column| u8::from(column == shard)).collect(),
            Some(_) => cauchy(&field, data, shard),
        };
        let back = inverse(&field, here.iter().map(|shard| row(*shard)).collect())?;
        let rows = missing
            .iter()
            .map(|shard| {
                let weights: Vec<u8> = row(*shard);
                let column = |at: usize| {
                    weights.iter().zip(&back).fold(0, |sum, (weight, row)| sum ^ field.mul(*weight, row[at]))
                };
                (0..data).map(column).collect()
            })
            .collect();
        Some(Weights { field, level, rows })
    }

    /// Computes the shards. There is a source for each weight of a row and an output for each row,
    /// all of the same length.
    pub fn apply(&self, threads: &dyn Threads, sources: &[&[u8]], outputs: &mut [&mut [u8]]) {
        if outputs.is_empty() {
            return;
        }
        let len = sources.first().map_or(0, |source| source.len());
        let piece = share(len, threads.count(), PIECE_BYTES_MIN).next_multiple_of(128);
        let mut pieces: Vec<Vec<&mut [u8]>> = (0..len.div_ceil(piece)).map(|_| Vec::new()).collect();
        for output in outputs.iter_mut() {
            output.chunks_mut(piece).zip(&mut pieces).for_each(|(part, piece)| piece.push(part));
        }
        let pieces: Vec<std::sync::Mutex<Vec<&mut [u8]>>> = pieces.into_iter().map(std::sync::Mutex::new).collect();
        let weights: Vec<&[u8]> = self.rows.iter().map(Vec::as_slice).collect();
        threads.run(pieces.len(), &|index| {
            let begin = index * piece;
            let end = len.min(begin + piece);
            let sources: Vec<&[u8]> = sources.iter().map(|source| &source[begin..end]).collect();
            // Each piece is taken by one task only, so this lock never blocks.
            let mut own = pieces[index].lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            self.field.combine(self.level, &weights, &sources, &mut own);
        });
    }
}

/// The shards from which the missing ones are computed: the first `data` shards that survive.
/// `None` if there are fewer.
pub fn survivors(data: usize, parity: usize, missing: &[usize]) -> Option<Vec<usize>> {
    let here: Vec<usize> = (0..data + parity).filter(|shard| !missing.contains(shard)).take(data).collect();
    (here.len() == data).then_some(here)
}

fn cauchy(field: &Field, data: usize, row: usize) -> Vec<u8> {
    (0..data).map(|column| field.div(1, (row ^ column) as u8)).collect()
}

/// The inverse of a square matrix, by Gauss-Jordan elimination. `None` if the matrix is singular.
fn inverse(field: &Field, mut matrix: Vec<Vec<u8>>) -> Option<Vec<Vec<u8>>> {
    let size = matrix.len();
    let mut inverse: Vec<Vec<u8>> =
        (0..size).map(|row| (0..size).map(|column| u8::from(row == column)).collect()).collect();
    for column in 0..size {
        let pivot = (column..size).find(|row| matrix[*row][column] != 0)?;
        matrix.swap(column, pivot);
        inverse.swap(column, pivot);
        let scale = field.div(1, matrix[column][column]);
        for value in matrix[column].iter_mut().chain(&mut inverse[column]) {
            *value = field.mul(*value, scale);
        }
        let (own, own_inverse) = (matrix[column].clone(), inverse[column].clone());
        for row in (0..size).filter(|row| *row != column) {
            let weight = matrix[row][column];
            let add = |to: &mut Vec<u8>, from: &[u8]| {
                to.iter_mut().zip(from).for_each(|(place, value)| *place ^= field.mul(weight, *value));
            };
            add(&mut matrix[row], &own);
            add(&mut inverse[row], &own_inverse);
        }
    }
    Some(inverse)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::tests::ScopedThreads;

    #[test]
    fn any_shards_give_the_others_back() {
        for (k, m, len) in [(1, 1, 1), (3, 2, 100), (10, 4, 70_001), (17, 3, 64), (4, 0, 8)] {
            let data: Vec<Vec<u8>> = (0..k)
                .map(|shard| (0..len).map(|at: usize| (at * 31 + shard * 7 + at / 256) as u8).collect())
                .collect();
            let mut parity = vec![vec![0; len]; m];
            let sources: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
            let mut outputs: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
            Weights::parity(Level::best(), k, m).unwrap().apply(&ScopedThreads(2), &sources, &mut outputs);
            let all: Vec<&[u8]> = data.iter().chain(&parity).map(Vec::as_slice).collect();
            for first in 0..k + m {
                let missing: Vec<usize> = (0..m).map(|step| (first + step * 2) % (k + m)).collect();
                let mut distinct = missing.clone();
                distinct.sort();
                distinct.dedup();
                let here = survivors(k, m, &distinct).unwrap();
                let sources: Vec<&[u8]> = here.iter().map(|shard| all[*shard]).collect();
                let mut back = vec![vec![0; len]; distinct.len()];
                let mut outputs: Vec<&mut [u8]> = back.iter_mut().map(Vec::as_mut_slice).collect();
                let weights = Weights::rebuild(Level::best(), k, m, &distinct).unwrap();
                weights.apply(&ScopedThreads(3), &sources, &mut outputs);
                for (shard, back) in distinct.iter().zip(&back) {
                    assert_eq!(back, all[*shard]);
                }
            }
        }
    }

    #[test]
    fn too_many_shards_or_losses_are_refused() {
        let level = Level::PLAIN;
        assert!(Weights::parity(level, 0, 3).is_none() && Weights::parity(level, 200, 57).is_none());
        assert!(Weights::parity(level, usize::MAX, 2).is_none());
        assert!(Weights::rebuild(level, 3, 1, &[0, 1]).is_none() && Weights::rebuild(level, 3, 1, &[4]).is_none());
    }
}
