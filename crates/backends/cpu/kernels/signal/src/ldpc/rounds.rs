//! The rounds of the decoder. It decodes sixteen words in parallel, or eight words with two checks
//! at a time.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_CMP_EQ_OQ, _mm256_cmp_ps, _mm256_loadu_ps, _mm256_movemask_ps, _mm256_setzero_ps};

use bytemuck::{Pod, Zeroable};

use crate::level::{Level, leveled};

/// The largest number of words that are decoded in parallel.
pub(super) const LANES: usize = 16;
/// The largest number of words for which two checks are processed at a time.
pub(super) const FEW: usize = 8;
/// The factor of a check's messages (normalised min-sum).
const TRUST: f32 = 0.75;
/// The largest belief about a received bit.
const BELIEF_MAX: f32 = 1e6;

/// A number for each lane, in a cache line of its own.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub(super) struct LaneNumbers([f32; LANES]);

impl LaneNumbers {
    pub(super) const ZERO: LaneNumbers = LaneNumbers([0.0; LANES]);
}

/// The memory of a decoder: the belief about each bit, its sign in each word, and the last message
/// of each check to each of its bits.
pub(super) struct DecoderMemory {
    pub(super) beliefs: Vec<LaneNumbers>,
    pub(super) signs: Vec<u16>,
    pub(super) messages: Vec<LaneNumbers>,
}

/// The bits of checks, one check after the other, and the index at which each check begins. For
/// pairs, the bits of both checks are interleaved.
#[derive(Clone, Copy)]
pub(super) struct Checks<'a> {
    pub(super) bits: &'a [u32],
    pub(super) begins: &'a [u32],
}

/// The input, the output and the tables of a decoding.
pub(super) struct LdpcTask<'a> {
    pub(super) checks: Checks<'a>,
    /// The same checks in pairs without a common bit.
    pub(super) pairs: Checks<'a>,
    /// Number of bits of a word, number of dummy bits after them that belong to no check, the range
    /// of the sent bits, and the number of data bits.
    pub(super) word_bits: usize,
    pub(super) spare: usize,
    pub(super) sent: std::ops::Range<usize>,
    pub(super) data_bits: usize,
    pub(super) room: &'a mut DecoderMemory,
    pub(super) likelihoods: &'a [f32],
    pub(super) iterations: usize,
    pub(super) data: &'a mut [u8],
    pub(super) counts: &'a mut [i32],
}

/// Decodes up to [`LANES`] words.
pub(super) fn decode_many(level: Level, job: LdpcTask<'_>) {
    let table = job.checks;
    decode(level, job, table, &many::STEPS);
}

/// Decodes up to [`FEW`] words.
pub(super) fn decode_few(level: Level, job: LdpcTask<'_>) {
    let table = job.pairs;
    decode(level, job, table, &few::STEPS);
}

type FindWrong<const WORDS: usize> = fn(Level, Checks<'_>, &[[f32; WORDS]], &mut [u16], &mut u32);

/// The steps of a decoder. Each step is a separate function, so that the compiler knows that its
/// slices do not overlap.
struct Steps<const WORDS: usize> {
    receive: fn(Level, &[f32], usize, &mut [[f32; WORDS]]),
    find_wrong: FindWrong<WORDS>,
    take: fn(Level, &[[f32; WORDS]], u32, &mut [u8]),
    update_first: fn(Level, Checks<'_>, &mut [[f32; WORDS]], &mut [LaneNumbers]),
    update: fn(Level, Checks<'_>, &mut [[f32; WORDS]], &mut [LaneNumbers]),
}

/// The steps for a number of words in parallel, with as many checks at a time as fill the lanes.
macro_rules! steps {
    ($module:ident, $words:ident, $together:literal) => {
        mod $module {
            use super::*;

            pub(super) const STEPS: Steps<$words> = Steps { receive, find_wrong, take, update_first, update };

            leveled! {
                fn receive(likelihoods: &[f32], coded: usize, beliefs: &mut [[f32; $words]]) = receive_body
            }
            leveled! {
                fn find_wrong(checks: Checks<'_>, beliefs: &[[f32; $words]], signs: &mut [u16], wrong: &mut u32) = find_wrong_body
            }
            leveled! {
                fn take(beliefs: &[[f32; $words]], taken: u32, data: &mut [u8]) = take_body
            }
            leveled! {
                fn update_first(table: Checks<'_>, beliefs: &mut [[f32; $words]], messages: &mut [LaneNumbers]) = first_body
            }
            leveled! {
                fn update(table: Checks<'_>, beliefs: &mut [[f32; $words]], messages: &mut [LaneNumbers]) = update_body
            }

            #[inline(always)]
            fn first_body<const FMA: bool>(table: Checks<'_>, beliefs: &mut [[f32; $words]], messages: &mut [LaneNumbers]) {
                checks_say::<true, $words, $together>(table, beliefs, messages);
            }

            #[inline(always)]
            fn update_body<const FMA: bool>(table: Checks<'_>, beliefs: &mut [[f32; $words]], messages: &mut [LaneNumbers]) {
                checks_say::<false, $words, $together>(table, beliefs, messages);
            }

            #[inline(always)]
            fn receive_body<const FMA: bool>(likelihoods: &[f32], coded: usize, beliefs: &mut [[f32; $words]]) {
                super::receive(likelihoods, coded, beliefs);
            }

            #[inline(always)]
            fn take_body<const FMA: bool>(beliefs: &[[f32; $words]], taken: u32, data: &mut [u8]) {
                super::take(beliefs, taken, data);
            }

            #[inline(always)]
            fn find_wrong_body<const FMA: bool>(
                checks: Checks<'_>,
                beliefs: &[[f32; $words]],
                signs: &mut [u16],
                wrong: &mut u32,
            ) {
                *wrong = super::find_wrong::<FMA, $words>(checks, beliefs, signs);
            }
        }
    };
}
steps!(many, LANES, 1);
steps!(few, FEW, 2);

/// Takes the data of each word when all its checks hold, or when no iterations are left.
fn decode<const WORDS: usize>(level: Level, job: LdpcTask<'_>, table: Checks<'_>, steps: &Steps<WORDS>) {
    let beliefs = bytemuck::cast_slice_mut::<LaneNumbers, f32>(&mut job.room.beliefs).as_chunks_mut::<WORDS>().0;
    let beliefs = &mut beliefs[..job.word_bits + job.spare];
    let (messages, signs) = (&mut job.room.messages[..], &mut job.room.signs[..job.word_bits]);
    beliefs[..job.sent.start].fill([0.0; WORDS]);
    beliefs[job.sent.end..].fill([0.0; WORDS]);
    (steps.receive)(level, job.likelihoods, job.sent.len(), &mut beliefs[job.sent]);
    let mut open: u32 = (1 << job.counts.len()) - 1;
    job.counts.fill(-1);
    for iteration in 0..=job.iterations {
        let mut wrong = 0;
        (steps.find_wrong)(level, job.checks, &beliefs[..job.word_bits], signs, &mut wrong);
        let settled = open & !wrong;
        let taken = if iteration == job.iterations { open } else { settled };
        if taken != 0 {
            (steps.take)(level, &beliefs[..job.data_bits], taken, job.data);
        }
        for (lane, count) in job.counts.iter_mut().enumerate() {
            if settled >> lane & 1 == 1 {
                *count = iteration as i32;
            }
        }
        open &= !taken;
        if open == 0 {
            return;
        }
        match iteration {
            0 => (steps.update_first)(level, table, beliefs, messages),
            _ => (steps.update)(level, table, beliefs, messages),
        }
    }
}

/// Transposes the likelihoods of consecutive words into lanes. NaN counts as 0, as does every lane
/// without a word.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // Constant bounds over lanes read best as indices.
fn receive<const WORDS: usize>(likelihoods: &[f32], coded: usize, beliefs: &mut [[f32; WORDS]]) {
    for (number, beliefs) in beliefs.chunks_mut(LANES).enumerate() {
        let mut block = [[0.0_f32; LANES]; WORDS];
        for (row, word) in block.iter_mut().zip(likelihoods.chunks_exact(coded)) {
            let values = &word[number * LANES..number * LANES + beliefs.len()];
            for (place, value) in row.iter_mut().zip(values) {
                *place = if value.is_nan() { 0.0 } else { value.clamp(-BELIEF_MAX, BELIEF_MAX) };
            }
        }
        for (bit, belief) in beliefs.iter_mut().enumerate() {
            for lane in 0..WORDS {
                belief[lane] = block[lane][bit];
            }
        }
    }
}

/// Writes the data bits of the words in the lanes `taken` to their bytes. A belief of zero, of
/// either sign, gives the bit 0.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // Constant bounds over lanes read best as indices.
fn take<const WORDS: usize>(beliefs: &[[f32; WORDS]], taken: u32, data: &mut [u8]) {
    let bytes = beliefs.len().div_ceil(8);
    for (number, beliefs) in beliefs.chunks(8).enumerate() {
        let mut byte = [0_u32; WORDS];
        for belief in beliefs {
            for lane in 0..WORDS {
                byte[lane] = byte[lane] << 1 | u32::from(belief[lane] < 0.0);
            }
        }
        for (lane, byte) in byte.into_iter().enumerate().filter(|(lane, _)| taken >> lane & 1 == 1) {
            data[lane * bytes + number] = (byte << (8 - beliefs.len())) as u8;
        }
    }
}

/// The lanes in which a check does not hold or a bit is undecided.
#[inline(always)]
fn find_wrong<const VECTORS: bool, const WORDS: usize>(
    checks: Checks<'_>,
    beliefs: &[[f32; WORDS]],
    signs: &mut [u16],
) -> u32 {
    // A negative belief is the bit 1. If the belief is zero, of either sign, the bit is undecided.
    let undecided = find_signs::<VECTORS, WORDS>(beliefs, signs);
    let mut odd = 0;
    for check in checks.begins.windows(2) {
        let mut sum = 0;
        for bit in &checks.bits[check[0] as usize..check[1] as usize] {
            sum ^= signs[*bit as usize];
        }
        odd |= sum;
    }
    u32::from(odd | undecided)
}

/// Stores for each bit the signs of its beliefs, one sign bit for each word. Returns the words that
/// have a belief of zero.
#[inline(always)]
fn find_signs<const VECTORS: bool, const WORDS: usize>(beliefs: &[[f32; WORDS]], signs: &mut [u16]) -> u16 {
    const EIGHT: usize = 8;
    let mut undecided = 0;
    for (belief, signs) in beliefs.iter().zip(signs) {
        let (mut all, mut zeros) = (0, 0);
        for (at, eight) in belief.as_chunks::<EIGHT>().0.iter().enumerate() {
            let (own, none) = if VECTORS { vector_signs(eight) } else { plain_signs(eight) };
            all |= u16::from(own) << (EIGHT * at);
            zeros |= u16::from(none) << (EIGHT * at);
        }
        *signs = all;
        undecided |= zeros;
    }
    undecided
}

/// A bit for each number whose sign is negative, and a bit for each number that is zero.
#[inline(always)]
fn plain_signs(eight: &[f32; 8]) -> (u8, u8) {
    let bits = |is: fn(&f32) -> bool| (0..8).fold(0, |bits, lane| bits | u8::from(is(&eight[lane])) << lane);
    (bits(|number| number.is_sign_negative()), bits(|number| *number == 0.0))
}

/// As `plain_signs`. Only for levels with vectors, which include AVX2.
#[inline(always)]
fn vector_signs(eight: &[f32; 8]) -> (u8, u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: eight numbers may be read, and the CPU has AVX2.
    unsafe {
        let numbers = _mm256_loadu_ps(eight.as_ptr());
        let zeros = _mm256_cmp_ps::<_CMP_EQ_OQ>(numbers, _mm256_setzero_ps());
        (_mm256_movemask_ps(numbers) as u8, _mm256_movemask_ps(zeros) as u8)
    }
    #[cfg(not(target_arch = "x86_64"))]
    plain_signs(eight)
}

/// Every check updates the beliefs about its bits, one check or one pair at a time. In the first
/// round there are no earlier messages.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // Constant bounds over lanes read best as indices.
fn checks_say<const FIRST: bool, const WORDS: usize, const TOGETHER: usize>(
    table: Checks<'_>,
    beliefs: &mut [[f32; WORDS]],
    messages: &mut [LaneNumbers],
) {
    const SIGN: u32 = 1 << 31;
    let all = table.bits.as_chunks::<TOGETHER>().0;
    for check in table.begins.windows(2) {
        let place = check[0] as usize..check[1] as usize;
        let (bits, messages) = (&all[place.clone()], &mut messages[place]);
        let (mut least, mut second) = ([f32::INFINITY; LANES], [f32::INFINITY; LANES]);
        let mut signs = [0_u32; LANES];
        for (bits, message) in bits.iter().zip(messages.iter_mut()) {
            let belief = gathered(beliefs, bits);
            for lane in 0..LANES {
                // The belief without this check's last message.
                let other = if FIRST { belief[lane] } else { belief[lane] - message.0[lane] };
                let size = other.abs();
                let larger = if least[lane] > size { least[lane] } else { size };
                second[lane] = if second[lane] < larger { second[lane] } else { larger };
                least[lane] = if least[lane] < size { least[lane] } else { size };
                signs[lane] ^= other.to_bits();
                message.0[lane] = other;
            }
        }
        for (bits, message) in bits.iter().zip(messages.iter_mut()) {
            let mut belief = [0.0; LANES];
            for lane in 0..LANES {
                let other = message.0[lane];
                let size = TRUST * if other.abs() == least[lane] { second[lane] } else { least[lane] };
                // The sign of a zero does not matter: the messages that depend on it are zero as
                // well.
                let sign = (signs[lane] ^ other.to_bits()) & SIGN;
                message.0[lane] = f32::from_bits(size.to_bits() | sign);
                belief[lane] = other + message.0[lane];
            }
            for (part, bit) in belief.as_chunks::<WORDS>().0.iter().zip(bits) {
                beliefs[*bit as usize] = *part;
            }
        }
    }
}

/// The beliefs about the bits of checks that are processed together, one check after the other.
#[inline(always)]
fn gathered<const WORDS: usize, const TOGETHER: usize>(
    beliefs: &[[f32; WORDS]],
    bits: &[u32; TOGETHER],
) -> [f32; LANES] {
    let mut line = [0.0; LANES];
    for (part, bit) in line.as_chunks_mut::<WORDS>().0.iter_mut().zip(bits) {
        *part = beliefs[*bit as usize];
    }
    line
}
