//! Random numbers as a function of a seed, a stream and a counter. They are the same on the host
//! and on every device, and can be computed in any order.
//!
//! A number is made by wrapping 32-bit multiplications and additions, and by divisions by powers of
//! two. These are the only integer operations that maps have on every device. [`Random`] computes
//! the numbers on the host; [`mask`] computes the same numbers as an expression of a graph.

use panoply_core::expr::Expr;
use panoply_core::graph::{Dim, GraphBuilder, NodeId};
use panoply_core::op::compute::Scan;
use panoply_core::{DType, Tensor};

use crate::error::Result;

/// Odd factors with irregular bit patterns.
const FACTORS: [u32; 4] = [0x9e37_79b1, 0x85eb_ca6b, 0xc2b2_ae35, 0x27d4_eb2f];
/// Number of bits by which a word is rotated after each round.
const TURNS: [u32; 4] = [16, 13, 16, 11];

/// The number at index `counter` of the stream of a key. Each round computes `w · (2w + 1)`, whose
/// high bits depend on all other bits, and rotates the word.
pub fn number(key: u32, counter: u32) -> u32 {
    let square = |word: u32| word.wrapping_mul(word.wrapping_mul(2).wrapping_add(1));
    let mut word = counter.wrapping_mul(FACTORS[3]).wrapping_add(key);
    for (factor, turn) in FACTORS.into_iter().zip(TURNS) {
        word = square(word).rotate_left(turn).wrapping_mul(factor).wrapping_add(key);
    }
    word = square(word);
    word.wrapping_add(word >> 16)
}

/// The key of a stream: a hash of a seed and the stream's name.
pub fn key(seed: u64, stream: &str) -> u32 {
    let mut hash = seed ^ 0xcbf2_9ce4_8422_2325;
    for byte in stream.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    number(hash as u32, (hash >> 32) as u32)
}

/// A stream of numbers on the host.
#[derive(Clone, Debug)]
pub struct Random {
    key: u32,
    counter: u32,
}

impl Random {
    /// The stream with this seed and this name.
    pub fn new(seed: u64, stream: &str) -> Random {
        Random { key: key(seed, stream), counter: 0 }
    }

    /// The next number.
    pub fn next_u32(&mut self) -> u32 {
        let made = number(self.key, self.counter);
        self.counter = self.counter.wrapping_add(1);
        made
    }

    /// A uniformly distributed number of at least 0 and less than 1.
    pub fn uniform(&mut self) -> f32 {
        (self.next_u32() >> 8) as f32 / (1 << 24) as f32
    }

    /// A normally distributed number (mean 0, variance 1), by the Box-Muller transform.
    pub fn normal(&mut self) -> f32 {
        let (first, second) = (1.0 - self.uniform(), self.uniform());
        (-2.0 * first.ln()).sqrt() * (std::f32::consts::TAU * second).cos()
    }

    /// A uniformly distributed number below `limit`, which must not be zero.
    pub fn below(&mut self, limit: usize) -> usize {
        let wide = (u64::from(self.next_u32()) << 32) | u64::from(self.next_u32());
        ((u128::from(wide) * limit as u128) >> 64) as usize
    }

    /// Shuffles the elements.
    pub fn shuffle<T>(&mut self, elements: &mut [T]) {
        for place in (1..elements.len()).rev() {
            elements.swap(place, self.below(place + 1));
        }
    }
}

/// Ones and zeros of this shape and type, a one with probability `keep`. `seed` is a u32 scalar
/// that is given when the graph runs. `stream` makes the masks of one graph independent of each
/// other.
pub fn mask(g: &mut GraphBuilder, dims: &[Dim], dtype: DType, keep: f64, seed: NodeId, stream: &str) -> Result<NodeId> {
    let elements = dims.iter().fold(Dim::fixed(1), |product, dim| product * *dim);
    let one = g.unnamed_constant(&Tensor::scalar(1_u32)?)?;
    let ones = g.broadcast(one, &[elements])?;
    // The counters depend on constants alone, so they are computed once for each size.
    let counters = g.op(&[ones], |t| Scan::sum(&t[0]).exclusive())?;
    let counters = g.reshape(counters, dims)?;
    let stream = f64::from(key(0, stream).wrapping_mul(FACTORS[3]));
    let key = g.map(&[seed], |v| number_expr(v[0].clone(), Expr::constant(stream)))?;
    let below = (keep.clamp(0.0, 1.0) * 4_294_967_296.0).min(4_294_967_295.0).floor();
    Ok(g.map(&[counters, key], |v| {
        number_expr(v[1].clone(), v[0].clone() * f64::from(FACTORS[3])).lt(below).cast(dtype)
    })?)
}

/// [`number`] as an expression of the key and of the counter times the last factor.
fn number_expr(key: Expr, counted: Expr) -> Expr {
    let power = |shift: u32| f64::from(1_u32 << shift);
    let square = |word: Expr| word.clone() * (word * 2.0 + 1.0);
    let mut word = counted + key.clone();
    for (factor, turn) in FACTORS.into_iter().zip(TURNS) {
        let wide = square(word);
        let turned = wide.clone() * power(turn) + wide / power(32 - turn);
        word = turned * f64::from(factor) + key.clone();
    }
    word = square(word);
    word.clone() + word / power(16)
}

/// The key that [`mask`] makes of a seed, computed on the host.
pub fn mask_key(seed: u32, stream: &str) -> u32 {
    number(seed, key(0, stream))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_spread_evenly_and_independent_of_their_neighbours() {
        for seed in [0, 1, 0xdead_beef] {
            let mut random = Random::new(seed, "test");
            let count = 100_000;
            let numbers: Vec<f64> = (0..count).map(|_| f64::from(random.uniform())).collect();
            let mean = numbers.iter().sum::<f64>() / count as f64;
            // Four standard deviations of the mean of `count` numbers.
            assert!((mean - 0.5).abs() < 4.0 * (1.0 / 12.0_f64 / count as f64).sqrt(), "{mean}");
            let mut boxes = [0_u32; 256];
            numbers.iter().for_each(|number| boxes[(number * 256.0) as usize] += 1);
            let expected = count as f64 / 256.0;
            let chi: f64 = boxes.iter().map(|box_| (f64::from(*box_) - expected).powi(2) / expected).sum();
            // 255 degrees of freedom: a standard deviation of 22.6.
            assert!((chi - 255.0).abs() < 5.0 * 22.6, "{chi}");
            for lag in [1, 2, 64] {
                let pairs = numbers.iter().zip(&numbers[lag..]);
                let correlation = pairs.map(|(a, b)| (a - 0.5) * (b - 0.5)).sum::<f64>() * 12.0 / count as f64;
                assert!(correlation.abs() < 4.0 / (count as f64).sqrt(), "{lag}: {correlation}");
            }
        }
        let bits: Vec<u32> =
            (0..32).map(|bit| (0..10_000).filter(|at| number(7, *at) >> bit & 1 == 1).count() as u32).collect();
        assert!(bits.iter().all(|ones| (4_750..5_250).contains(ones)), "{bits:?}");
    }

    #[test]
    fn normal_numbers_have_mean_zero_and_variance_one() {
        let mut random = Random::new(3, "normal");
        let numbers: Vec<f64> = (0..50_000).map(|_| f64::from(random.normal())).collect();
        let mean = numbers.iter().sum::<f64>() / 50_000.0;
        let variance = numbers.iter().map(|number| (number - mean).powi(2)).sum::<f64>() / 50_000.0;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.03, "{mean} {variance}");
    }

    #[test]
    fn a_shuffle_keeps_every_element() {
        let mut order: Vec<usize> = (0..100).collect();
        Random::new(1, "order").shuffle(&mut order);
        assert_ne!(order, (0..100).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..100).collect::<Vec<_>>());
    }
}
