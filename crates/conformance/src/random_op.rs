//! Ops of random kinds on random views of random values, against the reference.
//!
//! Half of them are maps of one to three nodes with random shapes, element types, strides and
//! values, including NaN, infinities, zeros of either sign and subnormal numbers. The others are
//! cases of the suite with other strides, so that every op of the list is included as soon as it
//! has a case. A seed gives the same ops on every platform.

use panoply_core::expr::{BinaryOp, Expr, TernaryOp, UnaryOp};
use panoply_core::op::compute::{ComputeOp, Map};
use panoply_core::{Backend, Capabilities, DType, Describe, DeviceInfo, Op, OpenOptions, Result, Support, Tensor};

use crate::check::{Summary, check_case};
use crate::layout::spread;
use crate::required::devices;
use crate::suite::{Case, cases};
use crate::tolerance::Tolerance;
use crate::values::{Random, tensor_of};

/// Special values that every op must handle.
const SPECIAL: [f64; 16] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    f64::NAN,
    f64::INFINITY,
    f64::NEG_INFINITY,
    1e-40,
    -1e-40,
    1e-45,
    1.1754942e-38,
    1.1754944e-38,
    -3e-39,
    3.0e38,
    -7.5,
    0.3,
];

/// A range of random ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpSeeds {
    /// The first seed.
    pub seed: u64,
    /// Number of ops.
    pub count: u64,
}

impl OpSeeds {
    /// `count` ops, or the number in `PANOPLY_OPS`, from seed 1 or the one in `PANOPLY_SEED`.
    pub fn or_asked(count: u64) -> OpSeeds {
        let number = |name: &str| std::env::var(name).ok().and_then(|number| number.parse().ok());
        OpSeeds { seed: number("PANOPLY_SEED").unwrap_or(1), count: number("PANOPLY_OPS").unwrap_or(count) }
    }

    /// The ops, each named by its seed.
    pub fn cases(self) -> impl Iterator<Item = Case> {
        let suite: Vec<Case> = cases().into_iter().filter(|case| is_small(&case.op)).collect();
        (0..self.count).map(move |number| {
            let seed = self.seed.wrapping_add(number);
            let mut random = Random::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
            match random.below(2) {
                0 => random_map(seed, &mut random),
                _ => random_view(seed, &suite[random.below(suite.len() as u64) as usize], &mut random),
            }
        })
    }
}

/// Runs random ops on every device of a backend, or only on its hardware if it has any. Panics if a
/// result is wrong. Without a device it prints the reason, and panics if `PANOPLY_DEVICE=required`
/// is set.
pub fn run_ops(backend: &dyn Backend, count: u64) {
    let seeds = OpSeeds::or_asked(count);
    for device in devices(backend) {
        let summary = check_ops(backend, &device, seeds).unwrap_or_else(|error| panic!("{}: {error}", device.id));
        assert!(summary.failed.is_empty(), "{} with PANOPLY_SEED={}: {summary}", device.id, seeds.seed);
        assert!(summary.passed > 0 || seeds.count < 10, "{}: nothing ran: {:?}", device.id, summary.unsupported);
    }
}

/// Runs random ops on one device. Prints the seeds, so that a failure can be reproduced.
pub fn check_ops(backend: &dyn Backend, device: &DeviceInfo, seeds: OpSeeds) -> Result<Summary> {
    println!("{} {}: {} random ops from PANOPLY_SEED={}", device.id, device.name, seeds.count, seeds.seed);
    let mut engine = backend.open(device, &OpenOptions::default())?;
    let mut summary = Summary::default();
    for case in seeds.cases() {
        if let Support::No(reason) = backend.supports(device, &case.op) {
            summary.unsupported.push((case.name, reason));
            continue;
        }
        match check_case(engine.as_mut(), &case) {
            None => summary.passed += 1,
            Some(what) => summary.failed.push((case.name, what)),
        }
    }
    let (passed, unsupported) = (summary.passed, summary.unsupported.len());
    let flushes = device.capabilities.has(Capabilities::FLUSHES_SUBNORMALS);
    let subnormals = if flushes { "may be flushed" } else { "are kept" };
    println!("{}: {passed} random ops passed, {unsupported} unsupported; subnormal numbers {subnormals}", device.id);
    Ok(summary)
}

/// Large ops take too long on the reference.
fn is_small(op: &Op) -> bool {
    let mut elements = 0;
    op.for_each_tensor(&mut |tensor| elements += tensor.elements());
    elements <= 20_000
}

fn random_map(seed: u64, random: &mut Random) -> Case {
    let dtype = DType::ALL[random.below(DType::ALL.len() as u64) as usize];
    let dims: Vec<usize> = (0..random.below(4)).map(|_| random.below(9) as usize + 1).collect();
    let inputs: Vec<Tensor> = (0..3).map(|_| laid_out(&operand(dtype, &dims, random), random)).collect();
    let (expr, tolerance, name) = expression(dtype, random);
    let count = expr.finish().map_or(1, |program| program.inputs() as usize).max(1);
    let inputs: Vec<&Tensor> = inputs.iter().take(count).collect();
    Case::new(format!("map/{dtype}/random {name} of seed {seed}"), Map::new(expr, &inputs), tolerance)
}

/// One function of the inputs, followed by one that keeps its value.
fn expression(dtype: DType, random: &mut Random) -> (Expr, Tolerance, &'static str) {
    let (x, y, z) = (Expr::input(0), Expr::input(1), Expr::input(2));
    let pick = |count: usize, random: &mut Random| random.below(count as u64) as usize;
    loop {
        let (expr, name, is_exact) = match random.below(4) {
            0 => {
                let op = UnaryOp::ALL[pick(UnaryOp::ALL.len(), random)];
                if op.accepts(dtype).is_err() {
                    continue;
                }
                use UnaryOp::{Abs, Ceil, Floor, Neg, Not, Relu, Round};
                (x.clone().unary(op), op.name(), matches!(op, Neg | Abs | Relu | Floor | Ceil | Round | Not))
            }
            1 | 2 => {
                let op = BinaryOp::ALL[pick(BinaryOp::ALL.len(), random)];
                if op.accepts(dtype).is_err() {
                    continue;
                }
                use BinaryOp::{Add, Div, Mul, Pow, Rem, Sub};
                (x.clone().binary(op, y.clone()), op.name(), !matches!(op, Add | Sub | Mul | Div | Rem | Pow))
            }
            _ => {
                let op = TernaryOp::ALL[pick(TernaryOp::ALL.len(), random)];
                if op.accepts(dtype).is_err() {
                    continue;
                }
                (x.clone().ternary(op, y.clone(), z.clone()), op.name(), op != TernaryOp::MulAdd)
            }
        };
        return (expr, tolerance(dtype, is_exact, name), name);
    }
}

/// The suite's tolerance of single functions; near the smallest number, a few steps of it.
fn tolerance(dtype: DType, is_exact: bool, name: &str) -> Tolerance {
    let step = match dtype {
        DType::F64 => 4.0 * f64::EPSILON,
        DType::F16 => 2.0_f64.powi(-10),
        DType::BF16 => 2.0_f64.powi(-7),
        _ => 2.0_f64.powi(-23),
    };
    if is_exact || dtype.is_integer() {
        return Tolerance::Exact;
    }
    let absolute = match (dtype, name) {
        (DType::Complex64, _) => 1e-4,
        (_, "gelu_tanh") => 2e-6,
        (_, "mul_add") => 2e4 * step.min(1e-7),
        (DType::F64, _) => 1e-300,
        (DType::F16, _) => 2.0_f64.powi(-23),
        // The results of subnormal operands are compared as well: this is a few times the smallest
        // number.
        _ => 1e-44,
    };
    let relative = match (dtype, name) {
        (DType::Complex64, _) => 1e-5,
        (DType::F64, "gelu") => 1e-12,
        _ => 8.0 * step,
    };
    Tolerance::Close { relative, absolute }
}

/// Values of the element type: special ones, and others of many magnitudes. One axis may be
/// broadcast.
fn operand(dtype: DType, dims: &[usize], random: &mut Random) -> Tensor {
    let mut dims = dims.to_vec();
    if !dims.is_empty() && random.below(4) == 0 {
        let axis = random.below(dims.len() as u64) as usize;
        dims[axis] = 1;
    }
    let count: usize = dims.iter().product();
    let is_complex = dtype == DType::Complex64;
    let values: Vec<f64> = (0..count)
        .map(|_| match dtype {
            DType::I32 => f64::from(random.next_u64() as i32 >> random.below(32)),
            DType::U32 => f64::from(random.next_u64() as u32 >> random.below(32)),
            DType::I8 => f64::from(random.next_u64() as i8),
            DType::U8 => f64::from(random.next_u64() as u8),
            _ if !is_complex && random.below(3) == 0 => SPECIAL[random.below(SPECIAL.len() as u64) as usize],
            _ => random.signed_unit() * [1e-3, 1.0, 20.0][random.below(3) as usize],
        })
        .collect();
    tensor_of(dtype, &dims, &values)
}

/// A case of the suite with other tensor layouts.
fn random_view(seed: u64, case: &Case, random: &mut Random) -> Case {
    let mut op = case.op.clone();
    if let Op::Compute(compute) = &op
        && !matches!(compute, ComputeOp::Kernel(_) | ComputeOp::Transfer(_))
    {
        op.for_each_tensor_mut(&mut |tensor| *tensor = laid_out(tensor, random));
    }
    let op = if op.validate().is_ok() { op } else { case.op.clone() };
    Case { name: format!("{} laid out by seed {seed}", case.name), op, judge: case.judge, answer: None }
}

/// The same elements at the same indices, with other strides. A tensor that cannot be laid out like
/// this is unchanged.
fn laid_out(tensor: &Tensor, random: &mut Random) -> Tensor {
    let laid = match random.below(3) {
        0 => turned(tensor, random),
        1 => spread(tensor),
        _ => Ok(tensor.clone()),
    };
    laid.unwrap_or_else(|_| tensor.clone())
}

/// The same elements with the axes in a random memory order.
fn turned(tensor: &Tensor, random: &mut Random) -> Result<Tensor> {
    let mut order: Vec<usize> = (0..tensor.shape().rank()).collect();
    for place in (1..order.len()).rev() {
        order.swap(place, random.below(place as u64 + 1) as usize);
    }
    let mut back = vec![0; order.len()];
    order.iter().enumerate().for_each(|(place, axis)| back[*axis] = place);
    tensor.permute(&order)?.contiguous()?.permute(&back)
}
