//! The convolutional code of rate ½ with 64 states, and its Viterbi decoder. Frames are decoded in
//! parallel, one in each lane.
//!
//! A register holds seven bits, the newest highest; each polynomial gives the parity of the bits
//! that it selects. Bits are packed into bytes, the first in the highest bit. The decoder's input
//! is a byte for each coded bit: 0 is a certain 0, 255 a certain 1, and 128 is unknown. The input
//! is quantised to 15 levels. The costs of all states then differ by at most 6 · 28, and fit into a
//! byte between two subtractions of the least cost. Log-likelihoods and short tail-biting frames
//! are decoded one by one: see [`frame`].

use panoply_core::op::signal::{Convolutional, Ending};

use crate::byte_lanes::ByteLanes;
use crate::level::{Kind, Level};

#[cfg(target_arch = "x86_64")]
mod few;
pub(crate) mod frame;

/// Number of bits in the encoder's memory.
pub const TAIL_BITS: usize = 6;
pub(crate) const STATES: usize = 64;
/// A cost that no path from the first state reaches in the first steps.
const UNREACHABLE: u8 = 190;
/// Number of steps after which the least cost is subtracted.
const STEPS_PER_SETTLING: usize = 3;

/// A code with its tables for encoding and decoding.
pub struct Trellis {
    level: Level,
    /// The two coded bits for each value of the register.
    outputs: [u8; 2 * STATES],
    /// The sixteen coded bits for each state and byte.
    encoded: Vec<u16>,
}

impl Trellis {
    /// The tables of a code.
    pub fn new(level: Level, code: Convolutional) -> Trellis {
        let parity = |register: usize, polynomial: u8| (register as u8 & polynomial).count_ones() as u8 & 1;
        let [first, second] = code.polynomials;
        let outputs: [u8; 2 * STATES] =
            std::array::from_fn(|register| parity(register, first) << 1 | parity(register, second));
        let encoded = (0..STATES << 8)
            .map(|index| {
                let (mut state, byte) = (index >> 8, index & 0xff);
                (0..8).rev().fold(0_u16, |bits, at| {
                    let register = (byte >> at & 1) << 6 | state;
                    state = register >> 1;
                    bits << 2 | u16::from(outputs[register])
                })
            })
            .collect();
        Trellis { level, outputs, encoded }
    }

    /// Number of coded bits of a frame with `bits` data bits.
    pub fn coded_bits(bits: usize, ending: Ending) -> usize {
        2 * match ending {
            Ending::Terminated => bits + TAIL_BITS,
            Ending::Open | Ending::TailBiting => bits,
        }
    }

    /// Encodes one frame of `bits` bits. The last byte of the output is padded with zeros.
    pub fn encode(&self, data: &[u8], bits: usize, ending: Ending, coded: &mut [u8]) {
        let total = Trellis::coded_bits(bits, ending) / 2;
        let mut state = match ending {
            Ending::TailBiting => first_state(data, bits),
            Ending::Terminated | Ending::Open => 0,
        };
        for (at, out) in coded.chunks_mut(2).enumerate() {
            // Bits beyond the end of the frame, including the tail, are zeros.
            let kept = bits.saturating_sub(8 * at).min(8);
            let byte = data.get(at).map_or(0, |byte| usize::from(*byte) & (0xff00 >> kept));
            let own = total.saturating_sub(8 * at).min(8);
            let pair = (self.encoded[state << 8 | byte] & !(0xffff_u32 >> (2 * own)) as u16).to_be_bytes();
            out.copy_from_slice(&pair[..out.len()]);
            // The six newest bits, the newest highest.
            state = usize::from((byte as u8).reverse_bits() >> 2);
        }
    }

    /// The sixteen coded bits of a byte in this state, and the state after the byte.
    pub(crate) fn encode_byte(&self, state: usize, byte: u8) -> (u16, usize) {
        (self.encoded[(state & (STATES - 1)) << 8 | usize::from(byte)], usize::from(byte.reverse_bits() >> 2))
    }

    /// The two coded bits for each value of the register, the first one in the higher bit.
    pub(crate) fn outputs(&self) -> &[u8; 2 * STATES] {
        &self.outputs
    }

    /// Number of frames that are decoded in parallel.
    pub fn lanes(&self) -> usize {
        match self.level.kind() {
            Kind::Plain => 16,
            Kind::Avx2 => 32,
            Kind::Avx512 | Kind::Gfni => 64,
        }
    }

    /// Decodes up to [`Trellis::lanes`] consecutive frames to the bits of the likeliest path of
    /// each. Between equal paths the one from the lower state is taken. Here [`Ending::TailBiting`]
    /// means a path from any state to any state.
    pub fn decode(&self, frames: &[u8], bits: usize, ending: Ending, decoded: &mut [u8], work: &mut ViterbiMemory) {
        let coded = Trellis::coded_bits(bits, ending);
        let (steps, bytes) = (coded / 2, bits.div_ceil(8));
        if bits == 0 || frames.is_empty() {
            return;
        }
        let count = frames.len() / coded;
        assert!(count <= self.lanes() && frames.len() == count * coded && decoded.len() == count * bytes);
        let job = ViterbiTask { outputs: &self.outputs, frames, count, steps, from_any: ending == Ending::TailBiting };
        #[cfg(target_arch = "x86_64")]
        if self.level.kind() >= Kind::Avx512 && count <= few::LANES {
            // SAFETY: a level is only made if the CPU has its instructions.
            return unsafe { few::decode(&job, bits, ending, decoded, work) };
        }
        work.choices.resize(steps * STATES, 0);
        match self.level.kind() {
            // SAFETY: plain arrays need no special instructions.
            Kind::Plain => unsafe { forward::<[u8; 16]>(&job, work) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a level is only made if the CPU has its instructions.
            Kind::Avx2 => unsafe { avx2(&job, work) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Kind::Avx512 | Kind::Gfni => unsafe { avx512(&job, work) },
            #[cfg(not(target_arch = "x86_64"))]
            _ => (),
        }
        let mut states = [0_u8; 64];
        if ending != Ending::Terminated {
            let lanes = self.lanes();
            for (lane, state) in states.iter_mut().enumerate().take(count) {
                let cost = |state: &usize| work.costs[state * lanes + lane];
                *state = (0..STATES).min_by_key(cost).unwrap_or(0) as u8;
            }
        }
        trace(self.level, &work.choices, states, count, bits, decoded);
    }
}

/// The state after a frame's last six bits, the newest highest.
fn first_state(data: &[u8], bits: usize) -> usize {
    let bit = |at: usize| usize::from(data[at / 8] >> (7 - at % 8) & 1);
    (bits.saturating_sub(TAIL_BITS)..bits).fold(0, |state, at| state >> 1 | bit(at) << (TAIL_BITS - 1))
}

/// The decoder's memory, which is reused for all frames.
#[derive(Default)]
pub struct ViterbiMemory {
    /// For each step and state a bit for each lane: whether the higher of its two predecessors is
    /// better.
    choices: Vec<u64>,
    costs: Vec<u8>,
}

impl ViterbiMemory {
    /// The size of the memory in bytes.
    pub fn bytes(&self) -> usize {
        self.choices.capacity() * size_of::<u64>() + self.costs.capacity()
    }
}

/// Frames to decode.
struct ViterbiTask<'a> {
    outputs: &'a [u8; 2 * STATES],
    frames: &'a [u8],
    count: usize,
    steps: usize,
    /// Whether paths may begin in any state, and not only in the first.
    from_any: bool,
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn avx2(job: &ViterbiTask<'_>, work: &mut ViterbiMemory) {
    // SAFETY: this function enables the instructions.
    unsafe { forward::<std::arch::x86_64::__m256i>(job, work) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw")]
fn avx512(job: &ViterbiTask<'_>, work: &mut ViterbiMemory) {
    // SAFETY: this function enables the instructions.
    unsafe { forward::<std::arch::x86_64::__m512i>(job, work) }
}

/// The quantised level of a soft bit: 0 to 14.
pub(crate) fn level_of(soft: u8) -> u8 {
    ((u16::from(soft) * 15) >> 8) as u8
}

/// Fills the tile with the levels of some steps, step by step, with a byte for each lane.
#[inline(always)]
fn fill(tile: &mut [u8], lanes: usize, job: &ViterbiTask<'_>, first: usize, count: usize) {
    const SIDE: usize = 16;
    let coded = 2 * job.steps;
    for group in (0..job.count).step_by(SIDE) {
        for column in (0..2 * count).step_by(SIDE) {
            let wide = SIDE.min(2 * count - column);
            let mut square = [[0_u8; SIDE]; SIDE];
            for (lane, row) in (group..job.count).zip(&mut square) {
                let begin = lane * coded + 2 * first + column;
                match job.frames[begin..begin + wide].as_array::<SIDE>() {
                    Some(whole) => *row = *whole,
                    None => row[..wide].copy_from_slice(&job.frames[begin..begin + wide]),
                }
            }
            for (at, row) in turned(square).iter().enumerate().take(wide) {
                let levels: [u8; SIDE] = std::array::from_fn(|lane| level_of(row[lane]));
                let place = (column + at) * lanes + group;
                tile[place..place + SIDE].copy_from_slice(&levels);
            }
        }
    }
}

/// Transposes the square, by four perfect shuffles of its rows.
#[inline(always)]
fn turned(mut square: [[u8; 16]; 16]) -> [[u8; 16]; 16] {
    for _ in 0..4 {
        let mut next = [[0; 16]; 16];
        for row in 0..8 {
            let (a, b) = (square[row], square[row + 8]);
            for at in 0..8 {
                (next[2 * row][2 * at], next[2 * row][2 * at + 1]) = (a[at], b[at]);
                (next[2 * row + 1][2 * at], next[2 * row + 1][2 * at + 1]) = (a[8 + at], b[8 + at]);
            }
        }
        square = next;
    }
    square
}

/// Computes the choices of every step, and the costs after the last step.
///
/// # Safety
/// The CPU has the type's instructions.
#[inline(always)]
unsafe fn forward<V: ByteLanes>(job: &ViterbiTask<'_>, work: &mut ViterbiMemory) {
    const STEPS: usize = 32;
    let lanes = V::COUNT;
    work.costs.clear();
    work.costs.resize(2 * STATES * lanes, if job.from_any { 0 } else { UNREACHABLE });
    work.costs[..lanes].fill(0);
    let (mut old, mut new) = work.costs.split_at_mut(STATES * lanes);
    let mut tile = vec![0_u8; 2 * STEPS * lanes];
    for first in (0..job.steps).step_by(STEPS) {
        let count = STEPS.min(job.steps - first);
        fill(&mut tile, lanes, job, first, count);
        for step in 0..count {
            let choices = &mut work.choices[(first + step) * STATES..(first + step + 1) * STATES];
            let softs = &tile[2 * step * lanes..(2 * step + 2) * lanes];
            let settle = (first + step + 1).is_multiple_of(STEPS_PER_SETTLING);
            // SAFETY: as the caller guarantees; the slices have a vector for each state.
            unsafe {
                match settle {
                    true => one_step::<V, true>(job.outputs, softs, old, new, choices),
                    false => one_step::<V, false>(job.outputs, softs, old, new, choices),
                }
            }
            std::mem::swap(&mut old, &mut new);
        }
    }
    if !job.steps.is_multiple_of(2) {
        // The last costs are in the second half.
        work.costs.copy_within(STATES * lanes.., 0);
    }
}

/// # Safety
/// The CPU has the type's instructions. The costs have a vector for each state, and the soft bits
/// have two vectors.
#[inline(always)]
unsafe fn one_step<V: ByteLanes, const SETTLE: bool>(
    outputs: &[u8; 2 * STATES],
    softs: &[u8],
    old: &[u8],
    new: &mut [u8],
    choices: &mut [u64],
) {
    debug_assert!(old.len() == STATES * V::COUNT && new.len() == old.len() && choices.len() == STATES);
    // SAFETY: as the caller guarantees.
    unsafe {
        let full = V::splat(14);
        let (a, b) = (V::load(softs.as_ptr()), V::load(softs.as_ptr().add(V::COUNT)));
        let (not_a, not_b) = (full.sub(a), full.sub(b));
        // The cost of each pair of coded bits: the distances of the soft bits from them.
        let costs = [a.add(b), a.add(not_b), not_a.add(b), not_a.add(not_b)];
        let mut least = V::splat(255);
        for pair in 0..STATES / 2 {
            let low = V::load(old.as_ptr().add(2 * pair * V::COUNT));
            let high = V::load(old.as_ptr().add((2 * pair + 1) * V::COUNT));
            for bit in 0..2 {
                let register = (bit << 6) | (2 * pair);
                let from_low = low.add(costs[usize::from(outputs[register] & 3)]);
                let from_high = high.add(costs[usize::from(outputs[register + 1] & 3)]);
                let state = bit << 5 | pair;
                choices[state] = from_high.less(from_low);
                let best = from_low.min(from_high);
                if SETTLE {
                    least = least.min(best);
                }
                best.store(new.as_mut_ptr().add(state * V::COUNT));
            }
        }
        if SETTLE {
            for state in 0..STATES {
                let place = new.as_mut_ptr().add(state * V::COUNT);
                V::load(place).sub(least).store(place);
            }
        }
    }
}

/// Follows the choices back from the last states.
fn trace(level: Level, choices: &[u64], states: [u8; 64], count: usize, bits: usize, decoded: &mut [u8]) {
    let bytes = bits.div_ceil(8);
    let mut states: [u64; 64] = states.map(u64::from);
    let mut gathered = [0_u64; 64];
    for (at, steps) in choices.chunks(8 * STATES).enumerate().rev() {
        gathered.fill(0);
        trace_steps(level, steps, &mut states, &mut gathered);
        if at < bytes {
            // In the last byte the bits of the tail come after those of the frame.
            let kept = (0xff00_u16 >> (bits - 8 * at).min(8)) as u8;
            for (lane, byte) in gathered.iter().enumerate().take(count) {
                decoded[lane * bytes + at] = *byte as u8 & kept;
            }
        }
    }
}

/// Follows up to eight steps back in every lane, and collects their bits, the first in the highest
/// bit.
fn trace_steps(level: Level, steps: &[u64], states: &mut [u64; 64], gathered: &mut [u64; 64]) {
    match level.kind() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a level is only made if the CPU has its instructions.
        Kind::Avx512 | Kind::Gfni => unsafe { trace_avx512(steps, states, gathered) },
        _ => {
            for (step, own) in steps.as_chunks::<STATES>().0.iter().enumerate().rev() {
                for (lane, (state, byte)) in states.iter_mut().zip(gathered.iter_mut()).enumerate() {
                    *byte |= (*state >> 5) << (7 - step);
                    let choice = own[*state as usize & 63] >> lane & 1;
                    *state = (*state & 31) << 1 | choice;
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn trace_avx512(steps: &[u64], states: &mut [u64; 64], gathered: &mut [u64; 64]) {
    use std::arch::x86_64::*;
    let (low, one) = (_mm512_set1_epi64(31), _mm512_set1_epi64(1));
    let counts = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);
    for (group, (states, gathered)) in
        states.as_chunks_mut::<8>().0.iter_mut().zip(gathered.as_chunks_mut::<8>().0).enumerate()
    {
        let lanes = _mm512_add_epi64(counts, _mm512_set1_epi64(8 * group as i64));
        // SAFETY: eight numbers are read.
        let mut state = unsafe { _mm512_loadu_si512(states.as_ptr().cast()) };
        let mut bytes = _mm512_setzero_si512();
        for (step, own) in steps.as_chunks::<STATES>().0.iter().enumerate().rev() {
            let bit = _mm512_sll_epi64(_mm512_srli_epi64::<5>(state), _mm_cvtsi64_si128(7 - step as i64));
            bytes = _mm512_or_si512(bytes, bit);
            // SAFETY: a state is below 64, and there is a word for each state.
            let words = unsafe { _mm512_i64gather_epi64::<8>(state, own.as_ptr().cast()) };
            let choice = _mm512_and_si512(_mm512_srlv_epi64(words, lanes), one);
            state = _mm512_or_si512(_mm512_slli_epi64::<1>(_mm512_and_si512(state, low)), choice);
        }
        // SAFETY: there is room for eight numbers.
        unsafe {
            _mm512_storeu_si512(states.as_mut_ptr().cast(), state);
            _mm512_storeu_si512(gathered.as_mut_ptr().cast(), bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct SeededRandom(u64);

    impl SeededRandom {
        fn next(&mut self) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) as usize
        }
    }

    /// The coded bits of a frame as soft bits.
    fn softs(coded: &[u8], bits: usize) -> Vec<u8> {
        (0..bits).map(|at| if coded[at / 8] >> (7 - at % 8) & 1 == 1 { 255 } else { 0 }).collect()
    }

    #[test]
    fn the_code_is_the_standards() {
        // A single one produces both polynomials, bit by bit: 1111001 and 1011011.
        let trellis = Trellis::new(Level::PLAIN, Convolutional::default());
        let mut coded = [0; 4];
        trellis.encode(&[0x80], 8, Ending::Terminated, &mut coded);
        assert_eq!(coded, [0b1110_1111, 0b0001_1100, 0, 0]);
    }

    #[test]
    fn frames_come_back_through_errors_at_every_level() {
        let mut random = SeededRandom(3);
        for level in Level::all() {
            let (trellis, mut work) = (Trellis::new(level, Convolutional::default()), ViterbiMemory::default());
            for (bits, ending) in [
                (1, Ending::Terminated),
                (8, Ending::Open),
                (100, Ending::Terminated),
                (2048, Ending::Terminated),
                (77, Ending::Open),
            ] {
                let (coded, bytes) = (Trellis::coded_bits(bits, ending), bits.div_ceil(8));
                for count in [1, 5, trellis.lanes() / 2, trellis.lanes() / 2 + 1, trellis.lanes()] {
                    let (mut sent, mut frames) = (Vec::new(), Vec::new());
                    for _ in 0..count {
                        let mut data: Vec<u8> = (0..bytes).map(|_| random.next() as u8).collect();
                        data[bytes - 1] &= (0xff00_u16 >> (bits - 8 * (bytes - 1))) as u8;
                        let mut out = vec![0; coded.div_ceil(8)];
                        trellis.encode(&data, bits, ending, &mut out);
                        let mut soft = softs(&out, coded);
                        // Errors at a sufficient distance from each other and from an open end.
                        for at in (0..coded.saturating_sub(40)).step_by(40) {
                            soft[at + random.next() % 4] ^= 0xff;
                        }
                        frames.extend(soft);
                        sent.extend(data);
                    }
                    let mut decoded = vec![0xee; sent.len()];
                    trellis.decode(&frames, bits, ending, &mut decoded, &mut work);
                    assert_eq!(decoded, sent, "{level:?} {bits} {ending:?} {count}");
                }
            }
        }
    }

    /// The input is noise alone: the decoded frame is as close to it as any other frame, for any
    /// number of frames in parallel.
    #[test]
    fn noise_is_decoded_to_a_nearest_frame() {
        let mut random = SeededRandom(8);
        let distance = |frame: &[u8], softs: &[u8]| -> u64 {
            let of_bit = |(at, soft): (usize, &u8)| match frame[at / 8] >> (7 - at % 8) & 1 {
                1 => 14 - u64::from(level_of(*soft)),
                _ => u64::from(level_of(*soft)),
            };
            softs.iter().enumerate().map(of_bit).sum()
        };
        for level in Level::all() {
            let (trellis, mut work) = (Trellis::new(level, Convolutional::default()), ViterbiMemory::default());
            for bits in 1..=9 {
                for ending in [Ending::Terminated, Ending::Open] {
                    let coded = Trellis::coded_bits(bits, ending);
                    let frames: Vec<(Vec<u8>, Vec<u8>)> = (0..1_u32 << bits)
                        .map(|number| {
                            let data = (number << (32 - bits)).to_be_bytes()[..bits.div_ceil(8)].to_vec();
                            let mut frame = vec![0; coded.div_ceil(8)];
                            trellis.encode(&data, bits, ending, &mut frame);
                            (data, frame)
                        })
                        .collect();
                    let count = 1 + random.next() % trellis.lanes();
                    let softs: Vec<u8> = (0..count * coded).map(|_| random.next() as u8).collect();
                    let mut decoded = vec![0xee; count * bits.div_ceil(8)];
                    trellis.decode(&softs, bits, ending, &mut decoded, &mut work);
                    for (decoded, softs) in decoded.chunks(bits.div_ceil(8)).zip(softs.chunks(coded)) {
                        let least = frames.iter().map(|(_, frame)| distance(frame, softs)).min().unwrap();
                        let own = frames.iter().find(|(data, _)| data == decoded);
                        let own = distance(&own.unwrap_or_else(|| panic!("{level:?} {bits} {decoded:?}")).1, softs);
                        assert_eq!(own, least, "{level:?} {bits} {ending:?}");
                    }
                }
            }
        }
    }
}
