//! The element types of images, read as `f32` and written back.

use crate::levels::simd_levels;
use crate::simd::Simd;
use half::{bf16, f16};

/// An element of an image. Reading is exact; writing rounds to nearest, ties to even. A `u8`
/// saturates at 0 and 255, and NaN becomes 0.
pub trait Pixel: Copy + Default + Send + Sync + PartialEq + std::fmt::Debug + 'static {
    /// Whether only integers can be written.
    const INTEGER: bool = false;

    /// Reads elements as `f32`. Both slices should have the same length; a longer one is truncated.
    fn widen(simd: Simd, from: &[Self], to: &mut [f32]);

    /// Writes `f32` as elements. Both slices should have the same length; a longer one is
    /// truncated.
    fn narrow(simd: Simd, from: &[f32], to: &mut [Self]);

    /// The row itself if its elements are `f32`.
    fn as_f32(row: &[Self]) -> Option<&[f32]> {
        let _ = row;
        None
    }

    /// The row itself if its elements are `f32`.
    fn as_f32_mut(row: &mut [Self]) -> Option<&mut [f32]> {
        let _ = row;
        None
    }
}

impl Pixel for f32 {
    fn widen(_: Simd, from: &[f32], to: &mut [f32]) {
        let len = from.len().min(to.len());
        to[..len].copy_from_slice(&from[..len]);
    }

    fn narrow(_: Simd, from: &[f32], to: &mut [f32]) {
        let len = from.len().min(to.len());
        to[..len].copy_from_slice(&from[..len]);
    }

    fn as_f32(row: &[f32]) -> Option<&[f32]> {
        Some(row)
    }

    fn as_f32_mut(row: &mut [f32]) -> Option<&mut [f32]> {
        Some(row)
    }
}

impl Pixel for u8 {
    const INTEGER: bool = true;

    fn widen(simd: Simd, from: &[u8], to: &mut [f32]) {
        widen_u8(simd, from, to);
    }

    fn narrow(simd: Simd, from: &[f32], to: &mut [u8]) {
        narrow_u8(simd, from, to);
    }
}

impl Pixel for bf16 {
    fn widen(simd: Simd, from: &[bf16], to: &mut [f32]) {
        widen_bf16(simd, from, to);
    }

    fn narrow(simd: Simd, from: &[f32], to: &mut [bf16]) {
        narrow_bf16(simd, from, to);
    }
}

impl Pixel for f16 {
    fn widen(simd: Simd, from: &[f16], to: &mut [f32]) {
        match simd.min(Simd::detect()) {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: both levels include F16C and AVX, and the level is at most the detected one.
            Simd::Avx2 | Simd::Avx512 => unsafe { f16c::widen(from, to) },
            _ => from.iter().zip(to).for_each(|(from, to)| *to = from.to_f32()),
        }
    }

    fn narrow(simd: Simd, from: &[f32], to: &mut [f16]) {
        match simd.min(Simd::detect()) {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Simd::Avx2 | Simd::Avx512 => unsafe { f16c::narrow(from, to) },
            _ => from.iter().zip(to).for_each(|(from, to)| *to = f16::from_f32(*from)),
        }
    }
}

/// Rounds to nearest, ties to even, and saturates. NaN becomes 0.
#[inline(always)]
pub fn round_to_u8(value: f32) -> u8 {
    // Adding 1.5 · 2^23 leaves the rounded integer in the low bits of the sum.
    const ROUND: f32 = 12_582_912.0;
    let value = if value > 0.0 { value } else { 0.0 };
    let value = if value < 255.0 { value } else { 255.0 };
    (value + ROUND).to_bits() as u8
}

simd_levels! {
    fn widen_u8(from: &[u8], to: &mut [f32]) {
        from.iter().zip(to).for_each(|(from, to)| *to = f32::from(*from));
    }
}

simd_levels! {
    fn narrow_u8(from: &[f32], to: &mut [u8]) {
        from.iter().zip(to).for_each(|(from, to)| *to = round_to_u8(*from));
    }
}

simd_levels! {
    fn widen_bf16(from: &[bf16], to: &mut [f32]) {
        from.iter().zip(to).for_each(|(from, to)| *to = f32::from_bits(u32::from(from.to_bits()) << 16));
    }
}

simd_levels! {
    fn narrow_bf16(from: &[f32], to: &mut [bf16]) {
        from.iter().zip(to).for_each(|(from, to)| {
            let bits = from.to_bits();
            let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
            let quiet_nan = (bits >> 16) | 0x40;
            *to = bf16::from_bits(if bits & 0x7fff_ffff > 0x7f80_0000 { quiet_nan } else { rounded } as u16);
        });
    }
}

#[cfg(target_arch = "x86_64")]
mod f16c {
    use half::f16;
    use std::arch::x86_64::*;

    const LANES: usize = 8;

    #[target_feature(enable = "avx,f16c")]
    pub fn widen(from: &[f16], to: &mut [f32]) {
        let (from_chunks, from_rest) = from.as_chunks::<LANES>();
        let (to_chunks, to_rest) = to.as_chunks_mut::<LANES>();
        for (from, to) in from_chunks.iter().zip(to_chunks) {
            // SAFETY: both chunks are eight elements long, and unaligned accesses are used.
            unsafe {
                let halves = _mm_loadu_si128(from.as_ptr().cast());
                _mm256_storeu_ps(to.as_mut_ptr(), _mm256_cvtph_ps(halves));
            }
        }
        from_rest.iter().zip(to_rest).for_each(|(from, to)| *to = from.to_f32());
    }

    #[target_feature(enable = "avx,f16c")]
    pub fn narrow(from: &[f32], to: &mut [f16]) {
        let (from_chunks, from_rest) = from.as_chunks::<LANES>();
        let (to_chunks, to_rest) = to.as_chunks_mut::<LANES>();
        for (from, to) in from_chunks.iter().zip(to_chunks) {
            // SAFETY: both chunks are eight elements long, and unaligned accesses are used.
            unsafe {
                let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(from.as_ptr()));
                _mm_storeu_si128(to.as_mut_ptr().cast(), halves);
            }
        }
        from_rest.iter().zip(to_rest).for_each(|(from, to)| *to = f16::from_f32(*from));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip<T: Pixel>(values: &[f32], expected: impl Fn(f32) -> f32) {
        for simd in Simd::available() {
            for len in 0..=values.len() {
                let mut narrow = vec![T::default(); len];
                T::narrow(simd, &values[..len], &mut narrow);
                let mut wide = vec![0.0; len];
                T::widen(simd, &narrow, &mut wide);
                for (value, wide) in values.iter().zip(&wide) {
                    let expected = expected(*value);
                    assert!(*wide == expected || (wide.is_nan() && expected.is_nan()), "{value} {wide} {simd:?}");
                }
            }
        }
    }

    #[test]
    fn every_type_rounds_to_nearest_even() {
        let mut values = vec![0.5, 1.5, 2.5, 254.5, 255.4, 255.5, 300.0, -0.4, -0.6, -1e9, 1e-3, 1.0, 65519.0, 65520.0];
        values.extend([f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 3.140_625, 1.003_906_2, 1.011_718_8, 3.0e38]);
        values.extend([f32::from_bits(0x7f80_0001), f32::MIN_POSITIVE, 1e-40, 5.9e-8, -0.0]);
        round_trip::<u8>(&values, |value| value.round_ties_even().clamp(0.0, 255.0) as u8 as f32);
        round_trip::<f32>(&values, |value| value);
        round_trip::<f16>(&values, |value| f16::from_f32(value).to_f32());
        round_trip::<bf16>(&values, |value| bf16::from_f32(value).to_f32());
    }
}
