// Remainders and powers. Needs math.wgsl and a function `zero_word()` whose zero no compiler can know.

// The remainder with the sign of a, exactly: long division of the mantissas. Both mantissas have their leading bit in bit 23, those
// of subnormal numbers too, whose exponents are then 0 or less: a step leaves a remainder below the divisor only where they have.
fn rem_(a: f32, b: f32) -> f32 {
  let ua = bitcast<u32>(a) & 0x7fffffffu;
  let ub = bitcast<u32>(b) & 0x7fffffffu;
  if (ua >= 0x7f800000u || ub > 0x7f800000u || ub == 0u) { return nan_value(); }
  if (ua < ub) { return a; }
  let sa = leading_shift(ua);
  let sb = leading_shift(ub);
  var ma = mantissa_of(ua) << sa;
  let mb = mantissa_of(ub) << sb;
  let eb = max(i32(ub >> 23u), 1) - i32(sb);
  for (var steps = max(i32(ua >> 23u), 1) - i32(sa) - eb; steps > 0; steps = steps - 1) {
    if (ma >= mb) { ma = ma - mb; }
    ma = ma << 1u;
  }
  if (ma >= mb) { ma = ma - mb; }
  let sign = bitcast<u32>(a) & 0x80000000u;
  if (ma == 0u) { return bitcast<f32>(sign); }
  // Back to a float. A subnormal remainder is a multiple of the smallest number, so no bit is shifted out.
  let shift = countLeadingZeros(ma) - 8u;
  let exponent = eb - i32(shift);
  if (exponent >= 1) { return bitcast<f32>(sign | (u32(exponent) << 23u) | ((ma << shift) & 0x7fffffu)); }
  if (eb >= 1) { return bitcast<f32>(sign | (ma << u32(eb - 1))); }
  return bitcast<f32>(sign | (ma >> u32(1 - eb)));
}
fn mantissa_of(magnitude: u32) -> u32 {
  let fraction = magnitude & 0x7fffffu;
  return select(fraction | 0x800000u, fraction, magnitude < 0x00800000u);
}
fn leading_shift(magnitude: u32) -> u32 { return countLeadingZeros(mantissa_of(magnitude)) - 8u; }

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
  // By bits: a compiler that assumes that there is no NaN takes NaN for equal to anything. These two are 1 beside NaN as well.
  if (is_zero(y) || bitcast<u32>(x) == 0x3f800000u) { return 1.0; }
  if (is_nan(x) || is_nan(y)) { return nan_value(); }
  let ax = abs_(x);
  let ay = abs_(y);
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
  if (is_zero(ax) || x_infinite) {
    magnitude = select(0.0, inf_value(), x_infinite == (bitcast<u32>(y) < 0x80000000u));
  } else if (ay > 1.0e12) {
    if (ax == 1.0) { magnitude = 1.0; } else { magnitude = select(0.0, inf_value(), (ax > 1.0) == (y > 0.0)); }
  } else {
    if (is_negative && !is_whole) { return nan_value(); }
    magnitude = pow_magnitude(ax, y);
  }
  return select(magnitude, neg_(magnitude), is_negative && is_odd);
}
