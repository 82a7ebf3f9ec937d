//! Elementwise expressions, node by node. `panoply_core::expr` defines the meaning of each node.
//! Where StableHLO's op of the same name differs in an edge case (an integer divided by zero, a
//! float too large for an integer), extra ops handle the edge case.

use panoply_core::expr::{BinaryOp, Node, Program, TernaryOp, UnaryOp, Value as Known};
use panoply_core::{DType, Result};

use super::{Compare, Element, Value, Writer};

/// The type in which a dtype is computed: f32 for 16-bit floats.
pub(crate) fn carrier(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    }
}

/// Converts a value to the type in which it is computed.
pub(crate) fn carried(writer: &mut Writer, value: &Value) -> Value {
    match value.element {
        Element::Of(dtype) => writer.convert(value, carrier(dtype).into()),
        Element::Bool => value.clone(),
    }
}

/// Converts a value to a tensor's dtype.
pub(crate) fn stored(writer: &mut Writer, value: &Value, dtype: DType) -> Value {
    writer.convert(value, dtype.into())
}

/// Writes the expression. `dtypes` are the inputs' dtypes. The inputs are already in their
/// computation types and have the result's dimensions. The result is in its computation type, too.
pub(crate) fn expression(
    writer: &mut Writer,
    program: &Program,
    dtypes: &[DType],
    inputs: &[Value],
    dims: &[usize],
) -> Result<Value> {
    let types = program.types(dtypes)?;
    let mut values: Vec<Option<Value>> = Vec::with_capacity(program.nodes().len());
    for (id, node) in program.nodes().iter().enumerate() {
        let value = match types.values()[id] {
            Known::Constant(_) => None,
            Known::Typed(dtype) => {
                let mut operand = |id: u32| match (&values[id as usize], types.values()[id as usize]) {
                    (Some(value), _) => value.clone(),
                    (None, Known::Constant(value)) => writer.constant(value, carrier(dtype).into(), dims),
                    (None, Known::Typed(_)) => writer.constant(0.0, carrier(dtype).into(), dims),
                };
                Some(match *node {
                    Node::Input(index) => inputs[index as usize].clone(),
                    Node::Const(constant) => writer.constant(constant.value(), carrier(dtype).into(), dims),
                    Node::Unary(op, a) => {
                        let a = operand(a);
                        unary(writer, op, &a)
                    }
                    Node::Binary(op, a, b) => {
                        let (a, b) = (operand(a), operand(b));
                        binary(writer, op, &a, &b)
                    }
                    Node::Ternary(op, a, b, c) => {
                        let (a, b, c) = (operand(a), operand(b), operand(c));
                        ternary(writer, op, &a, &b, &c)
                    }
                    Node::Cast(to, a) => match (&values[a as usize], types.values()[a as usize]) {
                        (Some(value), Known::Typed(from)) if from == to => value.clone(),
                        (Some(value), _) => cast(writer, &value.clone(), to),
                        (None, Known::Constant(value)) => {
                            let constant = writer.constant(value, Element::F64, dims);
                            cast(writer, &constant, to)
                        }
                        (None, Known::Typed(_)) => writer.constant(0.0, carrier(to).into(), dims),
                    },
                })
            }
        };
        values.push(value);
    }
    Ok(match (values.pop().flatten(), types.values().last()) {
        (Some(value), _) => value,
        (None, Some(Known::Constant(value))) => writer.constant(*value, Element::F32, dims),
        (None, _) => writer.constant(0.0, Element::F32, dims),
    })
}

fn unary(writer: &mut Writer, op: UnaryOp, x: &Value) -> Value {
    match x.element {
        Element::Of(DType::Complex64) => complex_unary(writer, op, x),
        element if element.is_integer() => integer_unary(writer, op, x),
        _ => float_unary(writer, op, x),
    }
}

fn complex_unary(writer: &mut Writer, op: UnaryOp, x: &Value) -> Value {
    match op {
        UnaryOp::Recip => {
            let one = writer.constant(1.0, x.element, &x.dims);
            divide_complex(writer, &one, x)
        }
        _ => writer.like("negate", &[x]),
    }
}

fn integer_unary(writer: &mut Writer, op: UnaryOp, x: &Value) -> Value {
    let zero = writer.constant(0.0, x.element, &x.dims);
    match op {
        UnaryOp::Neg => writer.like("subtract", &[&zero, x]),
        UnaryOp::Abs if !x.element.is_unsigned() => writer.like("abs", &[x]),
        UnaryOp::Relu if !x.element.is_unsigned() => writer.like("maximum", &[x, &zero]),
        UnaryOp::Not => {
            let is_zero = writer.compare(Compare::Eq, x, &zero);
            writer.convert(&is_zero, x.element)
        }
        _ => x.clone(),
    }
}

fn float_unary(writer: &mut Writer, op: UnaryOp, x: &Value) -> Value {
    let mut constant = |value: f64| writer.constant(value, x.element, &x.dims);
    match op {
        UnaryOp::Neg => writer.like("negate", &[x]),
        UnaryOp::Abs => writer.like("abs", &[x]),
        UnaryOp::Exp => writer.like("exponential", &[x]),
        UnaryOp::Log => writer.like("log", &[x]),
        UnaryOp::Sqrt => writer.like("sqrt", &[x]),
        UnaryOp::Rsqrt => {
            let (one, root) = (constant(1.0), writer.like("sqrt", &[x]));
            writer.like("divide", &[&one, &root])
        }
        UnaryOp::Recip => {
            let one = constant(1.0);
            writer.like("divide", &[&one, x])
        }
        UnaryOp::Tanh => writer.like("tanh", &[x]),
        UnaryOp::Sigmoid => writer.like("logistic", &[x]),
        UnaryOp::Erf => writer.like("chlo.erf", &[x]),
        UnaryOp::Relu => {
            let zero = constant(0.0);
            writer.extreme(Compare::Gt, x, &zero)
        }
        UnaryOp::Gelu => gelu(writer, x),
        UnaryOp::GeluTanh => {
            // The tanh form `0.5 · (1 + tanh(y))` equals `sigmoid(2 · y)`.
            let (cubic, twice) = (constant(0.044715), constant(2.0 * (2.0 / std::f64::consts::PI).sqrt()));
            let square = writer.like("multiply", &[x, x]);
            let cube = writer.like("multiply", &[&square, x]);
            let small = writer.like("multiply", &[&cubic, &cube]);
            let sum = writer.like("add", &[x, &small]);
            let inner = writer.like("multiply", &[&twice, &sum]);
            let weight = writer.like("logistic", &[&inner]);
            share(writer, x, &weight)
        }
        UnaryOp::Silu => silu(writer, x),
        UnaryOp::Floor => writer.like("floor", &[x]),
        UnaryOp::Ceil => writer.like("ceil", &[x]),
        UnaryOp::Round => writer.like("round_nearest_even", &[x]),
        UnaryOp::Sin => writer.like("sine", &[x]),
        UnaryOp::Cos => writer.like("cosine", &[x]),
        UnaryOp::Not => {
            let zero = constant(0.0);
            let is_zero = writer.compare(Compare::Eq, x, &zero);
            writer.convert(&is_zero, x.element)
        }
    }
}

/// GELU as `x / 2 · erfc(-x / √2)`. For f32 far below zero, erfc is so steep that the rounding of
/// its argument causes errors of many units in the last place. There `gelu_tail` is used instead.
fn gelu(writer: &mut Writer, x: &Value) -> Value {
    let mut constant = |number: f64| writer.constant(number, x.element, &x.dims);
    let (factor, half) = (constant(-std::f64::consts::FRAC_1_SQRT_2), constant(0.5));
    let inner = writer.like("multiply", &[x, &factor]);
    let twice = writer.like("chlo.erfc", &[&inner]);
    let weight = writer.like("multiply", &[&twice, &half]);
    let whole = share(writer, x, &weight);
    if x.element != Element::F32 {
        return whole;
    }
    let tail = gelu_tail(writer, x, &inner);
    let [steep, beyond] = [-2.0, -20.0].map(|number| writer.constant(number, x.element, &x.dims));
    let (is_steep, is_near) = (writer.compare(Compare::Lt, x, &steep), writer.compare(Compare::Gt, x, &beyond));
    let counts = writer.like("and", &[&is_steep, &is_near]);
    writer.select(&counts, &tail, &whole)
}

/// The tail of GELU: `x / 2 · exp(-x² / 2) · t · exp(p(t))` with `t = 1 / (1 + z / 2)` of the
/// positive argument `z = -x / √2`. This form of erfc has a relative error of 1.2e-7 (Numerical
/// Recipes, 6.2). The square is split in two parts, so that it is exact.
fn gelu_tail(writer: &mut Writer, x: &Value, z: &Value) -> Value {
    const TERMS: [f64; 10] = [
        0.170_872_77,
        -0.822_152_23,
        1.488_515_87,
        -1.135_203_98,
        0.278_868_07,
        -0.186_288_06,
        0.096_784_18,
        0.374_091_96,
        1.000_023_68,
        -1.265_512_23,
    ];
    let number = |writer: &mut Writer, number: f64| writer.constant(number, x.element, &x.dims);
    let (half, minus_half, one) = (number(writer, 0.5), number(writer, -0.5), number(writer, 1.0));
    let scaled = writer.like("multiply", &[z, &half]);
    let over = writer.like("add", &[&scaled, &one]);
    let t = writer.like("divide", &[&one, &over]);
    let mut sum = number(writer, TERMS[0]);
    for term in &TERMS[1..] {
        let (product, term) = (writer.like("multiply", &[&sum, &t]), number(writer, *term));
        sum = writer.like("add", &[&product, &term]);
    }
    let bits = "exponent_bits = 8 : i32, mantissa_bits = 10 : i32";
    let high = writer.op("reduce_precision", &[x], bits, x.element, &x.dims);
    let (low, both) = (writer.like("subtract", &[x, &high]), writer.like("add", &[x, &high]));
    let (square, rest) = (writer.like("multiply", &[&high, &high]), writer.like("multiply", &[&low, &both]));
    let mut power = |of: &Value| {
        let exponent = writer.like("multiply", &[of, &minus_half]);
        writer.like("exponential", &[&exponent])
    };
    let (main, more) = (power(&square), power(&rest));
    let polynomial = writer.like("exponential", &[&sum]);
    // The smallest factor comes last, so that no intermediate product is subnormal before the
    // result is.
    [&half, &t, &polynomial, &more, &main]
        .into_iter()
        .fold(x.clone(), |product, factor| writer.like("multiply", &[&product, factor]))
}

/// SiLU: `x · sigmoid(x)`. Far below zero the weight is subnormal, and devices may flush it to zero
/// although the product is still normal. There the two halves of the exponential are multiplied one
/// after the other.
fn silu(writer: &mut Writer, x: &Value) -> Value {
    let weight = writer.like("logistic", &[x]);
    let high = share(writer, x, &weight);
    let (one, half) = (writer.constant(1.0, x.element, &x.dims), writer.constant(0.5, x.element, &x.dims));
    let exponent = writer.like("multiply", &[x, &half]);
    let root = writer.like("exponential", &[&exponent]);
    let (square, first) = (writer.like("multiply", &[&root, &root]), share(writer, x, &root));
    let (over, product) = (writer.like("add", &[&square, &one]), writer.like("multiply", &[&first, &root]));
    let low = writer.like("divide", &[&product, &over]);
    let zero = writer.constant(0.0, x.element, &x.dims);
    let is_low = writer.compare(Compare::Lt, x, &zero);
    writer.select(&is_low, &low, &high)
}

/// The product of `x` and a weight. Zero if the weight is zero, for any `x`.
fn share(writer: &mut Writer, x: &Value, weight: &Value) -> Value {
    let zero = writer.constant(0.0, x.element, &x.dims);
    let nothing = writer.compare(Compare::Eq, weight, &zero);
    let product = writer.like("multiply", &[x, weight]);
    writer.select(&nothing, &zero, &product)
}

fn binary(writer: &mut Writer, op: BinaryOp, a: &Value, b: &Value) -> Value {
    let compared = |writer: &mut Writer, direction: Compare| {
        let answer = writer.compare(direction, a, b);
        writer.convert(&answer, a.element)
    };
    match op {
        BinaryOp::Add => writer.like("add", &[a, b]),
        BinaryOp::Sub => writer.like("subtract", &[a, b]),
        BinaryOp::Mul => writer.like("multiply", &[a, b]),
        BinaryOp::Div if a.element == Element::Of(DType::Complex64) => divide_complex(writer, a, b),
        BinaryOp::Div => divide(writer, "divide", a, b),
        BinaryOp::Rem => divide(writer, "remainder", a, b),
        BinaryOp::Pow if a.element.is_integer() => integer_power(writer, a, b),
        BinaryOp::Pow => float_power(writer, a, b),
        BinaryOp::Min => writer.extreme(Compare::Lt, a, b),
        BinaryOp::Max => writer.extreme(Compare::Gt, a, b),
        BinaryOp::Eq => compared(writer, Compare::Eq),
        BinaryOp::Ne => compared(writer, Compare::Ne),
        BinaryOp::Lt => compared(writer, Compare::Lt),
        BinaryOp::Le => compared(writer, Compare::Le),
        BinaryOp::Gt => compared(writer, Compare::Gt),
        BinaryOp::Ge => compared(writer, Compare::Ge),
        BinaryOp::And | BinaryOp::Or => {
            let (first, second) = (truth(writer, a), truth(writer, b));
            let both = writer.like(if op == BinaryOp::And { "and" } else { "or" }, &[&first, &second]);
            writer.convert(&both, a.element)
        }
    }
}

/// Whether each element is not zero. NaN counts as true.
fn truth(writer: &mut Writer, value: &Value) -> Value {
    let zero = writer.constant(0.0, value.element, &value.dims);
    writer.compare(Compare::Ne, value, &zero)
}

/// A quotient or a remainder. Integers divided by zero give zero.
fn divide(writer: &mut Writer, op: &str, a: &Value, b: &Value) -> Value {
    let result = writer.like(op, &[a, b]);
    if !a.element.is_integer() {
        return result;
    }
    let zero = writer.constant(0.0, a.element, &a.dims);
    let nothing = writer.compare(Compare::Eq, b, &zero);
    writer.select(&nothing, &zero, &result)
}

/// `(a · c + b · d, b · c - a · d) / (c² + d²)`.
fn divide_complex(writer: &mut Writer, x: &Value, y: &Value) -> Value {
    let mut part = |name: &str, value: &Value| writer.op(name, &[value], "", Element::F32, &value.dims);
    let (a, b, c, d) = (part("real", x), part("imag", x), part("real", y), part("imag", y));
    let mut product = |x: &Value, y: &Value| writer.like("multiply", &[x, y]);
    let (ac, bd, bc, ad, cc, dd) =
        (product(&a, &c), product(&b, &d), product(&b, &c), product(&a, &d), product(&c, &c), product(&d, &d));
    let norm = writer.like("add", &[&cc, &dd]);
    let (sum, difference) = (writer.like("add", &[&ac, &bd]), writer.like("subtract", &[&bc, &ad]));
    let (re, im) = (writer.like("divide", &[&sum, &norm]), writer.like("divide", &[&difference, &norm]));
    writer.op("complex", &[&re, &im], "", x.element, &x.dims)
}

/// Powers of floats. `1^b` and `a^0` are 1, even for NaN.
fn float_power(writer: &mut Writer, a: &Value, b: &Value) -> Value {
    let power = writer.like("power", &[a, b]);
    let (one, zero) = (writer.constant(1.0, a.element, &a.dims), writer.constant(0.0, a.element, &a.dims));
    let (is_one, is_zero) = (writer.compare(Compare::Eq, a, &one), writer.compare(Compare::Eq, b, &zero));
    let is_known = writer.like("or", &[&is_one, &is_zero]);
    writer.select(&is_known, &one, &power)
}

/// Powers of integers by squaring, one bit of the exponent at a time. A negative exponent gives 1
/// for base 1, ±1 for base -1, and 0 otherwise.
fn integer_power(writer: &mut Writer, a: &Value, b: &Value) -> Value {
    let (element, dims) = (a.element, &a.dims);
    let (one, zero) = (writer.constant(1.0, element, dims), writer.constant(0.0, element, dims));
    let bits = if matches!(element, Element::Of(DType::I8 | DType::U8)) { 8 } else { 32 };
    let value_bits = if element.is_unsigned() { bits } else { bits - 1 };
    let (mut power, mut square, mut rest) = (one.clone(), a.clone(), b.clone());
    for bit in 0..value_bits {
        let low = writer.like("and", &[&rest, &one]);
        let is_set = writer.compare(Compare::Ne, &low, &zero);
        let more = writer.like("multiply", &[&power, &square]);
        power = writer.select(&is_set, &more, &power);
        if bit + 1 < value_bits {
            square = writer.like("multiply", &[&square, &square]);
            rest = writer.like("shift_right_logical", &[&rest, &one]);
        }
    }
    if element.is_unsigned() {
        return power;
    }
    let minus_one = writer.constant(-1.0, element, dims);
    let odd = writer.like("and", &[b, &one]);
    let is_odd = writer.compare(Compare::Ne, &odd, &zero);
    let alternating = writer.select(&is_odd, &minus_one, &one);
    let (is_one, is_minus) = (writer.compare(Compare::Eq, a, &one), writer.compare(Compare::Eq, a, &minus_one));
    let others = writer.select(&is_minus, &alternating, &zero);
    let inverse = writer.select(&is_one, &one, &others);
    let is_negative = writer.compare(Compare::Lt, b, &zero);
    writer.select(&is_negative, &inverse, &power)
}

fn ternary(writer: &mut Writer, op: TernaryOp, a: &Value, b: &Value, c: &Value) -> Value {
    match op {
        TernaryOp::Select => {
            let condition = truth(writer, a);
            writer.select(&condition, b, c)
        }
        TernaryOp::Clamp => {
            let raised = writer.extreme(Compare::Gt, a, b);
            writer.extreme(Compare::Lt, &raised, c)
        }
        TernaryOp::MulAdd => {
            let product = writer.like("multiply", &[a, b]);
            writer.like("add", &[&product, c])
        }
    }
}

/// Casts a value in its computation type. The result is in the computation type of `to`.
fn cast(writer: &mut Writer, value: &Value, to: DType) -> Value {
    let from_integer = value.element.is_integer() || value.element == Element::Bool;
    match to {
        _ if value.element == Element::Of(to) && carrier(to) == to => value.clone(),
        DType::Complex64 => {
            let re = writer.convert(value, Element::F32);
            let im = writer.constant(0.0, Element::F32, &value.dims);
            writer.op("complex", &[&re, &im], "", Element::Of(to), &value.dims)
        }
        DType::F16 | DType::BF16 => {
            let single = writer.convert(value, Element::F32);
            let rounded = writer.convert(&single, to.into());
            writer.convert(&rounded, Element::F32)
        }
        DType::F32 | DType::F64 => writer.convert(value, to.into()),
        _ if from_integer => writer.convert(value, to.into()),
        _ => float_to_integer(writer, value, to.into()),
    }
}

/// Truncates toward zero and saturates. NaN becomes zero.
fn float_to_integer(writer: &mut Writer, value: &Value, to: Element) -> Value {
    let dims = value.dims.clone();
    let mut float = |number: f64| writer.constant(number, value.element, &dims);
    // `highest + 1` is a power of two, which every float type represents exactly. The same holds
    // for `lowest`.
    let (lowest, beyond, zero) = (float(to.lowest()), float(to.highest() + 1.0), float(0.0));
    let (lowest_integer, highest_integer) =
        (writer.constant(to.lowest(), to, &dims), writer.constant(to.highest(), to, &dims));
    let (is_low, is_high) = (writer.compare(Compare::Le, value, &lowest), writer.compare(Compare::Ge, value, &beyond));
    let is_nan = writer.compare(Compare::Ne, value, value);
    let outside = writer.like("or", &[&is_low, &is_high]);
    let wild = writer.like("or", &[&outside, &is_nan]);
    // Values outside the range are replaced before the conversion, because their results differ
    // between devices.
    let tame = writer.select(&wild, &zero, value);
    let converted = writer.convert(&tame, to);
    let raised = writer.select(&is_low, &lowest_integer, &converted);
    writer.select(&is_high, &highest_integer, &raised)
}
