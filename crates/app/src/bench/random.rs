//! Seeded random normals: the same inputs in every run, on every machine.

use std::f32::consts::TAU;

use panoply::{DType, Error, Result, Tensor, bf16, f16};

/// A sequence of standard normals.
pub struct Normals {
    state: u64,
}

impl Normals {
    /// The sequence that belongs to this seed.
    pub fn new(seed: u64) -> Normals {
        Normals { state: seed }
    }

    /// A tensor of f32.
    pub fn tensor(&mut self, shape: impl AsRef<[usize]>) -> Result<Tensor> {
        let count = shape.as_ref().iter().product();
        Tensor::from_vec(self.values(count), shape)
    }

    /// A tensor of f32, f16 or bf16.
    pub fn tensor_of(&mut self, dtype: DType, shape: impl AsRef<[usize]>) -> Result<Tensor> {
        let mut values = || self.values(shape.as_ref().iter().product());
        match dtype {
            DType::F32 => self.tensor(shape),
            DType::F16 => Tensor::from_vec(values().into_iter().map(f16::from_f32).collect(), shape),
            DType::BF16 => Tensor::from_vec(values().into_iter().map(bf16::from_f32).collect(), shape),
            got => Err(Error::DTypeUnsupported { what: "random normals", expected: "f32, f16 or bf16", got }),
        }
    }

    /// So many normals, two at a time by the method of Box and Muller.
    fn values(&mut self, count: usize) -> Vec<f32> {
        let mut values = Vec::with_capacity(count + 1);
        while values.len() < count {
            let bits = self.next_bits();
            // 24 bits each fill an f32; the half keeps the logarithm away from zero.
            let first = ((bits >> 40) as f32 + 0.5) / (1_u64 << 24) as f32;
            let second = (bits & 0xff_ffff) as f32 / (1_u64 << 24) as f32;
            let radius = (-2.0 * first.ln()).sqrt();
            let (sin, cos) = (TAU * second).sin_cos();
            values.extend([radius * cos, radius * sin]);
        }
        values.truncate(count);
        values
    }

    /// SplitMix64: one addition and a few mixing steps per 64 bits.
    fn next_bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_normals() {
        let values = Normals::new(7).values(10_001);
        assert_eq!(values, Normals::new(7).values(10_001));
        assert_ne!(values, Normals::new(8).values(10_001));
        let count = values.len() as f32;
        let mean = values.iter().sum::<f32>() / count;
        let variance = values.iter().map(|value| value * value).sum::<f32>() / count;
        assert!(values.iter().all(|value| value.is_finite()));
        assert!(mean.abs() < 0.05 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
    }
}
