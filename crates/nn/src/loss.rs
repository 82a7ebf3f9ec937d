//! Losses and metrics. Each is an f32 scalar: the mean over the batch.

use panoply_core::DType;
use panoply_core::graph::NodeId;
use panoply_core::op::compute::{Gather, Reduce, Reduction, Softmax};

use crate::error::{Error, Result};
use crate::net::Net;

/// The distance between a predicted and a wanted number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distance {
    /// The square of the difference.
    Squared,
    /// The absolute difference.
    Absolute,
    /// Quadratic up to this difference, and linear beyond it.
    Huber(f64),
}

/// The mean distance over all elements.
pub fn regression(net: &mut Net, predicted: NodeId, wanted: NodeId, distance: Distance) -> Result<NodeId> {
    let (predicted, wanted) = (net.wide(predicted)?, net.wide(wanted)?);
    let distances = net.map(&[predicted, wanted], |v| {
        let difference = v[0].clone() - v[1].clone();
        match distance {
            Distance::Squared => difference.clone() * difference,
            Distance::Absolute => difference.abs(),
            Distance::Huber(delta) => {
                let size = difference.clone().abs();
                let straight = (size.clone() - 0.5 * delta) * delta;
                size.le(delta).select(difference.clone() * difference * 0.5, straight)
            }
        }
    })?;
    mean(net, distances)
}

/// The cross entropy of `batch × classes` logits and u32 or i32 labels. The share `smoothing` of
/// each label is spread over all classes. Rows with a negative label do not count; if no row
/// counts, the loss is zero. A label that is not below the number of classes is an error of the
/// step.
pub fn cross_entropy(net: &mut Net, logits: NodeId, labels: NodeId, smoothing: f64) -> Result<NodeId> {
    net.layer("cross_entropy", |net| {
        let dims = net.dims(logits)?;
        if dims.len() != 2 || net.dims(labels)? != dims[..1] {
            return Err(Error::invalid("logits and labels", "batch × classes and batch", "other shapes"));
        }
        if !(0.0..=1.0).contains(&smoothing) {
            return Err(Error::invalid("smoothing", "0 to 1", smoothing));
        }
        let logits = net.wide(logits)?;
        let logs = net.op(&[logits], |t| Softmax::new(&t[0]).axis(1).log())?;
        let labels = net.reshape(labels, &[dims[0], 1.into()])?;
        let counts = counted(net, labels)?;
        let labels = match counts {
            Some(_) => net.map(&[labels], |v| v[0].clone().max(0))?,
            None => labels,
        };
        let own = net.op(&[logs, labels], |t| Gather::along(&t[0], &t[1], 1))?;
        let own = mean_of_counted(net, own, counts)?;
        if smoothing == 0.0 {
            return Ok(net.neg(own)?);
        }
        let all = net.op(&[logs], |t| Reduce::mean(&t[0]).axes(&[1]).keep_dims())?;
        let all = mean_of_counted(net, all, counts)?;
        Ok(net.map(&[own, all], |v| -(v[0].clone() * (1.0 - smoothing) + v[1].clone() * smoothing))?)
    })
}

/// One for each label that is not negative, else zero, in f32. `None` for unsigned labels, which
/// all count.
fn counted(net: &mut Net, labels: NodeId) -> Result<Option<NodeId>> {
    Ok(match net.type_of(labels)?.0 {
        DType::I32 => Some(net.map(&[labels], |v| v[0].clone().ge(0).cast(DType::F32))?),
        _ => None,
    })
}

/// The mean over the rows that count.
fn mean_of_counted(net: &mut Net, rows: NodeId, counts: Option<NodeId>) -> Result<NodeId> {
    let Some(counts) = counts else { return mean(net, rows) };
    let rows = net.map(&[rows, counts], |v| v[1].clone().select(v[0].clone(), 0.0))?;
    let axes: Vec<usize> = (0..net.dims(rows)?.len()).collect();
    let (sum, count) = (net.reduce(Reduction::Sum, rows, &axes)?, net.reduce(Reduction::Sum, counts, &axes)?);
    Ok(net.map(&[sum, count], |v| v[0].clone() / v[1].clone().max(1.0))?)
}

/// The binary cross entropy of logits and numbers between 0 and 1.
pub fn binary_cross_entropy(net: &mut Net, logits: NodeId, wanted: NodeId) -> Result<NodeId> {
    let (logits, wanted) = (net.wide(logits)?, net.wide(wanted)?);
    // max(x, 0) - x·y + log(1 + exp(-|x|)) cannot overflow. max(x, 0) is written as (x + |x|) / 2:
    // its derivative at 0 is one half, which is the sigmoid's value there.
    let each = net.map(&[logits, wanted], |v| {
        let size = v[0].clone().abs();
        let log = ((-size.clone()).exp() + 1.0).log();
        (v[0].clone() + size) * 0.5 - v[0].clone() * v[1].clone() + log
    })?;
    mean(net, each)
}

/// The Kullback-Leibler divergence of logits from probabilities, as the mean over the rows.
pub fn divergence(net: &mut Net, logits: NodeId, wanted: NodeId) -> Result<NodeId> {
    let rank = net.dims(logits)?.len();
    let (logits, wanted) = (net.wide(logits)?, net.wide(wanted)?);
    let logs = net.op(&[logits], |t| Softmax::new(&t[0]).log())?;
    let each = net.map(&[logs, wanted], |v| {
        let own = v[1].clone().max(1e-30).log() - v[0].clone();
        v[1].clone().gt(0.0).select(v[1].clone() * own, 0.0)
    })?;
    let rows = net.reduce(Reduction::Sum, each, &[rank - 1])?;
    mean(net, rows)
}

/// The share of rows whose largest logit is that of the label, among the rows whose label is not
/// negative.
pub fn accuracy(net: &mut Net, logits: NodeId, labels: NodeId) -> Result<NodeId> {
    let found = net.reduce(Reduction::ArgMax, logits, &[1])?;
    let counts = counted(net, labels)?;
    let labels = net.cast(labels, DType::U32)?;
    let right = net.map(&[found, labels], |v| v[0].clone().eq(v[1].clone()).cast(DType::F32))?;
    mean_of_counted(net, right, counts)
}

/// The mean of all elements.
pub fn mean(net: &mut Net, x: NodeId) -> Result<NodeId> {
    let axes: Vec<usize> = (0..net.dims(x)?.len()).collect();
    Ok(net.reduce(Reduction::Mean, x, &axes)?)
}
