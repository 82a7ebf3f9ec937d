//! Losses. Some exporters leave them in a model.

use super::call::{Call, one};
use super::index::around;
use crate::array::Array;
use crate::error::{Error, Result};
use crate::value::Value;

/// `NegativeLogLikelihoodLoss` and `SoftmaxCrossEntropyLoss`.
pub(crate) fn loss(call: &Call<'_>) -> Result<Vec<Value>> {
    let (x, target) = (call.array(0)?, call.array(1)?.to_i64s()?);
    if x.dims().len() < 2 {
        return Err(Error::invalid("scores", "a class for each row", format!("{x:?}")));
    }
    let (outer, classes, inner) = around(x.dims(), 1);
    let mut scores = x.to_floats()?;
    let takes_logarithm = call.op() == "SoftmaxCrossEntropyLoss";
    if takes_logarithm {
        log_softmax(&mut scores, (outer, classes, inner));
    }
    let weights = call.optional(2)?.map(Array::to_floats).transpose()?;
    if target.len() != outer * inner || weights.as_ref().is_some_and(|weights| weights.len() != classes) {
        return Err(Error::invalid("targets", format!("{} of them", outer * inner), target.len()));
    }
    let ignored = match call.node.attributes.contains_key("ignore_index") {
        true => Some(call.int("ignore_index", 0)?),
        false => None,
    };
    let (mut losses, mut total) = (Vec::with_capacity(target.len()), 0.0);
    for (place, class) in target.iter().enumerate() {
        if Some(*class) == ignored {
            losses.push(0.0);
            continue;
        }
        let class = super::index::index_of(*class, classes)?;
        let weight = weights.as_ref().map_or(1.0, |weights| weights[class]);
        losses.push(-scores[(place / inner * classes + class) * inner + place % inner] * weight);
        total += weight;
    }
    let mut dims = x.dims().to_vec();
    dims.remove(1);
    let sum: f64 = losses.iter().sum();
    let made = match call.text("reduction", "mean")? {
        "none" => Array::from_floats(x.kind(), dims, &losses),
        "sum" => Array::from_floats(x.kind(), [], &[sum]),
        "mean" => Array::from_floats(x.kind(), [], &[sum / total]),
        other => return Err(Error::invalid("reduction", "none, sum or mean", other)),
    };
    let mut outputs = one(made)?;
    if takes_logarithm {
        outputs.push(Array::from_floats(x.kind(), x.dims(), &scores)?.into());
    }
    Ok(outputs)
}

fn log_softmax(scores: &mut [f64], (outer, classes, inner): (usize, usize, usize)) {
    for line in 0..outer * inner {
        let at = |class: usize| (line / inner * classes + class) * inner + line % inner;
        let largest = (0..classes).map(|class| scores[at(class)]).fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = (0..classes).map(|class| (scores[at(class)] - largest).exp()).sum();
        (0..classes).for_each(|class| scores[at(class)] -= largest + sum.ln());
    }
}
