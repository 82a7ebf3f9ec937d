//! Kernels that are written once and compiled for every SIMD level.
//!
//! A [`Kernel`] is plain code over arrays of lanes that the compiler turns into vector
//! instructions. [`dispatch`] runs it inside a function that has the level's instructions enabled,
//! so its body and all its callees must be `#[inline(always)]`. Lane counts are the same on every
//! level: sums are bit for bit equal if no fused multiply is used.

use half::{bf16, f16};

use crate::simd::Simd;

/// Properties of the level that a kernel is compiled for.
pub trait Level: Copy {
    /// Whether `mul_add` is one instruction. Without it `mul_add` is a slow library call.
    const FUSED: bool;
}

/// The target's own baseline.
#[derive(Clone, Copy)]
pub struct Baseline;
impl Level for Baseline {
    const FUSED: bool = cfg!(target_arch = "aarch64");
}

/// AVX2 or AVX-512: both have fused multiply-add.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub struct Fused;
#[cfg(target_arch = "x86_64")]
impl Level for Fused {
    const FUSED: bool = true;
}

/// Work that can be compiled for any level.
pub trait Kernel {
    /// The result of the work.
    type Output;
    /// Does the work. Implementations are `#[inline(always)]`.
    fn run<L: Level>(self) -> Self::Output;
}

/// Runs `kernel` with the instructions of `simd`, or of the CPU's highest level if that is lower.
pub fn dispatch<K: Kernel>(simd: Simd, kernel: K) -> K::Output {
    match simd.min(Simd::detect()) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level is at most what `Simd::detect` found on this CPU.
        Simd::Avx512 => unsafe { with_avx512(kernel) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level is at most what `Simd::detect` found on this CPU.
        Simd::Avx2 => unsafe { with_avx2(kernel) },
        _ => kernel.run::<Baseline>(),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
fn with_avx512<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Fused>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn with_avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Fused>()
}

/// `a * b + c`, fused if that is one instruction.
#[inline(always)]
pub fn mul_add<L: Level>(a: f32, b: f32, c: f32) -> f32 {
    if L::FUSED { a.mul_add(b, c) } else { a * b + c }
}

/// `a * b + c`, fused if that is one instruction.
#[inline(always)]
pub fn mul_add_f64<L: Level>(a: f64, b: f64, c: f64) -> f64 {
    if L::FUSED { a.mul_add(b, c) } else { a * b + c }
}

/// An f16 as an f32, exactly, without branches so that loops over it vectorise.
#[inline(always)]
pub fn widen_f16(half: f16) -> f32 {
    const EXPONENT_SHIFT: f32 = f32::from_bits((127 + 112) << 23);
    let bits = u32::from(half.to_bits());
    let magnitude = (bits & 0x7fff) << 13;
    // Multiplying by 2^112 corrects the exponent's bias and normalises subnormals; infinities and
    // NaNs then only need their exponent set.
    let finite = (f32::from_bits(magnitude) * EXPONENT_SHIFT).to_bits();
    let special = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(finite | special | (bits & 0x8000) << 16)
}

/// An f32 rounded to the nearest f16, ties to even, without branches so that loops over it
/// vectorise.
#[inline(always)]
pub fn narrow_f16(single: f32) -> f16 {
    const INFINITE_FROM: u32 = (127 + 16) << 23;
    const NORMAL_FROM: u32 = (127 - 14) << 23;
    let bits = single.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    // Adding one half makes the adder round a subnormal f16 to its last place.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5_f32.to_bits());
    let odd = (magnitude >> 13) & 1;
    let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0xfff + odd) >> 13;
    let special = if magnitude > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
    let finite = if magnitude < NORMAL_FROM { subnormal } else { normal };
    let rounded = if magnitude >= INFINITE_FROM { special } else { finite };
    f16::from_bits((rounded | (bits >> 16) & 0x8000) as u16)
}

/// A bf16 as an f32, exactly.
#[inline(always)]
pub fn widen_bf16(half: bf16) -> f32 {
    f32::from_bits(u32::from(half.to_bits()) << 16)
}

/// An f32 rounded to the nearest bf16, ties to even; NaNs stay NaNs.
#[inline(always)]
pub fn narrow_bf16(single: f32) -> bf16 {
    let bits = single.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let nan = (bits >> 16) | 0x40;
    bf16::from_bits(if bits & 0x7fff_ffff > 0x7f80_0000 { nan } else { rounded } as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_widens_exactly() {
        for bits in 0..=u16::MAX {
            let (half, brain) = (f16::from_bits(bits), bf16::from_bits(bits));
            assert!(widen_f16(half) == half.to_f32() || half.is_nan() && widen_f16(half).is_nan());
            assert!(widen_bf16(brain) == brain.to_f32() || brain.is_nan() && widen_bf16(brain).is_nan());
        }
    }

    #[test]
    fn narrowing_rounds_to_nearest_even() {
        for high in 0..=u16::MAX {
            for low in [0, 1, 0x0fff, 0x1000, 0x1001, 0x2000, 0x3000, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let single = f32::from_bits(u32::from(high) << 16 | low);
                let (half, brain) = (narrow_f16(single), narrow_bf16(single));
                if single.is_nan() {
                    assert!(half.is_nan() && brain.is_nan());
                } else {
                    assert_eq!(half.to_bits(), f16::from_f32(single).to_bits(), "{single:e}");
                    assert_eq!(brain.to_bits(), bf16::from_f32(single).to_bits(), "{single:e}");
                }
            }
        }
    }
}
