// The operations of elementwise expressions, for what carries each dtype: f32 (also for f16 and bf16), f64, i32 (also for i8),
// u32 (also for u8) and complex64. The exact meaning is that of the expression's documentation: nothing is contracted but
// mul_add, integers wrap, NaN goes through everything. A narrow integer's carrier is wrapped after every operation by the caller.

DEVICE f32 exp_f32(f32 x) { return expf(x); }
DEVICE f32 log_f32(f32 x) { return logf(x); }
DEVICE f32 sqrt_f32(f32 x) { return sqrtf(x); }
DEVICE f32 tanh_f32(f32 x) { return tanhf(x); }
DEVICE f32 erf_f32(f32 x) { return erff(x); }
DEVICE f32 floor_f32(f32 x) { return floorf(x); }
DEVICE f32 ceil_f32(f32 x) { return ceilf(x); }
DEVICE f32 round_f32(f32 x) { return rintf(x); }
DEVICE f32 sin_f32(f32 x) { return sinf(x); }
DEVICE f32 cos_f32(f32 x) { return cosf(x); }
DEVICE f32 abs_f32(f32 x) { return fabsf(x); }
DEVICE f32 rem_f32(f32 a, f32 b) { return fmodf(a, b); }
DEVICE f32 mul_add_f32(f32 a, f32 b, f32 c) { return fmaf(a, b, c); }
// The single-precision power is several units off.
DEVICE f32 pow_f32(f32 a, f32 b) { return (f32)pow((f64)a, (f64)b); }

DEVICE f64 exp_f64(f64 x) { return exp(x); }
DEVICE f64 log_f64(f64 x) { return log(x); }
DEVICE f64 sqrt_f64(f64 x) { return sqrt(x); }
DEVICE f64 tanh_f64(f64 x) { return tanh(x); }
DEVICE f64 erf_f64(f64 x) { return erf(x); }
DEVICE f64 floor_f64(f64 x) { return floor(x); }
DEVICE f64 ceil_f64(f64 x) { return ceil(x); }
DEVICE f64 round_f64(f64 x) { return rint(x); }
DEVICE f64 sin_f64(f64 x) { return sin(x); }
DEVICE f64 cos_f64(f64 x) { return cos(x); }
DEVICE f64 abs_f64(f64 x) { return fabs(x); }
DEVICE f64 rem_f64(f64 a, f64 b) { return fmod(a, b); }
DEVICE f64 pow_f64(f64 a, f64 b) { return pow(a, b); }
DEVICE f64 mul_add_f64(f64 a, f64 b, f64 c) { return fma(a, b, c); }

// Functions of both float types. A weight of zero wins over an infinite x.
#define FLOAT_OPERATIONS(F)                                                                      \
    DEVICE F identity_##F(F x) { return x; }                                                      \
    DEVICE F neg_##F(F x) { return -x; }                                                          \
    DEVICE F rsqrt_##F(F x) { return (F)1 / sqrt_##F(x); }                                        \
    DEVICE F recip_##F(F x) { return (F)1 / x; }                                                  \
    DEVICE F relu_##F(F x) { return x <= (F)0 ? (F)0 : x; }                                       \
    DEVICE F sigmoid_##F(F x)                                                                     \
    {                                                                                             \
        F decay = exp_##F(-abs_##F(x));                                                           \
        return (x < (F)0 ? decay : (F)1) / ((F)1 + decay);                                        \
    }                                                                                             \
    DEVICE F share_##F(F x, F weight) { return weight == (F)0 ? (F)0 : x * weight; }              \
    DEVICE F silu_##F(F x) { return share_##F(x, sigmoid_##F(x)); }                               \
    DEVICE F gelu_tanh_##F(F x)                                                                   \
    {                                                                                             \
        F inner = (F)0.7978845608028654 * (x + (F)0.044715 * x * x * x);                          \
        return share_##F(x, sigmoid_##F((F)2 * inner));                                           \
    }                                                                                             \
    DEVICE F not_##F(F x) { return x == (F)0 ? (F)1 : (F)0; }                                     \
    DEVICE F div_##F(F a, F b) { return a / b; }                                                  \
    DEVICE F min_##F(F a, F b) { return a < b || a != a ? a : b; }                                \
    DEVICE F max_##F(F a, F b) { return a > b || a != a ? a : b; }                                \
    DEVICE F clamp_##F(F a, F b, F c) { return min_##F(max_##F(a, b), c); }

#define COMPARISONS(F)                                                                            \
    DEVICE F eq_##F(F a, F b) { return (F)(a == b); }                                             \
    DEVICE F ne_##F(F a, F b) { return (F)(a != b); }                                             \
    DEVICE F lt_##F(F a, F b) { return (F)(a < b); }                                              \
    DEVICE F le_##F(F a, F b) { return (F)(a <= b); }                                             \
    DEVICE F gt_##F(F a, F b) { return (F)(a > b); }                                              \
    DEVICE F ge_##F(F a, F b) { return (F)(a >= b); }                                             \
    DEVICE F and_##F(F a, F b) { return (F)(a != (F)0 && b != (F)0); }                            \
    DEVICE F or_##F(F a, F b) { return (F)(a != (F)0 || b != (F)0); }                             \
    DEVICE F select_##F(F a, F b, F c) { return a != (F)0 ? b : c; }

FLOAT_OPERATIONS(f32)
FLOAT_OPERATIONS(f64)
COMPARISONS(f32)
COMPARISONS(f64)
COMPARISONS(i32)
COMPARISONS(u32)

DEVICE f64 gelu_f64(f64 x) { return share_f64(x, erfc(x * -0.70710678118654752440) * 0.5); }

// In the tail a rounding of erfc's argument z is magnified by 2 z²; what the product lost is put back by the derivative.
DEVICE f32 gelu_f32(f32 x)
{
    const f32 scale = -0.70710678118654752440f, scale_rest = -1.2101617e-8f;
    f32 z = mul_f32(x, scale);
    f32 weight = erfcf(z);
    if (fabsf(z) < 10.0f) {
        f32 rest = fmaf(x, scale, -z) + x * scale_rest;
        weight -= rest * 1.1283792f * expf(-z * z);
    }
    return share_f32(x, weight * 0.5f);
}

// The same for results of f16, which are those of the exact function rounded but for a few in a million: what lies under the bell's tail is
// t times a polynomial of t times exp(-x²/2), where t = 1 / (1 + 0.36 |x| / sqrt(2)); its relative error is 1e-7 as far as f16 reaches.
DEVICE f32 gelu_half(f32 x)
{
    f32 t = reciprocal_near(fmaf(fabsf(x), 0.25455844f, 1.0f));
    f32 p = fmaf(t, -0.08587351f, 0.29926255f);
    p = fmaf(t, p, -0.207424425f);
    p = fmaf(t, p, 0.240860985f);
    p = fmaf(t, p, 0.04082528f);
    p = fmaf(t, p, 0.11157709f);
    p = fmaf(t, p, 0.100771975f);
    f32 tail = p * t * exp2_below(x * x * -0.72134752f), above = fmaxf(x, 0.0f);
    // A weight that has vanished wins over an infinite x.
    return tail == 0.0f ? above : fmaf(-fabsf(x), tail, above);
}

DEVICE i32 neg_i32(i32 x) { return (i32)(0u - (u32)x); }
DEVICE i32 abs_i32(i32 x) { return x < 0 ? neg_i32(x) : x; }
DEVICE i32 relu_i32(i32 x) { return x < 0 ? 0 : x; }
DEVICE i32 add_i32(i32 a, i32 b) { return (i32)((u32)a + (u32)b); }
DEVICE i32 sub_i32(i32 a, i32 b) { return (i32)((u32)a - (u32)b); }
DEVICE i32 mul_i32(i32 a, i32 b) { return (i32)((u32)a * (u32)b); }
DEVICE i32 div_i32(i32 a, i32 b) { return b == 0 ? 0 : b == -1 ? neg_i32(a) : a / b; }
DEVICE i32 rem_i32(i32 a, i32 b) { return b == 0 || b == -1 ? 0 : a % b; }
DEVICE u32 neg_u32(u32 x) { return 0u - x; }
DEVICE u32 abs_u32(u32 x) { return x; }
DEVICE u32 relu_u32(u32 x) { return x; }
DEVICE u32 add_u32(u32 a, u32 b) { return a + b; }
DEVICE u32 sub_u32(u32 a, u32 b) { return a - b; }
DEVICE u32 mul_u32(u32 a, u32 b) { return a * b; }
DEVICE u32 div_u32(u32 a, u32 b) { return b == 0u ? 0u : a / b; }
DEVICE u32 rem_u32(u32 a, u32 b) { return b == 0u ? 0u : a % b; }

DEVICE u32 pow_u32(u32 base, u32 exponent)
{
    u32 result = 1u;
    for (; exponent != 0u; exponent >>= 1, base *= base) {
        if (exponent & 1u) result *= base;
    }
    return result;
}

DEVICE i32 pow_i32(i32 base, i32 exponent)
{
    if (exponent >= 0) return (i32)pow_u32((u32)base, (u32)exponent);
    if (base == 1) return 1;
    return base == -1 ? ((exponent & 1) ? -1 : 1) : 0;
}

#define INTEGER_OPERATIONS(I)                                                                     \
    DEVICE I floor_##I(I x) { return x; }                                                         \
    DEVICE I ceil_##I(I x) { return x; }                                                          \
    DEVICE I round_##I(I x) { return x; }                                                         \
    DEVICE I not_##I(I x) { return (I)(x == 0); }                                                 \
    DEVICE I min_##I(I a, I b) { return a < b ? a : b; }                                          \
    DEVICE I max_##I(I a, I b) { return a > b ? a : b; }                                          \
    DEVICE I clamp_##I(I a, I b, I c) { return min_##I(max_##I(a, b), c); }                       \
    DEVICE I mul_add_##I(I a, I b, I c) { return add_##I(mul_##I(a, b), c); }

INTEGER_OPERATIONS(i32)
INTEGER_OPERATIONS(u32)

DEVICE complex64 complex_of(f32 re, f32 im)
{
    complex64 z;
    z.re = re;
    z.im = im;
    return z;
}
DEVICE complex64 complex_of_real(u32 bits) { return complex_of(bits_f32(bits), 0.0f); }
DEVICE complex64 neg_complex64(complex64 a) { return complex_of(-a.re, -a.im); }
DEVICE complex64 add_complex64(complex64 a, complex64 b) { return complex_of(a.re + b.re, a.im + b.im); }
DEVICE complex64 sub_complex64(complex64 a, complex64 b) { return complex_of(a.re - b.re, a.im - b.im); }
DEVICE complex64 mul_complex64(complex64 a, complex64 b)
{
    f32 re = sub_f32(mul_f32(a.re, b.re), mul_f32(a.im, b.im));
    return complex_of(re, add_f32(mul_f32(a.re, b.im), mul_f32(a.im, b.re)));
}
DEVICE complex64 div_complex64(complex64 a, complex64 b)
{
    f32 norm = add_f32(mul_f32(b.re, b.re), mul_f32(b.im, b.im));
    f32 re = add_f32(mul_f32(a.re, b.re), mul_f32(a.im, b.im));
    return complex_of(re / norm, sub_f32(mul_f32(a.im, b.re), mul_f32(a.re, b.im)) / norm);
}
DEVICE complex64 recip_complex64(complex64 a) { return div_complex64(complex_of(1.0f, 0.0f), a); }
DEVICE complex64 mul_add_complex64(complex64 a, complex64 b, complex64 c) { return add_complex64(mul_complex64(a, b), c); }

// Casts to a dtype, from every carrier. Floats to integers truncate and saturate, NaN becomes 0; integers wrap.
#define FLOAT_TO_INTEGER(F)                                                                       \
    DEVICE i32 cast_##F##_i32(F x)                                                                \
    {                                                                                             \
        return x != x ? 0 : x < (F)-2147483648.0 ? (i32)0x80000000 : x >= (F)2147483648.0 ? 0x7fffffff : (i32)x; \
    }                                                                                             \
    DEVICE u32 cast_##F##_u32(F x) { return !(x > (F)0) ? 0u : x >= (F)4294967296.0 ? 0xffffffffu : (u32)x; } \
    DEVICE i32 cast_##F##_i8(F x) { return x != x ? 0 : x < (F)-128 ? -128 : x > (F)127 ? 127 : (i32)x; } \
    DEVICE u32 cast_##F##_u8(F x) { return !(x > (F)0) ? 0u : x > (F)255 ? 255u : (u32)x; }
FLOAT_TO_INTEGER(f32)
FLOAT_TO_INTEGER(f64)

#define CASTS_FROM(S)                                                                             \
    DEVICE f32 cast_##S##_f32(S x) { return (f32)x; }                                             \
    DEVICE f64 cast_##S##_f64(S x) { return (f64)x; }                                             \
    DEVICE f32 cast_##S##_f16(S x) { return f16_to_f32(f32_to_f16((f32)x)); }                     \
    DEVICE f32 cast_##S##_bf16(S x) { return bf16_to_f32(f32_to_bf16((f32)x)); }                  \
    DEVICE complex64 cast_##S##_c64(S x) { return complex_of((f32)x, 0.0f); }
CASTS_FROM(f32)
CASTS_FROM(f64)
CASTS_FROM(i32)
CASTS_FROM(u32)

#define INTEGER_CASTS(S)                                                                          \
    DEVICE i32 cast_##S##_i32(S x) { return (i32)x; }                                             \
    DEVICE u32 cast_##S##_u32(S x) { return (u32)x; }                                             \
    DEVICE i32 cast_##S##_i8(S x) { return (i32)(i8)x; }                                          \
    DEVICE u32 cast_##S##_u8(S x) { return (u32)(u8)x; }
INTEGER_CASTS(i32)
INTEGER_CASTS(u32)
