// The epilogue of every matrix product, for sums of any kernel: activation(alpha · A·B + beta · C + bias).
//
// T is the operands' element type, R the result's. BIAS is 0 (none), 1 (one number for each column) or 2 (one for each row);
// ACTIVATION counts as in `activate` below.

#if defined(T_IS_c64)
#define SUM complex64
#define ZERO {0.0f, 0.0f}
#define TO_SUM(x) (x)
#define FROM_SUM(x) (x)
#elif defined(T_IS_f64)
#define SUM f64
#define ZERO 0.0
#define TO_SUM(x) (x)
#define FROM_SUM(x) (x)
#elif defined(T_IS_i32) || defined(T_IS_u32) || defined(T_IS_i8) || defined(T_IS_u8)
// Sums wrap at 32 bits, signed or not.
#define SUM u32
#define ZERO 0u
#define TO_SUM(x) ((u32)T_LOAD(x))
#define FROM_SUM(x) ((R)(x))
#else
#define SUM f32
#define ZERO 0.0f
#define TO_SUM(x) T_LOAD(x)
#define FROM_SUM(x) R_STORE(x)
#endif

DEVICE SUM multiply_add(SUM sum, SUM x, SUM y)
{
#if defined(T_IS_c64)
    sum.re += x.re * y.re - x.im * y.im;
    sum.im += x.re * y.im + x.im * y.re;
    return sum;
#else
    return sum + x * y;
#endif
}

DEVICE SUM scaled(SUM x, f32 factor)
{
#if defined(T_IS_c64)
    x.re *= factor;
    x.im *= factor;
    return x;
#elif defined(T_IS_i32) || defined(T_IS_u32) || defined(T_IS_i8) || defined(T_IS_u8)
    return x * (u32)(i32)factor;
#else
    return x * (SUM)factor;
#endif
}

DEVICE SUM added(SUM x, SUM y)
{
#if defined(T_IS_c64)
    x.re += y.re;
    x.im += y.im;
    return x;
#else
    return x + y;
#endif
}

// An element of C or of the bias.
DEVICE SUM addend(R x)
{
#if defined(T_IS_i8) || defined(T_IS_u8) || defined(T_IS_i32) || defined(T_IS_u32)
    return (u32)x;
#elif defined(T_IS_c64)
    return x;
#else
    return R_LOAD(x);
#endif
}

DEVICE SUM activate(SUM x)
{
#if ACTIVATION == 0
    return x;
#elif defined(T_IS_i32) || defined(T_IS_i8) || defined(T_IS_u8)
    return (i32)x < 0 ? 0u : x;
#elif defined(T_IS_u32)
    return x;
#elif defined(T_IS_c64)
    return x;
#elif ACTIVATION == 1
    return x < (SUM)0 ? (SUM)0 : x;
#elif ACTIVATION == 2
    // Far below zero the factor is nothing, and takes even an infinity with it.
    SUM factor = (SUM)(1.0 + erf((f64)x * 0.70710678118654752440));
    return factor == (SUM)0 ? (SUM)0 : x * factor * (SUM)0.5;
#elif ACTIVATION == 3
    return x / ((SUM)1 + (SUM)exp(-(f64)x));
#elif ACTIVATION == 4
    return (SUM)(1.0 / (1.0 + exp(-(f64)x)));
#else
    return (SUM)tanh((f64)x);
#endif
}

typedef struct {
    i64 row, col;
} strides;

typedef struct {
    u32 m, n, k, batches;
    f32 alpha, beta;
} sizes;

// The result for the scaled sum at row r and column s.
DEVICE R finished(SUM sum, GLOBAL const R *c, GLOBAL const R *bias, sizes size, strides c_step, const layout *c_batch, u32 batch,
                  u32 r, u32 s)
{
#if HAS_C
    i64 at = layout_offset(c_batch, batch) + (i64)r * c_step.row + (i64)s * c_step.col;
    sum = added(sum, scaled(addend(c[at]), size.beta));
#endif
#if BIAS == 1
    sum = added(sum, addend(bias[s]));
#elif BIAS == 2
    sum = added(sum, addend(bias[r]));
#endif
    return FROM_SUM(activate(sum));
}

