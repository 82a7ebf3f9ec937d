//! Constant folding before a model runs. Normalizations by constants are folded into the preceding
//! convolutions: the factor of each channel into the filter's weights, the summand into its bias. A
//! value that a loop carries unchanged becomes a constant of the loop's body.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Attribute, Body, Node, OpKind, ValueId};
use crate::array::Array;
use crate::element::ElementType;
use crate::error::{Error, Result};

/// Folds each `BatchNormalization` with constant operands into the `Conv` that alone feeds it.
/// `fresh` returns the number of a new value of that many bytes, and fails if there is no room.
pub(super) fn normalizations(
    nodes: &mut Vec<Node>,
    constants: &mut Vec<(ValueId, Array)>,
    outputs: &[ValueId],
    fresh: &mut dyn FnMut(u64) -> Result<ValueId>,
) -> Result<()> {
    if !nodes.iter().any(|node| node.op == "BatchNormalization") {
        return Ok(());
    }
    let mut uses: HashMap<ValueId, usize> = HashMap::new();
    for value in nodes.iter().flat_map(Node::needs).chain(outputs.iter().copied()) {
        *uses.entry(value).or_default() += 1;
    }
    let places: HashMap<ValueId, usize> = constants.iter().enumerate().map(|(place, (id, _))| (*id, place)).collect();
    let makers: HashMap<ValueId, usize> =
        nodes.iter().enumerate().filter_map(|(place, node)| Some((node.outputs.first().copied()??, place))).collect();
    let mut folded = Vec::new();
    for place in 0..nodes.len() {
        let constant = |id: &Option<ValueId>| Some(&constants[*places.get(id.as_ref()?)?].1);
        let Some(change) = change_of(&nodes[place], constant)? else { continue };
        let Some(maker) = nodes[place].inputs[0].filter(|x| uses.get(x) == Some(&1)).and_then(|x| makers.get(&x))
        else {
            continue;
        };
        let Some([weights, bias]) = changed(&nodes[*maker], constant, &change)? else { continue };
        let ids = fresh(weights.size_bytes()).and_then(|weights| Ok([weights, fresh(bias.size_bytes())?]));
        let ids = match ids {
            Ok(ids) => ids,
            // Convolutions that share weights get a copy each. Without room for more copies, the
            // remaining ones are left unchanged.
            Err(Error::Limit { .. }) => break,
            Err(error) => return Err(error),
        };
        constants.extend([(ids[0], weights), (ids[1], bias)]);
        let result = nodes[place].outputs[0];
        let conv = &mut nodes[*maker];
        conv.inputs.truncate(1);
        conv.inputs.extend(ids.map(Some));
        conv.outputs[0] = result;
        folded.push(place);
    }
    let mut place = 0;
    nodes.retain(|_| {
        place += 1;
        folded.binary_search(&(place - 1)).is_err()
    });
    if !folded.is_empty() {
        let mut used: Vec<ValueId> = nodes.iter().flat_map(Node::needs).chain(outputs.iter().copied()).collect();
        used.sort_unstable();
        // Removes weights that were replaced.
        constants.retain(|(id, _)| !uses.contains_key(id) || used.binary_search(id).is_ok());
    }
    Ok(())
}

/// Finds values that each `Loop` starts with as a constant and carries unchanged, and binds them as
/// constants of the body. Networks exported from some frameworks hold their weights this way. The
/// loop still carries the value; the body's nodes read the constant. Each constant and each node is
/// examined once.
pub(super) fn carried_constants(
    nodes: &mut [Node],
    constants: &[(ValueId, Array)],
    fresh: &mut dyn FnMut() -> Result<ValueId>,
) -> Result<()> {
    if !nodes.iter().any(|node| matches!(node.kind, OpKind::Loop)) {
        return Ok(());
    }
    let known: HashMap<ValueId, &Array> = constants.iter().map(|(id, array)| (*id, array)).collect();
    for node in nodes.iter_mut().filter(|node| matches!(node.kind, OpKind::Loop)) {
        if let Some(Attribute::Body(body)) = node.attributes.get_mut("body") {
            carried_into(&node.inputs, &known, body, fresh)?;
        }
    }
    Ok(())
}

/// [`carried_constants`] for the body of one loop with these inputs.
fn carried_into(
    inputs: &[Option<ValueId>],
    known: &HashMap<ValueId, &Array>,
    body: &mut Arc<Body>,
    fresh: &mut dyn FnMut() -> Result<ValueId>,
) -> Result<()> {
    // A body with other owners, or whose inputs do not match those of the loop, is left unchanged.
    let Some(body) = Arc::get_mut(body).filter(|body| body.inputs.len() == inputs.len()) else { return Ok(()) };
    let (sources, mut replaced) = (sources_of(&body.nodes), HashMap::new());
    for (place, input) in inputs.iter().enumerate().skip(2) {
        let (own, Some(made)) = (body.inputs[place], body.outputs.get(place - 1)) else { continue };
        let Some(array) = input.as_ref().and_then(|input| known.get(input)) else { continue };
        if sources.get(made).unwrap_or(made) == &own {
            let id = fresh()?;
            replaced.insert(own, id);
            body.constants.push((id, (*array).clone()));
        }
    }
    for input in body.nodes.iter_mut().filter_map(Arc::get_mut).flat_map(|node| node.inputs.iter_mut().flatten()) {
        if let Some(id) = replaced.get(input) {
            *input = *id;
        }
    }
    Ok(())
}

/// For each output of an `Identity`, the value at the start of its chain of `Identity` nodes.
fn sources_of(nodes: &[Arc<Node>]) -> HashMap<ValueId, ValueId> {
    let mut sources = HashMap::new();
    // Nodes are sorted: each comes after the nodes that it needs.
    for node in nodes.iter().filter(|node| node.op == "Identity") {
        if let ([Some(source)], [Some(made)]) = (&*node.inputs, &*node.outputs) {
            let first = sources.get(source).copied().unwrap_or(*source);
            sources.insert(*made, first);
        }
    }
    sources
}

/// A factor and a summand for each channel.
struct Change {
    factors: Vec<f64>,
    summands: Vec<f64>,
}

/// The factors and summands of a normalization. `None` if they are not known constants.
fn change_of<'a>(node: &Node, constant: impl Fn(&Option<ValueId>) -> Option<&'a Array>) -> Result<Option<Change>> {
    let is_one = node.outputs.iter().skip(1).all(Option::is_none) && node.outputs.first().is_some_and(Option::is_some);
    let flag = |name: &str, value: i64| match node.attributes.get(name) {
        Some(Attribute::Integer(given)) => *given == value,
        other => other.is_none(),
    };
    let epsilon = match node.attributes.get("epsilon") {
        Some(Attribute::Float(epsilon)) => f64::from(*epsilon),
        None => 1e-5,
        Some(_) => return Ok(None),
    };
    // Before version 7, `is_test` says whether the statistics come from this batch.
    if node.op != "BatchNormalization" || !is_one || node.version < 7 || node.inputs.len() != 5 {
        return Ok(None);
    }
    if !flag("training_mode", 0) || !flag("spatial", 1) {
        return Ok(None);
    }
    let mut lists = Vec::new();
    for input in &node.inputs[1..] {
        let Some(list) = constant(input).filter(|list| list.kind() == ElementType::F32) else { return Ok(None) };
        lists.push(list.to_floats()?);
    }
    let [scale, bias, mean, variance] = &*lists else { return Ok(None) };
    if lists.iter().any(|list| list.len() != scale.len()) {
        return Ok(None);
    }
    let factors: Vec<f64> =
        scale.iter().zip(variance).map(|(scale, variance)| scale / (variance + epsilon).sqrt()).collect();
    let summands = bias.iter().zip(mean).zip(&factors).map(|((bias, mean), factor)| bias - mean * factor).collect();
    Ok(Some(Change { factors, summands }))
}

/// The weights and the bias of a convolution with the change folded in.
fn changed<'a>(
    node: &Node,
    constant: impl Fn(&Option<ValueId>) -> Option<&'a Array>,
    change: &Change,
) -> Result<Option<[Array; 2]>> {
    if node.op != "Conv" || node.inputs.len() < 2 {
        return Ok(None);
    }
    let Some(weights) = constant(&node.inputs[1]).filter(|weights| weights.kind() == ElementType::F32) else {
        return Ok(None);
    };
    let filters = change.factors.len();
    if weights.dims().first() != Some(&filters) || weights.is_empty() {
        return Ok(None);
    }
    let bias = match node.inputs.get(2).copied().flatten() {
        None => vec![0.0; filters],
        given => match constant(&given).filter(|bias| bias.dims() == [filters]) {
            Some(bias) => bias.to_floats()?,
            None => return Ok(None),
        },
    };
    let bias =
        bias.iter().zip(&change.factors).zip(&change.summands).map(|((bias, factor), summand)| bias * factor + summand);
    let bias: Vec<f64> = bias.collect();
    let mut values = weights.to_floats()?;
    let filter_len = values.len() / filters;
    for (filter, factor) in values.chunks_exact_mut(filter_len).zip(&change.factors) {
        filter.iter_mut().for_each(|weight| *weight *= factor);
    }
    // If a folded value is not finite in f32, the original product overflowed only for large
    // operands, while the folded one would overflow for all.
    let is_finite = |value: &f64| (*value as f32).is_finite();
    if !values.iter().chain(&bias).all(is_finite) {
        return Ok(None);
    }
    let kind = ElementType::F32;
    Ok(Some([Array::from_floats(kind, weights.dims(), &values)?, Array::from_floats(kind, [filters], &bias)?]))
}
