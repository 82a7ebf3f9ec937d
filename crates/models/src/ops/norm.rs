//! Normalisations: over batches, layers, groups and instances.

use super::call::{Call, axis_of, one};
use super::index::{Positions, around};
use crate::array::{Array, host_count};
use crate::bounds::work;
use crate::error::{Error, Result};
use crate::value::Value;

fn expect_len(what: &'static str, array: &Array, len: usize) -> Result<Vec<f64>> {
    match array.len() {
        got if got == len => array.to_floats(),
        got => Err(Error::invalid(what, format!("{len} elements"), got)),
    }
}

pub(crate) fn batch(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.array(0)?;
    let channels = x.dims().get(1).copied().unwrap_or(1);
    let (_, _, inner) = if x.dims().len() > 1 { around(x.dims(), 1) } else { (x.len(), 1, 1) };
    let scale = expect_len("scale", call.array(1)?, channels)?;
    let bias = expect_len("bias", call.array(2)?, channels)?;
    let mut mean = expect_len("mean", call.array(3)?, channels)?;
    let mut variance = expect_len("variance", call.array(4)?, channels)?;
    let epsilon = call.float("epsilon", 1e-5)?;
    let mut values = x.to_floats()?;
    let channel = |place: usize| place / inner % channels;
    let mut running = None;
    if call.flag("training_mode", false)? {
        let momentum = call.float("momentum", 0.9)?;
        let (mut sum, mut squares) = (vec![0.0; channels], vec![0.0; channels]);
        let count = (x.len() / channels.max(1)) as f64;
        values.iter().enumerate().for_each(|(place, value)| sum[channel(place)] += value / count);
        for (place, value) in values.iter().enumerate() {
            squares[channel(place)] += (value - sum[channel(place)]).powi(2) / count;
        }
        let mixed = |old: &[f64], new: &[f64]| -> Vec<f64> {
            old.iter().zip(new).map(|(old, new)| old * momentum + new * (1.0 - momentum)).collect()
        };
        running = Some((mixed(&mean, &sum), mixed(&variance, &squares)));
        (mean, variance) = (sum, squares);
    }
    for (place, value) in values.iter_mut().enumerate() {
        let channel = channel(place);
        *value = (*value - mean[channel]) / (variance[channel] + epsilon).sqrt() * scale[channel] + bias[channel];
    }
    let mut outputs = one(Array::from_floats(x.kind(), x.dims(), &values))?;
    if let Some((mean, variance)) = running {
        let kinds = (call.array(3)?.kind(), call.array(4)?.kind());
        outputs.push(Array::from_floats(kinds.0, [channels], &mean)?.into());
        outputs.push(Array::from_floats(kinds.1, [channels], &variance)?.into());
    }
    Ok(outputs)
}

/// Normalises rows to mean zero and variance one. Returns the mean and the reciprocal deviation of
/// each row.
fn normalize_rows(values: &mut [f64], run: usize, epsilon: f64, centred: bool) -> (Vec<f64>, Vec<f64>) {
    let (mut means, mut scales) = (Vec::new(), Vec::new());
    for row in values.chunks_exact_mut(run.max(1)) {
        let count = row.len() as f64;
        let mean = if centred { row.iter().sum::<f64>() / count } else { 0.0 };
        let variance = row.iter().map(|value| (value - mean) * (value - mean)).sum::<f64>() / count;
        let scale = 1.0 / (variance + epsilon).sqrt();
        row.iter_mut().for_each(|value| *value = (*value - mean) * scale);
        means.push(mean);
        scales.push(scale);
    }
    (means, scales)
}

/// `LayerNormalization` and `RMSNormalization`.
pub(crate) fn layer(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.array(0)?;
    let axis = axis_of(call.int("axis", -1)?, x.dims().len())?;
    let run: usize = x.dims()[axis..].iter().product();
    let centred = call.op() == "LayerNormalization";
    let mut values = x.to_floats()?;
    let (means, scales) = normalize_rows(&mut values, run, call.float("epsilon", 1e-5)?, centred);
    scale_and_shift(&mut values, x.dims(), call.optional(1)?, call.optional(2)?)?;
    let mut outputs = one(Array::from_floats(x.kind(), x.dims(), &values))?;
    let dims: Vec<usize> =
        x.dims().iter().enumerate().map(|(place, dim)| if place < axis { *dim } else { 1 }).collect();
    let kind = crate::element::ElementType::F32;
    outputs.push(Array::from_floats(kind, &dims, &means)?.into());
    outputs.push(Array::from_floats(kind, &dims, &scales)?.into());
    outputs.truncate(call.node.outputs.len().max(1));
    Ok(outputs)
}

fn scale_and_shift(values: &mut [f64], dims: &[usize], scale: Option<&Array>, bias: Option<&Array>) -> Result<()> {
    if let Some(scale) = scale {
        let factors = scale.to_floats()?;
        let places = Positions::broadcast(scale.dims(), dims)?;
        values.iter_mut().zip(places).for_each(|(value, place)| *value *= factors[place]);
    }
    if let Some(bias) = bias {
        let summands = bias.to_floats()?;
        let places = Positions::broadcast(bias.dims(), dims)?;
        values.iter_mut().zip(places).for_each(|(value, place)| *value += summands[place]);
    }
    Ok(())
}

/// `InstanceNormalization` and `GroupNormalization`.
pub(crate) fn groups(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.array(0)?;
    let [batch, channels, ..] = *x.dims() else { return Err(Error::invalid("an image", "channels", format!("{x:?}"))) };
    let groups = match call.op() {
        "InstanceNormalization" => channels,
        _ => usize::try_from(call.int("num_groups", 1)?).unwrap_or(0),
    };
    if groups == 0 || !channels.is_multiple_of(groups) {
        return Err(Error::invalid("num_groups", format!("a divisor of {channels}"), groups));
    }
    let mut values = x.to_floats()?;
    let run = x.len() / (batch * groups).max(1);
    normalize_rows(&mut values, run, call.float("epsilon", 1e-5)?, true);
    let (_, _, inner) = around(x.dims(), 1);
    let per_group = call.array(1)?.len() == groups && groups != channels;
    let counted = if per_group { groups } else { channels };
    let (scale, bias) = (expect_len("scale", call.array(1)?, counted)?, expect_len("bias", call.array(2)?, counted)?);
    for (place, value) in values.iter_mut().enumerate() {
        let channel = place / inner % channels;
        let part = if per_group { channel / (channels / groups) } else { channel };
        *value = *value * scale[part] + bias[part];
    }
    one(Array::from_floats(x.kind(), x.dims(), &values))
}

pub(crate) fn mean_variance(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.array(0)?;
    let rank = x.dims().len();
    let axes = call.ints("axes")?.unwrap_or(&[0, 2, 3]);
    let mut axes: Vec<usize> = axes.iter().map(|axis| axis_of(*axis, rank)).collect::<Result<_>>()?;
    axes.sort_unstable();
    axes.dedup();
    let order: Vec<usize> = (0..rank).filter(|axis| !axes.contains(axis)).chain(axes.iter().copied()).collect();
    let run: usize = axes.iter().map(|axis| x.dims()[*axis]).product();
    let turned = super::index::transpose(x, &order)?;
    let mut values = turned.to_floats()?;
    for row in values.chunks_exact_mut(run.max(1)) {
        let mean = row.iter().sum::<f64>() / run as f64;
        let variance = row.iter().map(|value| value * value).sum::<f64>() / run as f64 - mean * mean;
        row.iter_mut().for_each(|value| *value = (*value - mean) / (variance.max(0.0).sqrt() + 1e-9));
    }
    let mut back = vec![0; rank];
    order.iter().enumerate().for_each(|(place, axis)| back[*axis] = place);
    one(Array::from_floats(x.kind(), turned.dims(), &values).and_then(|array| super::index::transpose(&array, &back)))
}

pub(crate) fn lp(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.array(0)?;
    let (outer, len, inner) = around(x.dims(), axis_of(call.int("axis", -1)?, x.dims().len())?);
    let p = call.int("p", 2)?;
    if !(1..=2).contains(&p) {
        return Err(Error::invalid("p", "1 or 2", p));
    }
    let mut values = x.to_floats()?;
    let lines = if values.is_empty() { 0 } else { outer * inner };
    for line in 0..lines {
        let at = |row: usize| (line / inner * len + row) * inner + line % inner;
        let norm: f64 = match p {
            1 => (0..len).map(|row| values[at(row)].abs()).sum(),
            _ => (0..len).map(|row| values[at(row)].powi(2)).sum::<f64>().sqrt(),
        };
        (0..len).for_each(|row| values[at(row)] = if norm == 0.0 { 0.0 } else { values[at(row)] / norm });
    }
    one(Array::from_floats(x.kind(), x.dims(), &values))
}

/// `LRN`: divides each channel by a power of the scaled sum of its neighbours' squares.
pub(crate) fn local_response(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.array(0)?;
    let (alpha, beta, bias) = (call.float("alpha", 1e-4)?, call.float("beta", 0.75)?, call.float("bias", 1.0)?);
    let size = call.int("size", 1)?.max(1);
    if x.dims().len() < 2 {
        return Err(Error::invalid("LRN", "an image with channels", format!("{x:?}")));
    }
    if x.is_empty() {
        return one(Ok(x.clone()));
    }
    let (outer, channels, inner) = around(x.dims(), 1);
    work(&[x.len(), (size as usize).min(channels)])?;
    let values = x.to_floats()?;
    let mut scaled = vec![0.0; values.len()];
    let (before, after) = ((size - 1) / 2, size / 2);
    let mut sums = vec![0.0; inner];
    for image in 0..outer {
        for channel in 0..channels as i64 {
            sums.fill(0.0);
            for near in (channel - before).max(0)..=(channel + after).min(channels as i64 - 1) {
                let row = &values[(image * channels + near as usize) * inner..][..inner];
                sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value * value);
            }
            let start = (image * channels + channel as usize) * inner;
            for (place, sum) in sums.iter().enumerate() {
                scaled[start + place] = values[start + place] / (bias + alpha / size as f64 * sum).powf(beta);
            }
        }
    }
    one(Array::from_floats(x.kind(), x.dims(), &scaled))
}

/// `Dropout`, which is the identity outside of training.
pub(crate) fn dropout(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.array(0)?;
    let training = call.optional(2)?.is_some_and(|flag| flag.bytes().first() == Some(&1));
    let ratio = match call.optional(1)? {
        Some(ratio) => ratio.to_floats()?.first().copied().unwrap_or(0.5),
        None => call.float("ratio", 0.5)?,
    };
    if training && ratio != 0.0 {
        return Err(Error::unsupported("Dropout in training, which is random"));
    }
    let mut made = vec![x.clone().into()];
    if call.wants(1) {
        made.push(Array::from_bools(&vec![true; host_count(x.dims())?], x.dims())?.into());
    }
    Ok(made)
}
