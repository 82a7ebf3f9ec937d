// Integers as expressions know them: division by zero is zero, casts saturate. Complex products.

var<private> zero_bits: u32 = 0u;

fn min_(a: f32, b: f32) -> f32 {
  if (is_nan(a)) { return a; }
  if (is_nan(b)) { return b; }
  return select(b, a, order_of(a) < order_of(b));
}
fn max_(a: f32, b: f32) -> f32 {
  if (is_nan(a)) { return a; }
  if (is_nan(b)) { return b; }
  return select(b, a, order_of(a) > order_of(b));
}
fn div_i32(a: i32, b: i32) -> i32 {
  if (b == 0) { return 0; }
  if (b == -1) { return 0 - a; }
  return a / b;
}
fn rem_i32(a: i32, b: i32) -> i32 {
  if (b == 0 || b == -1) { return 0; }
  return a % b;
}
fn div_u32(a: u32, b: u32) -> u32 {
  if (b == 0u) { return 0u; }
  return a / b;
}
fn rem_u32(a: u32, b: u32) -> u32 {
  if (b == 0u) { return 0u; }
  return a % b;
}
fn pow_u32(a: u32, b: u32) -> u32 {
  var result = 1u;
  var square = a;
  for (var rest = b; rest > 0u; rest = rest >> 1u) {
    if ((rest & 1u) == 1u) { result = result * square; }
    square = square * square;
  }
  return result;
}
fn pow_i32(a: i32, b: i32) -> i32 {
  if (b < 0) {
    if (a == 1) { return 1; }
    if (a == -1) { return select(1, -1, (b & 1) != 0); }
    return 0;
  }
  return bitcast<i32>(pow_u32(bitcast<u32>(a), bitcast<u32>(b)));
}
fn f32_to_i32(x: f32) -> i32 {
  if (is_nan(x)) { return 0; }
  if (x >= 2147483648.0) { return 2147483647; }
  if (x <= -2147483648.0) { return bitcast<i32>(0x80000000u); }
  return i32(x);
}
fn f32_to_u32(x: f32) -> u32 {
  if (is_nan(x) || x <= 0.0) { return 0u; }
  if (x >= 4294967296.0) { return 0xffffffffu; }
  return u32(x);
}
fn f32_to_i8(x: f32) -> i32 { return clamp(f32_to_i32(x), -128, 127); }
fn f32_to_u8(x: f32) -> u32 { return min(f32_to_u32(x), 255u); }
fn complex_mul(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> {
  return vec2<f32>(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);
}
