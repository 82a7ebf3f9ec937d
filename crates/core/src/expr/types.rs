//! Dtypes of an expression's nodes.

use super::ExprError;
use super::node::{BinaryOp, Node, TernaryOp, UnaryOp};
use super::program::Program;
use crate::dtype::DType;

/// Programs up to this size are typed without a heap allocation.
const INLINE_NODES_MAX: usize = 16;

/// The static knowledge about a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// The node depends only on constants and has this value, in f64. It takes the dtype of the
    /// other operands.
    Constant(f64),
    /// The node has this dtype.
    Typed(DType),
}

/// The dtypes of all nodes of a program, from [`Program::types`].
#[derive(Clone, Debug, PartialEq)]
pub struct Types {
    values: Vec<Value>,
}

impl Types {
    /// One value for each node, in the order of the nodes.
    pub fn values(&self) -> &[Value] {
        &self.values
    }

    /// The dtype of the result; f32 for a constant.
    pub fn output(&self) -> DType {
        self.values.last().map_or(DType::F32, |value| value.dtype_or_f32())
    }
}

impl Value {
    fn dtype_or_f32(self) -> DType {
        match self {
            Value::Typed(dtype) => dtype,
            Value::Constant(_) => DType::F32,
        }
    }
}

impl Program {
    /// Checks the program against the dtypes of the inputs and infers the dtype of every node.
    /// There may be more inputs than the program reads.
    pub fn types(&self, inputs: &[DType]) -> Result<Types, ExprError> {
        let mut values = vec![Value::Constant(0.0); self.nodes().len()];
        self.infer(inputs, &mut values)?;
        Ok(Types { values })
    }

    /// The dtype of the result for inputs of these dtypes, with the checks of [`Program::types`].
    pub fn output_dtype(&self, inputs: &[DType]) -> Result<DType, ExprError> {
        let nodes = self.nodes().len();
        if nodes > INLINE_NODES_MAX {
            return self.types(inputs).map(|types| types.output());
        }
        let mut values = [Value::Constant(0.0); INLINE_NODES_MAX];
        self.infer(inputs, &mut values[..nodes])?;
        Ok(values[nodes - 1].dtype_or_f32())
    }

    fn infer(&self, inputs: &[DType], values: &mut [Value]) -> Result<(), ExprError> {
        if (inputs.len() as u64) < u64::from(self.inputs()) {
            return Err(ExprError::MissingInput { expected: self.inputs(), got: inputs.len() as u32 });
        }
        for (id, node) in self.nodes().iter().enumerate() {
            values[id] = node_value(*node, inputs, values)?;
        }
        Ok(())
    }
}

fn node_value(node: Node, inputs: &[DType], values: &[Value]) -> Result<Value, ExprError> {
    let value = |id: u32| values[id as usize];
    match node {
        Node::Input(index) => Ok(Value::Typed(inputs[index as usize])),
        Node::Const(constant) => Ok(Value::Constant(constant.value())),
        Node::Unary(op, a) => match value(a) {
            Value::Constant(a) => Ok(Value::Constant(op.eval(a))),
            Value::Typed(dtype) => op.accepts(dtype).map(Value::Typed),
        },
        Node::Binary(op, a, b) => match (value(a), value(b)) {
            (Value::Constant(a), Value::Constant(b)) => Ok(Value::Constant(op.eval(a, b))),
            (a, b) => op.accepts(one_dtype(op.name(), &[a, b])?).map(Value::Typed),
        },
        Node::Ternary(op, a, b, c) => match (value(a), value(b), value(c)) {
            (Value::Constant(a), Value::Constant(b), Value::Constant(c)) => Ok(Value::Constant(op.eval(a, b, c))),
            (a, b, c) => op.accepts(one_dtype(op.name(), &[a, b, c])?).map(Value::Typed),
        },
        Node::Cast(to, a) => match value(a) {
            Value::Typed(from @ DType::Complex64) if to != from => Err(ExprError::Cast { from, to }),
            _ => Ok(Value::Typed(to)),
        },
    }
}

/// The common dtype of the typed operands. Constants among the operands must be values of that
/// dtype.
fn one_dtype(op: &'static str, operands: &[Value]) -> Result<DType, ExprError> {
    let mut agreed = None;
    for operand in operands {
        if let Value::Typed(got) = *operand {
            let expected = *agreed.get_or_insert(got);
            if expected != got {
                return Err(ExprError::DTypeMismatch { op, expected, got });
            }
        }
    }
    let dtype = agreed.unwrap_or(DType::F32);
    for operand in operands {
        if let Value::Constant(value) = *operand
            && !representable(value, dtype)
        {
            return Err(ExprError::ConstantNotRepresentable { value, dtype });
        }
    }
    Ok(dtype)
}

fn representable(value: f64, dtype: DType) -> bool {
    let (low, high) = match dtype {
        DType::I32 => (f64::from(i32::MIN), f64::from(i32::MAX)),
        DType::U32 => (0.0, f64::from(u32::MAX)),
        DType::I8 => (f64::from(i8::MIN), f64::from(i8::MAX)),
        DType::U8 => (0.0, f64::from(u8::MAX)),
        _ => return true,
    };
    value.fract() == 0.0 && (low..=high).contains(&value)
}

impl UnaryOp {
    /// Checks that the function is defined for operands of this dtype, and returns the dtype.
    pub fn accepts(self, dtype: DType) -> Result<DType, ExprError> {
        use UnaryOp::*;
        let accepted = match dtype {
            DType::Complex64 => matches!(self, Neg | Recip),
            _ if dtype.is_integer() => matches!(self, Neg | Abs | Relu | Floor | Ceil | Round | Not),
            _ => true,
        };
        if accepted { Ok(dtype) } else { Err(ExprError::Unsupported { op: self.name(), dtype }) }
    }
}

impl BinaryOp {
    /// Checks that the function is defined for operands of this dtype, and returns the dtype.
    pub fn accepts(self, dtype: DType) -> Result<DType, ExprError> {
        use BinaryOp::*;
        let accepted = dtype != DType::Complex64 || matches!(self, Add | Sub | Mul | Div);
        if accepted { Ok(dtype) } else { Err(ExprError::Unsupported { op: self.name(), dtype }) }
    }
}

impl TernaryOp {
    /// Checks that the function is defined for operands of this dtype, and returns the dtype.
    pub fn accepts(self, dtype: DType) -> Result<DType, ExprError> {
        let accepted = dtype != DType::Complex64 || self == TernaryOp::MulAdd;
        if accepted { Ok(dtype) } else { Err(ExprError::Unsupported { op: self.name(), dtype }) }
    }
}
