//! Fourier transforms, windows and filter banks.

use std::f64::consts::PI;

use super::call::{Call, axis_of, one, size_of_int};
use super::index::around;
use crate::array::Array;
use crate::bounds::{host_count, work, zeros};
use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::value::Value;

pub(crate) fn window(call: &Call<'_>) -> Result<Vec<Value>> {
    let size = call.array(0)?.to_i64s()?.first().copied().unwrap_or(0);
    let size = size_of_int(size)?;
    host_count(&[size])?;
    let kind = ElementType::from_code(call.int("output_datatype", 1)?)?;
    let period = if call.flag("periodic", true)? { size as f64 } else { size as f64 - 1.0 };
    let terms: [f64; 3] = match call.op() {
        "HannWindow" => [0.5, 0.5, 0.0],
        "HammingWindow" => [25.0 / 46.0, 21.0 / 46.0, 0.0],
        _ => [0.42, 0.5, 0.08],
    };
    let value = |place: usize| {
        let angle = 2.0 * PI * place as f64 / period;
        terms[0] - terms[1] * angle.cos() + terms[2] * (2.0 * angle).cos()
    };
    one(Array::from_floats(kind, [size], &(0..size).map(value).collect::<Vec<_>>()))
}

/// The discrete Fourier transform of one line of complex numbers, computed by its definition.
fn transform(line: &[(f64, f64)], len: usize, inverse: bool, bins: usize) -> Vec<(f64, f64)> {
    let sign = if inverse { 1.0 } else { -1.0 };
    let angles: Vec<(f64, f64)> = (0..len).map(|step| (sign * 2.0 * PI * step as f64 / len as f64).sin_cos()).collect();
    let bin = |bin: usize| {
        let mut sum = (0.0, 0.0);
        for (place, (re, im)) in line.iter().take(len).enumerate() {
            let (sin, cos) = angles[bin * place % len];
            sum = (sum.0 + re * cos - im * sin, sum.1 + re * sin + im * cos);
        }
        if inverse { (sum.0 / len as f64, sum.1 / len as f64) } else { sum }
    };
    (0..bins).map(bin).collect()
}

pub(crate) fn dft(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.array(0)?;
    let rank = x.dims().len();
    let axis = match call.optional_ints(2)? {
        Some(axis) => axis.first().copied().unwrap_or(-2),
        None if call.version() < 20 => call.int("axis", 1)?,
        None => -2,
    };
    let axis = axis_of(axis, rank)?;
    let Some(parts @ (1 | 2)) = x.dims().last().copied() else {
        return Err(Error::invalid("DFT", "numbers of one or two parts", format!("{x:?}")));
    };
    if axis + 1 == rank {
        return Err(Error::invalid("DFT", "an axis before the last", axis));
    }
    let len = match call.optional_ints(1)?.and_then(|len| len.first().copied()) {
        Some(len) => size_of_int(len)?,
        None => x.dims()[axis],
    };
    let (inverse, onesided) = (call.flag("inverse", false)?, call.flag("onesided", false)?);
    if len == 0 || (onesided && inverse) {
        let what = if len == 0 { "DFT of nothing" } else { "an inverse of one side" };
        return Err(Error::unsupported(what));
    }
    let bins = if onesided { len / 2 + 1 } else { len };
    let (outer, have, inner) = around(&x.dims()[..rank - 1], axis);
    let values = x.to_floats()?;
    let mut dims = x.dims().to_vec();
    (dims[axis], dims[rank - 1]) = (bins, 2);
    work(&[outer, inner, host_count(&[len])?, bins])?;
    let mut results = zeros(&dims)?;
    for line in 0..outer * inner {
        let at = |row: usize, rows: usize| (line / inner * rows + row) * inner + line % inner;
        let number = |row: usize| match row < have {
            true => (values[at(row, have) * parts], if parts == 2 { values[at(row, have) * parts + 1] } else { 0.0 }),
            false => (0.0, 0.0),
        };
        let numbers: Vec<(f64, f64)> = (0..len).map(number).collect();
        for (row, (re, im)) in transform(&numbers, len, inverse, bins).into_iter().enumerate() {
            (results[at(row, bins) * 2], results[at(row, bins) * 2 + 1]) = (re, im);
        }
    }
    one(Array::from_floats(x.kind(), dims, &results))
}

pub(crate) fn stft(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.array(0)?;
    let step = size_of_int(call.array(1)?.to_i64s()?.first().copied().unwrap_or(1))?;
    if step == 0 {
        return Err(Error::invalid("STFT", "a step of at least 1", step));
    }
    let window = call.optional(2)?.map(Array::to_floats).transpose()?;
    let given = call.optional_ints(3)?.and_then(|len| len.first().copied()).map(size_of_int).transpose()?;
    let len = given
        .or(window.as_ref().map(Vec::len))
        .ok_or_else(|| Error::invalid("STFT", "a window or a length", "none"))?;
    let (batch, samples, parts) = match *x.dims() {
        [batch, samples] => (batch, samples, 1),
        [batch, samples, parts @ (1 | 2)] => (batch, samples, parts),
        _ => return Err(Error::invalid("STFT", "signals", format!("{x:?}"))),
    };
    if len == 0 || len > samples || window.as_ref().is_some_and(|window| window.len() != len) {
        return Err(Error::invalid("STFT", format!("a window of 1 to {samples}"), len));
    }
    let bins = if call.flag("onesided", true)? { len / 2 + 1 } else { len };
    let frames = (samples - len) / step + 1;
    let values = x.to_floats()?;
    work(&[batch, frames, bins, len])?;
    let mut results = Vec::with_capacity(host_count(&[batch, frames, bins, 2])?);
    for row in 0..batch {
        for frame in 0..frames {
            let number = |place: usize| {
                let at = (row * samples + frame * step + place) * parts;
                let factor = window.as_ref().map_or(1.0, |window| window[place]);
                (values[at] * factor, if parts == 2 { values[at + 1] * factor } else { 0.0 })
            };
            let line: Vec<(f64, f64)> = (0..len).map(number).collect();
            results.extend(transform(&line, len, false, bins).into_iter().flat_map(|(re, im)| [re, im]));
        }
    }
    one(Array::from_floats(x.kind(), [batch, frames, bins, 2], &results))
}

pub(crate) fn mel_weights(call: &Call<'_>) -> Result<Vec<Value>> {
    let number = |place: usize| Ok::<_, Error>(call.array(place)?.to_floats()?.first().copied().unwrap_or(0.0));
    let (bins, len, rate, low, high) = (number(0)?, number(1)?, number(2)?, number(3)?, number(4)?);
    let kind = ElementType::from_code(call.int("output_datatype", 1)?)?;
    let (bins, rows) = (size_of_int(bins as i64)?, size_of_int(len as i64)? / 2 + 1);
    host_count(&[bins + 2])?;
    let mel = |hertz: f64| 2595.0 * (1.0 + hertz / 700.0).log10();
    let hertz = |mel: f64| 700.0 * (10.0_f64.powf(mel / 2595.0) - 1.0);
    let step = (mel(high) - mel(low)) / (bins as f64 + 2.0);
    let edges: Vec<usize> = (0..bins + 2)
        .map(|place| ((len + 1.0) * hertz(mel(low) + place as f64 * step) / rate).floor().max(0.0) as usize)
        .collect();
    let mut weights = zeros(&[rows, bins])?;
    for bin in 0..bins {
        let (start, peak, end) = (edges[bin], edges[bin + 1], edges[bin + 2]);
        if peak == start && peak < rows {
            weights[peak * bins + bin] = 1.0;
        }
        for row in start..=peak.min(rows.saturating_sub(1)) {
            if peak > start {
                weights[row * bins + bin] = (row - start) as f64 / (peak - start) as f64;
            }
        }
        for row in peak..end.min(rows) {
            if end > peak {
                weights[row * bins + bin] = (end - row) as f64 / (end - peak) as f64;
            }
        }
    }
    one(Array::from_floats(kind, [rows, bins], &weights))
}
