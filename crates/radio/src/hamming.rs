//! Hamming's code of four bits in seven, and in eight with an overall parity bit: one wrong bit is
//! corrected, two are detected.

/// The result of decoding a word of eight bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// No wrong bit.
    Intact(u8),
    /// One wrong bit, corrected.
    Mended(u8),
    /// Two wrong bits: the data cannot be recovered.
    Lost,
}

/// Encodes four bits as seven. Positions 1 to 7 count from the lowest bit; the data is at positions
/// 3, 5, 6 and 7.
pub fn encode_7_4(nibble: u8) -> u8 {
    let bit = |at: u8| nibble >> at & 1;
    let word = bit(0) << 2 | bit(1) << 4 | bit(2) << 5 | bit(3) << 6;
    let places = syndrome(word);
    word | (places & 1) | (places >> 1 & 1) << 1 | (places >> 2 & 1) << 3
}

/// The four data bits of a word of seven bits, of which one may be wrong, and whether one was.
pub fn decode_7_4(word: u8) -> (u8, bool) {
    let word = word & 0x7f;
    let wrong = syndrome(word);
    let word = if wrong == 0 { word } else { word ^ 1 << (wrong - 1) };
    (data_of(word), wrong != 0)
}

/// Encodes four bits as eight. The highest bit is the parity of the others.
pub fn encode_8_4(nibble: u8) -> u8 {
    let word = encode_7_4(nibble);
    word | (word.count_ones() as u8 & 1) << 7
}

/// Decodes the four data bits of a word of eight bits.
pub fn decode_8_4(word: u8) -> Finding {
    let odd = word.count_ones() & 1 == 1;
    match (syndrome(word & 0x7f), odd) {
        (0, false) => Finding::Intact(data_of(word)),
        // If the syndrome is zero, the overall parity bit itself was wrong; otherwise the bit that
        // the syndrome names.
        (0, true) => Finding::Mended(data_of(word)),
        (_, true) => Finding::Mended(decode_7_4(word).0),
        (_, false) => Finding::Lost,
    }
}

/// The exclusive or of the positions of all set bits.
fn syndrome(word: u8) -> u8 {
    (1..8).filter(|place| word >> (place - 1) & 1 == 1).fold(0, |sum, place| sum ^ place)
}

fn data_of(word: u8) -> u8 {
    word >> 2 & 1 | (word >> 4 & 7) << 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wrong_bit_is_mended_and_two_are_noticed() {
        for nibble in 0..16 {
            let (seven, eight) = (encode_7_4(nibble), encode_8_4(nibble));
            assert_eq!((decode_7_4(seven), decode_8_4(eight)), ((nibble, false), Finding::Intact(nibble)));
            for bit in 0..8 {
                assert!(bit == 7 || decode_7_4(seven ^ 1 << bit) == (nibble, true));
                assert_eq!(decode_8_4(eight ^ 1 << bit), Finding::Mended(nibble));
                for other in 0..bit {
                    assert_eq!(decode_8_4(eight ^ 1 << bit ^ 1 << other), Finding::Lost);
                }
            }
        }
    }
}
