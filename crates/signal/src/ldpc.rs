//! Codes of sparse parity checks: encoders that follow from the checks, and a decoder by min-sum, sixteen words side by side.
//!
//! Bits lie in bytes, the first highest. A word's first bits are the data; the bits that are not sent are known to nobody.

mod circulant;

use std::sync::{Mutex, PoisonError};

use panoply_core::op::signal::Ldpc;

use crate::level::{Level, leveled};
use circulant::Solver;

/// Words that are decoded side by side.
pub const LANES: usize = 16;
/// What a check says counts for so much.
const TRUST: f32 = 0.75;
/// The most that is believed of a bit that was received.
const BELIEF_MAX: f32 = 1e6;

/// Memory of decoders that is kept: for so many at once, of so many bytes each at the most.
const ROOMS_MAX: usize = 64;
const ROOM_BYTES_MAX: usize = 2 << 20;

/// A number of each of the words side by side, in a cache line of their own.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Lanes([f32; LANES]);

impl Lanes {
    const ZERO: Lanes = Lanes([0.0; LANES]);
}

/// What a decoder remembers: what is believed of each bit, and what each check has said to each of its bits.
struct Room {
    beliefs: Vec<Lanes>,
    messages: Vec<Lanes>,
}

/// A code, ready to encode and decode.
pub struct Graph {
    level: Level,
    code: Ldpc,
    /// The bits of all checks, one check after the other, and where each begins.
    bits: Vec<u32>,
    begins: Vec<u32>,
    /// What the first bits of parity follow from.
    first: First,
    /// The checks that the others follow from, in order, each with the bit that it gives.
    schedule: Vec<(u32, u32)>,
    /// Memory of decoders that are not under way.
    rooms: Mutex<Vec<Room>>,
}

/// How the first bits of parity are found: those that no check gives by itself.
enum First {
    /// The sum of the four checks of each place gives one bit.
    Sums(Vec<(Vec<u32>, u32)>),
    /// A matrix of circulants gives a block from these sums of data.
    Solved { sums: Vec<Vec<u32>>, solver: Box<Solver>, block: usize },
}

impl Graph {
    /// The tables of a code; `None` where its checks give no encoder.
    pub fn new(level: Level, code: Ldpc) -> Option<Graph> {
        let checks = code.parity_checks();
        let (block, data) = (code.block(), code.data_bits());
        let mut known = vec![false; code.word_bits()];
        known[..data].fill(true);
        let first = match code {
            Ldpc::Nr { .. } => {
                let one = |place: usize| {
                    let mut sum: Vec<u32> =
                        (0..4).flat_map(|row| checks[row * block + place].iter().copied()).collect();
                    odd_times(&mut sum);
                    let (unknown, of_data) = sum.into_iter().partition::<Vec<u32>, _>(|bit| *bit as usize >= data);
                    (unknown.len() == 1).then(|| (of_data, unknown[0]))
                };
                let sums = (0..block).map(one).collect::<Option<Vec<_>>>()?;
                sums.iter().for_each(|(_, bit)| known[*bit as usize] = true);
                First::Sums(sums)
            }
            Ldpc::Telemetry { .. } => {
                let last = code.word_bits() - block;
                known[last..].fill(true);
                solved(&checks, block, data, last)?
            }
        };
        let schedule = peel(&checks, &mut known)?;
        let mut begins = Vec::with_capacity(checks.len() + 1);
        let mut bits = Vec::new();
        for check in &checks {
            begins.push(bits.len() as u32);
            bits.extend_from_slice(check);
        }
        begins.push(bits.len() as u32);
        Some(Graph { level, code, bits, begins, first, schedule, rooms: Mutex::default() })
    }

    /// The code.
    pub fn code(&self) -> Ldpc {
        self.code
    }

    /// What its tables take, about.
    pub fn bytes(&self) -> usize {
        4 * (self.bits.len() + self.begins.len() + 2 * self.schedule.len())
    }

    fn check(&self, index: usize) -> &[u32] {
        &self.bits[self.begins[index] as usize..self.begins[index + 1] as usize]
    }

    /// Encodes one word's data.
    pub fn encode(&self, data: &[u8], coded: &mut [u8]) {
        let mut word = vec![0_u8; self.code.word_bits()];
        let count = self.code.data_bits();
        word[..count].iter_mut().enumerate().for_each(|(at, bit)| *bit = data[at / 8] >> (7 - at % 8) & 1);
        let sum = |word: &[u8], bits: &[u32]| bits.iter().fold(0, |sum, bit| sum ^ word[*bit as usize]);
        match &self.first {
            First::Sums(sums) => sums.iter().for_each(|(bits, bit)| word[*bit as usize] = sum(&word, bits)),
            First::Solved { sums, solver, block } => {
                let right: Vec<u8> = sums.iter().map(|bits| sum(&word, bits)).collect();
                let last = word.len() - block;
                solver.solve(&right, &mut word[last..]);
            }
        }
        for (check, bit) in &self.schedule {
            // The bit itself is still 0.
            word[*bit as usize] = sum(&word, self.check(*check as usize));
        }
        pack(word[self.code.sent()].iter().map(|bit| *bit == 1), coded);
    }

    /// Decodes up to [`LANES`] words that lie one after the other. `counts` are the iterations that each took, or -1.
    pub fn decode(&self, likelihoods: &[f32], iterations: usize, data: &mut [u8], counts: &mut [i32]) {
        let (coded, bytes, sent) = (self.code.coded_bits(), self.code.data_bits().div_ceil(8), self.code.sent());
        let words = counts.len();
        assert!(words <= LANES && likelihoods.len() == words * coded && data.len() == words * bytes);
        let kept = self.rooms.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut room = kept.unwrap_or_else(|| Room {
            beliefs: vec![Lanes::ZERO; self.code.word_bits()],
            messages: vec![Lanes::ZERO; self.bits.len()],
        });
        room.beliefs[..sent.start].fill(Lanes::ZERO);
        room.beliefs[sent.end..].fill(Lanes::ZERO);
        receive(self.level, likelihoods, coded, &mut room.beliefs[sent]);
        self.settle(&mut room, iterations, data, counts);
        let mut rooms = self.rooms.lock().unwrap_or_else(PoisonError::into_inner);
        if rooms.len() < ROOMS_MAX && size_of::<Lanes>() * (room.beliefs.len() + room.messages.len()) <= ROOM_BYTES_MAX
        {
            rooms.push(room);
        }
    }

    /// Takes each word when its checks hold, or when there is no time left.
    fn settle(&self, room: &mut Room, iterations: usize, data: &mut [u8], counts: &mut [i32]) {
        let (beliefs, messages) = (&mut room.beliefs[..], &mut room.messages[..]);
        let mut open: u32 = (1 << counts.len()) - 1;
        counts.fill(-1);
        for iteration in 0..=iterations {
            let mut wrong = 0;
            find_wrong(self.level, &self.bits, &self.begins, beliefs, &mut wrong);
            let settled = open & !wrong;
            let taken = if iteration == iterations { open } else { settled };
            if taken != 0 {
                take(self.level, &beliefs[..self.code.data_bits()], taken, data);
            }
            let lanes = counts.iter_mut().enumerate().filter(|(lane, _)| settled >> lane & 1 == 1);
            lanes.for_each(|(_, count)| *count = iteration as i32);
            open &= !taken;
            if open == 0 {
                return;
            }
            match iteration {
                0 => update_first(self.level, &self.bits, &self.begins, beliefs, messages),
                _ => update(self.level, &self.bits, &self.begins, beliefs, messages),
            }
        }
    }
}

leveled! {
    /// What was received of words that lie one after the other, side by side; lanes without a word know nothing.
    fn receive(likelihoods: &[f32], coded: usize, beliefs: &mut [Lanes]) = receive_body
}

#[inline(always)]
#[allow(clippy::needless_range_loop)] // Constant bounds over lanes read best as indices.
fn receive_body<const FMA: bool>(likelihoods: &[f32], coded: usize, beliefs: &mut [Lanes]) {
    for (number, beliefs) in beliefs.chunks_mut(LANES).enumerate() {
        let mut block = [[0.0_f32; LANES]; LANES];
        for (row, word) in block.iter_mut().zip(likelihoods.chunks_exact(coded)) {
            let values = &word[number * LANES..number * LANES + beliefs.len()];
            for (place, value) in row.iter_mut().zip(values) {
                *place = if value.is_nan() { 0.0 } else { value.clamp(-BELIEF_MAX, BELIEF_MAX) };
            }
        }
        for (bit, belief) in beliefs.iter_mut().enumerate() {
            for lane in 0..LANES {
                belief.0[lane] = block[lane][bit];
            }
        }
    }
}

leveled! {
    /// The bits of the words of these lanes, into theirs of the words' bytes.
    fn take(beliefs: &[Lanes], taken: u32, data: &mut [u8]) = take_body
}

#[inline(always)]
#[allow(clippy::needless_range_loop)] // Constant bounds over lanes read best as indices.
fn take_body<const FMA: bool>(beliefs: &[Lanes], taken: u32, data: &mut [u8]) {
    let bytes = beliefs.len().div_ceil(8);
    for (number, beliefs) in beliefs.chunks(8).enumerate() {
        let mut byte = [0_u32; LANES];
        for belief in beliefs {
            for lane in 0..LANES {
                byte[lane] = byte[lane] << 1 | u32::from(belief.0[lane] < 0.0);
            }
        }
        for (lane, byte) in byte.into_iter().enumerate().filter(|(lane, _)| taken >> lane & 1 == 1) {
            data[lane * bytes + number] = (byte << (8 - beliefs.len())) as u8;
        }
    }
}

leveled! {
    /// The lanes in which a check does not hold, or a bit is not decided.
    fn find_wrong(bits: &[u32], begins: &[u32], beliefs: &[Lanes], wrong: &mut u32) = find_wrong_body
}

#[inline(always)]
#[allow(clippy::needless_range_loop)] // Constant bounds over lanes read best as indices.
fn find_wrong_body<const FMA: bool>(bits: &[u32], begins: &[u32], beliefs: &[Lanes], wrong: &mut u32) {
    let (mut least, mut odd) = ([f32::INFINITY; LANES], [0_u32; LANES]);
    for belief in beliefs {
        for lane in 0..LANES {
            let size = belief.0[lane].abs();
            least[lane] = if size < least[lane] { size } else { least[lane] };
        }
    }
    for check in begins.windows(2) {
        // A number below zero is a one, whose highest bit is set; where a zero has it, the bit is not decided.
        let mut sum = [0_u32; LANES];
        for bit in &bits[check[0] as usize..check[1] as usize] {
            let belief = &beliefs[*bit as usize];
            for lane in 0..LANES {
                sum[lane] ^= belief.0[lane].to_bits();
            }
        }
        for lane in 0..LANES {
            odd[lane] |= sum[lane];
        }
    }
    let is_wrong = |lane: usize| odd[lane] >> 31 == 1 || least[lane] == 0.0;
    *wrong = (0..LANES).fold(0, |wrong, lane| wrong | u32::from(is_wrong(lane)) << lane);
}

leveled! {
    /// Every check, one after the other, changes what is believed of its bits.
    fn update(bits: &[u32], begins: &[u32], beliefs: &mut [Lanes], messages: &mut [Lanes]) = update_body
}

leveled! {
    /// The same before any check has said something.
    fn update_first(bits: &[u32], begins: &[u32], beliefs: &mut [Lanes], messages: &mut [Lanes]) = update_first_body
}

#[inline(always)]
fn update_body<const FMA: bool>(bits: &[u32], begins: &[u32], beliefs: &mut [Lanes], messages: &mut [Lanes]) {
    checks_say::<false>(bits, begins, beliefs, messages);
}

#[inline(always)]
fn update_first_body<const FMA: bool>(bits: &[u32], begins: &[u32], beliefs: &mut [Lanes], messages: &mut [Lanes]) {
    checks_say::<true>(bits, begins, beliefs, messages);
}

#[inline(always)]
fn checks_say<const FIRST: bool>(bits: &[u32], begins: &[u32], beliefs: &mut [Lanes], messages: &mut [Lanes]) {
    const SIGN: u32 = 1 << 31;
    for check in begins.windows(2) {
        let place = check[0] as usize..check[1] as usize;
        let (bits, messages) = (&bits[place.clone()], &mut messages[place]);
        let (mut least, mut second) = ([f32::INFINITY; LANES], [f32::INFINITY; LANES]);
        let mut signs = [0_u32; LANES];
        for (bit, message) in bits.iter().zip(messages.iter_mut()) {
            let belief = &beliefs[*bit as usize];
            for lane in 0..LANES {
                // What the bit's other checks say.
                let other = if FIRST { belief.0[lane] } else { belief.0[lane] - message.0[lane] };
                let size = other.abs();
                let larger = if least[lane] > size { least[lane] } else { size };
                second[lane] = if second[lane] < larger { second[lane] } else { larger };
                least[lane] = if least[lane] < size { least[lane] } else { size };
                signs[lane] ^= other.to_bits();
                message.0[lane] = other;
            }
        }
        for (bit, message) in bits.iter().zip(messages.iter_mut()) {
            let belief = &mut beliefs[*bit as usize];
            for lane in 0..LANES {
                let other = message.0[lane];
                let size = TRUST * if other.abs() == least[lane] { second[lane] } else { least[lane] };
                // A zero's sign is anybody's: what it makes of others is zero as well.
                let sign = (signs[lane] ^ other.to_bits()) & SIGN;
                message.0[lane] = f32::from_bits(size.to_bits() | sign);
                belief.0[lane] = other + message.0[lane];
            }
        }
    }
}

/// The checks that give one unknown bit each, in an order in which they do; `None` where bits are left.
fn peel(checks: &[Vec<u32>], known: &mut [bool]) -> Option<Vec<(u32, u32)>> {
    let mut schedule = Vec::new();
    let mut left: Vec<u32> = (0..checks.len() as u32).collect();
    loop {
        let before = left.len();
        left.retain(|check| {
            let mut unknown = checks[*check as usize].iter().filter(|bit| !known[**bit as usize]);
            match (unknown.next(), unknown.next()) {
                (Some(bit), None) => {
                    known[*bit as usize] = true;
                    schedule.push((*check, *bit));
                    false
                }
                (None, _) => false,
                _ => true,
            }
        });
        if left.len() == before {
            break;
        }
    }
    known.iter().all(|known| *known).then_some(schedule)
}

/// The last block of parity of a telemetry code: the checks of the last row, in which the bits of the block before it are replaced by the
/// checks of the second row that give them.
fn solved(checks: &[Vec<u32>], block: usize, data: usize, last: usize) -> Option<First> {
    let middle = last - block;
    let (mut sums, mut rows) = (Vec::new(), Vec::new());
    for check in &checks[2 * block..] {
        let mut all = Vec::new();
        for bit in check {
            match *bit as usize {
                place if (middle..last).contains(&place) => {
                    let gives = &checks[block + place - middle];
                    all.extend(gives.iter().copied().filter(|other| other != bit));
                }
                _ => all.push(*bit),
            }
        }
        odd_times(&mut all);
        let (of_data, unknown) = all.into_iter().partition::<Vec<u32>, _>(|bit| (*bit as usize) < data);
        if unknown.iter().any(|bit| (*bit as usize) < last) {
            return None;
        }
        sums.push(of_data);
        rows.push(unknown.into_iter().map(|bit| bit as usize - last).collect::<Vec<usize>>());
    }
    Some(First::Solved { sums, solver: Box::new(Solver::new(&rows)?), block })
}

/// Leaves the numbers that are there an odd number of times, once each.
fn odd_times(numbers: &mut Vec<u32>) {
    numbers.sort_unstable();
    let odd = numbers.chunk_by(|a, b| a == b).filter(|same| same.len() % 2 == 1).map(|same| same[0]);
    *numbers = odd.collect();
}

fn pack(bits: impl Iterator<Item = bool>, bytes: &mut [u8]) {
    bytes.fill(0);
    bits.enumerate().for_each(|(at, bit)| bytes[at / 8] |= u8::from(bit) << (7 - at % 8));
}

#[cfg(test)]
mod tests {
    use super::*;
    use panoply_core::op::signal::{BaseGraph, TelemetryRate};

    #[test]
    fn every_code_has_an_encoder_whose_words_hold() {
        let telemetry = [TelemetryRate::Half, TelemetryRate::TwoThirds, TelemetryRate::FourFifths];
        let mut codes: Vec<Ldpc> = telemetry.map(|rate| Ldpc::Telemetry { data: 1024, rate }).to_vec();
        codes.push(Ldpc::Telemetry { data: 16_384, rate: TelemetryRate::Half });
        for graph in [BaseGraph::One, BaseGraph::Two] {
            // One lifting of each set of shifts, and the largest.
            codes.extend([2, 3, 5, 7, 9, 11, 13, 15, 64, 384].map(|lifting| Ldpc::Nr { graph, lifting }));
        }
        for code in codes {
            let graph = Graph::new(Level::best(), code).unwrap_or_else(|| panic!("{code:?}"));
            let mut state = 5_u32;
            let mut data: Vec<u8> = (0..code.data_bits().div_ceil(8))
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 24) as u8
                })
                .collect();
            if let Some(last) = data.last_mut().filter(|_| !code.data_bits().is_multiple_of(8)) {
                *last &= (0xff00_u16 >> (code.data_bits() % 8)) as u8;
            }
            let mut coded = vec![0; code.coded_bits().div_ceil(8)];
            graph.encode(&data, &mut coded);
            // What was sent, without noise: the decoder finds the rest, and every check holds.
            let likelihoods: Vec<f32> = (0..code.coded_bits())
                .map(|at| if coded[at / 8] >> (7 - at % 8) & 1 == 1 { -4.0 } else { 4.0 })
                .collect();
            let (mut decoded, mut counts) = (vec![0; data.len()], [0]);
            graph.decode(&likelihoods, 50, &mut decoded, &mut counts);
            assert!(counts[0] > 0, "{code:?}: {counts:?}");
            assert_eq!(decoded, data, "{code:?}");
        }
    }
}
