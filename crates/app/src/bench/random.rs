//! Seeded random normals: the inputs are the same in every run, on every machine.

use std::f32::consts::TAU;

use panoply::{Complex64, DType, Error, Result, Tensor, bf16, f16};

/// A sequence of standard normals.
pub struct Normals {
    state: u64,
}

impl Normals {
    /// Starts the sequence of this seed.
    pub fn new(seed: u64) -> Normals {
        Normals { state: seed }
    }

    /// Draws an f32 tensor.
    pub fn tensor(&mut self, shape: impl AsRef<[usize]>) -> Result<Tensor> {
        let count = counted(shape.as_ref(), 1)?;
        Tensor::from_vec(self.values(count), shape)
    }

    /// Draws a tensor of f32, f16, bf16 or complex64. Both parts of a complex element are normals.
    pub fn tensor_of(&mut self, dtype: DType, shape: impl AsRef<[usize]>) -> Result<Tensor> {
        let count = counted(shape.as_ref(), if dtype == DType::Complex64 { 2 } else { 1 })?;
        let mut values = || self.values(count);
        match dtype {
            DType::F32 => self.tensor(shape),
            DType::F16 => Tensor::from_vec(values().into_iter().map(f16::from_f32).collect(), shape),
            DType::BF16 => Tensor::from_vec(values().into_iter().map(bf16::from_f32).collect(), shape),
            DType::Complex64 => {
                let parts = self.values(2 * count);
                Tensor::from_vec(parts.chunks_exact(2).map(|pair| Complex64::new(pair[0], pair[1])).collect(), shape)
            }
            got => Err(Error::DTypeUnsupported { what: "random normals", expected: "f32, f16, bf16 or c64", got }),
        }
    }

    /// Draws `count` normals on all CPUs. The result does not depend on the number of CPUs.
    pub fn values(&mut self, count: usize) -> Vec<f32> {
        let mut values = vec![0.0; count];
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let share = count.div_ceil(threads).next_multiple_of(2).max(1 << 16);
        std::thread::scope(|scope| {
            for (part, first) in values.chunks_mut(share).zip((0_u64..).step_by(share / 2)) {
                let state = self.state;
                scope.spawn(move || fill(part, state, first));
            }
        });
        self.state = self.state.wrapping_add(GAMMA.wrapping_mul(count.div_ceil(2) as u64));
        values
    }
}

/// Returns the number of elements of a shape. Fails if `each` normals per element do not fit in
/// memory, because a model may request any shape.
pub fn counted(shape: &[usize], each: usize) -> Result<usize> {
    let count = shape.iter().try_fold(1_usize, |count, size| count.checked_mul(*size));
    let fits = |count: &usize| {
        let wanted = count.checked_mul(each).unwrap_or(usize::MAX);
        Vec::<f32>::new().try_reserve_exact(wanted).is_ok()
    };
    count.filter(fits).ok_or_else(|| Error::OutOfMemory {
        place: "the host".to_owned(),
        asked: count.unwrap_or(usize::MAX).saturating_mul(4 * each) as u64,
        free: 0,
        largest: 0,
    })
}

/// The increment of SplitMix64's state.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// Draws normals in pairs by the Box–Muller method, starting with the pair of index `first`.
fn fill(values: &mut [f32], state: u64, first: u64) {
    for (pair, number) in values.chunks_mut(2).zip(first..) {
        let bits = mixed(state.wrapping_add(GAMMA.wrapping_mul(number + 1)));
        // Each part uses 24 bits, which an f32 holds exactly; the added half keeps the logarithm's
        // argument above zero.
        let radius = (-2.0 * (((bits >> 40) as f32 + 0.5) / (1_u64 << 24) as f32).ln()).sqrt();
        let (sin, cos) = (TAU * ((bits & 0xff_ffff) as f32 / (1_u64 << 24) as f32)).sin_cos();
        for (value, normal) in pair.iter_mut().zip([radius * cos, radius * sin]) {
            *value = normal;
        }
    }
}

/// The mixing function of SplitMix64: a state into 64 bits.
fn mixed(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_normals() {
        assert!(counted(&[3, 4], 2).is_ok_and(|count| count == 12));
        assert!(counted(&[usize::MAX, 2], 1).is_err() && counted(&[usize::MAX / 2], 4).is_err());
        let values = Normals::new(7).values(100_001);
        assert_eq!(values, Normals::new(7).values(100_001));
        assert_ne!(values, Normals::new(8).values(100_001));
        let mut alone = vec![0.0; 100_001];
        fill(&mut alone, 7, 0);
        assert_eq!(values, alone);
        let count = values.len() as f32;
        let mean = values.iter().sum::<f32>() / count;
        let variance = values.iter().map(|value| value * value).sum::<f32>() / count;
        assert!(values.iter().all(|value| value.is_finite()));
        assert!(mean.abs() < 0.05 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
    }
}
