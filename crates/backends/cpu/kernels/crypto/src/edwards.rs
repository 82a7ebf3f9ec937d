//! Checks which encodings are trustworthy Ed25519 public keys: points of the curve, canonically
//! encoded, and not of small order. With a key of small order one signature verifies for every
//! message, and the library checks none of this.
//!
//! The arithmetic is modulo p = 2^255 - 19, on four words, the lowest first. Keys are public, so
//! it need not run in constant time.

type U256 = [u64; 4];

const P: U256 = [0xffff_ffff_ffff_ffed, u64::MAX, u64::MAX, i64::MAX as u64];
const MINUS_ONE: U256 = [P[0] - 1, P[1], P[2], P[3]];
/// (p - 1) / 2.
const HALF: U256 = [0xffff_ffff_ffff_fff6, u64::MAX, u64::MAX, 0x3fff_ffff_ffff_ffff];
/// The curve's d: -x^2 + y^2 = 1 + d x^2 y^2.
const D: U256 = [0x75eb_4dca_1359_78a3, 0x0070_0a4d_4141_d8ab, 0x8cc7_4079_7779_e898, 0x5203_6cee_2b6f_fe73];
const ONE: U256 = [1, 0, 0, 0];
/// The y coordinates of all points whose order divides 8: of orders 4, 1, 2, and 8 twice.
const SMALL: [U256; 5] = [
    [0; 4],
    ONE,
    MINUS_ONE,
    [0x4fd8_4d3d_706a_17c7, 0x0f67_100d_760b_3cba, 0xc6cc_392c_fa53_202a, 0x7a03_ac92_77fd_c74e],
    [0xb027_b2c2_8f95_e826, 0xf098_eff2_89f4_c345, 0x3933_c6d3_05ac_dfd5, 0x05fc_536d_8802_38b1],
];

/// The bytes before the point in a SubjectPublicKeyInfo.
const PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// The encoded point of a public key: 32 bytes, bare or in a SubjectPublicKeyInfo, with nothing
/// behind them. The library ignores bytes behind a SubjectPublicKeyInfo: the last bytes could be a
/// point other than the key.
pub fn encoded_point(public: &[u8]) -> Option<&[u8; 32]> {
    public.try_into().ok().or_else(|| public.strip_prefix(&PREFIX)?.try_into().ok())
}

/// Whether the encoding is a trustworthy public key.
pub fn is_public_key(encoded: &[u8; 32]) -> bool {
    let (words, _) = encoded.as_chunks();
    let mut y: U256 = std::array::from_fn(|index| u64::from_le_bytes(words[index]));
    // Both signs of x are points.
    y[3] &= i64::MAX as u64;
    if !is_below(&y, &P) || SMALL.contains(&y) {
        return false;
    }
    // x^2 = (y^2 - 1) / (d y^2 + 1) has a root if the product of numerator and denominator has one.
    let square = product(&y, &y);
    let (above, below) = (sum(&square, &MINUS_ONE), sum(&product(&D, &square), &ONE));
    reduced(power(&product(&above, &below), &HALF)) == ONE
}

fn is_below(a: &U256, b: &U256) -> bool {
    a.iter().rev().lt(b.iter().rev())
}

fn product(a: &U256, b: &U256) -> U256 {
    let mut wide = [0_u64; 8];
    for (place, a) in a.iter().enumerate() {
        let mut carry = 0_u128;
        for (wide, b) in wide[place..].iter_mut().zip(b) {
            let word = u128::from(*a) * u128::from(*b) + u128::from(*wide) + carry;
            (*wide, carry) = (word as u64, word >> 64);
        }
        wide[place + 4] = carry as u64;
    }
    // 2^256 is congruent to 38.
    folded(|index| u128::from(wide[index]) + 38 * u128::from(wide[index + 4]))
}

fn sum(a: &U256, b: &U256) -> U256 {
    folded(|index| u128::from(a[index]) + u128::from(b[index]))
}

/// Carries words that are longer than 64 bits.
fn folded(word: impl Fn(usize) -> u128) -> U256 {
    let (mut out, mut carry) = ([0; 4], 0_u128);
    for (index, out) in out.iter_mut().enumerate() {
        let word = word(index) + carry;
        (*out, carry) = (word as u64, word >> 64);
    }
    while carry > 0 {
        carry *= 38;
        for out in &mut out {
            let word = u128::from(*out) + carry;
            (*out, carry) = (word as u64, word >> 64);
        }
    }
    out
}

fn power(base: &U256, exponent: &U256) -> U256 {
    let mut made = ONE;
    for bit in (0..256).rev() {
        made = product(&made, &made);
        if exponent[bit / 64] >> (bit % 64) & 1 == 1 {
            made = product(&made, base);
        }
    }
    made
}

/// The same number, below p.
fn reduced(mut number: U256) -> U256 {
    while !is_below(&number, &P) {
        let mut borrowed = false;
        for (word, p) in number.iter_mut().zip(&P) {
            let (less, first) = word.overflowing_sub(*p);
            let (less, second) = less.overflowing_sub(u64::from(borrowed));
            (*word, borrowed) = (less, first || second);
        }
    }
    number
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_y(low: u8) -> [u8; 32] {
        let mut encoded = [0; 32];
        encoded[0] = low;
        encoded
    }

    #[test]
    fn points_are_told_from_what_is_none() {
        // Computed from the definition, with integers of arbitrary length.
        let points: Vec<u8> = (0..32).filter(|y| is_public_key(&with_y(*y))).collect();
        assert_eq!(points, POINTS);
        for y in POINTS {
            let mut other = with_y(y);
            other[31] |= 0x80;
            assert!(is_public_key(&other), "with the other x");
        }
    }

    const POINTS: [u8; 20] = [3, 4, 5, 6, 9, 10, 14, 15, 16, 18, 19, 21, 23, 24, 25, 26, 27, 28, 29, 30];

    #[test]
    fn a_number_has_one_encoding() {
        // p + y for every y for which the sum is below 2^255.
        for y in 0..19 {
            let mut encoded = [0xff; 32];
            (encoded[0], encoded[31]) = (0xed + y, 0x7f);
            assert!(!is_public_key(&encoded), "{y}");
            encoded[31] = 0xff;
            assert!(!is_public_key(&encoded), "{y}");
        }
    }

    #[test]
    fn points_of_small_order_are_refused() {
        for y in SMALL {
            let mut encoded: Vec<u8> = y.iter().flat_map(|word| word.to_le_bytes()).collect();
            for sign in [0, 0x80] {
                encoded[31] |= sign;
                assert!(!is_public_key(encoded.as_slice().try_into().unwrap()));
            }
        }
    }
}
