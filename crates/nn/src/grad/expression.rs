//! Derivatives of elementwise expressions: reverse accumulation over the nodes of a program, where
//! the values are expressions.

use panoply_core::expr::{BinaryOp, Expr, INPUTS_MAX, Node, Operand, Program, TernaryOp, UnaryOp, Value};
use panoply_core::{DType, Error, Result};

/// The derivative with respect to one input: a program, and the numbers of the values that it
/// reads, in the order of its own inputs. These numbers count the inputs of the original program
/// first, then the gradient of its result, then the result itself. `None` if the result does not
/// depend on the input.
///
/// If the program ends in relu, its derivative reads the result instead of relu's operand: one is
/// positive exactly where the other is. The next op keeps the result for its own gradient anyway,
/// so no operand of relu has to be kept.
pub(crate) fn derivative(program: &Program, dtypes: &[DType], input: u32) -> Result<Option<(Program, Vec<u32>)>> {
    let types = program.types(dtypes)?;
    let nodes = program.nodes();
    let values = values(nodes);
    let mut adjoints: Vec<Option<Expr>> = vec![None; nodes.len()];
    if let Some(last) = adjoints.last_mut() {
        *last = Some(Expr::input(dtypes.len() as u32));
    }
    let depends = dependants(nodes, input);
    for (place, node) in nodes.iter().enumerate().rev() {
        let is_float = matches!(types.values()[place], Value::Typed(dtype) if dtype.is_float());
        let Some(adjoint) = adjoints[place].clone().filter(|_| is_float && depends[place]) else { continue };
        let mut pass = |operand: u32, share: Expr| {
            let operand = operand as usize;
            if depends[operand] {
                adjoints[operand] = Some(match adjoints[operand].take() {
                    Some(sum) => sum + share,
                    None => share,
                });
            }
        };
        let value = |id: u32| values[id as usize].clone();
        match *node {
            Node::Input(_) | Node::Const(_) => {}
            Node::Cast(_, a) => {
                if let Value::Typed(dtype) = types.values()[a as usize]
                    && dtype.is_float()
                {
                    pass(a, adjoint.cast(dtype));
                }
            }
            // The result becomes one more input, if the limit of inputs allows it.
            Node::Unary(UnaryOp::Relu, a) if place + 1 == nodes.len() && dtypes.len() + 2 <= INPUTS_MAX as usize => {
                let result = Expr::input(dtypes.len() as u32 + 1);
                pass(a, result.gt(0.0).select(adjoint, 0.0));
            }
            Node::Unary(op, a) => {
                if let Some(share) = unary(op, value(a), values[place].clone(), adjoint) {
                    pass(a, share);
                }
            }
            Node::Binary(op, a, b) => {
                let (left, right) = binary(op, value(a), value(b), values[place].clone(), &adjoint);
                left.into_iter().for_each(|share| pass(a, share));
                right.into_iter().for_each(|share| pass(b, share));
            }
            Node::Ternary(op, a, b, c) => {
                let shares = ternary(op, [value(a), value(b), value(c)], &adjoint);
                for (operand, share) in [a, b, c].into_iter().zip(shares) {
                    share.into_iter().for_each(|share| pass(operand, share));
                }
            }
        }
    }
    let place = nodes.iter().position(|node| *node == Node::Input(input));
    let Some(adjoint) = place.and_then(|place| adjoints[place].take()) else { return Ok(None) };
    compact(&adjoint.finish().map_err(Error::Expression)?).map(Some)
}

/// The program over only those inputs that it reads, and the numbers of these inputs.
fn compact(program: &Program) -> Result<(Program, Vec<u32>)> {
    let mut read: Vec<u32> = program
        .nodes()
        .iter()
        .filter_map(|node| if let Node::Input(index) = node { Some(*index) } else { None })
        .collect();
    read.sort_unstable();
    let renamed: Vec<Operand<'_>> =
        (0..program.inputs()).map(|index| Operand::Input(read.binary_search(&index).unwrap_or(0) as u32)).collect();
    Ok((program.compose(&renamed).map_err(Error::Expression)?, read))
}

/// Each node as an expression.
fn values(nodes: &[Node]) -> Vec<Expr> {
    let mut values: Vec<Expr> = Vec::with_capacity(nodes.len());
    for node in nodes {
        let value = |id: u32| values[id as usize].clone();
        let made = match *node {
            Node::Input(index) => Expr::input(index),
            Node::Const(constant) => Expr::constant(constant.value()),
            Node::Unary(op, a) => value(a).unary(op),
            Node::Binary(op, a, b) => value(a).binary(op, value(b)),
            Node::Ternary(op, a, b, c) => value(a).ternary(op, value(b), value(c)),
            Node::Cast(dtype, a) => value(a).cast(dtype),
        };
        values.push(made);
    }
    values
}

/// For each node whether it depends on the input.
fn dependants(nodes: &[Node], input: u32) -> Vec<bool> {
    let mut depends: Vec<bool> = Vec::with_capacity(nodes.len());
    for node in nodes {
        let own = *node == Node::Input(input) || node.operands().any(|operand| depends[operand as usize]);
        depends.push(own);
    }
    depends
}

/// The gradient that a unary function passes on to its operand: `x` is the operand, `y` the result,
/// `g` the gradient of the result.
fn unary(op: UnaryOp, x: Expr, y: Expr, g: Expr) -> Option<Expr> {
    const FRAC_2_SQRT_PI: f64 = std::f64::consts::FRAC_2_SQRT_PI;
    Some(match op {
        UnaryOp::Neg => -g,
        UnaryOp::Abs => x.clone().gt(0.0).select(g.clone(), x.lt(0.0).select(-g, 0.0)),
        UnaryOp::Exp => g * y,
        UnaryOp::Log => g / x,
        UnaryOp::Sqrt => g * 0.5 / y,
        UnaryOp::Rsqrt => g * -0.5 * y / x,
        UnaryOp::Recip => -(g * y.clone() * y),
        UnaryOp::Tanh => g * (1.0 - y.clone() * y),
        UnaryOp::Sigmoid => g * y.clone() * (1.0 - y),
        UnaryOp::Erf => g * FRAC_2_SQRT_PI * (-(x.clone() * x)).exp(),
        UnaryOp::Relu => x.gt(0.0).select(g, 0.0),
        UnaryOp::Gelu => {
            let cumulated = (x.clone() * std::f64::consts::FRAC_1_SQRT_2).erf() * 0.5 + 0.5;
            // 1 / √(2π)
            let density =
                (x.clone() * x.clone() * -0.5).exp() * (0.5 * FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2);
            g * (cumulated + x * density)
        }
        UnaryOp::GeluTanh => {
            // √(2/π), as in the function itself.
            let (scale, cubic) = (FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2, 0.044_715);
            let square = x.clone() * x.clone();
            let t = ((x.clone() * scale) * (square.clone() * cubic + 1.0)).tanh();
            let slope = (square * (3.0 * cubic) + 1.0) * scale;
            let rest = x * (1.0 - t.clone() * t.clone()) * slope;
            g * 0.5 * (t + 1.0 + rest)
        }
        UnaryOp::Silu => {
            let s = x.clone().sigmoid();
            g * s.clone() * (x * (1.0 - s) + 1.0)
        }
        UnaryOp::Sin => g * x.cos(),
        UnaryOp::Cos => -(g * x.sin()),
        UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round | UnaryOp::Not => return None,
    })
}

/// The gradients that a binary function passes on to its operands. For equal operands `min` and
/// `max` give half to each.
fn binary(op: BinaryOp, a: Expr, b: Expr, y: Expr, g: &Expr) -> (Option<Expr>, Option<Expr>) {
    let extreme = |wins: Expr, equal: Expr| {
        let half = equal.select(g.clone() * 0.5, 0.0);
        Some(wins.select(g.clone(), half))
    };
    match op {
        BinaryOp::Add => (Some(g.clone()), Some(g.clone())),
        BinaryOp::Sub => (Some(g.clone()), Some(-g)),
        BinaryOp::Mul => (Some(g.clone() * b), Some(g.clone() * a)),
        BinaryOp::Div => (Some(g.clone() / b.clone()), Some(-(g.clone() * y / b))),
        BinaryOp::Rem => (Some(g.clone()), Some(-(g.clone() * ((a - y) / b)))),
        BinaryOp::Pow => {
            // x⁰ is 1 for every base, 0 included.
            let base = b.clone().eq(0.0).select(0.0, g.clone() * b.clone() * a.clone().pow(b - 1.0));
            let exponent = a.clone().gt(0.0).select(g.clone() * y * a.log(), 0.0);
            (Some(base), Some(exponent))
        }
        BinaryOp::Min => {
            let equal = a.clone().eq(b.clone());
            (extreme(a.clone().lt(b.clone()), equal.clone()), extreme(b.lt(a), equal))
        }
        BinaryOp::Max => {
            let equal = a.clone().eq(b.clone());
            (extreme(a.clone().gt(b.clone()), equal.clone()), extreme(b.gt(a), equal))
        }
        BinaryOp::Eq
        | BinaryOp::Ne
        | BinaryOp::Lt
        | BinaryOp::Le
        | BinaryOp::Gt
        | BinaryOp::Ge
        | BinaryOp::And
        | BinaryOp::Or => (None, None),
    }
}

/// The gradients that a ternary function passes on to its operands.
fn ternary(op: TernaryOp, [a, b, c]: [Expr; 3], g: &Expr) -> [Option<Expr>; 3] {
    match op {
        TernaryOp::Select => [None, Some(a.clone().select(g.clone(), 0.0)), Some(a.select(0.0, g.clone()))],
        TernaryOp::Clamp => {
            let inside = a.clone().ge(b.clone()).and(a.clone().le(c.clone()));
            let low = a.clone().lt(b).select(g.clone(), 0.0);
            [Some(inside.select(g.clone(), 0.0)), Some(low), Some(a.gt(c).select(g.clone(), 0.0))]
        }
        TernaryOp::MulAdd => [Some(g.clone() * b), Some(g.clone() * a), Some(g.clone())],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_derivative_reads_only_what_it_needs() {
        let (x, y) = (Expr::input(0), Expr::input(1));
        let program = (x.clone() * 3.0 + y.clone().exp()).finish().unwrap();
        let dtypes = [DType::F32, DType::F32];
        let (by_x, read) = derivative(&program, &dtypes, 0).unwrap().unwrap();
        assert_eq!((by_x, read), ((Expr::input(0) * 3.0).finish().unwrap(), vec![2]));
        let (by_y, read) = derivative(&program, &dtypes, 1).unwrap().unwrap();
        assert_eq!((by_y, read), ((Expr::input(1) * Expr::input(0).exp()).finish().unwrap(), vec![1, 2]));
        let flat = (x.floor() + y).finish().unwrap();
        assert!(derivative(&flat, &dtypes, 0).unwrap().is_none());
    }

    #[test]
    fn relu_at_the_end_is_told_by_the_result() {
        let (x, y) = (Expr::input(0), Expr::input(1));
        let program = (x.clone() + y).relu().finish().unwrap();
        let (by_x, read) = derivative(&program, &[DType::F32; 2], 0).unwrap().unwrap();
        let expected = Expr::input(1).gt(0.0).select(Expr::input(0), 0.0).finish().unwrap();
        assert_eq!((by_x, read), (expected, vec![2, 3]));
        // Inside an expression the output of relu is not kept.
        let program = (x.relu() * 2.0).finish().unwrap();
        let (_, read) = derivative(&program, &[DType::F32], 0).unwrap().unwrap();
        assert_eq!(read, [0, 1]);
    }

    #[test]
    fn integers_pass_nothing_on() {
        let program = (Expr::input(0).cast(DType::U32) * 3).cast(DType::F32).finish().unwrap();
        assert!(derivative(&program, &[DType::F32], 0).unwrap().is_none());
    }
}
