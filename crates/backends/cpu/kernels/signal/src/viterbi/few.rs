//! Up to 32 frames in parallel with AVX-512. A vector holds two states, `p` in its lower half and
//! `p + 32` in its upper half. These are the successors of the states `2p` and `2p + 1`. So half as
//! many vectors are needed as for 64 frames.

use std::arch::x86_64::*;

use panoply_core::op::signal::Ending;

use super::{STATES, STEPS_PER_SETTLING, UNREACHABLE, ViterbiMemory, ViterbiTask, fill};

/// The largest number of frames.
pub(super) const LANES: usize = 32;
/// Number of vectors for all states, and of words for the choices of a step.
const PAIRS: usize = STATES / 2;
const VECTOR_BYTES: usize = 64;
/// Number of steps whose soft bits are gathered at a time.
const TILE_STEPS: usize = 32;

/// Decodes frames like [`super::Trellis::decode`].
///
/// # Safety
/// The CPU has AVX-512 F, BW and DQ.
pub(super) unsafe fn decode(
    job: &ViterbiTask<'_>,
    bits: usize,
    ending: Ending,
    decoded: &mut [u8],
    work: &mut ViterbiMemory,
) {
    assert!(job.count <= LANES);
    // SAFETY: as the caller guarantees.
    unsafe { forward(job, work) };
    let mut states = [0_u32; LANES];
    if ending != Ending::Terminated {
        for (lane, state) in states.iter_mut().enumerate().take(job.count) {
            let cost = |state: &usize| work.costs[place(*state) + lane];
            *state = (0..STATES).min_by_key(cost).unwrap_or(0) as u32;
        }
    }
    let (bytes, mut gathered) = (bits.div_ceil(8), [0_u32; LANES]);
    for (at, steps) in work.choices.chunks(8 * PAIRS).enumerate().rev() {
        // SAFETY: as the caller guarantees.
        unsafe { trace_steps(steps, &mut states, &mut gathered) };
        if at < bytes {
            // In the last byte the bits of the tail come after those of the frame.
            let kept = (0xff00_u16 >> (bits - 8 * at).min(8)) as u8;
            for (lane, byte) in gathered.iter().enumerate().take(job.count) {
                decoded[lane * bytes + at] = *byte as u8 & kept;
            }
        }
    }
}

/// The index at which the costs of a state begin.
fn place(state: usize) -> usize {
    (state % PAIRS) * VECTOR_BYTES + state / PAIRS * LANES
}

/// Computes the choices of every step, and the costs after the last step.
#[target_feature(enable = "avx512f,avx512bw,avx512dq")]
fn forward(job: &ViterbiTask<'_>, work: &mut ViterbiMemory) {
    let pairs = Pairs::new(job.outputs);
    work.costs.clear();
    work.costs.resize(2 * PAIRS * VECTOR_BYTES, if job.from_any { 0 } else { UNREACHABLE });
    work.costs[..LANES].fill(0);
    work.choices.resize(job.steps * PAIRS, 0);
    let (mut old, mut new) = work.costs.split_at_mut(PAIRS * VECTOR_BYTES);
    let mut tile = [0_u8; 2 * TILE_STEPS * LANES];
    for first in (0..job.steps).step_by(TILE_STEPS) {
        let count = TILE_STEPS.min(job.steps - first);
        fill(&mut tile, LANES, job, first, count);
        for (step, softs) in tile.as_chunks::<{ 2 * LANES }>().0[..count].iter().enumerate() {
            let choices = &mut work.choices[(first + step) * PAIRS..][..PAIRS];
            let settle = (first + step + 1).is_multiple_of(STEPS_PER_SETTLING);
            one_step(&pairs, softs, old, new, choices, settle);
            std::mem::swap(&mut old, &mut new);
        }
    }
    if !job.steps.is_multiple_of(2) {
        // The last costs are in the second half.
        work.costs.copy_within(PAIRS * VECTOR_BYTES.., 0);
    }
}

/// The coded bits that each pair of states sends.
struct Pairs {
    /// The coded bits from `2p` and from `2p + 1`: two bits for the lower half, and above them two
    /// bits for the upper half.
    sent: [[u8; 2]; PAIRS],
    /// A bit for each of the sixteen combinations that occurs.
    used: u16,
}

impl Pairs {
    fn new(outputs: &[u8; 2 * STATES]) -> Pairs {
        let sent = std::array::from_fn(|pair| {
            [2 * pair, 2 * pair + 1].map(|register| outputs[register] & 3 | (outputs[STATES + register] & 3) << 2)
        });
        let used = sent.iter().flatten().fold(0, |used, sent| used | 1 << sent);
        Pairs { sent, used }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq")]
fn one_step(pairs: &Pairs, softs: &[u8; 2 * LANES], old: &[u8], new: &mut [u8], choices: &mut [u64], settle: bool) {
    let (old, new) = (old.as_chunks::<VECTOR_BYTES>().0, new.as_chunks_mut::<VECTOR_BYTES>().0);
    let (Some(old), Some(new)) = (old.as_array::<PAIRS>(), new.as_mut_array::<PAIRS>()) else { return };
    let Some(choices) = choices.as_mut_array::<PAIRS>() else { return };
    let costs = costs_of(pairs.used, softs);
    let mut least = _mm512_set1_epi8(-1);
    for pair in 0..PAIRS {
        // The states `2p` and `2p + 1`, in both halves.
        let [low, high] = [2 * pair, 2 * pair + 1].map(|state| {
            let half = &old[state % PAIRS].as_chunks::<LANES>().0[state / PAIRS];
            // SAFETY: a half of a vector is read.
            _mm512_broadcast_i64x4(unsafe { _mm256_loadu_si256(half.as_ptr().cast()) })
        });
        let [sent_low, sent_high] = pairs.sent[pair];
        let from_low = _mm512_adds_epu8(low, costs[usize::from(sent_low & 15)]);
        let from_high = _mm512_adds_epu8(high, costs[usize::from(sent_high & 15)]);
        choices[pair] = _mm512_cmplt_epu8_mask(from_high, from_low);
        let best = _mm512_min_epu8(from_low, from_high);
        least = _mm512_min_epu8(least, best);
        // SAFETY: a vector is written.
        unsafe { _mm512_storeu_si512(new[pair].as_mut_ptr().cast(), best) };
    }
    if settle {
        let least = _mm256_min_epu8(_mm512_castsi512_si256(least), _mm512_extracti64x4_epi64::<1>(least));
        let least = _mm512_broadcast_i64x4(least);
        for vector in new {
            // SAFETY: a vector is read and written.
            unsafe {
                let own = _mm512_loadu_si512(vector.as_ptr().cast());
                _mm512_storeu_si512(vector.as_mut_ptr().cast(), _mm512_subs_epu8(own, least));
            }
        }
    }
}

/// The costs of the combinations that occur: those of the lower half's coded bits in the lower
/// half, and those of the upper half's in the upper half.
#[target_feature(enable = "avx512f,avx512bw,avx512dq")]
fn costs_of(used: u16, softs: &[u8; 2 * LANES]) -> [__m512i; 16] {
    let full = _mm256_set1_epi8(14);
    // SAFETY: there are two halves of a vector.
    let (a, b) =
        unsafe { (_mm256_loadu_si256(softs.as_ptr().cast()), _mm256_loadu_si256(softs.as_ptr().add(LANES).cast())) };
    let (not_a, not_b) = (_mm256_sub_epi8(full, a), _mm256_sub_epi8(full, b));
    let each =
        [_mm256_add_epi8(a, b), _mm256_add_epi8(a, not_b), _mm256_add_epi8(not_a, b), _mm256_add_epi8(not_a, not_b)];
    let mut costs = [_mm512_setzero_si512(); 16];
    let mut left = used;
    while left != 0 {
        let sent = left.trailing_zeros() as usize;
        costs[sent] = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(each[sent & 3]), each[sent >> 2]);
        left &= left - 1;
    }
    costs
}

/// Follows up to eight steps back in every lane, and collects their bits, the first in the highest
/// bit.
#[target_feature(enable = "avx512f,avx512bw,avx512dq")]
fn trace_steps(steps: &[u64], states: &mut [u32; LANES], gathered: &mut [u32; LANES]) {
    let (low, one) = (_mm512_set1_epi32(31), _mm512_set1_epi32(1));
    let counts = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    for (group, (states, gathered)) in
        states.as_chunks_mut::<16>().0.iter_mut().zip(gathered.as_chunks_mut::<16>().0).enumerate()
    {
        let lanes = _mm512_add_epi32(counts, _mm512_set1_epi32(16 * group as i32));
        // SAFETY: sixteen numbers are read.
        let mut state = unsafe { _mm512_loadu_si512(states.as_ptr().cast()) };
        let mut bytes = _mm512_setzero_si512();
        for own in steps.as_chunks::<PAIRS>().0.iter().rev() {
            let (bit, before) = (_mm512_srli_epi32::<5>(state), _mm512_slli_epi32::<1>(_mm512_and_si512(state, low)));
            bytes = _mm512_or_si512(_mm512_srli_epi32::<1>(bytes), _mm512_slli_epi32::<7>(bit));
            // SAFETY: a state is below 64, so the index is too, and there are 64 half words. In
            // each 64-bit word the choices of the lower half come first.
            let words = unsafe { _mm512_i32gather_epi32::<4>(_mm512_or_si512(before, bit), own.as_ptr().cast()) };
            let choice = _mm512_and_si512(_mm512_srlv_epi32(words, lanes), one);
            state = _mm512_or_si512(before, choice);
        }
        // SAFETY: there is room for sixteen numbers.
        unsafe {
            _mm512_storeu_si512(states.as_mut_ptr().cast(), state);
            _mm512_storeu_si512(gathered.as_mut_ptr().cast(), bytes);
        }
    }
}
