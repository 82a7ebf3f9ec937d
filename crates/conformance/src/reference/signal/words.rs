//! Reed–Solomon and erasure codes: products by shifting and adding, divisions by search, and
//! elimination for unknowns.

use panoply_core::op::signal::{ErasureEncode, ErasureRebuild, ReedSolomon, RsDecode, RsEncode};
use panoply_core::{DType, Result, Tensor, Value};

use crate::values::tensor_of;

/// The field of a polynomial.
#[derive(Clone, Copy)]
struct Field(u16);

impl Field {
    fn mul(self, a: u8, b: u8) -> u8 {
        let mut sum = 0_u16;
        for bit in (0..8).rev() {
            sum <<= 1;
            if sum & 0x100 != 0 {
                sum ^= self.0;
            }
            if b >> bit & 1 == 1 {
                sum ^= u16::from(a);
            }
        }
        sum as u8
    }

    fn inverse(self, a: u8) -> u8 {
        (1..=255).find(|b| self.mul(a, *b) == 1).unwrap_or(0)
    }

    fn power(self, exponent: usize) -> u8 {
        (0..exponent % 255).fold(1, |value, _| self.mul(value, 2))
    }

    /// The unique solution of `rows · x = right`, which may have more rows than unknowns. `None` if
    /// there is no solution or more than one.
    fn solve(self, mut rows: Vec<Vec<u8>>, mut right: Vec<u8>, unknowns: usize) -> Option<Vec<u8>> {
        for column in 0..unknowns {
            let pivot = (column..rows.len()).find(|row| rows[*row][column] != 0)?;
            rows.swap(column, pivot);
            right.swap(column, pivot);
            let scale = self.inverse(rows[column][column]);
            rows[column].iter_mut().for_each(|value| *value = self.mul(*value, scale));
            right[column] = self.mul(right[column], scale);
            let (own, own_right) = (rows[column].clone(), right[column]);
            for row in (0..rows.len()).filter(|row| *row != column) {
                let weight = rows[row][column];
                rows[row].iter_mut().zip(&own).for_each(|(value, own)| *value ^= self.mul(weight, *own));
                right[row] ^= self.mul(weight, own_right);
            }
        }
        right[unknowns.min(right.len())..].iter().all(|value| *value == 0).then(|| right[..unknowns].to_vec())
    }
}

/// A code's roots, computed once.
struct Code {
    shape: ReedSolomon,
    field: Field,
    /// The generator's roots.
    roots: Vec<u8>,
}

impl Code {
    fn new(shape: ReedSolomon) -> Code {
        let field = Field(shape.polynomial);
        let root = |index: usize| field.power(shape.root_step * (shape.first_root + index));
        Code { shape, field, roots: (0..shape.parity).map(root).collect() }
    }

    /// The value of the word's polynomial at each root.
    fn syndromes(&self, word: &[u8]) -> Vec<u8> {
        let value = |root: &u8| word.iter().fold(0, |sum, byte| self.field.mul(sum, *root) ^ byte);
        self.roots.iter().map(value).collect()
    }

    /// Appends the parity that makes every syndrome zero: the remainder of a long division by the
    /// generator.
    fn encode(&self, data: &[u8]) -> Vec<u8> {
        let mut generator = vec![1_u8];
        for root in &self.roots {
            let mut longer = generator.clone();
            longer.push(0);
            generator.iter().enumerate().for_each(|(at, weight)| longer[at + 1] ^= self.field.mul(*weight, *root));
            generator = longer;
        }
        let mut rest = data.to_vec();
        rest.resize(data.len() + self.shape.parity, 0);
        for at in 0..data.len() {
            let weight = rest[at];
            generator.iter().enumerate().for_each(|(place, own)| rest[at + place] ^= self.field.mul(*own, weight));
        }
        [data, &rest[data.len()..]].concat()
    }

    /// The corrected word and its number of wrong bytes: the fewest errors, besides the erasures,
    /// that explain all syndromes.
    fn decode(&self, word: &[u8], erased: &[usize]) -> Option<(Vec<u8>, usize)> {
        let (field, n) = (self.field, word.len());
        let syndromes = self.syndromes(word);
        if syndromes.iter().all(|value| *value == 0) {
            return Some((word.to_vec(), 0));
        }
        let locator = |index: usize| field.power(self.shape.root_step * (n - 1 - index));
        // The syndromes with the erasures removed.
        let mut others = syndromes.clone();
        for index in erased {
            others = others.windows(2).map(|pair| pair[1] ^ field.mul(pair[0], locator(*index))).collect();
        }
        for errors in 0..=others.len() / 2 {
            let rows = errors..others.len();
            let matrix = rows.clone().map(|row| (1..=errors).map(|back| others[row - back]).collect()).collect();
            let Some(weights) = field.solve(matrix, rows.map(|row| others[row]).collect(), errors) else { continue };
            let is_root = |index: &usize| {
                let inverse = field.inverse(locator(*index));
                let tail = weights.iter().rev().fold(0, |sum, weight| field.mul(sum ^ weight, inverse));
                tail == 1
            };
            let mut places: Vec<usize> = (0..n).filter(is_root).collect();
            if places.len() != errors || places.iter().any(|index| erased.contains(index)) {
                return None;
            }
            places.extend(erased);
            let row = |root: &u8| places.iter().map(|index| power_of(field, *root, n - 1 - index)).collect();
            let values = field.solve(self.roots.iter().map(row).collect(), syndromes, places.len())?;
            let mut mended = word.to_vec();
            places.iter().zip(&values).for_each(|(index, value)| mended[*index] ^= value);
            return Some((mended, values.iter().filter(|value| **value != 0).count()));
        }
        None
    }
}

fn power_of(field: Field, value: u8, exponent: usize) -> u8 {
    (0..exponent).fold(1, |product, _| field.mul(product, value))
}

pub(super) fn rs_encode(op: &RsEncode) -> Result<Value> {
    let (input, code) = (op.input.contiguous()?, Code::new(op.code));
    let words = input.as_slice::<u8>()?.chunks(op.code.data).flat_map(|data| code.encode(data)).collect();
    Tensor::from_vec(words, op.output_shape()?).map(Value::Tensor)
}

pub(super) fn rs_decode(op: &RsDecode) -> Result<Value> {
    let (input, code) = (op.input.contiguous()?, Code::new(op.code));
    let (data_shape, count_shape) = op.output_shapes()?;
    let (mut data, mut counts) = (Vec::<u8>::new(), Vec::new());
    for word in input.as_slice::<u8>()?.chunks(op.code.word()) {
        let outcome = code.decode(word, &op.erased);
        counts.push(outcome.as_ref().map_or(-1.0, |(_, count)| *count as f64));
        data.extend(&outcome.map_or(word.to_vec(), |(mended, _)| mended)[..op.code.data]);
    }
    Ok(Value::Pair(Tensor::from_vec(data, data_shape)?, tensor_of(DType::I32, &count_shape, &counts)))
}

/// The weights of the data shards in a shard.
fn weights(field: Field, data: usize, shard: usize) -> Vec<u8> {
    (0..data)
        .map(|column| if shard < data { u8::from(column == shard) } else { field.inverse((shard ^ column) as u8) })
        .collect()
}

fn made(field: Field, weights: &[u8], data: &[Vec<u8>]) -> Vec<u8> {
    let len = data.first().map_or(0, Vec::len);
    let byte = |at: usize| weights.iter().zip(data).fold(0, |sum, (weight, own)| sum ^ field.mul(*weight, own[at]));
    (0..len).map(byte).collect()
}

pub(super) fn erasure_encode(op: &ErasureEncode) -> Result<Value> {
    let (field, shards) = (Field(0x11d), shards(&op.input)?);
    let parity = (shards.len()..shards.len() + op.parity)
        .flat_map(|shard| made(field, &weights(field, shards.len(), shard), &shards))
        .collect();
    Tensor::from_vec(parity, op.output_shape()?).map(Value::Tensor)
}

pub(super) fn erasure_rebuild(op: &ErasureRebuild) -> Result<Value> {
    let (field, shards) = (Field(0x11d), shards(&op.input)?);
    let here: Vec<usize> = (0..shards.len()).filter(|shard| !op.missing.contains(shard)).take(op.data).collect();
    let len = op.input.shape()[1];
    let mut data = vec![vec![0; len]; op.data];
    for at in 0..len {
        let rows = here.iter().map(|shard| weights(field, op.data, *shard)).collect();
        let right = here.iter().map(|shard| shards[*shard][at]).collect();
        let solved = field.solve(rows, right, op.data).unwrap_or_default();
        data.iter_mut().zip(solved).for_each(|(shard, byte)| shard[at] = byte);
    }
    let back = op.missing.iter().flat_map(|shard| made(field, &weights(field, op.data, *shard), &data)).collect();
    Tensor::from_vec(back, op.output_shape()?).map(Value::Tensor)
}

fn shards(input: &Tensor) -> Result<Vec<Vec<u8>>> {
    let input = input.contiguous()?;
    let (count, len) = (input.shape()[0], input.shape()[1]);
    let bytes = input.as_slice::<u8>()?;
    Ok((0..count).map(|shard| bytes[shard * len..(shard + 1) * len].to_vec()).collect())
}
