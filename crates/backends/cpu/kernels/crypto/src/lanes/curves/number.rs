//! Numbers of 256 bits modulo an odd number, as four words, lowest first, in Montgomery form: a
//! product is divided by 2^256.
//!
//! No branch and no address depends on a number, except on an exponent.

use zeroize::Zeroize;

pub(super) type U256 = [u64; 4];

pub(super) const ONE: U256 = [1, 0, 0, 0];

/// A modulus above 2^252.
pub(super) struct Modulus {
    /// The modulus itself.
    pub modulus: U256,
    /// The factor that makes the modulus end in -1.
    factor: u64,
    /// 2^256 modulo the modulus: one in Montgomery form.
    pub one: U256,
    /// 2^512 modulo the modulus.
    square: U256,
}

impl Modulus {
    pub const fn new(modulus: U256) -> Modulus {
        // Each step doubles the number of correct bits; an odd number is its own inverse modulo 8.
        let (mut inverse, mut step) = (modulus[0], 0);
        while step < 5 {
            inverse = inverse.wrapping_mul(2_u64.wrapping_sub(modulus[0].wrapping_mul(inverse)));
            step += 1;
        }
        let factor = inverse.wrapping_neg();
        let one = doubled_often(ONE, &modulus, 256);
        Modulus { modulus, factor, one, square: doubled_often(one, &modulus, 256) }
    }

    /// 2^(256 + `bits`).
    pub const fn power_of_two(&self, bits: usize) -> U256 {
        doubled_often(self.one, &self.modulus, bits)
    }

    /// a b / 2^256; one of the two must be below the modulus.
    pub fn product(&self, a: &U256, b: &U256) -> U256 {
        let mut sum = [0_u64; 5];
        for a in a {
            let mut carry = 0_u128;
            for (sum, b) in sum.iter_mut().zip(b) {
                carry += u128::from(*sum) + u128::from(*a) * u128::from(*b);
                *sum = carry as u64;
                carry >>= 64;
            }
            let high = u128::from(sum[4]) + carry;
            let times = u128::from(sum[0].wrapping_mul(self.factor));
            let mut carry = (u128::from(sum[0]) + times * u128::from(self.modulus[0])) >> 64;
            for place in 1..4 {
                carry += u128::from(sum[place]) + times * u128::from(self.modulus[place]);
                sum[place - 1] = carry as u64;
                carry >>= 64;
            }
            carry += high;
            (sum[3], sum[4]) = (carry as u64, (carry >> 64) as u64);
        }
        self.below([sum[0], sum[1], sum[2], sum[3]], sum[4])
    }

    /// Reduces a number below twice the modulus; `high` is its fifth word.
    pub fn below(&self, number: U256, high: u64) -> U256 {
        let (less, borrow) = subtracted(&number, &self.modulus);
        // All ones if the number was below the modulus.
        chosen(&number, &less, (borrow & !high & 1).wrapping_neg())
    }

    pub fn sum(&self, a: &U256, b: &U256) -> U256 {
        let (sum, carry) = added(a, b);
        self.below(sum, carry)
    }

    pub fn difference(&self, a: &U256, b: &U256) -> U256 {
        let (less, borrow) = subtracted(a, b);
        let masked = self.modulus.map(|word| word & borrow.wrapping_neg());
        added(&less, &masked).0
    }

    pub fn negated(&self, a: &U256) -> U256 {
        self.difference(&[0; 4], a)
    }

    /// Converts to Montgomery form.
    pub fn entered(&self, a: &U256) -> U256 {
        self.product(a, &self.square)
    }

    /// Converts back from Montgomery form.
    pub fn left(&self, a: &U256) -> U256 {
        self.product(a, &ONE)
    }

    /// Reduces a number of 512 bits that is not in Montgomery form.
    pub fn of_wide(&self, low: &U256, high: &U256) -> U256 {
        self.sum(&self.product(low, &self.one), &self.product(high, &self.square))
    }

    /// The power. The exponent must be public.
    pub fn power(&self, base: &U256, exponent: &U256) -> U256 {
        let mut made = self.one;
        for bit in (0..256).rev() {
            made = self.product(&made, &made);
            if exponent[bit / 64] >> (bit % 64) & 1 == 1 {
                made = self.product(&made, base);
            }
        }
        made
    }

    /// Inverts numbers in place, modulo a prime; none may be zero.
    pub fn invert(&self, numbers: &mut [U256]) {
        let mut products = Vec::with_capacity(numbers.len());
        let mut product = self.one;
        for number in &*numbers {
            products.push(product);
            product = self.product(&product, number);
        }
        let mut inverse = self.power(&product, &subtracted(&self.modulus, &[2, 0, 0, 0]).0);
        for (number, before) in numbers.iter_mut().zip(&products).rev() {
            let own = self.product(&inverse, before);
            inverse = self.product(&inverse, number);
            *number = own;
        }
        products.zeroize();
        (product, inverse).zeroize();
    }
}

const fn doubled_often(mut number: U256, modulus: &U256, times: usize) -> U256 {
    let mut time = 0;
    while time < times {
        let high = number[3] >> 63;
        let (mut twice, mut place) = ([0; 4], 0);
        while place < 4 {
            twice[place] = number[place] << 1 | if place > 0 { number[place - 1] >> 63 } else { 0 };
            place += 1;
        }
        let (less, borrow) = subtracted(&twice, modulus);
        number = if high == 1 || borrow == 0 { less } else { twice };
        time += 1;
    }
    number
}

/// The sum and its carry.
pub(super) fn added(a: &U256, b: &U256) -> (U256, u64) {
    let (mut sum, mut carry) = ([0; 4], 0_u128);
    for (place, sum) in sum.iter_mut().enumerate() {
        carry += u128::from(a[place]) + u128::from(b[place]);
        *sum = carry as u64;
        carry >>= 64;
    }
    (sum, carry as u64)
}

/// The difference, and 1 if it is negative.
pub(super) const fn subtracted(a: &U256, b: &U256) -> (U256, u64) {
    let (mut less, mut borrow, mut place) = ([0; 4], 0_i128, 0);
    while place < 4 {
        borrow += a[place] as i128 - b[place] as i128;
        less[place] = borrow as u64;
        borrow >>= 64;
        place += 1;
    }
    (less, (borrow & 1) as u64)
}

/// `a` if the mask is all ones, `b` if it is zero.
pub(super) fn chosen(a: &U256, b: &U256, mask: u64) -> U256 {
    // Hidden from the compiler, which could turn a known mask into a branch.
    let mask = std::hint::black_box(mask);
    std::array::from_fn(|place| (a[place] & mask) | (b[place] & !mask))
}

/// Whether a is below b. For public numbers only.
pub(super) fn is_below(a: &U256, b: &U256) -> bool {
    subtracted(a, b).1 == 1
}

/// Reads 32 bytes, lowest first.
pub(super) fn of_little_endian(bytes: &[u8; 32]) -> U256 {
    let (words, _) = bytes.as_chunks();
    std::array::from_fn(|place| u64::from_le_bytes(words[place]))
}
