// Orders as unsigned integers: the larger number has the larger key, NaN the largest of all, and zeros of both signs have
// one key. `key_*` is the key for a maximum, `least_*` that for a minimum, in which NaN is the largest as well.

fn key_f32(x: f32) -> u32 {
  let u = bitcast<u32>(x);
  let m = u & 0x7fffffffu;
  if (m > 0x7f800000u) { return 0xffffffffu; }
  if (m == 0u) { return 0x80000000u; }
  return select(~u, u | 0x80000000u, u < 0x80000000u);
}
fn unkey_f32(k: u32) -> f32 {
  let bits = select(~k, k & 0x7fffffffu, k >= 0x80000000u);
  if (k == 0xffffffffu) { return nan_value(); }
  return bitcast<f32>(bits);
}
fn key_i32(x: i32) -> u32 { return bitcast<u32>(x) ^ 0x80000000u; }
fn unkey_i32(k: u32) -> i32 { return bitcast<i32>(k ^ 0x80000000u); }
fn key_u32(x: u32) -> u32 { return x; }
fn unkey_u32(k: u32) -> u32 { return k; }
fn least_f32(x: f32) -> u32 {
  let k = key_f32(x);
  if (k == 0xffffffffu) { return k; }
  return ~k;
}
fn unleast_f32(k: u32) -> f32 {
  if (k == 0xffffffffu) { return nan_value(); }
  return unkey_f32(~k);
}
fn least_i32(x: i32) -> u32 { return ~key_i32(x); }
fn unleast_i32(k: u32) -> i32 { return unkey_i32(~k); }
fn least_u32(x: u32) -> u32 { return ~x; }
fn unleast_u32(k: u32) -> u32 { return ~k; }
