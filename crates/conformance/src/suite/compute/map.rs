//! Map: every operation with every dtype that supports it, special values, broadcasting, views,
//! casts, deep and wide expressions, division by zero.

use panoply_core::expr::{BinaryOp, Expr, TernaryOp, UnaryOp};
use panoply_core::op::compute::Map;
use panoply_core::{DType, Tensor};

use super::transpose::odd_view;
use crate::suite::case::Case;
use crate::tolerance::Tolerance;
use crate::values::{Random, random_tensor, tensor_of};

/// Probably more than a block of any engine, and a prime.
const ELEMENTS: usize = 2053;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in DType::ALL {
        cases.extend(single_operations(dtype));
        cases.extend(broadcasts(dtype));
        cases.extend(expressions(dtype));
        cases.extend(casts(dtype));
        if dtype.is_float() {
            cases.push(small_remainders(dtype));
        }
    }
    cases
}

/// Remainders by subnormal divisors and by the smallest normal number. They are exact, and long
/// division needs a divisor with a normalised leading bit.
fn small_remainders(dtype: DType) -> Case {
    // The exponents of the smallest positive number and of the smallest normal number.
    let (least, normal) = match dtype {
        DType::F16 => (-24, -14),
        DType::BF16 => (-133, -126),
        DType::F32 => (-149, -126),
        _ => (-1074, -1022),
    };
    let power = |exponent: i32| 2f64.powi(exponent / 2) * 2f64.powi(exponent - exponent / 2);
    let (least, normal) = (power(least), power(normal));
    let dividends =
        [least, 3.0 * least, 7.0 * least, normal, 1.5 * normal, 5.0 * normal, 1.0, 100.5, -7.25, -3.0 * least];
    let divisors = [least, 2.0 * least, 3.0 * least, 5.0 * least, 6.0 * least, normal, 3.0 * normal];
    let count = dividends.len() * divisors.len();
    let a: Vec<f64> = (0..count).map(|index| dividends[index / divisors.len()]).collect();
    let b: Vec<f64> = (0..count).map(|index| divisors[index % divisors.len()]).collect();
    let op = Map::binary(BinaryOp::Rem, &tensor_of(dtype, &[count], &a), &tensor_of(dtype, &[count], &b));
    Case::new(format!("map/{dtype}/small_remainders"), op, Tolerance::Exact)
}

fn single_operations(dtype: DType) -> Vec<Case> {
    let mut cases = Vec::new();
    let (a, b, c) = (awkward(dtype, 1), awkward(dtype, 2), awkward(dtype, 3));
    for op in UnaryOp::ALL.iter().filter(|op| op.accepts(dtype).is_ok()) {
        let name = format!("map/{dtype}/{}", op.name());
        cases.push(Case::new(name, Map::unary(*op, &a), unary_tolerance(*op, dtype)));
    }
    for op in BinaryOp::ALL.iter().filter(|op| op.accepts(dtype).is_ok()) {
        let name = format!("map/{dtype}/{}", op.name());
        cases.push(Case::new(name, Map::binary(*op, &a, &b), arithmetic_tolerance(dtype)));
        let same = format!("map/{dtype}/{}/same_twice", op.name());
        cases.push(Case::new(same, Map::binary(*op, &a, &a), arithmetic_tolerance(dtype)));
    }
    for op in TernaryOp::ALL.iter().filter(|op| op.accepts(dtype).is_ok()) {
        let name = format!("map/{dtype}/{}", op.name());
        cases.push(Case::new(name, Map::ternary(*op, &a, &b, &c), mul_add_tolerance(dtype)));
    }
    cases
}

fn broadcasts(dtype: DType) -> Vec<Case> {
    let shapes: [(&[usize], &[usize]); 12] = [
        (&[], &[]),
        (&[], &[7]),
        (&[0], &[1]),
        (&[3, 0, 2], &[2]),
        (&[5, 1], &[1, 7]),
        (&[13, 3], &[3]),
        (&[11, 300], &[300]),
        (&[11, 300], &[11, 1]),
        (&[300, 3, 1], &[1, 3, 270]),
        (&[2, 1, 3, 1, 5], &[7, 1, 4, 1]),
        (&[1, 2050], &[3, 1]),
        (&[1, 1, 1], &[1]),
    ];
    let mut cases = Vec::new();
    for (left, right) in shapes {
        let (a, b) = (random_tensor(dtype, left, 5), random_tensor(dtype, right, 6));
        let name = format!("map/{dtype}/broadcast/{left:?}{right:?}");
        cases.push(Case::new(name, Map::sub(&a, &b), arithmetic_tolerance(dtype)));
    }
    let view = odd_view(dtype);
    let transposed = random_tensor(dtype, &[4, 2, 7], 7).permute(&[2, 1, 0]);
    let transposed = transposed.unwrap_or_else(|error| panic!("the view is wrong: {error}"));
    cases.push(Case::new(format!("map/{dtype}/views"), Map::add(&view, &transposed), arithmetic_tolerance(dtype)));
    let wide = random_tensor(dtype, &[400, 310], 8);
    let views = wide.transpose().and_then(|turned| Ok((turned, wide.slice_step(0, 0, 310, 1)?.slice(1, 0, 1)?)));
    let (turned, column) = views.unwrap_or_else(|error| panic!("the view is wrong: {error}"));
    let name = format!("map/{dtype}/long_views");
    cases.push(Case::new(name, Map::add(&turned, &column), arithmetic_tolerance(dtype)));
    cases
}

fn expressions(dtype: DType) -> Vec<Case> {
    let (x, y) = (Expr::input(0), Expr::input(1));
    let (a, b) = (random_tensor(dtype, &[ELEMENTS], 9), random_tensor(dtype, &[ELEMENTS], 10));
    let mut cases = Vec::new();
    let mut case = |what: &str, expr: &Expr, inputs: &[&Tensor], tolerance: Tolerance| {
        cases.push(Case::new(format!("map/{dtype}/{what}"), Map::new(expr, inputs), tolerance));
    };
    let tolerance = mul_add_tolerance(dtype);
    case("identity", &x, &[&a], Tolerance::Exact);
    case("identity_cast", &x.clone().cast(dtype), &[&a], Tolerance::Exact);
    case("unused_input", &(&y * 2.0), &[&a, &b], tolerance);
    case("constant", &Expr::constant(3.0).cast(dtype), &[&a], Tolerance::Exact);
    case("many_constants", &(0..40).fold(x.clone(), |sum, step| sum + f64::from(step)), &[&a], tolerance);
    let inputs: Vec<Tensor> = (0..20).map(|seed| random_tensor(dtype, &[97], seed)).collect();
    let inputs: Vec<&Tensor> = inputs.iter().collect();
    let sum = (1..20).fold(Expr::input(0), |sum, index| sum + Expr::input(index));
    case("many_inputs", &sum, &inputs, tolerance);
    let products: Vec<Expr> = (1..60).map(|step| &x * f64::from(step)).collect();
    let wide = products.iter().fold(y.clone(), |sum, product| sum - product);
    let wide = products.iter().fold(wide, |sum, product| sum + product);
    case("many_live_values", &wide, &[&a, &b], scaled(tolerance, 4000.0));
    if dtype != DType::Complex64 {
        case("relu_2x_plus_y", &(&x * 2.0 + &y).relu(), &[&a, &b], tolerance);
        let pick = x.clone().lt(&y).select(&x * &x, &y - 1.0);
        case("select_by_comparison", &pick, &[&a, &b], tolerance);
    }
    // A chain that returns to its start, so that rounding errors do not accumulate.
    let few = random_tensor(dtype, &[19], 11);
    let deep = (0..10_000).fold(x.clone(), |value, step| if step % 2 == 0 { value * 2.0 } else { value - &x });
    case("deep", &deep, &[&few], scaled(tolerance, 50.0));
    if dtype.is_float() {
        let deep = (0..5000).fold(x.clone(), |value, _| (value * 0.5 + &x).tanh());
        case("deep_tanh", &deep, &[&few], scaled(unary_tolerance(UnaryOp::Tanh, dtype), 20.0));
        let everyday = ((&x * &x + 1.0).sqrt() * (-&y).exp() / (&y * &y + 0.5)).sigmoid() + x.clone().gelu();
        case("everyday", &everyday, &[&a, &b], scaled(unary_tolerance(UnaryOp::Gelu, dtype), 20.0));
    }
    cases
}

fn casts(dtype: DType) -> Vec<Case> {
    let x = awkward(dtype, 12);
    let targets = DType::ALL.into_iter().filter(|to| dtype != DType::Complex64 || *to == dtype);
    targets.map(|to| Case::new(format!("map/{dtype}/cast/{to}"), Map::cast(&x, to), Tolerance::Exact)).collect()
}

/// Random values over many magnitudes, after all special values.
fn awkward(dtype: DType, seed: u64) -> Tensor {
    let mut random = Random::new(seed);
    let special: &[f64] = match dtype {
        DType::I32 => &[0.0, 1.0, -1.0, 2147483647.0, -2147483648.0, 2.0, 65536.0, -7.0],
        DType::U32 => &[0.0, 1.0, 4294967295.0, 2147483648.0, 2.0, 65536.0],
        DType::I8 => &[0.0, 1.0, -1.0, 127.0, -128.0, 2.0, 16.0, -7.0],
        DType::U8 => &[0.0, 1.0, 255.0, 128.0, 2.0, 16.0],
        DType::Complex64 => &[0.0, 1.0, -1.0, 1e3, -1e-3],
        _ => &[
            0.0,
            -0.0,
            1.0,
            -1.0,
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
            0.5,
            -0.5,
            1.5,
            2.5,
            -2.5,
            88.8,
            -88.8,
            104.0,
            -104.0,
            3e4,
            -3e4,
            1e-7,
            -1e-7,
            300.0,
            -300.0,
            // Subnormal numbers of f32 and bf16, and the smallest normal number.
            1e-40,
            -1e-40,
            f32::MIN_POSITIVE as f64,
        ],
    };
    let values: Vec<f64> = (0..ELEMENTS)
        .map(|index| {
            // Every special value is paired with every special value of the second operand.
            if index < special.len() * special.len() {
                let place = if seed.is_multiple_of(2) { index / special.len() } else { index % special.len() };
                return special[place];
            }
            match dtype {
                DType::I32 => f64::from(random.next_u64() as i32),
                DType::U32 => f64::from(random.next_u64() as u32),
                DType::I8 => f64::from(random.next_u64() as i8),
                DType::U8 => f64::from(random.next_u64() as u8),
                DType::Complex64 => random.signed_unit() * 4.0,
                _ => random.signed_unit() * [1e-3, 1.0, 20.0, 100.0][random.below(4) as usize],
            }
        })
        .collect();
    tensor_of(dtype, &[ELEMENTS], &values)
}

/// Integers are exact. Floats may be off in the last bit of the dtype, and complex numbers may
/// cancel.
fn arithmetic_tolerance(dtype: DType) -> Tolerance {
    match dtype {
        DType::Complex64 => Tolerance::Close { relative: 1e-5, absolute: 1e-5 },
        _ if dtype.is_integer() => Tolerance::Exact,
        _ => Tolerance::Close { relative: epsilon(dtype), absolute: tiny(dtype) },
    }
}

/// A product and a sum may be rounded once or twice, and may cancel.
fn mul_add_tolerance(dtype: DType) -> Tolerance {
    match dtype {
        DType::Complex64 => Tolerance::Close { relative: 1e-5, absolute: 1e-4 },
        _ if dtype.is_integer() => Tolerance::Exact,
        _ => Tolerance::Close { relative: 4.0 * epsilon(dtype), absolute: 2e4 * epsilon(dtype).min(1e-7) },
    }
}

fn unary_tolerance(op: UnaryOp, dtype: DType) -> Tolerance {
    use UnaryOp::*;
    let ulps = match op {
        Neg | Abs | Relu | Floor | Ceil | Round | Not => return Tolerance::Exact,
        Sqrt | Rsqrt | Recip => 1.0,
        Exp | Log | Sin | Cos => 4.0,
        Tanh | Sigmoid | Erf | Silu => 4.0,
        Gelu | GeluTanh => 8.0,
    };
    match dtype {
        DType::Complex64 => arithmetic_tolerance(dtype),
        // The relative error of the tail is that of the argument times the square of the argument.
        DType::F64 if op == Gelu => Tolerance::Close { relative: 1e-12, absolute: tiny(dtype) },
        // The error of the approximation by tanh is relative to its input, not to its vanishing
        // result.
        _ if op == GeluTanh => Tolerance::Close { relative: ulps * epsilon(dtype), absolute: 2e-6 },
        _ => Tolerance::Close { relative: ulps * epsilon(dtype), absolute: tiny(dtype) },
    }
}

fn scaled(tolerance: Tolerance, factor: f64) -> Tolerance {
    match tolerance {
        Tolerance::Exact => Tolerance::Exact,
        Tolerance::Close { relative, absolute } => {
            Tolerance::Close { relative: relative * factor, absolute: absolute.max(relative) * factor }
        }
    }
}

/// The distance from 1 to the next value, times four for f64.
fn epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 4.0 * f64::EPSILON,
        DType::F16 => 2.0_f64.powi(-10),
        DType::BF16 => 2.0_f64.powi(-7),
        _ => 2.0_f64.powi(-23),
    }
}

/// The absolute tolerance for results near the smallest number.
fn tiny(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-300,
        DType::F16 => 2.0_f64.powi(-23),
        _ => 1e-37,
    }
}
