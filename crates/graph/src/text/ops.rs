//! The ops that text knows: from a name, operands and arguments to a node, and back to the arguments.

use std::collections::BTreeMap;

use panoply_core::expr::{BinaryOp, TernaryOp, UnaryOp};
use panoply_core::graph::{GraphBuilder, NodeId};
use panoply_core::op::compute::{
    Activation, Attention, ComputeOp, Conv2d, ConvOptions, Gather, LayerNorm, MatMul, Pool2d, PoolKind, Reduce,
    Reduction, Softmax, TopK, Transpose,
};
use panoply_core::{DType, Op, Result};

use super::lexer::clipped;

/// The arguments of an op, by name: numbers, lists of numbers, or words.
#[derive(Debug, Default)]
pub(super) struct Arguments(pub(super) BTreeMap<String, Argument>);

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Argument {
    Number(f64),
    Sizes(Vec<usize>),
    Word(String),
}

impl Arguments {
    /// Takes a number out.
    fn number(&mut self, name: &str) -> Result<Option<f64>, String> {
        match self.0.remove(name) {
            None => Ok(None),
            Some(Argument::Number(number)) => Ok(Some(number)),
            Some(_) => Err(format!("expected a number for `{name}`")),
        }
    }

    fn size(&mut self, name: &str) -> Result<Option<usize>, String> {
        match self.number(name)? {
            Some(number) if number >= 0.0 && number.fract() == 0.0 && number < 1e15 => Ok(Some(number as usize)),
            Some(number) => Err(format!("expected a whole number for `{name}`, got {number}")),
            None => Ok(None),
        }
    }

    fn sizes<const N: usize>(&mut self, name: &str) -> Result<Option<[usize; N]>, String> {
        match self.0.remove(name) {
            None => Ok(None),
            Some(Argument::Sizes(sizes)) => {
                let count = sizes.len();
                sizes.try_into().map(Some).map_err(|_| format!("expected {N} numbers for `{name}`, got {count}"))
            }
            Some(_) => Err(format!("expected {N} numbers in brackets for `{name}`")),
        }
    }

    fn list(&mut self, name: &str) -> Result<Option<Vec<usize>>, String> {
        match self.0.remove(name) {
            None => Ok(None),
            Some(Argument::Sizes(sizes)) => Ok(Some(sizes)),
            Some(_) => Err(format!("expected numbers in brackets for `{name}`")),
        }
    }

    fn word(&mut self, name: &str) -> Result<Option<String>, String> {
        match self.0.remove(name) {
            None => Ok(None),
            Some(Argument::Word(word)) => Ok(Some(word)),
            Some(_) => Err(format!("expected a word for `{name}`")),
        }
    }

    fn flag(&mut self, name: &str) -> Result<bool, String> {
        match self.number(name)? {
            None | Some(0.0) => Ok(false),
            Some(1.0) => Ok(true),
            Some(number) => Err(format!("expected 0 or 1 for `{name}`, got {number}")),
        }
    }
}

/// Adds the op of this name. Says what is wrong with it; arguments that it does not have are left.
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
        "softmax" => {
            of(1)?;
            let (axis, is_log) = (arguments.size("axis")?, arguments.flag("log")?);
            text(g.op(operands, |t| {
                let op = Softmax::new(&t[0]);
                let op = if let Some(axis) = axis { op.axis(axis) } else { op };
                if is_log { op.log() } else { op }
            }))
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
            let is_rms = arguments.flag("rms")?;
            text(g.op(operands, |t| {
                let op = LayerNorm::new(&t[0]).trailing_axes(axes).epsilon(epsilon.unwrap_or(LayerNorm::EPSILON));
                let op = if is_rms { op.rms() } else { op };
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
        "gather" => {
            between(2, 2)?;
            let (axis, along) = (arguments.size("axis")?.unwrap_or(0), arguments.flag("along")?);
            text(g.op(operands, |t| match along {
                true => Gather::along(&t[0], &t[1], axis),
                false => Gather::new(&t[0], &t[1], axis),
            }))
        }
        "topk" => {
            between(1, 1)?;
            let k = arguments.size("k")?.ok_or("expected `k=`")?;
            text(g.op(operands, |t| TopK::new(&t[0], k)))
        }
        _ => Err(format!("there is no op `{}`; there are {}", clipped(name), op_names().join(", "))),
    }
}

fn matmul(g: &mut GraphBuilder, operands: &[NodeId], arguments: &mut Arguments) -> Result<NodeId, String> {
    let (turn_a, turn_b) = (arguments.flag("transpose_a")?, arguments.flag("transpose_b")?);
    let (alpha, beta) = (arguments.number("alpha")?, arguments.number("beta")?);
    let activation = activation(arguments)?;
    let has_bias = arguments.flag("bias")?;
    let wanted = 2 + usize::from(beta.is_some()) + usize::from(has_bias);
    if operands.len() != wanted {
        return Err(format!("matmul with these arguments has {wanted} operands, got {}", operands.len()));
    }
    text(g.op(operands, |t| {
        let op = MatMul::new(&t[0], &t[1]).activation(activation).alpha(alpha.unwrap_or(1.0) as f32);
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

/// The arguments of an op as text, each with a comma before it. `None`: text has no words for it.
pub(super) fn arguments_of(op: &Op) -> Option<String> {
    let Op::Compute(op) = op else { return None };
    let mut text = String::new();
    let mut say = |name: &str, value: String| text.push_str(&format!(", {name}={value}"));
    let one = || "1".to_owned();
    match op {
        ComputeOp::Softmax(op) => {
            say("axis", op.axis.to_string());
            op.is_log.then(|| say("log", one()));
        }
        ComputeOp::LayerNorm(op) if op.weight.is_some() || op.bias.is_none() => {
            say("axes", op.axes.to_string());
            say("epsilon", op.epsilon.to_string());
            op.is_rms.then(|| say("rms", one()));
        }
        ComputeOp::Reduce(op) => {
            let reduced = op.reduced().ok()?;
            let axes: Vec<usize> = (0..reduced.len()).filter(|axis| reduced[*axis]).collect();
            say("by", op.reduction.name().to_owned());
            say("axes", format!("{axes:?}"));
            op.keeps_dims.then(|| say("keep", one()));
        }
        ComputeOp::MatMul(op) if op.precision == Default::default() => {
            op.transpose_a.then(|| say("transpose_a", one()));
            op.transpose_b.then(|| say("transpose_b", one()));
            (op.alpha != 1.0).then(|| say("alpha", op.alpha.to_string()));
            op.c.is_some().then(|| say("beta", op.beta.to_string()));
            op.bias.is_some().then(|| say("bias", one()));
            say_activation(op.activation, &mut say);
        }
        ComputeOp::Conv2d(op) => {
            let ConvOptions { stride, padding, dilation, groups } = op.options;
            say("stride", format!("{stride:?}"));
            say("padding", format!("{padding:?}"));
            say("dilation", format!("{dilation:?}"));
            say("groups", groups.to_string());
            say_activation(op.activation, &mut say);
        }
        ComputeOp::Pool2d(op) => {
            say("kernel", format!("{:?}", op.kernel));
            say("stride", format!("{:?}", op.stride));
            say("padding", format!("{:?}", op.padding));
            if let PoolKind::Average { count_padding } = op.kind {
                say("by", "average".to_owned());
                count_padding.then(|| say("count_padding", one()));
            }
        }
        ComputeOp::Transpose(op) => say("order", format!("{:?}", op.order())),
        ComputeOp::Attention(op) => {
            op.scale.into_iter().for_each(|scale| say("scale", scale.to_string()));
            op.is_causal.then(|| say("causal", one()));
        }
        ComputeOp::Gather(op) => {
            say("axis", op.axis.to_string());
            op.elementwise.then(|| say("along", one()));
        }
        _ => return None,
    }
    Some(text)
}

fn say_activation(activation: Activation, say: &mut dyn FnMut(&str, String)) {
    if let Some((name, _)) = ACTIVATIONS.iter().find(|(_, known)| *known == activation) {
        say("activation", (*name).to_owned());
    }
}

/// The ops that are no functions of single elements, as [`build`] and the parser know them.
const OTHERS: [&str; 15] = [
    "matmul",
    "conv2d",
    "pool2d",
    "softmax",
    "layernorm",
    "attention",
    "reduce",
    "gather",
    "map",
    "cast",
    "transpose",
    "permute",
    "reshape",
    "broadcast",
    "slice",
];

/// Every op that a text can name.
pub(super) fn op_names() -> Vec<&'static str> {
    let unary = UnaryOp::ALL.iter().map(|op| op.name());
    let binary = BinaryOp::ALL.iter().map(|op| op.name());
    let ternary = TernaryOp::ALL.iter().map(|op| op.name());
    OTHERS.into_iter().chain(unary).chain(binary).chain(ternary).collect()
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
