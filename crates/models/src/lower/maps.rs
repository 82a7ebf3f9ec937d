//! Elementwise nodes as expressions.

use panoply_core::DType;
use panoply_core::expr::{BinaryOp, Expr, UnaryOp};
use panoply_core::graph::NodeId;

use super::{Arg, Lower, LoweredOutputs, one};
use crate::element::ElementType;
use crate::error::Result;

impl Lower<'_, '_> {
    /// Records an elementwise node. `None` if the node is not elementwise or devices lack its
    /// types.
    pub(super) fn map(&mut self) -> LoweredOutputs {
        if !self.is_given(0) {
            return Ok(None);
        }
        let kind = self.kind(0)?;
        if self.node.op == "Where" {
            return self.select();
        }
        if kind == ElementType::Bool {
            return self.logic();
        }
        let Some(dtype) = kind.dtype() else { return Ok(None) };
        if self.args.len() == 1 || matches!(self.node.op.as_str(), "Clip" | "Dropout") {
            return self.unary(kind, dtype);
        }
        self.binary(kind, dtype)
    }

    fn unary(&mut self, kind: ElementType, dtype: DType) -> LoweredOutputs {
        if self.node.op == "IsNaN" && dtype.is_float() {
            let x = self.id(0)?;
            let node = self.expression(&[x], |inputs| inputs[0].clone().ne(inputs[0].clone()).cast(DType::U8))?;
            return one(node, ElementType::Bool);
        }
        let Some(function) = self.function(dtype)? else { return Ok(None) };
        let x = self.id(0)?;
        // Vendor libraries fuse Relu into products. With other functions they are slower than with
        // separate steps.
        let node = match self.node.op.as_str() {
            "Relu" => self.epilogue(&[x], |inputs| function(inputs[0].clone()))?,
            _ => self.expression(&[x], |inputs| function(inputs[0].clone()))?,
        };
        one(node, kind)
    }

    /// A function of one element as an expression.
    #[allow(clippy::type_complexity)]
    fn function(&self, dtype: DType) -> Result<Option<Box<dyn FnOnce(Expr) -> Expr>>> {
        let plain = |op: UnaryOp| -> Option<Box<dyn FnOnce(Expr) -> Expr>> { Some(Box::new(move |x| x.unary(op))) };
        let op = self.node.op.as_str();
        if !dtype.is_float() {
            return Ok(match op {
                "Neg" if matches!(dtype, DType::I32 | DType::I8) => plain(UnaryOp::Neg),
                "Abs" if matches!(dtype, DType::I32 | DType::I8) => plain(UnaryOp::Abs),
                "Relu" if matches!(dtype, DType::I32 | DType::I8) => plain(UnaryOp::Relu),
                _ => None,
            });
        }
        let float = |name: &str, default: f32| self.call.float(name, default);
        Ok(match op {
            "Abs" => plain(UnaryOp::Abs),
            "Neg" => plain(UnaryOp::Neg),
            "Exp" => plain(UnaryOp::Exp),
            "Log" => plain(UnaryOp::Log),
            "Sqrt" => plain(UnaryOp::Sqrt),
            "Reciprocal" => plain(UnaryOp::Recip),
            "Tanh" => plain(UnaryOp::Tanh),
            "Sigmoid" => plain(UnaryOp::Sigmoid),
            "Erf" => plain(UnaryOp::Erf),
            "Relu" => plain(UnaryOp::Relu),
            "Floor" => plain(UnaryOp::Floor),
            "Ceil" => plain(UnaryOp::Ceil),
            "Round" => plain(UnaryOp::Round),
            "Sin" => plain(UnaryOp::Sin),
            "Cos" => plain(UnaryOp::Cos),
            "Gelu" if self.call.text("approximate", "none")? == "tanh" => plain(UnaryOp::GeluTanh),
            "Gelu" => plain(UnaryOp::Gelu),
            "Swish" if float("alpha", 1.0)? == 1.0 => plain(UnaryOp::Silu),
            "Softsign" => Some(Box::new(|x| x.clone() / (x.abs() + 1.0))),
            "HardSwish" => Some(Box::new(|x| x.clone() * (x * (1.0 / 6.0) + 0.5).clamp(0.0, 1.0))),
            "HardSigmoid" => {
                let (alpha, beta) = (float("alpha", 0.2)?, float("beta", 0.5)?);
                Some(Box::new(move |x| (x * alpha + beta).clamp(0.0, 1.0)))
            }
            "LeakyRelu" => {
                let alpha = float("alpha", 0.01)?;
                match alpha > 0.0 && alpha <= 1.0 {
                    // The maximum of both takes one operation less than a selection.
                    true => Some(Box::new(move |x| (x.clone() * alpha).max(x))),
                    false => Some(Box::new(move |x| x.clone().lt(0.0).select(x.clone() * alpha, x))),
                }
            }
            "ThresholdedRelu" => {
                let alpha = float("alpha", 1.0)?;
                Some(Box::new(move |x| x.clone().gt(alpha).select(x, 0.0)))
            }
            "Clip" => self.bounds()?.map(|(low, high)| -> Box<dyn FnOnce(Expr) -> Expr> {
                Box::new(move |x| {
                    let x = low.into_iter().fold(x, |x, low| x.max(low));
                    high.into_iter().fold(x, |x, high| x.min(high))
                })
            }),
            "Dropout" if !self.call.wants(1) && !self.is_given(2) => Some(Box::new(|x| x)),
            _ => self.bent()?,
        })
    }

    /// Piecewise functions of one float.
    #[allow(clippy::type_complexity)]
    fn bent(&self) -> Result<Option<Box<dyn FnOnce(Expr) -> Expr>>> {
        let float = |name: &str, default: f32| self.call.float(name, default);
        Ok(match self.node.op.as_str() {
            // Zeros keep their sign, and NaN propagates.
            "Sign" => Some(Box::new(|x| x.clone().gt(0.0).select(1.0, x.clone().lt(0.0).select(-1.0, x)))),
            "Softplus" => Some(Box::new(softplus)),
            "Mish" => Some(Box::new(|x| x.clone() * softplus(x).tanh())),
            "Elu" => {
                let alpha = float("alpha", 1.0)?;
                Some(Box::new(move |x| x.clone().lt(0.0).select(exp_m1(x.clone()) * alpha, x)))
            }
            "Celu" => {
                let alpha = float("alpha", 1.0)?;
                Some(Box::new(move |x| x.clone().lt(0.0).select(exp_m1(x.clone() / alpha) * alpha, x)))
            }
            "Selu" => {
                let (alpha, gamma) = (float("alpha", 1.673_263_2)?, float("gamma", 1.050_701)?);
                Some(Box::new(move |x| x.clone().le(0.0).select(exp_m1(x.clone()) * alpha, x) * gamma))
            }
            "Shrink" => {
                let (bias, lambd) = (float("bias", 0.0)?, float("lambd", 0.5)?);
                Some(Box::new(move |x| {
                    let above = x.clone().gt(lambd).select(x.clone() - bias, 0.0);
                    x.clone().lt(-lambd).select(x + bias, above)
                }))
            }
            _ => None,
        })
    }

    /// The bounds of a `Clip`, if they are constants.
    #[allow(clippy::type_complexity)]
    fn bounds(&self) -> Result<Option<(Option<f64>, Option<f64>)>> {
        let bound = |place: usize, name: &str| match self.args.get(place) {
            None | Some(Arg::Missing) if self.node.attributes.contains_key(name) => {
                Ok(Some(Some(self.call.float(name, 0.0)?)))
            }
            None | Some(Arg::Missing) => Ok(Some(None)),
            Some(Arg::Static(array)) if array.len() == 1 => {
                Ok::<_, crate::Error>(Some(array.to_floats()?.first().copied()))
            }
            Some(_) => Ok(None),
        };
        Ok(bound(1, "min")?.zip(bound(2, "max")?))
    }

    fn binary(&mut self, kind: ElementType, dtype: DType) -> LoweredOutputs {
        let op = self.node.op.as_str();
        let integer_ok = matches!(op, "Add" | "Sub" | "Mul" | "Max" | "Min" | "Sum") || is_comparison(op);
        let known =
            matches!(op, "Add" | "Sub" | "Mul" | "Div" | "Max" | "Min" | "Sum" | "Mean" | "PRelu" | "Pow" | "Mod");
        if !(known || is_comparison(op)) || !(dtype.is_float() || integer_ok) {
            return Ok(None);
        }
        if (1..self.args.len()).any(|place| self.kind(place).is_ok_and(|other| other != kind)) {
            return Ok(None);
        }
        if op == "Mod" && !self.call.flag("fmod", false)? {
            return Ok(None);
        }
        if let ("Pow", Some(exponent)) = (op, self.number(1)) {
            return self.power(kind, exponent);
        }
        let (nodes, operands) = self.operands()?;
        let name = op.to_owned();
        let make = |inputs: &[Expr]| {
            let mut operands = operands.into_iter().map(|operand| operand.of(inputs));
            let first = operands.next().unwrap_or_else(|| Expr::constant(0.0));
            let count = 1.0 + operands.len() as f64;
            let joined = operands.fold(first, |a, b| join(&name, a, b));
            match name.as_str() {
                "Mean" => joined / count,
                name if is_comparison(name) => joined.cast(DType::U8),
                _ => joined,
            }
        };
        let is_sum = self.node.op == "Add";
        let node = if is_sum { self.epilogue(&nodes, make)? } else { self.expression(&nodes, make)? };
        one(node, if is_comparison(self.node.op.as_str()) { ElementType::Bool } else { kind })
    }

    fn power(&mut self, kind: ElementType, exponent: f64) -> LoweredOutputs {
        let x = self.id(0)?;
        let node = self.expression(&[x], |inputs| {
            let x = inputs[0].clone();
            match exponent {
                2.0 => x.clone() * x,
                0.5 => x.sqrt(),
                _ => x.pow(exponent),
            }
        })?;
        one(node, kind)
    }

    /// A static operand of one element as a number. The other operands must decide the shape.
    fn number(&self, place: usize) -> Option<f64> {
        let array = self.fixed(place)?;
        let others = (0..self.args.len()).filter(|other| *other != place);
        let rank = others
            .filter(|other| self.fixed(*other).is_none())
            .filter_map(|other| self.dims(other).ok())
            .map(<[usize]>::len)
            .max()?;
        (array.len() == 1 && array.dims().len() <= rank).then(|| array.to_floats().ok()?.first().copied())?
    }

    /// The operands that are tensors, and for each operand its tensor's index or its number.
    fn operands(&mut self) -> Result<(Vec<NodeId>, Vec<Operand>)> {
        let (mut nodes, mut operands) = (Vec::new(), Vec::new());
        for place in (0..self.args.len()).filter(|place| self.is_given(*place)).collect::<Vec<_>>() {
            match self.number(place) {
                Some(number) => operands.push(Operand::Number(number)),
                None => {
                    operands.push(Operand::Input(nodes.len()));
                    nodes.push(self.id(place)?);
                }
            }
        }
        Ok((nodes, operands))
    }

    /// Boolean functions. Devices hold booleans in bytes of 0 and 1.
    fn logic(&mut self) -> LoweredOutputs {
        let op = self.node.op.as_str();
        if !matches!(op, "And" | "Or" | "Xor" | "Not" | "Equal")
            || self.args.len() != if op == "Not" { 1 } else { 2 }
            || (0..self.args.len()).any(|place| self.kind(place).is_ok_and(|kind| kind != ElementType::Bool))
        {
            return Ok(None);
        }
        let nodes = (0..self.args.len()).map(|place| self.id(place)).collect::<Result<Vec<_>>>()?;
        let name = op.to_owned();
        let node = self.expression(&nodes, |inputs| match (name.as_str(), inputs) {
            ("And", [a, b]) => a.clone().and(b.clone()),
            ("Or", [a, b]) => a.clone().or(b.clone()),
            ("Xor", [a, b]) => a.clone().ne(b.clone()),
            ("Equal", [a, b]) => a.clone().eq(b.clone()),
            _ => inputs[0].clone().logical_not(),
        })?;
        one(node, ElementType::Bool)
    }

    fn select(&mut self) -> LoweredOutputs {
        let kind = self.kind(1)?;
        let (Some(dtype), true) = (kind.dtype(), self.kind(2)? == kind && self.kind(0)? == ElementType::Bool) else {
            return Ok(None);
        };
        let (nodes, operands) = self.operands()?;
        if !matches!(operands[0], Operand::Input(_)) {
            return Ok(None);
        }
        let node = self.expression(&nodes, |inputs| {
            let [condition, a, b] = [0, 1, 2].map(|place| operands[place].clone().of(inputs));
            condition.cast(dtype).select(a, b)
        })?;
        one(node, kind)
    }
}

#[derive(Clone)]
enum Operand {
    Input(usize),
    Number(f64),
}

impl Operand {
    fn of(self, inputs: &[Expr]) -> Expr {
        match self {
            Operand::Input(place) => inputs[place].clone(),
            Operand::Number(number) => Expr::constant(number),
        }
    }
}

/// exp(x) - 1. Near zero the difference would lose bits of `x`, so the first terms of the series
/// are used.
fn exp_m1(x: Expr) -> Expr {
    let mut sum = Expr::constant(1.0);
    for place in (2..=6).rev() {
        sum = sum * (x.clone() / f64::from(place)) + 1.0;
    }
    x.clone().abs().lt(0.25).select(sum * x.clone(), x.exp() - 1.0)
}

/// log(1 + exp(x)). Small powers use the first terms of the logarithm's series. Large `x` is its
/// own result.
fn softplus(x: Expr) -> Expr {
    let power = x.clone().min(20.0).exp();
    let small = power.clone() * (power.clone() * (power.clone() * (1.0 / 3.0) - 0.5) + 1.0);
    let middle = x.clone().lt(-5.0).select(small, (power + 1.0).log());
    x.clone().gt(20.0).select(x, middle)
}

fn is_comparison(op: &str) -> bool {
    matches!(op, "Equal" | "Less" | "LessOrEqual" | "Greater" | "GreaterOrEqual")
}

fn join(op: &str, a: Expr, b: Expr) -> Expr {
    match op {
        "Add" | "Sum" | "Mean" => a + b,
        "Sub" => a - b,
        "Mul" => a * b,
        "Div" => a / b,
        "Max" => a.max(b),
        "Min" => a.min(b),
        "Pow" => a.pow(b),
        "Mod" => a.binary(BinaryOp::Rem, b),
        "PRelu" => a.clone().lt(0.0).select(a.clone() * b, a),
        "Equal" => a.eq(b),
        "Less" => a.lt(b),
        "LessOrEqual" => a.le(b),
        "Greater" => a.gt(b),
        _ => a.ge(b),
    }
}
