//! The order of JSON numbers, by value and without rounding.

use std::cmp::Ordering;

use serde_json::Number;

/// Compares two numbers. JSON has neither NaN nor infinities, so there always is an order.
pub fn compare(a: &Number, b: &Number) -> Ordering {
    match (integer(a), integer(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        (Some(a), None) => integer_with_float(a, float(b)),
        (None, Some(b)) => integer_with_float(b, float(a)).reverse(),
        (None, None) => float(a).partial_cmp(&float(b)).unwrap_or(Ordering::Equal),
    }
}

fn integer(number: &Number) -> Option<i128> {
    number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from))
}

fn float(number: &Number) -> f64 {
    number.as_f64().unwrap_or(0.0)
}

/// Converting the integer to a float would round it. Instead the float's whole part is converted to
/// an integer: exactly, or saturating on the correct side for floats beyond the JSON integers.
fn integer_with_float(a: i128, b: f64) -> Ordering {
    let whole = b.trunc();
    a.cmp(&(whole as i128)).then_with(|| whole.partial_cmp(&b).unwrap_or(Ordering::Equal))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(a: &str, b: &str) -> Ordering {
        compare(&serde_json::from_str(a).unwrap(), &serde_json::from_str(b).unwrap())
    }

    #[test]
    fn integers_and_floats_compare_by_value() {
        for (a, b) in [("1", "2"), ("-1", "1"), ("1", "1.5"), ("-1.5", "-1"), ("0.1", "0.2"), ("1e300", "1e301")] {
            assert_eq!(order(a, b), Ordering::Less, "{a} {b}");
            assert_eq!(order(b, a), Ordering::Greater, "{a} {b}");
        }
        for (a, b) in [("1", "1.0"), ("0", "-0.0"), ("1e2", "100"), ("18446744073709551615", "18446744073709551615")] {
            assert_eq!(order(a, b), Ordering::Equal, "{a} {b}");
        }
    }

    #[test]
    fn large_integers_are_not_rounded() {
        assert_eq!(order("9007199254740993", "9007199254740992"), Ordering::Greater);
        assert_eq!(order("9007199254740993", "9007199254740992.0"), Ordering::Greater);
        assert_eq!(order("18446744073709551615", "18446744073709551616.0"), Ordering::Less);
        assert_eq!(order("-9223372036854775808", "-1e300"), Ordering::Greater);
    }
}
