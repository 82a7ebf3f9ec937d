//! Checks whether the coded bits of a frame determine all of its bits.
//!
//! A code is linear. It loses a bit exactly if some message other than zero has only zeros among
//! its transmitted coded bits. Such a message is *silent*. The silent messages are followed step by
//! step as a linear space with a basis of at most 13 vectors.

use super::{Convolutional, Ending, TAIL_BITS};

/// Number of states of the register.
const STATES: usize = 1 << TAIL_BITS;
/// The newest bit of a register.
const NEWEST: u16 = 1 << TAIL_BITS;
/// The register bits of a vector. The higher bits are the initial state of the frame.
const REGISTER: u16 = 2 * NEWEST - 1;
/// A code with a silent path through nonzero states of this many steps cannot be decoded by going
/// through a tail-biting frame repeatedly.
pub(super) const SILENT_STEPS_MAX: usize = super::EXACT_TAIL_BITS_MAX / 2;

/// A basis of the silent messages so far: linearly independent vectors of the initial state (high
/// bits) and the current state (low bits).
#[derive(Clone, PartialEq)]
struct SilentBasis(Vec<u16>);

/// Two different messages have the same coded bits.
struct AmbiguousCode;

impl SilentBasis {
    /// Advances by one step, whose first coded bit has the index `at`. `is_free`: the step reads a
    /// bit of the message, rather than a zero of the tail.
    fn step(&mut self, code: Convolutional, at: usize, is_free: bool) -> Result<(), AmbiguousCode> {
        if is_free {
            self.0.push(NEWEST);
        }
        for (place, polynomial) in code.polynomials.into_iter().enumerate() {
            let sounds = |vector: u16| (vector & u16::from(polynomial)).count_ones() % 2 == 1;
            if !code.puncture.is_sent(at + place) {
                continue;
            }
            // All vectors with a nonzero coded bit are made silent by adding one of them, which is
            // then dropped.
            if let Some(pivot) = self.0.iter().position(|vector| sounds(*vector)) {
                let pivot = self.0.swap_remove(pivot);
                self.0.iter_mut().filter(|vector| sounds(**vector)).for_each(|vector| *vector ^= pivot);
            }
        }
        for vector in &mut self.0 {
            *vector = *vector & !REGISTER | (*vector & REGISTER) >> 1;
        }
        self.reduce()
    }

    /// Brings the basis into its unique reduced form. A linear dependence is a silent message, with
    /// zeros after it.
    fn reduce(&mut self) -> Result<(), AmbiguousCode> {
        for at in 0..self.0.len() {
            let Some(best) = (at..self.0.len()).max_by_key(|other| self.0[*other]) else { break };
            self.0.swap(at, best);
            let own = self.0[at];
            if own == 0 {
                return Err(AmbiguousCode);
            }
            let highest = 1 << own.ilog2();
            for (other, vector) in self.0.iter_mut().enumerate() {
                if other != at && *vector & highest != 0 {
                    *vector ^= own;
                }
            }
        }
        Ok(())
    }

    /// Advances by `count` steps from the start of a pattern. A state that recurs after some
    /// patterns is not followed again (Brent's cycle detection).
    fn steps(&mut self, code: Convolutional, count: usize) -> Result<(), AmbiguousCode> {
        let pattern = pattern_steps(code);
        let (mut known, mut since, mut patience) = (self.clone(), 0, 1);
        let mut left = count;
        while left >= pattern {
            (0..pattern).try_for_each(|step| self.step(code, 2 * step, true))?;
            left -= pattern;
            since += 1;
            if *self == known {
                left %= since * pattern;
            } else if since == patience {
                (known, since, patience) = (self.clone(), 0, 2 * patience);
            }
        }
        (0..left).try_for_each(|step| self.step(code, 2 * step, true))
    }

    /// Whether some silent message ends in its initial state.
    fn has_circle(&self) -> bool {
        let mut apart =
            SilentBasis(self.0.iter().map(|vector| (vector >> (TAIL_BITS + 1)) ^ (vector & (NEWEST - 1))).collect());
        apart.reduce().is_err()
    }
}

/// Number of steps after which the puncturing pattern starts again at the first coded bit of a
/// step.
fn pattern_steps(code: Convolutional) -> usize {
    let period = code.puncture.period();
    if period.is_multiple_of(2) { period / 2 } else { period }
}

/// Whether all frames of `bits` bits have distinct coded bits.
pub(super) fn is_lossless(code: Convolutional, bits: usize, ending: Ending) -> bool {
    if bits == 0 {
        return true;
    }
    let mut silent = match ending {
        Ending::TailBiting => SilentBasis((0..TAIL_BITS).map(|bit| 1 << bit | 1 << (bit + TAIL_BITS + 1)).collect()),
        Ending::Terminated | Ending::Open => SilentBasis(Vec::new()),
    };
    let stepped = silent.steps(code, bits);
    let ended = match ending {
        Ending::Terminated => {
            stepped.and_then(|()| (bits..bits + TAIL_BITS).try_for_each(|step| silent.step(code, 2 * step, false)))
        }
        Ending::Open | Ending::TailBiting => stepped,
    };
    ended.is_ok()
        && match ending {
            Ending::Terminated => true,
            Ending::Open => silent.0.is_empty(),
            Ending::TailBiting => !silent.has_circle(),
        }
}

/// The nonzero states that these states can reach silently, one bit for each, and whether the zero
/// state can be reached.
fn silent_successors(code: Convolutional, states: u64, at: usize) -> (u64, bool) {
    let sounds = |register: usize| {
        let [first, second] = code.polynomials.map(|polynomial| (register as u8 & polynomial).count_ones() % 2 == 1);
        (first && code.puncture.is_sent(at)) || (second && code.puncture.is_sent(at + 1))
    };
    let registers = (0..STATES).filter(|state| states >> state & 1 == 1).flat_map(|state| [state, state | STATES]);
    let reached =
        registers.filter(|register| !sounds(*register)).fold(0_u64, |reached, register| reached | 1 << (register >> 1));
    (reached & !1, reached & 1 == 1)
}

/// Whether every silent path through nonzero states is shorter than [`SILENT_STEPS_MAX`] steps,
/// wherever in the pattern it begins.
pub(super) fn forgets(code: Convolutional) -> bool {
    let dies = |first: usize| {
        let mut states = !1_u64;
        (first..first + SILENT_STEPS_MAX).any(|step| {
            states = silent_successors(code, states, 2 * step).0;
            states == 0
        })
    };
    (0..pattern_steps(code)).all(dies)
}

/// Whether every bit of an endless stream eventually affects a transmitted bit.
pub(super) fn is_lossless_stream(code: Convolutional) -> bool {
    let pattern = pattern_steps(code);
    let is_heard = |first: usize| {
        // The path of a one, starting in the zero state.
        let sent = |place: usize| code.puncture.is_sent(2 * first + place);
        let sounds = (0..2).any(|place| sent(place) && u16::from(code.polynomials[place]) & NEWEST != 0);
        let mut states = if sounds { 0 } else { 1_u64 << (STATES / 2) };
        for step in first + 1..=first + STATES * pattern {
            if states == 0 {
                return true;
            }
            let (next, is_forgotten) = silent_successors(code, states, 2 * step);
            if is_forgotten {
                return false;
            }
            states = next;
        }
        false
    };
    (0..pattern).all(is_heard)
}

#[cfg(test)]
mod tests {
    use super::super::Puncture;
    use super::*;

    /// The transmitted bits of a message.
    fn sent(code: Convolutional, message: u32, bits: usize, ending: Ending) -> Vec<bool> {
        let bit = |at: usize| at < bits && message >> at & 1 == 1;
        let before = if ending == Ending::TailBiting { bits - TAIL_BITS..bits } else { 0..0 };
        let mut register = before.fold(0_u8, |register, at| u8::from(bit(at)) << 6 | register >> 1);
        let tail = if ending == Ending::Terminated { TAIL_BITS } else { 0 };
        let mut coded = Vec::new();
        for at in 0..bits + tail {
            register = u8::from(bit(at)) << 6 | register >> 1;
            coded.extend(code.polynomials.map(|polynomial| (register & polynomial).count_ones() % 2 == 1));
        }
        (0..coded.len()).filter(|at| code.puncture.is_sent(*at)).map(|at| coded[at]).collect()
    }

    fn codes() -> Vec<Convolutional> {
        let usual = Convolutional::default();
        let patterns =
            [&[true, false][..], &[false, true, true], &[true, false, false, false], &[true, true, false, false]];
        let punctures = [
            Puncture::NONE,
            Puncture::TWO_THIRDS,
            Puncture::THREE_QUARTERS,
            Puncture::FIVE_SIXTHS,
            Puncture::SEVEN_EIGHTHS,
        ];
        let punctures = punctures.into_iter().chain(patterns.into_iter().map(|own| Puncture::new(own).unwrap()));
        let mut codes: Vec<Convolutional> = punctures.map(|puncture| Convolutional { puncture, ..usual }).collect();
        for polynomials in [[0o1, 0o1], [0o3, 0o3], [0o100, 0o1], [0o120, 0o160], [0o6, 0o14], [0o170, 0o150]] {
            codes.push(Convolutional { polynomials, ..usual });
        }
        codes
    }

    #[test]
    fn a_code_is_lossless_exactly_if_no_message_but_zero_is_silent() {
        let mut refused = 0;
        for code in codes() {
            for ending in [Ending::Terminated, Ending::Open, Ending::TailBiting] {
                for bits in if ending == Ending::TailBiting { 6..14 } else { 1..13 } {
                    let silent = |message: u32| sent(code, message, bits, ending).iter().all(|bit| !bit);
                    let expected = !(1..1 << bits).any(silent);
                    assert_eq!(is_lossless(code, bits, ending), expected, "{code:?} {bits} {ending:?}");
                    refused += usize::from(!expected);
                }
            }
        }
        assert!(refused > 20, "{refused}");
    }

    #[test]
    fn the_usual_codes_lose_nothing_but_for_two_lengths() {
        let usual = Convolutional::default();
        for puncture in [Puncture::NONE, Puncture::TWO_THIRDS, Puncture::FIVE_SIXTHS, Puncture::SEVEN_EIGHTHS] {
            let code = Convolutional { puncture, ..usual };
            let lost: Vec<usize> = (6..400).filter(|bits| !is_lossless(code, *bits, Ending::TailBiting)).collect();
            let expected = if puncture == Puncture::SEVEN_EIGHTHS { vec![18, 19] } else { vec![] };
            assert_eq!(lost, expected, "{puncture:?}");
            assert!(is_lossless(code, super::super::FRAME_BITS_MAX, Ending::Open) && forgets(code));
            assert!(is_lossless(code, super::super::FRAME_BITS_MAX, Ending::Terminated) && is_lossless_stream(code));
        }
    }

    #[test]
    fn codes_that_never_forget_are_known() {
        let usual = Convolutional::default();
        // Both polynomials have the factor 1 + D: a message of only ones is silent after its first
        // step.
        let catastrophic = Convolutional { polynomials: [0o3, 0o6], ..usual };
        assert!(!forgets(catastrophic) && !is_lossless(catastrophic, 1001, Ending::TailBiting));
        let half = Puncture::new(&[true, true, false, false]).unwrap();
        let lossy = Convolutional { polynomials: [0o100, 0o100], puncture: half };
        assert!(!is_lossless_stream(lossy) && !is_lossless(lossy, 8, Ending::Open));
        assert!(is_lossless_stream(Convolutional { polynomials: [0o1, 0o1], ..usual }));
    }
}
