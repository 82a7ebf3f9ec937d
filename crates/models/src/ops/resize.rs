//! `Resize` and `Upsample` along any axes. Each axis is a table of weights, and the axes are
//! resized one after the other.

use panoply_core::{bf16, f16};

use super::call::{Call, axis_of, one, size_of_int};
use super::index::around;
use crate::array::{Array, count_of};
use crate::bounds::{host_count, work, zeros};
use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::value::Value;

/// The sizes that a node requests: the length of each axis, its scale, and its region.
pub(crate) struct ResizeRequest {
    pub output: Vec<usize>,
    pub scales: Vec<f64>,
    regions: Vec<Region>,
}

/// The part of an axis that is resized, from 0 to 1, in the node's number type.
#[derive(Clone, Copy)]
struct Region {
    start: f64,
    end: f64,
    kind: ElementType,
}

impl Region {
    const WHOLE: Region = Region { start: 0.0, end: 1.0, kind: ElementType::F32 };

    fn is_whole(self) -> bool {
        (self.start, self.end) == (0.0, 1.0)
    }

    /// A number rounded to the region's type. The length and the start of the region are rounded as
    /// in the standard's reference answers: a position exactly between two elements there would be
    /// slightly off otherwise.
    fn rounded(self, value: f64) -> f64 {
        match self.kind {
            ElementType::F32 => f64::from(value as f32),
            ElementType::F16 => f64::from(f16::from_f64(value)),
            ElementType::BF16 => f64::from(bf16::from_f64(value)),
            _ => value,
        }
    }
}

/// The sizes that a node requests. Operands are only the scales in old versions; a region, scales
/// and sizes in new ones.
pub(crate) fn plan(call: &Call<'_>, dims: &[usize]) -> Result<ResizeRequest> {
    let old = call.op() == "Upsample" || call.version() < 11;
    let (scales_at, sizes_at) = if old { (1, usize::MAX) } else { (2, 3) };
    let rank = dims.len();
    let axes: Vec<usize> = match call.ints("axes")? {
        Some(axes) => axes.iter().map(|axis| axis_of(*axis, rank)).collect::<Result<_>>()?,
        None => (0..rank).collect(),
    };
    let mut regions = vec![Region::WHOLE; rank];
    if let Some(roi) = if old { None } else { call.optional(1)? }.filter(|roi| !roi.is_empty()) {
        let (kind, roi) = (roi.kind(), roi.to_floats()?);
        for (place, axis) in axes.iter().enumerate().filter(|_| roi.len() == 2 * axes.len()) {
            regions[*axis] = Region { start: roi[place], end: roi[place + axes.len()], kind };
        }
    }
    let (mut scales, mut output) = (vec![1.0; rank], dims.to_vec());
    let given = match call.optional(scales_at)? {
        Some(array) if !array.is_empty() => Some(array.to_floats()?),
        _ => call.floats("scales")?.map(|list| list.iter().map(|scale| f64::from(*scale)).collect()),
    };
    let sizes = call.optional(sizes_at)?.filter(|sizes| !sizes.is_empty());
    let wrong = |len: usize| Error::invalid("scales or sizes", format!("{} of them", axes.len()), len);
    match (sizes, given) {
        (Some(sizes), _) => {
            let sizes = sizes.to_i64s()?.into_iter().map(size_of_int).collect::<Result<Vec<_>>>()?;
            if sizes.len() != axes.len() {
                return Err(wrong(sizes.len()));
            }
            for (axis, size) in axes.iter().zip(&sizes) {
                (scales[*axis], output[*axis]) = (*size as f64 / dims[*axis] as f64, *size);
            }
            keep_aspect(call, dims, &axes, &mut scales, &mut output)?;
        }
        (None, Some(given)) if given.len() == axes.len() => {
            for (axis, scale) in axes.iter().zip(given) {
                if !(scale > 0.0 && scale.is_finite()) {
                    return Err(Error::invalid("a scale", "above 0", scale));
                }
                (scales[*axis], output[*axis]) = (scale, (scale * dims[*axis] as f64) as usize);
            }
        }
        (None, given) => return Err(wrong(given.map_or(0, |given| given.len()))),
    }
    count_of(&output)?;
    Ok(ResizeRequest { output, scales, regions })
}

fn keep_aspect(
    call: &Call<'_>,
    dims: &[usize],
    axes: &[usize],
    scales: &mut [f64],
    output: &mut [usize],
) -> Result<()> {
    let chosen = axes.iter().map(|axis| scales[*axis]);
    let scale = match call.text("keep_aspect_ratio_policy", "stretch")? {
        "stretch" => return Ok(()),
        "not_larger" => chosen.fold(f64::INFINITY, f64::min),
        "not_smaller" => chosen.fold(0.0, f64::max),
        other => return Err(Error::invalid("keep_aspect_ratio_policy", "stretch, not_larger or not_smaller", other)),
    };
    for axis in axes {
        scales[*axis] = scale;
        output[*axis] = (scale * dims[*axis] as f64 + 0.5) as usize;
    }
    Ok(())
}

/// The settings that determine the weights.
struct Mode<'a> {
    name: &'a str,
    nearest: &'a str,
    coordinates: &'a str,
    antialias: bool,
    exclude_outside: bool,
    cubic: f64,
}

/// The weights of each output index along an axis. `None` for indices outside of the region.
pub(crate) type Table = Vec<Option<Vec<(usize, f64)>>>;

impl<'a> Mode<'a> {
    fn of(call: &'a Call<'a>) -> Result<Mode<'a>> {
        let old = call.op() == "Upsample" || call.version() < 11;
        Ok(Mode {
            name: call.text("mode", "nearest")?,
            nearest: if old { "floor" } else { call.text("nearest_mode", "round_prefer_floor")? },
            coordinates: if old { "asymmetric" } else { call.text("coordinate_transformation_mode", "half_pixel")? },
            antialias: call.flag("antialias", false)?,
            exclude_outside: call.flag("exclude_outside", false)?,
            cubic: call.float("cubic_coeff_a", -0.75)?,
        })
    }
}

/// The sizes after a node, and the table of each axis. `None` for unchanged axes.
pub(crate) fn tables(call: &Call<'_>, dims: &[usize]) -> Result<(Vec<usize>, Vec<Option<Table>>)> {
    let (mode, plan) = (Mode::of(call)?, plan(call, dims)?);
    let tables = (0..dims.len()).map(|axis| table(&mode, &plan, axis, dims[axis])).collect::<Result<_>>()?;
    Ok((plan.output, tables))
}

/// The table of one axis of this length.
fn table(mode: &Mode<'_>, plan: &ResizeRequest, axis: usize, len: usize) -> Result<Option<Table>> {
    let (size, scale, region) = (plan.output[axis], plan.scales[axis], plan.regions[axis]);
    if size == len && scale == 1.0 && region.is_whole() {
        return Ok(None);
    }
    if len == 0 {
        return Err(Error::invalid("Resize", "an axis with elements", 0));
    }
    // The bound covers the weights of one output index: up to `4 / scale`, and a few more.
    host_count(&[size, ((4.0 / scale.min(1.0)) as usize).saturating_add(8)])?;
    (0..size).map(|at| weights(mode, at, len, size, scale, region)).collect::<Result<_>>().map(Some)
}

pub(crate) fn resize(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.array(0)?;
    let mode = Mode::of(call)?;
    let plan = plan(call, x.dims())?;
    let outside = call.float("extrapolation_value", 0.0)?;
    let (mut dims, mut values) = (x.dims().to_vec(), x.to_floats()?);
    let mut missing = Vec::new();
    for axis in 0..dims.len() {
        let (size, (outer, len, inner)) = (plan.output[axis], around(&dims, axis));
        let Some(table) = table(&mode, &plan, axis, len)? else { continue };
        work(&[outer, size, inner])?;
        let mut next = zeros(&[outer, size, inner])?;
        for (place, run) in next.chunks_exact_mut(inner.max(1)).enumerate() {
            for (source, weight) in table[place % size].iter().flatten() {
                let from = &values[(place / size * len + source) * inner..][..inner];
                run.iter_mut().zip(from).for_each(|(sum, value)| *sum += weight * value);
            }
        }
        missing.push((axis, table.iter().map(Option::is_none).collect::<Vec<_>>()));
        (dims[axis], values) = (size, next);
    }
    let steps = super::index::strides(&dims);
    for (axis, gone) in missing.iter().filter(|(_, gone)| gone.contains(&true)) {
        for (place, value) in values.iter_mut().enumerate() {
            if gone[place / steps[*axis] as usize % dims[*axis]] {
                *value = outside;
            }
        }
    }
    if x.kind().is_integer() {
        // Integers are truncated, as in a conversion. A value that differs from an integer only by
        // rounding errors of the weights becomes that integer.
        let whole = |value: f64| match value.round() {
            near if (value - near).abs() <= 1e-9 * near.abs().max(1.0) => near,
            _ => value.trunc(),
        };
        values.iter_mut().for_each(|value| *value = whole(*value));
    }
    one(Array::from_floats(x.kind(), dims, &values))
}

/// The source elements of one output index, each with its weight. `None` if the index lies outside
/// of the region.
fn weights(
    mode: &Mode<'_>,
    at: usize,
    len: usize,
    size: usize,
    scale: f64,
    region: Region,
) -> Result<Option<Vec<(usize, f64)>>> {
    let Some(x) = coordinate(mode.coordinates, at as f64, len as f64, size as f64, scale, region)? else {
        return Ok(None);
    };
    // The ratio is in (0, 1]: the pixel on the left is preferred.
    let ratio = if x.fract() == 0.0 { 1.0 } else { x - x.floor() };
    let mut coefficients = coefficients(mode, ratio, scale)?;
    let count = coefficients.len() as i64;
    // The nearest positions, the lower one first at equal distance, within the range in which edges
    // are repeated.
    let (low, high) = (-((count + 1) / 2), len as i64 + (count + 1) / 2);
    let mut places: Vec<i64> =
        ((x.floor() as i64 - count)..=(x.ceil() as i64 + count)).filter(|place| (low..high).contains(place)).collect();
    places.sort_by(|a, b| (x - *a as f64).abs().total_cmp(&(x - *b as f64).abs()).then(a.cmp(b)));
    places.truncate(count as usize);
    places.sort_unstable();
    if mode.exclude_outside {
        for (place, weight) in places.iter().zip(&mut coefficients) {
            if !(0..len as i64).contains(place) {
                *weight = 0.0;
            }
        }
        let sum: f64 = coefficients.iter().sum();
        coefficients.iter_mut().for_each(|weight| *weight /= sum);
    }
    let inside = |place: i64| place.clamp(0, len as i64 - 1) as usize;
    let pairs = places.into_iter().map(inside).zip(coefficients).filter(|(_, weight)| *weight != 0.0);
    Ok(Some(pairs.collect()))
}

fn coordinate(name: &str, at: f64, len: f64, size: f64, scale: f64, region: Region) -> Result<Option<f64>> {
    let width = scale * len;
    let half = (at + 0.5) / scale - 0.5;
    Ok(Some(match name {
        "half_pixel" => half,
        "pytorch_half_pixel" if width == 1.0 => -0.5,
        "pytorch_half_pixel" => half,
        "asymmetric" => at / scale,
        "align_corners" if width == 1.0 => 0.0,
        "align_corners" => at * (len - 1.0) / (width - 1.0),
        "half_pixel_symmetric" => len / 2.0 * (1.0 - size / width) + half,
        "tf_half_pixel_for_nn" => (at + 0.5) / scale,
        "tf_crop_and_resize" => {
            let extent = region.rounded(region.end - region.start);
            let x = match width == 1.0 {
                true => region.rounded(region.rounded(extent * (len - 1.0)) / 2.0),
                false => at * extent * (len - 1.0) / (width - 1.0),
            } + region.rounded(region.start * (len - 1.0));
            return Ok((0.0..=len - 1.0).contains(&x).then_some(x));
        }
        other => return Err(Error::unsupported(format!("the coordinates {other}"))),
    }))
}

fn coefficients(mode: &Mode<'_>, ratio: f64, scale: f64) -> Result<Vec<f64>> {
    let narrowed = scale.min(1.0);
    Ok(match (mode.name, mode.antialias) {
        ("nearest", _) => {
            let upper = match mode.nearest {
                _ if ratio == 1.0 => true,
                "round_prefer_floor" => ratio > 0.5,
                "round_prefer_ceil" => ratio >= 0.5,
                "floor" => false,
                "ceil" => true,
                other => return Err(Error::unsupported(format!("the nearest mode {other}"))),
            };
            if upper { vec![0.0, 1.0] } else { vec![1.0, 0.0] }
        }
        ("linear", false) => vec![1.0 - ratio, ratio],
        ("linear", true) => {
            let start = (-1.0 / narrowed).floor() as i64 + 1;
            let weight = |place: i64| (1.0 - ((place as f64 - ratio) * narrowed).abs()).clamp(0.0, 1.0);
            balanced((start..start + 2 - 2 * start).map(weight).collect())
        }
        ("cubic", false) => [ratio + 1.0, ratio, 1.0 - ratio, 2.0 - ratio].map(|x| cubic(mode.cubic, x)).to_vec(),
        ("cubic", true) => {
            let start = (-2.0 / narrowed).floor() as i64 + 1;
            balanced((start..2 - start).map(|place| cubic(mode.cubic, narrowed * (place as f64 - ratio))).collect())
        }
        (other, _) => return Err(Error::unsupported(format!("the mode {other}"))),
    })
}

fn balanced(weights: Vec<f64>) -> Vec<f64> {
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / sum).collect()
}

fn cubic(a: f64, x: f64) -> f64 {
    match x.abs() {
        x if x <= 1.0 => (a + 2.0) * x * x * x - (a + 3.0) * x * x + 1.0,
        x if x < 2.0 => a * x * x * x - 5.0 * a * x * x + 8.0 * a * x - 4.0 * a,
        _ => 0.0,
    }
}
