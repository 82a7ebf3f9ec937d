//! Converts lines of floats to integers with one exponent for each line, and back.
//!
//! A line's largest number uses all bits of a sample, so the error of each number is at most
//! `2^(1 - bits)` times the line's largest. With 24 bits this is twice f32's own error for the
//! largest number. Non-finite numbers become zero here, and the ops handle them separately.

/// A line of integers. Each represents `value · 2^exponent`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixedPointLine {
    /// The integers.
    pub values: Vec<i32>,
    /// The shared exponent.
    pub exponent: i32,
}

/// Converts a line to integers of `bits` bits, including the sign.
pub fn quantized(numbers: &[f32], bits: u32) -> FixedPointLine {
    let finite = |number: &f32| if number.is_finite() { f64::from(*number) } else { 0.0 };
    let largest = numbers.iter().map(finite).fold(0.0_f64, |largest, number| largest.max(number.abs()));
    if largest == 0.0 {
        return FixedPointLine { values: vec![0; numbers.len()], exponent: 0 };
    }
    let limit = (1_i64 << (bits - 1)) - 1;
    // The largest number is less than 2^(its exponent + 1).
    let exponent = exponent_of(largest) + 2 - bits as i32;
    let scale = power_of_two(-exponent);
    let integer = |number: &f32| ((finite(number) * scale).round() as i64).clamp(-limit - 1, limit) as i32;
    FixedPointLine { values: numbers.iter().map(integer).collect(), exponent }
}

/// `value · 2^exponent`, rounded once.
pub fn number(value: i64, exponent: i32) -> f32 {
    // Sums have up to 64 bits, of which f64 keeps 53. This is far more than f32 has.
    (value as f64 * power_of_two(exponent)) as f32
}

/// The exponent of a positive normal number: `2^e <= number < 2^(e + 1)`.
fn exponent_of(number: f64) -> i32 {
    ((number.to_bits() >> 52) & 0x7ff) as i32 - 1023
}

/// `2^exponent`, exactly. Exponents of f32 lines and of their products are well within f64's range.
fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent.clamp(-1022, 1023) + 1023) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_number_takes_all_bits() {
        for scale in [1.0, 1e-30, 3e38, f32::MIN_POSITIVE, 1e-45] {
            let numbers = [scale, -scale, scale / 3.0, 0.0, f32::NAN, f32::INFINITY];
            let line = quantized(&numbers, 24);
            assert!((1 << 22..1 << 23).contains(&line.values[0]), "{scale}: {line:?}");
            assert_eq!(line.values[1], -line.values[0]);
            assert_eq!(line.values[3..], [0, 0, 0]);
            for (value, expected) in line.values.iter().zip(&numbers[..4]) {
                let got = number(i64::from(*value), line.exponent);
                assert!((got - expected).abs() <= scale * 1.2e-7, "{scale}: {got} instead of {expected}");
            }
        }
        assert_eq!(quantized(&[0.0, f32::NAN], 24), FixedPointLine { values: vec![0, 0], exponent: 0 });
    }

    #[test]
    fn what_rounds_up_beyond_the_bits_stays_within_them() {
        let line = quantized(&[1.0 - f32::EPSILON / 2.0, -1.0 + f32::EPSILON / 2.0], 8);
        assert_eq!(line.values, [127, -128]);
    }
}
