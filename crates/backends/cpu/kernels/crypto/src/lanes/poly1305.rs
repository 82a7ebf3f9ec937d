//! Poly1305 in lanes: eight blocks at a time, each lane with every eighth block, in five limbs of
//! 26 bits. With IFMA (products of 52-bit integers) it uses three limbs of 44 bits, and carries
//! only after up to 64 blocks. Shorter input is processed block by block in three limbs of 44 bits.

use std::arch::x86_64::*;

use zeroize::Zeroize;

use super::crossed::crossed;

pub(super) const TAG_BYTES: usize = 16;
const BLOCK_BYTES: usize = 16;
/// Eight blocks.
const GROUP_BYTES: usize = 8 * BLOCK_BYTES;
/// From this length on, the lanes save more than the powers of the key cost.
const LANES_BYTES_MIN: usize = 3 * GROUP_BYTES;
/// Maximal number of groups before limbs of 44 bits are carried.
const UNCARRIED_GROUPS: usize = 8;
/// Lanes of the powers 1 to 8: the first of eight blocks takes the highest power, and lanes have
/// blocks 0, 4, 1, 5, 2, 6, 3 and 7.
const POWER_LANES: [usize; 8] = [7, 5, 3, 1, 6, 4, 2, 0];
const MASK_44: u64 = (1 << 44) - 1;
const MASK_42: u64 = (1 << 42) - 1;
const MASK_26: u64 = (1 << 26) - 1;

/// A number below 2^130 or slightly above, lowest limb first: 44, 44 and 42 bits.
#[derive(Clone, Copy, Default)]
struct FieldElement([u64; 3]);

/// The same in limbs of 26 bits.
type Limbs = [u64; 5];

/// The tag of one message in progress. Wiped when dropped.
pub(super) struct Poly1305<'a> {
    /// The factor of each block, and the summand at the end.
    factor: FieldElement,
    added: [u64; 2],
    sum: FieldElement,
    /// Computed on first use, unless given.
    powers: Powers,
    given: Option<&'a Powers>,
    has_ifma: bool,
}

impl Drop for Poly1305<'_> {
    fn drop(&mut self) {
        self.factor.0.zeroize();
        self.added.zeroize();
        self.sum.0.zeroize();
        self.powers.wipe();
    }
}

/// The factor's powers 1 to 8, each in the lane of its blocks, one row per limb. Limbs of 44 bits
/// leave space for the powers of the eighth power, one per column: three limbs, and twenty times
/// the second and the third.
#[repr(C, align(64))]
pub(super) struct Powers {
    rows: [[u64; 8]; 8],
    has_lanes: bool,
    /// Number of powers of the eighth power.
    steps: usize,
}

/// The first row of the powers of the eighth power.
const STEP_ROWS: usize = 3;

impl Powers {
    pub(super) const NONE: Powers = Powers { rows: [[0; 8]; 8], has_lanes: false, steps: 0 };

    /// Wipes the secrets.
    pub(super) fn wipe(&mut self) {
        if self.has_lanes {
            for row in &mut self.rows {
                // SAFETY: `row` is a valid reference; a volatile write is not optimised away.
                unsafe { std::ptr::write_volatile(row, [0; 8]) };
            }
            std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
            self.has_lanes = false;
        }
    }
}

/// The powers of eight messages' factors, which are the first halves of their keys.
///
/// # Safety
/// The CPU must have AVX-512 F and IFMA.
#[target_feature(enable = "avx512f,avx512ifma")]
pub(super) fn raise_eight(keys: &[[u64; 4]; 8], powers: [&mut Powers; 8]) {
    let mut limbs = [[0; 8]; 3];
    for (message, key) in keys.iter().enumerate() {
        for (lanes, limb) in limbs.iter_mut().zip(factor_of(key).0) {
            lanes[message] = limb;
        }
    }
    let first = limbs.map(|lanes| load(&lanes));
    limbs.as_flattened_mut().zeroize();
    let by_first = LaneFactor::new(first);
    let mut raised = [first; 8];
    for power in 1..8 {
        raised[power] = by_first.times(raised[power - 1]);
    }
    let by_eighth = LaneFactor::new(raised[7]);
    let mut steps = [raised[7]; UNCARRIED_GROUPS];
    for step in 1..UNCARRIED_GROUPS {
        steps[step] = by_eighth.times(steps[step - 1]);
    }
    let mut rows = [[_mm512_setzero_si512(); 8]; 8];
    for limb in 0..3 {
        let mut of_lanes = [_mm512_setzero_si512(); 8];
        for (power, lane) in POWER_LANES.into_iter().enumerate() {
            of_lanes[lane] = raised[power][limb];
        }
        rows[limb] = crossed(of_lanes);
        rows[STEP_ROWS + limb] = crossed(steps.map(|step| step[limb]));
    }
    for limb in 1..3 {
        rows[STEP_ROWS + 2 + limb] = rows[STEP_ROWS + limb].map(|step| twentyfold(step));
    }
    for (message, powers) in powers.into_iter().enumerate() {
        for (place, row) in powers.rows.iter_mut().zip(&rows) {
            // SAFETY: a row has the size of a register.
            unsafe { _mm512_storeu_si512(place.as_mut_ptr().cast(), row[message]) };
        }
        (powers.has_lanes, powers.steps) = (true, UNCARRIED_GROUPS);
    }
}

fn factor_of(key: &[u64; 4]) -> FieldElement {
    FieldElement::of_words(key[0] & 0x0fff_fffc_0fff_ffff, key[1] & 0x0fff_fffc_0fff_fffc, 0)
}

impl FieldElement {
    fn of_words(low: u64, high: u64, top: u64) -> FieldElement {
        FieldElement([low & MASK_44, (low >> 44 | high << 20) & MASK_44, high >> 24 | top << 40])
    }

    fn plus(self, other: FieldElement) -> FieldElement {
        FieldElement([self.0[0] + other.0[0], self.0[1] + other.0[1], self.0[2] + other.0[2]])
    }

    /// The product modulo 2^130 - 5, with limbs in range except for one bit of the second.
    #[inline(always)]
    fn times(self, other: FieldElement) -> FieldElement {
        let ([a0, a1, a2], [b0, b1, b2]) = (self.0, other.0);
        let product = |a: u64, b: u64| u128::from(a) * u128::from(b);
        // 2^132 is congruent to 20.
        let (c1, c2) = (b1 * 20, b2 * 20);
        let d0 = product(a0, b0) + product(a1, c2) + product(a2, c1);
        let d1 = product(a0, b1) + product(a1, b0) + product(a2, c2);
        let d2 = product(a0, b2) + product(a1, b1) + product(a2, b0);
        FieldElement::carried(d0, d1, d2)
    }

    #[inline(always)]
    fn carried(d0: u128, d1: u128, d2: u128) -> FieldElement {
        let d1 = d1 + u128::from((d0 >> 44) as u64);
        let d2 = d2 + u128::from((d1 >> 44) as u64);
        let low = (d0 as u64 & MASK_44) + (d2 >> 42) as u64 * 5;
        FieldElement([low & MASK_44, (d1 as u64 & MASK_44) + (low >> 44), d2 as u64 & MASK_42])
    }

    fn limbs(self) -> Limbs {
        let [a, b, c] = self.0;
        // The second limb may have 45 bits.
        let (b, c) = (b & MASK_44, c + (b >> 44));
        let middle = [(a >> 26 | b << 18) & MASK_26, (b >> 8) & MASK_26, (b >> 34 | c << 10) & MASK_26];
        [a & MASK_26, middle[0], middle[1], middle[2], c >> 16]
    }

    /// Carries limbs that may exceed their range.
    fn of_limbs(limbs: Limbs) -> FieldElement {
        let [a, b, c, d, e] = limbs.map(u128::from);
        let low = a + (b << 26);
        let middle = (low >> 44) + (c << 8) + (d << 34);
        let high = (middle >> 44) + (e << 16);
        FieldElement::carried(low & u128::from(MASK_44), middle & u128::from(MASK_44), high)
    }

    /// The canonical number below 2^130 - 5, modulo 2^128, as words.
    fn reduced(self) -> [u64; 2] {
        let mut sum = self;
        for _ in 0..2 {
            sum = FieldElement::carried(sum.0[0].into(), sum.0[1].into(), sum.0[2].into());
        }
        // Subtracts 2^130 - 5 if it was reached.
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

impl<'a> Poly1305<'a> {
    /// Takes the key of one message, and the factor's powers if they are precomputed. `has_ifma`:
    /// whether the CPU has IFMA.
    pub(super) fn new(key: &[u64; 4], given: Option<&'a Powers>, has_ifma: bool) -> Poly1305<'a> {
        let given = given.filter(|given| has_ifma && given.steps == UNCARRIED_GROUPS);
        let (factor, sum, powers) = (factor_of(key), FieldElement::default(), Powers::NONE);
        Poly1305 { factor, added: [key[2], key[3]], sum, powers, given, has_ifma }
    }

    /// Takes whole blocks, and a shorter rest as a block padded with zeros.
    #[target_feature(enable = "avx512f")]
    pub(super) fn take_padded(&mut self, bytes: &[u8]) {
        let mut bytes = bytes;
        if bytes.len() >= LANES_BYTES_MIN || self.has_powers() && bytes.len() >= GROUP_BYTES {
            let (groups, rest) = bytes.as_chunks();
            if self.has_ifma {
                // SAFETY: the CPU has the instructions.
                unsafe { self.take_groups_wide(groups) };
            } else {
                self.take_groups(groups);
            }
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

    /// Takes the lengths, and returns the tag.
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
        self.sum = self.sum.plus(FieldElement::of_words(whole as u64, (whole >> 64) as u64, 1)).times(self.factor);
    }

    fn has_powers(&self) -> bool {
        self.given.is_some() || self.powers.has_lanes
    }

    /// The factor's powers 1 to 8.
    fn raised(&self) -> [FieldElement; 8] {
        // Each is a product of two powers of about half its exponent, for short dependency chains.
        // A loop would keep them in memory in between.
        let first = self.factor;
        let second = first.times(first);
        let (third, fourth) = (second.times(first), second.times(second));
        let (fifth, sixth) = (third.times(second), third.times(third));
        let (seventh, eighth) = (fourth.times(third), fourth.times(fourth));
        [first, second, third, fourth, fifth, sixth, seventh, eighth]
    }

    fn make_powers(&mut self) {
        for (lane, mut number) in POWER_LANES.into_iter().zip(self.raised()) {
            for (lanes, limb) in self.powers.rows.iter_mut().zip(number.limbs()) {
                lanes[lane] = limb;
            }
            number.0.zeroize();
        }
        self.powers.has_lanes = true;
    }

    /// The powers in limbs of 44 bits, with `steps` powers of the eighth power.
    fn make_wide_powers(&mut self, steps: usize) {
        if !self.powers.has_lanes {
            let mut raised = self.raised();
            for (lane, number) in POWER_LANES.into_iter().zip(&raised) {
                for (lanes, limb) in self.powers.rows.iter_mut().zip(number.0) {
                    lanes[lane] = limb;
                }
            }
            self.powers.has_lanes = true;
            self.powers.put_step(raised[7]);
            raised.iter_mut().for_each(|number| number.0.zeroize());
        }
        while self.powers.steps < steps {
            let next = self.powers.steps + 1;
            let mut product = self.powers.step(next / 2).times(self.powers.step(next - next / 2));
            self.powers.put_step(product);
            product.0.zeroize();
        }
    }

    #[target_feature(enable = "avx512f,avx512ifma")]
    fn take_groups_wide(&mut self, groups: &[[u8; GROUP_BYTES]]) {
        let Some((last, groups)) = groups.split_last() else { return };
        if self.given.is_none() {
            self.make_wide_powers(groups.len().min(UNCARRIED_GROUPS));
        }
        let powers = self.given.unwrap_or(&self.powers);
        // The sum so far belongs to the first block, whose lane is the first.
        let mut sums = self.sum.0.map(|limb| _mm512_maskz_set1_epi64(1, limb as i64));
        let (whole, rest) = groups.as_chunks::<UNCARRIED_GROUPS>();
        for groups in whole {
            sums = powers.step_over(sums, groups);
        }
        if !rest.is_empty() {
            sums = powers.step_over(sums, rest);
        }
        let lanes = LaneFactor::new([load(&powers.rows[0]), load(&powers.rows[1]), load(&powers.rows[2])]);
        let last = lanes.times(added(sums, split_wide(last)));
        let [a, b, c] = last.map(|limb| u128::from(_mm512_reduce_add_epi64(limb) as u64));
        self.sum = FieldElement::carried(a, b, c);
    }

    #[target_feature(enable = "avx512f")]
    fn take_groups(&mut self, groups: &[[u8; GROUP_BYTES]]) {
        let Some((first, groups)) = groups.split_first() else { return };
        if !self.powers.has_lanes {
            self.make_powers();
        }
        let (mut eighth, mut sums) = ([_mm512_setzero_si512(); 5], split(first));
        for (limb, before) in self.sum.limbs().into_iter().enumerate() {
            eighth[limb] = _mm512_set1_epi64(self.powers.rows[limb][POWER_LANES[7]] as i64);
            // The sum so far belongs to the first block, whose lane is the first.
            sums[limb] = _mm512_add_epi64(sums[limb], _mm512_maskz_set1_epi64(1, before as i64));
        }
        let eighth = Factor::new(eighth);
        for group in groups {
            sums = added(eighth.times(sums), split(group));
        }
        let mut lanes = [_mm512_setzero_si512(); 5];
        for (lanes, powers) in lanes.iter_mut().zip(&self.powers.rows) {
            *lanes = load(powers);
        }
        let last = Factor::new(lanes).times(sums);
        let mut limbs = [0; 5];
        for (limb, last) in limbs.iter_mut().zip(last) {
            *limb = _mm512_reduce_add_epi64(last) as u64;
        }
        self.sum = FieldElement::of_limbs(limbs);
    }
}

/// The lanes' factor, and five times it.
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

/// The products of the lanes' lower halves. The intrinsic costs three instructions if the compiler
/// moves its masks out of the loop and forgets that the upper halves are zero.
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

/// Carries to limbs of 26 bits and a little more.
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
    // 2^130 is congruent to 5.
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
fn added<const N: usize>(mut a: [__m512i; N], b: [__m512i; N]) -> [__m512i; N] {
    let mut limb = 0;
    while limb < N {
        a[limb] = _mm512_add_epi64(a[limb], b[limb]);
        limb += 1;
    }
    a
}

/// Eight blocks as limbs; lanes have blocks 0, 4, 1, 5, 2, 6, 3 and 7.
#[inline]
#[target_feature(enable = "avx512f")]
fn split(group: &[u8; GROUP_BYTES]) -> [__m512i; 5] {
    let mask = _mm512_set1_epi64(MASK_26 as i64);
    // SAFETY: a group has the size of two registers.
    let (front, back) =
        unsafe { (_mm512_loadu_si512(group.as_ptr().cast()), _mm512_loadu_si512(group[64..].as_ptr().cast())) };
    let (low, high) = (_mm512_unpacklo_epi64(front, back), _mm512_unpackhi_epi64(front, back));
    [
        _mm512_and_si512(low, mask),
        _mm512_and_si512(_mm512_srli_epi64::<26>(low), mask),
        _mm512_and_si512(_mm512_or_si512(_mm512_srli_epi64::<52>(low), _mm512_slli_epi64::<12>(high)), mask),
        _mm512_and_si512(_mm512_srli_epi64::<14>(high), mask),
        // A one bit follows each block.
        _mm512_or_si512(_mm512_srli_epi64::<40>(high), _mm512_set1_epi64(1 << 24)),
    ]
}

impl Powers {
    /// The `number`-th power of the eighth power.
    fn step(&self, number: usize) -> FieldElement {
        FieldElement([0, 1, 2].map(|limb| self.rows[STEP_ROWS + limb][number - 1]))
    }

    fn put_step(&mut self, number: FieldElement) {
        let [a, b, c] = number.0;
        for (row, limb) in self.rows[STEP_ROWS..].iter_mut().zip([a, b, c, 20 * b, 20 * c]) {
            row[self.steps] = limb;
        }
        self.steps += 1;
    }

    /// Adds groups, at most [`UNCARRIED_GROUPS`], to the sums.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    fn step_over(&self, sums: [__m512i; 3], groups: &[[u8; GROUP_BYTES]]) -> [__m512i; 3] {
        let mut totals = Totals::new();
        let mut sums = Some(sums);
        for (step, group) in (0..groups.len().min(UNCARRIED_GROUPS)).rev().zip(groups) {
            let blocks = split_wide(group);
            let limb = |row: usize| _mm512_set1_epi64(self.rows[STEP_ROWS + row][step] as i64);
            let factor = LaneFactor { limbs: [limb(0), limb(1), limb(2)], twentyfold: [limb(3), limb(4)] };
            totals.add(sums.take().map_or(blocks, |sums| added(blocks, sums)), &factor);
        }
        totals.carried()
    }
}

/// The lanes' factor in limbs of 44 bits, and twenty times the second and third limb: 2^132 is
/// congruent to 20.
struct LaneFactor {
    limbs: [__m512i; 3],
    twentyfold: [__m512i; 2],
}

impl LaneFactor {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn new(limbs: [__m512i; 3]) -> LaneFactor {
        LaneFactor { limbs, twentyfold: [twentyfold(limbs[1]), twentyfold(limbs[2])] }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    fn times(&self, sums: [__m512i; 3]) -> [__m512i; 3] {
        let mut totals = Totals::new();
        totals.add(sums, self);
        totals.carried()
    }
}

/// For each limb, the sums of the products' lower 52 bits and of the bits above.
struct Totals {
    low: [__m512i; 3],
    high: [__m512i; 3],
}

impl Totals {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn new() -> Totals {
        Totals { low: [_mm512_setzero_si512(); 3], high: [_mm512_setzero_si512(); 3] }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    fn add(&mut self, sums: [__m512i; 3], factor: &LaneFactor) {
        let ([a, b, c], [d, e]) = (factor.limbs, factor.twentyfold);
        // By rows, so that consecutive instructions are independent.
        let rows = [(sums[0], [a, b, c]), (sums[1], [e, a, b]), (sums[2], [d, e, a])];
        for (sum, factors) in rows {
            for (place, factor) in factors.into_iter().enumerate() {
                self.low[place] = _mm512_madd52lo_epu64(self.low[place], sum, factor);
                self.high[place] = _mm512_madd52hi_epu64(self.high[place], sum, factor);
            }
        }
    }

    /// Carries to limbs of 44 bits (the second slightly longer) and 42. The bits above 52 count 2^8
    /// in the next limb.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn carried(&self) -> [__m512i; 3] {
        let mask = _mm512_set1_epi64(MASK_44 as i64);
        let ([a, b, c], [a_high, b_high, c_high]) = (self.low, self.high);
        let b = _mm512_add_epi64(b, _mm512_add_epi64(_mm512_slli_epi64::<8>(a_high), _mm512_srli_epi64::<44>(a)));
        let c = _mm512_add_epi64(c, _mm512_add_epi64(_mm512_slli_epi64::<8>(b_high), _mm512_srli_epi64::<44>(b)));
        // 2^130 is congruent to 5.
        let over = _mm512_add_epi64(_mm512_slli_epi64::<10>(c_high), _mm512_srli_epi64::<42>(c));
        let fivefold = _mm512_add_epi64(over, _mm512_slli_epi64::<2>(over));
        let a = _mm512_add_epi64(_mm512_and_si512(a, mask), fivefold);
        let b = _mm512_add_epi64(_mm512_and_si512(b, mask), _mm512_srli_epi64::<44>(a));
        [_mm512_and_si512(a, mask), b, _mm512_and_si512(c, _mm512_set1_epi64(MASK_42 as i64))]
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn twentyfold(limb: __m512i) -> __m512i {
    _mm512_add_epi64(_mm512_slli_epi64::<4>(limb), _mm512_slli_epi64::<2>(limb))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(words: &[u64; 8]) -> __m512i {
    // SAFETY: eight words are 64 bytes.
    unsafe { _mm512_loadu_si512(words.as_ptr().cast()) }
}

/// Eight blocks as limbs of 44 bits; lanes as in [`split`].
#[inline]
#[target_feature(enable = "avx512f")]
fn split_wide(group: &[u8; GROUP_BYTES]) -> [__m512i; 3] {
    let mask = _mm512_set1_epi64(MASK_44 as i64);
    // SAFETY: a group has the size of two registers.
    let (front, back) =
        unsafe { (_mm512_loadu_si512(group.as_ptr().cast()), _mm512_loadu_si512(group[64..].as_ptr().cast())) };
    let (low, high) = (_mm512_unpacklo_epi64(front, back), _mm512_unpackhi_epi64(front, back));
    [
        _mm512_and_si512(low, mask),
        // (low >> 44 | high << 20) & mask
        _mm512_ternarylogic_epi64::<0xe0>(mask, _mm512_srli_epi64::<44>(low), _mm512_slli_epi64::<20>(high)),
        // A one bit follows each block.
        _mm512_or_si512(_mm512_srli_epi64::<24>(high), _mm512_set1_epi64(1 << 40)),
    ]
}
