//! The shapes of outputs before they are computed, for ops that graphs have as custom kernels.

use super::call::{Call, size_of_int};
use crate::error::{Error, Result};

/// The shape of each output that the node requests. `None` for other ops, or if shapes depend on
/// values. The call holds the constant operands; the others are known by their dimensions.
pub(crate) fn outputs(call: &Call<'_>, dims: &[Option<Vec<usize>>]) -> Result<Option<Vec<Vec<usize>>>> {
    let Some(Some(x)) = dims.first() else { return Ok(None) };
    let same = || Ok(Some(vec![x.clone()]));
    match call.op() {
        "LRN"
        | "Tan"
        | "Atan"
        | "Asin"
        | "Acos"
        | "Sinh"
        | "Cosh"
        | "Asinh"
        | "Acosh"
        | "Atanh"
        | "Hardmax"
        | "LpNormalization"
        | "GroupNormalization"
        | "Trilu"
        | "MeanVarianceNormalization" => same(),
        "Pad" => {
            // A computed operand is missing from the call.
            let value_changes = dims.get(2).is_some_and(Option::is_some) && call.optional(2)?.is_none();
            if value_changes { Ok(None) } else { padded(call, x).map(|dims| Some(vec![dims])) }
        }
        "Resize" | "Upsample" => Ok(Some(vec![super::resize::plan(call, x)?.output])),
        "ConvTranspose" => {
            let Some(Some(w)) = dims.get(1) else { return Ok(None) };
            let (2.., 2..) = (x.len(), w.len()) else { return Ok(None) };
            let filters = w[1].saturating_mul(size_of_int(call.int("group", 1)?)?);
            let sizes = super::conv::transposed(call, &x[2..], &w[2..])?;
            Ok(Some(vec![[&[x[0], filters], sizes.output.as_slice()].concat()]))
        }
        "LSTM" | "GRU" | "RNN" => recurrent(call, dims).map(Some),
        "Tile" => {
            let repeats = call.array(1)?.to_i64s()?;
            let tiled = x.iter().zip(repeats).map(|(dim, times)| Ok(dim.saturating_mul(size_of_int(times)?)));
            Ok(Some(vec![tiled.collect::<Result<_>>()?]))
        }
        _ => Ok(None),
    }
}

fn padded(call: &Call<'_>, x: &[usize]) -> Result<Vec<usize>> {
    let (before, after) = pads(call, x)?;
    super::make::padded_dims(x, &before, &after)
}

/// The elements that a `Pad` adds or removes before and after each axis.
pub(crate) fn pads(call: &Call<'_>, x: &[usize]) -> Result<(Vec<i64>, Vec<i64>)> {
    let pads = match call.optional_ints(1)? {
        Some(pads) => pads,
        None => call.ints("pads")?.map(<[i64]>::to_vec).unwrap_or_default(),
    };
    let axes = match call.optional_ints(3)? {
        Some(axes) => axes.iter().map(|axis| super::call::axis_of(*axis, x.len())).collect::<Result<Vec<_>>>()?,
        None => (0..x.len()).collect(),
    };
    if pads.len() != 2 * axes.len() {
        return Err(Error::invalid("pads", (2 * axes.len()).to_string(), pads.len()));
    }
    let (mut before, mut after) = (vec![0; x.len()], vec![0; x.len()]);
    for (place, axis) in axes.iter().enumerate() {
        (before[*axis], after[*axis]) = (pads[place], pads[place + axes.len()]);
    }
    Ok((before, after))
}

/// The shapes of all hidden states, the last ones and, for an LSTM, the last cells.
fn recurrent(call: &Call<'_>, dims: &[Option<Vec<usize>>]) -> Result<Vec<Vec<usize>>> {
    let (Some(Some(x)), Some(Some(r))) = (dims.first(), dims.get(2)) else {
        return Err(Error::invalid(call.op().to_owned(), "an input and weights", "none"));
    };
    let ([a, b, _], [directions, _, hidden]) = (&**x, &**r) else {
        return Err(Error::invalid(call.op().to_owned(), "three dimensions", format!("{x:?}")));
    };
    super::recurrent::check_hidden_size(call, *hidden)?;
    let batch_first = call.flag("layout", false)?;
    let (steps, batch) = if batch_first { (*b, *a) } else { (*a, *b) };
    let (d, h) = (*directions, *hidden);
    let (all, last) = match batch_first {
        true => (vec![batch, steps, d, h], vec![batch, d, h]),
        false => (vec![steps, d, batch, h], vec![d, batch, h]),
    };
    let mut outputs = vec![all, last.clone()];
    if call.op() == "LSTM" {
        outputs.push(last);
    }
    outputs.truncate(call.node.outputs.len().max(1));
    Ok(outputs)
}
