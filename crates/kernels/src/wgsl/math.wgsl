// Elementary functions of f32, to within a few units in the last place on every driver. WGSL's own functions are far less
// accurate (`sin` is good to 2^-11, division to 2.5 units), so they are written out. Nothing here depends on whether a
// product and a sum are fused: exact products are made of halves of twelve bits each. Coefficients are minimax fits, the same
// as the CPU's. Needs bits.wgsl.

fn high_half(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) & 0xfffff000u); }

// The rounding error of the product p of a and b.
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

fn is_special(x: f32) -> bool {
  let u = bitcast<u32>(x) & 0x7fffffffu;
  return u == 0u || u == 0x7f800000u;
}

// Zeros and infinities as they are, everything else as one of the same sign.
fn one_unless_special(x: f32) -> f32 {
  return select(bitcast<f32>((bitcast<u32>(x) & 0x80000000u) | 0x3f800000u), x, is_special(x));
}

// Where the leading bit of a number is: 2 to this power is at most the number. By bits, since a device may take subnormal
// numbers for zero.
fn exponent_of(x: f32) -> i32 {
  let u = bitcast<u32>(x) & 0x7fffffffu;
  if (u < 0x00800000u) { return -118 - i32(countLeadingZeros(u)); }
  return i32(u >> 23u) - 127;
}

// The magnitude of a number divided by 2 to the power of its exponent: from one up to two.
fn fraction_of(x: f32) -> f32 {
  let u = bitcast<u32>(x) & 0x7fffffffu;
  if (u < 0x00800000u) {
    return bitcast<f32>(((u << (countLeadingZeros(u) - 8u)) & 0x007fffffu) | 0x3f800000u);
  }
  return bitcast<f32>((u & 0x007fffffu) | 0x3f800000u);
}

// Two to a power from -126 to 127.
fn power_of_two(e: i32) -> f32 { return bitcast<f32>(bitcast<u32>(e + 127) << 23u); }

fn div_(a: f32, b: f32) -> f32 {
  if (is_moderate(a) && is_moderate(b)) {
    let q = a / b;
    return q + residue(q, b, a) / b;
  }
  if (is_nan(a) || is_nan(b)) { return nan_value(); }
  if (is_special(a) || is_special(b)) { return one_unless_special(a) / one_unless_special(b); }
  // Devices divide by the reciprocal, which is zero or infinite for the largest and the smallest numbers. So fractions are
  // divided, and the exponent is applied in steps.
  let x = fraction_of(a);
  let y = fraction_of(b);
  let q = x / y;
  let magnitude = q + residue(q, y, x) / y;
  let e = exponent_of(a) - exponent_of(b);
  let first = clamp(e, -126, 127);
  let second = clamp(e - first, -126, 127);
  let sign = (bitcast<u32>(a) ^ bitcast<u32>(b)) & 0x80000000u;
  let signed = bitcast<f32>(bitcast<u32>(magnitude) | sign);
  return ((signed * power_of_two(first)) * power_of_two(second)) * power_of_two(e - first - second);
}

fn recip_(x: f32) -> f32 { return div_(1.0, x); }

fn sqrt_(x: f32) -> f32 {
  if (is_moderate(x) && x > 0.0) {
    let s = sqrt(x);
    return s + residue(s, s, x) / (2.0 * s);
  }
  let u = bitcast<u32>(x);
  if (is_nan(x) || u > 0x80000000u) { return nan_value(); }
  if (is_zero(x) || u == 0x7f800000u) { return x; }
  if (u < 0x00800000u) {
    // Subnormal: x is f32(u) times 2^-149, so its root is that of twice f32(u) times 2^-75.
    let w = 2.0 * f32(u);
    let s = sqrt(w);
    return (s + residue(s, s, w) / (2.0 * s)) * bitcast<f32>(0x1a000000u);
  }
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
  if (is_nan(x) || bitcast<u32>(x) > 0x80000000u) { return nan_value(); }
  if (is_zero(x)) { return -inf_value(); }
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
