//! Elementwise functions, as expressions of a graph.

use panoply_core::expr::Expr;

/// A function of each element. Its operands come first, then the numbers that it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // Each is the function of its name.
pub enum Formula {
    Add,
    Sub,
    Mul,
    Div,
    Pow,
    Neg,
    Recip,
    Exp,
    Log,
    Sqrt,
    Abs,
    Cos,
    Sin,
    Tanh,
    Erf,
    Floor,
    Ceil,
    Sigmoid,
    Relu,
    /// The second operand, where the first is above zero.
    ReluBackward,
    Equal,
    NotEqual,
    Greater,
    GreaterEqual,
    Lower,
    LowerEqual,
    Not,
    And,
    Or,
    /// The third where the second is true, and the first elsewhere.
    Where,
    /// The operand as it is, in f32.
    Same,
}

impl Formula {
    /// Whether its answer is true or false.
    pub fn is_truth(self) -> bool {
        use Formula::{And, Equal, Greater, GreaterEqual, Lower, LowerEqual, Not, NotEqual, Or};
        matches!(self, Equal | NotEqual | Greater | GreaterEqual | Lower | LowerEqual | Not | And | Or)
    }

    /// The expression over its operands and numbers, of which there are as many as it needs.
    pub fn of(self, v: &[Expr]) -> Expr {
        let at = |place: usize| v.get(place).cloned().unwrap_or_else(|| Expr::constant(0.0));
        let (a, b) = (at(0), at(1));
        match self {
            Formula::Add => a + b,
            Formula::Sub => a - b,
            Formula::Mul => a * b,
            Formula::Div => a / b,
            Formula::Pow => a.pow(b),
            Formula::Neg => -a,
            Formula::Recip => Expr::constant(1.0) / a,
            Formula::Exp => a.exp(),
            Formula::Log => a.log(),
            Formula::Sqrt => a.sqrt(),
            Formula::Abs => a.abs(),
            Formula::Cos => a.cos(),
            Formula::Sin => a.sin(),
            Formula::Tanh => a.tanh(),
            Formula::Erf => a.erf(),
            Formula::Floor => a.floor(),
            Formula::Ceil => a.ceil(),
            Formula::Sigmoid => a.sigmoid(),
            Formula::Relu => a.relu(),
            Formula::ReluBackward => a.gt(0.0).select(b, 0.0),
            Formula::Equal => a.eq(b),
            Formula::NotEqual => a.ne(b),
            Formula::Greater => a.gt(b),
            Formula::GreaterEqual => a.ge(b),
            Formula::Lower => a.lt(b),
            Formula::LowerEqual => a.le(b),
            Formula::Not => a.eq(0.0),
            Formula::And => a * b,
            Formula::Or => a.max(b),
            Formula::Where => b.select(at(2), a),
            Formula::Same => a,
        }
    }
}
