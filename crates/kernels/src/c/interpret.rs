//! Elementwise expressions as instructions for the kernel of `interpret.c`, which runs programs of
//! any length. The numeric codes here and in `interpret.c` must agree.

use panoply_core::DType;
use panoply_core::expr::{Node, NodeId, Program, Types, Value};

/// Words of one instruction.
pub const INSTRUCTION_WORDS: usize = 8;

const CODE_INPUT: u32 = 0;
const CODE_CONSTANT: u32 = 1;
const CODE_CAST: u32 = 2;
const CODE_UNARY: u32 = 16;
const CODE_BINARY: u32 = 64;
const CODE_TERNARY: u32 = 128;

/// A program for the interpreter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instructions {
    /// Eight words per instruction.
    pub words: Vec<u32>,
    /// Number of values alive at the same time.
    pub slots: u32,
}

/// The number of a dtype in the interpreter.
pub const fn stored(dtype: DType) -> u32 {
    match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::BF16 => 2,
        DType::F64 => 3,
        DType::I32 => 4,
        DType::U32 => 5,
        DType::I8 => 6,
        DType::U8 => 7,
        DType::Complex64 => 8,
    }
}

/// The instructions of a program whose nodes have these types.
pub fn instructions(program: &Program, types: &Types) -> Instructions {
    let mut assembler = Assembler { words: Vec::new(), slots: Slots::new(program, types) };
    for (id, node) in program.nodes().iter().enumerate() {
        if let Value::Typed(dtype) = types.values()[id] {
            assembler.node(id, *node, types, dtype);
        }
    }
    let last = program.nodes().len() - 1;
    if let Value::Constant(value) = types.values()[last] {
        assembler.constant(value, DType::F32);
    }
    Instructions { words: assembler.words, slots: assembler.slots.count }
}

struct Assembler {
    words: Vec<u32>,
    slots: Slots,
}

impl Assembler {
    fn node(&mut self, id: usize, node: Node, types: &Types, dtype: DType) {
        let mut sources = [0; 3];
        let mut constants = [None; 3];
        for (place, operand) in node.operands().enumerate() {
            sources[place] = match types.values()[operand as usize] {
                Value::Typed(_) => self.slots.of[operand as usize],
                // As the operand of a cast a constant is f64. Everywhere else it has the result's
                // dtype.
                Value::Constant(value) => {
                    let beside = if matches!(node, Node::Cast(..)) { DType::F64 } else { dtype };
                    let slot = self.constant(value, beside);
                    constants[place] = Some(slot);
                    slot
                }
            };
        }
        constants.iter().flatten().for_each(|slot| self.slots.free.push(*slot));
        let [a, b, c] = sources;
        // Operands are read before the result is written, so a result may reuse the slot of an
        // operand that is not needed again.
        self.slots.release(id, node);
        let target = self.slots.take(id);
        match node {
            Node::Input(index) => self.push([CODE_INPUT, stored(dtype), target, index, 0, 0], 0),
            Node::Const(constant) => self.push([CODE_CONSTANT, 0, target, 0, 0, 0], bits(constant.value(), dtype)),
            Node::Cast(to, operand) => {
                let from = match types.values()[operand as usize] {
                    Value::Typed(from) => from,
                    Value::Constant(_) => DType::F64,
                };
                let from = if from == to { COPY } else { carrier(from) };
                self.push([CODE_CAST, from, target, a, stored(to), 0], 0);
            }
            Node::Unary(op, _) => self.push([CODE_UNARY + op as u32, carrier(dtype), target, a, b, c], 0),
            Node::Binary(op, ..) => self.push([CODE_BINARY + op as u32, carrier(dtype), target, a, b, c], 0),
            Node::Ternary(op, ..) => self.push([CODE_TERNARY + op as u32, carrier(dtype), target, a, b, c], 0),
        }
    }

    /// Emits an instruction that loads a constant into a new slot.
    fn constant(&mut self, value: f64, dtype: DType) -> u32 {
        let slot = self.slots.any();
        self.push([CODE_CONSTANT, 0, slot, 0, 0, 0], bits(value, dtype));
        slot
    }

    fn push(&mut self, words: [u32; 6], constant: u64) {
        self.words.extend(words);
        self.words.extend([constant as u32, (constant >> 32) as u32]);
    }
}

/// The carrier code of a cast that changes nothing.
const COPY: u32 = 4;

/// The number of a dtype's carrier and of its narrowing.
const fn carrier(dtype: DType) -> u32 {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => 0,
        DType::F64 => 1,
        DType::I32 => 2,
        DType::U32 => 3,
        DType::Complex64 => 4,
        DType::I8 => 5,
        DType::U8 => 6,
    }
}

/// A constant as its carrier's bits.
fn bits(value: f64, dtype: DType) -> u64 {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 | DType::Complex64 => u64::from((value as f32).to_bits()),
        DType::F64 => value.to_bits(),
        DType::I32 | DType::I8 => u64::from(value as i32 as u32),
        DType::U32 | DType::U8 => u64::from(value as u32),
    }
}

/// The slot of each node's value. Slots are reused after a value's last use.
struct Slots {
    of: Vec<u32>,
    last_use: Vec<NodeId>,
    free: Vec<u32>,
    count: u32,
}

impl Slots {
    fn new(program: &Program, types: &Types) -> Slots {
        let nodes = program.nodes();
        let mut last_use: Vec<NodeId> = (0..nodes.len() as NodeId).collect();
        for (id, node) in nodes.iter().enumerate() {
            if matches!(types.values()[id], Value::Typed(_)) {
                node.operands().for_each(|operand| last_use[operand as usize] = id as NodeId);
            }
        }
        Slots { of: vec![u32::MAX; nodes.len()], last_use, free: Vec::new(), count: 0 }
    }

    fn any(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.count += 1;
            self.count - 1
        })
    }

    fn take(&mut self, id: usize) -> u32 {
        self.of[id] = self.any();
        self.of[id]
    }

    /// Frees the slots of operands whose last reader is this node.
    fn release(&mut self, id: usize, node: Node) {
        for operand in node.operands() {
            let slot = self.of[operand as usize];
            if slot != u32::MAX && self.last_use[operand as usize] == id as NodeId && !self.free.contains(&slot) {
                self.free.push(slot);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use panoply_core::expr::Expr;

    use super::*;

    fn assemble(expr: &Expr, dtypes: &[DType]) -> Instructions {
        let program = expr.finish().unwrap();
        instructions(&program, &program.types(dtypes).unwrap())
    }

    #[test]
    fn slots_are_used_again() {
        let x = Expr::input(0);
        let deep = (0..1000).fold(x.clone(), |value, _| value * 2.0 - &x);
        let code = assemble(&deep, &[DType::F32]);
        assert_eq!(code.words.len() % INSTRUCTION_WORDS, 0);
        assert!(code.slots <= 4, "{} slots", code.slots);
    }

    #[test]
    fn constants_take_the_dtype_beside_them() {
        let code = assemble(&(Expr::input(0) + 3.0), &[DType::F64]);
        let constant = &code.words[INSTRUCTION_WORDS..2 * INSTRUCTION_WORDS];
        assert_eq!(constant[0], CODE_CONSTANT);
        assert_eq!(u64::from(constant[7]) << 32 | u64::from(constant[6]), 3.0_f64.to_bits());
        let alone = assemble(&Expr::constant(0.5), &[]);
        assert_eq!((alone.words[0], alone.words[6]), (CODE_CONSTANT, 0.5_f32.to_bits()));
    }
}
