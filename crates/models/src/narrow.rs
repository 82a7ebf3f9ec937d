//! Floats of eight and four bits. Each format has at most 256 values. A table holds the value of
//! every code, and encoding searches the table for the nearest finite value.

use panoply_core::once::OnceBox;

use crate::element::ElementType;

/// The parameters of a format.
struct Format {
    /// The magnitude of each code without its sign, increasing. Only finite values.
    magnitudes: Vec<f32>,
    sign: u8,
    nan: u8,
    infinity: Option<u8>,
    has_negative_zero: bool,
}

/// The value of a code.
pub(crate) fn decode(kind: ElementType, code: u8) -> f32 {
    if kind == ElementType::F8E8M0 {
        return if code == 255 { f32::NAN } else { (2.0_f64.powi(i32::from(code) - 127)) as f32 };
    }
    let format = format_of(kind);
    if code & !format.sign == format.nan & !format.sign && (format.has_negative_zero || code == format.nan) {
        let is_finite = usize::from(code & !format.sign) < format.magnitudes.len();
        if !is_finite || !format.has_negative_zero {
            return f32::NAN;
        }
    }
    let negative = code & format.sign != 0;
    let signed = |magnitude: f32| if negative { -magnitude } else { magnitude };
    match format.magnitudes.get(usize::from(code & !format.sign)) {
        Some(magnitude) => signed(*magnitude),
        None if format.infinity == Some(code & !format.sign) => signed(f32::INFINITY),
        None => f32::NAN,
    }
}

/// The code of the nearest value, ties to the even code. A value beyond the largest becomes the
/// largest if `saturate` is set, else infinity or, in formats without infinity, NaN.
pub(crate) fn encode(kind: ElementType, value: f32, saturate: bool) -> u8 {
    if kind == ElementType::F8E8M0 {
        return encode_power(value);
    }
    let format = format_of(kind);
    if value.is_nan() {
        let is_four = kind == ElementType::F4E2M1;
        // Four-bit floats have no NaN. ONNX converts NaN to minus zero.
        return if is_four { format.sign } else { format.nan };
    }
    let sign = if value.is_sign_negative() { format.sign } else { 0 };
    let magnitude = value.abs();
    let last = format.magnitudes.len() - 1;
    let (largest, below) = (format.magnitudes[last], format.magnitudes[last - 1]);
    // A value rounds to `largest` if it is nearer to `largest` than to the value that would follow.
    let limit = largest + (largest - below) / 2.0;
    let overflows = magnitude.is_infinite() || magnitude > limit || (magnitude == limit && last % 2 == 1);
    if overflows {
        return match (saturate || kind == ElementType::F4E2M1, format.infinity) {
            (true, _) => last as u8 | sign,
            (false, Some(infinity)) => infinity | sign,
            (false, None) if format.has_negative_zero => format.nan | sign,
            (false, None) => format.nan,
        };
    }
    let code = nearest(&format.magnitudes, magnitude);
    if code == 0 && !format.has_negative_zero { 0 } else { code as u8 | sign }
}

fn nearest(magnitudes: &[f32], magnitude: f32) -> usize {
    let above = magnitudes.partition_point(|known| *known < magnitude).min(magnitudes.len() - 1);
    let below = above.saturating_sub(1);
    let (down, up) =
        (f64::from(magnitude) - f64::from(magnitudes[below]), f64::from(magnitudes[above]) - f64::from(magnitude));
    match down.partial_cmp(&up) {
        Some(std::cmp::Ordering::Less) => below,
        Some(std::cmp::Ordering::Equal) if below % 2 == 0 => below,
        _ => above,
    }
}

/// The code of a power of two. A value halfway between two powers rounds up.
fn encode_power(value: f32) -> u8 {
    if value.is_nan() {
        return 255;
    }
    if value.is_infinite() || value <= 0.0 {
        return if value > 0.0 { 254 } else { 0 };
    }
    let bits = value.to_bits();
    let (exponent, fraction) = (bits >> 23, bits & 0x7f_ffff);
    let rounds_up = fraction > 0x40_0000 || (fraction == 0x40_0000 && exponent > 0);
    (exponent + u32::from(rounds_up)).min(254) as u8
}

fn format_of(kind: ElementType) -> &'static Format {
    static FORMATS: [OnceBox<Format>; 5] = [const { OnceBox::new() }; 5];
    let plain = |exponent, fraction, bias, finite: usize, nan, infinity| {
        let magnitudes = magnitudes(exponent, fraction, bias, finite);
        Format { magnitudes, sign: 0x80, nan, infinity, has_negative_zero: true }
    };
    match kind {
        ElementType::F8E4M3 => FORMATS[0].get_or_make(|| plain(4, 3, 7, 0x7f, 0x7f, None)),
        ElementType::F8E4M3Uz => {
            FORMATS[1].get_or_make(|| Format { has_negative_zero: false, ..plain(4, 3, 8, 0x80, 0x80, None) })
        }
        ElementType::F8E5M2 => FORMATS[2].get_or_make(|| plain(5, 2, 15, 0x7c, 0x7f, Some(0x7c))),
        ElementType::F8E5M2Uz => {
            FORMATS[3].get_or_make(|| Format { has_negative_zero: false, ..plain(5, 2, 16, 0x80, 0x80, None) })
        }
        _ => FORMATS[4].get_or_make(|| Format { sign: 8, ..plain(2, 1, 1, 8, 0xff, None) }),
    }
}

/// The first `count` magnitudes of a format with `exponent_bits` and `fraction_bits`.
fn magnitudes(exponent_bits: u32, fraction_bits: u32, bias: i32, count: usize) -> Vec<f32> {
    debug_assert!(exponent_bits + fraction_bits <= 7);
    let value = |code: usize| {
        let exponent = (code >> fraction_bits) as i32;
        let fraction = (code & ((1 << fraction_bits) - 1)) as f32 / (1 << fraction_bits) as f32;
        if exponent == 0 { fraction * 2.0_f32.powi(1 - bias) } else { (1.0 + fraction) * 2.0_f32.powi(exponent - bias) }
    };
    (0..count).map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_codes() {
        assert_eq!(decode(ElementType::F8E4M3, 0x7e), 448.0);
        assert!(decode(ElementType::F8E4M3, 0x7f).is_nan() && decode(ElementType::F8E4M3, 0xff).is_nan());
        assert_eq!(decode(ElementType::F8E4M3Uz, 0x7f), 240.0);
        assert!(decode(ElementType::F8E4M3Uz, 0x80).is_nan());
        assert_eq!(decode(ElementType::F8E5M2, 0x7b), 57344.0);
        assert_eq!(decode(ElementType::F8E5M2, 0xfc), f32::NEG_INFINITY);
        assert!(decode(ElementType::F8E5M2, 0x7d).is_nan());
        assert_eq!(decode(ElementType::F8E5M2Uz, 0x7f), 57344.0);
        assert_eq!(decode(ElementType::F4E2M1, 7), 6.0);
        assert_eq!(decode(ElementType::F4E2M1, 9), -0.5);
        assert_eq!(decode(ElementType::F8E8M0, 127), 1.0);
    }

    #[test]
    fn every_code_leads_back_to_itself() {
        use ElementType::*;
        for kind in [F8E4M3, F8E4M3Uz, F8E5M2, F8E5M2Uz, F4E2M1] {
            for code in 0..if kind == F4E2M1 { 16 } else { 255 } {
                let value = decode(kind, code);
                if !value.is_nan() {
                    assert_eq!(encode(kind, value, false), code, "{kind} {code:#x} {value}");
                }
            }
        }
    }

    #[test]
    fn beyond_the_largest() {
        assert_eq!(encode(ElementType::F8E4M3, 1e6, true), 0x7e);
        assert_eq!(encode(ElementType::F8E4M3, 1e6, false), 0x7f);
        assert_eq!(encode(ElementType::F8E5M2, -1e9, false), 0xfc);
        assert_eq!(encode(ElementType::F8E5M2Uz, f32::INFINITY, false), 0x80);
        assert_eq!(encode(ElementType::F4E2M1, 100.0, false), 7);
    }
}
