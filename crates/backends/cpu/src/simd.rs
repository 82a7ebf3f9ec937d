//! Which vector instructions this CPU can run.

use std::sync::OnceLock;

/// A level of vector instructions, from none upwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Simd {
    /// Plain Rust, whatever the compiler makes of it.
    Scalar,
    /// The 128-bit vectors of every 64-bit ARM.
    Neon,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ and VL, on top of AVX2.
    Avx512,
}

impl Simd {
    /// The best level of this CPU. Looked up once.
    pub fn detect() -> Simd {
        static BEST: OnceLock<Simd> = OnceLock::new();
        *BEST.get_or_init(|| Simd::available().into_iter().max().unwrap_or(Simd::Scalar))
    }

    /// Every level that this CPU can run, lowest first.
    pub fn available() -> Vec<Simd> {
        let mut levels = vec![Simd::Scalar];
        #[cfg(target_arch = "aarch64")]
        levels.push(Simd::Neon);
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 =
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
            if avx2 {
                levels.push(Simd::Avx2);
            }
            let wide = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            if avx2 && wide {
                levels.push(Simd::Avx512);
            }
        }
        levels
    }
}
