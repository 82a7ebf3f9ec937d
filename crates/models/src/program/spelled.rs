//! Replaces functions that a file spells out node by node by the ops that they form. Layer norms
//! over the last axis then take one pass over a row, and products and convolutions apply
//! activations to their sums.
//!
//! * `(x - mean) / sqrt(mean((x - mean)²) + epsilon)` becomes `LayerNormalization`. Nodes that
//!   scale or shift its result stay, because devices fuse them with the op.
//! * `x · ½ · (1 + erf(x / √2))` becomes `Gelu`, `x · sigmoid(x)` becomes `Swish`, `x · clip(x + 3,
//!   0, 6) / 6` becomes `HardSwish`.

use std::collections::HashMap;
use std::f64::consts::SQRT_2;

use super::{Attribute, Node, ValueId};
use crate::array::Array;
use crate::error::Result;
use crate::ops::table;

/// The largest relative difference between a number in a file and the exact constant.
const OFF_MAX: f64 = 1e-6;

/// Replaces the last node of each such chain by one op, and removes nodes whose results are then
/// unused.
pub(super) fn replace(nodes: &mut Vec<Node>, constants: &[(ValueId, Array)], outputs: &[ValueId]) -> Result<()> {
    let chains = Chains {
        makers: nodes.iter().enumerate().filter_map(|(place, node)| Some(((*node.outputs.first()?)?, place))).collect(),
        constants: constants.iter().map(|(id, array)| (*id, array)).collect(),
        sources: sources(nodes),
        nodes,
    };
    let found: Vec<(usize, FunctionMatch)> =
        (0..nodes.len()).filter_map(|place| chains.function(place).map(|found| (place, found))).collect();
    for (place, found) in &found {
        let node = &mut nodes[*place];
        node.op = found.op.to_owned();
        node.version = table::newest_version("");
        node.kind = table::find("", &node.op, node.version)?;
        node.inputs = vec![Some(found.x)];
        node.attributes.clear();
        if let Some(epsilon) = found.epsilon {
            node.attributes.insert("axis".to_owned(), Attribute::Integer(-1));
            node.attributes.insert("epsilon".to_owned(), Attribute::Float(epsilon));
        }
    }
    if !found.is_empty() {
        remove_unread(nodes, outputs);
    }
    Ok(())
}

/// A function of one value.
struct FunctionMatch {
    op: &'static str,
    x: ValueId,
    /// The epsilon of a norm.
    epsilon: Option<f32>,
}

impl FunctionMatch {
    fn activation(op: &'static str, x: ValueId) -> FunctionMatch {
        FunctionMatch { op, x, epsilon: None }
    }
}

/// The lookup tables for finding chains.
struct Chains<'a> {
    nodes: &'a [Node],
    makers: HashMap<ValueId, usize>,
    constants: HashMap<ValueId, &'a Array>,
    /// For each output of an `Identity` chain, the value at its start.
    sources: HashMap<ValueId, ValueId>,
}

/// Takes one step per node even for long chains: nodes come after the nodes that they need.
fn sources(nodes: &[Node]) -> HashMap<ValueId, ValueId> {
    let mut sources = HashMap::new();
    for node in nodes.iter().filter(|node| node.op == "Identity") {
        if let ([Some(given)], [Some(made)]) = (&*node.inputs, &*node.outputs) {
            let source = sources.get(given).copied().unwrap_or(*given);
            sources.insert(*made, source);
        }
    }
    sources
}

impl Chains<'_> {
    /// The function that ends in this node.
    fn function(&self, place: usize) -> Option<FunctionMatch> {
        let node = self.nodes.get(place).filter(|node| node.outputs.len() == 1)?;
        let [Some(left), Some(right)] = *node.inputs else { return None };
        let (left, right) = (self.source(left), self.source(right));
        match &*node.op {
            "Div" => self.norm(left, right).or_else(|| self.hard_swish_of_quotient(left, right)),
            "Mul" => {
                let one_way = |x: ValueId, other: ValueId| self.swish(x, other).or_else(|| self.gelu(x, other));
                one_way(left, right).or_else(|| one_way(right, left))
            }
            _ => None,
        }
    }

    /// Matches `centred / deviation` as a norm.
    fn norm(&self, centred: ValueId, deviation: ValueId) -> Option<FunctionMatch> {
        let (x, mean) = self.operands(centred, "Sub")?;
        let (squares, epsilon) = self.with_number(self.operand(deviation, "Sqrt")?, "Add")?;
        let squares = self.mean(squares)?;
        let is_square = match self.operands(squares, "Pow") {
            Some((base, power)) => base == centred && self.number(power) == Some(2.0),
            None => self.operands(squares, "Mul") == Some((centred, centred)),
        };
        let fits = is_square && self.mean(mean) == Some(x) && epsilon.is_finite() && epsilon >= 0.0;
        fits.then_some(FunctionMatch { op: "LayerNormalization", x, epsilon: Some(epsilon as f32) })
    }

    /// Matches `x · other`, where `other` is the sigmoid or hard sigmoid of `x`.
    fn swish(&self, x: ValueId, other: ValueId) -> Option<FunctionMatch> {
        if self.operand(other, "Sigmoid") == Some(x) {
            return Some(FunctionMatch::activation("Swish", x));
        }
        if self.operand(other, "HardSigmoid") == Some(x) {
            let hard = self.maker(other, "HardSigmoid")?;
            let given = |name: &str, default: f64| match hard.attributes.get(name) {
                Some(Attribute::Float(number)) => Some(f64::from(*number)),
                other => other.is_none().then_some(default),
            };
            let fits = is_near(given("alpha", 0.2)?, 1.0 / 6.0) && is_near(given("beta", 0.5)?, 0.5);
            return fits.then(|| FunctionMatch::activation("HardSwish", x));
        }
        let (clipped, sixth) = self.with_divisor(other)?;
        (is_near(sixth, 6.0) && self.is_clipped(clipped, x)).then(|| FunctionMatch::activation("HardSwish", x))
    }

    /// Matches `product / divisor` as a hard swish.
    fn hard_swish_of_quotient(&self, product: ValueId, divisor: ValueId) -> Option<FunctionMatch> {
        let (left, right) = self.operands(product, "Mul").filter(|_| self.number(divisor) == Some(6.0))?;
        let (_, x) = [(right, left), (left, right)].into_iter().find(|(clipped, x)| self.is_clipped(*clipped, *x))?;
        Some(FunctionMatch::activation("HardSwish", x))
    }

    /// Whether a value is `clip(x + 3, 0, 6)`.
    fn is_clipped(&self, clipped: ValueId, x: ValueId) -> bool {
        let Some(clip) = self.maker(clipped, "Clip") else { return false };
        let limit =
            |place: usize, name: &str| match (clip.inputs.get(place).copied().flatten(), clip.attributes.get(name)) {
                (Some(given), _) => self.number(self.source(given)),
                (None, Some(Attribute::Float(limit))) => Some(f64::from(*limit)),
                _ => None,
            };
        let is_within = limit(1, "min") == Some(0.0) && limit(2, "max") == Some(6.0);
        let sum = self.operand(clipped, "Clip").and_then(|sum| self.with_number(sum, "Add"));
        is_within && sum == Some((x, 3.0))
    }

    /// Matches the product of `x`, a half, and one plus erf: one operand is itself a product of
    /// two.
    fn gelu(&self, one: ValueId, pair: ValueId) -> Option<FunctionMatch> {
        let (two, three) = self.operands(pair, "Mul")?;
        let orders = [
            (one, two, three),
            (one, three, two),
            (two, one, three),
            (two, three, one),
            (three, one, two),
            (three, two, one),
        ];
        orders.into_iter().find_map(|(half, x, more)| {
            let (erf, added) = self.with_number(more, "Add").filter(|_| self.number(half) == Some(0.5))?;
            let (scaled, divisor) = self.with_divisor(self.operand(erf, "Erf")?)?;
            (scaled == x && added == 1.0 && is_near(divisor, SQRT_2)).then(|| FunctionMatch::activation("Gelu", x))
        })
    }

    /// The dividend and divisor of a quotient by a number. A factor counts as its reciprocal.
    fn with_divisor(&self, value: ValueId) -> Option<(ValueId, f64)> {
        match self.operands(value, "Div") {
            Some((dividend, divisor)) => Some((dividend, self.number(divisor)?)),
            None => self.with_number(value, "Mul").map(|(other, factor)| (other, 1.0 / factor)),
        }
    }

    /// The operands of the `op` node that makes a value, if exactly one of them is a number.
    fn with_number(&self, value: ValueId, op: &str) -> Option<(ValueId, f64)> {
        let (left, right) = self.operands(value, op)?;
        match (self.number(left), self.number(right)) {
            (None, Some(number)) => Some((left, number)),
            (Some(number), None) => Some((right, number)),
            _ => None,
        }
    }

    fn maker(&self, value: ValueId, op: &str) -> Option<&Node> {
        self.nodes.get(*self.makers.get(&value)?).filter(|node| node.op == op)
    }

    /// The value at the start of the `Identity` chain that ends in this one.
    fn source(&self, value: ValueId) -> ValueId {
        self.sources.get(&value).copied().unwrap_or(value)
    }

    fn operand(&self, value: ValueId, op: &str) -> Option<ValueId> {
        self.maker(value, op)?.inputs.first().copied()?.map(|value| self.source(value))
    }

    /// The two operands of the `op` node that makes a value.
    fn operands(&self, value: ValueId, op: &str) -> Option<(ValueId, ValueId)> {
        let [Some(left), Some(right)] = *self.maker(value, op)?.inputs else { return None };
        Some((self.source(left), self.source(right)))
    }

    /// The value whose mean over the last axis this is. The axis has to be kept.
    fn mean(&self, value: ValueId) -> Option<ValueId> {
        let node = self.maker(value, "ReduceMean")?;
        let keeps = match node.attributes.get("keepdims") {
            Some(Attribute::Integer(keeps)) => *keeps == 1,
            other => other.is_none(),
        };
        let axes = match (node.attributes.get("axes"), node.inputs.get(1).copied().flatten()) {
            (Some(Attribute::Integers(axes)), None) => axes.clone(),
            (None, Some(axes)) => self.constants.get(&self.source(axes))?.to_i64s().ok()?,
            _ => return None,
        };
        node.inputs.first().copied()?.filter(|_| keeps && axes == [-1]).map(|value| self.source(value))
    }

    /// A constant with one element and at most one dimension, so that it does not raise the rank of
    /// the result.
    fn number(&self, value: ValueId) -> Option<f64> {
        let array = self.constants.get(&value).filter(|array| array.kind().is_float())?;
        let is_one = array.dims().is_empty() || array.dims() == [1];
        array.to_floats().ok().filter(|_| is_one)?.first().copied()
    }
}

fn is_near(number: f64, wanted: f64) -> bool {
    (number - wanted).abs() <= OFF_MAX * wanted
}

/// Removes nodes of chains whose results are unused. Nodes come after the nodes that they need.
fn remove_unread(nodes: &mut Vec<Node>, outputs: &[ValueId]) {
    const PARTS: [&str; 12] =
        ["Sub", "Sqrt", "Add", "ReduceMean", "Pow", "Mul", "Div", "Erf", "Sigmoid", "HardSigmoid", "Clip", "Identity"];
    let mut uses: HashMap<ValueId, usize> = HashMap::new();
    for value in nodes.iter().flat_map(Node::needs).chain(outputs.iter().copied()) {
        *uses.entry(value).or_default() += 1;
    }
    let mut kept = vec![true; nodes.len()];
    for (node, kept) in nodes.iter().zip(&mut kept).rev() {
        let is_read = |output: &ValueId| uses.get(output).is_some_and(|count| *count > 0);
        *kept = !PARTS.contains(&&*node.op) || node.outputs.iter().flatten().any(is_read);
        if !*kept {
            for value in node.needs() {
                uses.entry(value).and_modify(|count| *count -= 1);
            }
        }
    }
    let mut kept = kept.into_iter();
    nodes.retain(|_| kept.next().unwrap_or(true));
}
