//! Building expressions with operators and methods.

use std::ops::{Add, Div, Mul, Neg, Rem, Sub};
use std::sync::Arc;

use super::arena::Arena;
use super::node::{BinaryOp, Constant, Node, NodeId, TernaryOp, UnaryOp};
use super::program::Program;
use super::{ExprError, INPUTS_MAX};
use crate::dtype::DType;

/// An elementwise expression under construction.
///
/// ```
/// use panoply_core::expr::Expr;
/// let (x, y) = (Expr::input(0), Expr::input(1));
/// let program = (x * 2.0 + y).relu().finish()?;
/// assert_eq!(program.inputs(), 2);
/// # Ok::<(), panoply_core::expr::ExprError>(())
/// ```
///
/// A clone increments one reference count. An operator takes its operands by value or by reference.
/// A large expression that is passed by value and not shared grows in place; otherwise its nodes
/// are copied. Errors (too many nodes, an input index out of range) are stored and reported by
/// [`Expr::finish`].
#[derive(Clone, Debug)]
pub struct Expr {
    arena: Arc<Arena>,
    root: NodeId,
}

impl Expr {
    /// The element of the input with this index, counted from 0.
    pub fn input(index: u32) -> Expr {
        Expr::leaf(Node::Input(index))
    }

    /// A constant. A plain number is accepted wherever an `Expr` is expected.
    pub fn constant(value: f64) -> Expr {
        Expr::leaf(Node::Const(Constant::new(value)))
    }

    /// Applies the function `op` to this value. The methods named after the functions are shorter.
    pub fn unary(self, op: UnaryOp) -> Expr {
        Expr::join([self], |[a]| Node::Unary(op, a))
    }

    /// Applies the function `op` to this value and `other`.
    pub fn binary(self, op: BinaryOp, other: impl Into<Expr>) -> Expr {
        Expr::join([self, other.into()], |[a, b]| Node::Binary(op, a, b))
    }

    /// Applies the function `op` to this value, `second` and `third`.
    pub fn ternary(self, op: TernaryOp, second: impl Into<Expr>, third: impl Into<Expr>) -> Expr {
        Expr::join([self, second.into(), third.into()], |[a, b, c]| Node::Ternary(op, a, b, c))
    }

    /// `if_true` if this value is not zero, else `if_false`. Both are evaluated.
    pub fn select(self, if_true: impl Into<Expr>, if_false: impl Into<Expr>) -> Expr {
        self.ternary(TernaryOp::Select, if_true, if_false)
    }

    /// Converts the value to another dtype.
    pub fn cast(self, dtype: DType) -> Expr {
        Expr::join([self], |[a]| Node::Cast(dtype, a))
    }

    /// Finishes the expression. `Map` takes the program, and kernels are generated from it.
    pub fn finish(&self) -> Result<Program, ExprError> {
        if self.arena.overflowed() {
            return Err(ExprError::TooManyNodes { nodes_max: super::NODES_MAX });
        }
        let program = Program::from_nodes(self.arena.nodes(), self.root);
        if program.inputs() > INPUTS_MAX {
            return Err(ExprError::InputIndex { index: program.inputs() - 1, inputs_max: INPUTS_MAX });
        }
        Ok(program)
    }

    /// Makes an expression of a list of nodes, such as [`Program::nodes`]. Each node names earlier
    /// nodes only, and the last node is the value. `None` if the list is empty or a node names a
    /// later one. Takes time linear in the list, whereas operators on shared expressions copy their
    /// nodes.
    pub fn from_nodes(nodes: &[Node]) -> Option<Expr> {
        let (mut arena, mut places) = (Arena::default(), Vec::<NodeId>::with_capacity(nodes.len()));
        for node in nodes {
            if node.operands().any(|operand| operand as usize >= places.len()) {
                return None;
            }
            places.push(arena.intern(node.renamed(|operand| places[operand as usize])));
        }
        Some(Expr { root: *places.last()?, arena: Arc::new(arena) })
    }

    fn leaf(node: Node) -> Expr {
        let mut arena = Arena::default();
        let root = arena.intern(node);
        Expr { arena: Arc::new(arena), root }
    }

    /// Merges the operands into the largest of their arenas, and adds the node that `make` returns
    /// for their numbers.
    fn join<const N: usize>(operands: [Expr; N], make: impl FnOnce([NodeId; N]) -> Node) -> Expr {
        let mut roots = [0; N];
        let mut base: Option<Arc<Arena>> = None;
        for operand in &operands {
            if base.as_ref().is_none_or(|base| base.nodes().len() < operand.arena.nodes().len()) {
                base = Some(Arc::clone(&operand.arena));
            }
        }
        let mut base = base.unwrap_or_default();
        // Operands in the base drop their reference to it, so that an arena without other
        // references grows in place.
        let mut others: [Option<Arc<Arena>>; N] = [const { None }; N];
        for (place, operand) in operands.into_iter().enumerate() {
            roots[place] = operand.root;
            others[place] = (!Arc::ptr_eq(&operand.arena, &base)).then_some(operand.arena);
        }
        let arena = Arc::make_mut(&mut base);
        for (root, other) in roots.iter_mut().zip(&others) {
            if let Some(other) = other {
                *root = arena.absorb(other, *root);
            }
        }
        let root = arena.intern(make(roots));
        Expr { arena: base, root }
    }
}

macro_rules! unary_methods {
    ($($method:ident => $op:ident),* $(,)?) => {
        impl Expr {
            $(
                #[doc = concat!("See [`UnaryOp::", stringify!($op), "`].")]
                pub fn $method(self) -> Expr {
                    self.unary(UnaryOp::$op)
                }
            )*
        }
    };
}

unary_methods! {
    abs => Abs, exp => Exp, log => Log, sqrt => Sqrt, rsqrt => Rsqrt, recip => Recip, tanh => Tanh, sigmoid => Sigmoid,
    erf => Erf, relu => Relu, gelu => Gelu, gelu_tanh => GeluTanh, silu => Silu, floor => Floor, ceil => Ceil,
    round => Round, sin => Sin, cos => Cos, logical_not => Not,
}

macro_rules! binary_methods {
    ($($method:ident => $op:ident),* $(,)?) => {
        impl Expr {
            $(
                #[doc = concat!("See [`BinaryOp::", stringify!($op), "`].")]
                pub fn $method(self, other: impl Into<Expr>) -> Expr {
                    self.binary(BinaryOp::$op, other)
                }
            )*
        }
    };
}

binary_methods! {
    pow => Pow, min => Min, max => Max, eq => Eq, ne => Ne, lt => Lt, le => Le, gt => Gt, ge => Ge, and => And, or => Or,
}

impl Expr {
    /// See [`TernaryOp::Clamp`].
    pub fn clamp(self, low: impl Into<Expr>, high: impl Into<Expr>) -> Expr {
        self.ternary(TernaryOp::Clamp, low, high)
    }

    /// See [`TernaryOp::MulAdd`].
    pub fn mul_add(self, factor: impl Into<Expr>, addend: impl Into<Expr>) -> Expr {
        self.ternary(TernaryOp::MulAdd, factor, addend)
    }
}

impl From<f64> for Expr {
    fn from(value: f64) -> Expr {
        Expr::constant(value)
    }
}

impl From<f32> for Expr {
    fn from(value: f32) -> Expr {
        Expr::constant(f64::from(value))
    }
}

impl From<i32> for Expr {
    fn from(value: i32) -> Expr {
        Expr::constant(f64::from(value))
    }
}

impl From<&Expr> for Expr {
    fn from(expr: &Expr) -> Expr {
        expr.clone()
    }
}

macro_rules! operators {
    ($($operator:ident $method:ident),* $(,)?) => {$(
        impl<R: Into<Expr>> $operator<R> for Expr {
            type Output = Expr;
            fn $method(self, other: R) -> Expr {
                self.binary(BinaryOp::$operator, other)
            }
        }

        impl<R: Into<Expr>> $operator<R> for &Expr {
            type Output = Expr;
            fn $method(self, other: R) -> Expr {
                self.clone().binary(BinaryOp::$operator, other)
            }
        }

        impl $operator<Expr> for f64 {
            type Output = Expr;
            fn $method(self, other: Expr) -> Expr {
                Expr::constant(self).binary(BinaryOp::$operator, other)
            }
        }

        impl $operator<&Expr> for f64 {
            type Output = Expr;
            fn $method(self, other: &Expr) -> Expr {
                Expr::constant(self).binary(BinaryOp::$operator, other)
            }
        }
    )*};
}

operators! { Add add, Sub sub, Mul mul, Div div, Rem rem }

impl Neg for Expr {
    type Output = Expr;
    fn neg(self) -> Expr {
        self.unary(UnaryOp::Neg)
    }
}

impl Neg for &Expr {
    type Output = Expr;
    fn neg(self) -> Expr {
        self.clone().unary(UnaryOp::Neg)
    }
}
