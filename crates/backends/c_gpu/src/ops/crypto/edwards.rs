//! Ed25519 public keys, decoded on the host: points of the curve, canonically encoded, and not of
//! small order.
//!
//! The arithmetic is modulo p = 2^255 - 19, on four words, the lowest first. Keys are public, so it
//! need not run in constant time.

type U256 = [u64; 4];

const P: U256 = [0xffff_ffff_ffff_ffed, u64::MAX, u64::MAX, i64::MAX as u64];
const ONE: U256 = [1, 0, 0, 0];
const MINUS_ONE: U256 = [P[0] - 1, P[1], P[2], P[3]];
/// The curve's d: -x² + y² = 1 + d x² y².
const D: U256 = [0x75eb_4dca_1359_78a3, 0x0070_0a4d_4141_d8ab, 0x8cc7_4079_7779_e898, 0x5203_6cee_2b6f_fe73];
/// A square root of -1.
const ROOT: U256 = [0xc4ee_1b27_4a0e_a0b0, 0x2f43_1806_ad2f_e478, 0x2b4d_0099_3dfb_d7a7, 0x2b83_2480_4fc1_df0b];
/// (p - 5) / 8.
const EIGHTH: U256 = [0xffff_ffff_ffff_fffd, u64::MAX, u64::MAX, 0x0fff_ffff_ffff_ffff];

/// Decodes a point that is not of small order: x and y below p. `None` if the bytes are no such
/// point.
pub(super) fn decoded(encoded: &[u8; 32]) -> Option<(U256, U256)> {
    let (words, _) = encoded.as_chunks();
    let mut y: U256 = std::array::from_fn(|index| u64::from_le_bytes(words[index]));
    let is_odd = y[3] >> 63;
    y[3] &= i64::MAX as u64;
    if !is_below(&y, &P) {
        return None;
    }
    // x² = u / v; a root is u v³ (u v⁷)^((p - 5) / 8), or that times a root of -1.
    let square = product(&y, &y);
    let (u, v) = (sum(&square, &MINUS_ONE), sum(&product(&D, &square), &ONE));
    let v3 = product(&product(&v, &v), &v);
    let v7 = product(&product(&v3, &v3), &v);
    let mut x = product(&product(&u, &v3), &power(&product(&u, &v7), &EIGHTH));
    let check = reduced(product(&v, &product(&x, &x)));
    if check == reduced(product(&u, &MINUS_ONE)) {
        x = product(&x, &ROOT);
    } else if check != reduced(u) {
        return None;
    }
    x = reduced(x);
    if x[0] & 1 != is_odd {
        x = reduced(product(&x, &MINUS_ONE));
    }
    // Zero has no negative sign.
    if x[0] & 1 != is_odd || is_of_small_order(&x, &y) {
        return None;
    }
    Some((x, y))
}

/// The x coordinate of the negative point.
pub(super) fn negated(x: &U256) -> U256 {
    reduced(product(x, &MINUS_ONE))
}

/// Whether eight times the point is neutral: three doublings of x / z and y / z end at x = 0.
fn is_of_small_order(x: &U256, y: &U256) -> bool {
    let (mut x, mut y, mut z) = (*x, *y, ONE);
    for _ in 0..3 {
        let (a, b, c) = (product(&x, &x), product(&y, &y), product(&z, &z));
        let (h, g) = (sum(&a, &b), sum(&a, &product(&b, &MINUS_ONE)));
        let both = sum(&x, &y);
        let e = sum(&h, &product(&product(&both, &both), &MINUS_ONE));
        let f = sum(&sum(&c, &c), &g);
        (x, y, z) = (product(&e, &f), product(&g, &h), product(&f, &g));
    }
    reduced(x) == [0; 4] && reduced(y) == reduced(z)
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

/// Carries words; the last carry is folded back to the lowest.
fn folded(word: impl Fn(usize) -> u128) -> U256 {
    let (mut words, mut carry) = ([0; 4], 0_u128);
    for (index, place) in words.iter_mut().enumerate() {
        carry += word(index);
        *place = carry as u64;
        carry >>= 64;
    }
    while carry > 0 {
        carry *= 38;
        for place in &mut words {
            carry += u128::from(*place);
            *place = carry as u64;
            carry >>= 64;
        }
    }
    words
}

/// The number below the modulus.
fn reduced(mut a: U256) -> U256 {
    while !is_below(&a, &P) {
        let mut borrow = 0_i128;
        for (place, p) in a.iter_mut().zip(&P) {
            borrow += i128::from(*place) - i128::from(*p);
            *place = borrow as u64;
            borrow >>= 64;
        }
    }
    a
}

fn power(base: &U256, exponent: &U256) -> U256 {
    let mut result = ONE;
    for bit in (0..256).rev() {
        result = product(&result, &result);
        if exponent[bit / 64] >> (bit % 64) & 1 == 1 {
            result = product(&result, base);
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(first: &[u8]) -> [u8; 32] {
        std::array::from_fn(|index| first.get(index).copied().unwrap_or(0))
    }

    #[test]
    fn points_are_decoded_and_weak_ones_refused() {
        // The base point: y is four fifths, x even.
        let base = [&[0x58][..], &[0x66; 31]].concat();
        let (x, y) = decoded(&encoded(&base)).unwrap();
        assert_eq!((x[0] & 0xffff_ffff, y[3]), (0x8f25_d51a, 0x6666_6666_6666_6666));
        assert_eq!(sum(&x, &negated(&x)), P);
        // Points of orders 1 and 4, one that is not on the curve, and y beyond the modulus.
        assert!(decoded(&encoded(&[1])).is_none() && decoded(&[0; 32]).is_none());
        assert!(decoded(&encoded(&[2])).is_none());
        assert!(decoded(&[0xff; 32]).is_none());
    }
}
