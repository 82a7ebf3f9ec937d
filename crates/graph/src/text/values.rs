//! The values of constants.

use std::fmt::Write;

use panoply_core::{Complex64, DType, Element, HostBufferMut, Shape, Tensor, bf16, f16};

use super::lexer::LineLexer;

/// Constants of at most this many elements are written as a list.
const LISTED_MAX: usize = 16;

/// A constant's values: a list, `fill(…)`, `random(…)` or `hex(…)`. The error describes the fault.
pub(super) fn read(line: &mut LineLexer<'_>, dtype: DType, shape: Shape) -> Result<Tensor, String> {
    let count = shape.elements();
    let expected = |what: &str, line: &LineLexer<'_>| format!("expected {what}, got {}", line.rest());
    if line.takes("[") {
        let mut values = Vec::new();
        while !line.takes("]") {
            values.try_reserve(1).map_err(|_| no_memory(count))?;
            values.push(line.number().ok_or_else(|| expected("a number or `]`", line))?);
            line.takes(",");
            if values.len() > count {
                return Err(format!("expected {count} values for the shape, got more"));
            }
        }
        if values.len() != count {
            return Err(format!("expected {count} values for the shape, got {}", values.len()));
        }
        return made(dtype, shape, values.into_iter());
    }
    match line.name() {
        Some("fill") if line.takes("(") => {
            let value = line.number().ok_or_else(|| expected("a number", line))?;
            closed(line)?;
            made(dtype, shape, std::iter::repeat_n(value, count))
        }
        Some("random") if line.takes("(") => {
            let seed = line.size().ok_or_else(|| expected("a seed", line))?;
            closed(line)?;
            made(dtype, shape, random(seed as u64).take(count))
        }
        Some("hex") if line.takes("(") => {
            let digits = line.until(")").ok_or_else(|| expected("hexadecimal digits and `)`", line))?;
            hex(digits, dtype, shape)
        }
        _ => Err(expected("`[`, `fill(`, `random(` or `hex(`", line)),
    }
}

/// Writes the values of a tensor on the host in the format of [`read`].
pub(super) fn write(text: &mut String, tensor: &Tensor) {
    let bytes = tensor.as_bytes().unwrap_or_default();
    // Writing into a string does not fail.
    if tensor.elements() <= LISTED_MAX && tensor.dtype() != DType::Complex64 {
        let values: Vec<String> = (0..tensor.elements()).map(|index| number(tensor, index)).collect();
        let _ = write!(text, "[{}]", values.join(", "));
        return;
    }
    text.push_str("hex(");
    bytes.iter().for_each(|byte| {
        let _ = write!(text, "{byte:02x}");
    });
    text.push(')');
}

fn number(tensor: &Tensor, index: usize) -> String {
    let shown = |value: f64| format!("{value}");
    match tensor.dtype() {
        DType::F32 => tensor.as_slice::<f32>().map_or(0.0, |values| f64::from(values[index])).to_string(),
        DType::F16 => shown(tensor.as_slice::<f16>().map_or(0.0, |values| values[index].to_f64())),
        DType::BF16 => shown(tensor.as_slice::<bf16>().map_or(0.0, |values| values[index].to_f64())),
        DType::F64 => shown(tensor.as_slice::<f64>().map_or(0.0, |values| values[index])),
        DType::I32 => shown(tensor.as_slice::<i32>().map_or(0.0, |values| f64::from(values[index]))),
        DType::U32 => shown(tensor.as_slice::<u32>().map_or(0.0, |values| f64::from(values[index]))),
        DType::I8 => shown(tensor.as_slice::<i8>().map_or(0.0, |values| f64::from(values[index]))),
        DType::U8 => shown(tensor.as_slice::<u8>().map_or(0.0, |values| f64::from(values[index]))),
        DType::Complex64 => "0".to_owned(),
    }
}

fn closed(line: &mut LineLexer<'_>) -> Result<(), String> {
    if line.takes(")") { Ok(()) } else { Err(format!("expected `)`, got {}", line.rest())) }
}

fn made(dtype: DType, shape: Shape, values: impl Iterator<Item = f64>) -> Result<Tensor, String> {
    match dtype {
        DType::F32 => filled(dtype, shape, values, |value| finite(value, value as f32, f32::is_finite)),
        DType::F16 => filled(dtype, shape, values, |value| finite(value, f16::from_f64(value), f16::is_finite)),
        DType::BF16 => filled(dtype, shape, values, |value| finite(value, bf16::from_f64(value), bf16::is_finite)),
        DType::F64 => filled(dtype, shape, values, Some),
        DType::I32 => filled(dtype, shape, values, |value| whole(value, i32::MIN, i32::MAX).then_some(value as i32)),
        DType::U32 => filled(dtype, shape, values, |value| whole(value, u32::MIN, u32::MAX).then_some(value as u32)),
        DType::I8 => filled(dtype, shape, values, |value| whole(value, i8::MIN, i8::MAX).then_some(value as i8)),
        DType::U8 => filled(dtype, shape, values, |value| whole(value, u8::MIN, u8::MAX).then_some(value as u8)),
        DType::Complex64 => filled(dtype, shape, values, |value| {
            finite(value, value as f32, f32::is_finite).map(|real| Complex64::new(real, 0.0))
        }),
    }
}

/// A tensor of converted values; `None` if the element type cannot represent one of them.
fn filled<T: Element>(
    dtype: DType,
    shape: Shape,
    values: impl Iterator<Item = f64>,
    convert: impl Fn(f64) -> Option<T>,
) -> Result<Tensor, String> {
    let mut elements = Vec::new();
    elements.try_reserve_exact(shape.elements()).map_err(|_| no_memory(shape.elements()))?;
    for value in values {
        elements.push(convert(value).ok_or_else(|| format!("expected numbers that {dtype} holds, got {value}"))?);
    }
    Tensor::from_vec(elements, shape).map_err(|error| error.to_string())
}

/// The rounded number, unless rounding has made it infinite.
fn finite<T: Copy>(value: f64, rounded: T, is_finite: impl Fn(T) -> bool) -> Option<T> {
    (!value.is_finite() || is_finite(rounded)).then_some(rounded)
}

/// Whether the value is an integer from `min` to `max`.
fn whole(value: f64, min: impl Into<f64>, max: impl Into<f64>) -> bool {
    value.fract() == 0.0 && value >= min.into() && value <= max.into()
}

fn no_memory(elements: usize) -> String {
    format!("there is no memory for {elements} elements")
}

fn hex(digits: &str, dtype: DType, shape: Shape) -> Result<Tensor, String> {
    let bytes = shape.elements() * dtype.size_bytes();
    if digits.len() != bytes * 2 {
        return Err(format!("expected {} hexadecimal digits for the shape, got {}", bytes * 2, digits.len()));
    }
    let mut buffer = HostBufferMut::zeroed(bytes).map_err(|error| error.to_string())?;
    let nibble = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
    for (byte, pair) in buffer.bytes_mut().iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
        let (high, low) = (nibble(pair[0]), nibble(pair[1]));
        let (Some(high), Some(low)) = (high, low) else { return Err("expected hexadecimal digits".to_owned()) };
        *byte = high << 4 | low;
    }
    Tensor::from_host(dtype, shape, buffer.freeze()).map_err(|error| error.to_string())
}

/// Numbers between -1 and 1, the same for the same seed on every platform (SplitMix64).
fn random(mut state: u64) -> impl Iterator<Item = f64> {
    std::iter::repeat_with(move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ (bits >> 31)) >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    })
}
