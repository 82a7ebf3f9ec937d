//! Compilation of a program to a list of kernel calls over numbered places.
//!
//! A place is an input's block, a register (a block of scratch memory) or the output's block.
//! Registers are assigned by liveness: a value's register is free again after its last reader. A
//! step's target never shares a register with its sources, so kernels need not handle overlap. Each
//! constant is spread over a register of its own once, before the first block. Constants beyond
//! [`SPREAD_CONSTANTS_MAX`] are spread again at each use.

use std::collections::HashMap;

use panoply_core::expr::{BinaryOp, Node, Program, UnaryOp, Value};
use panoply_core::{DType, Result};

use super::convert::{cast_fn, constant_word, copy_fn, kind_of, load_fn, round_constant, round_fn, store_fn};
use super::fuse::{NodeTreatment, Swish, fates};
use super::kernel::{BlockFn, ComputeType, binary_fn, fill_fn, ternary_fn, unary_fn};
use crate::simd::Simd;

/// Maximum number of constants that keep a register for the whole run.
const SPREAD_CONSTANTS_MAX: usize = 6;

/// A compiled program for inputs of certain dtypes and a level of vector instructions.
#[derive(Debug)]
pub struct MapPlan {
    pub(super) program: Program,
    pub(super) input_dtypes: Vec<DType>,
    pub(super) output_dtype: DType,
    pub(super) simd: Simd,
    /// Steps that fill the registers of constants; run once.
    pub(super) prologue: Vec<KernelCall>,
    /// Steps that run for every block.
    pub(super) steps: Vec<KernelCall>,
    pub(super) constants: Vec<u64>,
    pub(super) registers: u32,
    /// Size of the widest element of any register.
    pub(super) register_element_bytes: usize,
    /// Approximate cost of one element; a plain vector operation costs 1.
    pub(super) cost: usize,
}

/// One kernel call.
#[derive(Clone, Copy, Debug)]
pub(super) struct KernelCall {
    pub run: BlockFn,
    pub target: OperandPlace,
    pub sources: [OperandPlace; 3],
}

/// The source or target of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OperandPlace {
    Input(u32),
    Register(u32),
    /// One element of the plan's constants.
    Constant(u32),
    Output,
}

impl MapPlan {
    /// Compiles a program for this level, or for the CPU's level if that is lower. Fails if
    /// [`Program::types`] fails.
    pub fn compile(program: &Program, input_dtypes: &[DType], simd: Simd) -> Result<MapPlan> {
        let simd = simd.min(Simd::detect());
        let types = program.types(input_dtypes)?;
        let output_dtype = types.output();
        let mut compiler = Compiler::new(program, types.values(), simd);
        compiler.nodes();
        compiler.result(output_dtype);
        let cost = compiler.cost;
        Ok(MapPlan {
            program: program.clone(),
            input_dtypes: input_dtypes.to_vec(),
            output_dtype,
            simd,
            prologue: compiler.prologue,
            steps: compiler.steps,
            constants: compiler.constants,
            registers: compiler.registers,
            register_element_bytes: compiler.register_element_bytes,
            cost,
        })
    }

    /// Number of registers and of steps.
    #[doc(hidden)]
    pub fn size(&self) -> (u32, usize) {
        (self.registers, self.steps.len())
    }

    /// The dtype of the result.
    pub fn output_dtype(&self) -> DType {
        self.output_dtype
    }
}

struct Compiler<'a> {
    program: &'a Program,
    values: &'a [Value],
    simd: Simd,
    fates: Vec<NodeTreatment>,
    /// The node that computes each node's value: the node itself, or its operand if it changes
    /// nothing.
    origin: Vec<u32>,
    last_reader: Vec<u32>,
    places: Vec<Option<OperandPlace>>,
    free: Vec<u32>,
    registers: u32,
    register_element_bytes: usize,
    constants: Vec<u64>,
    constant_index: HashMap<(ComputeType, u64), u32>,
    spread: Vec<Option<u32>>,
    prologue: Vec<KernelCall>,
    steps: Vec<KernelCall>,
    cost: usize,
}

impl<'a> Compiler<'a> {
    fn new(program: &'a Program, values: &'a [Value], simd: Simd) -> Compiler<'a> {
        let count = program.nodes().len();
        let mut compiler = Compiler {
            program,
            values,
            simd,
            fates: fates(program, values),
            origin: (0..count as u32).collect(),
            last_reader: vec![0; count],
            places: vec![None; count],
            free: Vec::new(),
            registers: 0,
            register_element_bytes: 1,
            constants: Vec::new(),
            constant_index: HashMap::new(),
            spread: Vec::new(),
            prologue: Vec::new(),
            steps: Vec::new(),
            cost: 0,
        };
        for (id, node) in program.nodes().iter().enumerate() {
            if let Some(operand) = compiler.unchanged(*node) {
                compiler.origin[id] = compiler.origin[operand as usize];
            }
            compiler.each_read(id as u32, |compiler, origin| compiler.last_reader[origin as usize] = id as u32);
        }
        compiler
    }

    /// The operand of a node that returns its operand unchanged.
    fn unchanged(&self, node: Node) -> Option<u32> {
        let dtype = |id: u32| match self.values[id as usize] {
            Value::Typed(dtype) => Some(dtype),
            Value::Constant(_) => None,
        };
        match node {
            Node::Cast(to, a) if dtype(a) == Some(to) => Some(a),
            Node::Unary(UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round, a) if dtype(a)?.is_integer() => Some(a),
            Node::Unary(UnaryOp::Abs | UnaryOp::Relu, a) if matches!(dtype(a)?, DType::U8 | DType::U32) => Some(a),
            _ => None,
        }
    }

    fn nodes(&mut self) {
        let last = self.origin[self.origin.len() - 1];
        for (id, node) in self.program.nodes().iter().enumerate() {
            let id = id as u32;
            let Value::Typed(dtype) = self.values[id as usize] else { continue };
            if self.origin[id as usize] != id {
                self.release_operands(id);
                continue;
            }
            let to_output = id == last && store_fn(dtype, self.simd).is_none();
            match self.fates[id as usize] {
                NodeTreatment::Absorbed => continue,
                NodeTreatment::Fused(fusion) => {
                    self.call(id, fusion.block_fn(self.simd), fusion.operands, ComputeType::F32, to_output);
                }
                NodeTreatment::Swish(swish) => self.swish(id, &swish, to_output),
                NodeTreatment::Quantized(quantized) => {
                    self.call(id, quantized.block_fn(self.simd), quantized.operands, ComputeType::F32, to_output);
                }
                NodeTreatment::Alone => self.node(id, *node, dtype, to_output),
            }
            self.release_operands(id);
        }
    }

    fn node(&mut self, id: u32, node: Node, dtype: DType, to_output: bool) {
        let kind = kind_of(dtype);
        let (run, operands) = match self.simplified(node) {
            Node::Input(index) => return self.input(id, index, dtype),
            Node::Const(_) => return,
            Node::Cast(to, a) => return self.cast(id, to, a, to_output),
            Node::Unary(op, a) => {
                let price = if kind == ComputeType::F32 || !is_transcendental(op) { 4 } else { 30 };
                self.cost += if is_transcendental(op) { price } else { 0 };
                (unary_fn(op, kind, self.simd), [a, a, a])
            }
            Node::Binary(op, a, b) => {
                let slow = matches!(op, BinaryOp::Pow | BinaryOp::Rem) || op == BinaryOp::Div && dtype.is_integer();
                self.cost += if slow { 20 } else { 0 };
                (binary_fn(op, kind, self.simd), [a, b, b])
            }
            Node::Ternary(op, a, b, c) => (ternary_fn(op, kind, self.simd), [a, b, c]),
        };
        // The program passed the type check, so the kernel exists.
        if let Some(run) = run {
            self.call(id, run, operands, kind, to_output);
        }
    }

    /// Adds one kernel call with the operands of a node.
    fn call(&mut self, id: u32, run: BlockFn, operands: [u32; 3], kind: ComputeType, to_output: bool) {
        let mut borrowed = [None; 3];
        let mut sources = [OperandPlace::Output; 3];
        for index in 0..3 {
            let seen = operands[..index].iter().position(|known| *known == operands[index]);
            sources[index] = match seen {
                Some(known) => sources[known],
                None => self.operand(operands[index], kind, &mut borrowed[index]),
            };
        }
        let target = self.target(id, kind.size_bytes(), to_output);
        self.step(run, target, sources);
        self.free.extend(borrowed.into_iter().flatten());
    }

    /// Adds a hard swish. Its constants are consecutive words that nothing else reads.
    fn swish(&mut self, id: u32, swish: &Swish, to_output: bool) {
        let constants = OperandPlace::Constant(self.constants.len() as u32);
        self.constants.extend(swish.constants.map(|value| constant_word(value, ComputeType::F32)));
        self.spread.resize(self.constants.len(), None);
        let x = self.place(swish.x);
        let target = self.target(id, ComputeType::F32.size_bytes(), to_output);
        self.step(Swish::block_fn(self.simd), target, [x, constants, constants]);
    }

    /// Replaces the square `pow(a, 2)` by the product `a · a`.
    fn simplified(&self, node: Node) -> Node {
        match node {
            Node::Binary(BinaryOp::Pow, a, b) if self.values[b as usize] == Value::Constant(2.0) => {
                Node::Binary(BinaryOp::Mul, a, a)
            }
            _ => node,
        }
    }

    fn input(&mut self, id: u32, index: u32, dtype: DType) {
        self.places[id as usize] = Some(OperandPlace::Input(index));
        if let Some(run) = load_fn(dtype, self.simd) {
            // If the result is an unchanged input, it is copied in its stored form.
            if self.program.nodes().len() > 1 && self.last_reader[id as usize] != 0 {
                let target = self.target(id, kind_of(dtype).size_bytes(), false);
                self.step(run, target, [OperandPlace::Input(index); 3]);
            }
        }
    }

    fn cast(&mut self, id: u32, to: DType, operand: u32, to_output: bool) {
        let kind = kind_of(to);
        let from = match self.values[operand as usize] {
            Value::Constant(value) => {
                let place = self.constant(round_constant(value, to), kind);
                let target = self.target(id, kind.size_bytes(), to_output);
                self.step(fill_fn(kind.size_bytes(), self.simd), target, [place; 3]);
                return;
            }
            Value::Typed(from) => from,
        };
        let mut source = self.place(operand);
        let mut borrowed = None;
        let convert = cast_fn(kind_of(from), kind, self.simd);
        let round = round_fn(to, self.simd);
        if let (Some(convert), Some(_)) = (convert, round) {
            let register = self.take_register(kind.size_bytes());
            borrowed = Some(register);
            self.step(convert, OperandPlace::Register(register), [source; 3]);
            source = OperandPlace::Register(register);
        }
        let run = round.or(convert).unwrap_or_else(|| copy_fn(kind.size_bytes(), self.simd));
        let target = self.target(id, kind.size_bytes(), to_output);
        self.step(run, target, [source; 3]);
        self.free.extend(borrowed);
    }

    /// Writes the last value to the output in its stored form.
    fn result(&mut self, dtype: DType) {
        let last = self.origin[self.origin.len() - 1];
        if let Value::Constant(value) = self.values[last as usize] {
            let place = self.constant(value, kind_of(dtype));
            self.step(fill_fn(dtype.size_bytes(), self.simd), OperandPlace::Output, [place; 3]);
            return;
        }
        let place = self.place(last);
        match place {
            OperandPlace::Output => {}
            OperandPlace::Input(_) => {
                self.step(copy_fn(dtype.size_bytes(), self.simd), OperandPlace::Output, [place; 3])
            }
            _ => {
                let run = store_fn(dtype, self.simd).unwrap_or_else(|| copy_fn(dtype.size_bytes(), self.simd));
                self.step(run, OperandPlace::Output, [place; 3]);
            }
        }
    }

    /// The place where an operand can be read as a value of `kind`. If a register is needed for
    /// this one reading only, `borrowed` receives it.
    fn operand(&mut self, id: u32, kind: ComputeType, borrowed: &mut Option<u32>) -> OperandPlace {
        let Value::Constant(value) = self.values[id as usize] else { return self.place(id) };
        let constant = self.constant(value, kind);
        let OperandPlace::Constant(index) = constant else { return constant };
        if let Some(register) = self.spread[index as usize] {
            return OperandPlace::Register(register);
        }
        let run = fill_fn(kind.size_bytes(), self.simd);
        let register = if self.prologue.len() < SPREAD_CONSTANTS_MAX {
            // Not from the free list: a register from there may be written by a step of an earlier
            // block.
            self.registers += 1;
            self.register_element_bytes = self.register_element_bytes.max(kind.size_bytes());
            self.spread[index as usize] = Some(self.registers - 1);
            self.prologue.push(KernelCall {
                run,
                target: OperandPlace::Register(self.registers - 1),
                sources: [constant; 3],
            });
            self.registers - 1
        } else {
            let register = self.take_register(kind.size_bytes());
            *borrowed = Some(register);
            self.step(run, OperandPlace::Register(register), [constant; 3]);
            register
        };
        OperandPlace::Register(register)
    }

    fn constant(&mut self, value: f64, kind: ComputeType) -> OperandPlace {
        let word = constant_word(value, kind);
        let index = *self.constant_index.entry((kind, word)).or_insert_with(|| {
            self.constants.push(word);
            self.spread.push(None);
            self.constants.len() as u32 - 1
        });
        OperandPlace::Constant(index)
    }

    fn place(&self, id: u32) -> OperandPlace {
        // Operands come before their readers, so the place is known; the fallback never occurs.
        self.places[self.origin[id as usize] as usize].unwrap_or(OperandPlace::Output)
    }

    fn target(&mut self, id: u32, element_bytes: usize, to_output: bool) -> OperandPlace {
        let place =
            if to_output { OperandPlace::Output } else { OperandPlace::Register(self.take_register(element_bytes)) };
        self.places[id as usize] = Some(place);
        place
    }

    fn take_register(&mut self, element_bytes: usize) -> u32 {
        self.register_element_bytes = self.register_element_bytes.max(element_bytes);
        self.free.pop().unwrap_or_else(|| {
            self.registers += 1;
            self.registers - 1
        })
    }

    /// Calls `visit` with the origin of each value that the node's call reads.
    fn each_read(&mut self, id: u32, visit: impl Fn(&mut Self, u32)) {
        let reads = match self.fates[id as usize] {
            NodeTreatment::Absorbed => return,
            NodeTreatment::Fused(fusion) => fusion.operands.map(Some),
            NodeTreatment::Swish(swish) => [Some(swish.x), None, None],
            NodeTreatment::Quantized(quantized) => quantized.operands.map(Some),
            NodeTreatment::Alone => {
                let mut reads = [None; 3];
                reads
                    .iter_mut()
                    .zip(self.program.nodes()[id as usize].operands())
                    .for_each(|(read, id)| *read = Some(id));
                reads
            }
        };
        for read in reads.into_iter().flatten() {
            visit(self, self.origin[read as usize]);
        }
    }

    fn release_operands(&mut self, id: u32) {
        self.each_read(id, |compiler, origin| {
            // An alias passes its reading on: the register stays until the alias's own last reader.
            if compiler.last_reader[origin as usize] != id || origin == compiler.origin[id as usize] {
                return;
            }
            if let Some(OperandPlace::Register(register)) = compiler.places[origin as usize] {
                // Cleared, so that an operand that is read twice is released once.
                compiler.places[origin as usize] = None;
                compiler.free.push(register);
            }
        });
    }

    fn step(&mut self, run: BlockFn, target: OperandPlace, sources: [OperandPlace; 3]) {
        self.cost += 1;
        self.steps.push(KernelCall { run, target, sources });
    }
}

fn is_transcendental(op: UnaryOp) -> bool {
    use UnaryOp::*;
    matches!(op, Exp | Log | Tanh | Sigmoid | Erf | Gelu | GeluTanh | Silu | Sin | Cos)
}
