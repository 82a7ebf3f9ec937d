//! The elementary functions, generic over all vector types.
//!
//! Polynomials are minimax fits, weighted for the relative error of the whole function. In a clamp
//! against a constant, the variable is the second operand, which propagates NaN (see
//! [`Lanes::min`]).

use super::lanes::{LANES_MAX, Lanes};

/// A function of one f32, applied to all lanes.
pub trait Lanewise {
    /// The function's value in every lane.
    fn call<L: Lanes>(x: L) -> L;
}

macro_rules! lanewise {
    ($($(#[$doc:meta])* $name:ident => $function:ident,)*) => {$(
        $(#[$doc])*
        pub struct $name;

        impl Lanewise for $name {
            #[inline(always)]
            fn call<L: Lanes>(x: L) -> L {
                $function(x)
            }
        }
    )*};
}

lanewise! {
    /// [`exp`] as a type.
    Exp => exp,
    /// [`log`] as a type.
    Log => log,
    /// [`tanh`] as a type.
    Tanh => tanh,
    /// [`sigmoid`] as a type.
    Sigmoid => sigmoid,
    /// [`erf`] as a type.
    Erf => erf,
    /// [`gelu`] as a type.
    Gelu => gelu,
    /// [`gelu_tanh`] as a type.
    GeluTanh => gelu_tanh,
    /// [`silu`] as a type.
    Silu => silu,
    /// [`sin`] as a type.
    Sin => sin,
    /// [`cos`] as a type.
    Cos => cos,
}

/// ln 2 in two parts: the first has nine bits, so that its product with an exponent is exact.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;

/// `e` to the power of `x`.
#[inline(always)]
pub fn exp<L: Lanes>(x: L) -> L {
    // Beyond these bounds the result is infinite or rounds to zero. Zeros are inserted at the end:
    // scaling down to zero takes as long as scaling down to subnormal numbers, a hundred times as
    // long as all other steps here.
    let x = L::splat(89.0).min(x);
    let vanishes = x.lt(L::splat(-104.0));
    let y = power(L::select(vanishes, L::splat(0.0), x), L::splat(0.0));
    L::select(vanishes, L::splat(0.0), y)
}

/// `e` to the power of `x`, times 2 to the power of the integer `shift`, if the result does not
/// overflow.
#[inline(always)]
fn power<L: Lanes>(x: L, shift: L) -> L {
    let n = x.mul(L::splat(std::f32::consts::LOG2_E)).round();
    let r = n.mul_add(L::splat(-LN_2_HIGH), x);
    let r = n.mul_add(L::splat(-LN_2_LOW), r);
    // exp(r) = 1 + r + r² p(r) for |r| ≤ ln 2 / 2.
    let p = polynomial(r, [0.499_999_93, 0.166_665_15, 0.041_668_457, 0.008_369_419, 0.001_381_314_2]);
    let tail = p.mul_add(r.mul(r), r);
    L::splat(1.0).add(tail).scale(n.add(shift))
}

/// The natural logarithm.
#[inline(always)]
pub fn log<L: Lanes>(x: L) -> L {
    let subnormal = x.lt(L::splat(f32::MIN_POSITIVE));
    let normal = L::select(subnormal, x.mul(L::splat(8_388_608.0)), x);
    let (mantissa, exponent) = normal.split();
    let exponent = L::select(subnormal, exponent.sub(L::splat(23.0)), exponent);
    // log(1 + f) = f - f²/2 + f³ p(f) for -1/4 ≤ f < 1/2.
    let f = mantissa.sub(L::splat(1.0));
    let square = f.mul(f);
    let p = polynomial(
        f,
        [
            0.333_334_5,
            -0.250_000_96,
            0.199_908_61,
            -0.166_473_12,
            0.144_784,
            -0.131_611_97,
            0.104_629_96,
            -0.045_074_467,
        ],
    );
    let tail = p.mul(f).mul(square);
    let tail = exponent.mul_add(L::splat(LN_2_LOW), tail);
    let tail = square.mul_add(L::splat(-0.5), tail);
    let y = exponent.mul_add(L::splat(LN_2_HIGH), f.add(tail));
    let y = L::select(x.lt(L::splat(f32::INFINITY)), y, x);
    let y = L::select(x.eq(L::splat(0.0)), L::splat(f32::NEG_INFINITY), y);
    L::select(x.lt(L::splat(0.0)), L::splat(f32::NAN), y)
}

/// The hyperbolic tangent.
#[inline(always)]
pub fn tanh<L: Lanes>(x: L) -> L {
    let magnitude = x.abs();
    // tanh x = x + x³ p(x²) near zero, where the other form would cancel.
    let square = x.mul(x);
    let p = polynomial(square, [-0.333_332_78, 0.133_313_29, -0.053_729_23, 0.020_602, -0.005_660_780_5]);
    let small = p.mul(square).mul_add(x, x);
    let grown = exp(magnitude.add(magnitude)).add(L::splat(1.0));
    let large = L::splat(1.0).sub(L::splat(2.0).div(grown)).copysign(x);
    L::select(magnitude.lt(L::splat(0.625)), small, large)
}

/// `1 / (1 + exp(-x))`.
#[inline(always)]
pub fn sigmoid<L: Lanes>(x: L) -> L {
    weigh(L::splat(1.0), x)
}

/// `x · sigmoid(x)`.
#[inline(always)]
pub fn silu<L: Lanes>(x: L) -> L {
    weigh(L::splat(-f32::MAX).max(x), x)
}

/// The error function.
#[inline(always)]
pub fn erf<L: Lanes>(x: L) -> L {
    // erf x = x p(x²) up to 1, then 1 - 2 Q(√2 x).
    let square = x.mul(x);
    let p = polynomial(
        square,
        [
            std::f32::consts::FRAC_2_SQRT_PI,
            -0.376_126_26,
            0.112_835_85,
            -0.026_853_812,
            0.005_188_327_6,
            -0.000_801_019_25,
            7.853_858e-5,
        ],
    );
    let small = p.mul(x);
    let (decay, p, unit) = upper_tail(x.abs().mul(L::splat(std::f32::consts::SQRT_2)));
    let large = decay.mul(p).mul_add(L::splat(-2.0), L::splat(1.0));
    let large = L::select(unit.lt(L::splat(1.0)), L::splat(1.0), large).copysign(x);
    L::select(x.abs().lt(L::splat(1.0)), small, large)
}

/// `x · Φ(x)` with the normal distribution's Φ.
#[inline(always)]
pub fn gelu<L: Lanes>(x: L) -> L {
    let (decay, p, unit) = upper_tail(x.abs());
    let positive = L::splat(1.0).sub(decay.mul(p)).mul(x);
    let positive = L::select(unit.lt(L::splat(1.0)), x, positive);
    // In this order, nothing is subnormal before the last product, and no product is computed if
    // its result would be subnormal.
    let scaled = p.mul(L::splat(-f32::MAX).max(x)).mul(decay).abs();
    let is_far = unit.lt(L::splat(1.0));
    let normal_from = L::select(is_far, L::splat(f32::MIN_POSITIVE / FAR_UNIT), L::splat(0.0));
    let normal = normal_from.max(scaled).mul(unit);
    let subnormal = scaled.mul(L::splat(FAR_UNIT / MIN_SUBNORMAL)).subnormal();
    let negative = L::select(scaled.lt(normal_from), subnormal, normal).copysign(x);
    L::select(x.lt(L::splat(0.0)), negative, positive)
}

/// `x / 2 · (1 + tanh(√(2/π) (x + 0.044715 x³)))`.
#[inline(always)]
pub fn gelu_tanh<L: Lanes>(x: L) -> L {
    // (1 + tanh u) / 2 = sigmoid(2u).
    const LINEAR: f32 = 1.595_769_2;
    const CUBIC: f32 = 0.071_354_814;
    let inner = x.mul(x).mul_add(L::splat(CUBIC), L::splat(LINEAR)).mul(x);
    weigh(L::splat(-f32::MAX).max(x), inner)
}

/// The sine of `x` radians.
#[inline(always)]
pub fn sin<L: Lanes>(x: L) -> L {
    circular(x, 0.0, f32::sin)
}

/// The cosine of `x` radians.
#[inline(always)]
pub fn cos<L: Lanes>(x: L) -> L {
    circular(x, 1.0, f32::cos)
}

/// The sine of `x` plus `quarters` quarter turns. Outside of the range of the reduction, `fallback`
/// computes lane by lane.
#[inline(always)]
fn circular<L: Lanes>(x: L, quarters: f32, fallback: fn(f32) -> f32) -> L {
    /// Below this, quarter turns can be subtracted in three steps without losing precision. This
    /// needs fused products.
    const REDUCED_X_MAX: f32 = 100_000.0;
    if !L::FUSED || !L::all(x.abs().lt(L::splat(REDUCED_X_MAX))) {
        return each_lane(x, fallback);
    }
    let n = x.mul(L::splat(std::f32::consts::FRAC_2_PI)).round();
    let r = n.mul_add(L::splat(-std::f32::consts::FRAC_PI_2), x);
    let r = n.mul_add(L::splat(4.371_139e-8), r);
    let r = n.mul_add(L::splat(1.715_124_5e-15), r);
    let square = r.mul(r);
    let p = polynomial(square, [-0.166_666_55, 0.008_332_174, -0.000_195_166_55]);
    let sine = p.mul(square).mul_add(r, r);
    let p = polynomial(square, [0.041_666_646, -0.001_388_736_1, 2.443_772_8e-5]);
    let cosine = p.mul(square).mul_add(square, square.mul_add(L::splat(-0.5), L::splat(1.0)));
    // Of the number of quarter turns, the last bit swaps sine and cosine, and the bit before it
    // changes the sign.
    let n = n.add(L::splat(quarters));
    let halves = n.mul_add(L::splat(0.5), L::splat(-0.25)).round();
    let wholes = halves.mul_add(L::splat(0.5), L::splat(-0.25)).round();
    let exchanged = halves.mul_add(L::splat(-2.0), n).eq(L::splat(1.0));
    let sign = wholes.mul_add(L::splat(-2.0), halves).mul_add(L::splat(-2.0), L::splat(1.0));
    L::select(exchanged, cosine, sine).mul(sign)
}

#[inline(always)]
fn each_lane<L: Lanes>(x: L, function: fn(f32) -> f32) -> L {
    let mut values = [0.0; LANES_MAX];
    // SAFETY: a vector has at most `LANES_MAX` lanes, and its existence proves the instructions.
    unsafe { x.store(values.as_mut_ptr()) };
    values[..L::LEN].iter_mut().for_each(|value| *value = function(*value));
    // SAFETY: as above.
    unsafe { L::load(values.as_ptr()) }
}

/// `value · sigmoid(x)`, with full precision in both tails.
#[inline(always)]
fn weigh<L: Lanes>(value: L, x: L) -> L {
    // NaN propagates through exp for either result of the comparison.
    let decay = exp(L::splat(0.0).sub(x.abs()));
    let share = L::select(x.lt(L::splat(0.0)), decay, L::splat(1.0));
    share.div(decay.add(L::splat(1.0))).mul(value)
}

const MIN_SUBNORMAL: f32 = f32::from_bits(1);
/// 2 to the power of -64.
const FAR_UNIT: f32 = 1.0 / 18_446_744_073_709_551_616.0;

/// Three factors of `Q(x) = 1 - Φ(x)` for `x ≥ 0`, with full relative precision: `exp(-x²/2)`, the
/// rest, and a power of two. The power is one unless the exponential would be close to subnormal
/// numbers, which processors handle slowly.
#[inline(always)]
fn upper_tail<L: Lanes>(x: L) -> (L, L, L) {
    // Beyond this the result is zero.
    let vanishes = L::splat(14.6).lt(x);
    let x = L::select(vanishes, L::splat(0.0), x);
    let far = L::splat(12.0).lt(x);
    // Q(x) = exp(-x²/2) p(1 / (1 + 0.3 x)). The rounding error of x² would be visible in the
    // exponential, so it is corrected.
    let t = L::splat(1.0).div(x.mul_add(L::splat(0.3), L::splat(1.0)));
    let p = polynomial(
        t,
        [
            5.072_028_6e-7,
            0.119_674_86,
            0.119_690_925,
            0.109_552_86,
            0.080_858_13,
            0.090_259_34,
            -0.069_977_47,
            0.181_746_87,
            -0.221_426_17,
            0.109_792_63,
            -0.020_172_492,
        ],
    );
    let (square, rest) = exact_square(x);
    let decay = power(square.mul(L::splat(-0.5)), L::select(far, L::splat(64.0), L::splat(0.0)));
    let decay = rest.mul(L::splat(-0.5)).mul_add(decay, decay);
    let unit = L::select(far, L::splat(FAR_UNIT), L::splat(1.0));
    (L::select(vanishes, L::splat(0.0), decay), p, unit)
}

/// The magnitudes of divisors that [`quotient`] supports.
pub const QUOTIENT_DIVISORS: std::ops::RangeInclusive<f32> = 1.0 / 1_048_576.0..=1_048_576.0;

/// Below this a part of a quotient may be subnormal.
const QUOTIENT_X_MIN: f32 = 1e-30;

/// `x / divisor` rounded to the nearest integer, ties to even.
#[inline(always)]
pub fn rounded_quotient<L: Lanes>(x: L, divisor: L) -> L {
    let is_tiny = x.abs().lt(L::splat(2.0 * QUOTIENT_X_MIN));
    quotient(L::select(is_tiny, L::splat(0.0).copysign(x), x), divisor).round()
}

/// `x / divisor`, exact to the last bit, for a divisor that is the same in all lanes. For numbers
/// of usual magnitude, products and their remainders are faster than a division. This needs fused
/// products.
#[inline(always)]
pub fn quotient<L: Lanes>(x: L, divisor: L) -> L {
    const X_MAX: f32 = 1e30;
    let is_zero = x.eq(L::splat(0.0));
    let magnitude = L::select(is_zero, L::splat(1.0), x.abs());
    if !L::all(L::splat(QUOTIENT_X_MIN).lt(magnitude)) || !L::all(magnitude.lt(L::splat(X_MAX))) {
        return x.div(divisor);
    }
    let reciprocal = L::splat(1.0).div(divisor);
    let minus = L::splat(0.0).sub(divisor);
    let rough = x.mul(reciprocal);
    // The first step leaves an error of less than a unit in the last place, and the second rounds
    // as a division does (Markstein's theorem).
    let near = minus.mul_add(rough, x).mul_add(reciprocal, rough);
    let exact = minus.mul_add(near, x).mul_add(reciprocal, near);
    // Zeros keep their sign.
    L::select(is_zero, rough, exact)
}

/// `x²` and its rounding error. Splitting `x` gives the same result with and without a fused
/// multiply-add.
#[inline(always)]
fn exact_square<L: Lanes>(x: L) -> (L, L) {
    let square = x.mul(x);
    let shifted = x.mul(L::splat(4097.0));
    let high = shifted.sub(shifted.sub(x));
    let low = x.sub(high);
    let rest = high.mul(high).sub(square).add(high.add(high).mul(low)).add(low.mul(low));
    (square, rest)
}

/// `c₀ + c₁ x + c₂ x² + …` by Horner's rule.
#[inline(always)]
fn polynomial<L: Lanes, const N: usize>(x: L, coefficients: [f32; N]) -> L {
    let mut sum = L::splat(coefficients[N - 1]);
    for coefficient in coefficients[..N - 1].iter().rev() {
        sum = sum.mul_add(x, L::splat(*coefficient));
    }
    sum
}
