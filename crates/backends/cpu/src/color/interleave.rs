//! Splitting interleaved bytes into planes and joining planes.
//!
//! Three channels are processed sixteen pixels at a time with byte shuffles. Two channels are
//! simple loops that the compiler vectorises.

use crate::levels::simd_levels;
use crate::simd::Simd;

/// Splits `abcabc…` into three planes. Lengths beyond the shortest plane are ignored.
pub fn deinterleave3(simd: Simd, from: &[u8], a: &mut [u8], b: &mut [u8], c: &mut [u8]) {
    let len = (from.len() / 3).min(a.len()).min(b.len()).min(c.len());
    let done = whole(simd, len);
    #[cfg(target_arch = "x86_64")]
    if done > 0 {
        // SAFETY: the CPU has AVX2, which includes the byte shuffles; all slices hold `done`
        // pixels.
        unsafe { x86::deinterleave3(&from[..done * 3], &mut a[..done], &mut b[..done], &mut c[..done]) };
    }
    for (index, pixel) in from.as_chunks::<3>().0[..len].iter().enumerate().skip(done) {
        [a[index], b[index], c[index]] = *pixel;
    }
}

/// Joins three planes into `abcabc…`. Lengths beyond the shortest plane are ignored.
pub fn interleave3(simd: Simd, a: &[u8], b: &[u8], c: &[u8], to: &mut [u8]) {
    let len = (to.len() / 3).min(a.len()).min(b.len()).min(c.len());
    let done = whole(simd, len);
    #[cfg(target_arch = "x86_64")]
    if done > 0 {
        // SAFETY: the CPU has AVX2, which includes the byte shuffles; all slices hold `done`
        // pixels.
        unsafe { x86::interleave3(&a[..done], &b[..done], &c[..done], &mut to[..done * 3]) };
    }
    for (index, pixel) in to.as_chunks_mut::<3>().0[..len].iter_mut().enumerate().skip(done) {
        *pixel = [a[index], b[index], c[index]];
    }
}

/// Swaps the first and the last of every three bytes.
pub fn swap_outer_u8(simd: Simd, from: &[u8], to: &mut [u8]) {
    let len = (from.len() / 3).min(to.len() / 3);
    let done = match whole(simd, len) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the CPU has AVX2, which includes the byte shuffles; both slices hold `len`
        // pixels.
        1.. => unsafe { x86::swap_outer(&from[..len * 3], &mut to[..len * 3]) },
        _ => 0,
    };
    for (from, to) in from.as_chunks::<3>().0[done..len].iter().zip(&mut to.as_chunks_mut::<3>().0[done..len]) {
        *to = [from[2], from[1], from[0]];
    }
}

/// How many of `len` pixels are processed by the byte shuffles: 0 if the CPU has none.
fn whole(simd: Simd, len: usize) -> usize {
    const PIXELS: usize = 16;
    if cfg!(target_arch = "x86_64") && simd.min(Simd::detect()) >= Simd::Avx2 { len - len % PIXELS } else { 0 }
}

simd_levels! {
    /// Splits `abab…` into two planes.
    pub fn deinterleave2(from: &[u8], a: &mut [u8], b: &mut [u8]) {
        for ((pair, a), b) in from.as_chunks::<2>().0.iter().zip(a).zip(b) {
            [*a, *b] = *pair;
        }
    }
}

simd_levels! {
    /// Joins two planes into `abab…`.
    pub fn interleave2(a: &[u8], b: &[u8], to: &mut [u8]) {
        for ((pair, a), b) in to.as_chunks_mut::<2>().0.iter_mut().zip(a).zip(b) {
            *pair = [*a, *b];
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    /// Pixels of three bytes in three registers.
    pub const PIXELS: usize = 16;
    /// A shuffle index that yields zero.
    const NONE: u8 = 0x80;

    /// `SPLIT[plane][block]` moves the bytes of `plane` in block `block` of 48 interleaved bytes to
    /// their positions in the plane.
    const SPLIT: [[[u8; 16]; 3]; 3] = split_tables();
    /// `JOIN[block][plane]` moves the bytes of `plane` to their positions in block `block` of 48
    /// interleaved bytes.
    const JOIN: [[[u8; 16]; 3]; 3] = join_tables();

    const fn split_tables() -> [[[u8; 16]; 3]; 3] {
        let mut tables = [[[NONE; 16]; 3]; 3];
        let mut byte = 0;
        while byte < 48 {
            tables[byte % 3][byte / 16][byte / 3] = (byte % 16) as u8;
            byte += 1;
        }
        tables
    }

    const fn join_tables() -> [[[u8; 16]; 3]; 3] {
        let mut tables = [[[NONE; 16]; 3]; 3];
        let mut byte = 0;
        while byte < 48 {
            tables[byte / 16][byte % 3][byte % 16] = (byte / 3) as u8;
            byte += 1;
        }
        tables
    }

    /// Combines three shuffles with OR. At each position, one shuffle yields the byte and the other
    /// two yield zero.
    #[target_feature(enable = "ssse3")]
    #[inline]
    fn combine(registers: [__m128i; 3], tables: &[[u8; 16]; 3]) -> __m128i {
        let pick = |index: usize| {
            // SAFETY: a table is sixteen bytes.
            let table = unsafe { _mm_loadu_si128(tables[index].as_ptr().cast()) };
            _mm_shuffle_epi8(registers[index], table)
        };
        _mm_or_si128(_mm_or_si128(pick(0), pick(1)), pick(2))
    }

    #[target_feature(enable = "ssse3")]
    pub fn deinterleave3(from: &[u8], a: &mut [u8], b: &mut [u8], c: &mut [u8]) {
        let planes = a.as_chunks_mut().0.iter_mut().zip(b.as_chunks_mut().0).zip(c.as_chunks_mut().0);
        for (from, ((a, b), c)) in from.as_chunks::<{ 3 * PIXELS }>().0.iter().zip(planes) {
            let to: [&mut [u8; PIXELS]; 3] = [a, b, c];
            // SAFETY: `from` is 48 bytes long and each of `to` is 16.
            unsafe {
                let load = |block: usize| _mm_loadu_si128(from.as_ptr().add(16 * block).cast());
                let blocks = [load(0), load(1), load(2)];
                for (to, tables) in to.into_iter().zip(&SPLIT) {
                    _mm_storeu_si128(to.as_mut_ptr().cast(), combine(blocks, tables));
                }
            }
        }
    }

    #[target_feature(enable = "ssse3")]
    pub fn interleave3(a: &[u8], b: &[u8], c: &[u8], to: &mut [u8]) {
        let planes = a.as_chunks::<PIXELS>().0.iter().zip(b.as_chunks::<PIXELS>().0).zip(c.as_chunks::<PIXELS>().0);
        for (to, ((a, b), c)) in to.as_chunks_mut::<{ 3 * PIXELS }>().0.iter_mut().zip(planes) {
            // SAFETY: `to` is 48 bytes long and each plane is 16.
            unsafe {
                let load = |plane: &[u8; PIXELS]| _mm_loadu_si128(plane.as_ptr().cast());
                let planes = [load(a), load(b), load(c)];
                for (block, tables) in JOIN.iter().enumerate() {
                    _mm_storeu_si128(to.as_mut_ptr().add(16 * block).cast(), combine(planes, tables));
                }
            }
        }
    }

    /// Swaps the outer bytes of five pixels at a time and returns how many pixels are done.
    #[target_feature(enable = "ssse3")]
    pub fn swap_outer(from: &[u8], to: &mut [u8]) -> usize {
        const STEP: usize = 15;
        let table = _mm_setr_epi8(2, 1, 0, 5, 4, 3, 8, 7, 6, 11, 10, 9, 14, 13, 12, 15);
        let len = from.len().min(to.len());
        let mut at = 0;
        while at + 16 <= len {
            // SAFETY: sixteen bytes from `at` on are within both slices. The sixteenth is written
            // again by the next step or by the caller.
            unsafe {
                let bytes = _mm_loadu_si128(from.as_ptr().add(at).cast());
                _mm_storeu_si128(to.as_mut_ptr().add(at).cast(), _mm_shuffle_epi8(bytes, table));
            }
            at += STEP;
        }
        at / 3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitting_and_joining_are_inverse() {
        for simd in Simd::available() {
            for len in [0, 1, 5, 6, 15, 16, 17, 100] {
                let from: Vec<u8> = (0..len * 3).map(|value| (value * 7) as u8).collect();
                let (mut a, mut b, mut c) = (vec![0; len], vec![0; len], vec![0; len]);
                deinterleave3(simd, &from, &mut a, &mut b, &mut c);
                assert!((0..len).all(|i| [a[i], b[i], c[i]] == from[3 * i..3 * i + 3]));
                let mut back = vec![0; len * 3];
                interleave3(simd, &a, &b, &c, &mut back);
                assert_eq!(back, from);
                let mut swapped = vec![0; len * 3];
                swap_outer_u8(simd, &from, &mut swapped);
                assert!((0..len).all(|i| [c[i], b[i], a[i]] == swapped[3 * i..3 * i + 3]));
                let mut pairs = vec![0; len * 2];
                interleave2(simd, &a, &b, &mut pairs);
                let (mut first, mut second) = (vec![0; len], vec![0; len]);
                deinterleave2(simd, &pairs, &mut first, &mut second);
                assert_eq!((first, second), (a, b));
            }
        }
    }
}
