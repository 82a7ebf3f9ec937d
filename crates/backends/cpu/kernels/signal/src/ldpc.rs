//! Low-density parity-check codes: encoders derived from the checks, and a min-sum decoder that
//! decodes sixteen words in parallel.
//!
//! Bits are packed into bytes, the first in the highest bit. A word begins with the data. Punctured
//! bits are not sent; the decoder starts without any knowledge of them.

mod circulant;
mod rounds;

use std::sync::{Mutex, PoisonError};

use panoply_core::op::signal::Ldpc;

use crate::level::Level;
use circulant::Solver;
use rounds::{Checks, DecoderMemory, FEW, LaneNumbers, LdpcTask, decode_few, decode_many};

/// Number of words that are decoded in parallel.
pub const LANES: usize = rounds::LANES;

/// The limits of the pool of decoder memory: the number of entries, and the bytes of each.
const ROOMS_MAX: usize = 64;
const ROOM_BYTES_MAX: usize = 2 << 20;

/// A code with its tables for encoding and decoding.
pub struct Graph {
    level: Level,
    code: Ldpc,
    /// The bits of all checks, one check after the other, and the index at which each check begins.
    bits: Vec<u32>,
    begins: Vec<u32>,
    /// The same checks in the same order, grouped into pairs without a common bit.
    pairs: Pairs,
    /// The way to compute the first parity bits.
    first: FirstParity,
    /// The checks that determine the remaining parity bits, in order, each with the bit that it
    /// determines.
    schedule: Vec<(u32, u32)>,
    /// The pool of decoder memory that is not in use.
    rooms: Mutex<Vec<DecoderMemory>>,
}

/// How the first parity bits are found, which no single check determines.
enum FirstParity {
    /// The sum of the four checks at each index determines one bit.
    Sums(Vec<(Vec<u32>, u32)>),
    /// A matrix of circulants determines a block of bits from these sums of data bits.
    Solved { sums: Vec<Vec<u32>>, solver: Box<Solver>, block: usize },
}

/// Pairs of checks: the interleaved bits of both, and the index at which each pair begins.
struct Pairs {
    bits: Vec<u32>,
    begins: Vec<u32>,
    /// Number of dummy bits after the end of a word. They fill the second half of a pair with a
    /// single check.
    spare: usize,
}

impl Graph {
    /// The tables of a code. `None` if no encoder can be derived from its checks.
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
                FirstParity::Sums(sums)
            }
            Ldpc::Telemetry { .. } => {
                let last = code.word_bits() - block;
                known[last..].fill(true);
                solved(&checks, block, data, last)?
            }
        };
        let (checks, pairs) = paired(checks, block, code.word_bits());
        let schedule = peel(&checks, &mut known)?;
        let mut begins = Vec::with_capacity(checks.len() + 1);
        let mut bits = Vec::new();
        for check in &checks {
            begins.push(bits.len() as u32);
            bits.extend_from_slice(check);
        }
        begins.push(bits.len() as u32);
        Some(Graph { level, code, bits, begins, pairs, first, schedule, rooms: Mutex::default() })
    }

    /// The code.
    pub fn code(&self) -> Ldpc {
        self.code
    }

    /// The approximate memory of the tables, in bytes.
    pub fn bytes(&self) -> usize {
        let pairs = self.pairs.bits.len() + self.pairs.begins.len();
        4 * (self.bits.len() + self.begins.len() + pairs + 2 * self.schedule.len())
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
            FirstParity::Sums(sums) => sums.iter().for_each(|(bits, bit)| word[*bit as usize] = sum(&word, bits)),
            FirstParity::Solved { sums, solver, block } => {
                let right: Vec<u8> = sums.iter().map(|bits| sum(&word, bits)).collect();
                let last = word.len() - block;
                solver.solve(&right, &mut word[last..]);
            }
        }
        for (check, bit) in &self.schedule {
            // At this point the bit itself is still 0.
            word[*bit as usize] = sum(&word, self.check(*check as usize));
        }
        pack(word[self.code.sent()].iter().map(|bit| *bit == 1), coded);
    }

    /// Decodes up to [`LANES`] consecutive words. `counts` receives the number of iterations of
    /// each word, or -1 if its checks do not hold.
    pub fn decode(&self, likelihoods: &[f32], iterations: usize, data: &mut [u8], counts: &mut [i32]) {
        let (coded, bytes) = (self.code.coded_bits(), self.code.data_bits().div_ceil(8));
        let words = counts.len();
        assert!(words <= LANES && likelihoods.len() == words * coded && data.len() == words * bytes);
        let word_bits = self.code.word_bits();
        let kept = self.rooms.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut room = kept.unwrap_or_else(|| DecoderMemory {
            beliefs: vec![LaneNumbers::ZERO; word_bits + self.pairs.spare],
            signs: vec![0; word_bits],
            messages: vec![LaneNumbers::ZERO; self.bits.len()],
        });
        let job = LdpcTask {
            checks: Checks { bits: &self.bits, begins: &self.begins },
            pairs: Checks { bits: &self.pairs.bits, begins: &self.pairs.begins },
            word_bits,
            spare: self.pairs.spare,
            sent: self.code.sent(),
            data_bits: self.code.data_bits(),
            room: &mut room,
            likelihoods,
            iterations,
            data,
            counts,
        };
        if words <= FEW {
            decode_few(self.level, job)
        } else {
            decode_many(self.level, job)
        }
        let mut rooms = self.rooms.lock().unwrap_or_else(PoisonError::into_inner);
        if rooms.len() < ROOMS_MAX
            && size_of::<LaneNumbers>() * (room.beliefs.len() + room.messages.len()) <= ROOM_BYTES_MAX
        {
            rooms.push(room);
        }
    }
}

/// Groups the checks of each block into pairs without a common bit, so that the two checks of a
/// pair can be processed in any order. Returns the checks in the resulting order and the pairs. A
/// check without a partner is paired with dummy bits after the end of the word.
fn paired(checks: Vec<Vec<u32>>, block: usize, word_bits: usize) -> (Vec<Vec<u32>>, Pairs) {
    let mut pairs = Pairs { bits: Vec::new(), begins: vec![0], spare: 0 };
    let mut left: Vec<Option<Vec<u32>>> = checks.into_iter().map(Some).collect();
    let mut ordered = Vec::with_capacity(left.len());
    for own in left.chunks_mut(block) {
        for at in 0..own.len() {
            let Some(one) = own[at].take() else { continue };
            let fits = |other: &Option<Vec<u32>>| {
                other
                    .as_ref()
                    .is_some_and(|other| other.len() == one.len() && !other.iter().any(|bit| one.contains(bit)))
            };
            let other = own[at + 1..].iter().position(fits).and_then(|beside| own[at + 1 + beside].take());
            let alone: Vec<u32>;
            let beside = match &other {
                Some(other) => other,
                None => {
                    pairs.spare = pairs.spare.max(one.len());
                    alone = (word_bits as u32..).take(one.len()).collect();
                    &alone
                }
            };
            pairs.bits.extend(one.iter().zip(beside).flat_map(|(a, b)| [*a, *b]));
            pairs.begins.push((pairs.bits.len() / 2) as u32);
            ordered.push(one);
            ordered.extend(other);
        }
    }
    (ordered, pairs)
}

/// The checks that determine one unknown bit each, in an order in which they do so. `None` if
/// unknown bits remain.
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

/// The equations for the last parity block of a telemetry code: the checks of the last row, in
/// which the bits of the previous block are replaced by the checks of the second row that determine
/// them.
fn solved(checks: &[Vec<u32>], block: usize, data: usize, last: usize) -> Option<FirstParity> {
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
    Some(FirstParity::Solved { sums, solver: Box::new(Solver::new(&rows)?), block })
}

/// Keeps each number that occurs an odd number of times, once.
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

    /// Noisy words, some of them beyond correction, decoded in small and large groups at every
    /// level.
    #[test]
    fn a_word_is_decoded_alike_whatever_lies_beside_it() {
        let telemetry = TelemetryRate::Half;
        let codes = [
            Ldpc::Telemetry { data: 1024, rate: telemetry },
            Ldpc::Nr { graph: BaseGraph::Two, lifting: 7 },
            Ldpc::Nr { graph: BaseGraph::One, lifting: 13 },
        ];
        let mut state = 11_u32;
        let mut unit = move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32
        };
        for code in codes {
            let (coded, bytes) = (code.coded_bits(), code.data_bits().div_ceil(8));
            let mut likelihoods: Vec<f32> = Vec::new();
            for word in 0..LANES {
                let noise = [0.5, 1.0, 1.4, 2.5][word % 4];
                likelihoods.extend((0..coded).map(|_| 1.0 + noise * (unit() + unit() - unit() - unit())));
            }
            (likelihoods[3], likelihoods[coded + 5], likelihoods[2 * coded]) = (f32::NAN, f32::INFINITY, -0.0);
            let mut expected: Option<(Vec<u8>, Vec<i32>)> = None;
            for level in Level::all() {
                let graph = Graph::new(level, code).unwrap();
                for side in [1, 3, 7, 8, 9, LANES] {
                    let (mut data, mut counts) = (vec![0xee; LANES * bytes], vec![7; LANES]);
                    let parts = data.chunks_mut(side * bytes).zip(counts.chunks_mut(side));
                    for ((data, counts), likelihoods) in parts.zip(likelihoods.chunks(side * coded)) {
                        graph.decode(likelihoods, 20, data, counts);
                    }
                    let got = (data, counts);
                    let expected = expected.get_or_insert_with(|| got.clone());
                    assert!(expected.1.contains(&-1) && expected.1.iter().any(|count| *count > 0), "{:?}", expected.1);
                    assert_eq!(got, *expected, "{code:?} {level:?} {side}");
                }
            }
        }
    }

    #[test]
    fn every_check_is_in_one_pair_without_a_bit_in_common() {
        for code in [
            Ldpc::Telemetry { data: 1024, rate: TelemetryRate::FourFifths },
            Ldpc::Nr { graph: BaseGraph::One, lifting: 15 },
        ] {
            let (checks, pairs) = paired(code.parity_checks(), code.block(), code.word_bits());
            let mut all: Vec<Vec<u32>> = Vec::new();
            for place in pairs.begins.windows(2) {
                let bits = &pairs.bits[2 * place[0] as usize..2 * place[1] as usize];
                let mut seen = bits.to_vec();
                seen.sort_unstable();
                seen.dedup();
                assert_eq!(seen.len(), bits.len(), "{code:?}");
                for side in 0..2 {
                    let own: Vec<u32> = bits.iter().copied().skip(side).step_by(2).collect();
                    if own.iter().all(|bit| (*bit as usize) < code.word_bits()) {
                        all.push(own);
                    } else {
                        assert!(
                            own.iter().all(
                                |bit| (code.word_bits()..code.word_bits() + pairs.spare).contains(&(*bit as usize))
                            )
                        );
                    }
                }
            }
            assert_eq!(all, checks);
            let (mut sorted, mut given) = (checks, code.parity_checks());
            sorted.sort_unstable();
            given.sort_unstable();
            assert_eq!(sorted, given);
        }
    }

    #[test]
    fn every_code_has_an_encoder_whose_words_hold() {
        let telemetry = [TelemetryRate::Half, TelemetryRate::TwoThirds, TelemetryRate::FourFifths];
        let mut codes: Vec<Ldpc> = telemetry.map(|rate| Ldpc::Telemetry { data: 1024, rate }).to_vec();
        codes.push(Ldpc::Telemetry { data: 16_384, rate: TelemetryRate::Half });
        for graph in [BaseGraph::One, BaseGraph::Two] {
            // One lifting size of each set of shifts, and the largest.
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
            // The sent bits without noise: the decoder finds the punctured bits, and every check
            // holds.
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
