//! Conversions between element types.

use half::f16;
use half::slice::HalfFloatSliceExt;

use super::call::{Call, one};
use crate::array::Array;
use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::narrow;
use crate::value::Value;

/// `Cast` and `CastLike`.
pub(crate) fn cast(call: &Call<'_>) -> Result<Vec<Value>> {
    let kind = match call.op() {
        "CastLike" => call.array(1)?.kind(),
        _ => ElementType::from_code(call.int("to", 0)?)?,
    };
    let saturate = call.flag("saturate", true)?;
    let round_up = call.text("round_mode", "up")?;
    one(convert(call.array(0)?, kind, saturate, round_up))
}

/// An array's elements converted to another type.
pub(crate) fn convert(x: &Array, kind: ElementType, saturate: bool, round_mode: &str) -> Result<Array> {
    if x.kind() == kind {
        return Ok(x.clone());
    }
    match (x.kind(), kind) {
        // Fast path: 8-bit weights to f32.
        (ElementType::I8, ElementType::F32) => singles(x, x.as_slice::<i8>()?),
        (ElementType::U8, ElementType::F32) => singles(x, x.as_slice::<u8>()?),
        // Fast path: attention masks to floats.
        (ElementType::I64, ElementType::F16) => halves(x),
        (ElementType::I64, ElementType::F32) => {
            let values = x.as_slice::<i64>()?.iter().map(|value| *value as f64 as f32);
            Array::from_slice(&values.collect::<Vec<f32>>(), x.dims())
        }
        (ElementType::String, _) => from_text(x, kind),
        (_, ElementType::String) => to_text(x),
        (_, ElementType::F8E8M0) => {
            let codes: Result<Vec<u8>> =
                x.to_floats()?.iter().map(|value| power_code(*value, saturate, round_mode)).collect();
            Array::from_bytes(kind, x.dims(), &codes?)
        }
        (_, kind) if kind.is_float() && kind.size_bytes() == 1 => {
            let codes = x.to_floats()?.into_iter().map(|value| narrow::encode(kind, value as f32, saturate));
            Array::from_bytes(kind, x.dims(), &codes.collect::<Vec<_>>())
        }
        (from, kind) if from.is_float() && kind.bits() < 8 => {
            // Narrow integers keep the low bits of the integer part.
            let whole = |value: f64| value.clamp(-1e18, 1e18) as i128;
            Array::from_integers(kind, x.dims(), &x.to_floats()?.into_iter().map(whole).collect::<Vec<_>>())
        }
        (from, _) if from.is_float() => Array::from_floats(kind, x.dims(), &x.to_floats()?),
        _ => Array::from_integers(kind, x.dims(), &x.to_integers()?),
    }
}

fn singles<T: Copy + Into<f32>>(x: &Array, values: &[T]) -> Result<Array> {
    Array::from_slice(&values.iter().map(|value| (*value).into()).collect::<Vec<f32>>(), x.dims())
}

/// Converts integers to f16, 256 at a time. The intermediate f32 is exact in the range of f16.
fn halves(x: &Array) -> Result<Array> {
    const STEP: usize = 256;
    let values = x.as_slice::<i64>()?;
    Array::build(ElementType::F16, x.dims(), |bytes| {
        let (mut singles, mut halves) = ([0.0_f32; STEP], [f16::ZERO; STEP]);
        for (target, values) in bytes.chunks_mut(STEP * size_of::<f16>()).zip(values.chunks(STEP)) {
            singles.iter_mut().zip(values).for_each(|(single, value)| *single = *value as f32);
            halves.convert_from_f32_slice(&singles);
            let made = bytemuck::cast_slice::<f16, u8>(&halves);
            target.copy_from_slice(&made[..target.len()]);
        }
    })
}

fn power_code(value: f64, saturate: bool, round_mode: &str) -> Result<u8> {
    if value.is_nan() || (value.is_infinite() && !saturate) {
        return Ok(255);
    }
    if value <= 0.0 {
        return Ok(0);
    }
    let exponent = value.abs().log2();
    let rounded = match round_mode {
        "up" => exponent.ceil(),
        "down" => exponent.floor(),
        "nearest" => {
            let (low, high) = (exponent.floor().exp2(), exponent.ceil().exp2());
            if value - low < high - value { exponent.floor() } else { exponent.ceil() }
        }
        other => return Err(Error::invalid("round_mode", "up, down or nearest", other)),
    };
    match rounded + 127.0 {
        code if code > 254.0 => Ok(if saturate { 254 } else { 255 }),
        code => Ok(code.max(0.0) as u8),
    }
}

fn from_text(x: &Array, kind: ElementType) -> Result<Array> {
    let wrong = |text: &String| Error::invalid("text that becomes a number", "a number", format!("{text:?}"));
    if kind.is_float() {
        let number = |text: &String| match text.trim().to_ascii_lowercase().as_str() {
            "nan" => Ok(f64::NAN),
            "inf" | "+inf" => Ok(f64::INFINITY),
            "-inf" => Ok(f64::NEG_INFINITY),
            number => number.parse::<f64>().map_err(|_| wrong(text)),
        };
        return Array::from_floats(kind, x.dims(), &x.as_strings()?.iter().map(number).collect::<Result<Vec<_>>>()?);
    }
    let number = |text: &String| text.trim().parse::<i128>().map_err(|_| wrong(text));
    Array::from_integers(kind, x.dims(), &x.as_strings()?.iter().map(number).collect::<Result<Vec<_>>>()?)
}

fn to_text(x: &Array) -> Result<Array> {
    let texts = match x.kind() {
        ElementType::F32 => {
            x.as_slice::<f32>()?.iter().map(|value| float_text(f64::from(*value), value.to_string())).collect()
        }
        kind if kind.is_float() => x.to_floats()?.iter().map(|value| float_text(*value, value.to_string())).collect(),
        ElementType::Bool => {
            x.bytes().iter().map(|value| if *value != 0 { "True" } else { "False" }.to_owned()).collect()
        }
        _ => x.to_integers()?.iter().map(ToString::to_string).collect(),
    };
    Array::from_strings(texts, x.dims())
}

/// Formats a float as NumPy does: whole numbers keep a fraction, infinities are short.
fn float_text(value: f64, shown: String) -> String {
    match value {
        value if value.is_nan() => "NaN".to_owned(),
        f64::INFINITY => "INF".to_owned(),
        f64::NEG_INFINITY => "-INF".to_owned(),
        _ => shown,
    }
}

/// The same bits as another type.
pub(crate) fn bit_cast(call: &Call<'_>) -> Result<Vec<Value>> {
    let (x, kind) = (call.array(0)?, ElementType::from_code(call.int("to", 0)?)?);
    if x.kind().bits() != kind.bits() || x.kind() == ElementType::String {
        return Err(Error::invalid("bit cast", format!("a type of {} bits", x.kind().bits()), kind));
    }
    if x.kind().bits() < 8 {
        // Narrow integers take a byte each, with their sign.
        let mask = (1_u8 << x.kind().bits()) - 1;
        let codes = x.bytes().iter().map(|byte| i128::from(byte & mask));
        let codes: Vec<i128> = codes.collect();
        if kind == ElementType::F4E2M1 {
            return one(Array::from_bytes(kind, x.dims(), &codes.iter().map(|code| *code as u8).collect::<Vec<_>>()));
        }
        return one(Array::from_integers(kind, x.dims(), &codes));
    }
    if kind == ElementType::Bool {
        // A boolean has two values: every non-zero byte becomes 1.
        return one(Array::from_bytes(kind, x.dims(), x.bytes()));
    }
    one(Ok(x.reinterpret(kind)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests every integer in the range of f16, its neighbours, and some far outside, against
    /// conversions of f64.
    #[test]
    fn integers_become_floats_as_by_way_of_f64() {
        let mut given: Vec<i64> = (-70_000..70_000).collect();
        given.extend([i64::MIN, i64::MAX, 1 << 24, (1 << 24) + 1, (1 << 53) + 1, (1 << 60) + 1, -(1 << 60) - 1]);
        let array = Array::from_slice(&given, [given.len()]).unwrap();
        let wide: Vec<f64> = given.iter().map(|value| *value as f64).collect();
        for kind in [ElementType::F16, ElementType::F32] {
            let found = convert(&array, kind, true, "up").unwrap();
            assert_eq!(found.bytes(), Array::from_floats(kind, [given.len()], &wide).unwrap().bytes(), "{kind}");
        }
    }
}
