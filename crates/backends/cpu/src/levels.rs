//! One plain loop, compiled once for each instruction level.
//!
//! Loops that the compiler vectorises well need no intrinsics, only the permission to use wide
//! registers. The macro adds a leading [`Simd`](crate::simd::Simd) argument to the function and
//! picks the version at run time. A level that this CPU lacks is lowered, so the function is safe
//! to call with any level.

/// `simd_levels! { pub fn name<T: Bound>(a: A, b: B) { … } }` defines
/// `pub fn name<T: Bound>(simd: Simd, a: A, b: B)`.
macro_rules! simd_levels {
    ($(#[$meta:meta])* $vis:vis fn $name:ident $(<$($generic:ident : $bound:path),+>)? (
        $($arg:ident : $type:ty),* $(,)?
    ) $body:block) => {
        $(#[$meta])*
        $vis fn $name $(<$($generic: $bound),+>)? (simd: $crate::simd::Simd, $($arg: $type),*) {
            #[inline(always)]
            fn plain $(<$($generic: $bound),+>)? ($($arg: $type),*) $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            fn avx2 $(<$($generic: $bound),+>)? ($($arg: $type),*) {
                plain($($arg),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
            fn avx512 $(<$($generic: $bound),+>)? ($($arg: $type),*) {
                plain($($arg),*)
            }

            match simd.min($crate::simd::Simd::detect()) {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: the level is at most the detected one, so the CPU has its instructions.
                $crate::simd::Simd::Avx512 => unsafe { avx512($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as above.
                $crate::simd::Simd::Avx2 => unsafe { avx2($($arg),*) },
                _ => plain($($arg),*),
            }
        }
    };
}

pub(crate) use simd_levels;
