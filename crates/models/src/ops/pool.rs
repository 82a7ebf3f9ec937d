//! Pools over any number of dimensions.

use super::call::{Call, one, size_of_int};
use super::windows::Windows;
use crate::array::{Array, count_of, host_count};
use crate::bounds::{work, zeros};
use crate::error::{Error, Result};
use crate::value::Value;

fn space(x: &Array) -> Result<(usize, &[usize])> {
    match x.dims() {
        [batch, channels, space @ ..] => Ok((batch * channels, space)),
        _ => Err(Error::invalid("a pool", "images with channels", format!("{x:?}"))),
    }
}

/// `AveragePool`, `LpPool` and similar ops. `join` gets the elements that a window covers and the
/// size to divide by.
fn pool(call: &Call<'_>, join: &dyn Fn(&[f64], usize) -> f64) -> Result<Vec<Value>> {
    let x = call.array(0)?;
    let (planes, size) = space(x)?;
    let windows = Windows::of_pool(call, size)?;
    let values = x.to_floats()?;
    let (inputs, outputs): (usize, usize) = (size.iter().product(), windows.output.iter().product());
    let mut dims = x.dims()[..2].to_vec();
    dims.extend(&windows.output);
    work(&[count_of(&dims)?, windows.kernel.iter().product()])?;
    let mut results = zeros(&dims)?;
    let (mut reached, mut covered) = (Vec::new(), Vec::new());
    for (place, index) in windows.outputs().enumerate() {
        reached.clear();
        windows.taps(&index, &mut |_, at| reached.push(at));
        let counted = windows.counted(&index);
        for plane in 0..planes {
            covered.clear();
            covered.extend(reached.iter().map(|at| values[plane * inputs + at]));
            results[plane * outputs + place] = join(&covered, counted);
        }
    }
    one(Array::from_floats(x.kind(), dims, &results))
}

pub(crate) fn average(call: &Call<'_>) -> Result<Vec<Value>> {
    let counts_padding = call.flag("count_include_pad", false)?;
    pool(call, &|covered, counted| {
        let count = if counts_padding { counted } else { covered.len() };
        covered.iter().sum::<f64>() / count as f64
    })
}

pub(crate) fn lp(call: &Call<'_>) -> Result<Vec<Value>> {
    let p = call.int("p", 2)? as f64;
    pool(call, &|covered, _| covered.iter().map(|value| value.abs().powf(p)).sum::<f64>().powf(1.0 / p))
}

/// `GlobalAveragePool`, `GlobalMaxPool` and `GlobalLpPool`.
pub(crate) fn global(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.array(0)?;
    let (_, size) = space(x)?;
    let inputs: usize = size.iter().product();
    let p = call.int("p", 2)? as f64;
    let values = x.to_floats()?;
    let join = |plane: &[f64]| match call.op() {
        "GlobalAveragePool" => plane.iter().sum::<f64>() / plane.len() as f64,
        "GlobalMaxPool" => plane.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        _ => plane.iter().map(|value| value.abs().powf(p)).sum::<f64>().powf(1.0 / p),
    };
    let results: Vec<f64> = values.chunks_exact(inputs.max(1)).map(join).collect();
    let mut dims = x.dims()[..2].to_vec();
    dims.extend(vec![1; size.len()]);
    one(Array::from_floats(x.kind(), dims, &results))
}

/// `MaxPool`, with the indices of the largest elements.
pub(crate) fn max(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.array(0)?;
    let (planes, size) = space(x)?;
    let windows = Windows::of_pool(call, size)?;
    let values = x.to_floats()?;
    let (inputs, outputs): (usize, usize) = (size.iter().product(), windows.output.iter().product());
    let mut dims = x.dims()[..2].to_vec();
    dims.extend(&windows.output);
    work(&[count_of(&dims)?, windows.kernel.iter().product()])?;
    let (mut results, mut places) = (zeros(&dims)?, vec![0_i64; host_count(&dims)?]);
    let column_major = call.flag("storage_order", false)?;
    let mut reached = Vec::new();
    for (place, index) in windows.outputs().enumerate() {
        reached.clear();
        windows.taps(&index, &mut |_, at| reached.push(at));
        for plane in 0..planes {
            let mut best: Option<(usize, f64)> = None;
            for at in &reached {
                let value = values[plane * inputs + at];
                if best.is_none_or(|(_, known)| value > known || value.is_nan()) {
                    best = Some((*at, value));
                }
            }
            let (at, value) = best.unwrap_or((0, f64::NEG_INFINITY));
            results[plane * outputs + place] = value;
            let at = if column_major { column_major_place(at, size) } else { at };
            places[plane * outputs + place] = (plane * inputs + at) as i64;
        }
    }
    let values = match x.kind().is_float() {
        true => Array::from_floats(x.kind(), &dims, &results)?,
        false => {
            Array::from_integers(x.kind(), &dims, &results.iter().map(|value| *value as i128).collect::<Vec<_>>())?
        }
    };
    let mut made = vec![values.into()];
    if call.wants(1) {
        made.push(Array::from_i64s(places, &dims)?.into());
    }
    Ok(made)
}

fn column_major_place(mut at: usize, size: &[usize]) -> usize {
    let mut index = vec![0; size.len()];
    for axis in (0..size.len()).rev() {
        index[axis] = at % size[axis];
        at /= size[axis];
    }
    let (mut place, mut stride) = (0, 1);
    for (index, dim) in index.iter().zip(size) {
        place += index * stride;
        stride *= dim;
    }
    place
}

pub(crate) fn max_unpool(call: &Call<'_>) -> Result<Vec<Value>> {
    let (x, places) = (call.array(0)?, call.array(1)?.to_i64s()?);
    let (_, size) = space(x)?;
    let list = |name: &str, len: usize, default: i64| -> Result<Vec<usize>> {
        let list = call.ints(name)?.map(<[i64]>::to_vec).unwrap_or_else(|| vec![default; len]);
        match list.len() == len {
            true => list.into_iter().map(size_of_int).collect(),
            false => Err(Error::invalid(name.to_owned(), format!("{len} numbers"), list.len())),
        }
    };
    let rank = size.len();
    let (kernel, stride, pads) =
        (list("kernel_shape", rank, 1)?, list("strides", rank, 1)?, list("pads", 2 * rank, 0)?);
    let mut natural = x.dims()[..2].to_vec();
    for axis in 0..rank {
        let whole = (size[axis].max(1) - 1) * stride[axis] + kernel[axis];
        natural.push(whole.saturating_sub(pads[axis] + pads[axis + rank]));
    }
    let dims = match call.optional_ints(2)? {
        Some(dims) => dims.into_iter().map(size_of_int).collect::<Result<Vec<_>>>()?,
        None => natural.clone(),
    };
    if dims.len() != natural.len() || places.len() != x.len() {
        return Err(Error::invalid(
            "MaxUnpool",
            format!("{} sizes and a place for each element", natural.len()),
            dims.len(),
        ));
    }
    let inside = count_of(&natural)?;
    // Indices refer to the natural shape, which a given shape may exceed.
    let steps = super::index::strides(&natural);
    let out_steps = super::index::strides(&dims);
    let count = count_of(&dims)?;
    let mut results = zeros(&dims)?;
    for (value, place) in x.to_floats()?.into_iter().zip(places) {
        let place = usize::try_from(place).ok().filter(|place| *place < inside);
        let place = place.ok_or_else(|| Error::invalid("a place", format!("below {inside}"), "another"))?;
        let at: usize = (0..dims.len())
            .map(|axis| place / steps[axis] as usize % natural[axis].max(1) * out_steps[axis] as usize)
            .sum();
        *results.get_mut(at).ok_or_else(|| Error::invalid("a place", format!("below {count}"), place))? = value;
    }
    one(Array::from_floats(x.kind(), dims, &results))
}

/// `RoiAlign`: averages or maxima of sampled points inside regions.
pub(crate) fn roi_align(call: &Call<'_>) -> Result<Vec<Value>> {
    let (x, rois, batches) = (call.array(0)?, call.array(1)?, call.array(2)?.to_i64s()?);
    let [batch, channels, height, width] = *x.dims() else {
        return Err(Error::invalid("RoiAlign", "images", format!("{x:?}")));
    };
    let (rows, columns) = (size_of_int(call.int("output_height", 1)?)?, size_of_int(call.int("output_width", 1)?)?);
    let (ratio, scale) = (size_of_int(call.int("sampling_ratio", 0)?)?, call.float("spatial_scale", 1.0)?);
    let half = if call.version() >= 16 {
        call.text("coordinate_transformation_mode", "half_pixel")? == "half_pixel"
    } else {
        false
    };
    let is_max = call.text("mode", "avg")? == "max";
    let (values, regions) = (x.to_floats()?, rois.to_floats()?);
    let count = batches.len();
    if rois.dims() != [count, 4] || (count > 0 && (height == 0 || width == 0)) {
        return Err(Error::invalid("RoiAlign", format!("{count} regions of images with pixels"), format!("{rois:?}")));
    }
    let places = host_count(&[count, channels, rows, columns])?;
    let mut results = Vec::with_capacity(places);
    for (region, image) in batches.iter().enumerate() {
        let image = usize::try_from(*image).ok().filter(|image| *image < batch);
        let image =
            image.ok_or_else(|| Error::invalid("batch_indices", format!("below {batch}"), format!("{batches:?}")))?;
        let edge =
            |at: usize| regions.get(region * 4 + at).copied().unwrap_or(0.0) * scale - if half { 0.5 } else { 0.0 };
        let (mut w, mut h) = (edge(2) - edge(0), edge(3) - edge(1));
        if !half {
            (w, h) = (w.max(1.0), h.max(1.0));
        }
        let (bin_h, bin_w) = (h / rows as f64, w / columns as f64);
        let grid =
            |size: f64, bins: usize| if ratio > 0 { ratio } else { (size / bins as f64).ceil().max(0.0) as usize };
        let (grid_h, grid_w) = (grid(h, rows), grid(w, columns));
        work(&[places, grid_h, grid_w])?;
        host_count(&[grid_h, grid_w])?;
        for channel in 0..channels {
            let plane = &values[(image * channels + channel) * height * width..][..height * width];
            for row in 0..rows {
                for column in 0..columns {
                    let mut samples = Vec::with_capacity(grid_h * grid_w);
                    for iy in 0..grid_h {
                        for ix in 0..grid_w {
                            let y = edge(1) + row as f64 * bin_h + (iy as f64 + 0.5) * bin_h / grid_h as f64;
                            let x = edge(0) + column as f64 * bin_w + (ix as f64 + 0.5) * bin_w / grid_w as f64;
                            samples.push(roi_sample(plane, height, width, y, x, is_max));
                        }
                    }
                    results.push(match is_max {
                        true => samples.iter().copied().fold(f64::NEG_INFINITY, f64::max),
                        false => samples.iter().sum::<f64>() / samples.len().max(1) as f64,
                    });
                }
            }
        }
    }
    one(Array::from_floats(x.kind(), [count, channels, rows, columns], &results))
}

/// The weighted sum of the four pixels around a point, or the largest of them.
fn roi_sample(plane: &[f64], height: usize, width: usize, y: f64, x: f64, is_max: bool) -> f64 {
    if y < -1.0 || y > height as f64 || x < -1.0 || x > width as f64 {
        return 0.0;
    }
    let axis = |at: f64, len: usize| {
        let at = at.max(0.0);
        let low = (at as usize).min(len - 1);
        if low >= len - 1 { (len - 1, len - 1, 0.0) } else { (low, low + 1, at - low as f64) }
    };
    let ((y0, y1, ly), (x0, x1, lx)) = (axis(y, height), axis(x, width));
    let parts = [
        (1.0 - ly) * (1.0 - lx) * plane[y0 * width + x0],
        (1.0 - ly) * lx * plane[y0 * width + x1],
        ly * (1.0 - lx) * plane[y1 * width + x0],
        ly * lx * plane[y1 * width + x1],
    ];
    if is_max { parts.into_iter().fold(f64::NEG_INFINITY, f64::max) } else { parts.iter().sum() }
}
