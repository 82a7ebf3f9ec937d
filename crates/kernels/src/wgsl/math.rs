//! Elementary functions of f32 in WGSL, to within a few units in the last place on every driver.
//!
//! What WGSL promises for its own functions is far from that (`sin` is good to 2^-11, division to 2.5 units), so they are
//! written out. Nothing here depends on whether a product and a sum are fused: exact products are made of halves of
//! twelve bits each. Coefficients are minimax fits, the same as the CPU's.

/// Division, roots, exponentials and what is made of them. Needs [`super::prelude::BITS`].
pub(super) const MATH: &str = "
fn high_half(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) & 0xfffff000u); }

// What rounding left out of the product p of a and b.
fn product_rest(a: f32, b: f32, p: f32) -> f32 {
  let ah = high_half(a); let al = a - ah;
  let bh = high_half(b); let bl = b - bh;
  return ((ah * bh - p) + ah * bl + al * bh) + al * bl;
}

// c - a b. Products of halves are exact, so that it does not matter whether they are fused with the sums.
fn residue(a: f32, b: f32, c: f32) -> f32 {
  let ah = high_half(a); let al = a - ah;
  let bh = high_half(b); let bl = b - bh;
  return ((c - ah * bh) - (ah * bl + al * bh)) - al * bl;
}

// Whether numbers of this size have room for exact products and their rests.
fn is_moderate(x: f32) -> bool {
  let e = (bitcast<u32>(x) >> 23u) & 0xffu;
  return e > 60u && e < 194u;
}

fn div_(a: f32, b: f32) -> f32 {
  let q = a / b;
  if (is_moderate(a) && is_moderate(b)) {
    return q + residue(q, b, a) / b;
  }
  if (is_nan(a) || is_nan(b)) { return nan_value(); }
  return q;
}

fn recip_(x: f32) -> f32 { return div_(1.0, x); }

fn sqrt_(x: f32) -> f32 {
  if (is_moderate(x) && x > 0.0) {
    let s = sqrt(x);
    return s + residue(s, s, x) / (2.0 * s);
  }
  if (is_nan(x) || x < 0.0) { return nan_value(); }
  if (x == 0.0 || bitcast<u32>(x) == 0x7f800000u) { return x; }
  return sqrt(x);
}

fn rsqrt_(x: f32) -> f32 {
  if (is_moderate(x) && x > 0.0) {
    let s = sqrt_(x);
    let y = 1.0 / s;
    let missing = residue(s, s, x) / (2.0 * s);
    return y + y * (residue(y, s, 1.0) - y * missing);
  }
  return div_(1.0, sqrt_(x));
}

// a b + c d, right also where the products nearly cancel.
fn products(a: f32, b: f32, c: f32, d: f32) -> f32 {
  if (is_moderate(a) && is_moderate(b) && is_moderate(c) && is_moderate(d)) {
    let ah = high_half(a); let al = a - ah;
    let bh = high_half(b); let bl = b - bh;
    let ch = high_half(c); let cl = c - ch;
    let dh = high_half(d); let dl = d - dh;
    return (ah * bh + ch * dh) + ((ah * bl + al * bh) + (ch * dl + cl * dh)) + (al * bl + cl * dl);
  }
  return a * b + c * d;
}
fn complex_div(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> {
  let norm = b.x * b.x + b.y * b.y;
  return vec2<f32>(products(a.x, b.x, a.y, b.y) / norm, products(a.y, b.x, -a.x, b.y) / norm);
}

// y times two to the power of n, in two steps, so that neither overflows before its time.
fn scale_(y: f32, n: f32) -> f32 {
  let whole = i32(n);
  let half = whole >> 1u;
  let first = bitcast<f32>(bitcast<u32>((half + 127) << 23u));
  let second = bitcast<f32>(bitcast<u32>((whole - half + 127) << 23u));
  return y * first * second;
}

fn exp_reduced(n: f32, r: f32) -> f32 {
  let q = (((0.0013813142 * r + 0.008369419) * r + 0.041668457) * r + 0.16666515) * r + 0.49999993;
  return scale_(1.0 + (q * (r * r) + r), n);
}

fn exp_(x: f32) -> f32 {
  if (is_nan(x)) { return x; }
  let c = max(min(x, 89.0), -105.0);
  let n = round(c * 1.4426950408889634);
  let r = (c - n * 0.693359375) + n * 2.12194440e-4;
  return exp_reduced(n, r);
}

fn log_(x: f32) -> f32 {
  if (is_nan(x) || x < 0.0) { return nan_value(); }
  if (x == 0.0) { return -inf_value(); }
  if (bitcast<u32>(x) == 0x7f800000u) { return x; }
  var v = x;
  var e0 = 0.0;
  if (bitcast<u32>(x) < 0x00800000u) { v = f32(bitcast<u32>(x)); e0 = -149.0; }
  let u = bitcast<u32>(v) - 0x3f400000u;
  let e = f32(bitcast<i32>(u) >> 23u) + e0;
  let f = bitcast<f32>((u & 0x7fffffu) + 0x3f400000u) - 1.0;
  let s = f * f;
  let q = ((((((-0.045074467 * f + 0.10462996) * f - 0.13161197) * f + 0.144784) * f - 0.16647312) * f + 0.19990861) * f
    - 0.25000096) * f + 0.3333345;
  var t = q * f * s;
  t = t - e * 2.12194440e-4;
  t = t - 0.5 * s;
  return (f + t) + e * 0.693359375;
}

fn copy_sign(m: f32, s: f32) -> f32 {
  return bitcast<f32>((bitcast<u32>(m) & 0x7fffffffu) | (bitcast<u32>(s) & 0x80000000u));
}

fn tanh_(x: f32) -> f32 {
  if (is_nan(x)) { return x; }
  let m = abs(x);
  if (m < 0.625) {
    let s = x * x;
    let q = (((-0.0056607805 * s + 0.020602) * s - 0.05372923) * s + 0.13331329) * s - 0.33333278;
    return q * s * x + x;
  }
  return copy_sign(1.0 - 2.0 / (exp_(m + m) + 1.0), x);
}

// value times the logistic function of x, with full precision in both tails.
fn weigh(value: f32, x: f32) -> f32 {
  if (is_nan(x)) { return x; }
  if (x < -80.0) {
    // In two steps, so that nothing on the way is smaller than devices keep.
    let half = exp_(0.5 * max(x, -220.0));
    let first = value * half;
    // It is a number; the test keeps drivers from multiplying the halves with each other first.
    return bitcast<f32>(bitcast<u32>(first) ^ select(0u, 1u, is_nan(first))) * half;
  }
  let decay = exp_(-abs(x));
  let share = select(1.0, decay, x < 0.0);
  return share / (decay + 1.0) * value;
}

fn sigmoid_(x: f32) -> f32 { return weigh(1.0, x); }
fn silu_(x: f32) -> f32 { return weigh(max(x, -3.4028235e38), x); }
fn gelu_tanh_(x: f32) -> f32 {
  let inner = (x * x * 0.071354814 + 1.5957692) * x;
  return weigh(max(x, -3.4028235e38), inner);
}

// The two factors of the normal distribution's upper tail: exp(-x^2 / 2) and the rest.
fn upper_tail(x0: f32) -> vec2<f32> {
  let x = min(x0, 16.0);
  let t = 1.0 / (x * 0.3 + 1.0);
  let q = (((((((((-0.020172492 * t + 0.10979263) * t - 0.22142617) * t + 0.18174687) * t - 0.06997747) * t + 0.09025934) * t
    + 0.08085813) * t + 0.10955286) * t + 0.119690925) * t + 0.11967486) * t + 5.0720286e-7;
  let s = x * x;
  let rest = product_rest(x, x, s);
  let decay = exp_(s * -0.5);
  return vec2<f32>(decay - 0.5 * rest * decay, q);
}

fn erf_(x: f32) -> f32 {
  if (is_nan(x)) { return x; }
  if (abs(x) < 1.0) {
    let s = x * x;
    return x * ((((((7.853858e-5 * s - 0.00080101925) * s + 0.0051883276) * s - 0.026853812) * s + 0.11283585) * s
      - 0.37612626) * s + 1.1283792);
  }
  let tail = upper_tail(abs(x) * 1.4142135);
  return copy_sign(1.0 - 2.0 * (tail.x * tail.y), x);
}

fn gelu_(x: f32) -> f32 {
  if (is_nan(x)) { return x; }
  let tail = upper_tail(abs(x));
  if (x < 0.0) { return tail.y * max(x, -3.4028235e38) * tail.x; }
  return (1.0 - tail.x * tail.y) * x;
}
";

/// Sine and cosine, by exact reduction of arguments of any size. Needs [`MATH`].
pub(super) const CIRCULAR: &str = "
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

// The sine of x plus so many quarter turns.
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
";

/// Remainders and powers. Needs [`MATH`] and a function `zero_word()` whose zero no compiler can know.
pub(super) const POWER: &str = "
// The remainder with the sign of a, exactly: long division of the mantissas.
fn rem_(a: f32, b: f32) -> f32 {
  let ua = bitcast<u32>(a) & 0x7fffffffu;
  let ub = bitcast<u32>(b) & 0x7fffffffu;
  if (ua >= 0x7f800000u || ub > 0x7f800000u || ub == 0u) { return nan_value(); }
  if (ua < ub) { return a; }
  var ea = ua >> 23u;
  let eb0 = ub >> 23u;
  var ma = (ua & 0x7fffffu) | 0x800000u;
  var mb = (ub & 0x7fffffu) | 0x800000u;
  if (ea == 0u) { ma = ua & 0x7fffffu; ea = 1u; }
  var eb = eb0;
  if (eb0 == 0u) { mb = ub & 0x7fffffu; eb = 1u; }
  for (var steps = ea - eb; steps > 0u; steps = steps - 1u) {
    if (ma >= mb) { ma = ma - mb; }
    ma = ma << 1u;
  }
  if (ma >= mb) { ma = ma - mb; }
  let sign = bitcast<u32>(a) & 0x80000000u;
  if (ma == 0u) { return bitcast<f32>(sign); }
  // Back to a float: shift the leading bit into its place, as far as the exponent allows.
  let shift = min(countLeadingZeros(ma) - 8u, eb - 1u);
  let shifted = ma << shift;
  let exponent = select(0u, eb - shift, shifted >= 0x800000u);
  return bitcast<f32>(sign | (exponent << 23u) | (shifted & 0x7fffffu));
}

// The same number, of which compilers know nothing: they take (a + b) - a for b otherwise.
fn opaque(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) ^ zero_word()); }

fn two_sum(a: f32, b: f32) -> vec2<f32> {
  let s = opaque(a + b);
  let bb = opaque(s - a);
  return vec2<f32>(s, (a - opaque(s - bb)) + (b - bb));
}
fn pair_product(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> {
  let p = a.x * b.x;
  let rest = product_rest(a.x, b.x, p) + (a.x * b.y + a.y * b.x);
  return two_sum(p, rest);
}

// The natural logarithm of a positive finite number, as a sum of two floats.
fn log_pair(x: f32) -> vec2<f32> {
  var v = x;
  var e0 = 0.0;
  if (bitcast<u32>(x) < 0x00800000u) { v = f32(bitcast<u32>(x)); e0 = -149.0; }
  let u = bitcast<u32>(v) - 0x3f3504f3u;
  let e = f32(bitcast<i32>(u) >> 23u) + e0;
  let f = bitcast<f32>((u & 0x7fffffu) + 0x3f3504f3u) - 1.0;
  // log(1 + f) = 2 s + 2/3 s^3 + 2/5 s^5 + ..., s = f / (2 + f).
  let d = two_sum(2.0, f);
  let sh = f / d.x;
  let p = sh * d.x;
  let sl = ((f - p) - product_rest(sh, d.x, p) - sh * d.y) / d.x;
  let s = two_sum(sh, sl);
  let s2 = pair_product(s, s);
  let s3 = pair_product(s2, s);
  let third = pair_product(s3, vec2<f32>(0.6666667, -1.9868216e-8));
  let w = s2.x;
  let more = s3.x * w * ((((0.15384616 * w + 0.18181819) * w + 0.22222222) * w + 0.2857143) * w + 0.4);
  let small = two_sum(third.x, third.y + more);
  let log_m = two_sum(2.0 * s.x, small.x);
  let m = vec2<f32>(log_m.x, log_m.y + (2.0 * s.y + small.y));
  let big = e * 0.693145751953125;
  let rest = e * 1.42860677e-6;
  let total = two_sum(big, m.x);
  return two_sum(total.x, total.y + (m.y + rest));
}

fn pow_magnitude(x: f32, y: f32) -> f32 {
  let l = log_pair(x);
  let rough = y * l.x;
  if (rough > 100.0) { return inf_value(); }
  if (rough < -120.0) { return 0.0; }
  let p = two_sum(rough, product_rest(y, l.x, rough) + y * l.y);
  let n = round(p.x * 1.4426950408889634);
  let r = ((p.x - n * 0.693359375) + n * 2.12194440e-4) + p.y;
  return exp_reduced(n, r);
}

fn pow_(x: f32, y: f32) -> f32 {
  if (y == 0.0 || x == 1.0) { return 1.0; }
  if (is_nan(x) || is_nan(y)) { return nan_value(); }
  let ax = abs(x);
  let ay = abs(y);
  let y_infinite = bitcast<u32>(ay) == 0x7f800000u;
  let x_infinite = bitcast<u32>(ax) == 0x7f800000u;
  if (y_infinite) {
    if (ax == 1.0) { return 1.0; }
    return select(0.0, inf_value(), (ax > 1.0) == (y > 0.0));
  }
  let is_whole = ay >= 8388608.0 || floor(ay) == ay;
  let is_odd = is_whole && ay < 16777216.0 && (u32(ay) & 1u) == 1u;
  let is_negative = (bitcast<u32>(x) & 0x80000000u) != 0u;
  var magnitude = 0.0;
  if (ax == 0.0 || x_infinite) {
    magnitude = select(0.0, inf_value(), x_infinite == (y > 0.0));
  } else if (ay > 1.0e12) {
    if (ax == 1.0) { magnitude = 1.0; } else { magnitude = select(0.0, inf_value(), (ax > 1.0) == (y > 0.0)); }
  } else {
    if (is_negative && !is_whole) { return nan_value(); }
    magnitude = pow_magnitude(ax, y);
  }
  return select(magnitude, -magnitude, is_negative && is_odd);
}
";
