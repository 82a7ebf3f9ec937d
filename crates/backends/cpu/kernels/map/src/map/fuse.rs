//! Fusion of neighbouring nodes into one kernel call.
//!
//! `relu((a ∘ b) ∘ c)` with sums, differences and products of f32 is one pass over the block
//! instead of three, if nothing else reads the intermediate values. `x · clamp(x · scale + shift,
//! low, high)` (hard swish) is one pass, too, and so is quantisation to bytes, `clamp(round(x /
//! scale) + zero, low, high)`. Every operation is rounded as it would be alone, so the result is
//! the same.

use std::mem::MaybeUninit;

use panoply_core::expr::{BinaryOp, Node, Program, TernaryOp, UnaryOp, Value};

use super::convert::kind_of;
use super::kernel::{BlockFn, ComputeType, Kernel, block_fn, one_divisor};
use super::number::{MapNumber, binary, ternary, unary};
use crate::simd::Simd;
use crate::vmath::functions;
use crate::vmath::lanes::Lanes;

/// `relu((a first b) second c)`; `second` and `relu` are optional.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Fusion {
    first: BinaryOp,
    second: Option<BinaryOp>,
    relu: bool,
    /// `a`, `b` and `c`; without `c`, `b` is repeated.
    pub operands: [u32; 3],
}

/// The treatment of each node of a program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum NodeTreatment {
    /// The node is a call of its own.
    Alone,
    /// The node is part of a later node's call.
    Absorbed,
    /// The node is computed together with preceding nodes.
    Fused(Fusion),
    /// The node ends a hard swish.
    Swish(Swish),
    /// The node ends a quantisation: it clamps rounded numbers to the range of bytes.
    Quantized(Quantization),
}

/// `clamp(round(x / scale) + zero, low, high)` with the bounds of bytes; `zero` is optional.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Quantization {
    /// `x`, the scale and the zero point; without a zero point, the scale is repeated.
    pub operands: [u32; 3],
    has_zero: bool,
    is_signed: bool,
    /// The inner quotient, rounded number and sum; without a zero point, the rounded number is
    /// repeated.
    parts: [u32; 3],
}

impl Quantization {
    /// The quantisation that ends with this node, if it is all f32 and nothing else reads its
    /// parts.
    fn ending_with(id: usize, nodes: &[Node], values: &[Value], readers: &[u32]) -> Option<Quantization> {
        let number = |id: u32| if let Value::Constant(value) = values[id as usize] { Some(value) } else { None };
        let inner = |id: u32| (readers[id as usize] == 1 && is_f32(values[id as usize])).then(|| nodes[id as usize]);
        let Node::Ternary(TernaryOp::Clamp, sum, low, high) = nodes[id] else { return None };
        let is_signed = match (number(low)?, number(high)?) {
            (0.0, 255.0) => false,
            (-128.0, 127.0) => true,
            _ => return None,
        };
        let rounded = |whole: u32| {
            let Node::Unary(UnaryOp::Round, quotient) = inner(whole)? else { return None };
            let Node::Binary(BinaryOp::Div, x, scale) = inner(quotient)? else { return None };
            Some((quotient, x, scale))
        };
        if let Some((quotient, x, scale)) = rounded(sum) {
            let parts = [quotient, sum, sum];
            return Some(Quantization { operands: [x, scale, scale], has_zero: false, is_signed, parts });
        }
        let Node::Binary(BinaryOp::Add, whole, zero) = inner(sum)? else { return None };
        let (quotient, x, scale) = rounded(whole)?;
        Some(Quantization { operands: [x, scale, zero], has_zero: true, is_signed, parts: [quotient, whole, sum] })
    }

    /// The kernel.
    pub fn block_fn(&self, simd: Simd) -> BlockFn {
        match (self.has_zero, self.is_signed) {
            (false, false) => block_fn::<Quantize<false, false>>(simd),
            (false, true) => block_fn::<Quantize<false, true>>(simd),
            (true, false) => block_fn::<Quantize<true, false>>(simd),
            (true, true) => block_fn::<Quantize<true, true>>(simd),
        }
    }
}

struct Quantize<const HAS_ZERO: bool, const IS_SIGNED: bool>;

impl<const HAS_ZERO: bool, const IS_SIGNED: bool> Kernel for Quantize<HAS_ZERO, IS_SIGNED> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(target: *mut u8, a: *const u8, b: *const u8, c: *const u8, len: usize) {
        let (low, high) = if IS_SIGNED { (-128.0, 127.0) } else { (0.0, 255.0) };
        // SAFETY: the caller's contract; the target may be uninitialised.
        let (target, x, scales, zeros) = unsafe {
            (
                std::slice::from_raw_parts_mut(target.cast::<MaybeUninit<f32>>(), len),
                std::slice::from_raw_parts(a.cast::<f32>(), len),
                std::slice::from_raw_parts(b.cast::<f32>(), len),
                std::slice::from_raw_parts(c.cast::<f32>(), len),
            )
        };
        let mut done = 0;
        if let Some(scale) = one_divisor(scales).filter(|_| L::FUSED) {
            let scale = L::splat(scale);
            while done + L::LEN <= len {
                // SAFETY: at least `L::LEN` elements are left from `done` on.
                unsafe {
                    let whole = functions::rounded_quotient(L::load(x.as_ptr().add(done)), scale);
                    let sum = if HAS_ZERO { whole.add(L::load(zeros.as_ptr().add(done))) } else { whole };
                    let bounded = L::splat(high).min(L::splat(low).max(sum));
                    // If both are zeros, the sign of the bound's zero is taken.
                    let bounded = if IS_SIGNED { bounded } else { bounded.add(L::splat(0.0)) };
                    bounded.store(target.as_mut_ptr().add(done).cast());
                }
                done += L::LEN;
            }
        }
        for (((target, x), scale), zero) in target.iter_mut().zip(x).zip(scales).zip(zeros).skip(done) {
            let whole = x.binary::<{ binary::DIV }>(*scale).unary::<{ unary::ROUND }>();
            let sum = if HAS_ZERO { whole.binary::<{ binary::ADD }>(*zero) } else { whole };
            target.write(sum.ternary::<{ ternary::CLAMP }>(low, high));
        }
    }
}

/// `x · clamp(x · scale + shift, low, high)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Swish {
    pub x: u32,
    /// Scale, shift, low and high, in the order in which the kernel reads them.
    pub constants: [f64; 4],
    /// The inner clamp, sum and product.
    parts: [u32; 3],
}

impl Swish {
    /// The hard swish that ends with this node, if it is all f32 and nothing else reads its parts.
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

    /// The kernel. Its second source is the constants, one word each.
    pub fn block_fn(simd: Simd) -> BlockFn {
        block_fn::<HardSwish>(simd)
    }
}

struct HardSwish;

impl Kernel for HardSwish {
    #[inline(always)]
    unsafe fn run<L: Lanes>(target: *mut u8, a: *const u8, b: *const u8, _c: *const u8, len: usize) {
        // SAFETY: the caller's contract; the target may be uninitialised. The constants are four
        // words, each of which begins with an f32.
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

/// Decides the fate of every node.
pub(super) fn fates(program: &Program, values: &[Value]) -> Vec<NodeTreatment> {
    let nodes = program.nodes();
    let mut readers = vec![0_u32; nodes.len()];
    for operand in nodes.iter().flat_map(Node::operands) {
        readers[operand as usize] = readers[operand as usize].saturating_add(1);
    }
    let mut fates = vec![NodeTreatment::Alone; nodes.len()];
    for id in (0..nodes.len()).filter(|id| is_f32(values[*id])) {
        if let Some(swish) = Swish::ending_with(id, nodes, values, &readers) {
            swish.parts.iter().for_each(|part| fates[*part as usize] = NodeTreatment::Absorbed);
            fates[id] = NodeTreatment::Swish(swish);
        }
    }
    for id in (0..nodes.len()).filter(|id| is_f32(values[*id])) {
        if let Some(quantized) = Quantization::ending_with(id, nodes, values, &readers) {
            quantized.parts.iter().for_each(|part| fates[*part as usize] = NodeTreatment::Absorbed);
            fates[id] = NodeTreatment::Quantized(quantized);
        }
    }
    for (id, node) in nodes.iter().enumerate() {
        if !is_f32(values[id]) || fates[id] != NodeTreatment::Alone {
            continue;
        }
        let inner = |operand: u32| {
            let single = readers[operand as usize] == 1 && is_f32(values[operand as usize]);
            let is_taken = matches!(
                fates[operand as usize],
                NodeTreatment::Absorbed | NodeTreatment::Swish(_) | NodeTreatment::Quantized(_)
            );
            if single && !is_taken { arithmetic(nodes[operand as usize]) } else { None }
        };
        let fusion = match *node {
            Node::Unary(UnaryOp::Relu, a) => inner(a).map(|(first, b, c)| {
                let alone = Fusion { first, second: None, relu: true, operands: [b, c, c] };
                match fates[a as usize] {
                    NodeTreatment::Fused(fusion) => (a, Fusion { relu: true, ..fusion }),
                    _ => (a, alone),
                }
            }),
            _ => arithmetic(*node).and_then(|(second, a, b)| {
                let join = |part: u32, other: u32| {
                    let (first, x, y) = inner(part)?;
                    let fusion = Fusion { first, second: Some(second), relu: false, operands: [x, y, other] };
                    (fates[part as usize] == NodeTreatment::Alone).then_some((part, fusion))
                };
                join(a, b).or_else(|| if second == BinaryOp::Sub { None } else { join(b, a) })
            }),
        };
        if let Some((absorbed, fusion)) = fusion {
            fates[absorbed as usize] = NodeTreatment::Absorbed;
            fates[id] = NodeTreatment::Fused(fusion);
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
            None => block_fn::<FusedPair<FIRST, NOTHING, true>>(simd),
            Some(BinaryOp::Sub) => self.with_second::<FIRST, { binary::SUB }>(simd),
            Some(BinaryOp::Mul) => self.with_second::<FIRST, { binary::MUL }>(simd),
            Some(_) => self.with_second::<FIRST, { binary::ADD }>(simd),
        }
    }

    fn with_second<const FIRST: u8, const SECOND: u8>(&self, simd: Simd) -> BlockFn {
        match self.relu {
            true => block_fn::<FusedPair<FIRST, SECOND, true>>(simd),
            false => block_fn::<FusedPair<FIRST, SECOND, false>>(simd),
        }
    }
}

/// Marks the absence of a second operation.
const NOTHING: u8 = u8::MAX;

struct FusedPair<const FIRST: u8, const SECOND: u8, const RELU: bool>;

impl<const FIRST: u8, const SECOND: u8, const RELU: bool> Kernel for FusedPair<FIRST, SECOND, RELU> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(target: *mut u8, a: *const u8, b: *const u8, c: *const u8, len: usize) {
        // SAFETY: the caller's contract; the target may be uninitialised.
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
    matches!(value, Value::Typed(dtype) if kind_of(dtype) == ComputeType::F32)
}

fn arithmetic(node: Node) -> Option<(BinaryOp, u32, u32)> {
    match node {
        Node::Binary(op @ (BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul), a, b) => Some((op, a, b)),
        _ => None,
    }
}
