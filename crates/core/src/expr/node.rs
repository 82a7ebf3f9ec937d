//! The kinds of nodes of an expression. Their exact meaning is in the [module's
//! documentation](super).

use crate::dtype::DType;

/// The index of a node in its expression. A node's operands always have smaller numbers than the
/// node.
pub type NodeId = u32;

/// One step of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Node {
    /// The element of the input with this index.
    Input(u32),
    /// A constant, which takes the dtype of the other operands.
    Const(Constant),
    /// A function of one value.
    Unary(UnaryOp, NodeId),
    /// A function of two values.
    Binary(BinaryOp, NodeId, NodeId),
    /// A function of three values.
    Ternary(TernaryOp, NodeId, NodeId, NodeId),
    /// The value converted to another dtype.
    Cast(DType, NodeId),
}

impl Node {
    /// The operands of this node, in order.
    pub fn operands(&self) -> impl DoubleEndedIterator<Item = NodeId> + use<> {
        let (ids, count) = match *self {
            Node::Input(_) | Node::Const(_) => ([0; 3], 0),
            Node::Unary(_, a) | Node::Cast(_, a) => ([a, 0, 0], 1),
            Node::Binary(_, a, b) => ([a, b, 0], 2),
            Node::Ternary(_, a, b, c) => ([a, b, c], 3),
        };
        (0..count).map(move |index| ids[index])
    }

    /// The same node with `rename` applied to each of its operands.
    pub fn renamed(&self, rename: impl Fn(NodeId) -> NodeId) -> Node {
        match *self {
            Node::Input(_) | Node::Const(_) => *self,
            Node::Unary(op, a) => Node::Unary(op, rename(a)),
            Node::Cast(dtype, a) => Node::Cast(dtype, rename(a)),
            Node::Binary(op, a, b) => Node::Binary(op, rename(a), rename(b)),
            Node::Ternary(op, a, b, c) => Node::Ternary(op, rename(a), rename(b), rename(c)),
        }
    }

    /// A 64-bit hash that is the same in every process, on every platform, and in every release
    /// that keeps the order of the operations.
    pub(super) fn stable_hash(&self) -> u64 {
        let (tag, code, words) = match *self {
            Node::Input(index) => (1, 0, [u64::from(index), 0]),
            Node::Const(constant) => (2, 0, [constant.0, 0]),
            Node::Unary(op, a) => (3, op as u64, [u64::from(a), 0]),
            Node::Binary(op, a, b) => (4, op as u64, [u64::from(a) << 32 | u64::from(b), 0]),
            Node::Ternary(op, a, b, c) => (5, op as u64, [u64::from(a) << 32 | u64::from(b), u64::from(c)]),
            Node::Cast(dtype, a) => (6, dtype as u64, [u64::from(a), 0]),
        };
        words.iter().fold(mix(tag << 8 | code), |hash, word| mix(hash ^ word))
    }
}

/// Mixes every bit of the input into the whole output, by multiply and shift steps.
pub(super) fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let word = (word ^ (word >> 29)).wrapping_mul(0xa076_1d64_78bd_642f);
    word ^ (word >> 32)
}

/// A constant of an expression: an f64 that is compared by its bits. All NaNs are equal.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Constant(u64);

impl Constant {
    /// The constant `value`.
    pub fn new(value: f64) -> Constant {
        Constant(if value.is_nan() { f64::NAN.to_bits() } else { value.to_bits() })
    }

    /// The constant's value.
    pub fn value(self) -> f64 {
        f64::from_bits(self.0)
    }
}

impl core::fmt::Debug for Constant {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.value().fmt(f)
    }
}

macro_rules! operations {
    ($(#[$doc:meta])* $name:ident { $($(#[$item_doc:meta])* $item:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name {
            $($(#[$item_doc])* $item,)*
        }

        impl $name {
            /// Every operation of this arity. The order is part of
            /// [`Program::hash`](super::Program::hash).
            pub const ALL: &'static [$name] = &[$($name::$item,)*];

            /// The name in the textual form and in messages.
            pub const fn name(self) -> &'static str {
                match self {
                    $($name::$item => $text,)*
                }
            }
        }
    };
}

operations! {
    /// Functions of one value.
    UnaryOp {
        /// `-x`; wraps for integers.
        Neg = "neg",
        /// The absolute value.
        Abs = "abs",
        /// `e` to the power of `x`.
        Exp = "exp",
        /// The natural logarithm: -∞ at zero, NaN below.
        Log = "log",
        /// The square root: NaN below zero.
        Sqrt = "sqrt",
        /// `1 / sqrt(x)`.
        Rsqrt = "rsqrt",
        /// `1 / x`.
        Recip = "recip",
        /// The hyperbolic tangent.
        Tanh = "tanh",
        /// `1 / (1 + exp(-x))`.
        Sigmoid = "sigmoid",
        /// The error function.
        Erf = "erf",
        /// `max(x, 0)`.
        Relu = "relu",
        /// `x · Φ(x)` with the normal distribution's Φ, computed with the error function.
        Gelu = "gelu",
        /// `x / 2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))`.
        GeluTanh = "gelu_tanh",
        /// `x · sigmoid(x)`.
        Silu = "silu",
        /// The largest whole number that is not above `x`.
        Floor = "floor",
        /// The smallest whole number that is not below `x`.
        Ceil = "ceil",
        /// The nearest whole number, ties to even.
        Round = "round",
        /// The sine of `x` radians.
        Sin = "sin",
        /// The cosine of `x` radians.
        Cos = "cos",
        /// 1 if `x` is zero, else 0.
        Not = "not",
    }
}

operations! {
    /// Functions of two values.
    BinaryOp {
        /// `a + b`.
        Add = "add",
        /// `a - b`.
        Sub = "sub",
        /// `a · b`.
        Mul = "mul",
        /// `a / b`; truncated for integers, 0 for an integer divided by zero.
        Div = "div",
        /// `a - b · trunc(a / b)`; 0 for an integer divided by zero.
        Rem = "rem",
        /// `a` to the power of `b`.
        Pow = "pow",
        /// The smaller value; NaN if either is NaN.
        Min = "min",
        /// The larger value; NaN if either is NaN.
        Max = "max",
        /// 1 if `a = b`, else 0.
        Eq = "eq",
        /// 1 if `a ≠ b`, else 0.
        Ne = "ne",
        /// 1 if `a < b`, else 0.
        Lt = "lt",
        /// 1 if `a ≤ b`, else 0.
        Le = "le",
        /// 1 if `a > b`, else 0.
        Gt = "gt",
        /// 1 if `a ≥ b`, else 0.
        Ge = "ge",
        /// 1 if neither is zero, else 0.
        And = "and",
        /// 1 if at least one is not zero, else 0.
        Or = "or",
    }
}

operations! {
    /// Functions of three values.
    TernaryOp {
        /// `b` if `a` is not zero, else `c`.
        Select = "select",
        /// `min(max(a, b), c)`.
        Clamp = "clamp",
        /// `a · b + c`, with one rounding or two.
        MulAdd = "mul_add",
    }
}
