//! Elementwise functions. Floats are computed in f64 and rounded once to the element type; integers
//! are exact and wrap.

use panoply_core::expr::erf;

use super::call::{Call, one};
use super::index::{Positions, broadcast, broadcast_strides};
use crate::array::{Array, host_count};
use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::value::Value;

/// The float function of an op without attributes, else [`shaped_function`].
fn float_function(call: &Call<'_>) -> Result<Box<dyn Fn(f64) -> f64>> {
    let plain: fn(f64) -> f64 = match call.op() {
        "Abs" => f64::abs,
        "Acos" => f64::acos,
        "Acosh" => f64::acosh,
        "Asin" => f64::asin,
        "Asinh" => f64::asinh,
        "Atan" => f64::atan,
        "Atanh" => f64::atanh,
        "Ceil" => f64::ceil,
        "Cos" => f64::cos,
        "Cosh" => f64::cosh,
        "Erf" => erf,
        "Exp" => f64::exp,
        "Floor" => f64::floor,
        "HardSwish" => |x| x * (x / 6.0 + 0.5).clamp(0.0, 1.0),
        "Identity" => |x| x,
        "Log" => f64::ln,
        "Neg" => |x| -x,
        "Reciprocal" => |x| 1.0 / x,
        "Relu" => |x| if x < 0.0 { 0.0 } else { x },
        "Round" => f64::round_ties_even,
        "Sign" => |x| if x == 0.0 || x.is_nan() { x } else { x.signum() },
        "Sin" => f64::sin,
        "Sinh" => f64::sinh,
        "Softsign" => |x| x / (1.0 + x.abs()),
        "Sqrt" => f64::sqrt,
        "Tan" => f64::tan,
        "Tanh" => f64::tanh,
        _ => return shaped_function(call),
    };
    Ok(Box::new(plain))
}

/// The float function of an op with attributes, or composed of other functions.
fn shaped_function(call: &Call<'_>) -> Result<Box<dyn Fn(f64) -> f64>> {
    let alpha = |default: f32| call.float("alpha", default);
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let softplus = |x: f64| if x > 30.0 { x } else { x.exp().ln_1p() };
    Ok(match call.op() {
        "Sigmoid" => Box::new(sigmoid),
        "Softplus" => Box::new(softplus),
        "Mish" => Box::new(move |x| x * softplus(x).tanh()),
        "Swish" => {
            let alpha = alpha(1.0)?;
            Box::new(move |x| x * sigmoid(alpha * x))
        }
        "Gelu" => gelu(call.text("approximate", "none")?)?,
        "Elu" => {
            let alpha = alpha(1.0)?;
            Box::new(move |x| if x < 0.0 { alpha * x.exp_m1() } else { x })
        }
        "Celu" => {
            let alpha = alpha(1.0)?;
            Box::new(move |x| x.max(0.0) + (alpha * (x / alpha).exp_m1()).min(0.0))
        }
        "Selu" => {
            let (alpha, gamma) = (alpha(1.673_263_2)?, call.float("gamma", 1.050_701)?);
            Box::new(move |x| if x <= 0.0 { gamma * (alpha * x.exp_m1()) } else { gamma * x })
        }
        "LeakyRelu" => {
            let alpha = alpha(0.01)?;
            Box::new(move |x| if x < 0.0 { alpha * x } else { x })
        }
        "ThresholdedRelu" => {
            let alpha = alpha(1.0)?;
            Box::new(move |x| if x > alpha { x } else { 0.0 })
        }
        "HardSigmoid" => {
            let (alpha, beta) = (alpha(0.2)?, call.float("beta", 0.5)?);
            Box::new(move |x| (alpha * x + beta).clamp(0.0, 1.0))
        }
        "Shrink" => {
            let (bias, lambd) = (call.float("bias", 0.0)?, call.float("lambd", 0.5)?);
            Box::new(move |x| match x {
                x if x < -lambd => x + bias,
                x if x > lambd => x - bias,
                _ => 0.0,
            })
        }
        other => return Err(Error::unsupported(format!("{other} of floats"))),
    })
}

fn gelu(approximate: &str) -> Result<Box<dyn Fn(f64) -> f64>> {
    match approximate {
        "none" => Ok(Box::new(|x| 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2)))),
        "tanh" => {
            let root = (2.0 / std::f64::consts::PI).sqrt();
            Ok(Box::new(move |x| 0.5 * x * (1.0 + (root * (x + 0.044715 * x * x * x)).tanh())))
        }
        other => Err(Error::invalid("approximate", "none or tanh", other)),
    }
}

/// Functions of one operand.
pub(crate) fn unary(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.array(0)?;
    if x.kind().is_float() {
        let function = float_function(call)?;
        let values: Vec<f64> = x.to_floats()?.into_iter().map(function).collect();
        return one(Array::from_floats(x.kind(), x.dims(), &values));
    }
    let integer: fn(i128) -> i128 = match call.op() {
        "Abs" => i128::abs,
        "Neg" => |x| -x,
        "Sign" => i128::signum,
        "Relu" => |x| x.max(0),
        "Identity" | "Floor" | "Ceil" | "Round" => |x| x,
        "BitwiseNot" => |x| !x,
        "Shrink" => {
            let function = float_function(call)?;
            let values: Vec<f64> = x.to_floats()?.into_iter().map(function).collect();
            return one(Array::from_floats(x.kind(), x.dims(), &values));
        }
        other => return Err(Error::unsupported(format!("{other} of {}", x.kind()))),
    };
    let values: Vec<i128> = x.to_integers()?.into_iter().map(integer).collect();
    one(Array::from_integers(x.kind(), x.dims(), &values))
}

/// Returns the operand unchanged.
pub(crate) fn identity(call: &Call<'_>) -> Result<Vec<Value>> {
    Ok(vec![call.value(0)?.clone()])
}

/// The logical negation.
pub(crate) fn not(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.array(0)?;
    expect(x, ElementType::Bool)?;
    one(Array::from_bytes(ElementType::Bool, x.dims(), &x.bytes().iter().map(|value| value ^ 1).collect::<Vec<_>>()))
}

/// Tests floats for infinity or NaN.
pub(crate) fn float_class(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.array(0)?;
    let (negative, positive) = (call.flag("detect_negative", true)?, call.flag("detect_positive", true)?);
    let is_nan = call.op() == "IsNaN";
    let class = |value: f64| match is_nan {
        true => value.is_nan(),
        false => (negative && value == f64::NEG_INFINITY) || (positive && value == f64::INFINITY),
    };
    let found: Vec<bool> = x.to_floats()?.into_iter().map(class).collect();
    one(Array::from_bools(&found, x.dims()))
}

fn expect(array: &Array, kind: ElementType) -> Result<()> {
    match array.kind() == kind {
        true => Ok(()),
        false => Err(Error::invalid("an element type", kind.name(), array.kind())),
    }
}

fn same_kind(a: &Array, b: &Array) -> Result<ElementType> {
    expect(b, a.kind()).map(|()| a.kind())
}

/// Applies `join` to each pair of elements of two arrays that broadcast.
fn pairs<T: Copy, R>(a: (&Array, &[T]), b: (&Array, &[T]), join: impl Fn(T, T) -> R) -> Result<(Vec<usize>, Vec<R>)> {
    let dims = broadcast([a.0.dims(), b.0.dims()])?;
    host_count(&dims)?;
    if a.0.dims() == b.0.dims() {
        return Ok((dims, a.1.iter().zip(b.1).map(|(a, b)| join(*a, *b)).collect()));
    }
    let (Some((len, outer)), count) = (dims.split_last(), dims.iter().product()) else { return Ok((dims, Vec::new())) };
    let mut joined = Vec::with_capacity(count);
    let steps = [broadcast_strides(a.0.dims(), &dims)?, broadcast_strides(b.0.dims(), &dims)?];
    // The last axis of each array is either contiguous or one repeated element.
    let [a_step, b_step] = [&steps[0], &steps[1]].map(|steps| steps[outer.len()] as usize);
    let places = |steps: &[isize]| Positions::new(outer, &steps[..outer.len()]);
    for (left, right) in places(&steps[0]).zip(places(&steps[1])).take(count) {
        match (a_step, b_step) {
            (1, 0) => joined.extend(a.1[left..][..*len].iter().map(|value| join(*value, b.1[right]))),
            (0, 1) => joined.extend(b.1[right..][..*len].iter().map(|value| join(a.1[left], *value))),
            _ => joined.extend((0..*len).map(|at| join(a.1[left + at * a_step], b.1[right + at * b_step]))),
        }
    }
    Ok((dims, joined))
}

/// Arithmetic of two arrays, or of many in turn.
pub(crate) fn arithmetic(call: &Call<'_>) -> Result<Vec<Value>> {
    let arrays = call.arrays(0)?;
    let first = *arrays.first().ok_or_else(|| Error::invalid("operands", "at least one", "none"))?;
    let mut sum = first.clone();
    for next in &arrays[1..] {
        sum = arithmetic_pair(call, &sum, next)?;
    }
    if call.op() == "Mean" {
        let count = arrays.len() as f64;
        let values: Vec<f64> = sum.to_floats()?.into_iter().map(|value| value / count).collect();
        sum = Array::from_floats(sum.kind(), sum.dims(), &values)?;
    }
    one(Ok(sum))
}

fn arithmetic_pair(call: &Call<'_>, a: &Array, b: &Array) -> Result<Array> {
    let kind = same_kind(a, b)?;
    let larger = |a: f64, b: f64| if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) };
    let smaller = |a: f64, b: f64| if a.is_nan() || b.is_nan() { f64::NAN } else { a.min(b) };
    if let Some(singles) = arithmetic_of_singles(call.op(), a, b)? {
        return Ok(singles);
    }
    if kind.is_float() {
        let join: fn(f64, f64) -> f64 = match call.op() {
            "Add" | "Sum" | "Mean" => |a, b| a + b,
            "Sub" => |a, b| a - b,
            "Mul" => |a, b| a * b,
            "Div" => |a, b| a / b,
            "Max" => larger,
            "Min" => smaller,
            "PRelu" => |a, b| if a < 0.0 { a * b } else { a },
            "Mod" if call.flag("fmod", false)? => |a, b| a % b,
            "Mod" => |a, b| {
                let rest = a % b;
                if rest != 0.0 && (rest < 0.0) != (b < 0.0) { rest + b } else { rest }
            },
            other => return Err(Error::unsupported(format!("{other} of floats"))),
        };
        let (dims, values) = pairs((a, &a.to_floats()?), (b, &b.to_floats()?), join)?;
        return Array::from_floats(kind, dims, &values);
    }
    let join: fn(i128, i128) -> i128 = match call.op() {
        "Add" | "Sum" => |a, b| a + b,
        "Sub" => |a, b| a - b,
        "Mul" => i128::wrapping_mul,
        "Div" => |a, b| a.checked_div(b).unwrap_or(0),
        "Max" => i128::max,
        "Min" => i128::min,
        "PRelu" => |a, b| if a < 0 { a * b } else { a },
        "Mod" if call.flag("fmod", false)? => |a, b| a.checked_rem(b).unwrap_or(0),
        "Mod" => |a, b| match a.checked_rem(b) {
            Some(rest) if rest != 0 && (rest < 0) != (b < 0) => rest + b,
            rest => rest.unwrap_or(0),
        },
        "BitwiseAnd" => |a, b| a & b,
        "BitwiseOr" => |a, b| a | b,
        "BitwiseXor" => |a, b| a ^ b,
        "BitShift" => match call.text("direction", "")? {
            // A negative shift counts as a shift by the full width: only the sign remains.
            "LEFT" => |a, b| if (0..64).contains(&b) { a << b } else { 0 },
            "RIGHT" => |a, b| if (0..64).contains(&b) { a >> b } else { a >> 64 },
            other => return Err(Error::invalid("direction", "LEFT or RIGHT", other)),
        },
        other => return Err(Error::unsupported(format!("{other} of {kind}"))),
    };
    let (dims, values) = pairs((a, &a.to_integers()?), (b, &b.to_integers()?), join)?;
    Array::from_integers(kind, dims, &values)
}

/// Arithmetic of f32 without the detour through f64. The results are equal, because f64 has more
/// than twice the digits of f32.
fn arithmetic_of_singles(op: &str, a: &Array, b: &Array) -> Result<Option<Array>> {
    if a.kind() != ElementType::F32 || b.kind() != ElementType::F32 {
        return Ok(None);
    }
    let (a, b) = ((a, a.as_slice::<f32>()?), (b, b.as_slice::<f32>()?));
    let (dims, values) = match op {
        "Add" | "Sum" => pairs(a, b, |a, b| a + b)?,
        "Sub" => pairs(a, b, |a, b| a - b)?,
        "Mul" => pairs(a, b, |a, b| a * b)?,
        "Div" => pairs(a, b, |a, b| a / b)?,
        _ => return Ok(None),
    };
    Array::from_slice(&values, dims).map(Some)
}

/// A power. The exponent may have another type.
pub(crate) fn pow(call: &Call<'_>) -> Result<Vec<Value>> {
    let (a, b) = (call.array(0)?, call.array(1)?);
    if a.kind().is_integer() && b.kind().is_integer() {
        let power = |base: i128, exponent: i128| match (base, exponent) {
            (_, 0) => 1,
            (1, _) => 1,
            (-1, exponent) => 1 - 2 * (exponent & 1),
            (_, exponent) if exponent < 0 => 0,
            (base, exponent) => wrapping_power(base, exponent),
        };
        let (dims, values) = pairs((a, &a.to_integers()?), (b, &b.to_integers()?), power)?;
        return one(Array::from_integers(a.kind(), dims, &values));
    }
    let (dims, values) = pairs((a, &a.to_floats()?), (b, &b.to_floats()?), f64::powf)?;
    one(Array::from_floats(a.kind(), dims, &values))
}

/// A power by repeated squaring. Bits lost beyond 128 would be lost in every narrower type too.
fn wrapping_power(base: i128, exponent: i128) -> i128 {
    let (mut product, mut square, mut left) = (1_i128, base, exponent);
    while left > 0 {
        if left & 1 == 1 {
            product = product.wrapping_mul(square);
        }
        square = square.wrapping_mul(square);
        left >>= 1;
    }
    product
}

/// Comparisons. They return booleans.
pub(crate) fn compare(call: &Call<'_>) -> Result<Vec<Value>> {
    let (a, b) = (call.array(0)?, call.array(1)?);
    let kind = same_kind(a, b)?;
    let fits = match call.op() {
        "Equal" => true,
        "And" | "Or" | "Xor" => kind == ElementType::Bool,
        _ => !matches!(kind, ElementType::Bool | ElementType::String),
    };
    if !fits {
        return Err(Error::unsupported(format!("{} of {kind}", call.op())));
    }
    if kind == ElementType::String {
        let equal = |a: usize, b: usize, s: &[String], t: &[String]| s[a] == t[b];
        let dims = broadcast([a.dims(), b.dims()])?;
        host_count(&dims)?;
        let (s, t) = (a.as_strings()?, b.as_strings()?);
        let places = Positions::broadcast(a.dims(), &dims)?.zip(Positions::broadcast(b.dims(), &dims)?);
        let values: Vec<bool> = places.map(|(a, b)| equal(a, b, s, t)).collect();
        return one(Array::from_bools(&values, dims));
    }
    let (dims, values) = if kind.is_float() {
        let join: fn(f64, f64) -> bool = match call.op() {
            "Equal" => |a, b| a == b,
            "Less" => |a, b| a < b,
            "LessOrEqual" => |a, b| a <= b,
            "Greater" => |a, b| a > b,
            _ => |a, b| a >= b,
        };
        pairs((a, &a.to_floats()?), (b, &b.to_floats()?), join)?
    } else {
        let join: fn(i128, i128) -> bool = match call.op() {
            "Equal" => |a, b| a == b,
            "Less" => |a, b| a < b,
            "LessOrEqual" => |a, b| a <= b,
            "Greater" => |a, b| a > b,
            "And" => |a, b| a != 0 && b != 0,
            "Or" => |a, b| a != 0 || b != 0,
            "Xor" => |a, b| (a != 0) != (b != 0),
            _ => |a, b| a >= b,
        };
        pairs((a, &a.to_integers()?), (b, &b.to_integers()?), join)?
    };
    one(Array::from_bools(&values, dims))
}

/// `Where`: the elements of one array or of another, chosen by a condition.
pub(crate) fn select(call: &Call<'_>) -> Result<Vec<Value>> {
    let (condition, a, b) = (call.array(0)?, call.array(1)?, call.array(2)?);
    expect(condition, ElementType::Bool)?;
    let kind = same_kind(a, b)?;
    let dims = broadcast([condition.dims(), a.dims(), b.dims()])?;
    crate::array::count_of(&dims)?;
    let places = Positions::broadcast(a.dims(), &dims)?.zip(Positions::broadcast(b.dims(), &dims)?);
    let places = Positions::broadcast(condition.dims(), &dims)?.zip(places);
    let truth = condition.bytes();
    if kind == ElementType::String {
        let (s, t) = (a.as_strings()?, b.as_strings()?);
        let pick = |(c, (a, b)): (usize, (usize, usize))| if truth[c] != 0 { &s[a] } else { &t[b] };
        return one(Array::from_texts(places.map(pick), &dims));
    }
    let (size, left, right) = (kind.size_bytes(), a.bytes(), b.bytes());
    one(Array::build(kind, &dims, |bytes| {
        for (target, (c, (a, b))) in bytes.chunks_exact_mut(size).zip(places) {
            let source = if truth[c] != 0 { &left[a * size..] } else { &right[b * size..] };
            target.copy_from_slice(&source[..size]);
        }
    }))
}

/// `Clip`: numbers limited to two bounds.
pub(crate) fn clip(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.array(0)?;
    for bound in [call.optional(1)?, call.optional(2)?].into_iter().flatten() {
        same_kind(x, bound)?;
    }
    if x.kind().is_float() {
        let bound = |place, name, default: f32| match call.optional(place)? {
            Some(bound) => Ok::<_, Error>(bound.to_floats()?.first().copied().unwrap_or(f64::from(default))),
            None => call.float(name, default),
        };
        let (low, high) = (bound(1, "min", f32::NEG_INFINITY)?, bound(2, "max", f32::INFINITY)?);
        let clip = |value: f64| if value.is_nan() { value } else { value.max(low).min(high) };
        let values: Vec<f64> = x.to_floats()?.into_iter().map(clip).collect();
        return one(Array::from_floats(x.kind(), x.dims(), &values));
    }
    let bound = |place| {
        Ok::<_, Error>(call.optional(place)?.map(Array::to_integers).transpose()?.and_then(|b| b.first().copied()))
    };
    let (low, high) = (bound(1)?, bound(2)?);
    let clip = |value: i128| {
        let value = low.map_or(value, |low| value.max(low));
        high.map_or(value, |high| value.min(high))
    };
    let values: Vec<i128> = x.to_integers()?.into_iter().map(clip).collect();
    one(Array::from_integers(x.kind(), x.dims(), &values))
}
