// NaN, and the packed forms of f32, rounded to nearest, ties to even.
//
// Read through variables, because constant expressions may be neither infinite nor NaN.
var<private> nan_bits: u32 = 0x7fc00000u;
var<private> inf_bits: u32 = 0x7f800000u;
fn nan_value() -> f32 { return bitcast<f32>(nan_bits); }
fn inf_value() -> f32 { return bitcast<f32>(inf_bits); }
fn is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }

// Zero, order, sign and magnitude by bits: devices that flush subnormal numbers take them for zero in comparisons, and
// shader compilers may assume that no operand is NaN.
fn is_zero(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) == 0u; }
fn neg_(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) ^ 0x80000000u); }
fn abs_(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) & 0x7fffffffu); }
// Integers in the order of the numbers, NaN aside; both zeros are 0.
fn order_of(x: f32) -> i32 {
  let u = bitcast<u32>(x);
  let magnitude = bitcast<i32>(u & 0x7fffffffu);
  return select(magnitude, -magnitude, u >= 0x80000000u);
}
fn either_nan(a: f32, b: f32) -> bool { return is_nan(a) || is_nan(b); }
fn eq_(a: f32, b: f32) -> bool { return order_of(a) == order_of(b) && !either_nan(a, b); }
fn lt_(a: f32, b: f32) -> bool { return order_of(a) < order_of(b) && !either_nan(a, b); }
fn le_(a: f32, b: f32) -> bool { return order_of(a) <= order_of(b) && !either_nan(a, b); }

// By its bits: drivers make a maximum of comparisons, and lose NaN.
fn relu_(x: f32) -> f32 {
  let u = bitcast<u32>(x);
  return bitcast<f32>(select(u, 0u, u >= 0x80000000u && u <= 0xff800000u));
}

fn half_bits(x: f32) -> u32 {
  let u = bitcast<u32>(x);
  let sign = (u >> 16u) & 0x8000u;
  let m = u & 0x7fffffffu;
  if (m > 0x7f800000u) { return sign | 0x7e00u; }
  if (m >= 0x477ff000u) { return sign | 0x7c00u; }
  if (m >= 0x38800000u) {
    let rounded = m + 0xfffu + ((m >> 13u) & 1u);
    return sign | ((rounded - 0x38000000u) >> 13u);
  }
  // Subnormal: the mantissa is shifted to units of 2^-24.
  let exponent = m >> 23u;
  if (exponent < 102u) { return sign; }
  let mantissa = (m & 0x7fffffu) | 0x800000u;
  let shift = 126u - exponent;
  let kept = mantissa >> shift;
  let rest = mantissa & ((1u << shift) - 1u);
  let half = 1u << (shift - 1u);
  let up = select(0u, 1u, rest > half || (rest == half && (kept & 1u) == 1u));
  return sign | (kept + up);
}

fn bf16_bits(x: f32) -> u32 {
  let u = bitcast<u32>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) { return (u >> 16u) | 0x40u; }
  return (u + 0x7fffu + ((u >> 16u) & 1u)) >> 16u;
}
