//! The ops in texts: from a name, operands and arguments to a node, and back to the arguments.

use std::collections::BTreeMap;

use panoply_core::expr::{BinaryOp, TernaryOp, UnaryOp};
use panoply_core::graph::{GraphBuilder, NodeId};
use panoply_core::op::compute::{
    Activation, Attention, ComputeOp, Conv2d, ConvOptions, LayerNorm, MatMul, Pool2d, PoolKind, Precision, Reduce,
    Reduction, Transpose,
};
use panoply_core::{DType, Op, Result};

use super::fields::{Field, Words};
use super::lexer::{NumberToken, clipped};

/// The arguments of an op, by name: numbers, lists of numbers, or words.
#[derive(Debug, Default)]
pub(super) struct Arguments(pub(super) BTreeMap<String, Argument>);

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Argument {
    Number(NumberToken),
    List(Vec<NumberToken>),
    Word(String),
}

impl Arguments {
    /// Takes a number.
    pub(super) fn number(&mut self, name: &str) -> Result<Option<f64>, String> {
        Ok(self.numeral(name)?.map(NumberToken::real))
    }

    fn numeral(&mut self, name: &str) -> Result<Option<NumberToken>, String> {
        match self.0.remove(name) {
            None => Ok(None),
            Some(Argument::Number(number)) => Ok(Some(number)),
            Some(_) => Err(format!("expected a number for `{name}`")),
        }
    }

    pub(super) fn size(&mut self, name: &str) -> Result<Option<usize>, String> {
        self.numeral(name)?.map(|number| whole(name, number)).transpose()
    }

    pub(super) fn sizes<const N: usize>(&mut self, name: &str) -> Result<Option<[usize; N]>, String> {
        let Some(sizes) = self.list(name)? else { return Ok(None) };
        let count = sizes.len();
        sizes.try_into().map(Some).map_err(|_| format!("expected {N} numbers for `{name}`, got {count}"))
    }

    pub(super) fn list(&mut self, name: &str) -> Result<Option<Vec<usize>>, String> {
        let Some(numbers) = self.numerals(name)? else { return Ok(None) };
        numbers.into_iter().map(|number| whole(name, number)).collect::<Result<_, _>>().map(Some)
    }

    pub(super) fn numbers(&mut self, name: &str) -> Result<Option<Vec<f64>>, String> {
        Ok(self.numerals(name)?.map(|numbers| numbers.into_iter().map(NumberToken::real).collect()))
    }

    fn numerals(&mut self, name: &str) -> Result<Option<Vec<NumberToken>>, String> {
        match self.0.remove(name) {
            None => Ok(None),
            Some(Argument::List(numbers)) => Ok(Some(numbers)),
            Some(_) => Err(format!("expected numbers in brackets for `{name}`")),
        }
    }

    /// Bits: an integer, or a hexadecimal number such as `0x1f`.
    pub(super) fn bits(&mut self, name: &str) -> Result<Option<u64>, String> {
        let Some(Argument::Word(_)) = self.0.get(name) else { return Ok(self.size(name)?.map(|bits| bits as u64)) };
        let word = self.word(name)?.unwrap_or_default();
        let bits = word.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
        let expected = || format!("expected a number such as 0x1f for `{name}`, got `{}`", clipped(&word));
        bits.map(Some).ok_or_else(expected)
    }

    pub(super) fn word(&mut self, name: &str) -> Result<Option<String>, String> {
        match self.0.remove(name) {
            None => Ok(None),
            Some(Argument::Word(word)) => Ok(Some(word)),
            Some(_) => Err(format!("expected a word for `{name}`")),
        }
    }

    pub(super) fn flag(&mut self, name: &str) -> Result<bool, String> {
        match self.number(name)? {
            None | Some(0.0) => Ok(false),
            Some(1.0) => Ok(true),
            Some(number) => Err(format!("expected 0 or 1 for `{name}`, got {number}")),
        }
    }
}

/// A non-negative integer.
fn whole(name: &str, number: NumberToken) -> Result<usize, String> {
    let whole = number.whole().and_then(|whole| usize::try_from(whole).ok());
    whole.ok_or_else(|| format!("expected a whole number for `{name}`, got {}", number.real()))
}

/// Adds the op of this name, or returns an error text. Unknown arguments are left.
pub(super) fn build(
    g: &mut GraphBuilder,
    name: &str,
    operands: &[NodeId],
    arguments: &mut Arguments,
) -> Result<NodeId, String> {
    let of = |count: usize| match operands.len() == count {
        true => Ok(()),
        false => Err(format!("{name} has {count} operands, got {}", operands.len())),
    };
    if let Some(op) = UnaryOp::ALL.iter().find(|op| op.name() == name) {
        of(1)?;
        return text(g.unary(*op, operands[0]));
    }
    if let Some(op) = BinaryOp::ALL.iter().find(|op| op.name() == name) {
        return match arguments.number("by")? {
            Some(number) => of(1).and_then(|()| text(g.with_number(*op, operands[0], number))),
            None => of(2).and_then(|()| text(g.binary(*op, operands[0], operands[1]))),
        };
    }
    if let Some(op) = TernaryOp::ALL.iter().find(|op| op.name() == name) {
        of(3)?;
        return text(g.ternary(*op, operands[0], operands[1], operands[2]));
    }
    match name {
        "cast" => {
            of(1)?;
            let dtype = arguments.word("to")?.as_deref().and_then(dtype_named);
            let dtype = dtype.ok_or_else(|| format!("expected `to=` an element type ({})", dtype_names()))?;
            text(g.cast(operands[0], dtype))
        }
        "permute" => {
            of(1)?;
            let order = arguments.list("order")?.ok_or("expected `order=[…]`")?;
            text(g.permute(operands[0], &order))
        }
        "slice" => {
            of(1)?;
            let mut size = |name: &str, otherwise: Option<usize>| {
                arguments.size(name)?.or(otherwise).ok_or_else(|| format!("expected `{name}=`"))
            };
            let (axis, start, end, step) =
                (size("axis", None)?, size("start", Some(0))?, size("end", None)?, size("step", Some(1))?);
            text(g.slice(operands[0], axis, start, end, step))
        }
        _ => build_larger(g, name, operands, arguments),
    }
}

fn build_larger(
    g: &mut GraphBuilder,
    name: &str,
    operands: &[NodeId],
    arguments: &mut Arguments,
) -> Result<NodeId, String> {
    let between = |least: usize, most: usize| match (least..=most).contains(&operands.len()) {
        true => Ok(()),
        false => Err(format!("{name} has {least} to {most} operands, got {}", operands.len())),
    };
    match name {
        "matmul" => {
            between(2, 4)?;
            matmul(g, operands, arguments)
        }
        "layernorm" => {
            between(1, 3)?;
            let (axes, epsilon) = (arguments.size("axes")?.unwrap_or(1), arguments.number("epsilon")?);
            let (is_rms, bias_only) = (arguments.flag("rms")?, arguments.flag("bias_only")?);
            if bias_only && operands.len() != 2 {
                return Err(format!("layernorm with `bias_only=1` has 2 operands, got {}", operands.len()));
            }
            text(g.op(operands, |t| {
                let op = LayerNorm::new(&t[0]).trailing_axes(axes).epsilon(epsilon.unwrap_or(LayerNorm::EPSILON));
                let op = if is_rms { op.rms() } else { op };
                if bias_only {
                    return op.bias(&t[1]);
                }
                let op = t.get(1).map_or(op.clone(), |weight| op.weight(weight));
                t.get(2).map_or(op.clone(), |bias| op.bias(bias))
            }))
        }
        "reduce" => {
            between(1, 1)?;
            reduction(g, operands, arguments)
        }
        "conv2d" => {
            between(2, 3)?;
            convolution(g, operands, arguments)
        }
        "pool2d" => {
            between(1, 1)?;
            pooling(g, operands, arguments)
        }
        "transpose" => {
            between(1, 1)?;
            let order = arguments.list("order")?;
            text(g.op(operands, |t| match &order {
                Some(order) => Transpose::with_order(&t[0], order),
                None => Transpose::new(&t[0]),
            }))
        }
        "attention" => {
            between(3, 4)?;
            attention(g, operands, arguments)
        }
        _ => Err(format!("there is no op `{}`; there are {}", clipped(name), op_names().join(", "))),
    }
}

fn matmul(g: &mut GraphBuilder, operands: &[NodeId], arguments: &mut Arguments) -> Result<NodeId, String> {
    let (turn_a, turn_b) = (arguments.flag("transpose_a")?, arguments.flag("transpose_b")?);
    let (alpha, beta) = (arguments.number("alpha")?, arguments.number("beta")?);
    let activation = activation(arguments)?;
    let precision = match arguments.word("precision")?.as_deref() {
        None | Some("full") => Precision::Full,
        Some("tf32") => Precision::Tf32,
        Some(other) => return Err(format!("expected `precision=` full or tf32, got `{}`", clipped(other))),
    };
    let has_bias = arguments.flag("bias")?;
    let wanted = 2 + usize::from(beta.is_some()) + usize::from(has_bias);
    if operands.len() != wanted {
        return Err(format!("matmul with these arguments has {wanted} operands, got {}", operands.len()));
    }
    text(g.op(operands, |t| {
        let op = MatMul { precision, ..MatMul::new(&t[0], &t[1]) };
        let op = op.activation(activation).alpha(alpha.unwrap_or(1.0) as f32);
        let op = if turn_a { op.transpose_a() } else { op };
        let op = if turn_b { op.transpose_b() } else { op };
        let op = if let Some(beta) = beta { op.beta(beta as f32, &t[2]) } else { op };
        if has_bias { op.bias(&t[t.len() - 1]) } else { op }
    }))
}

fn convolution(g: &mut GraphBuilder, operands: &[NodeId], arguments: &mut Arguments) -> Result<NodeId, String> {
    let otherwise = ConvOptions::default();
    let options = ConvOptions {
        stride: arguments.sizes("stride")?.unwrap_or(otherwise.stride),
        padding: arguments.sizes("padding")?.unwrap_or(otherwise.padding),
        dilation: arguments.sizes("dilation")?.unwrap_or(otherwise.dilation),
        groups: arguments.size("groups")?.unwrap_or(otherwise.groups),
    };
    let activation = activation(arguments)?;
    text(g.op(operands, |t| {
        let op = Conv2d::new(&t[0], &t[1]).options(options).activation(activation);
        t.get(2).map_or(op.clone(), |bias| op.bias(bias))
    }))
}

fn reduction(g: &mut GraphBuilder, operands: &[NodeId], arguments: &mut Arguments) -> Result<NodeId, String> {
    let kind = arguments.word("by")?.unwrap_or_default();
    let reduction = Reduction::ALL.into_iter().find(|reduction| reduction.name() == kind);
    let reduction = reduction.ok_or("expected `by=` sum, mean, max, min, argmax or argmin")?;
    let (axes, keeps) = (arguments.list("axes")?, arguments.flag("keep")?);
    text(g.op(operands, |t| {
        let op = Reduce::new(&t[0], reduction);
        let op = if let Some(axes) = &axes { op.axes(axes) } else { op };
        if keeps { op.keep_dims() } else { op }
    }))
}

fn pooling(g: &mut GraphBuilder, operands: &[NodeId], arguments: &mut Arguments) -> Result<NodeId, String> {
    let kernel = arguments.sizes("kernel")?.ok_or("expected `kernel=[height, width]`")?;
    let (stride, padding) = (arguments.sizes("stride")?, arguments.sizes("padding")?);
    let average = match arguments.word("by")?.as_deref() {
        None | Some("max") => false,
        Some("average") => true,
        Some(other) => return Err(format!("expected `by=` max or average, got `{}`", clipped(other))),
    };
    let counts = arguments.flag("count_padding")?;
    text(g.op(operands, |t| {
        let op = if average { Pool2d::average(&t[0], kernel) } else { Pool2d::max(&t[0], kernel) };
        op.stride(stride.unwrap_or(kernel)).padding(padding.unwrap_or([0; 4])).count_padding(counts)
    }))
}

fn attention(g: &mut GraphBuilder, operands: &[NodeId], arguments: &mut Arguments) -> Result<NodeId, String> {
    let (scale, is_causal) = (arguments.number("scale")?, arguments.flag("causal")?);
    text(g.op(operands, |t| {
        let op = Attention::new(&t[0], &t[1], &t[2]);
        let op = if let Some(scale) = scale { op.scale(scale as f32) } else { op };
        let op = if is_causal { op.causal() } else { op };
        t.get(3).map_or(op.clone(), |mask| op.mask(mask))
    }))
}

fn activation(arguments: &mut Arguments) -> Result<Activation, String> {
    let Some(word) = arguments.word("activation")? else { return Ok(Activation::None) };
    let known = ACTIVATIONS.iter().find(|(name, _)| *name == word).map(|(_, activation)| *activation);
    known.ok_or_else(|| format!("expected an activation (relu, gelu, silu, sigmoid or tanh), got `{word}`"))
}

const ACTIVATIONS: [(&str, Activation); 5] = [
    ("relu", Activation::Relu),
    ("gelu", Activation::Gelu),
    ("silu", Activation::Silu),
    ("sigmoid", Activation::Sigmoid),
    ("tanh", Activation::Tanh),
];

/// The arguments of an op as text, each preceded by a comma. `None` if the text format cannot
/// express the op.
pub(super) fn arguments_of(op: &Op) -> Option<String> {
    let mut words = Words::default();
    match op {
        Op::Compute(ComputeOp::LayerNorm(op)) => {
            op.axes.say("axes", &mut words);
            op.epsilon.say("epsilon", &mut words);
            op.is_rms.say("rms", &mut words);
            (op.weight.is_none() && op.bias.is_some()).say("bias_only", &mut words);
        }
        Op::Compute(ComputeOp::Reduce(op)) => {
            words.say("by", op.reduction.name());
            op.named_axes().say("axes", &mut words);
            op.keeps_dims.say("keep", &mut words);
        }
        Op::Compute(ComputeOp::MatMul(op)) => {
            op.transpose_a.say("transpose_a", &mut words);
            op.transpose_b.say("transpose_b", &mut words);
            (op.alpha != 1.0).then_some(op.alpha).say("alpha", &mut words);
            op.c.is_some().then_some(op.beta).say("beta", &mut words);
            op.bias.is_some().say("bias", &mut words);
            say_activation(op.activation, &mut words)?;
            match op.precision {
                Precision::Full => {}
                Precision::Tf32 => words.say("precision", "tf32"),
                _ => return None,
            }
        }
        Op::Compute(ComputeOp::Conv2d(op)) => {
            let ConvOptions { stride, padding, dilation, groups } = op.options;
            stride.say("stride", &mut words);
            padding.say("padding", &mut words);
            dilation.say("dilation", &mut words);
            groups.say("groups", &mut words);
            say_activation(op.activation, &mut words)?;
        }
        Op::Compute(ComputeOp::Pool2d(op)) => {
            op.kernel.say("kernel", &mut words);
            op.stride.say("stride", &mut words);
            op.padding.say("padding", &mut words);
            if let PoolKind::Average { count_padding } = op.kind {
                words.say("by", "average");
                count_padding.say("count_padding", &mut words);
            }
        }
        Op::Compute(ComputeOp::Transpose(op)) => op.order().say("order", &mut words),
        Op::Compute(ComputeOp::Attention(op)) => {
            op.scale.say("scale", &mut words);
            op.is_causal.say("causal", &mut words);
        }
        op => return super::table::arguments_of(op),
    }
    Some(words.0)
}

/// Writes an activation. `None` if the text format has no word for it.
fn say_activation(activation: Activation, words: &mut Words) -> Option<()> {
    if activation != Activation::None {
        words.say("activation", ACTIVATIONS.iter().find(|(_, known)| *known == activation)?.0);
    }
    Some(())
}

/// The ops that are not elementwise functions, as known to [`build`] and the parser.
const OTHERS: [&str; 14] = [
    "matmul",
    "conv2d",
    "pool2d",
    "layernorm",
    "attention",
    "reduce",
    "map",
    "row_map",
    "cast",
    "transpose",
    "permute",
    "reshape",
    "broadcast",
    "slice",
];

/// Every op name of the text format.
pub(super) fn op_names() -> Vec<&'static str> {
    let unary = UnaryOp::ALL.iter().map(|op| op.name());
    let binary = BinaryOp::ALL.iter().map(|op| op.name());
    let ternary = TernaryOp::ALL.iter().map(|op| op.name());
    OTHERS.into_iter().chain(super::table::names()).chain(["part"]).chain(unary).chain(binary).chain(ternary).collect()
}

/// Every element type, for messages.
pub(super) fn dtype_names() -> String {
    DType::ALL.map(|dtype| dtype.name()).join(", ")
}

pub(super) fn dtype_named(name: &str) -> Option<DType> {
    DType::ALL.into_iter().find(|dtype| dtype.name() == name)
}

fn text<T>(result: Result<T>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}
