//! The level of vector instructions that this process may use.
//!
//! Kernels take a [`Simd`] and branch on it once per call, outside of their loops, so that every
//! path can be tested on one machine. `PANOPLY_SIMD=scalar|neon|avx2|avx512` lowers the detected
//! level but never raises it. With it, tools that do not know the newest instructions can run the
//! same binary.

use panoply_core::once::OnceBox;

/// A level of vector instructions. A higher level includes the lower ones of the same architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Simd {
    /// Plain Rust, compiled for the target's baseline.
    Scalar,
    /// 128-bit vectors of AArch64.
    Neon,
    /// AVX2 with FMA and F16C: 256-bit vectors.
    Avx2,
    /// AVX-512 F, BW, DQ, VL: 512-bit vectors.
    Avx512,
}

impl Simd {
    /// The best level of this CPU, lowered by `PANOPLY_SIMD`. Detected once for the process.
    #[inline]
    pub fn detect() -> Simd {
        static LEVEL: OnceBox<Simd> = OnceBox::new();
        *LEVEL.get_or_make(|| {
            let wanted = std::env::var("PANOPLY_SIMD").ok().and_then(|name| Simd::from_name(&name));
            hardware_level().min(wanted.unwrap_or(Simd::Avx512))
        })
    }

    /// Every level that this process can run, lowest first; for tests.
    pub fn available() -> Vec<Simd> {
        let best = Simd::detect();
        let family: &[Simd] = match best {
            Simd::Scalar => &[Simd::Scalar],
            Simd::Neon => &[Simd::Scalar, Simd::Neon],
            Simd::Avx2 | Simd::Avx512 => &[Simd::Scalar, Simd::Avx2, Simd::Avx512],
        };
        family.iter().copied().filter(|level| *level <= best).collect()
    }

    /// The name used in `PANOPLY_SIMD` and in device descriptions.
    pub const fn name(self) -> &'static str {
        match self {
            Simd::Scalar => "scalar",
            Simd::Neon => "neon",
            Simd::Avx2 => "avx2",
            Simd::Avx512 => "avx512",
        }
    }

    fn from_name(name: &str) -> Option<Simd> {
        [Simd::Scalar, Simd::Neon, Simd::Avx2, Simd::Avx512].into_iter().find(|level| level.name() == name)
    }
}

#[cfg(target_arch = "x86_64")]
fn hardware_level() -> Simd {
    let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
    let avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    match (avx2, avx512) {
        (true, true) => Simd::Avx512,
        (true, false) => Simd::Avx2,
        _ => Simd::Scalar,
    }
}

#[cfg(target_arch = "aarch64")]
fn hardware_level() -> Simd {
    Simd::Neon
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn hardware_level() -> Simd {
    Simd::Scalar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalar_is_always_available_and_the_best_is_last() {
        let levels = Simd::available();
        assert_eq!(levels.first(), Some(&Simd::Scalar));
        assert_eq!(levels.last(), Some(&Simd::detect()));
    }

    #[test]
    fn names_round_trip() {
        for level in [Simd::Scalar, Simd::Neon, Simd::Avx2, Simd::Avx512] {
            assert_eq!(Simd::from_name(level.name()), Some(level));
        }
        assert_eq!(Simd::from_name("sse9"), None);
    }
}
