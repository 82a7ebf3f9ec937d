//! The shapes of the letters on the axes of pictures: five columns and seven rows of dots, each
//! drawn as 2 × 2 pixels.

/// Pixels for each dot.
const DOT: usize = 2;
const COLUMNS: usize = 5;
const ROWS: usize = 7;
/// Pixels from one letter to the next.
const ADVANCE: usize = (COLUMNS + 1) * DOT;
/// The height of a text in pixels.
pub const HEIGHT: usize = ROWS * DOT;

/// The letters that names, numbers and units of axes need. In each row the first dot is the highest
/// of five bits.
#[rustfmt::skip]
const SHAPES: [(char, [u8; ROWS]); 36] = [
    ('0', [0b01110, 0b10001, 0b10011, 0b10101, 0b11001, 0b10001, 0b01110]),
    ('1', [0b00100, 0b01100, 0b00100, 0b00100, 0b00100, 0b00100, 0b01110]),
    ('2', [0b01110, 0b10001, 0b00001, 0b00010, 0b00100, 0b01000, 0b11111]),
    ('3', [0b11111, 0b00010, 0b00100, 0b00010, 0b00001, 0b10001, 0b01110]),
    ('4', [0b00010, 0b00110, 0b01010, 0b10010, 0b11111, 0b00010, 0b00010]),
    ('5', [0b11111, 0b10000, 0b11110, 0b00001, 0b00001, 0b10001, 0b01110]),
    ('6', [0b00110, 0b01000, 0b10000, 0b11110, 0b10001, 0b10001, 0b01110]),
    ('7', [0b11111, 0b00001, 0b00010, 0b00100, 0b01000, 0b01000, 0b01000]),
    ('8', [0b01110, 0b10001, 0b10001, 0b01110, 0b10001, 0b10001, 0b01110]),
    ('9', [0b01110, 0b10001, 0b10001, 0b01111, 0b00001, 0b00010, 0b01100]),
    ('.', [0b00000, 0b00000, 0b00000, 0b00000, 0b00000, 0b01100, 0b01100]),
    (',', [0b00000, 0b00000, 0b00000, 0b00000, 0b01100, 0b00100, 0b01000]),
    ('-', [0b00000, 0b00000, 0b00000, 0b11111, 0b00000, 0b00000, 0b00000]),
    ('B', [0b11110, 0b10001, 0b10001, 0b11110, 0b10001, 0b10001, 0b11110]),
    ('G', [0b01110, 0b10001, 0b10000, 0b10111, 0b10001, 0b10001, 0b01111]),
    ('H', [0b10001, 0b10001, 0b10001, 0b11111, 0b10001, 0b10001, 0b10001]),
    ('M', [0b10001, 0b11011, 0b10101, 0b10101, 0b10001, 0b10001, 0b10001]),
    ('c', [0b00000, 0b00000, 0b01110, 0b10000, 0b10000, 0b10001, 0b01110]),
    ('d', [0b00001, 0b00001, 0b01101, 0b10011, 0b10001, 0b10001, 0b01111]),
    ('e', [0b00000, 0b00000, 0b01110, 0b10001, 0b11111, 0b10000, 0b01110]),
    ('f', [0b00110, 0b01001, 0b01000, 0b11100, 0b01000, 0b01000, 0b01000]),
    ('i', [0b00100, 0b00000, 0b01100, 0b00100, 0b00100, 0b00100, 0b01110]),
    ('k', [0b10000, 0b10000, 0b10010, 0b10100, 0b11000, 0b10100, 0b10010]),
    ('m', [0b00000, 0b00000, 0b11010, 0b10101, 0b10101, 0b10001, 0b10001]),
    ('n', [0b00000, 0b00000, 0b10110, 0b11001, 0b10001, 0b10001, 0b10001]),
    ('o', [0b00000, 0b00000, 0b01110, 0b10001, 0b10001, 0b10001, 0b01110]),
    ('p', [0b00000, 0b00000, 0b11110, 0b10001, 0b11110, 0b10000, 0b10000]),
    ('q', [0b00000, 0b00000, 0b01101, 0b10011, 0b01111, 0b00001, 0b00001]),
    ('r', [0b00000, 0b00000, 0b10110, 0b11001, 0b10000, 0b10000, 0b10000]),
    ('s', [0b00000, 0b00000, 0b01110, 0b10000, 0b01110, 0b00001, 0b11110]),
    ('t', [0b01000, 0b01000, 0b11100, 0b01000, 0b01000, 0b01001, 0b00110]),
    ('u', [0b00000, 0b00000, 0b10001, 0b10001, 0b10001, 0b10011, 0b01101]),
    ('w', [0b00000, 0b00000, 0b10001, 0b10001, 0b10101, 0b10101, 0b01010]),
    ('y', [0b00000, 0b00000, 0b10001, 0b10001, 0b01111, 0b00001, 0b01110]),
    ('z', [0b00000, 0b00000, 0b11111, 0b00010, 0b00100, 0b01000, 0b11111]),
    ('µ', [0b00000, 0b00000, 0b10001, 0b10001, 0b10011, 0b11101, 0b10000]),
];

/// The width of a text in pixels.
pub fn width(text: &str) -> usize {
    text.chars().count() * ADVANCE
}

/// The pixels of a text, from its upper left corner. Letters without a shape are left blank.
pub fn dots(text: &str) -> Vec<(usize, usize)> {
    let mut pixels = Vec::new();
    for (place, letter) in text.chars().enumerate() {
        let Some((_, shape)) = SHAPES.iter().find(|(known, _)| *known == letter) else { continue };
        for (row, bits) in shape.iter().enumerate() {
            for column in (0..COLUMNS).filter(|column| bits >> (COLUMNS - 1 - column) & 1 == 1) {
                let (x, y) = (place * ADVANCE + column * DOT, row * DOT);
                pixels.extend((0..DOT * DOT).map(|part| (x + part % DOT, y + part / DOT)));
            }
        }
    }
    pixels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_letter_of_an_axis_has_a_shape() {
        for letter in
            "frequency, kHz MHz GHz Hz time, µs ms s power, dB 0123456789 -.".chars().filter(|one| *one != ' ')
        {
            assert!(!dots(&letter.to_string()).is_empty(), "{letter}");
        }
        assert_eq!((width("10"), dots("1").len(), dots("~").len()), (24, 10 * 4, 0));
    }
}
