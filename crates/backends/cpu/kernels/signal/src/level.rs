//! The levels of vector instructions, and a macro for kernels that are written once for all levels.

/// A level of vector instructions that this CPU has. Values are only made after detection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
#[allow(dead_code)] // Other CPUs than x86-64 have only the first level.
pub(crate) enum Kind {
    /// Plain Rust, as the compiler vectorises it.
    Plain,
    /// AVX2 with FMA.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
    /// AVX-512 as above, with VBMI and GFNI.
    Gfni,
}

impl Level {
    /// Plain Rust.
    pub const PLAIN: Level = Level(Kind::Plain);

    /// The highest level of this CPU.
    pub fn best() -> Level {
        Level::all().pop().unwrap_or(Level::PLAIN)
    }

    /// AVX2 with FMA. `None` if the CPU lacks it.
    pub fn avx2() -> Option<Level> {
        Level::all().into_iter().find(|level| level.0 == Kind::Avx2)
    }

    /// All levels of this CPU, the lowest first.
    pub fn all() -> Vec<Level> {
        #[allow(unused_mut)]
        let mut levels = vec![Level::PLAIN];
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            let gfni = is_x86_feature_detected!("avx512vbmi") && is_x86_feature_detected!("gfni");
            levels.extend(avx2.then_some(Level(Kind::Avx2)));
            levels.extend((avx2 && avx512).then_some(Level(Kind::Avx512)));
            levels.extend((avx2 && avx512 && gfni).then_some(Level(Kind::Gfni)));
        }
        levels
    }

    pub(crate) fn kind(self) -> Kind {
        self.0
    }
}

/// Makes a function that runs `body` compiled for the level that it is given. `body` must be
/// `#[inline(always)]`, and has one constant parameter: whether to fuse a product and a sum into
/// one instruction.
macro_rules! leveled {
    ($(#[$doc:meta])* $vis:vis fn $name:ident$(<$($generic:ident: $bound:path),*>)?($($arg:ident: $type:ty),* $(,)?) = $body:ident) => {
        $(#[$doc])*
        $vis fn $name$(<$($generic: $bound),*>)?(level: $crate::level::Level, $($arg: $type),*) {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                fn avx2$(<$($generic: $bound),*>)?($($arg: $type),*) {
                    $body::<true $($(, $generic)*)?>($($arg),*)
                }
                #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,gfni")]
                fn gfni$(<$($generic: $bound),*>)?($($arg: $type),*) {
                    $body::<true $($(, $generic)*)?>($($arg),*)
                }
                #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
                fn avx512$(<$($generic: $bound),*>)?($($arg: $type),*) {
                    $body::<true $($(, $generic)*)?>($($arg),*)
                }
                match level.kind() {
                    $crate::level::Kind::Plain => (),
                    // SAFETY: a level is only made if the CPU has its instructions.
                    $crate::level::Kind::Avx2 => return unsafe { avx2($($arg),*) },
                    // SAFETY: as above.
                    $crate::level::Kind::Avx512 => return unsafe { avx512($($arg),*) },
                    // SAFETY: as above.
                    $crate::level::Kind::Gfni => return unsafe { gfni($($arg),*) },
                }
            }
            let _ = level;
            $body::<false $($(, $generic)*)?>($($arg),*)
        }
    };
}
pub(crate) use leveled;

/// `a · b + c`, as one fused instruction if `FMA` is set. Without FMA instructions, `mul_add` would
/// be a slow function call.
#[inline(always)]
pub(crate) fn fused<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}
