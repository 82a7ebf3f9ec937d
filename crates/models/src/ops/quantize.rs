//! Quantised numbers: conversions between floats and narrow integers or floats, and products of
//! bytes.

use super::call::{Call, axis_of, one, size_of_int};
use super::cast::convert;
use super::index::Positions;
use super::linear::{Grid, product};
use crate::array::Array;
use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::value::Value;

/// For each element, the position of its scale: one scale for all, one for each index of an axis,
/// or one for each block of an axis.
fn places(call: &Call<'_>, x: &[usize], scale: &[usize]) -> Result<Box<dyn Iterator<Item = usize>>> {
    let (count, block) = (x.iter().product::<usize>(), size_of_int(call.int("block_size", 0)?)?);
    if scale.iter().product::<usize>() == 1 && block == 0 {
        return Ok(Box::new(std::iter::repeat_n(0, count)));
    }
    let axis = axis_of(call.int("axis", 1)?, x.len())?;
    if block == 0 {
        let mut dims = vec![1; x.len()];
        if scale.len() != 1 || scale[0] != x[axis] {
            return Err(Error::invalid("scales", format!("{} for axis {axis}", x[axis]), format!("{scale:?}")));
        }
        dims[axis] = scale[0];
        return Ok(Box::new(Positions::broadcast(&dims, x)?));
    }
    let others = scale.iter().zip(x).enumerate().all(|(place, (scale, dim))| place == axis || scale == dim);
    if scale.len() != x.len() || !others || scale[axis] != x[axis].div_ceil(block) {
        return Err(Error::invalid("scales", format!("blocks of {block} of {x:?}"), format!("{scale:?}")));
    }
    let (own, steps) = (super::index::strides(x), super::index::strides(scale));
    let x = x.to_vec();
    Ok(Box::new((0..count).map(move |place| {
        let index = |other: usize| {
            let at = place / own[other] as usize % x[other];
            if other == axis { at / block } else { at }
        };
        (0..x.len()).map(|other| index(other) * steps[other] as usize).sum()
    })))
}

/// Checks that there is a zero point for each scale.
fn expect_same_len(scale: &Array, zero: Option<&Array>) -> Result<()> {
    match zero {
        Some(zero) if zero.len() != scale.len() => {
            Err(Error::invalid("a zero point", format!("{} numbers", scale.len()), zero.len()))
        }
        _ => Ok(()),
    }
}

pub(crate) fn quantize(call: &Call<'_>) -> Result<Vec<Value>> {
    let (x, scale, zero) = (call.array(0)?, call.array(1)?, call.optional(2)?);
    expect_same_len(scale, zero)?;
    if !matches!(call.int("precision", 0)?, 0 | 1) {
        return Err(Error::unsupported("quantisation in another precision than f32"));
    }
    let kind = match (zero, call.int("output_dtype", 0)?) {
        (Some(zero), _) => zero.kind(),
        (None, 0) => ElementType::U8,
        (None, code) => ElementType::from_code(code)?,
    };
    let (values, scales) = (x.to_floats()?, scale.to_floats()?);
    let zeros = zero.map(Array::to_floats).transpose()?;
    let places = places(call, x.dims(), scale.dims())?;
    // The quotient is rounded to the type of the division.
    let single = x.kind() != ElementType::F64;
    let quotient = |value: f64, scale: f64| if single { f64::from((value / scale) as f32) } else { value / scale };
    if kind.is_float() {
        let scaled = values
            .iter()
            .zip(places)
            .map(|(value, place)| quotient(*value, scales[place]) + zeros.as_ref().map_or(0.0, |zeros| zeros[place]));
        let scaled = Array::from_floats(ElementType::F32, x.dims(), &scaled.collect::<Vec<_>>())?;
        return one(convert(&scaled, kind, call.flag("saturate", true)?, "up"));
    }
    let (low, high) = kind.range();
    let whole = values.iter().zip(places).map(|(value, place)| {
        let rounded =
            quotient(*value, scales[place]).round_ties_even() + zeros.as_ref().map_or(0.0, |zeros| zeros[place]);
        (rounded as i128).clamp(low, high)
    });
    one(Array::from_integers(kind, x.dims(), &whole.collect::<Vec<_>>()))
}

pub(crate) fn dequantize(call: &Call<'_>) -> Result<Vec<Value>> {
    let (x, scale) = (call.array(0)?, call.array(1)?);
    expect_same_len(scale, call.optional(2)?)?;
    let zeros = call.optional(2)?.map(Array::to_floats).transpose()?;
    let kind = match call.int("output_dtype", 0)? {
        0 => scale.kind(),
        code => ElementType::from_code(code)?,
    };
    let scales = scale.to_floats()?;
    let places = places(call, x.dims(), scale.dims())?;
    let values = x.to_floats()?.into_iter().zip(places);
    let values =
        values.map(|(value, place)| (value - zeros.as_ref().map_or(0.0, |zeros| zeros[place])) * scales[place]);
    one(Array::from_floats(kind, x.dims(), &values.collect::<Vec<_>>()))
}

pub(crate) fn quantize_dynamically(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.array(0)?;
    let values = x.as_slice::<f32>()?;
    let low = values.iter().copied().fold(0.0_f32, f32::min);
    let high = values.iter().copied().fold(0.0_f32, f32::max);
    let scale = if high == low { 1.0 } else { (high - low) / 255.0 };
    let zero = (-low / scale).clamp(0.0, 255.0).round_ties_even();
    let bytes: Vec<u8> =
        values.iter().map(|value| ((value / scale).round_ties_even() + zero).clamp(0.0, 255.0) as u8).collect();
    let (scale, zero) = (Array::from_slice(&[scale], [])?, Array::from_slice(&[zero as u8], [])?);
    Ok(vec![Array::from_slice(&bytes, x.dims())?.into(), scale.into(), zero.into()])
}

/// Numbers minus their zero point: one for all, or one for each row (`by_row`) or column.
fn centred(array: &Array, zero: Option<&Array>, by_row: bool) -> Result<Grid> {
    let mut grid = Grid::of(array)?;
    let Some(zero) = zero else { return Ok(grid) };
    let zeros = zero.to_floats()?;
    let rank = grid.dims.len();
    let mut dims = zero.dims().to_vec();
    if zero.len() == 1 {
        dims = Vec::new();
    } else if dims.len() == 1 && by_row && rank > 1 {
        dims.push(1);
    }
    for (value, place) in grid.values.iter_mut().zip(Positions::broadcast(&dims, array.dims())?) {
        *value -= zeros[place];
    }
    Ok(grid)
}

pub(crate) fn matmul_integer(call: &Call<'_>) -> Result<Vec<Value>> {
    let a = centred(call.array(0)?, call.optional(2)?, true)?;
    let b = centred(call.array(1)?, call.optional(3)?, false)?;
    let sum = product(&a, &b)?;
    one(Array::from_integers(
        ElementType::I32,
        &sum.dims,
        &sum.values.iter().map(|value| *value as i128).collect::<Vec<_>>(),
    ))
}

pub(crate) fn qlinear_matmul(call: &Call<'_>) -> Result<Vec<Value>> {
    let a = centred(call.array(0)?, Some(call.array(2)?), true)?;
    let b = centred(call.array(3)?, Some(call.array(5)?), false)?;
    let sum = product(&a, &b)?;
    let single = |place: usize| match call.array(place)?.to_floats()?.as_slice() {
        [scale] => Ok(*scale),
        _ => Err(Error::unsupported("a scale for each row or column")),
    };
    let (a_scale, b_scale, y_scale, zero) = (single(1)?, single(4)?, single(6)?, single(7)?);
    let kind = call.array(7)?.kind();
    let (low, high) = kind.range();
    let values = sum.values.iter().map(|value| {
        let scaled = if kind.is_float() { 0.0 } else { (value * a_scale * b_scale / y_scale).round_ties_even() + zero };
        (scaled as i128).clamp(low, high)
    });
    if kind.is_float() {
        return Err(Error::unsupported(format!("QLinearMatMul of {kind}")));
    }
    one(Array::from_integers(kind, &sum.dims, &values.collect::<Vec<_>>()))
}
