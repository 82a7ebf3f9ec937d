//! Neighbouring nodes that become one kernel call.
//!
//! `relu((a ∘ b) ∘ c)` with sums, differences and products of f32, where nothing else reads what is inside, is one pass
//! over the block instead of three. `x · clamp(x · scale + shift, low, high)` (hard swish) is one pass, too. Every operation is rounded
//! as it would be alone, so the answer is the same.

use std::mem::MaybeUninit;

use panoply_core::expr::{BinaryOp, Node, Program, TernaryOp, UnaryOp, Value};

use super::convert::kind_of;
use super::kernel::{BlockFn, Kernel, Kind, block_fn};
use super::number::{Number, binary, ternary, unary};
use crate::simd::Simd;
use crate::vmath::lanes::Lanes;

/// `relu((a first b) second c)`; the parts after the first are optional.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Fusion {
    first: BinaryOp,
    second: Option<BinaryOp>,
    relu: bool,
    /// `a`, `b` and `c`; without `c` the second again.
    pub operands: [u32; 3],
}

/// What becomes of each node of a program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fate {
    /// It is a call of its own.
    Alone,
    /// It is part of a later node's call.
    Absorbed,
    /// It is computed together with nodes before it.
    Fused(Fusion),
    /// It ends a hard swish.
    Swish(Swish),
}

/// `x · clamp(x · scale + shift, low, high)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Swish {
    pub x: u32,
    /// Scale, shift, low and high, as the kernel reads them.
    pub constants: [f64; 4],
    /// The clamp, the sum and the product inside.
    parts: [u32; 3],
}

impl Swish {
    /// The one that ends with this node, all of f32, where nothing else reads its parts.
    fn ending_with(id: usize, nodes: &[Node], values: &[Value], readers: &[u32]) -> Option<Swish> {
        let number = |id: u32| if let Value::Constant(value) = values[id as usize] { Some(value) } else { None };
        let inner = |id: u32| (readers[id as usize] == 1 && is_f32(values[id as usize])).then(|| nodes[id as usize]);
        let with_number = |node: Node, wanted: BinaryOp| match node {
            Node::Binary(op, a, b) if op == wanted => match (number(a), number(b)) {
                (None, Some(value)) => Some((a, value)),
                (Some(value), None) => Some((b, value)),
                _ => None,
            },
            _ => None,
        };
        let Node::Binary(BinaryOp::Mul, left, right) = nodes[id] else { return None };
        [(left, right), (right, left)].into_iter().find_map(|(x, clamp)| {
            let Node::Ternary(TernaryOp::Clamp, sum, low, high) = inner(clamp)? else { return None };
            let (product, shift) = with_number(inner(sum)?, BinaryOp::Add)?;
            let (of, scale) = with_number(inner(product)?, BinaryOp::Mul)?;
            let constants = [scale, shift, number(low)?, number(high)?];
            (of == x).then_some(Swish { x, constants, parts: [clamp, sum, product] })
        })
    }

    /// The kernel, whose second source are the constants, a word each.
    pub fn block_fn(simd: Simd) -> BlockFn {
        block_fn::<HardSwish>(simd)
    }
}

struct HardSwish;

impl Kernel for HardSwish {
    #[inline(always)]
    unsafe fn run<L: Lanes>(target: *mut u8, a: *const u8, b: *const u8, _c: *const u8, len: usize) {
        // SAFETY: the caller's promise; the target may be uninitialised. The constants are four words, each of which begins with an f32.
        let (target, a, [scale, shift, low, high]) = unsafe {
            (
                std::slice::from_raw_parts_mut(target.cast::<MaybeUninit<f32>>(), len),
                std::slice::from_raw_parts(a.cast::<f32>(), len),
                [0, 1, 2, 3].map(|word| b.cast::<u64>().add(word).cast::<f32>().read()),
            )
        };
        for (target, x) in target.iter_mut().zip(a) {
            let sum = x.binary::<{ binary::MUL }>(scale).binary::<{ binary::ADD }>(shift);
            target.write(x.binary::<{ binary::MUL }>(sum.ternary::<{ ternary::CLAMP }>(low, high)));
        }
    }
}

/// Decides for every node.
pub(super) fn fates(program: &Program, values: &[Value]) -> Vec<Fate> {
    let nodes = program.nodes();
    let mut readers = vec![0_u32; nodes.len()];
    for operand in nodes.iter().flat_map(Node::operands) {
        readers[operand as usize] = readers[operand as usize].saturating_add(1);
    }
    let mut fates = vec![Fate::Alone; nodes.len()];
    for id in (0..nodes.len()).filter(|id| is_f32(values[*id])) {
        if let Some(swish) = Swish::ending_with(id, nodes, values, &readers) {
            swish.parts.iter().for_each(|part| fates[*part as usize] = Fate::Absorbed);
            fates[id] = Fate::Swish(swish);
        }
    }
    for (id, node) in nodes.iter().enumerate() {
        if !is_f32(values[id]) || fates[id] != Fate::Alone {
            continue;
        }
        let inner = |operand: u32| {
            let single = readers[operand as usize] == 1 && is_f32(values[operand as usize]);
            let is_taken = matches!(fates[operand as usize], Fate::Absorbed | Fate::Swish(_));
            if single && !is_taken { arithmetic(nodes[operand as usize]) } else { None }
        };
        let fusion = match *node {
            Node::Unary(UnaryOp::Relu, a) => inner(a).map(|(first, b, c)| {
                let alone = Fusion { first, second: None, relu: true, operands: [b, c, c] };
                match fates[a as usize] {
                    Fate::Fused(fusion) => (a, Fusion { relu: true, ..fusion }),
                    _ => (a, alone),
                }
            }),
            _ => arithmetic(*node).and_then(|(second, a, b)| {
                let join = |part: u32, other: u32| {
                    let (first, x, y) = inner(part)?;
                    let fusion = Fusion { first, second: Some(second), relu: false, operands: [x, y, other] };
                    (fates[part as usize] == Fate::Alone).then_some((part, fusion))
                };
                join(a, b).or_else(|| if second == BinaryOp::Sub { None } else { join(b, a) })
            }),
        };
        if let Some((absorbed, fusion)) = fusion {
            fates[absorbed as usize] = Fate::Absorbed;
            fates[id] = Fate::Fused(fusion);
        }
    }
    fates
}

impl Fusion {
    /// The kernel.
    pub fn block_fn(&self, simd: Simd) -> BlockFn {
        match self.first {
            BinaryOp::Sub => self.with_first::<{ binary::SUB }>(simd),
            BinaryOp::Mul => self.with_first::<{ binary::MUL }>(simd),
            _ => self.with_first::<{ binary::ADD }>(simd),
        }
    }

    fn with_first<const FIRST: u8>(&self, simd: Simd) -> BlockFn {
        match self.second {
            None => block_fn::<Fused<FIRST, NOTHING, true>>(simd),
            Some(BinaryOp::Sub) => self.with_second::<FIRST, { binary::SUB }>(simd),
            Some(BinaryOp::Mul) => self.with_second::<FIRST, { binary::MUL }>(simd),
            Some(_) => self.with_second::<FIRST, { binary::ADD }>(simd),
        }
    }

    fn with_second<const FIRST: u8, const SECOND: u8>(&self, simd: Simd) -> BlockFn {
        match self.relu {
            true => block_fn::<Fused<FIRST, SECOND, true>>(simd),
            false => block_fn::<Fused<FIRST, SECOND, false>>(simd),
        }
    }
}

/// Stands for a second operation that is not there.
const NOTHING: u8 = u8::MAX;

struct Fused<const FIRST: u8, const SECOND: u8, const RELU: bool>;

impl<const FIRST: u8, const SECOND: u8, const RELU: bool> Kernel for Fused<FIRST, SECOND, RELU> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(target: *mut u8, a: *const u8, b: *const u8, c: *const u8, len: usize) {
        // SAFETY: the caller's promise; the target may be uninitialised.
        let (target, a, b, c) = unsafe {
            (
                std::slice::from_raw_parts_mut(target.cast::<MaybeUninit<f32>>(), len),
                std::slice::from_raw_parts(a.cast::<f32>(), len),
                std::slice::from_raw_parts(b.cast::<f32>(), len),
                std::slice::from_raw_parts(c.cast::<f32>(), len),
            )
        };
        for (((target, a), b), c) in target.iter_mut().zip(a).zip(b).zip(c) {
            let first = a.binary::<FIRST>(*b);
            let second = if SECOND == NOTHING { first } else { first.binary::<SECOND>(*c) };
            target.write(if RELU { second.unary::<{ unary::RELU }>() } else { second });
        }
    }
}

fn is_f32(value: Value) -> bool {
    matches!(value, Value::Typed(dtype) if kind_of(dtype) == Kind::F32)
}

fn arithmetic(node: Node) -> Option<(BinaryOp, u32, u32)> {
    match node {
        Node::Binary(op @ (BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul), a, b) => Some((op, a, b)),
        _ => None,
    }
}
