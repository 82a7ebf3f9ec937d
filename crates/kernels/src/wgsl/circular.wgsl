// Sine and cosine, by exact reduction of arguments of any size. Needs math.wgsl.

// The upper and lower words of a product of two words.
fn wide_product(a: u32, b: u32) -> vec2<u32> {
  let al = a & 0xffffu; let ah = a >> 16u;
  let bl = b & 0xffffu; let bh = b >> 16u;
  let low = al * bl;
  let mid = ah * bl + (low >> 16u);
  let mid2 = al * bh + (mid & 0xffffu);
  return vec2<u32>(ah * bh + (mid >> 16u) + (mid2 >> 16u), a * b);
}

// 2 / pi in binary, with two words of zeros before the point.
const two_over_pi = array<u32, 10>(0u, 0u, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u,
  0xfe5163abu, 0xdebbc561u);

// x less the nearest multiple of pi / 2, and the number of quarter turns taken off, modulo four, as a float.
fn quarter_turns(x: f32) -> vec2<f32> {
  let u = bitcast<u32>(x) & 0x7fffffffu;
  if (u < 0x3f490fdbu) { return vec2<f32>(x, 0.0); }
  var table = two_over_pi;
  let start = (u >> 23u) - 96u;
  let q = start >> 5u;
  let r = start & 31u;
  var w = array<u32, 3>(table[q], table[q + 1u], table[q + 2u]);
  if (r > 0u) {
    w[0] = (table[q] << r) | (table[q + 1u] >> (32u - r));
    w[1] = (table[q + 1u] << r) | (table[q + 2u] >> (32u - r));
    w[2] = (table[q + 2u] << r) | (table[q + 3u] >> (32u - r));
  }
  let m = ((u & 0x7fffffu) | 0x800000u) << 8u;
  let low = wide_product(m, w[2]);
  let mid = wide_product(m, w[1]);
  let p1 = mid.y + low.x;
  let p0 = m * w[0] + mid.x + select(0u, 1u, p1 < mid.y);
  var quarters = p0 >> 30u;
  var f0 = (p0 << 2u) | (p1 >> 30u);
  var f1 = (p1 << 2u) | (low.y >> 30u);
  var sign = select(1.0, -1.0, x < 0.0);
  if (f0 >= 0x80000000u) {
    quarters = quarters + 1u;
    f0 = ~f0;
    f1 = ~f1;
    sign = -sign;
  }
  if (x < 0.0) { quarters = 4u - quarters; }
  var exponent = 0u;
  if (f0 == 0u) { f0 = f1; f1 = 0u; exponent = 32u; }
  let zeros = countLeadingZeros(f0);
  if (zeros > 0u && zeros < 32u) { f0 = (f0 << zeros) | (f1 >> (32u - zeros)); }
  exponent = min(exponent + zeros, 90u);
  let scale = bitcast<f32>((127u - 32u - exponent) << 23u);
  return vec2<f32>(sign * (f32(f0) * scale) * 1.5707963267948966, f32(quarters & 3u));
}

// The sine of x plus this number of quarter turns.
fn circular(x: f32, more: u32) -> f32 {
  if ((bitcast<u32>(x) & 0x7fffffffu) >= 0x7f800000u) { return nan_value(); }
  let turned = quarter_turns(x);
  let r = turned.x;
  let n = (u32(turned.y) + more) & 3u;
  let s = r * r;
  let sine = ((-0.00019516655 * s + 0.008332174) * s - 0.16666655) * s * r + r;
  let cosine = ((2.4437728e-5 * s - 0.0013887361) * s + 0.041666646) * s * s + (1.0 - 0.5 * s);
  let value = select(sine, cosine, (n & 1u) == 1u);
  return select(value, -value, n >= 2u);
}
fn sin_(x: f32) -> f32 { return circular(x, 0u); }
fn cos_(x: f32) -> f32 { return circular(x, 1u); }
