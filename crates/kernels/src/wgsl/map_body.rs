//! The expression of a map without the values of its constants, which are parameters. Expressions
//! that differ only in constants share a kernel.

use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};

use panoply_core::expr::{Constant, ExprError, Node, Program, Types, Value};
use panoply_core::{DType, bf16, f16};

use super::map::{CONSTANTS_MAX, binary, cast, ternary, unary};
use super::prelude::carrier;

/// An expression over inputs of certain types.
#[derive(Clone, Debug)]
pub struct MapBody {
    /// A hash of the other fields.
    hash: u64,
    /// The nodes. Constants, and nodes computed from constants only, have no value here.
    pub(super) nodes: Box<[Node]>,
    /// The type of every node. `None` for constants.
    types: Box<[Option<DType>]>,
    /// The type of the result.
    pub(super) output: DType,
    /// The types of constants, in the order in which nodes use them.
    constants: Box<[DType]>,
    /// The words of the constants, if they are too many to be parameters.
    literals: Option<Box<[u32]>>,
}

impl MapBody {
    /// The expression, and the words of its constants for the kernel's parameters.
    pub fn new(program: &Program, inputs: &[DType]) -> Result<(MapBody, Vec<u32>), ExprError> {
        let types = program.types(inputs)?;
        let uses = uses(program, &types);
        let constants: Box<[DType]> = uses.iter().map(|(dtype, _)| *dtype).collect();
        let mut words: Vec<u32> = uses.iter().map(|(_, word)| *word).collect();
        let literals = (words.len() > CONSTANTS_MAX).then(|| std::mem::take(&mut words).into());
        let (mut nodes, mut own) = (Vec::new(), Vec::new());
        for (node, value) in program.nodes().iter().zip(types.values()) {
            let (node, dtype) = match value {
                Value::Constant(_) => (Node::Const(Constant::new(0.0)), None),
                Value::Typed(dtype) => (*node, Some(*dtype)),
            };
            nodes.push(node);
            own.push(dtype);
        }
        let mut hasher = DefaultHasher::new();
        (&nodes, &own, types.output(), &constants, &literals).hash(&mut hasher);
        let (hash, output) = (hasher.finish(), types.output());
        Ok((MapBody { hash, nodes: nodes.into(), types: own.into(), output, constants, literals }, words))
    }

    /// Number of constants that are parameters.
    pub(super) fn parameters(&self) -> usize {
        if self.literals.is_some() { 0 } else { self.constants.len() }
    }

    /// The declarations of the constants among the parameters.
    pub(super) fn names(&self) -> impl Iterator<Item = String> {
        self.names_as("k")
    }

    /// As `names`, with this prefix.
    pub(super) fn names_as(&self, prefix: &str) -> impl Iterator<Item = String> {
        let of = move |(number, dtype): (usize, &DType)| format!("{prefix}{number}: {}", scalar(*dtype));
        self.constants[..self.parameters()].iter().enumerate().map(of)
    }

    /// The text of `fn body(...)`: the expression, one line for each node.
    pub(super) fn text(&self, read: &[usize], dtypes: &[DType]) -> String {
        self.text_as("body", "k", read, dtypes)
    }

    /// As `text`, with this function name and this prefix of constants.
    pub(super) fn text_as(&self, name: &str, prefix: &str, read: &[usize], dtypes: &[DType]) -> String {
        let arguments = read.iter().map(|index| format!("x{index}: {}", carrier(dtypes[*index])));
        let arguments = arguments.collect::<Vec<_>>().join(", ");
        let mut text = format!("fn {name}({arguments}) -> {} {{\n", carrier(self.output));
        let mut used = 0;
        let mut constant = || {
            used += 1;
            self.constant(prefix, used - 1)
        };
        for (id, node) in self.nodes.iter().enumerate() {
            let Some(dtype) = self.types[id] else { continue };
            let mut operand = |id: u32| match self.types[id as usize] {
                None => constant(),
                Some(_) => format!("v{id}"),
            };
            let value = match *node {
                Node::Input(index) => format!("x{index}"),
                Node::Const(_) => constant(),
                Node::Cast(to, a) => match self.types[a as usize] {
                    None => constant(),
                    Some(from) => cast(from, to, &format!("v{a}")),
                },
                Node::Unary(op, a) => unary(op, dtype, &operand(a)),
                Node::Binary(op, a, b) => {
                    let (a, b) = (operand(a), operand(b));
                    binary(op, dtype, &a, &b)
                }
                Node::Ternary(op, a, b, c) => {
                    let (a, b, c) = (operand(a), operand(b), operand(c));
                    ternary(op, dtype, &a, &b, &c)
                }
            };
            // Writing to a String cannot fail, here and below.
            let _ = writeln!(text, "  let v{id}: {} = {value};", carrier(dtype));
        }
        let last = self.nodes.len() - 1;
        let result = if self.types[last].is_none() { constant() } else { format!("v{last}") };
        let _ = writeln!(text, "  return {result};\n}}");
        text
    }

    /// The use of the constant with this number.
    fn constant(&self, prefix: &str, number: usize) -> String {
        let dtype = self.constants[number];
        let value = match (&self.literals, scalar(dtype)) {
            (None, _) => format!("p.{prefix}{number}"),
            (Some(words), "i32") => format!("bitcast<i32>({:#x}u)", words[number]),
            (Some(words), "u32") => format!("{:#x}u", words[number]),
            // `zero_bits` hides the constant from the compiler's front end, which rejects NaN and
            // subnormal literals.
            (Some(words), _) => format!("bitcast<f32>(zero_bits | {:#x}u)", words[number]),
        };
        if dtype == DType::Complex64 { format!("vec2<f32>({value}, 0.0)") } else { value }
    }
}

impl PartialEq for MapBody {
    fn eq(&self, other: &MapBody) -> bool {
        self.hash == other.hash
            && self.nodes == other.nodes
            && self.types == other.types
            && self.output == other.output
            && self.constants == other.constants
            && self.literals == other.literals
    }
}

impl Eq for MapBody {}

impl Hash for MapBody {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// The type of one word of a constant.
fn scalar(dtype: DType) -> &'static str {
    match carrier(dtype) {
        "vec2<f32>" => "f32",
        other => other,
    }
}

/// The type and the word of every constant, in the order in which nodes use them.
fn uses(program: &Program, types: &Types) -> Vec<(DType, u32)> {
    let mut found = Vec::new();
    let values = types.values();
    for (node, value) in program.nodes().iter().zip(values) {
        let Value::Typed(dtype) = *value else { continue };
        for operand in node.operands() {
            let Value::Constant(value) = values[operand as usize] else { continue };
            found
                .push((dtype, word(if matches!(node, Node::Cast(..)) { rounded(value, dtype) } else { value }, dtype)));
        }
    }
    if let Some(Value::Constant(value)) = values.last() {
        found.push((DType::F32, word(*value, DType::F32)));
    }
    found
}

/// The word of a constant used with operands of this type.
fn word(value: f64, dtype: DType) -> u32 {
    if dtype.is_integer() { value as i64 as u32 } else { (value as f32).to_bits() }
}

/// A constant cast to this type.
fn rounded(value: f64, to: DType) -> f64 {
    match to {
        DType::I32 => f64::from(value as i32),
        DType::U32 => f64::from(value as u32),
        DType::I8 => f64::from(value as i8),
        DType::U8 => f64::from(value as u8),
        DType::F16 => f16::from_f32(value as f32).to_f64(),
        DType::BF16 => bf16::from_f32(value as f32).to_f64(),
        _ => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use panoply_core::expr::Expr;

    #[test]
    fn expressions_that_differ_in_constants_alone_share_a_kernel() {
        let body = |scale: f64, shift: f64| {
            let program = (Expr::input(0) * scale + shift).relu().finish().unwrap();
            MapBody::new(&program, &[DType::F32]).unwrap()
        };
        let ((one, words), (other, others)) = (body(2.0, 3.0), body(f64::NAN, -0.5));
        assert_eq!(one, other);
        assert_eq!(words, [2.0_f32, 3.0].map(f32::to_bits));
        assert_eq!(others, [f32::NAN, -0.5].map(f32::to_bits));
        let program = (Expr::input(0) * 2.0).finish().unwrap();
        assert_ne!(MapBody::new(&program, &[DType::F32]).unwrap().0, one);
        assert_ne!(MapBody::new(&program, &[DType::I32]).unwrap(), MapBody::new(&program, &[DType::F32]).unwrap());
    }

    #[test]
    fn what_is_made_of_constants_is_one_constant() {
        let program = (Expr::input(0) + Expr::constant(4.0).sqrt()).finish().unwrap();
        let (body, words) = MapBody::new(&program, &[DType::F32]).unwrap();
        assert_eq!(words, [2.0_f32.to_bits()]);
        assert!(body.text(&[0], &[DType::F32]).contains("(v0 + p.k0)"));
    }
}
