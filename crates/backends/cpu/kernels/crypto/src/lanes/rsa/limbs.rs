//! Single numbers as limbs of 52 bits, lowest first. They are computed once for a key, in the same
//! steps for every key.

use zeroize::Zeroizing;

pub(super) const LIMB_BITS: usize = 52;
pub(super) const LIMB_MASK: u64 = (1 << LIMB_BITS) - 1;
/// Number of limbs that are reduced together; numbers have a multiple of it.
pub(super) const BLOCK: usize = 5;

/// A number, wiped when dropped.
pub(super) type Limbs = Zeroizing<Vec<u64>>;

/// Zero.
pub(super) fn zero(len: usize) -> Limbs {
    Zeroizing::new(vec![0; len])
}

/// Reads big-endian bytes; `None` if they need more limbs.
pub(super) fn from_bytes(bytes: &[u8], len: usize) -> Option<Limbs> {
    let first = bytes.iter().position(|byte| *byte != 0).unwrap_or(bytes.len());
    let bytes = &bytes[first..];
    // Eight bytes more, so that a word can be read at each limb.
    let mut lowest_first = Zeroizing::new(vec![0; len * LIMB_BITS / 8 + 9]);
    let (whole, rest) = (len * LIMB_BITS / 8, len * LIMB_BITS % 8);
    if bytes.len() > whole + 1 || (bytes.len() == whole + 1 && bytes[0] >> rest != 0) {
        return None;
    }
    lowest_first.iter_mut().zip(bytes.iter().rev()).for_each(|(to, from)| *to = *from);
    let mut limbs = zero(len);
    read(&lowest_first, &mut limbs);
    Some(limbs)
}

/// Reads little-endian bytes; eight must exist from the first byte of each limb on.
pub(super) fn read(lowest_first: &[u8], limbs: &mut [u64]) {
    for (place, limb) in limbs.iter_mut().enumerate() {
        let bit = place * LIMB_BITS;
        let word = lowest_first[bit / 8..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        *limb = word >> (bit % 8) & LIMB_MASK;
    }
}

/// Writes big-endian bytes; higher bytes that do not fit are dropped.
pub(super) fn to_bytes(limbs: &[u64], out: &mut [u8]) {
    let mut rest = out.rchunks_mut(13);
    for pair in limbs.chunks(2) {
        let [low, high] = [pair[0], pair.get(1).copied().unwrap_or(0)];
        let bytes = (u128::from(low) | u128::from(high) << LIMB_BITS).to_be_bytes();
        let Some(to) = rest.next() else { break };
        let len = to.len();
        to.copy_from_slice(&bytes[bytes.len() - len..]);
    }
}

/// The bit length of a number.
pub(super) fn bits(limbs: &[u64]) -> usize {
    let highest = limbs.iter().rposition(|limb| *limb != 0);
    highest.map_or(0, |place| place * LIMB_BITS + 64 - limbs[place].leading_zeros() as usize)
}

/// Reduces a number below `2 n`, including bits above its limbs: `n` is subtracted and, if that was
/// too much, added again in the same steps.
pub(super) fn subtract_once(limbs: &mut [u64], n: &[u64]) {
    let mut borrow = 0_i64;
    for (limb, n) in limbs.iter_mut().zip(n) {
        borrow += *limb as i64 - *n as i64;
        *limb = borrow as u64 & LIMB_MASK;
        borrow >>= LIMB_BITS;
    }
    // All ones if the difference is negative.
    let (again, mut carry) = (borrow as u64, 0);
    for (limb, n) in limbs.iter_mut().zip(n) {
        carry += *limb + (n & again);
        *limb = carry & LIMB_MASK;
        carry >>= LIMB_BITS;
    }
}

/// 2^`power` modulo `n`, which must be greater than one and have a bit to spare.
pub(super) fn power_of_two(power: usize, n: &[u64]) -> Limbs {
    let mut number = zero(n.len());
    let first = power.min(bits(n) - 1);
    number[first / LIMB_BITS] = 1 << (first % LIMB_BITS);
    for _ in first..power {
        let mut carry = 0;
        for limb in number.iter_mut() {
            let doubled = *limb << 1 | carry;
            (*limb, carry) = (doubled & LIMB_MASK, doubled >> LIMB_BITS);
        }
        subtract_once(&mut number, n);
    }
    number
}

/// -1 / `n` modulo 2^(bits of a block), for an odd `n`.
pub(super) fn negative_inverse(n: &[u64]) -> Limbs {
    let mut inverse = zero(BLOCK);
    inverse[0] = 1;
    // Each step doubles the number of correct bits: 1, 2, ... 512.
    for _ in 0..9 {
        // inverse (2 - n inverse)
        let mut factor = product(&n[..BLOCK], &inverse, BLOCK);
        let mut borrow = 2_i64;
        for limb in factor.iter_mut() {
            borrow -= *limb as i64;
            *limb = borrow as u64 & LIMB_MASK;
            borrow >>= LIMB_BITS;
        }
        inverse = product(&inverse, &factor, BLOCK);
    }
    let mut borrow = 0_i64;
    for limb in inverse.iter_mut() {
        borrow -= *limb as i64;
        *limb = borrow as u64 & LIMB_MASK;
        borrow >>= LIMB_BITS;
    }
    inverse
}

/// The lowest `len` limbs of a product.
pub(super) fn product(a: &[u64], b: &[u64], len: usize) -> Limbs {
    let mut out = zero(len);
    for (from, a) in a.iter().enumerate().take(len) {
        let mut carry = 0_u128;
        let b = b.iter().chain(std::iter::repeat(&0));
        for (limb, b) in out[from..].iter_mut().zip(b) {
            carry += u128::from(*limb) + u128::from(*a) * u128::from(*b);
            *limb = carry as u64 & LIMB_MASK;
            carry >>= LIMB_BITS;
        }
    }
    out
}

/// The windows of a number, highest first: `window` bits each, for a number of `bits` bits.
pub(super) fn windows(limbs: &[u64], bits: usize, window: usize) -> Zeroizing<Vec<u8>> {
    let bit = |place: usize| limbs.get(place / LIMB_BITS).map_or(0, |limb| (limb >> (place % LIMB_BITS) & 1) as u8);
    let digit = |place: usize| (0..window).rev().fold(0, |digit, at| digit << 1 | bit(place * window + at));
    Zeroizing::new((0..bits.div_ceil(window)).rev().map(digit).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number of two limbs.
    fn small(number: u128, len: usize) -> Limbs {
        from_bytes(&number.to_be_bytes(), len).unwrap()
    }

    fn value(limbs: &[u64]) -> u128 {
        let mut bytes = [0; 16];
        to_bytes(limbs, &mut bytes);
        u128::from_be_bytes(bytes)
    }

    #[test]
    fn bytes_are_read_and_written() {
        let number = 0x0123_4567_89ab_cdef_0f1e_2d3c_4b5a_6978_u128;
        for len in [3, 5, 8] {
            assert_eq!(value(&small(number, len)), number);
            assert_eq!(bits(&small(number, len)), 121);
        }
        assert!(from_bytes(&number.to_be_bytes(), 2).is_none());
        assert_eq!(value(&from_bytes(&[0xf; 13], 2).unwrap()), u128::from_be_bytes([0xf; 16]) >> 24);
        assert_eq!((bits(&small(0, 3)), bits(&small(1, 3)), bits(&small(1 << 52, 3))), (0, 1, 53));
        // Leading zeros are permitted.
        assert!(from_bytes(&[0; 100], 2).is_some());
        let mut long = [9; 20];
        to_bytes(&small(7, 3), &mut long);
        assert_eq!(long[19], 7);
    }

    #[test]
    fn what_is_worked_out_for_a_modulus_is_what_it_says() {
        let n = 0xf123_4567_89ab_cdef_0123_u128;
        for power in [0, 3, 79, 80, 81, 126] {
            assert_eq!(value(&power_of_two(power, &small(n, 5))), (1_u128 << power) % n, "{power}");
        }
        let n = small(n, 5);
        let mut ones = product(&negative_inverse(&n), &n, 5);
        assert!(ones.iter().all(|limb| *limb == LIMB_MASK));
        ones[0] -= 3;
        subtract_once(&mut ones, &[LIMB_MASK - 3, LIMB_MASK, LIMB_MASK, LIMB_MASK, LIMB_MASK]);
        assert!(ones.iter().all(|limb| *limb == 0));
        let mut less = small(8, 5);
        subtract_once(&mut less, &small(9, 5));
        assert_eq!(value(&less), 8);
        assert_eq!(windows(&small(0b1_00011_11111, 5), 14, 5)[..], [1, 3, 31]);
    }
}
