//! Poly1305 in lanes: eight blocks at a time, each lane with every eighth block, in five limbs of 26 bits. What is too short for that
//! goes block by block in three limbs of 44 bits.

use std::arch::x86_64::*;

use zeroize::Zeroize;

pub(super) const TAG_BYTES: usize = 16;
const BLOCK_BYTES: usize = 16;
/// Eight blocks.
const GROUP_BYTES: usize = 8 * BLOCK_BYTES;
/// From here on the powers of the key cost less than the lanes save.
const LANES_BYTES_MIN: usize = 3 * GROUP_BYTES;
/// The lanes of the powers from the first to the eighth: the first of eight blocks has the highest, and lanes have blocks 0, 4, 1, 5, 2, 6, 3 and 7.
const POWER_LANES: [usize; 8] = [7, 5, 3, 1, 6, 4, 2, 0];
const MASK_44: u64 = (1 << 44) - 1;
const MASK_42: u64 = (1 << 42) - 1;
const MASK_26: u64 = (1 << 26) - 1;

/// A number below 2^130 or a little above, the lowest limb first: of 44, 44 and 42 bits.
#[derive(Clone, Copy, Default)]
struct Number([u64; 3]);

/// The same in limbs of 26 bits.
type Limbs = [u64; 5];

/// One message's tag under way. Wiped when it is dropped.
pub(super) struct Poly1305 {
    /// What each block is multiplied by, and what is added in the end.
    factor: Number,
    added: [u64; 2],
    sum: Number,
    /// The limbs of the factor's powers from the first to the eighth, once they are needed, each power in its blocks' lane.
    powers: [[u64; 8]; 5],
    has_powers: bool,
}

impl Drop for Poly1305 {
    fn drop(&mut self) {
        self.factor.0.zeroize();
        self.added.zeroize();
        self.sum.0.zeroize();
        if self.has_powers {
            self.powers.zeroize();
        }
    }
}

impl Number {
    fn of_words(low: u64, high: u64, top: u64) -> Number {
        Number([low & MASK_44, (low >> 44 | high << 20) & MASK_44, high >> 24 | top << 40])
    }

    fn plus(self, other: Number) -> Number {
        Number([self.0[0] + other.0[0], self.0[1] + other.0[1], self.0[2] + other.0[2]])
    }

    /// The product modulo 2^130 - 5, with limbs as long as they should be but for a bit of the second.
    #[inline(always)]
    fn times(self, other: Number) -> Number {
        let ([a0, a1, a2], [b0, b1, b2]) = (self.0, other.0);
        let product = |a: u64, b: u64| u128::from(a) * u128::from(b);
        // 2^132 is 20.
        let (c1, c2) = (b1 * 20, b2 * 20);
        let d0 = product(a0, b0) + product(a1, c2) + product(a2, c1);
        let d1 = product(a0, b1) + product(a1, b0) + product(a2, c2);
        let d2 = product(a0, b2) + product(a1, b1) + product(a2, b0);
        Number::carried(d0, d1, d2)
    }

    #[inline(always)]
    fn carried(d0: u128, d1: u128, d2: u128) -> Number {
        let d1 = d1 + u128::from((d0 >> 44) as u64);
        let d2 = d2 + u128::from((d1 >> 44) as u64);
        let low = (d0 as u64 & MASK_44) + (d2 >> 42) as u64 * 5;
        Number([low & MASK_44, (d1 as u64 & MASK_44) + (low >> 44), d2 as u64 & MASK_42])
    }

    fn limbs(self) -> Limbs {
        let [a, b, c] = self.0;
        // The second limb may have a bit more than 44.
        let (b, c) = (b & MASK_44, c + (b >> 44));
        let middle = [(a >> 26 | b << 18) & MASK_26, (b >> 8) & MASK_26, (b >> 34 | c << 10) & MASK_26];
        [a & MASK_26, middle[0], middle[1], middle[2], c >> 16]
    }

    /// From limbs that may be longer than they should be.
    fn of_limbs(limbs: Limbs) -> Number {
        let [a, b, c, d, e] = limbs.map(u128::from);
        let low = a + (b << 26);
        let middle = (low >> 44) + (c << 8) + (d << 34);
        let high = (middle >> 44) + (e << 16);
        Number::carried(low & u128::from(MASK_44), middle & u128::from(MASK_44), high)
    }

    /// The one number below 2^130 - 5, modulo 2^128, as words.
    fn reduced(self) -> [u64; 2] {
        let mut sum = self;
        for _ in 0..2 {
            sum = Number::carried(sum.0[0].into(), sum.0[1].into(), sum.0[2].into());
        }
        // What is left of 2^130 - 5, where it was reached.
        let [a, b, c] = sum.0;
        let more = a + 5;
        let [d, more] = [more & MASK_44, b + (more >> 44)];
        let [e, more] = [more & MASK_44, (c + (more >> 44)).wrapping_sub(1 << 42)];
        let is_below = (more >> 63).wrapping_neg();
        let choose = |below: u64, above: u64| below & is_below | above & !is_below;
        let (a, b, c) = (choose(a, d), choose(b, e), choose(c, more));
        [a | b << 44, b >> 20 | c << 24]
    }
}

impl Poly1305 {
    /// From a key of one message.
    pub(super) fn new(key: &[u64; 4]) -> Poly1305 {
        let factor = Number::of_words(key[0] & 0x0fff_fffc_0fff_ffff, key[1] & 0x0fff_fffc_0fff_fffc, 0);
        let (sum, powers) = (Number::default(), [[0; 8]; 5]);
        Poly1305 { factor, added: [key[2], key[3]], sum, powers, has_powers: false }
    }

    /// Takes whole blocks, and what is behind them as a block that is filled up with zeros.
    #[target_feature(enable = "avx512f")]
    pub(super) fn take_padded(&mut self, bytes: &[u8]) {
        let mut bytes = bytes;
        if bytes.len() >= LANES_BYTES_MIN || self.has_powers && bytes.len() >= GROUP_BYTES {
            let (groups, rest) = bytes.as_chunks();
            self.take_groups(groups);
            bytes = rest;
        }
        let (blocks, rest) = bytes.as_chunks::<BLOCK_BYTES>();
        for block in blocks {
            self.take_block(block);
        }
        if !rest.is_empty() {
            let mut last = [0; BLOCK_BYTES];
            last[..rest.len()].copy_from_slice(rest);
            self.take_block(&last);
        }
    }

    /// Takes the lengths, and writes the tag.
    pub(super) fn finish(&mut self, associated_len: usize, text_len: usize) -> [u8; TAG_BYTES] {
        let lengths = u128::from(text_len as u64) << 64 | u128::from(associated_len as u64);
        self.take_block(&lengths.to_le_bytes());
        let [low, high] = self.sum.reduced();
        let (sum, added) = (u128::from(high) << 64 | u128::from(low), self.added);
        sum.wrapping_add(u128::from(added[1]) << 64 | u128::from(added[0])).to_le_bytes()
    }

    #[inline(always)]
    fn take_block(&mut self, block: &[u8; BLOCK_BYTES]) {
        let whole = u128::from_le_bytes(*block);
        self.sum = self.sum.plus(Number::of_words(whole as u64, (whole >> 64) as u64, 1)).times(self.factor);
    }

    fn make_powers(&mut self) {
        // Each is the product of two that are about half of it, so that few wait for each other. A loop would keep them in memory in between.
        let first = self.factor;
        let second = first.times(first);
        let (third, fourth) = (second.times(first), second.times(second));
        let (fifth, sixth) = (third.times(second), third.times(third));
        let (seventh, eighth) = (fourth.times(third), fourth.times(fourth));
        let mut numbers = [first, second, third, fourth, fifth, sixth, seventh, eighth];
        for (lane, number) in POWER_LANES.into_iter().zip(&mut numbers) {
            for (lanes, limb) in self.powers.iter_mut().zip(number.limbs()) {
                lanes[lane] = limb;
            }
            number.0.zeroize();
        }
        self.has_powers = true;
    }

    #[target_feature(enable = "avx512f")]
    fn take_groups(&mut self, groups: &[[u8; GROUP_BYTES]]) {
        let Some((first, groups)) = groups.split_first() else { return };
        if !self.has_powers {
            self.make_powers();
        }
        let (mut eighth, mut sums) = ([_mm512_setzero_si512(); 5], split(first));
        for (limb, before) in self.sum.limbs().into_iter().enumerate() {
            eighth[limb] = _mm512_set1_epi64(self.powers[limb][POWER_LANES[7]] as i64);
            // The sum so far belongs to the first block, whose lane is the first.
            sums[limb] = _mm512_add_epi64(sums[limb], _mm512_maskz_set1_epi64(1, before as i64));
        }
        let eighth = Factor::new(eighth);
        for group in groups {
            sums = added(eighth.times(sums), split(group));
        }
        let mut lanes = [_mm512_setzero_si512(); 5];
        for (lanes, powers) in lanes.iter_mut().zip(&self.powers) {
            // SAFETY: there are eight words.
            *lanes = unsafe { _mm512_loadu_si512(powers.as_ptr().cast()) };
        }
        let last = Factor::new(lanes).times(sums);
        let mut limbs = [0; 5];
        for (limb, last) in limbs.iter_mut().zip(last) {
            *limb = _mm512_reduce_add_epi64(last) as u64;
        }
        self.sum = Number::of_limbs(limbs);
    }
}

/// What lanes are multiplied by, and five times that.
struct Factor {
    limbs: [__m512i; 5],
    fivefold: [__m512i; 5],
}

impl Factor {
    #[target_feature(enable = "avx512f")]
    fn new(limbs: [__m512i; 5]) -> Factor {
        let mut fivefold = limbs;
        for limb in &mut fivefold {
            *limb = _mm512_add_epi64(*limb, _mm512_slli_epi64::<2>(*limb));
        }
        Factor { limbs, fivefold }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn times(&self, sums: [__m512i; 5]) -> [__m512i; 5] {
        let mut products = [_mm512_setzero_si512(); 5];
        for (place, total) in products.iter_mut().enumerate() {
            for (limb, sum) in sums.iter().enumerate() {
                let factor = if limb <= place { self.limbs[place - limb] } else { self.fivefold[5 + place - limb] };
                *total = _mm512_add_epi64(*total, product(*sum, factor));
            }
        }
        carried(products)
    }
}

/// The products of the lanes' lower halves. The intrinsic is three instructions where the compiler has moved its masks out of the loop and
/// forgotten that upper halves are zero.
#[inline]
#[target_feature(enable = "avx512f")]
fn product(a: __m512i, b: __m512i) -> __m512i {
    let product;
    // SAFETY: the instruction is part of AVX-512F, and touches no memory and no flags.
    unsafe {
        std::arch::asm!("vpmuludq {product}, {a}, {b}", product = lateout(zmm_reg) product, a = in(zmm_reg) a, b = in(zmm_reg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    product
}

/// Limbs of 26 bits and a little more.
#[inline]
#[target_feature(enable = "avx512f")]
fn carried(products: [__m512i; 5]) -> [__m512i; 5] {
    let mask = _mm512_set1_epi64(MASK_26 as i64);
    let [mut a, mut b, mut c, mut d, mut e] = products;
    let cut = |limb: &mut __m512i, next: &mut __m512i| {
        *next = _mm512_add_epi64(*next, _mm512_srli_epi64::<26>(*limb));
        *limb = _mm512_and_si512(*limb, mask);
    };
    cut(&mut a, &mut b);
    cut(&mut d, &mut e);
    cut(&mut b, &mut c);
    // 2^130 is 5.
    let over = _mm512_srli_epi64::<26>(e);
    e = _mm512_and_si512(e, mask);
    a = _mm512_add_epi64(a, _mm512_add_epi64(over, _mm512_slli_epi64::<2>(over)));
    cut(&mut c, &mut d);
    cut(&mut a, &mut b);
    cut(&mut d, &mut e);
    [a, b, c, d, e]
}

#[inline]
#[target_feature(enable = "avx512f")]
fn added(a: [__m512i; 5], b: [__m512i; 5]) -> [__m512i; 5] {
    let [a0, a1, a2, a3, a4] = a;
    let [b0, b1, b2, b3, b4] = b;
    [
        _mm512_add_epi64(a0, b0),
        _mm512_add_epi64(a1, b1),
        _mm512_add_epi64(a2, b2),
        _mm512_add_epi64(a3, b3),
        _mm512_add_epi64(a4, b4),
    ]
}

/// Eight blocks as limbs; lanes have blocks 0, 4, 1, 5, 2, 6, 3 and 7.
#[inline]
#[target_feature(enable = "avx512f")]
fn split(group: &[u8; GROUP_BYTES]) -> [__m512i; 5] {
    let mask = _mm512_set1_epi64(MASK_26 as i64);
    // SAFETY: a group has as many bytes as two registers.
    let (front, back) =
        unsafe { (_mm512_loadu_si512(group.as_ptr().cast()), _mm512_loadu_si512(group[64..].as_ptr().cast())) };
    let (low, high) = (_mm512_unpacklo_epi64(front, back), _mm512_unpackhi_epi64(front, back));
    [
        _mm512_and_si512(low, mask),
        _mm512_and_si512(_mm512_srli_epi64::<26>(low), mask),
        _mm512_and_si512(_mm512_or_si512(_mm512_srli_epi64::<52>(low), _mm512_slli_epi64::<12>(high)), mask),
        _mm512_and_si512(_mm512_srli_epi64::<14>(high), mask),
        // Behind a block stands a one.
        _mm512_or_si512(_mm512_srli_epi64::<40>(high), _mm512_set1_epi64(1 << 24)),
    ]
}
