//! Decodes one frame at a time, with costs wide enough for any scale: for log-likelihoods, and for
//! short tail-biting frames.
//!
//! A tail-biting frame ends in the state in which it began. Its likeliest path is found exactly:
//! paths from any state to any state give a lower bound for each end state. The states are then
//! tried in the order of their bounds, with paths that begin and end there, until no bound is below
//! the best cost.

use std::ops::{Add, BitAnd, BitOr, Not, Sub};

use panoply_core::op::signal::{EXACT_TAIL_BITS_MAX, Ending, LOGARITHM_MAX, LOGARITHM_STEPS};

use super::{STATES, Trellis, ViterbiMemory, level_of};

/// A cost of a path: the sum of the distances of its coded bits from what was received.
pub(crate) trait Cost:
    Copy
    + Default
    + Ord
    + Add<Output = Self>
    + Sub<Output = Self>
    + BitAnd<Output = Self>
    + BitOr<Output = Self>
    + Not<Output = Self>
{
    /// The type of a received soft bit.
    type Soft: Copy;
    /// The distance of a certain 1 from the bit 0.
    const FULL: Self;
    /// The distance of an unknown soft bit.
    const UNKNOWN: Self;
    /// A cost above that of any path in the steps until all states are reached.
    const FAR: Self;

    /// The distance of a soft bit from the bit 0.
    fn of(soft: Self::Soft) -> Self;
}

/// For soft bits as bytes.
impl Cost for u16 {
    type Soft = u8;
    const FULL: u16 = 14;
    const UNKNOWN: u16 = 7;
    const FAR: u16 = 1000;

    fn of(soft: u8) -> u16 {
        level_of(soft).into()
    }
}

/// The largest absolute value of a log-likelihood, in steps.
const HALF: u32 = (LOGARITHM_MAX * LOGARITHM_STEPS) as u32;

/// For log-likelihoods. With them the longest frame costs less than 2³².
impl Cost for u32 {
    type Soft = f32;
    const FULL: u32 = 2 * HALF;
    const UNKNOWN: u32 = HALF;
    const FAR: u32 = 1 << 24;

    fn of(soft: f32) -> u32 {
        let most = LOGARITHM_MAX as f32;
        match soft.is_nan() {
            true => HALF,
            false => (HALF as f32 + 0.5 - LOGARITHM_STEPS as f32 * soft.clamp(-most, most)) as u32,
        }
    }
}

/// Masks of the coded bits of the branches into each state: from the lower predecessor, then from
/// the higher one; the first coded bit, then the second.
pub(crate) struct Branches<C>([[[C; STATES]; 2]; 2]);

impl<C: Cost> Branches<C> {
    pub(crate) fn new(trellis: &Trellis) -> Branches<C> {
        let (outputs, zero) = (trellis.outputs(), C::default());
        let mask = |register: usize, second: usize| match outputs[register] >> (1 - second) & 1 {
            1 => !zero,
            _ => zero,
        };
        Branches([0, 1].map(|higher| {
            [0, 1]
                .map(|second| std::array::from_fn(|state| mask((state >> 5) << 6 | (state & 31) << 1 | higher, second)))
        }))
    }

    /// The costs after one more step, and a bit for each state: whether the higher of its two
    /// predecessors is better.
    pub(crate) fn step(&self, [a, b]: [C; 2], before: &[C; STATES]) -> ([C; STATES], u64) {
        let [[low_first, low_second], [high_first, high_second]] = &self.0;
        let (not_a, not_b) = (C::FULL - a, C::FULL - b);
        let of = |value: C, other: C, mask: C| value & !mask | other & mask;
        let (mut costs, mut higher) = ([C::default(); STATES], [0_u8; STATES]);
        for state in 0..STATES {
            let from = (state & 31) << 1;
            let low = before[from] + of(a, not_a, low_first[state]) + of(b, not_b, low_second[state]);
            let high = before[from + 1] + of(a, not_a, high_first[state]) + of(b, not_b, high_second[state]);
            higher[state] = u8::from(high < low);
            costs[state] = low.min(high);
        }
        let choices = higher.iter().enumerate().fold(0, |word, (state, bit)| word | u64::from(*bit) << state);
        (costs, choices)
    }
}

/// The costs before the first step, for paths that begin in one state.
pub(crate) fn from_state<C: Cost>(state: usize) -> [C; STATES] {
    std::array::from_fn(|own| if own == state { C::default() } else { C::FAR })
}

/// The cheapest state; among equal ones the lowest.
pub(crate) fn cheapest<C: Cost>(costs: &[C; STATES]) -> usize {
    (0..STATES).min_by_key(|state| costs[*state]).unwrap_or(0)
}

/// A frame's coded bits: a cost for each, including punctured bits.
pub(crate) struct Frame<'a, C> {
    pub(crate) branches: &'a Branches<C>,
    pub(crate) levels: &'a [C],
    pub(crate) bits: usize,
}

impl<C: Cost> Frame<'_, C> {
    /// Writes the bits of the likeliest path, the first in the highest bit.
    pub(crate) fn decode(&self, ending: Ending, decoded: &mut [u8], work: &mut ViterbiMemory) {
        let choices = &mut work.choices;
        choices.clear();
        let (last, first_kept) = match ending {
            Ending::Terminated => {
                self.forward(from_state(0), choices);
                (0, 0)
            }
            Ending::Open => (cheapest(&self.forward(from_state(0), choices)), 0),
            Ending::TailBiting if self.bits <= EXACT_TAIL_BITS_MAX => (self.circle(choices), 0),
            Ending::TailBiting => {
                let mut costs = [C::default(); STATES];
                (0..3).for_each(|_| costs = self.forward(costs, choices));
                (cheapest(&costs), self.bits)
            }
        };
        decoded.fill(0);
        let mut state = last;
        for (step, choices) in choices.iter().enumerate().rev() {
            if (first_kept..first_kept + self.bits).contains(&step) {
                let at = step - first_kept;
                decoded[at / 8] |= ((state >> 5) as u8) << (7 - at % 8);
            }
            state = (state & 31) << 1 | (choices >> state & 1) as usize;
        }
    }

    /// The costs after the frame, given those before it. The choices of its steps are appended.
    fn forward(&self, mut costs: [C; STATES], choices: &mut Vec<u64>) -> [C; STATES] {
        for pair in self.levels.as_chunks::<2>().0 {
            let (next, choice) = self.branches.step(*pair, &costs);
            costs = next;
            choices.push(choice);
        }
        costs
    }

    /// The state in which the likeliest path begins and ends, among equal ones the lowest.
    /// `choices` is left with those of paths that begin there.
    fn circle(&self, choices: &mut Vec<u64>) -> usize {
        let bounds = self.forward([C::default(); STATES], choices);
        let mut states: [usize; STATES] = std::array::from_fn(|state| state);
        states.sort_unstable_by_key(|state| (bounds[*state], *state));
        let (mut best, mut last_tried) = (None, STATES);
        for state in states {
            if best.is_some_and(|best| (bounds[state], state) > best) {
                break;
            }
            choices.clear();
            let own = (self.forward(from_state(state), choices)[state], state);
            last_tried = state;
            best = Some(best.map_or(own, |best| own.min(best)));
        }
        let state = best.map_or(0, |(_, state)| state);
        if state != last_tried {
            choices.clear();
            self.forward(from_state::<C>(state), choices);
        }
        state
    }
}
