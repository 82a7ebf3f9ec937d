// The accumulator of a reduction: ACC, how elements and other accumulators are added to it, and its final result.
// T is the element, R the result, OPERATION one of those below.

#define SUM 0
#define MEAN 1
#define MAXIMUM 2
#define MINIMUM 3
#define POSITION_OF_MAXIMUM 4
#define POSITION_OF_MINIMUM 5

#if defined(T_IS_f32) || defined(T_IS_f16) || defined(T_IS_bf16) || defined(T_IS_f64)
#define T_IS_FLOAT 1
#endif

#if OPERATION == SUM || OPERATION == MEAN
#if defined(T_IS_c64)
typedef complex64 ACC;
DEVICE ACC acc_join(ACC a, ACC b)
{
    a.re += b.re;
    a.im += b.im;
    return a;
}
DEVICE ACC acc_of(T x, u64 index) { return x; }
DEVICE ACC acc_empty(void)
{
    ACC a;
    a.re = a.im = 0.0f;
    return a;
}
DEVICE R acc_result(ACC a, u64 count)
{
    if (OPERATION == MEAN) {
        a.re = (f32)((f64)a.re / (f64)count);
        a.im = (f32)((f64)a.im / (f64)count);
    }
    return a;
}
#elif OPERATION == MEAN && !defined(T_IS_FLOAT)
typedef i64 ACC;
DEVICE ACC acc_join(ACC a, ACC b) { return a + b; }
DEVICE ACC acc_of(T x, u64 index) { return (i64)x; }
DEVICE ACC acc_empty(void) { return 0; }
DEVICE R acc_result(ACC a, u64 count) { return (R)((f64)a / (f64)count); }
#else
#if defined(T_IS_f64)
typedef f64 ACC;
#elif defined(T_IS_FLOAT)
typedef f32 ACC;
#else
typedef u32 ACC;
#endif
DEVICE ACC acc_join(ACC a, ACC b) { return a + b; }
DEVICE ACC acc_of(T x, u64 index) { return (ACC)T_LOAD(x); }
DEVICE ACC acc_empty(void) { return 0; }
DEVICE R acc_result(ACC a, u64 count)
{
#if OPERATION == MEAN
    return R_STORE((T_ACC)((f64)a / (f64)count));
#else
    return R_STORE((T_ACC)a);
#endif
}
#endif
#elif OPERATION == MAXIMUM || OPERATION == MINIMUM
typedef T_ACC ACC;
DEVICE ACC acc_join(ACC a, ACC b)
{
#if OPERATION == MAXIMUM
    return a > b || a != a ? a : b;
#else
    return a < b || a != a ? a : b;
#endif
}
DEVICE ACC acc_of(T x, u64 index) { return T_LOAD(x); }
DEVICE ACC acc_empty(void)
{
#if defined(T_IS_f64)
    return OPERATION == MAXIMUM ? bits_f64(0xfff0000000000000ull) : bits_f64(0x7ff0000000000000ull);
#elif defined(T_IS_FLOAT)
    return OPERATION == MAXIMUM ? bits_f32(0xff800000u) : bits_f32(0x7f800000u);
#elif defined(T_IS_i32) || defined(T_IS_i8)
    return OPERATION == MAXIMUM ? (i32)0x80000000u : 0x7fffffff;
#else
    return OPERATION == MAXIMUM ? 0u : 0xffffffffu;
#endif
}
DEVICE R acc_result(ACC a, u64 count) { return R_STORE(a); }
#else
// Positions: the larger key wins, and among equal keys the smaller position. NaN has the largest key.
#if defined(T_IS_f64)
typedef struct { u64 key, unplace; } ACC;
DEVICE ACC acc_join(ACC a, ACC b) { return a.key > b.key || (a.key == b.key && a.unplace > b.unplace) ? a : b; }
DEVICE ACC acc_of(T x, u64 index)
{
    u64 bits = f64_bits(x + 0.0), key = bits >> 63 ? ~bits : bits | 1ull << 63;
    ACC a;
    a.key = x != x ? ~0ull : OPERATION == POSITION_OF_MAXIMUM ? key : ~key;
    a.unplace = ~index;
    return a;
}
DEVICE ACC acc_empty(void)
{
    ACC a;
    a.key = a.unplace = 0;
    return a;
}
DEVICE R acc_result(ACC a, u64 count) { return (R)~a.unplace; }
#else
typedef u64 ACC;
DEVICE ACC acc_join(ACC a, ACC b) { return a > b ? a : b; }
DEVICE ACC acc_of(T x, u64 index)
{
#if defined(T_IS_FLOAT)
    f32 value = T_LOAD(x);
    u32 bits = f32_bits(value + 0.0f), key = bits >> 31 ? ~bits : bits | 0x80000000u;
    key = value != value ? ~0u : OPERATION == POSITION_OF_MAXIMUM ? key : ~key;
#else
    u32 key = (u32)T_LOAD(x);
#if defined(T_IS_i32) || defined(T_IS_i8)
    key ^= 0x80000000u;
#endif
    if (OPERATION == POSITION_OF_MINIMUM) key = ~key;
#endif
    return (u64)key << 32 | (u32)~(u32)index;
}
DEVICE ACC acc_empty(void) { return 0; }
DEVICE R acc_result(ACC a, u64 count) { return (R)~(u32)a; }
#endif
#endif

#define ACC_WORDS (sizeof(ACC) / 4)
typedef union { ACC acc; u32 word[ACC_WORDS]; } acc_words;

DEVICE ACC acc_shuffle_xor(ACC a, u32 mask)
{
    acc_words x;
    x.acc = a;
    UNROLL
    for (u32 w = 0; w < ACC_WORDS; w++) x.word[w] = shuffle_xor_u32(x.word[w], mask);
    return x.acc;
}

DEVICE ACC acc_load_coherent(GLOBAL const ACC *p)
{
    acc_words x;
    UNROLL
    for (u32 w = 0; w < ACC_WORDS; w++) x.word[w] = load_coherent_u32((GLOBAL const u32 *)p + w);
    return x.acc;
}

// Over `lanes` neighbouring lanes, a power of two; every lane gets the result.
DEVICE ACC acc_over_lanes(ACC a, u32 lanes)
{
    for (u32 mask = lanes / 2; mask > 0; mask /= 2) a = acc_join(a, acc_shuffle_xor(a, mask));
    return a;
}
