//! Activations: the functions that matrix products and convolutions apply to their sums before
//! storing them.

use crate::expr::Expr;

/// A function of one number, applied to every element of a result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Activation {
    /// The number itself.
    #[default]
    None,
    /// `max(x, 0)`; NaN stays NaN.
    Relu,
    /// `x * (1 + erf(x / sqrt 2)) / 2`.
    Gelu,
    /// `x / (1 + exp(-x))`.
    Silu,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// The hyperbolic tangent.
    Tanh,
}

impl Activation {
    /// The function as an expression of its argument.
    pub fn apply(self, x: Expr) -> Expr {
        match self {
            Activation::None => x,
            Activation::Relu => x.relu(),
            Activation::Gelu => x.gelu(),
            Activation::Silu => x.silu(),
            Activation::Sigmoid => x.sigmoid(),
            Activation::Tanh => x.tanh(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expr::UnaryOp;

    #[test]
    fn an_activation_is_the_expression_of_its_name() {
        let program = |activation: Activation| activation.apply(Expr::input(0)).finish().unwrap();
        assert_eq!(program(Activation::None), Expr::input(0).finish().unwrap());
        for (activation, op) in [
            (Activation::Relu, UnaryOp::Relu),
            (Activation::Gelu, UnaryOp::Gelu),
            (Activation::Silu, UnaryOp::Silu),
            (Activation::Sigmoid, UnaryOp::Sigmoid),
            (Activation::Tanh, UnaryOp::Tanh),
        ] {
            assert_eq!(program(activation), Expr::input(0).unary(op).finish().unwrap(), "{activation:?}");
        }
    }
}
