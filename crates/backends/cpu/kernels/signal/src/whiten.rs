//! Scramblers: shift registers that make bits look like noise. Bits are packed into bytes, the
//! first in the highest bit.

use panoply_core::op::signal::Scrambler;

/// Scrambles or descrambles one line, starting from the scrambler's seed.
pub fn scramble(scrambler: Scrambler, inverse: bool, input: &[u8], output: &mut [u8]) {
    let (_, mut register) = scrambler.register();
    scramble_on(scrambler, inverse, &mut register, input, output);
}

/// Scrambles or descrambles one piece of a line. `register` is the state of the shift register, and
/// is updated.
pub fn scramble_on(scrambler: Scrambler, inverse: bool, register: &mut u64, input: &[u8], output: &mut [u8]) {
    let (polynomial, _) = scrambler.register();
    for (byte, out) in input.iter().zip(output) {
        let mut scrambled = 0;
        for at in (0..8).rev() {
            let bit = u64::from(byte >> at & 1);
            let fed = u64::from((*register & polynomial).count_ones() & 1);
            let next = match scrambler {
                Scrambler::Additive { .. } => fed,
                Scrambler::SelfSynchronizing { .. } if inverse => bit,
                Scrambler::SelfSynchronizing { .. } => bit ^ fed,
            };
            *register = *register << 1 | next;
            scrambled = scrambled << 1 | (bit ^ fed) as u8;
        }
        *out = scrambled;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequences_are_the_standards() {
        // IEEE 802.11, 17.3.5.5: started with all ones, the scrambler of Wi-Fi begins with these
        // bits.
        let mut bits = [0; 4];
        scramble(Scrambler::wifi(0x7f), false, &[0; 4], &mut bits);
        assert_eq!(bits, [0b0000_1110, 0b1111_0010, 0b1100_1001, 0b0000_0010]);
        // EN 300 421: the first bytes of DVB's sequence.
        scramble(Scrambler::DVB, false, &[0; 4], &mut bits);
        assert_eq!(bits, [0x03, 0xf6, 0x08, 0x34]);
    }

    #[test]
    fn one_that_falls_in_step_forgets_a_wrong_seed() {
        let sent: Vec<u8> = (0..40).map(|at| (at * 37 + 11) as u8).collect();
        let (mut line, mut got) = (vec![0; 40], vec![0; 40]);
        scramble(Scrambler::V34, false, &sent, &mut line);
        assert_ne!(line, sent);
        scramble(Scrambler::V34, true, &line, &mut got);
        assert_eq!(got, sent);
        let wrong = Scrambler::SelfSynchronizing { polynomial: 1 << 22 | 1 << 17, seed: 0x1234 };
        scramble(wrong, true, &line, &mut got);
        assert_ne!(got[..3], sent[..3]);
        assert_eq!(got[3..], sent[3..]);
    }
}
