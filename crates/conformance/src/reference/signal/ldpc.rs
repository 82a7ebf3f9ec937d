//! LdpcEncode and LdpcDecode: parity by elimination, messages in f64.

use panoply_core::op::signal::{Ldpc, LdpcDecode, LdpcEncode};
use panoply_core::{DType, Result, Tensor, Value};

use crate::values::{tensor_of, to_f64};

pub(super) fn encode(op: &LdpcEncode) -> Result<Value> {
    let (input, shape) = (op.input.contiguous()?, op.output_shape()?);
    let data = input.as_slice::<u8>()?;
    let parity = Parity::new(op.code);
    let coded: Vec<u8> = data.chunks(op.code.data_bits().div_ceil(8)).flat_map(|data| parity.encode(data)).collect();
    Tensor::from_vec(coded, shape).map(Value::Tensor)
}

/// For each parity bit, the data bits whose sum it is.
struct Parity {
    code: Ldpc,
    sums: Vec<Vec<u64>>,
}

fn get(bits: &[u64], at: usize) -> bool {
    bits[at / 64] >> (at % 64) & 1 == 1
}

impl Parity {
    /// Solves the checks for the bits after the data, one after the other.
    fn new(code: Ldpc) -> Parity {
        let (data, word) = (code.data_bits(), code.word_bits());
        let mut rows: Vec<Vec<u64>> = Vec::new();
        for check in code.parity_checks() {
            let mut row = vec![0_u64; word.div_ceil(64)];
            check.iter().for_each(|bit| row[*bit as usize / 64] ^= 1 << (bit % 64));
            rows.push(row);
        }
        for (index, column) in (data..word).enumerate() {
            let pivot = (index..rows.len()).find(|row| get(&rows[*row], column));
            rows.swap(index, pivot.unwrap_or_else(|| panic!("{code:?} has no parity of its own in column {column}")));
            let own = rows[index].clone();
            for (_, row) in rows.iter_mut().enumerate().filter(|(at, row)| *at != index && get(row, column)) {
                row.iter_mut().zip(&own).for_each(|(word, own)| *word ^= own);
            }
        }
        Parity { code, sums: rows }
    }

    fn encode(&self, data: &[u8]) -> Vec<u8> {
        let count = self.code.data_bits();
        let mut bits: Vec<u8> = (0..count).map(|at| data[at / 8] >> (7 - at % 8) & 1).collect();
        for sum in &self.sums {
            let parity = (0..count).filter(|at| get(sum, *at)).fold(0, |parity, at| parity ^ bits[at]);
            bits.push(parity);
        }
        packed(&bits[self.code.sent()])
    }
}

fn packed(bits: &[u8]) -> Vec<u8> {
    bits.chunks(8).map(|bits| bits.iter().enumerate().fold(0, |byte, (at, bit)| byte | bit << (7 - at))).collect()
}

pub(super) fn decode(op: &LdpcDecode) -> Result<Value> {
    let (likelihoods, (shape, count_shape)) = (to_f64(&op.input)?, op.output_shapes()?);
    let checks = op.code.parity_checks();
    let (mut data, mut counts) = (Vec::new(), Vec::new());
    for word in likelihoods.chunks(op.code.coded_bits()) {
        let mut beliefs = vec![0.0; op.code.word_bits()];
        for (belief, likelihood) in beliefs[op.code.sent()].iter_mut().zip(word) {
            *belief = if likelihood.is_nan() { 0.0 } else { likelihood.clamp(-1e6, 1e6) };
        }
        counts.push(settle(&mut beliefs, &checks, op.iterations));
        let bits: Vec<u8> = beliefs[..op.code.data_bits()].iter().map(|belief| u8::from(*belief < 0.0)).collect();
        data.extend(packed(&bits));
    }
    Ok(Value::Pair(Tensor::from_vec(data, shape)?, tensor_of(DType::I32, &count_shape, &counts)))
}

/// Runs the decoder until all checks hold. Returns the number of iterations, or -1.
fn settle(beliefs: &mut [f64], checks: &[Vec<u32>], iterations: usize) -> f64 {
    let mut messages: Vec<Vec<f64>> = checks.iter().map(|check| vec![0.0; check.len()]).collect();
    for iteration in 0..=iterations {
        // A bit of which nothing is known fails its checks.
        let holds = |check: &Vec<u32>| {
            let of = |bit: &u32| beliefs[*bit as usize];
            check.iter().all(|bit| of(bit) != 0.0) && check.iter().filter(|bit| of(bit) < 0.0).count().is_multiple_of(2)
        };
        if checks.iter().all(holds) {
            return iteration as f64;
        }
        if iteration == iterations {
            break;
        }
        for (check, own) in checks.iter().zip(&mut messages) {
            let others: Vec<f64> = check.iter().zip(&*own).map(|(bit, own)| beliefs[*bit as usize] - own).collect();
            for (at, (bit, own)) in check.iter().zip(own).enumerate() {
                let rest = || others.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, value)| *value);
                let least = rest().map(f64::abs).fold(f64::INFINITY, f64::min);
                let is_odd = rest().filter(|value| *value < 0.0).count() % 2 == 1;
                *own = 0.75 * if is_odd { -least } else { least };
                beliefs[*bit as usize] = others[at] + *own;
            }
        }
    }
    -1.0
}
