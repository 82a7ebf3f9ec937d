//! Convolutions over any number of dimensions, also transposed convolutions and convolutions of
//! bytes.

use super::call::{Call, one, size_of_int};
use super::windows::Windows;
use crate::array::{Array, count_of};
use crate::bounds::{work, zeros};
use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::value::Value;

/// The sizes of images and weights: batch, channels, filters, groups and windows.
struct ConvSizes {
    batch: usize,
    channels: usize,
    filters: usize,
    groups: usize,
    windows: Windows,
}

fn form(call: &Call<'_>, x: &[usize], w: &[usize]) -> Result<ConvSizes> {
    let groups = size_of_int(call.int("group", 1)?)?;
    let ([batch, channels, space @ ..], [filters, per_group, kernel @ ..]) = (x, w) else {
        return Err(Error::invalid(call.op().to_owned(), "images and weights", format!("{x:?}")));
    };
    let fits = groups > 0
        && channels.is_multiple_of(groups)
        && filters.is_multiple_of(groups)
        && *per_group * groups == *channels;
    if !fits || space.len() != kernel.len() || space.is_empty() {
        return Err(Error::invalid("weights", format!("those for {x:?} in {groups} groups"), format!("{w:?}")));
    }
    let windows = Windows::of_conv(call, space, kernel)?;
    Ok(ConvSizes { batch: *batch, channels: *channels, filters: *filters, groups, windows })
}

/// The sums of a convolution. Sums of integers are exact below 2^53.
fn convolve(form: &ConvSizes, x: &[f64], w: &[f64]) -> Result<(Vec<usize>, Vec<f64>)> {
    let ConvSizes { batch, channels, filters, groups, windows } = form;
    let (space, taps): (usize, usize) = (windows.input.iter().product(), windows.kernel.iter().product());
    let mut dims = vec![*batch, *filters];
    dims.extend(&windows.output);
    let (per_channel, per_filter) = (channels / groups, filters / groups);
    let outputs: usize = windows.output.iter().product();
    work(&[count_of(&dims)?, per_channel, taps])?;
    let mut sums = zeros(&dims)?;
    let (mut reached, mut missed) = (Vec::new(), Vec::new());
    // Padding consists of zeros, which are multiplied too: this matters if a weight is infinite or
    // NaN.
    let is_finite = w.iter().all(|weight| weight.is_finite());
    for (place, index) in windows.outputs().enumerate() {
        reached.clear();
        windows.taps(&index, &mut |tap, at| reached.push((tap, at)));
        missed.clear();
        if !is_finite {
            missed.extend((0..taps).filter(|tap| reached.iter().all(|(other, _)| other != tap)));
        }
        for image in 0..*batch {
            for filter in 0..*filters {
                let first = filter / per_filter * per_channel;
                let mut sum = 0.0;
                for channel in 0..per_channel {
                    let (values, factors) = (
                        &x[(image * channels + first + channel) * space..],
                        &w[(filter * per_channel + channel) * taps..],
                    );
                    sum += reached.iter().map(|(tap, at)| values[*at] * factors[*tap]).sum::<f64>();
                    sum += missed.iter().map(|tap: &usize| 0.0 * factors[*tap]).sum::<f64>();
                }
                sums[(image * filters + filter) * outputs + place] = sum;
            }
        }
    }
    Ok((dims, sums))
}

fn add_bias(dims: &[usize], sums: &mut [f64], bias: &[f64]) -> Result<()> {
    if bias.len() != dims[1] {
        return Err(Error::invalid("bias", format!("{} elements", dims[1]), bias.len()));
    }
    let space: usize = dims[2..].iter().product();
    if space > 0 {
        for (place, run) in sums.chunks_exact_mut(space).enumerate() {
            run.iter_mut().for_each(|sum| *sum += bias[place % bias.len()]);
        }
    }
    Ok(())
}

pub(crate) fn conv(call: &Call<'_>) -> Result<Vec<Value>> {
    let (x, w) = (call.array(0)?, call.array(1)?);
    let form = form(call, x.dims(), w.dims())?;
    let (dims, mut sums) = convolve(&form, &x.to_floats()?, &w.to_floats()?)?;
    if let Some(bias) = call.optional(2)? {
        add_bias(&dims, &mut sums, &bias.to_floats()?)?;
    }
    one(Array::from_floats(x.kind(), dims, &sums))
}

/// Numbers minus their zero point, which is one number or one for each filter.
fn centred(array: &Array, zero: Option<&Array>) -> Result<Vec<f64>> {
    let zeros = zero.map(Array::to_floats).transpose()?.unwrap_or_else(|| vec![0.0]);
    let rows = array.dims().first().copied().unwrap_or(1).max(1);
    let run = (array.len() / rows).max(1);
    if zeros.len() != 1 && zeros.len() != rows {
        return Err(Error::invalid("a zero point", format!("1 or {rows} numbers"), zeros.len()));
    }
    let zero = |place: usize| if zeros.len() == 1 { zeros[0] } else { zeros[place / run] };
    Ok(array.to_floats()?.into_iter().enumerate().map(|(place, value)| value - zero(place)).collect())
}

pub(crate) fn conv_integer(call: &Call<'_>) -> Result<Vec<Value>> {
    let (x, w) = (call.array(0)?, call.array(1)?);
    let form = form(call, x.dims(), w.dims())?;
    let x_zero = call.optional(2)?;
    if x_zero.is_some_and(|zero| zero.len() != 1) {
        return Err(Error::unsupported("a zero point for each channel"));
    }
    let (dims, sums) = convolve(&form, &centred(x, x_zero)?, &centred(w, call.optional(3)?)?)?;
    one(Array::from_integers(ElementType::I32, dims, &sums.iter().map(|sum| *sum as i128).collect::<Vec<_>>()))
}

pub(crate) fn qlinear_conv(call: &Call<'_>) -> Result<Vec<Value>> {
    let (x, w, y_zero) = (call.array(0)?, call.array(3)?, call.array(7)?);
    let form = form(call, x.dims(), w.dims())?;
    let (dims, mut sums) = convolve(&form, &centred(x, Some(call.array(2)?))?, &centred(w, Some(call.array(5)?))?)?;
    if let Some(bias) = call.optional(8)? {
        add_bias(&dims, &mut sums, &bias.to_floats()?)?;
    }
    let first = |place: usize| match *call.array(place)?.to_floats()? {
        [number] => Ok(number),
        ref list => Err(Error::invalid(format!("operand {place}"), "one number", list.len())),
    };
    let (x_scale, y_scale, zero) = (first(1)?, first(6)?, first(7)?);
    let w_scales = call.array(4)?.to_floats()?;
    if w_scales.len() != 1 && w_scales.len() != dims[1] {
        return Err(Error::invalid("w_scale", format!("1 or {} numbers", dims[1]), w_scales.len()));
    }
    let space: usize = dims[2..].iter().product();
    let (low, high) = y_zero.kind().range();
    let values: Vec<i128> = sums
        .iter()
        .enumerate()
        .map(|(place, sum)| {
            let filter = place / space.max(1) % dims[1];
            let scale = w_scales[if w_scales.len() == 1 { 0 } else { filter }];
            let scaled = (sum * x_scale * scale / y_scale).round_ties_even() + zero;
            (scaled as i128).clamp(low, high)
        })
        .collect();
    one(Array::from_integers(y_zero.kind(), dims, &values))
}

/// The sizes of a transposed convolution: strides, dilations, the elements cut at the front, and
/// the output.
pub(crate) struct TransposedConvSizes {
    pub stride: Vec<usize>,
    pub dilation: Vec<usize>,
    pub cut: Vec<usize>,
    pub output: Vec<usize>,
}

pub(crate) fn transposed(call: &Call<'_>, space: &[usize], kernel: &[usize]) -> Result<TransposedConvSizes> {
    let rank = space.len();
    if kernel.len() != rank {
        return Err(Error::invalid("a kernel", format!("{rank} sizes"), kernel.len()));
    }
    let list = |name: &str, len: usize, default: i64| {
        let list = call.ints(name)?.map(<[i64]>::to_vec).unwrap_or_else(|| vec![default; len]);
        match list.len() == len {
            true => list.into_iter().map(size_of_int).collect::<Result<Vec<usize>>>(),
            false => Err(Error::invalid(name.to_owned(), format!("{len} numbers"), list.len())),
        }
    };
    let (stride, dilation) = (list("strides", rank, 1)?, list("dilations", rank, 1)?);
    if stride.iter().chain(&dilation).any(|step| *step == 0) {
        return Err(Error::invalid("strides and dilations", "at least 1", 0));
    }
    let (pads, added) = (list("pads", 2 * rank, 0)?, list("output_padding", rank, 0)?);
    let wanted = call
        .ints("output_shape")?
        .map(|list| list.iter().map(|size| size_of_int(*size)).collect::<Result<Vec<_>>>())
        .transpose()?;
    let auto = call.text("auto_pad", "NOTSET")?;
    let (mut cut, mut output) = (Vec::new(), Vec::new());
    for axis in 0..rank {
        let span = kernel[axis].saturating_sub(1) * dilation[axis] + 1;
        let whole = stride[axis] * space[axis].saturating_sub(1) + added[axis] + span;
        let same = matches!(auto, "SAME_UPPER" | "SAME_LOWER");
        let size = match &wanted {
            Some(wanted) => wanted.get(wanted.len().saturating_sub(rank) + axis).copied(),
            None if same => Some(space[axis] * stride[axis]),
            None => None,
        };
        match size {
            Some(size) => {
                let total = whole.saturating_sub(size);
                cut.push(if auto == "SAME_UPPER" { total / 2 } else { total - total / 2 });
                output.push(size);
            }
            None => {
                let total = pads[axis] + pads[axis + rank];
                let size = whole
                    .checked_sub(total)
                    .ok_or_else(|| Error::invalid("pads", format!("at most {whole}"), total))?;
                cut.push(pads[axis]);
                output.push(size);
            }
        }
    }
    Ok(TransposedConvSizes { stride, dilation, cut, output })
}

pub(crate) fn conv_transpose(call: &Call<'_>) -> Result<Vec<Value>> {
    let (x, w) = (call.array(0)?, call.array(1)?);
    let groups = size_of_int(call.int("group", 1)?)?;
    let ([batch, channels, space @ ..], [rows, per_group, kernel @ ..]) = (x.dims(), w.dims()) else {
        return Err(Error::invalid("ConvTranspose", "images and weights", format!("{x:?}")));
    };
    if groups == 0 || rows != channels || !channels.is_multiple_of(groups) || space.len() != kernel.len() {
        return Err(Error::invalid("weights", format!("those for {x:?} in {groups} groups"), format!("{w:?}")));
    }
    let sizes = transposed(call, space, kernel)?;
    let filters = per_group * groups;
    let mut dims = vec![*batch, filters];
    dims.extend(&sizes.output);
    let mut sums = zeros(&dims)?;
    let (xs, ws) = (x.to_floats()?, w.to_floats()?);
    let (inputs, taps, outputs): (usize, usize, usize) =
        (space.iter().product(), kernel.iter().product(), sizes.output.iter().product());
    work(&[inputs, taps, *batch, *channels, *per_group])?;
    // Without images, channels or filters every output is zero, so a large space need not be
    // walked.
    let places = if xs.is_empty() || ws.is_empty() { 0 } else { inputs };
    for place in 0..places {
        for tap in 0..taps {
            let Some(at) = landing(place, tap, space, kernel, &sizes) else { continue };
            for image in 0..*batch {
                for channel in 0..*channels {
                    let value = xs[(image * channels + channel) * inputs + place];
                    let first = channel / (channels / groups) * per_group;
                    for filter in 0..*per_group {
                        let factor = ws[(channel * per_group + filter) * taps + tap];
                        sums[(image * filters + first + filter) * outputs + at] += value * factor;
                    }
                }
            }
        }
    }
    if let Some(bias) = call.optional(2)? {
        add_bias(&dims, &mut sums, &bias.to_floats()?)?;
    }
    one(Array::from_floats(x.kind(), dims, &sums))
}

/// The output index to which a tap of an input pixel contributes. `None` outside the output.
fn landing(
    mut place: usize,
    mut tap: usize,
    space: &[usize],
    kernel: &[usize],
    sizes: &TransposedConvSizes,
) -> Option<usize> {
    let (mut at, mut stride) = (0, 1);
    for axis in (0..space.len()).rev() {
        let (here, offset) = (place % space[axis], tap % kernel[axis]);
        place /= space[axis];
        tap /= kernel[axis];
        let to = (here * sizes.stride[axis] + offset * sizes.dilation[axis]).checked_sub(sizes.cut[axis])?;
        if to >= sizes.output[axis] {
            return None;
        }
        at += to * stride;
        stride *= sizes.output[axis];
    }
    Some(at)
}

pub(crate) fn col2im(call: &Call<'_>) -> Result<Vec<Value>> {
    let (x, image, block) = (call.array(0)?, call.array(1)?.to_i64s()?, call.array(2)?.to_i64s()?);
    let sizes = |list: Vec<i64>| list.into_iter().map(size_of_int).collect::<Result<Vec<_>>>();
    let (image, block) = (sizes(image)?, sizes(block)?);
    let windows = Windows::of_conv(call, &image, &block)?;
    work(&[block.iter().product(), windows.output.iter().product(), x.dims().first().copied().unwrap_or(1)])?;
    let (taps, count): (usize, usize) = (block.iter().product(), windows.output.iter().product());
    let [batch, rows, columns] = *x.dims() else {
        return Err(Error::invalid("Col2Im", "three dimensions", format!("{x:?}")));
    };
    if taps == 0 || !rows.is_multiple_of(taps) || columns != count {
        return Err(Error::invalid("Col2Im", format!("{count} columns of blocks of {taps}"), format!("{x:?}")));
    }
    let (channels, space) = (rows / taps, image.iter().product::<usize>());
    let mut dims = vec![batch, channels];
    dims.extend(&image);
    let (values, mut sums) = (x.to_floats()?, zeros(&dims)?);
    for (place, index) in windows.outputs().enumerate() {
        windows.taps(&index, &mut |tap, at| {
            for row in 0..batch * channels {
                sums[row * space + at] += values[(row * taps + tap) * columns + place];
            }
        });
    }
    one(Array::from_floats(x.kind(), dims, &sums))
}
