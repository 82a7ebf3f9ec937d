//! The most common ops, each as one call of the builder.

use super::builder::GraphBuilder;
use super::node::NodeId;
use crate::dtype::DType;
use crate::error::Result;
use crate::expr::{BinaryOp, Expr, TernaryOp, UnaryOp};
use crate::op::compute::{Conv2d, ConvOptions, LayerNorm, Map, MatMul, Pool2d, Reduce, Reduction, Softmax};
use crate::tensor::Tensor;

impl GraphBuilder {
    /// Adds an elementwise expression of these nodes. `make` receives them as inputs of the
    /// expression.
    pub fn map(&mut self, operands: &[NodeId], make: impl FnOnce(&[Expr]) -> Expr) -> Result<NodeId> {
        let inputs: Vec<Expr> = (0..operands.len() as u32).map(Expr::input).collect();
        let expr = make(&inputs);
        self.op(operands, |tensors| Map::new(expr, &tensors.iter().collect::<Vec<_>>()))
    }

    /// Adds a function of each element.
    pub fn unary(&mut self, op: UnaryOp, x: NodeId) -> Result<NodeId> {
        self.op(&[x], |tensors| Map::unary(op, &tensors[0]))
    }

    /// Adds a function of each pair of elements.
    pub fn binary(&mut self, op: BinaryOp, a: NodeId, b: NodeId) -> Result<NodeId> {
        self.op(&[a, b], |tensors| Map::binary(op, &tensors[0], &tensors[1]))
    }

    /// Adds a function of each triple of elements.
    pub fn ternary(&mut self, op: TernaryOp, a: NodeId, b: NodeId, c: NodeId) -> Result<NodeId> {
        self.op(&[a, b, c], |tensors| Map::ternary(op, &tensors[0], &tensors[1], &tensors[2]))
    }

    /// Adds a function of each element and a constant.
    pub fn with_number(&mut self, op: BinaryOp, x: NodeId, number: f64) -> Result<NodeId> {
        self.map(&[x], |inputs| inputs[0].clone().binary(op, number))
    }

    /// Adds a conversion to another element type.
    pub fn cast(&mut self, x: NodeId, dtype: DType) -> Result<NodeId> {
        self.op(&[x], |tensors| Map::cast(&tensors[0], dtype))
    }

    /// Adds a matrix product.
    pub fn matmul(&mut self, a: NodeId, b: NodeId) -> Result<NodeId> {
        self.op(&[a, b], |tensors| MatMul::new(&tensors[0], &tensors[1]))
    }

    /// Adds `x · w + bias`, with one bias for each column.
    pub fn linear(&mut self, x: NodeId, w: NodeId, bias: NodeId) -> Result<NodeId> {
        let product = self.matmul(x, w)?;
        self.add(product, bias)
    }

    /// Adds a softmax along an axis.
    pub fn softmax(&mut self, x: NodeId, axis: usize) -> Result<NodeId> {
        self.op(&[x], |tensors| Softmax::new(&tensors[0]).axis(axis))
    }

    /// Adds a layer normalisation of the last axis, with weight and bias.
    pub fn layer_norm(&mut self, x: NodeId, weight: NodeId, bias: NodeId) -> Result<NodeId> {
        self.op(&[x, weight, bias], |tensors| LayerNorm::new(&tensors[0]).weight(&tensors[1]).bias(&tensors[2]))
    }

    /// Adds a reduction along these axes, which disappear.
    pub fn reduce(&mut self, reduction: Reduction, x: NodeId, axes: &[usize]) -> Result<NodeId> {
        self.op(&[x], |tensors| Reduce::new(&tensors[0], reduction).axes(axes))
    }

    /// Adds a convolution.
    pub fn conv2d(&mut self, x: NodeId, weights: NodeId, options: ConvOptions) -> Result<NodeId> {
        self.op(&[x, weights], |tensors| Conv2d::new(&tensors[0], &tensors[1]).options(options))
    }

    /// Adds a maximum over each window.
    pub fn max_pool(&mut self, x: NodeId, kernel: [usize; 2]) -> Result<NodeId> {
        self.op(&[x], |tensors: &[Tensor]| Pool2d::max(&tensors[0], kernel))
    }
}

macro_rules! shorthands {
    ($($(#[$doc:meta])* $name:ident($($arg:ident),*) = $kind:ident $op:ident;)*) => {
        impl GraphBuilder {
            $(
                $(#[$doc])*
                pub fn $name(&mut self, $($arg: NodeId),*) -> Result<NodeId> {
                    shorthands!(@call self $kind $op $($arg),*)
                }
            )*
        }
    };
    (@call $self:ident unary $op:ident $x:ident) => { $self.unary(UnaryOp::$op, $x) };
    (@call $self:ident binary $op:ident $a:ident, $b:ident) => { $self.binary(BinaryOp::$op, $a, $b) };
}

shorthands! {
    /// `a + b`.
    add(a, b) = binary Add;
    /// `a - b`.
    sub(a, b) = binary Sub;
    /// `a · b`.
    mul(a, b) = binary Mul;
    /// `a / b`.
    div(a, b) = binary Div;
    /// `-x`.
    neg(x) = unary Neg;
    /// The absolute value.
    abs(x) = unary Abs;
    /// `e` to the power of `x`.
    exp(x) = unary Exp;
    /// The square root.
    sqrt(x) = unary Sqrt;
    /// The hyperbolic tangent.
    tanh(x) = unary Tanh;
    /// `1 / (1 + exp(-x))`.
    sigmoid(x) = unary Sigmoid;
    /// `max(x, 0)`.
    relu(x) = unary Relu;
    /// `x · Φ(x)`, computed with the error function.
    gelu(x) = unary Gelu;
}
